"""Writing a backup: the recovery tables, the blobs and the pages of one commit, each with its digest.

They are copied in this order. The recovery tables remember how far they have read the change log, so they must not be
newer than the store. A blob is written before its record and deleted with it, so blobs are copied while no process may
delete one, beginning with the read transaction that the pages are copied under.
"""

from __future__ import annotations

import fcntl
import io
import os
import shutil
import sqlite3
import tarfile
import tempfile
from collections.abc import Callable, Iterable, Iterator
from contextlib import ExitStack, closing, contextmanager
from hashlib import sha256
from pathlib import Path
from typing import Any, BinaryIO, Protocol, cast

import msgspec

from storage.blobs import Files
from storage.disk import FULL, Disk, Txn
from storage.errors import RecoveryDamaged, StoreError, StoreFull
from storage.files import FILE_MODE, make_folder, sync_folder
from storage.manifest import BLOBS, MANIFEST, RECOVERY, STORE, File, Manifest
from storage.page_copy import page_copy

_CHUNK = 1 << 20
_BUSY_S = 10.0
_PARTIAL = ".partial"  # behind the name of a folder that is being written


class Target(Protocol):
    """Where the files of a backup go, one after the other."""

    def add(self, name: str, size: int, chunks: Iterable[bytes], /) -> None:
        """Write a file of `size` bytes."""


class Tar:
    """A tar archive in a stream."""

    def __init__(self, stream: BinaryIO) -> None:
        self._tar = tarfile.open(fileobj=stream, mode="w|", format=tarfile.PAX_FORMAT, bufsize=_CHUNK)  # noqa: SIM115

    def add(self, name: str, size: int, chunks: Iterable[bytes], /) -> None:
        """See `Target`."""
        info = tarfile.TarInfo(name)
        info.size, info.mode = size, FILE_MODE
        self._tar.addfile(info, _Reader(iter(chunks)))

    def __enter__(self) -> Tar:
        return self

    def __exit__(self, kind: type[BaseException] | None, *_: object) -> None:
        if kind is None:  # else there is no end: what was written is not a whole archive
            self._tar.close()
        else:
            cast("Any", self._tar.fileobj).fileobj = io.BytesIO()  # it writes its buffer when it is freed


class _Reader(io.RawIOBase):
    """Chunks as a file."""

    def __init__(self, chunks: Iterator[bytes]) -> None:
        self._chunks, self._rest = chunks, b""

    def read(self, size: int = -1) -> bytes:
        """Return the next `size` bytes, or fewer at the end."""
        parts, missing = list[bytes](), size
        while missing > 0:
            if not self._rest:
                self._rest = next(self._chunks, b"")
                if not self._rest:
                    break
            parts.append(self._rest[:missing])
            self._rest = self._rest[len(parts[-1]) :]
            missing -= len(parts[-1])
        return b"".join(parts)


