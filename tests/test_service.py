"""The daemon as a process: its socket, its messages to systemd, start and end, and a full disk."""

from __future__ import annotations

import os
import shutil
import signal
import socket
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from time import monotonic, sleep

import lmdb
import pytest
from daemons import PATIENCE_S, Client, Daemon, Message, ack, environment, error, home, reason, running, statuses
from patience import until
from scenarios import back_to, block, chain, expected, output, point, tx


def test_the_default_place_of_the_socket(tmp_path: Path) -> None:
    config = tmp_path / "utxod.toml"
    config.write_text(f'data_dir = "{tmp_path / "data"}"\n')
    for variables, place in [({}, tmp_path / "data"), ({"RUNTIME_DIRECTORY": str(tmp_path / "run")}, tmp_path / "run")]:
        daemon = Daemon(tmp_path, variables)
        daemon.socket = place / "utxod.sock"
        daemon.start()
        try:
            with daemon.client() as client:
                assert client.hello()
        finally:
            daemon.kill()


def test_systemd_may_pass_the_socket(tmp_path: Path) -> None:
    with home(tmp_path) as daemon, socket.socket(socket.AF_UNIX) as listener:
        passed = tmp_path / "passed.sock"
        listener.bind(str(passed))
        listener.listen()
        with Client(passed) as early:  # before the daemon is there
            early.send({"type": "Hello", "seq": 1})
            daemon.spawn_on(listener)
            welcome = early.receive()
            assert welcome is not None and welcome["type"] == "Welcome"
            assert not daemon.socket.exists()
            assert daemon.term() == 0
        assert passed.exists()  # it is systemd's


def notifications(notified: socket.socket, until: str) -> list[str]:
    """Return what the daemon sends to systemd, up to a line with this beginning."""
    lines: list[str] = []
    while not lines or not lines[-1].startswith(until):
        lines += notified.recv(4096).decode().splitlines()
    return lines


@contextmanager
def listening(name: str) -> Iterator[socket.socket]:
    """Yield a socket on which systemd would listen."""
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as notified:
        notified.bind(name)
        notified.settimeout(PATIENCE_S)
        yield notified


@pytest.fixture
def notified(tmp_path: Path) -> Iterator[socket.socket]:
    with listening(str(tmp_path / "notify")) as notified:
        yield notified


@pytest.mark.parametrize("enabled", [True, False])
def test_messages_to_systemd(tmp_path: Path, notified: socket.socket, enabled: bool) -> None:
    variables = {"NOTIFY_SOCKET": str(tmp_path / "notify"), "WATCHDOG_USEC": "200000"}
    with running(tmp_path, variables, utxo={"enabled": enabled}) as daemon:
        notifications(notified, "READY=1")
        began = monotonic()
        for _ in range(5):
            notifications(notified, "WATCHDOG=1")
        assert 0.2 < monotonic() - began < 5
        if enabled:
            with daemon.client() as client:
                client.ask(block(None, tx("a", output("ann"), output("bob"))))
            assert notifications(notified, "STATUS=")[-1] == "STATUS=height 1, 2 unspent outputs"
            for broken in (False, True):  # a reload that fails has ended too
                before = monotonic()
                if broken:
                    daemon.config.write_text("nonsense")
                daemon.process.send_signal(signal.SIGHUP)
                lines = notifications(notified, "READY=1")
                since = lines[lines.index("RELOADING=1") + 1].removeprefix("MONOTONIC_USEC=")
                assert before <= int(since) / 1e6 <= monotonic()
        assert daemon.term() == 0
        assert notifications(notified, "STOPPING=1")


def until_silent(notified: socket.socket, seconds: float) -> None:
    """Wait until systemd has received nothing for some seconds."""
    notified.settimeout(seconds)
    with pytest.raises(TimeoutError):
        while True:
            notified.recv(4096)
    notified.settimeout(PATIENCE_S)


def test_messages_to_systemd_under_socket_activation(tmp_path: Path, notified: socket.socket) -> None:
    if (activate := shutil.which("systemd-socket-activate")) is None:
        pytest.skip("systemd-socket-activate is missing: apt-get install systemd")
    variables = {"NOTIFY_SOCKET": str(tmp_path / "notify"), "WATCHDOG_USEC": "200000"}
    with home(tmp_path) as daemon:
        run = [sys.executable, "-m", "daemon", "run", "--config", str(daemon.config)]
        command = [
            activate,
            f"--listen={daemon.socket}",
            *(f"--setenv={name}={each}" for name, each in variables.items()),
        ]
        with (tmp_path / "log").open("wb") as log:
            process = subprocess.Popen([*command, *run], stderr=log, env=environment())
        try:
            until(daemon.socket.exists)
            with daemon.client() as client:
                assert notifications(notified, "READY=1")[-1] == "READY=1"
                ack(client.ask(block(None)), "applied", point(block(None)))
                assert notifications(notified, "STATUS=")[-1] == "STATUS=height 1, 0 unspent outputs"
                assert notifications(notified, "WATCHDOG=1")
            process.terminate()
            assert notifications(notified, "STOPPING=1")
            assert process.wait(PATIENCE_S) == 0, (tmp_path / "log").read_text()
        finally:
            process.kill()
            process.wait()


