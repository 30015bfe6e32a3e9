"""The writes of a daemon to its databases, and the disk's content after a power failure during one of them."""

from __future__ import annotations

import hashlib
import shutil
import subprocess
from collections.abc import Iterator
from pathlib import Path
from random import Random
from struct import Struct as Packed
from typing import Literal, NamedTuple

_SOURCE = Path(__file__).with_name("disk_shim.c")
_HEAD = Packed("<QQQIHBB")
_SECTOR = 512
Kind = Literal["write", "sync", "truncate", "unlink", "rename"]
_KINDS: tuple[Kind, ...] = ("write", "sync", "truncate", "unlink", "rename")


class Entry(NamedTuple):
    """One write, sync, truncation, removal or renaming (`data` is the new path); times are those of CLOCK_MONOTONIC."""

    started_s: float
    ended_s: float
    kind: Kind
    durable: bool  # the file is opened with O_DSYNC
    path: str
    offset: int
    data: bytes


def build(folder: Path) -> Path:
    """Compile the library that is preloaded into a daemon.

    Raises:
        OSError: there is no C compiler.
    """
    source = _SOURCE.read_bytes()
    library = folder / f"disk_shim-{hashlib.sha256(source).hexdigest()[:12]}.so"
    if not library.exists():
        compiler = shutil.which("cc") or shutil.which("gcc") or shutil.which("clang")
        if compiler is None:
            raise OSError("a C compiler is needed to record what a daemon writes: install gcc")
        made = library.with_suffix(".making")
        subprocess.run(
            [compiler, "-shared", "-fPIC", "-O1", "-Wall", "-o", made, _SOURCE, "-ldl", "-lpthread"], check=True
        )
        made.rename(library)
    return library


def entries(log: Path) -> Iterator[Entry]:
    """Yield what was logged, in the order in which it ended."""
    raw = log.read_bytes()
    at = 0
    while at + _HEAD.size <= len(raw):
        start, end, offset, length, path_length, kind, durable = _HEAD.unpack_from(raw, at)
        at += _HEAD.size
        path = raw[at : at + path_length].decode()
        at += path_length
        data = raw[at : at + length]
        at += len(data)
        yield Entry(start / 1e9, end / 1e9, _KINDS[kind - 1], bool(durable), path, offset, data)


class Disk:
    """Files as they are on the disk for certain, and writes that the disk may still lose."""

    def __init__(self) -> None:
        self.files: dict[str, bytearray] = {}
        self._unsynced: dict[str, list[Entry]] = {}

    def carry_out(self, entry: Entry) -> None:
        """Apply one entry that has ended."""
        match entry.kind:
            case "write" if entry.durable:
                self.files.setdefault(entry.path, bytearray())
                _put(self.files[entry.path], entry.offset, entry.data)
            case "write":
                self.files.setdefault(entry.path, bytearray())
                self._unsynced.setdefault(entry.path, []).append(entry)
            case "sync":
                for written in self._unsynced.pop(entry.path, ()):
                    _put(self.files[entry.path], written.offset, written.data)
            case "truncate":
                self._sync_all(entry.path)
                file = self.files.setdefault(entry.path, bytearray())
                del file[entry.offset :]
                file.extend(bytes(entry.offset - len(file)))
            case "unlink":
                self.files.pop(entry.path, None)
                self._unsynced.pop(entry.path, None)

            case "rename":
                to = entry.data.decode()
                self.files[to] = self.files.pop(entry.path, bytearray())
                self._unsynced[to] = [each._replace(path=to) for each in self._unsynced.pop(entry.path, ())]

    def _sync_all(self, path: str) -> None:
        for written in self._unsynced.pop(path, ()):
            _put(self.files[path], written.offset, written.data)

    def cut(self, random: Random, under_way: Entry | None) -> dict[str, bytes]:
        """Return files after a power cut now, while a write was under way: sectors that were not synced may be lost.

        Each cut has its own luck: nothing of what was not synced is kept, all of it, or any part.
        """
        kept = random.choice((0.0, 1.0, 0.5, random.random()))
        files = {path: bytearray(file) for path, file in self.files.items()}
        for path, written in self._unsynced.items():
            for entry in written:
                _put_some(files[path], entry, random, kept)
        if under_way is not None and under_way.kind == "write":
            _put_some(files.setdefault(under_way.path, bytearray()), under_way, random, random.random())
        return {path: bytes(file) for path, file in files.items()}


def _put(file: bytearray, offset: int, data: bytes) -> None:
    if len(file) < offset:
        file.extend(bytes(offset - len(file)))
    file[offset : offset + len(data)] = data


def _put_some(file: bytearray, entry: Entry, random: Random, kept: float) -> None:
    """Write the sectors of an entry that reach the disk; a sector is written wholly or not at all."""
    at, end = entry.offset, entry.offset + len(entry.data)
    while at < end:
        following = min(end, (at // _SECTOR + 1) * _SECTOR)
        if random.random() < kept:
            _put(file, at, entry.data[at - entry.offset : following - entry.offset])
        at = following
