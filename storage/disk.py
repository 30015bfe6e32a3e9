"""The LMDB environment: opened once, one writer, a map that grows automatically, and an error for a full disk.

LMDB ties a write transaction to its thread, and py-lmdb retakes the GIL for every element that it moves: so `write`
runs one plain function from begin to commit, on the only busy Python thread of the process.
"""

from __future__ import annotations

import errno
import fcntl
import os
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext, suppress
from itertools import takewhile
from pathlib import Path
from typing import TypeAlias, TypeVar

import lmdb

from storage.damage import broken
from storage.errors import Damaged, SnapshotExpired, StoreBusy, StoreError, StoreFull, TableMissing, WrongFormat
from storage.files import FILE_MODE, make_folder, sync_folder
from storage.readers import Age, Marks, Reader, open_readers

Txn: TypeAlias = "lmdb.Transaction[bytes]"
Db: TypeAlias = "lmdb._Database"
_T = TypeVar("_T")

META, FORMAT_KEY = "utxo_meta", b"format"  # the table and the key under which every version writes its format
MIB = 1 << 20
GIB = 1 << 30
_MORE_TABLES = 8  # that may be opened later
_MAX_READERS = 1024  # slots in the table of readers
FULL = {errno.ENOSPC, errno.EDQUOT, errno.EFBIG}