def test_a_blocked_writer_does_not_trigger_the_watchdog(tmp_path: Path, notified: socket.socket) -> None:
    variables = {"NOTIFY_SOCKET": str(tmp_path / "notify"), "WATCHDOG_USEC": "100000"}
    with running(tmp_path, variables, shutdown_timeout="1s") as daemon:
        notifications(notified, "WATCHDOG=1")
        with lmdb.open(str(tmp_path / "data" / "lmdb"), max_dbs=4) as env, env.begin(write=True):
            until_silent(notified, 1.0)  # ten times as long as systemd would wait
            with daemon.client() as client:
                assert client.hello()
        notifications(notified, "WATCHDOG=1")


def test_a_service_manager_that_does_not_read_does_not_stop_the_chain(tmp_path: Path, notified: socket.socket) -> None:
    """Its queue is full: notifications that may be lost are dropped, others are sent when there is space."""
    filler = socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM | socket.SOCK_NONBLOCK)
    with filler, pytest.raises(BlockingIOError):
        while True:
            filler.sendto(b"filler\n", str(tmp_path / "notify"))
    variables = {"NOTIFY_SOCKET": str(tmp_path / "notify"), "WATCHDOG_USEC": "20000"}
    with running(tmp_path, variables) as daemon, daemon.client() as client:
        for sent in chain(20):
            assert client.ask(sent)["status"] == "applied"
        assert notifications(notified, "READY=1")
        assert daemon.term() == 0


def test_stopping_is_reported_at_once(tmp_path: Path, notified: socket.socket) -> None:
    variables = {"NOTIFY_SOCKET": str(tmp_path / "notify"), "WATCHDOG_USEC": "20000"}
    with running(tmp_path, variables) as daemon, daemon.client() as client:
        with lmdb.open(str(tmp_path / "data" / "lmdb"), max_dbs=4) as env, env.begin(write=True):
            until_silent(notified, 0.5)
            client.send({"seq": 1} | block(None))
            client.taken()
            daemon.process.terminate()
            notifications(notified, "STOPPING=1")
            assert daemon.alive()
        assert statuses(client.rest()) == ["applied"]
        assert daemon.wait() == 0


def test_systemd_may_listen_on_an_abstract_socket(tmp_path: Path) -> None:
    name = f"utxod-test-{os.getpid()}"
    with listening("\0" + name) as notified, running(tmp_path, {"NOTIFY_SOCKET": "@" + name}):
        assert notifications(notified, "READY=1") == ["READY=1"]


def test_a_second_daemon_is_refused(daemon: Daemon, client: Client) -> None:
    second = daemon.run("run")
    assert second.returncode == 1
    assert f"another process has this store open for writing (pid {daemon.process.pid})" in second.stderr.decode()
    assert "Traceback" not in second.stderr.decode()
    ack(client.ask(block(None)), "applied", point(block(None)))
    with daemon.client() as other:
        assert other.hello()


def test_the_socket_of_another_daemon_is_refused(daemon: Daemon, tmp_path_factory: pytest.TempPathFactory) -> None:
    with home(tmp_path_factory.mktemp("second"), socket={"path": str(daemon.socket)}) as second:
        assert second.spawn().wait(PATIENCE_S) == 1
        assert str(daemon.socket) in second.tail() and "Traceback" not in second.tail()
    with daemon.client() as client:
        ack(client.ask(block(None)), "applied", point(block(None)))


@pytest.mark.parametrize("place", ["data/lmdb", "utxod.toml/utxod.sock"])
def test_a_socket_that_cannot_be_created_is_one_error_line(tmp_path: Path, place: str) -> None:
    with home(tmp_path, socket={"path": str(tmp_path / place)}) as daemon:
        done = daemon.run("run")
        assert done.returncode == 1
        assert reason(done).startswith(str(tmp_path / place.split("/")[0]))


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_a_signal_to_stop_drains(tmp_path: Path, number: signal.Signals) -> None:
    blocks = chain(400, outputs=10)
    with running(tmp_path, batch={"max_delay_ms": 10}) as daemon, daemon.client() as client:
        client.send(*({"seq": n} | sent for n, sent in enumerate(blocks)))
        client.taken()
        daemon.process.send_signal(number)
        answers = client.rest()
        assert daemon.wait() == 0
        assert statuses(answers) == ["applied"] * 400
        assert daemon.events()[-1] == "stopped"
        assert [line["signal"] for line in daemon.log_lines() if line["event"] == "stopping"] == [number.name]
        daemon.start()
        with daemon.client() as again:
            assert again.hello()["tip"] == point(blocks[-1])
        assert daemon.export() == expected(blocks)


