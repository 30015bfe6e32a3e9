"""Compacting a store, and bringing it from format to format: whole or not at all, whatever happens meanwhile."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from random import Random
from typing import Any

import lmdb
import pytest
from daemons import ROOT, environment, home, running, statuses, utxod
from scenarios import chain

from storage.compact import compact
from storage.disk import FORMAT_KEY, META, Disk, Txn
from storage.errors import StoreBusy, WrongFormat
from storage.history.layout import FORMAT
from storage.migrate import migrate
from storage.pages import check_pages

TABLES = (META, "pairs*", "rows", "empty")


def fill(folder: Path, commits: int = 30) -> None:
    random = Random(1)
    with Disk(folder, TABLES, durable=False) as disk:
        for _ in range(commits):

            def work(txn: Txn) -> None:
                for _ in range(60):
                    key = random.randrange(500).to_bytes(4, "big")
                    txn.delete(key, db=disk.tables["rows"])  # rather than a short value on pages of a long one
                    txn.put(key, random.randbytes(random.choice((9, 700, 16_000))), db=disk.tables["rows"])
                    txn.put(key[:3], random.randbytes(32), db=disk.tables["pairs"])
                    txn.delete(random.randrange(500).to_bytes(4, "big"), db=disk.tables["rows"])
                txn.put(FORMAT_KEY, FORMAT.to_bytes(4, "big"), db=disk.tables[META])

            disk.write(work)


def rows(folder: Path) -> dict[str, list[tuple[bytes, bytes]]]:
    with Disk(folder, TABLES, readonly=True) as disk, disk.read() as txn:
        return {name: list(txn.cursor(db)) for name, db in disk.tables.items()}


def test_all_rows_are_there_and_the_file_is_shorter(tmp_path: Path) -> None:
    fill(tmp_path)
    before, size = rows(tmp_path), (tmp_path / "data.mdb").stat().st_size
    with Disk(tmp_path, TABLES, readonly=True) as disk:
        commit = disk.last_txnid()
    reported = list[int]()
    assert compact(tmp_path, reported.append) == (size, (tmp_path / "data.mdb").stat().st_size)
    assert (tmp_path / "data.mdb").stat().st_size < size * 0.9 and sum(reported) > 0
    assert rows(tmp_path) == before and len(before["pairs"]) > 1000
    assert check_pages(tmp_path / "data.mdb") == []
    with Disk(tmp_path, TABLES) as disk:
        assert disk.last_txnid() == commit
        disk.write(lambda txn: txn.put(b"new", b"row", db=disk.tables["rows"]))
        assert disk.last_txnid() == commit + 1
    assert rows(tmp_path)["rows"] == sorted([*before["rows"], (b"new", b"row")])
    assert check_pages(tmp_path / "data.mdb") == []


def test_lmdb_s_own_compaction_still_crashes(tmp_path: Path) -> None:
    """If this fails, LMDB's own compaction can be used: see decision 027."""
    script = """
import lmdb, sys
env = lmdb.open(sys.argv[1], max_dbs=1)
db = env.open_db(b"pairs", dupsort=True, dupfixed=True)
with env.begin(write=True, db=db) as txn:
    for n in range(int(sys.argv[2])): txn.put(b"key", n.to_bytes(32, "big"))
import os; os.mkdir(sys.argv[1] + "/copy")
env.copy(sys.argv[1] + "/copy", compact=True)
"""
    for count, code in ((10, 0), (300, -signal.SIGSEGV)):
        (tmp_path / str(count)).mkdir()
        command = [sys.executable, "-W", "ignore", "-c", script, str(tmp_path / str(count)), str(count)]
        assert subprocess.run(command, check=False).returncode == code


def test_a_store_that_is_open_is_left_alone(tmp_path: Path) -> None:
    fill(tmp_path, 2)
    reading = lmdb.open(str(tmp_path), readonly=True)
    try:  # of this process, whose locks do not count for itself
        pid = os.fork()
        if pid == 0:
            try:
                compact(tmp_path)
            except StoreBusy as error:
                os._exit(7 if "other processes read this store" in str(error) else 8)
            os._exit(0)
        assert os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) == 7
    finally:
        reading.close()
    with Disk(tmp_path, TABLES):
        pid = os.fork()
        if pid == 0:
            try:
                compact(tmp_path)
            except StoreBusy:
                os._exit(7)
            os._exit(0)
        assert os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) == 7


