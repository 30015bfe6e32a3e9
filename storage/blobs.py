"""The storage of long transactions: files outside the environment, or objects in a bucket.

A blob is put before the record that refers to it and deleted after it: so a failure leaves at most a blob without a
record, an orphan, and `names` finds those by their age. Every call blocks; it belongs on a worker's thread.
"""

from __future__ import annotations

import errno
import fcntl
import os
import re
import secrets
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager, suppress
from functools import cache
from pathlib import Path
from typing import Any, Protocol

from storage.blobname import LEFTOVER, LEFTOVER_S, NAME, checked, leftover
from storage.errors import BlobFailed as BlobFailed
from storage.errors import PackageMissing
from storage.files import FILE_MODE, FOLDER_MODE, make_folder, sync_folder

_FULL = {errno.ENOSPC, errno.EDQUOT, errno.EFBIG}
_FAN = re.compile(r"[0-9a-f]{2}")
# The same as in config.units, and as strict: no way out of the data folder, no name that a bucket would have to escape.
_FILE = re.compile(r"file:(?!//[^/])(/*(?:\./+)*(?:(?!\.\.?(?:/|$))[^/\x00-\x1f\x7f]+(?:/+|$))+)")
_S3 = re.compile(r"s3://([A-Za-z0-9][A-Za-z0-9._-]*)((?:/(?!\.\.?(?:/|$))[A-Za-z0-9_!.*'()-]+)*)/?")


class Blobs(Protocol):
    """Bytes by name: `<txid>.tx` or `<txid>.outputs`, the txid in hexadecimal. Any other name is a ValueError."""

    def put(self, name: str, data: bytes) -> None:
        """Keep `data` durably, completely or not at all. A blob of that name is left as it is.

        Raises:
            BlobFailed: it is not kept, or not certainly.
        """

    def get(self, name: str) -> bytes | None:
        """Return the bytes, or None when there is no such blob.

        Raises:
            BlobFailed: the store can't answer now.
        """

    def delete(self, name: str) -> bool:
        """Remove the blob and return whether there was one.

        Raises:
            BlobFailed: it may still be there.
        """

    def names(self) -> Iterator[tuple[str, float]]:
        """Yield every blob with its age in seconds, in no order, and remove what interrupted calls have left.

        A blob that is added or deleted meanwhile may be among them or not. An orphan is one that is at least an hour
        old and has no record; the caller lets no record be written between the check of both and the deletion.

        Raises:
            BlobFailed: they cannot be listed, at any step.
        """

    def check(self) -> None:
        """Write, read and remove something.

        Raises:
            BlobFailed: the store cannot be used, and why.
        """


def open_blobs(where: str, data_dir: Path, *, make: bool = True) -> Blobs:
    """Return the blobs at `file:folder` (below `data_dir` when relative) or `s3://bucket/prefix`.

    A missing folder is created, unless this is switched off: a reader must not hide that it is missing. A bucket
    is not contacted before the first call; its endpoint, region and credentials are the environment's
    (AWS_ENDPOINT_URL, AWS_REGION, AWS_ACCESS_KEY_ID, ...).

    Raises:
        BlobFailed: `where` or the environment is wrong, or the folder cannot be made.
        PackageMissing: a bucket needs a package that is not installed.
    """
    if file := _FILE.fullmatch(where):
        return Files(data_dir / file[1], make=make)
    if s3 := _S3.fullmatch(where):
        try:
            from storage.bucket import Bucket
        except ImportError as error:
            raise PackageMissing(f"transactions.blob_store = {where!r}", "obstore", "s3") from error
        return Bucket(s3[1], s3[2].strip("/"))
    raise BlobFailed(f"{where!r} is not a blob store: expected file:folder or s3://bucket/prefix")