def test_sigterm_does_not_wait_for_clients_that_do_not_read(daemon: Daemon) -> None:
    with daemon.client("json") as idle, daemon.client("frames") as half, daemon.client("json") as deaf:
        idle.hello()
        half.raw(b"\0\0\1\0only a part")
        deaf.raw(b'{"type":"Hello"}\n' * 3000)  # and never reads
        sleep(0.1)
        began = monotonic()
        assert daemon.term() == 0
        assert monotonic() - began < 5
        assert idle.receive() is None and half.receive() is None


def test_a_store_of_another_format_is_refused(tmp_path: Path) -> None:
    with running(tmp_path) as daemon:
        daemon.term()
        with lmdb.open(str(tmp_path / "data" / "lmdb"), max_dbs=20) as env, env.begin(write=True) as txn:
            txn.put(b"format", (99).to_bytes(4, "big"), db=env.open_db(b"utxo_meta", txn))
        for command in ("run", "status", "verify", "export", "prune", "reindex"):
            done = daemon.run(command)
            assert done.returncode == 3, (command, done.stderr)
            assert b"written in format 99" in done.stderr and b"Traceback" not in done.stderr


def test_a_file_that_is_no_store_is_refused(tmp_path: Path) -> None:
    with home(tmp_path) as daemon:
        folder = tmp_path / "data" / "lmdb"
        folder.mkdir(parents=True)
        (folder / "data.mdb").write_bytes(b"nonsense" * 4096)
        done = daemon.run("run")
        assert done.returncode == 3
        assert b"this is not a store" in done.stderr and b"Traceback" not in done.stderr


@pytest.mark.parametrize(("kind", "other"), [("classic", "mmr"), ("mmr", "classic")])
def test_a_store_of_another_kind_is_refused(kind: str, other: str, tmp_path: Path) -> None:
    with running(tmp_path, utxo={"store": kind}) as daemon:
        daemon.term()
        daemon.configure(utxo={"store": other})
        done = daemon.run("run")
        assert done.returncode == 3
        why = f'this is a {kind} store, the configuration says utxo.store = "{other}": set it to "{kind}"'
        assert why in reason(done)
        daemon.configure(utxo={"store": kind})
        daemon.start()
        daemon.assert_sound()


def test_a_full_store_refuses_blocks_and_continues(tmp_path: Path) -> None:
    tables: Message = {"storage": {"map_size": "1MiB", "max_map_size": "1MiB"}}
    variables = {"NOTIFY_SOCKET": str(tmp_path / "nobody"), "WATCHDOG_USEC": "20000"}
    with running(tmp_path, variables, **tables) as daemon, daemon.client() as client:
        applied: list[Message] = []
        refused = block(None)
        for size in (300, 30, 3, 1):  # until not even the smallest fits
            while True:
                parent = applied[-1] if applied else None
                refused = block(parent, tx(len(applied), *(output(n, 1) for n in range(size))))
                answer = client.ask(refused)
                if answer["type"] == "Error":
                    break
                applied.append(refused)
            error(answer, "store_full")
        assert applied
        assert client.hello()["tip"] == point(applied[-1])
        sleep(0.3)  # the watchdog looks at the disk meanwhile
        assert daemon.alive(), daemon.tail()
        ack(client.ask(back_to(applied[-1])), "noop", point(applied[-1]))
        assert daemon.export() == expected(applied)
        daemon.term()
        daemon.configure(storage={"map_size": "1MiB", "max_map_size": "64MiB"})
        daemon.start()
        with daemon.client() as again:
            ack(again.ask(refused), "applied", point(refused))
        assert "map_grown" in daemon.events()
        daemon.assert_sound()


def test_a_rollback_before_a_refused_block_stays_committed(tmp_path: Path) -> None:
    tables: Message = {"storage": {"map_size": "1MiB", "max_map_size": "1MiB"}, "batch": {"max_delay_ms": 10_000}}
    blocks = chain(3)
    large = block(blocks[0], tx("large", *(output(n) for n in range(20_000))), branch="large")
    with running(tmp_path, **tables) as daemon, daemon.client() as client:
        assert statuses(client.feed(blocks)) == ["applied"] * 3
        answers = client.feed([blocks[2], back_to(blocks[0]), large])
        assert statuses(answers) == ["duplicate", "rolled_back", "store_full"]
        assert client.hello()["tip"] == point(blocks[0])
        # all messages that share the commit are refused with it
        persisted: Message = {"type": "BlockPersisted", "height": 1}
        assert statuses(client.feed([large, persisted, chain(1, large)[0]])) == ["store_full"] * 3
        assert client.hello()["persisted_height"] is None
        assert statuses(client.feed(blocks[1:])) == ["applied"] * 2
        assert daemon.export() == expected(blocks)
        daemon.assert_sound()
