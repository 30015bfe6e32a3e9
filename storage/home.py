"""The identity of the file of a store: copied files of a running store are refused, because they may be torn.

`cp` reads a file while it is written, so pages of several commits get mixed. While a process writes to a store, a row
of it names the file; closing the store marks the row as unused. So a store that was closed may be moved and
copied, and one that was not is accepted only in the same file, by inode number and time of creation: no copy has them.
"""

from __future__ import annotations

import ctypes
import os
from contextlib import suppress
from functools import partial
from pathlib import Path
from struct import Struct as Packed

import lmdb
from msgspec import Struct, structs

from storage.disk import FORMAT_KEY, META, Db, Disk, Txn
from storage.errors import StoreError, StoreFull, WrongFormat
from storage.rows import open_row, seal_row

HOME = b"home"

_AT_FDCWD, _STATX_BTIME = -100, 0x800
_STATX = Packed("=I76xqI")  # struct statx: what is filled in, and the time of creation
_STATX_BYTES = 256


class Home(Struct, array_like=True, frozen=True):
    """The file that holds a store; `born` is 0 where the filesystem does not report it."""

    inode: int
    born: int  # nanoseconds since 1970
    open: bool

    def is_at(self, other: Home) -> bool:
        """Return whether both are the same file."""
        return self.inode == other.inode and (self.born == other.born or 0 in (self.born, other.born))


class CopiedStore(WrongFormat):
    """The files of a store were copied while it was open."""

    def __init__(self, folder: Path) -> None:
        super().__init__(
            f"{folder}: these files were copied from a store that was running, or was killed, so pages of several "
            "commits may be mixed: use `utxod backup` and `utxod restore` to copy a store that runs; "
            f"`utxod restore --adopt {folder.parent}` checks this copy and accepts it"
        )


def home_of(folder: Path) -> Home:
    """Return the file that holds the store in a folder now."""
    path = folder / "data.mdb"
    return Home(path.stat().st_ino, _born(path), True)


def _born(path: Path) -> int:
    """Return when a file was made, in nanoseconds; 0 if the filesystem does not report it."""
    held = ctypes.create_string_buffer(_STATX_BYTES)
    statx = getattr(ctypes.CDLL(None), "statx", None)
    if statx is None or statx(_AT_FDCWD, os.fsencode(path), 0, _STATX_BTIME, held):
        return 0
    mask, seconds, nanoseconds = _STATX.unpack_from(held)
    return int(seconds) * 10**9 + int(nanoseconds) if mask & _STATX_BTIME else 0


def refuse_copy(disk: Disk) -> None:
    """Refuse files that were copied while their store was open.

    Raises:
        CopiedStore: they were.
    """
    with disk.read() as txn:
        home = _stored(txn, disk.tables[META])
    if home is not None and home.open and not home.is_at(home_of(disk.folder)):
        raise CopiedStore(disk.folder)


def settle(disk: Disk) -> None:
    """Record which file this store is in, until the disk is closed. A full disk does not prevent opening it."""
    here, meta = home_of(disk.folder), disk.tables[META]
    with disk.read() as txn:
        if txn.get(FORMAT_KEY, db=meta) is None:  # it was never run
            return
        home = _stored(txn, meta)
    if home != here:
        with suppress(StoreFull):
            disk.write(partial(_put, meta, here))
    disk.before_close = partial(leave, disk)


def leave(disk: Disk) -> None:
    """Record that the store was closed and may be copied. If that cannot be written, it remains as after a kill."""
    with suppress(StoreError, lmdb.Error):
        disk.write(lambda txn: mark_closed(txn, disk.tables[META]))


def _stored(txn: Txn, meta: Db) -> Home | None:
    raw = txn.get(HOME, db=meta)
    return None if raw is None else open_row(Home, raw, "the row that names the file")


def _put(meta: Db, home: Home, txn: Txn) -> None:
    txn.put(HOME, seal_row(home), db=meta)


def mark_closed(txn: Txn, meta: Db) -> None:
    """Record that no process writes to this store."""
    home = _stored(txn, meta)
    if home is not None and home.open:
        _put(meta, structs.replace(home, open=False), txn)
