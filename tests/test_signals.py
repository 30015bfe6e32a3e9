"""Signals: stopping, reloading the configuration, and dumping what the process does; a drain that takes too long."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from time import sleep
from typing import Any, TypeVar

import anyio
import lmdb
import pytest
from daemons import (
    PATIENCE_S,
    ROOT,
    Daemon,
    as_user,
    encoded,
    environment,
    error,
    home,
    only_root,
    piped,
    running,
    statuses,
)
from patience import until
from questions import Web, failure
from reader_processes import children
from scenarios import chain, expected, point

from config.kinds import Secret
from config.serving import Http
from config.settings import Batch, Config, Log, Socket
from config.store import Utxo
from daemon import worker_process
from daemon.reload import RELOADED, difference

T = TypeVar("T")


def lines(daemon: Daemon, event: str) -> list[dict[str, Any]]:
    return [line for line in daemon.log_lines() if line["event"] == event]


def reload(daemon: Daemon, **tables: Any) -> dict[str, Any]:
    """Write another configuration, send SIGHUP, and return the log line with the result."""
    daemon.configure(**tables)
    count = len(lines(daemon, "config_reloaded")) + len(lines(daemon, "config_reload_failed"))
    daemon.process.send_signal(signal.SIGHUP)
    reported = until(
        lambda: lines(daemon, "config_reloaded") + lines(daemon, "config_reload_failed"),
        lambda reported: len(reported) > count,
    )
    return max(reported, key=lambda line: str(line["timestamp"]))


_SENT_WHILE_IMPORTING = """
import os, signal, sys
for number in (signal.SIGHUP, signal.SIGUSR1, signal.SIGUSR2):
    os.kill(os.getpid(), number)
sys.path.remove(os.path.dirname(__file__))
del sys.modules["aiosqlite"]
import aiosqlite
"""


def test_signals_while_the_daemon_is_being_loaded(tmp_path: Path) -> None:
    early = tmp_path / "early"
    early.mkdir()
    (early / "aiosqlite.py").write_text(_SENT_WHILE_IMPORTING)
    with running(tmp_path, {"PYTHONPATH": f"{early}{os.pathsep}{ROOT}"}) as daemon, daemon.client() as client:
        assert client.hello()


def test_a_drain_that_takes_too_long_is_logged(tmp_path: Path) -> None:
    """What was not applied was not acknowledged either; the feeder continues from the tip."""
    blocks = chain(900, outputs=40)
    with home(tmp_path, shutdown_timeout="10ms", batch={"max_delay_ms": 1}) as daemon:
        daemon.start()
        with daemon.client("frames") as client:
            client.send(*({"seq": n} | sent for n, sent in enumerate(blocks)))
            client.taken()
            daemon.process.terminate()
            answers = client.rest()
            assert daemon.wait() == 1
        [late] = lines(daemon, "drain_timed_out")
        assert late["level"] == "error" and late["after_s"] == 0.01
        assert 0 < late["messages"] <= 900 and late["bytes"] > 0
        assert daemon.events()[-1] == "stopped"
        assert len(answers) < 900
        daemon.configure()
        daemon.start()
        with daemon.client("frames") as client:
            tip = client.hello()["tip"]
            done = tip["height"] if tip else 0
            assert len(answers) <= done < 900  # a commit whose answers were not sent any more
            assert statuses(client.feed(blocks[done:])) == ["applied"] * (900 - done)
        assert daemon.export() == expected(blocks)


def test_a_turn_that_does_not_end_does_not_keep_the_daemon(tmp_path: Path) -> None:
    """The disk does not answer; here another process holds the write lock of the store."""
    blocks = chain(3)
    with home(tmp_path, shutdown_timeout="200ms") as daemon:
        daemon.start()
        with daemon.client() as client:
            assert statuses(client.feed(blocks[:2])) == ["applied"] * 2
            with lmdb.open(str(tmp_path / "data" / "lmdb"), max_dbs=4) as env, env.begin(write=True):
                client.send({"seq": 3} | blocks[2])
                client.taken()
                daemon.process.terminate()
                assert daemon.wait() == 1
        [late] = lines(daemon, "drain_timed_out")
        assert late["messages"] == 1
        assert daemon.events()[-1] == "exit_forced"
        daemon.assert_sound()
        assert daemon.export() == expected(blocks[:2])


def test_a_worker_that_ignores_sigterm_is_killed(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr(worker_process, "STOP_S", 0.2)
    stubborn = (
        "import signal, sys, time; signal.signal(signal.SIGTERM, signal.SIG_IGN); print(flush=True); time.sleep(600)"
    )

    async def main() -> int | None:
        async with await anyio.open_process([sys.executable, "-c", stubborn]) as process:
            assert process.stdout is not None
            await process.stdout.receive()
            await worker_process.stop(process)
            return process.returncode

    assert anyio.run(main, backend_options={"use_uvloop": True}) == -signal.SIGKILL


@contextmanager
def in_a_group(daemon: Daemon, command: str) -> Iterator[subprocess.Popen[bytes]]:
    """Run a service as a shell runs a job, logging to the daemon's log."""
    words = [sys.executable, "-m", "daemon.cli", command, "--config", str(daemon.config)]
    with (daemon.folder / "utxod.log").open("ab") as log:
        process = subprocess.Popen(words, stdin=subprocess.DEVNULL, stderr=log, env=environment(), process_group=0)
    try:
        yield process
    finally:
        process.kill()
        process.wait()