def counted(real: Callable[..., Any], count: Callable[[], None]) -> Callable[..., Any]:
    def call(*given: Any, **named: Any) -> Any:
        count()
        done = real(*given, **named)
        count()
        return done

    return call


def killed_at(number: int, work: Callable[[Callable[[], None]], object]) -> bool:
    """Run `work` in a child that is killed at the call of that number; return whether it was."""
    pid = os.fork()
    if pid == 0:
        left = number

        def count() -> None:
            nonlocal left
            left -= 1
            if left == 0:
                os.kill(os.getpid(), signal.SIGKILL)

        work(count)
        os._exit(0)
    return os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) == -signal.SIGKILL


def test_a_kill_at_any_moment_leaves_one_store(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    fill(tmp_path)
    before, kills = rows(tmp_path), 0

    def work(count: Callable[[], None]) -> None:
        for owner, name in ((Path, "rename"), (os, "fsync"), (os, "pwrite")):
            real = getattr(owner, name)
            monkeypatch.setattr(owner, name, counted(real, count))
        compact(tmp_path, lambda _: count())

    while killed_at(kills + 1, work):
        kills += 1
        assert rows(tmp_path) == before
        assert check_pages(tmp_path / "data.mdb") == []
    assert kills > 8
    assert rows(tmp_path) == before
    assert not [path for path in tmp_path.iterdir() if "compacting" in path.name]


def test_a_full_disk_leaves_the_store_as_it_was(tmp_path: Path) -> None:
    with running(tmp_path) as daemon:
        with daemon.client("frames") as client:
            assert set(statuses(client.feed(chain(300, outputs=60)))) == {"applied"}
        assert daemon.term() == 0
        before = daemon.export()
        limited = ["bash", "-c", 'ulimit -f 100; exec "$@"', "-", sys.executable, "-m", "daemon.cli"]
        done = subprocess.run(
            [*limited, "compact", "--config", str(daemon.config)],
            env=environment(),
            cwd=ROOT,
            capture_output=True,
            check=False,
        )
        assert done.returncode == 1 and b"Error: " in done.stderr and b"Traceback" not in done.stderr
        assert daemon.export() == before
        assert not (tmp_path / "data" / "lmdb" / "data.mdb.compacting").exists()
        done = daemon.run("compact")
        assert done.returncode == 0 and b"before" in done.stdout
        assert daemon.export() == before
        daemon.assert_sound()
        daemon.start()


# --- formats ---------------------------------------------------------------------------------------------------------


def test_steps_lead_from_format_to_format(tmp_path: Path) -> None:
    fill(tmp_path, 1)

    def put_format(number: int) -> None:
        with Disk(tmp_path, (META,)) as disk:
            disk.write(lambda txn: txn.put(FORMAT_KEY, number.to_bytes(4, "big"), db=disk.tables[META]))

    def step(name: bytes) -> Callable[[Txn, Disk], None]:
        def run(txn: Txn, disk: Disk) -> None:
            txn.put(name, b"done", db=disk.tables[META])

        return run

    assert migrate(tmp_path) == [FORMAT]
    put_format(0)
    with pytest.raises(WrongFormat, match="written in format 0"):
        migrate(tmp_path, {n: step(b"step %d" % n) for n in range(1, FORMAT)})
    assert migrate(tmp_path, {n: step(b"step %d" % n) for n in range(FORMAT)}) == [*range(FORMAT + 1)]
    with Disk(tmp_path, (META,), version=FORMAT) as disk, disk.read() as txn:
        assert {key for key, _ in txn.cursor(disk.tables[META])} >= {b"step %d" % n for n in range(FORMAT)}
    put_format(FORMAT + 1)
    with pytest.raises(WrongFormat, match=f"written in format {FORMAT + 1}"):
        migrate(tmp_path, {FORMAT: step(b"never")})


def test_the_command_reports_what_it_did(tmp_path: Path) -> None:
    with home(tmp_path) as daemon:
        done = utxod("migrate", "--config", daemon.config)
        assert done.returncode == 1 and b"there is no store here" in done.stderr
        daemon.start()
        assert daemon.term() == 0
        assert b"nothing to do" in daemon.run("migrate").stdout