class Folder:
    """A folder that gets its name when everything in it is durable."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder

    def add(self, name: str, _: int, chunks: Iterable[bytes], /) -> None:
        """See `Target`."""
        path = self.folder / name
        make_folder(path.parent)
        write_file(path, chunks)


def write_file(path: Path, chunks: Iterable[bytes]) -> None:
    """Write a new file, durably.

    Raises:
        StoreFull: there is no space.
    """
    try:
        file = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, FILE_MODE)
        try:
            for chunk in chunks:
                left = memoryview(chunk)
                while left:
                    left = left[os.write(file, left) :]
            os.fsync(file)
        finally:
            os.close(file)
        sync_folder(path.parent)
    except OSError as error:
        if error.errno in FULL:
            raise StoreFull(f"{path}: {error.strerror}") from error
        raise


class Writer:
    """Adds files to a target, and collects their digests."""

    def __init__(self, target: Target, advance: Callable[[int], object]) -> None:
        self._target, self._advance = target, advance
        self.files = list[File]()

    def add(self, name: str, size: int, chunks: Iterable[bytes]) -> None:
        """Add a file. It has `size` bytes."""
        digest, seen = sha256(), 0

        def counted() -> Iterator[bytes]:
            nonlocal seen
            for chunk in chunks:
                digest.update(chunk)
                seen += len(chunk)
                self._advance(len(chunk))
                yield chunk

        self._target.add(name, size, counted())
        if seen != size:
            raise StoreError(f"{name}: {seen} bytes were read, {size} were expected")
        self.files.append(File(name, size, digest.hexdigest()))

    def add_file(self, name: str, path: Path) -> None:
        """Add a copy of a file."""
        with path.open("rb", buffering=0) as file:
            self.add(name, os.fstat(file.fileno()).st_size, iter(lambda: file.read(_CHUNK), b""))

    def finish(self, manifest: Manifest) -> Manifest:
        """Add the manifest, the last file: without it a backup is not complete. Return it with the files."""
        whole = msgspec.structs.replace(manifest, files=self.files)
        raw = msgspec.json.format(msgspec.json.encode(whole))
        self._target.add(MANIFEST, len(raw), [raw])
        return whole


def write_backup(
    disk: Disk,
    recovery: Path | None,
    blobs: Files | None,
    writer: Writer,
    about: Callable[[Txn], Manifest],
    scratch: Path | None,
) -> Manifest:
    """Write a backup of the latest commit, and of recovery tables and blobs where there are some.

    `about` is the manifest without its files. The copy of the recovery tables is made in the folder
    `scratch`, else where temporary files go.
    """
    if recovery is not None and recovery.exists():
        with _recovery_copy(recovery, scratch) as copied:
            writer.add_file(RECOVERY, copied)
    with ExitStack() as keeping:
        if blobs is not None:
            keeping.enter_context(blobs.kept())
        with page_copy(disk) as copy:
            for path in () if blobs is None else blobs.paths():
                writer.add_file(f"{BLOBS}/{path.parent.name}/{path.name}", path)
            keeping.close()
            writer.add(STORE, copy.size, copy.chunks)
            return writer.finish(about(copy.txn))


@contextmanager
def _recovery_copy(path: Path, scratch: Path | None) -> Iterator[Path]:
    """Yield a copy of the recovery tables as of one moment.

    Raises:
        RecoveryDamaged, StoreError: they can't be read.
    """
    with tempfile.TemporaryDirectory(prefix="utxod-backup-", dir=scratch) as folder:
        copy = Path(folder) / path.name
        try:
            with (
                closing(sqlite3.connect(f"{path.absolute().as_uri()}?mode=ro", timeout=_BUSY_S, uri=True)) as source,
                closing(sqlite3.connect(copy)) as target,
            ):
                source.backup(target)
        except sqlite3.Error as error:
            if getattr(error, "sqlite_errorcode", 0) & 0xFF in (sqlite3.SQLITE_CORRUPT, sqlite3.SQLITE_NOTADB):
                raise RecoveryDamaged(f"{path}: {error}") from error
            raise StoreError(f"{path}: {error}") from error
        yield copy


@contextmanager
def new_folder(folder: Path) -> Iterator[Folder]:
    """Yield a target for a new folder, which gets its name once the block ends without an error.

    Raises:
        StoreError: there is something of that name, or another process writes it.
    """
    if folder.exists() and not (folder.is_dir() and not any(folder.iterdir())):
        raise StoreError(f"{folder}: it exists already: name a new folder")
    partial = folder.with_name(folder.name + _PARTIAL)
    make_folder(partial)
    held = os.open(partial, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        fcntl.flock(held, fcntl.LOCK_EX | fcntl.LOCK_NB)
        empty(partial)  # of what a killed backup has left
        yield Folder(partial)
        sync_folder(partial)
        partial.rename(folder)
        sync_folder(folder.parent)
    except BlockingIOError:
        raise StoreError(f"{partial}: another backup is being written there") from None
    except BaseException:
        shutil.rmtree(partial, ignore_errors=True)
        raise
    finally:
        os.close(held)


def empty(folder: Path) -> None:
    """Remove everything in a folder."""
    for path in folder.iterdir():
        if path.is_dir() and not path.is_symlink():
            shutil.rmtree(path)
        else:
            path.unlink()