class Disk:
    """One LMDB environment in `folder`, with its tables open.

    `tables` are names; one that ends in `*` keeps sorted duplicates of a fixed size. One process holds a writable disk.
    `durable=False` is for copies that are discarded, `shared=False` for those that no one else opens: they need no
    lock file, which is written through memory, so that a full disk would end the process. A store with another
    format than `version` is refused before anything in it changes. A reading process that gives `max_reader_age`
    (seconds) promises to end its read transactions before they are older, and may be killed when it does not.
    """

    def __init__(
        self,
        folder: Path,
        tables: Sequence[str],
        *,
        map_size: int = GIB,
        max_map_size: int = 1024 * GIB,
        readonly: bool = False,
        durable: bool = True,
        shared: bool = True,
        version: int | None = None,
        max_reader_age: float | None = None,
        on_grow: Callable[[int], None] = lambda _: None,
    ) -> None:
        self.folder = folder
        self._readonly = readonly
        self._max_map_size = max_map_size
        self.max_reader_age = max_reader_age
        self._on_grow = on_grow
        self.before_close: Callable[[], None] | None = None
        self._marks: Marks | None = None
        self._ages: dict[Txn, Age] = {}  # of the read transactions that are open here
        self._lock = None if readonly else hold(folder)
        try:
            self.env = _open(folder, map_size, len(tables), readonly, durable, shared)
            self.tables: dict[str, Db] = {}
            if version is not None:
                with self._opening(META):
                    self._check_version(version)
            self.open_tables(tables)
            self._mark()
        except BaseException:
            self.close()
            raise

    def _check_version(self, version: int) -> None:
        """Refuse a store of another format.

        Raises:
            WrongFormat: it is.
        """
        with suppress(lmdb.NotFoundError):  # it is new, or damaged: opening its tables reports it
            meta = self.env.open_db(META.encode(), create=False)
            with self._begin() as txn:
                written = txn.get(FORMAT_KEY, db=meta)
            if written is not None and (found := int.from_bytes(written, "big")) != version:
                raise other_format(self.folder, found, version)

    def open_tables(self, tables: Sequence[str]) -> None:
        """Open tables, and create them if they are missing and the disk is writable; not inside of a transaction.

        Raises:
            TableMissing: the disk is read-only and one of them is missing.
        """
        for table in tables:
            name, fixed, make = table.rstrip("*"), table.endswith("*"), not self._readonly
            with self._opening(name):
                self.tables[name] = self.env.open_db(name.encode(), create=make, dupsort=fixed, dupfixed=fixed)

    @contextmanager
    def _opening(self, table: str) -> Iterator[None]:
        """Return the error for a table that cannot be opened or read."""
        try:
            yield
        except lmdb.NotFoundError as error:
            raise TableMissing(str(self.folder), table) from error
        except lmdb.ReadersFullError as error:
            raise _no_slot(self.folder) from error
        except lmdb.Error as error:
            if broken(error):
                raise Damaged(f"{self.folder}: the store is damaged: {error}") from error
            raise

    def close(self) -> None:
        """Close the environment and let another process have it."""
        if hasattr(self, "env"):
            before, self.before_close = self.before_close, None
            try:
                if before is not None:
                    before()
            finally:
                self.env.close()
        if self._marks is not None:
            self._marks.close()
            self._marks = None
        if self._lock is not None:
            os.close(self._lock)
            self._lock = None

    def __enter__(self) -> Disk:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    @contextmanager
    def read(self) -> Iterator[Txn]:
        """Read one consistent state, while the writer continues. Keep it short: it prevents the reuse of freed pages.

        Raises:
            Damaged: LMDB can't read a page.
        """
        txn = self._begin()
        self._ages[txn] = Age(self.env, txn.id())
        try:
            with txn:
                yield txn
        except lmdb.Error as error:
            if broken(error):
                raise Damaged(f"{self.folder}: the store is damaged: {error}") from error
            raise
        finally:
            del self._ages[txn]

    def _begin(self) -> Txn:
        try:
            return self.env.begin()
        except lmdb.MapResizedError:  # the writer, another process, has grown the map
            self.env.set_mapsize(0)
        except lmdb.ReadersFullError:  # some slots may belong to processes that were killed
            self.env.reader_check()
        try:
            return self.env.begin()
        except lmdb.ReadersFullError as error:
            raise _no_slot(self.folder) from error

    def write(self, work: Callable[[Txn], _T]) -> _T:
        """Run `work` in one write transaction and commit it durably, or change nothing.

        `work` may run again, from the beginning, when the map was too small for it.

        Raises:
            StoreFull: the disk, or the largest map allowed, is full.
        """
        self._grow_ahead()
        while True:
            try:
                with self.env.begin(write=True) as txn:
                    return work(txn)
            except lmdb.MapFullError as error:
                self._grow(error)
            except lmdb.Error as error:
                if error.code in FULL or (error.code == errno.EIO and self._is_full()):
                    reason = os.strerror(errno.ENOSPC) if error.code == errno.EIO else error.reason
                    raise StoreFull(f"{self.folder}: {reason}: nothing was changed") from error
                if broken(error):
                    raise Damaged(f"{self.folder}: the store is damaged: {error}") from error
                raise

    def ageless(self) -> AbstractContextManager[None]:
        """Let read transactions exceed `max_reader_age` for a while: the daemon does not end this process for it."""
        return self._marks.lifted() if self._marks and self._readonly else nullcontext()

    # --- readers -------------------------------------------------------------------------------------------------

    def _mark(self) -> None:
        """Free the slots of dead readers; or mark this process as a reader that limits the age of its transactions."""
        if not self._readonly:
            self.env.reader_check()
            self._marks = Marks(self.folder, make=True)
        elif self.max_reader_age is not None:
            with suppress(FileNotFoundError):  # no writer that checks marks has had this store
                self._marks = Marks(self.folder, make=False)
                self._marks.hold()

    def check_age(self, txn: Txn) -> None:
        """Refuse to continue with a read transaction of this disk that has reached its greatest age.

        Raises:
            SnapshotExpired: it has.
        """
        if self.max_reader_age is not None and self._ages[txn].seconds() > self.max_reader_age:
            raise SnapshotExpired(self.max_reader_age)

    def check_ages(self) -> None:
        """Do so with every read transaction that is open.

        Raises:
            SnapshotExpired: one has reached its greatest age.
        """
        for txn in self._ages:
            self.check_age(txn)

    def readers(self) -> list[Reader]:
        """Return the read transactions that are open in any process; the slots of dead processes are freed first."""
        self.env.reader_check()
        return open_readers(self.env)

    def may_kill(self, pid: int) -> bool:
        """Return whether another process is a reader that promised to limit the age of its read transactions."""
        return self._marks is not None and self._marks.held_by(pid)

    def last_txnid(self) -> int:
        """Return the number of the latest commit."""
        return self.env.info()["last_txnid"]

    # --- space ---------------------------------------------------------------------------------------------------

    def map_size(self) -> int:
        """Return how far the file may grow before the map does."""
        return self.env.info()["map_size"]

    def used(self) -> int:
        """Return how far the file has grown, free pages included."""
        return (self.env.info()["last_pgno"] + 1) * self.env.stat()["psize"]

    def _is_full(self) -> bool:
        """Return whether the file cannot grow: LMDB reports a write of which the disk took only a part as EIO."""
        path = self.folder / "data.mdb"
        end = path.stat().st_size
        try:
            with path.open("r+b", buffering=0) as file:
                try:
                    file.seek(end)
                    return (file.write(bytes(MIB)) or 0) < MIB
                finally:
                    file.truncate(end)
        except OSError as error:
            return error.errno in FULL

    def _grow_ahead(self) -> None:
        """Grow the map before a commit needs it, so that no commit is repeated for it."""
        size = self.map_size()
        if self.used() > size * 3 // 4 and size < self._max_map_size:
            self._grow(None)

    def _grow(self, cause: lmdb.MapFullError | None) -> None:
        size = self.map_size()
        if size >= self._max_map_size:
            raise StoreFull(f"{self.folder}: the map has reached storage.max_map_size ({size} bytes)") from cause
        larger = min(size + min(size, 64 * GIB), self._max_map_size)
        self.env.set_mapsize(larger)
        self._on_grow(larger)