@pytest.mark.parametrize("command", ["run", "serve"])
def test_signals_to_the_whole_group(command: str, folder: Path) -> None:
    """SIGHUP reloads, and everything keeps running; Ctrl-backslash (SIGQUIT) stops the service and its workers."""
    with home(folder, http={"workers": 1, "listen": f"unix:{folder}/http"}) as daemon:
        daemon.start()  # `serve` needs a store
        daemon.term()
        with in_a_group(daemon, command) as process, Web(folder / "http") as web:
            assert web.ask("/health/live").status_code == 200
            workers = children(process.pid)
            for number, reported in (
                (signal.SIGHUP, "config_reloaded"),
                (signal.SIGUSR1, "diagnostics_dumped"),
                (signal.SIGUSR2, "signal_ignored"),
            ):
                os.killpg(process.pid, number)
                until(lambda reported=reported: lines(daemon, reported))  # type: ignore[misc]
            assert web.ask("/health/live").status_code == 200
            assert children(process.pid) == workers and len(workers) == 1
            os.killpg(process.pid, signal.SIGQUIT)
            assert process.wait(PATIENCE_S) == 0
        assert lines(daemon, "stopping")[-1]["signal"] == "SIGQUIT"
        assert [line["signal"] for line in lines(daemon, "signal_ignored")] == [
            "SIGUSR2"
        ]  # the workers received nothing
        assert len(lines(daemon, "diagnostics_dumped")) == 1 and not lines(daemon, "http_worker_ended")


def test_signals_to_a_worker(folder: Path) -> None:
    """`pkill -HUP utxod` reaches it too: reloading is its daemon's business."""
    with running(folder, http={"workers": 1, "listen": f"unix:{folder}/http"}) as daemon, Web(folder / "http") as web:
        web.ask("/health/live")
        [worker] = children(daemon.process.pid)
        for number in (signal.SIGHUP, signal.SIGUSR2):
            os.kill(worker, number)
        until(lambda: [line["signal"] for line in lines(daemon, "signal_ignored")], lambda reported: len(reported) == 2)
        os.kill(worker, signal.SIGUSR1)
        [dump] = until(lambda: lines(daemon, "diagnostics_dumped"))
        assert "DaemonLink.listen" in json.dumps(dump["tasks"])
        assert children(daemon.process.pid) == [worker] and web.ask("/health/live").status_code == 200
        os.kill(worker, signal.SIGQUIT)
        [ended] = until(lambda: lines(daemon, "http_worker_ended"))
        assert ended["code"] == 0
        assert web.ask("/health/live").status_code == 200


FEED = ("feed", "file", "-", "--config")


