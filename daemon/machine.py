"""Checks of `utxod doctor` of the machine: versions, clock, limits, the data folder and its disk."""

from __future__ import annotations

import ctypes
import os
import platform
import resource
import shutil
import sqlite3
import statistics
import tempfile
import time
from importlib import metadata
from pathlib import Path
from typing import Literal

import lmdb
from msgspec import Struct

from config.settings import Config
from daemon.store import folder

State = Literal["ok", "warning", "wrong"]

_GIB = 1 << 30
_NETWORKED = {"nfs", "nfs4", "cifs", "smb3", "smbfs", "9p", "fuse.sshfs", "ceph", "glusterfs"}
_SYNCS, _SLOW_S, _TOO_SLOW_S = 8, 0.02, 0.2
_LEAST_FILES, _ENOUGH_FILES = 80, 1024
_SQLITE = (3, 38, 0)  # the first one with the operator ->>
_UNSYNCHRONISED = 5  # TIME_ERROR of adjtimex(2)


class Finding(Struct, frozen=True):
    """The result of a check, with `advice` if there is a problem."""

    check: str
    state: State
    detail: str
    advice: str | None = None


def python() -> Finding:
    """Name the interpreter and the system."""
    return Finding("python", "ok", f"{platform.python_version()} on {platform.system()} {platform.release()}")


def libraries() -> Finding:
    """The required packages, and SQLite with the functions that recovery uses."""
    missing, versions = list[str](), list[str]()
    for name in ("anyio", "click", "lmdb", "msgspec", "numpy", "uvloop", "starlette", "uvicorn"):
        try:
            versions.append(f"{name} {metadata.version(name)}")
        except metadata.PackageNotFoundError:
            missing.append(name)
    summary = f"{', '.join(versions)}; LMDB {'.'.join(map(str, lmdb.version()))}, SQLite {sqlite3.sqlite_version}"
    if missing:
        return Finding("libraries", "wrong", f"not installed: {', '.join(missing)}", "install utxod again, with pip")
    if sqlite3.sqlite_version_info < _SQLITE:
        return Finding(
            "libraries", "wrong", summary, "recovery needs SQLite 3.38 or later: use a newer Python or system"
        )
    return Finding("libraries", "ok", summary)


def clock(config: Config) -> Finding:
    """Whether the clock was set back, and is synchronised."""
    written = [path.stat().st_mtime for path in (folder(config) / "data.mdb", config.data_dir) if path.exists()]
    ahead = max(written, default=0.0) - time.time()
    if ahead > 60:
        detail = f"the data folder was written {ahead:,.0f} s in the future"
        return Finding("clock", "wrong", detail, "the clock was set back: set it, and keep it with NTP")
    adjtimex = getattr(ctypes.CDLL(None), "adjtimex", None)
    if adjtimex is not None and adjtimex(ctypes.create_string_buffer(512)) == _UNSYNCHRONISED:
        return Finding(
            "clock", "warning", "the kernel reports that it is not synchronised", "run chrony or systemd-timesyncd"
        )
    return Finding("clock", "ok", time.strftime("%Y-%m-%d %H:%M:%S UTC", time.gmtime()))


def open_files() -> Finding:
    """The limit of open files: that of the daemon where one runs is in /proc, ours otherwise."""
    soft, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
    detail, advice = f"{soft:,} open files", "LimitNOFILE=8192 in the unit, or `ulimit -n 8192`"
    if soft < _LEAST_FILES:
        return Finding("limits", "wrong", detail, f"the daemon does not start with fewer than {_LEAST_FILES}: {advice}")
    if soft < _ENOUGH_FILES:
        return Finding("limits", "warning", detail, f"few clients can connect: {advice}")
    return Finding("limits", "ok", detail)


def data_folder(config: Config) -> Finding:
    """Whether the data folder belongs to one user, and to no other user."""
    place = config.data_dir
    if not place.exists():
        above = next(parent for parent in place.absolute().parents if parent.exists())
        if os.access(above, os.W_OK):
            return Finding("data folder", "ok", f"{place} is created at the first start")
        return Finding("data folder", "wrong", f"{above} cannot be written", f"make {place} for the daemon's user")
    status = place.stat()
    if status.st_mode & 0o007:
        advice = f"chmod o-rwx {place}"
        return Finding("data folder", "warning", f"{place} can be read by every user of this machine", advice)
    paths = [*folder(config).glob("*"), *place.glob("recovery.db*")]
    foreign = [path for path in paths if path.stat().st_uid != status.st_uid]
    if foreign:
        advice = f"a command was run as another user: chown -R --reference={place} {place}"
        return Finding("data folder", "wrong", f"{foreign[0]} does not belong to the owner of {place}", advice)
    if not os.access(place, os.W_OK):
        return Finding(
            "data folder", "warning", f"{place} cannot be written by this user", "run this as the daemon's user"
        )
    return Finding("data folder", "ok", str(place))


def _there(config: Config) -> Path:
    """Return the data folder, or what there is of the way to it."""
    place = config.data_dir.absolute()
    return place if place.exists() else next(parent for parent in place.parents if parent.exists())


def space(config: Config) -> Finding:
    """Free space on the disk, which has to be a local one."""
    place = _there(config)
    free, path, kind = shutil.disk_usage(place).free, folder(config) / "data.mdb", _filesystem(place)
    used = path.stat().st_size if path.exists() else 0
    detail = f"{free / _GIB:,.1f} GiB free, the store has {used / _GIB:,.1f} GiB"
    if kind in _NETWORKED:
        return Finding("disk", "wrong", f"{place} is on {kind}", "LMDB needs a local disk: move the data folder")
    if free < max(_GIB, used // 10):
        return Finding("disk", "wrong", detail, "free some space: when the disk is full, blocks are refused")
    if free < used:
        return Finding(
            "disk", "warning", detail, "`utxod verify` and `utxod compact` need space for a copy of the store"
        )
    return Finding("disk", "ok", detail)


def _filesystem(place: Path) -> str:
    """Return the kind of the filesystem that a folder is on."""
    best, kind = "", "unknown"
    for line in Path("/proc/mounts").read_text().splitlines():
        _, mount, found, *_ = line.split()
        mount = mount.replace("\\040", " ")
        if place.is_relative_to(mount) and len(mount) >= len(best):
            best, kind = mount, found
    return kind


def fsync(config: Config) -> Finding:
    """How long the disk takes to keep a small write: as long as each commit at the tip."""
    place = _there(config)
    if not os.access(place, os.W_OK):
        return Finding("fsync", "warning", f"not tried: {place} cannot be written by this user")
    times = list[float]()
    with tempfile.TemporaryFile(dir=place) as file:
        for _ in range(_SYNCS):
            began = time.monotonic()
            os.pwrite(file.fileno(), os.urandom(4096), 0)
            os.fsync(file.fileno())
            times.append(time.monotonic() - began)
    took = statistics.median(times)
    detail, advice = f"{took * 1000:.1f} ms for a commit", "use an SSD, or a disk that other programs do not use"
    return Finding("fsync", "ok" if took < _SLOW_S else "warning" if took < _TOO_SLOW_S else "wrong", detail, advice)