def rows_with(txn: Txn, db: Db, front: bytes) -> Iterator[tuple[bytes, bytes]]:
    """Yield the rows whose keys begin so, in order."""
    cursor = txn.cursor(db)
    rows = cursor.iternext() if cursor.set_range(front) else ()
    return takewhile(lambda row: row[0].startswith(front), rows)


def other_format(folder: Path, found: int, version: int) -> WrongFormat:
    """Return the error for a store of a format that nothing here reads."""
    return WrongFormat(
        f"{folder}: written in format {found}, this version reads format {version}: "
        "feed the chain again into another data_dir"
    )


def _open(folder: Path, map_size: int, tables: int, readonly: bool, durable: bool, shared: bool) -> lmdb.Environment:
    if readonly and not (folder / "data.mdb").exists():
        raise StoreError(f"{folder}: there is no store here")
    make_folder(folder)
    try:
        if not (folder / "data.mdb").exists():
            _make(folder)
        return lmdb.open(
            str(folder),
            map_size=map_size,
            max_dbs=tables + _MORE_TABLES,
            readonly=readonly,
            sync=durable,
            max_readers=_MAX_READERS,
            mode=FILE_MODE,
            lock=shared and not (readonly and _unlockable(folder)),
        )
    except lmdb.ReadersFullError as error:
        raise _no_slot(folder) from error
    except lmdb.Error as error:
        if broken(error) or error.code == 0:  # 0: a data format that this build does not support
            raise Damaged(f"{folder}: this is not a store, or it is damaged: {error}") from error
        raise StoreError(f"the store cannot be opened: {error}") from error


def _make(folder: Path) -> None:
    """Make an empty environment that is durable before it gets its name: a power cut leaves a whole one or none."""
    making = folder / "data.mdb.making"
    making.unlink(missing_ok=True)
    with lmdb.open(str(making), subdir=False, lock=False, mode=0o640) as env:
        env.sync(True)
    making.rename(folder / "data.mdb")
    sync_folder(folder)


def _unlockable(folder: Path) -> bool:
    """Return whether a store without a writer must be read without locks: LMDB would have to write `lock.mdb`.

    Raises:
        StoreBusy: a process writes to it; pages that are read without a lock may be reused meanwhile.
    """
    lock = folder / "lock.mdb"
    if os.access(lock if lock.exists() else folder, os.W_OK):
        return False
    try:
        owner = os.open(folder / "owner", os.O_RDONLY | os.O_CLOEXEC)
    except FileNotFoundError:
        return True
    try:
        fcntl.flock(owner, fcntl.LOCK_SH | fcntl.LOCK_NB)
    except BlockingIOError:
        raise StoreBusy(f"{folder}: a daemon writes to this store, and {lock} is not writable for this user") from None
    finally:
        os.close(owner)
    return True


def _no_slot(folder: Path) -> StoreError:
    return StoreError(
        f"{folder}: all {_MAX_READERS} reader slots are taken: end other readers and try again; the daemon frees slots "
        "of killed processes every second, and without a daemon all are free once no process has lock.mdb open"
    )


def hold(folder: Path) -> int:
    """Lock the store for this process; return the descriptor that holds the lock.

    LMDB alone would let a second writer in and serialise it.

    Raises:
        StoreBusy: another process has it.
    """
    make_folder(folder)
    path = folder / "owner"
    lock = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, FILE_MODE)
    try:
        fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        owner = os.pread(lock, 32, 0).decode(errors="replace").strip() or "unknown"
        os.close(lock)
        raise StoreBusy(f"{folder}: another process has this store open for writing (pid {owner})") from None
    os.ftruncate(lock, 0)
    os.pwrite(lock, f"{os.getpid()}\n".encode(), 0)
    return lock
