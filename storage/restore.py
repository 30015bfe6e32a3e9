"""Restoring of a backup to a data folder, and acceptance of a copy that was made in another way.

Files are written and compared with the manifest inside of the folder `restoring`, and renamed out of it, the store as
the last one. As long as `restoring` is there with something in it, no daemon starts on the data folder.
"""

from __future__ import annotations

import fcntl
import os
import shutil
import tarfile
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from hashlib import sha256
from pathlib import Path
from typing import IO, BinaryIO

from formats.shards import Shard
from storage.backup import write_file
from storage.disk import Disk
from storage.errors import Damaged, StoreError
from storage.files import FOLDER_MODE, make_folder, sync_folder
from storage.history.layout import FORMAT
from storage.history.narrow import narrow
from storage.history.verify import verify
from storage.home import leave
from storage.manifest import BLOBS, MANIFEST, RECOVERY, BackupDamaged, File, Manifest, is_known, read_manifest
from storage.pages import check_pages
from storage.precheck import RESTORING, precheck, refuse_incomplete

_ALLOWED = {"lost+found"}  # in an empty data folder
_CHUNK = 1 << 20
_LONGEST_MANIFEST = 1 << 30

Advance = Callable[[int], object]


class NotEmpty(StoreError):
    """The folder to restore into has something in it."""


def restore(
    source: Path | BinaryIO,
    data_dir: Path,
    tables: Sequence[str],
    *,
    walk: bool = False,
    advance: Advance = lambda _: None,
    shard: Shard | None = None,
) -> Manifest:
    """Restore a backup into a new or empty data folder; return its manifest. With `walk` every table is verified, too.

    With a `shard` only what belongs to this part of the backup's shard is kept.

    A kill leaves what the next restore removes.

    Raises:
        NotEmpty: there is something in the data folder.
        BackupDamaged: the backup is not as it was written; nothing was restored.
        WrongFormat: another version wrote it, or the shard is not a part of the backup's.
        StoreError: the backup has records of transactions, and a shard is to be kept.
        StoreFull: there is no space.
    """
    restoring = data_dir / RESTORING
    with _taken(data_dir):
        restoring.mkdir(mode=FOLDER_MODE)
        try:
            manifest = _from_tar(source, restoring, advance)
            precheck(restoring / "lmdb", tables)
            _accept(restoring / "lmdb", tables, walk=walk, shard=shard)
            if manifest.blob_store.startswith("file:"):
                make_folder(restoring / BLOBS)  # also without blobs: a missing folder is a disk that is not mounted
            _give_to_owner(data_dir, restoring)
        except BaseException:
            shutil.rmtree(restoring, ignore_errors=True)
            raise
        for name in (BLOBS, RECOVERY, "lmdb"):  # without the last one it is not a store
            if (restoring / name).exists():
                (restoring / name).rename(data_dir / name)
                sync_folder(data_dir)
        restoring.rmdir()
    return manifest


def adopt(data_dir: Path, tables: Sequence[str]) -> None:
    """Check every page and every table of a store that was copied while it was open, and accept it where it is.

    Raises:
        Damaged: something of it is wrong; nothing was changed.
        StoreError: there is no store, or a process has it open.
    """
    refuse_incomplete(data_dir)
    folder = data_dir / "lmdb"
    if not (folder / "data.mdb").exists():
        raise StoreError(f"{folder}: there is no store here")
    for finding in check_pages(folder / "data.mdb"):
        raise Damaged(finding)
    precheck(folder, tables)
    _accept(folder, tables, walk=True)


def _accept(folder: Path, tables: Sequence[str], *, walk: bool, shard: Shard | None = None) -> None:
    """Mark a store as closed, regardless of its origin, after it is narrowed to a shard."""
    with Disk(folder, tables, version=FORMAT) as disk:
        if shard is not None:
            narrow(disk, shard)
        if walk:
            for finding in verify(disk, quick=True):
                raise Damaged(f"{folder}: {finding}")
        leave(disk)