def test_signals_to_a_feed(tmp_path: Path) -> None:
    """It stops in order, reports its progress on SIGUSR1, and ignores SIGUSR2."""
    blocks = chain(5)
    with running(tmp_path) as daemon, piped(*FEED, daemon.config) as feed, daemon.client() as client:
        assert feed.stdin is not None and feed.stderr is not None
        feed.stdin.write(b"".join(encoded(sent, "json") for sent in blocks))
        feed.stdin.flush()
        until(lambda: client.hello()["tip"], lambda tip: tip == point(blocks[-1]))
        sleep(0.1)  # the last answers are on their way
        feed.send_signal(signal.SIGUSR2)
        feed.send_signal(signal.SIGUSR1)
        assert b"5 applied, height 5" in feed.stderr.readline()
        feed.send_signal(signal.SIGHUP)
        assert feed.wait(PATIENCE_S) == 0
        assert b"5 applied, height 5" in feed.stderr.read()


def test_nohup_keeps_a_feed(tmp_path: Path) -> None:
    command = ["sh", "-c", "trap '' HUP; exec \"$@\"", "-", sys.executable, "-m", "daemon.cli", *FEED]
    pipe = subprocess.PIPE
    with (
        running(tmp_path) as daemon,
        subprocess.Popen([*command, daemon.config], env=environment(), stdin=pipe, stderr=pipe) as feed,
        daemon.client() as client,
    ):
        assert feed.stdin is not None and feed.stderr is not None
        feed.stdin.write(encoded(chain(1)[0], "json"))
        feed.stdin.flush()
        until(lambda: client.hello()["tip"])
        feed.send_signal(signal.SIGHUP)
        feed.send_signal(signal.SIGUSR1)
        assert b"1 applied" in feed.stderr.readline()
        assert feed.poll() is None
        feed.stdin.close()
        assert feed.wait(PATIENCE_S) == 0


def test_a_dump_shows_what_the_daemon_is_doing(tmp_path: Path) -> None:
    with running(tmp_path, log={"level": "error"}) as daemon, daemon.client() as feeder:
        feeder.feed(chain(3))
        idle = [daemon.client() for _ in range(30)]
        for client in idle:
            client.hello()
        daemon.process.send_signal(signal.SIGUSR1)
        [dump] = until(lambda: lines(daemon, "diagnostics_dumped"))
        for client in idle:
            client.close()
        assert (dump["height"], dump["connections"], len(dump["busiest"])) == (3, 31, 20)
        assert dump["inbox"]["messages"] == 0 and dump["inbox"]["capacity"] == 64 << 20
        assert [about["feeding"] for about in dump["busiest"]].count(1) <= 1
        assert max(stack["count"] for stack in dump["tasks"]) >= 31
        stacks = json.dumps(dump["tasks"])
        assert "follow_chain" in stacks and "Connection" in stacks
        names = {stack["name"] for stack in dump["threads"]}
        assert {"MainThread", "stderr", "metrics"} <= names
        assert daemon.events() == ["diagnostics_dumped"]


def test_reload_reports_what_changed_and_what_needs_a_restart(tmp_path: Path) -> None:
    quiet: dict[str, Any] = {"log": {"level": "error"}, "batch": {"max_delay_ms": 0}}
    with running(tmp_path, **quiet) as daemon, daemon.client("frames") as client:
        blocks = chain(600)
        client.feed(blocks[:10])
        assert not daemon.log_text()
        reported = reload(daemon, log={"level": "info"}, batch={"max_delay_ms": 0}, utxo={"prune_depth": 77})
        assert reported["changed"] == ["log.level"] and reported["needs_restart"] == ["utxo.prune_depth"]
        client.feed(blocks[10:300])
        commits = len(lines(daemon, "blocks_committed"))
        assert commits > 200  # with no delay each block has a commit of its own
        reported = reload(daemon, batch={"max_delay_ms": 10_000})
        assert reported["changed"] == ["batch.max_delay_ms"] and reported["needs_restart"] == []
        client.feed(blocks[300:])
        assert len(lines(daemon, "blocks_committed")) < commits + 100
        daemon.configure(log={"format": "text"}, batch={"max_delay_ms": 10_000})
        daemon.process.send_signal(signal.SIGHUP)
        until(daemon.log_text, lambda text: "changed=['log.format'] needs_restart=[]" in text)
        assert daemon.term() == 0
        assert daemon.export() == expected(blocks)


