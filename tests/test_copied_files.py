"""Copies of a store's files: refused where pages may be mixed, accepted where they cannot be, or were checked."""

from __future__ import annotations

import os
import shutil
from collections.abc import Callable, Iterator
from pathlib import Path
from threading import Event, Thread

import lmdb
import pytest
from daemons import Daemon, home, reason, running, statuses, utxod
from patience import until
from scenarios import chain
from test_compact import counted, killed_at

import storage.page_copy
from daemon.store import TABLES
from storage.disk import META, Disk
from storage.home import Home, home_of, settle
from storage.page_copy import page_copy
from storage.pages import check_pages
from storage.restore import restore

BLOCKS = chain(60, outputs=8)


@pytest.fixture(scope="module")
def live(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Daemon]:
    with running(tmp_path_factory.mktemp("live")) as daemon:
        with daemon.client("frames") as client:
            assert set(statuses(client.feed(BLOCKS))) == {"applied"}
        yield daemon


def copied(live: Daemon, folder: Path) -> Path:
    shutil.copytree(live.folder / "data" / "lmdb", folder / "data" / "lmdb")
    return folder


def test_a_copy_of_a_running_store_is_refused(live: Daemon, tmp_path: Path) -> None:
    with home(copied(live, tmp_path)) as daemon:
        for command in (["export"], ["prune"], ["reindex"], ["backup", "-"], ["compact"], ["status"]):
            done = daemon.run(*command)
            assert done.returncode == 3, (command, done.stderr)
            assert b"`utxod restore --adopt" in done.stderr and b"`utxod backup`" in done.stderr, command
        assert "copied from a store that was running" in reason(daemon.run("run"))
        assert daemon.run("verify").returncode == 0  # it may be looked at


def test_a_copy_that_is_sound_can_be_accepted(live: Daemon, tmp_path: Path) -> None:
    with home(copied(live, tmp_path)) as daemon:
        assert utxod("restore", "--adopt", tmp_path / "data").returncode == 0
        assert daemon.export() == live.export()
        daemon.start()


def test_a_copy_with_mixed_pages_is_not_accepted(live: Daemon, tmp_path: Path) -> None:
    with home(copied(live, tmp_path)) as daemon:
        path = tmp_path / "data" / "lmdb" / "data.mdb"
        with path.open("r+b") as file:
            file.seek(path.stat().st_size * 2 // 3 // 4096 * 4096)
            file.write(os.urandom(4096 * 3))
        done = utxod("restore", "--adopt", tmp_path / "data")
        assert done.returncode == 3 and b"data.mdb: " in done.stderr, done
        assert daemon.run("export").returncode == 3


def test_a_store_that_was_closed_may_be_copied_and_a_killed_one_may_be_moved(tmp_path: Path) -> None:
    (tmp_path / "a").mkdir()
    with running(tmp_path / "a") as daemon:
        with daemon.client("frames") as client:
            assert set(statuses(client.feed(BLOCKS[:30]))) == {"applied"}
        assert daemon.term() == 0
        before = daemon.export()
        shutil.copytree(tmp_path / "a" / "data" / "lmdb", tmp_path / "b" / "data" / "lmdb")
        daemon.start()
        daemon.kill()
        shutil.copytree(tmp_path / "a" / "data" / "lmdb", tmp_path / "c" / "data" / "lmdb")
        (tmp_path / "d").mkdir()
        (tmp_path / "a" / "data").rename(tmp_path / "d" / "data")
    for name, code in (("b", 0), ("c", 3), ("d", 0)):
        with home(tmp_path / name) as daemon:
            done = daemon.run("export")
            assert (done.returncode, done.stdout.decode().splitlines()) == (code, [] if code else before), name
            if not code:
                daemon.start()
                assert daemon.term() == 0


def test_a_file_is_known_by_its_inode_and_its_birth(tmp_path: Path) -> None:
    """The inode number of a deleted file may be given to the next one."""
    with Disk(tmp_path, TABLES) as disk:
        here = home_of(tmp_path)
        assert here.inode == (tmp_path / "data.mdb").stat().st_ino
        assert abs(here.born / 1e9 - (tmp_path / "data.mdb").stat().st_ctime) < 3600 or here.born == 0
        settle(disk)  # a store that was never run stays without a row
        with disk.read() as txn:
            assert txn.stat(disk.tables[META])["entries"] == 0
    assert here.is_at(Home(here.inode, 0, True)) and not here.is_at(Home(here.inode + 1, here.born, True))
    assert not Home(1, 5, True).is_at(Home(1, 6, True))


def test_pages_copied_during_writes_are_of_one_commit(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(storage.page_copy, "_CHUNK", 16 << 10)
    tables, ended = (META, "rows"), Event()
    (tmp_path / "store").mkdir()
    with Disk(tmp_path / "store", tables, durable=False) as disk:

        def write() -> None:
            for number in range(1, 1_000_000):
                if ended.is_set():
                    return

                def work(txn: lmdb.Transaction[bytes], number: int = number) -> None:
                    for n in range(10):
                        txn.put(bytes([n]), number.to_bytes(8, "big") * (200 * (n % 3) + 1), db=disk.tables["rows"])

                disk.write(work)

        writer, seen = Thread(target=write), set[bytes]()
        writer.start()
        try:
            for n in range(6):
                (tmp_path / str(n)).mkdir()
                with page_copy(disk) as copy, (tmp_path / str(n) / "data.mdb").open("wb") as file:
                    for at, chunk in enumerate(copy.chunks):
                        if at in (1, 3):  # commits come while the pages are read
                            until(disk.last_txnid, (disk.last_txnid() + 1).__le__)
                        file.write(chunk)
        finally:
            ended.set()
            writer.join()
    for n in range(6):
        assert check_pages(tmp_path / str(n) / "data.mdb") == []
        with Disk(tmp_path / str(n), tables, durable=False) as read, read.read() as txn:
            numbers = {value[:8] for _, value in txn.cursor(read.tables["rows"])}
            assert len(numbers) <= 1
            seen |= numbers
    assert len(seen) >= 5  # the first one may be empty


def test_a_kill_during_a_restore_leaves_no_store_or_a_whole_one(
    live: Daemon, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert live.run("backup", tmp_path / "backup").returncode == 0
    data, kills = tmp_path / "data", 0

    def work(count: Callable[[], None]) -> None:
        for owner, name in ((Path, "rename"), (os, "fsync"), (Path, "rmdir")):
            real = getattr(owner, name)
            monkeypatch.setattr(owner, name, counted(real, count))
        restore(tmp_path / "backup", data, TABLES)

    while killed_at(kills + 1, work):
        kills += 1
        if (data / "lmdb").exists():
            shutil.rmtree(data)
        else:
            assert (data / "restoring").exists() or not any(data.iterdir())
    assert kills > 10
    with home(tmp_path) as daemon:
        assert daemon.export() == live.export()


def test_a_kill_during_a_backup_leaves_no_folder_of_that_name(live: Daemon, tmp_path: Path) -> None:
    from config.load import load
    from daemon.backup import backup

    config, target, kills = load(live.config, {}), tmp_path / "backup", 0

    def work(count: Callable[[], None]) -> None:
        backup(config, target, 0, lambda _: count())

    while killed_at(kills + 1, work):
        kills += 1
        assert not target.exists()
    assert kills >= 2 and (target / "manifest.json").exists()
    assert not (tmp_path / "backup.partial").exists()