@contextmanager
def _taken(data_dir: Path) -> Iterator[None]:
    """Hold an empty data folder, made if it is missing; what a killed restore has left is removed.

    Raises:
        NotEmpty: it is not empty.
        StoreError: another process restores into it.
    """
    make_folder(data_dir)
    held = os.open(data_dir, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        try:
            fcntl.flock(held, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            raise StoreError(f"{data_dir}: another process is restoring or verifying this folder") from None
        there = {path.name for path in data_dir.iterdir()} - _ALLOWED
        if RESTORING in there and there <= {RESTORING, BLOBS, RECOVERY}:
            for name in there:
                path = data_dir / name
                shutil.rmtree(path) if path.is_dir() else path.unlink()
        elif there:
            raise NotEmpty(f"{data_dir}: it is not empty ({', '.join(sorted(there)[:3])}): name a new or empty folder")
        yield
    finally:
        os.close(held)


def _give_to_owner(data_dir: Path, restoring: Path) -> None:
    """Change the owner of files that root restores to the owner of the data folder."""
    owner = data_dir.stat()
    if os.geteuid() == 0 and (owner.st_uid, owner.st_gid) != (0, 0):
        for path in (restoring, *restoring.rglob("*")):
            os.chown(path, owner.st_uid, owner.st_gid)


# --- sources -----------------------------------------------------------------------------------------------------


def _from_folder(source: Path, restoring: Path, advance: Advance) -> Manifest:
    try:
        manifest = read_manifest((source / MANIFEST).read_bytes(), str(source))
    except FileNotFoundError:
        raise BackupDamaged(f"{source}: there is no {MANIFEST}: this is not a complete backup") from None
    for file in manifest.files:
        try:
            size = (source / file.name).stat().st_size
        except FileNotFoundError:
            raise BackupDamaged(f"{source}: {file.name} is missing") from None
        if size != file.size:
            raise BackupDamaged(f"{source}: {file.name} has {size} bytes, but {MANIFEST} has {file.size}")
    found = list[File]()
    for file in manifest.files:
        with (source / file.name).open("rb", buffering=0) as content:
            found.append(_write(restoring, file.name, content, advance))
    _compare(manifest, found, source)
    return manifest


def _from_tar(source: Path | BinaryIO, restoring: Path, advance: Advance) -> Manifest:
    if isinstance(source, Path):
        if source.is_dir():
            return _from_folder(source, restoring, advance)
        with source.open("rb", buffering=0) as stream:
            return _unpack(stream, str(source), restoring, advance)
    return _unpack(source, "standard input", restoring, advance)


def _unpack(stream: BinaryIO, source: str, restoring: Path, advance: Advance) -> Manifest:
    """Write the files of an archive. The manifest is the last one: an archive that was cut off has none."""
    found, manifest, at = list[File](), None, "at its beginning"
    try:
        with tarfile.open(fileobj=stream, mode="r|", bufsize=_CHUNK) as archive:
            for member in archive:
                at = f"in {member.name}"
                content = archive.extractfile(member) if member.isreg() else None
                if content is None or not (is_known(member.name) or member.name == MANIFEST) or manifest:
                    raise BackupDamaged(f"{source}: {member.name!r} is not a file of a backup")
                if member.name == MANIFEST:
                    manifest = read_manifest(content.read(_LONGEST_MANIFEST), source)
                else:
                    found.append(_write(restoring, member.name, content, advance))
                at = f"behind {member.name}"
    except tarfile.TarError as error:
        raise BackupDamaged(f"{source}: the archive was cut off or damaged {at}: {error}") from error
    if manifest is None:
        raise BackupDamaged(f"{source}: the archive was cut off {at}: it has no {MANIFEST}")
    _compare(manifest, found, source)
    return manifest


def _write(restoring: Path, name: str, content: IO[bytes], advance: Advance) -> File:
    """Write a file of the backup; return what was read."""
    digest, size, path = sha256(), 0, restoring / name

    def chunks() -> Iterator[bytes]:
        nonlocal size
        while chunk := content.read(_CHUNK):
            digest.update(chunk)
            size += len(chunk)
            advance(len(chunk))
            yield chunk

    make_folder(path.parent)
    try:
        write_file(path, chunks())
    except FileExistsError:
        raise BackupDamaged(f"{name} is in the backup twice") from None
    return File(name, size, digest.hexdigest())


def _compare(manifest: Manifest, found: list[File], source: object) -> None:
    """Refuse files that are not those of the manifest."""
    there = {file.name: file for file in found}
    for file in manifest.files:
        if (read := there.pop(file.name, None)) is None:
            raise BackupDamaged(f"{source}: {file.name} is missing")
        if read != file:
            raise BackupDamaged(f"{source}: {file.name} is damaged: its digest differs from the one in {MANIFEST}")
    for name in there:
        raise BackupDamaged(f"{source}: {name} is not listed in {MANIFEST}")
