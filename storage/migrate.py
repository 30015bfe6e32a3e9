"""Migrating a store from an older format to this one, in steps.

A step is one function that rewrites the tables inside of one transaction; a store is always of a whole format. There is
no step yet: earlier formats have other tables, which are filled by feeding the chain again.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import partial
from pathlib import Path

from storage.disk import FORMAT_KEY, META, Disk, Txn, other_format
from storage.errors import StoreError, WrongFormat
from storage.history.layout import FORMAT

Step = Callable[[Txn, Disk], None]

STEPS: Mapping[int, Step] = {}  # the format that a step begins with: it ends with the next one


def migrate(folder: Path, steps: Mapping[int, Step] = STEPS) -> list[int]:
    """Run the steps that lead from a store's format to this version's; return the formats that it has had.

    Each step is one commit: a kill leaves a format from which the rest can be done.

    Raises:
        WrongFormat: no steps lead from there to here; nothing was changed.
        StoreError: there is no store, or a process has it open.
    """
    if not (folder / "data.mdb").exists():
        raise StoreError(f"{folder}: there is no store here")
    with Disk(folder, (META,), readonly=True) as disk, disk.read() as txn:
        written = txn.get(FORMAT_KEY, db=disk.tables[META])
    if written is None:
        raise WrongFormat(f"{folder}: this store has no format; no daemon ever opened it")
    first = int.from_bytes(written, "big")
    if first > FORMAT or any(number not in steps for number in range(first, FORMAT)):
        raise other_format(folder, first, FORMAT)
    if first == FORMAT:
        return [first]
    with Disk(folder, (META,)) as disk:
        for number in range(first, FORMAT):
            disk.write(partial(_step, disk, steps[number], number + 1))
    return [*range(first, FORMAT + 1)]


def _step(disk: Disk, step: Step, after: int, txn: Txn) -> None:
    step(txn, disk)
    txn.put(FORMAT_KEY, after.to_bytes(4, "big"), db=disk.tables[META])