@only_root
def test_reload_changes_the_operators(folder: Path) -> None:
    """The kernel reports the uid of a client; open connections are checked with the new setting too."""
    stranger = 65534
    with running(folder) as daemon:
        folder.chmod(0o755)
        daemon.socket.chmod(0o666)
        with as_user(stranger):
            client = daemon.client()
        frozen = {"type": "OutputsFrozen", "outpoints": [[b"\1" * 32, 0]]}
        with client:
            error(client.ask(frozen), "not_permitted")
            assert reload(daemon, socket={"admin_uids": [stranger]})["changed"] == ["socket.admin_uids"]
            assert client.ask(frozen)["code"] != "not_permitted"
            assert reload(daemon)["changed"] == ["socket.admin_uids"]
            error(client.ask(frozen), "not_permitted")


def test_reload_gives_the_workers_another_token(folder: Path) -> None:
    """They are replaced; meanwhile connections wait, none is refused. Their counters continue."""
    web_of = {"workers": 2, "listen": f"unix:{folder}/http"}
    with running(folder, http=web_of | {"token": "first"}) as daemon, Web(folder / "http") as web:
        until(lambda: len(children(daemon.process.pid)), lambda count: count == 2)
        assert web.ask("/metrics", Authorization="Bearer first").status_code == 200
        before = children(daemon.process.pid)
        reported = reload(daemon, http=web_of | {"token": "second"})
        assert reported["changed"] == ["http.token"] and "second" not in daemon.log_text()
        until(lambda: len(lines(daemon, "http_worker_replaced")), lambda count: count == 2)
        for _ in range(4):
            failure(web.ask("/metrics", Authorization="Bearer first"), 401, "unauthorized")
            assert web.ask("/metrics", Authorization="Bearer second").status_code == 200
        assert not set(children(daemon.process.pid)) & set(before)
        assert not lines(daemon, "http_worker_ended")


BROKEN = {
    "not TOML": ("[log\n", "at line 1"),
    "a wrong name": ("[log]\nlevle = 'info'\n", "levle"),
    "nested without end": ("a = " + "[" * 50_000, "nested too deeply"),
    "not there": (None, "this file does not exist"),
}


def test_a_broken_file_changes_nothing(folder: Path) -> None:
    with running(folder, http={"workers": 1, "listen": f"unix:{folder}/http"}) as daemon, Web(folder / "http") as web:
        web.ask("/health/live")
        whole = daemon.config.read_text()
        for text, what in BROKEN.values():
            if text is None:
                daemon.config.unlink()
            else:
                daemon.config.write_text(text)
            count = len(lines(daemon, "config_reload_failed"))
            daemon.process.send_signal(signal.SIGHUP)
            bad = until(lambda: lines(daemon, "config_reload_failed"), lambda bad, count=count: len(bad) > count)  # type: ignore[misc]
            assert what in bad[-1]["error"] and bad[-1]["level"] == "error"
        [worker] = children(daemon.process.pid)
        os.kill(worker, signal.SIGKILL)
        until(lambda: children(daemon.process.pid), lambda pids: pids and pids != [worker])
        assert web.ask("/health/live").status_code == 200
        with daemon.client() as client:
            assert statuses(client.feed(chain(1))) == ["applied"]
        daemon.config.write_text(whole)
        assert len(lines(daemon, "http_worker_ended")) == 1


def test_only_settings_that_can_be_reloaded_are_reloaded() -> None:
    old = Config(http=Http(token=Secret("a")), socket=Socket(admin_uids=(7,)))
    new = Config(
        data_dir=Path("elsewhere"),
        log=Log(format="text", level="debug"),
        http=Http(workers=3),
        batch=Batch(max_bytes=7, max_delay_ms=7),
        utxo=Utxo(rollback_window=9),
    )
    found = difference(old, new)
    assert found.changed == ["socket.admin_uids", "http.token", "batch.max_delay_ms", "log.format", "log.level"]
    assert set(found.changed) == set(RELOADED)
    assert found.needs_restart == ["data_dir", "http.workers", "utxo.rollback_window", "batch.max_bytes"]
    assert found.config == Config(log=new.log, batch=Batch(max_delay_ms=7))
    assert difference(found.config, new).changed == []
    assert difference(found.config, new).needs_restart == found.needs_restart  # until it is restarted
