"""Inspection of a store while its daemon runs: read-only, each in one consistent state."""

from __future__ import annotations

import os
import shutil
import tempfile
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, nullcontext
from functools import partial
from pathlib import Path
from typing import NamedTuple, TypeVar

import msgspec

from config.settings import Config
from daemon.store import (
    TABLES,
    folder,
    leaf_writer,
    limited,
    open_disk,
    open_store,
    reading,
)
from handlers.audit import Audited, audit
from storage.disk import Disk
from storage.errors import Damaged, StoreFull, TableMissing
from storage.history.export import Part, live_set
from storage.history.layout import to_extra
from storage.history.store import HistoryStore
from storage.history.verify import MOST, silent
from storage.history.verify import verify as verify_store
from storage.history.view import Progress
from storage.pages import check_pages
from storage.precheck import precheck
from storage.rows import Body

_T = TypeVar("_T")


class Verified(NamedTuple):
    """What is wrong with a store, and remarks that are no damage."""

    findings: list[str]
    notes: list[str]
    contradictions: list[str]  # of transaction records and a chain that lied


class Copy(NamedTuple):
    """Where a copy of the store is made; nowhere, and why."""

    place: Path | None
    left_out: str | None = None


def copy_place(config: Config, copy_to: Path | None) -> Copy:
    """Return where the copy is made: in the chosen folder, else next to the store, else in the temporary folder."""
    place = copy_to or config.data_dir
    try:
        if not os.access(place, os.W_OK):
            place = Path(tempfile.gettempdir())
        needed, free = (folder(config) / "data.mdb").stat().st_size, shutil.disk_usage(place).free
    except OSError as error:
        return Copy(None, f"{error.filename or place}: {error.strerror or error}")
    if free < needed:
        return Copy(None, f"a copy of the store takes {needed:,} bytes, {place} has {free:,} left")
    return Copy(place)


def verify(config: Config, copy: Copy, progress: Progress = silent) -> Verified:
    """Return what is wrong with the store, and which transactions are incomplete; these are not damage.

    Pages are checked first, without LMDB: on damaged ones it may end this process.
    """
    if pages := _pages(folder(config)):
        return Verified(pages[:MOST], [], [])
    left_out = copy.left_out
    with _whole(partial(_open, copies=True), config) as disk:
        try:
            found = _walk(config, disk, copy.place, progress)
        except StoreFull as full:
            found, left_out = _walk(config, disk, None, progress), str(full)
    return Verified(found.findings, _not_tried(left_out) + found.incomplete, found.contradictions)


def _open(config: Config, *, copies: bool = False) -> Disk:
    disk = open_disk(config, readonly=True, copies=copies)
    try:
        open_store(disk, config)
    except BaseException:
        disk.close()
        raise
    return disk


def _not_tried(left_out: str | None) -> list[str]:
    return [f"the undo logs were not tried on a copy: {left_out} (--copy-to)"] if left_out else []


def _walk(config: Config, disk: Disk, place: Path | None, progress: Progress) -> Audited:
    """Walk a copy of the store in `place`, else the store itself."""
    audited = Audited([], [])

    def records(seen: Disk) -> list[str]:
        nonlocal audited
        if config.transactions.enabled:
            audited = audit(reading(HistoryStore(seen), config))
        return audited.findings

    with _in_place(disk) if place is None else nullcontext():
        findings = verify_store(
            disk, quick=place is None, also=records, copy_to=place, progress=progress, leaves=leaf_writer(config)
        )
        return msgspec.structs.replace(audited, findings=findings)


def _in_place(disk: Disk) -> AbstractContextManager[None]:
    return limited(disk, "omit --quick, so that a copy is read, and free disk space for it")


def _pages(store: Path) -> list[str]:
    try:
        return check_pages(store / "data.mdb")
    except FileNotFoundError:  # opening the store reports it
        return []
    except Damaged as error:
        return [str(error)]


def _whole(open_it: Callable[[Config], _T], config: Config) -> _T:
    """Open the store. A table that is missing is damage if the store was ever run."""
    try:
        return open_it(config)
    except TableMissing:
        precheck(folder(config), TABLES)
        raise


def export(config: Config, form: str, expect: Callable[[int], object] = lambda _: None) -> Iterator[bytes]:
    """Yield the live set in chain order, some thousand lines at a time. `expect` is called with their estimated number.

    Raises:
        ChainMoved: it can't be completed.
    """
    lines = _csv_lines if form == "csv" else _json_lines
    with _open(config) as disk:
        with disk.read() as txn:
            expect(HistoryStore(disk).state(txn).unspent)
        yield from map(lines, live_set(disk))


def _csv_lines(part: Part) -> bytes:
    txids, heap = part.txids, part.heap.hex()
    columns = zip(part.of_tx, part.indexes, part.values, part.starts, part.middles, strict=True)
    lines = [
        f"{txids[64 * tx : 64 * tx + 64]},{index},{value},{heap[2 * start : 2 * end]}\n"
        for tx, index, value, start, end in columns
    ]
    return "".join(lines).encode()


def _json_lines(part: Part) -> bytes:
    lines = list[bytes]()
    columns = zip(part.of_tx, part.indexes, part.values, part.starts, part.middles, part.ends, strict=True)
    for tx, index, value, start, middle, end in columns:
        body = to_extra(part.heap[middle:end]).body(part.heap[start:middle], value)
        lines.append(_json_of(part.txids[64 * tx : 64 * tx + 64], index, body))
    return b"".join(lines)


def _json_of(txid: str, index: int, body: Body) -> bytes:
    assets = [[policy.hex(), name.hex(), str(quantity)] for policy, name, quantity in body.assets]
    fields: dict[str, object] = {
        "txid": txid,
        "index": index,
        "value": body.value,
        "address": body.address.hex(),
        "assets": assets,
        "is_collateral_return": body.is_collateral_return,
    }
    for name in ("datum_hash", "inline_datum", "script_ref", "script_ref_hash"):
        raw: bytes | None = getattr(body, name)
        fields[name] = None if raw is None else raw.hex()
    return msgspec.json.encode(fields) + b"\n"
