"""Old readers are named in the log, the metrics and the status; a command ends its own."""

from __future__ import annotations

import re
from pathlib import Path
from time import sleep
from typing import Any

from chains import block as made_block
from chains import feed, open_chain
from chains import output as paid
from chains import tx as made_tx
from daemons import running
from patience import until
from questions import Web
from reader_processes import OURS, BlockFeed, logged, process

FOREIGN = """
import lmdb, sys
with lmdb.open(sys.argv[1], readonly=True, max_dbs=20) as env, env.begin():
    print("ready", flush=True)
    sys.stdin.read()
"""
GIVING_UP = """
import sys
from pathlib import Path
from config.load import load
from daemon.store import limited, open_disk
with open_disk(load(Path(sys.argv[1]), {}), readonly=True) as disk, limited(disk, "wait"), disk.read():
    print("ready", flush=True)
    sys.stdin.read()
"""


def test_a_foreign_reader_that_stays_is_named_and_not_ended(tmp_path: Path) -> None:
    http = {"workers": 1, "listen": f"unix:{tmp_path}/http"}
    with running(tmp_path, store={"max_reader_age": "300ms"}, http=http) as daemon, daemon.client("frames") as client:
        turning = BlockFeed(client)
        turning.until(lambda: True)
        with process("-c", FOREIGN, tmp_path / "data" / "lmdb") as reader, Web(tmp_path / "http") as ask:
            ask.get("/health/live")  # the worker answers
            line = turning.until(lambda: logged(daemon, "old_reader", reader.pid))[0]
            assert line["level"] == "warning" and 0.3 < line["age_s"] < 30 and line["commits"] > 0
            assert line["command"] == Path(f"/proc/{reader.pid}/comm").read_text().strip() and line["advice"]
            oldest = until(lambda: daemon.status()["daemon"]["oldest_reader"])
            assert (oldest["pid"], oldest["txnid"], oldest["command"]) == (reader.pid, line["txnid"], line["command"])
            assert f"process {reader.pid} ({line['command']})" in daemon.run("status").stdout.decode()

            def metric(name: str) -> float | None:
                found = re.search(rf"^utxod_{name} (\S+)$", ask.ask("/metrics").text, re.MULTILINE)
                return None if found is None else float(found[1])

            until(lambda: metric("oldest_reader_age_seconds"), lambda age: age is not None and age >= line["age_s"])
            commits = metric("oldest_reader_commits")
            assert metric("oldest_reader_pid") == reader.pid and commits is not None and commits >= line["commits"]
            until(lambda: metric("readers"), lambda count: count == 1)  # this scrape is one, too, for a moment
            assert metric("readers_killed_total") == 0
            until(lambda: logged(daemon, "old_reader", reader.pid), lambda lines: len(lines) >= 2)  # twice as old
            assert reader.poll() is None and not logged(daemon, "reader_killed", reader.pid)
            reader.communicate()
            assert reader.returncode == 0
            until(lambda: metric("oldest_reader_age_seconds"), lambda seconds: seconds == 0)
            assert metric("oldest_reader_pid") is None


def test_a_reader_that_sees_the_latest_commit_is_not_old(tmp_path: Path) -> None:
    off = {"enabled": False}  # what commits without a block
    tables: dict[str, Any] = {"store": {"max_reader_age": "300ms"}, "pruner": off, "recovery": off}
    with running(tmp_path, **tables) as daemon, daemon.client("frames") as client:
        turning = BlockFeed(client)
        turning.until(lambda: True)
        with process("-c", OURS, daemon.config) as reader:
            sleep(0.6)  # no commit, so there is nothing to wait for
            assert reader.poll() is None and daemon.status()["daemon"]["oldest_reader"] is None
            reader.communicate()
            assert reader.returncode == 0 and not logged(daemon, "old_reader", reader.pid)


def test_a_command_ends_its_own_old_transaction(tmp_path: Path) -> None:
    with running(tmp_path) as daemon, daemon.client("frames") as client:
        turning = BlockFeed(client)
        turning.until(lambda: True)
        daemon.configure(store={"max_reader_age": "300ms"})  # for the command, and not for the daemon
        with process("-c", GIVING_UP, daemon.config) as reader:
            assert turning.until(reader.poll, lambda code: code is not None) == 1
            assert reader.stderr is not None
            why = "Error: the read transaction was behind the latest commit for more than 0.3 s (store.max_reader_age)"
            assert reader.stderr.read().decode() == f"{why} and was ended: wait\n"
        assert not logged(daemon, "reader_killed", reader.pid)


COPYING = """
import sys, tempfile
from pathlib import Path
from storage.disk import Disk
from storage.history.layout import TABLES
from storage.page_copy import copy_pages
with Disk(Path(sys.argv[1]), TABLES, readonly=True, max_reader_age=60) as disk:
    print("ready", flush=True)
    while True:
        with tempfile.TemporaryDirectory(dir=sys.argv[2]) as folder:
            copy_pages(disk, Path(folder) / "data.mdb")
"""


def test_a_process_that_copies_is_not_one_to_be_killed(tmp_path: Path) -> None:
    """A copy is one read transaction, which on a slow disk takes longer than any limit."""
    with open_chain(tmp_path / "lmdb") as chain:
        feed(chain, made_block(None, made_tx("O", *(paid("ann", n) for n in range(20_000)))))
        disk = chain.store.disk
        with process("-c", COPYING, tmp_path / "lmdb", tmp_path) as copying:

            def reads() -> bool:
                return copying.pid in {reader.pid for reader in disk.readers()}

            until(lambda: not disk.may_kill(copying.pid) and reads(), pause_s=0)
            until(lambda: disk.may_kill(copying.pid), pause_s=0)
            copying.kill()
            copying.wait()
            assert not disk.may_kill(copying.pid)


FILLING = """
import lmdb, sys
with lmdb.open(sys.argv[1], readonly=True, max_dbs=20) as env:
    open_now = []
    try:
        while True:
            open_now.append(env.begin())
    except lmdb.ReadersFullError:
        print("ready", flush=True)
    sys.stdin.read()
"""


def test_a_command_without_a_reader_slot_gives_advice(tmp_path: Path) -> None:
    with running(tmp_path, recovery={"enabled": False}) as daemon:  # it reads the store when it begins
        with process("-c", FILLING, tmp_path / "data" / "lmdb") as reader:
            for command in ("status", "export"):
                done = daemon.run(command)
                assert (done.returncode, done.stdout, done.stderr.count(b"\n")) == (1, b"", 1)
                assert b"all 1024 reader slots are taken: end other readers and try again" in done.stderr
            assert reader.poll() is None
        until(lambda: daemon.run("export").returncode, lambda code: code == 0)  # dead readers leave their slots
