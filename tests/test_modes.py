"""Files of the daemon are for its user and its group, whatever the umask is."""

from __future__ import annotations

import os
import stat
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from tempfile import TemporaryDirectory

import pytest
from daemons import Daemon, home, statuses
from patience import until
from scenarios import at, block, output, tx

from storage.files import make_file, make_folder, restrict

EVERYTHING = {"data/lmdb/data.mdb", "data/lmdb/lock.mdb", "data/lmdb/owner", "data/metrics/daemon"}
TABLES = {"data/recovery.db", "data/recovery.db-shm", "data/recovery.db-wal"}


@contextmanager
def umask(mask: int) -> Iterator[None]:
    before = os.umask(mask)
    try:
        yield
    finally:
        os.umask(before)


@pytest.fixture
def daemon() -> Iterator[Daemon]:
    """Yield a daemon with everything that makes files, in a folder whose path is short enough for a socket."""
    with TemporaryDirectory(prefix="utxod-") as name:
        http = {"workers": 1, "listen": f"unix:{name}/http"}
        socket = {"path": f"{name}/run/here/utxod.sock"}
        with home(Path(name), http=http, socket=socket, transactions={"externalize_all": True}) as daemon:
            daemon.socket = Path(socket["path"])
            yield daemon


def modes(daemon: Daemon) -> dict[str, int]:
    made = [daemon.socket, daemon.folder / "http", *(daemon.folder / "run").rglob("*")]
    made += [daemon.folder / "run", daemon.folder / "data", *(daemon.folder / "data").rglob("*")]
    return {str(path.relative_to(daemon.folder)): path.stat().st_mode for path in made if path.exists()}


def too_open(daemon: Daemon) -> dict[str, str]:
    found = {}
    for name, mode in modes(daemon).items():
        right = 0o750 if stat.S_ISDIR(mode) else 0o660 if stat.S_ISSOCK(mode) else 0o640
        if stat.S_IMODE(mode) & ~right:
            found[name] = stat.filemode(mode)
    return found


def works(daemon: Daemon) -> None:
    daemon.start()
    with daemon.client() as client:
        client.feed([block(None, tx("funds", output("ann")))])
        pay = tx("pay", output("bob"), spends=[at("funds")], raw=b"raw" * 50)
        assert set(statuses(client.feed([{"type": "TxSubmitted", "tx": pay}]))) <= {"accepted", "duplicate"}
    until(
        lambda: {*modes(daemon)},
        lambda found: found >= EVERYTHING | TABLES and any("/metrics/http-" in name for name in found),
    )
    assert any("data/blobs/" in name and stat.S_ISREG(mode) for name, mode in modes(daemon).items())


@pytest.mark.parametrize("mask", [0o000, 0o077])
def test_files_have_explicit_modes(daemon: Daemon, mask: int) -> None:
    with umask(mask):
        works(daemon)
    assert too_open(daemon) == {}


def test_the_modes_of_older_recovery_tables_are_corrected(daemon: Daemon) -> None:
    works(daemon)
    daemon.kill()
    for name in TABLES:
        (daemon.folder / name).chmod(0o666)
    works(daemon)
    assert {name: oct(stat.S_IMODE(modes(daemon)[name])) for name in TABLES} == dict.fromkeys(TABLES, "0o640")


def test_only_what_is_too_open_is_changed(tmp_path: Path) -> None:
    file = tmp_path / "a" / "b" / "file"
    with umask(0):
        make_folder(file.parent)
        make_folder(file.parent)
        make_file(file)
    assert [stat.S_IMODE(path.stat().st_mode) for path in (file.parent.parent, file.parent, file)] == [
        *(0o750, 0o750),
        0o640,
    ]
    for mode, wanted in ((0o600, 0o600), (0o400, 0o400), (0o664, 0o640), (0o755, 0o640)):
        file.chmod(mode)
        make_file(file)
        assert stat.S_IMODE(file.stat().st_mode) == wanted
    restrict(tmp_path / "nothing")
    assert not (tmp_path / "nothing").exists()
