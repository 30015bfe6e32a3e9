"""A check of a closed store in some milliseconds, whatever its size: most damage is found before a daemon listens.

LMDB may abort the process while it reads a damaged file, so this belongs into a child process.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from storage.change_log import TABLES as LOG_TABLES
from storage.change_log import read_row
from storage.disk import FORMAT_KEY, META, Disk
from storage.errors import Damaged, TableMissing
from storage.history.ends import contradictions
from storage.history.layout import FORMAT, TABLES
from storage.history.store import HistoryStore
from storage.pages import check_file

RESTORING = "restoring"  # in a data folder: what is being restored into it


class RestoreIncomplete(Damaged):
    """A restore into this data folder did not end."""

    advice = "run `utxod restore` again: it starts from the beginning"


def refuse_incomplete(data_dir: Path) -> None:
    """Refuse a data folder into which a backup is being restored, or was not restored to the end.

    Raises:
        RestoreIncomplete: it is one.
    """
    restoring = data_dir / RESTORING
    if restoring.is_dir() and any(restoring.iterdir()):
        raise RestoreIncomplete(f"{restoring}: a restore into this folder did not end")


def precheck(folder: Path, tables: Sequence[str]) -> None:
    """Check meta pages, free pages and length of the file, both ends of every table, and the state row against them.

    `tables` are those that a daemon opens in addition to the UTXO set's.

    Raises:
        Damaged: something of it is wrong.
        WrongFormat: another version wrote it.
        StoreError, OSError: the store cannot be opened or read.
    """
    path = folder / "data.mdb"
    if not path.exists():
        return
    check_file(path)
    with Disk(folder, (), readonly=True, version=FORMAT) as disk, disk.read() as txn:
        there = {key.decode(errors="replace") for key, _ in txn.cursor()}
    present = [table for table in (META, *TABLES, *tables) if table.rstrip("*") in there]
    try:
        with Disk(folder, present, readonly=True) as disk:
            _check_tables(disk)
    except TableMissing as error:  # one that is listed, or one of an MMR store
        raise Damaged(f"{folder}: the table {error.table} is missing") from error


def _check_tables(disk: Disk) -> None:
    with disk.read() as txn:
        meta = disk.tables.get(META)
        written = None if meta is None else txn.get(FORMAT_KEY, db=meta)
        if written is None:  # it was never run, or not to the end of its first start
            if any(txn.stat(db)["entries"] for db in disk.tables.values()):
                raise Damaged(f"{disk.folder}: it has rows, but no format")
            return
    for table in TABLES:
        if table not in disk.tables:
            raise TableMissing(str(disk.folder), table)
    HistoryStore(disk)  # opens the tables of Merkle mountain ranges where there are some
    with disk.read() as txn:
        for table, db in disk.tables.items():
            cursor = txn.cursor(db)
            for go in (cursor.first, cursor.last):
                if go() and table in LOG_TABLES:
                    read_row(*cursor.item())
        for contradiction in contradictions(txn, disk.tables):
            raise Damaged(f"{disk.folder}: {contradiction}")