class Files:
    """Blobs as files below `root`, spread over 256 folders by the first byte of the txid."""

    def __init__(self, root: Path, *, make: bool = True) -> None:
        self.root = root
        self._ready: set[str] = set()
        if not make:
            return
        with _file_errors(root):
            make_folder(root)
            sync_folder(root.parent)

    def put(self, name: str, data: bytes) -> None:
        """See `Blobs.put`."""
        path = self._path(name)
        with _file_errors(path):
            self._make_folder(path.parent)
            if not (path.is_file() and _renewed(path)):
                self._write(path, data)
            sync_folder(
                path.parent
            )  # of a blob that existed, too: the process that put it may have been killed before its own

    def get(self, name: str) -> bytes | None:
        """See `Blobs.get`."""
        path = self._path(name)
        with _file_errors(path):
            try:
                return path.read_bytes()
            except FileNotFoundError:
                self._need_root()
                return None

    def delete(self, name: str) -> bool:
        """See `Blobs.delete`. Not synced: a blob that comes back after a power failure is an orphan.

        While `kept` is open elsewhere the blob stays, as an orphan.
        """
        path = self._path(name)
        with _file_errors(path):
            try:
                with _locked(self.root, fcntl.LOCK_SH | fcntl.LOCK_NB):
                    path.unlink()
            except BlockingIOError:
                return False
            except FileNotFoundError:
                self._need_root()
                return False
        return True

    @contextmanager
    def kept(self) -> Iterator[None]:
        """Prevent deletions of blobs meanwhile: what a record of this moment refers to can be read. Wait for others.

        Raises:
            BlobFailed: the folder is missing.
        """
        with ExitStack() as held:
            with _file_errors(self.root):
                held.enter_context(_locked(self.root, fcntl.LOCK_EX))
            yield

    def names(self) -> Iterator[tuple[str, float]]:
        """See `Blobs.names`."""
        with _file_errors(self.root):
            fan = [path for path in self.root.iterdir() if _FAN.fullmatch(path.name) and path.is_dir()]
            for folder in (self.root, *fan):
                with os.scandir(folder) as entries:
                    for entry in entries:
                        if LEFTOVER.fullmatch(entry.name) and (_age(entry) or 0.0) > LEFTOVER_S:
                            Path(entry.path).unlink(missing_ok=True)
                        elif self._is_blob(Path(entry.path)) and (age := _age(entry)) is not None:
                            yield entry.name, age

    def paths(self) -> Iterator[Path]:
        """Yield the file of each blob; unlike `names` it sweeps nothing."""
        with _file_errors(self.root):
            self._need_root()
            yield from filter(self._is_blob, self.root.glob("??/*"))

    def count(self) -> int:
        """Return how many there are."""
        return sum(1 for _ in self.paths())

    def check(self) -> None:
        """See `Blobs.check`."""
        probe, data = self.root / leftover("check"), secrets.token_bytes(64)
        with _file_errors(self.root):
            try:
                _write_new(probe, data)
                read = probe.read_bytes()
            finally:
                probe.unlink(missing_ok=True)
        if read != data:
            raise BlobFailed(f"{self.root}: the content that was read back differs from what was written")

    def _path(self, name: str) -> Path:
        return self.root / checked(name)[:2] / name

    def _is_blob(self, path: Path) -> bool:
        return bool(NAME.fullmatch(path.name)) and path == self._path(path.name)

    def _make_folder(self, folder: Path) -> None:
        if folder.name not in self._ready or not folder.is_dir():
            folder.mkdir(mode=FOLDER_MODE, exist_ok=True)
            sync_folder(self.root)
            self._ready.add(folder.name)

    def _write(self, path: Path, data: bytes) -> None:
        part = path.with_name(leftover(path.name))
        try:
            _write_new(part, data)
            part.replace(path)
        except BaseException:
            with suppress(OSError):  # the first error is reported; `names` finds the file later
                part.unlink()
            raise

    def _need_root(self) -> None:
        """Without its folder (a disk that is not mounted) nothing is known about any blob."""
        if not self.root.is_dir():
            raise BlobFailed(f"{self.root}: the folder is missing")


class Late:
    """Blobs that are opened when they are first needed: reading records does not depend on them."""

    def __init__(self, opened: Callable[[], Blobs]) -> None:
        self._blobs = cache(opened)

    def __getattr__(self, name: str) -> Any:
        return getattr(self._blobs(), name)


@contextmanager
def _file_errors(path: Path) -> Iterator[None]:
    try:
        yield
    except OSError as error:
        problem = "there is no space" if error.errno in _FULL else "the blob store failed"
        raise BlobFailed(f"{path}: {problem}: {error.strerror or error}") from error


def _renewed(path: Path) -> bool:
    """Make a blob as good as new: no sweep may take it for an orphan before its record is written."""
    try:
        os.utime(path)
    except FileNotFoundError:  # deleted since it was seen
        return False
    return True


def _write_new(path: Path, data: bytes) -> None:
    file = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, FILE_MODE)
    try:
        left = memoryview(data)
        while left:
            left = left[os.write(file, left) :]
        os.fsync(file)
    finally:
        os.close(file)


@contextmanager
def _locked(folder: Path, kind: int) -> Iterator[None]:
    held = os.open(folder, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        fcntl.flock(held, kind)
        yield
    finally:
        os.close(held)


def _age(entry: os.DirEntry[str]) -> float | None:
    try:
        return max(0.0, time.time() - entry.stat().st_mtime)
    except FileNotFoundError:
        return None
