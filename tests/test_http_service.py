"""HTTP as processes: where it listens, who may ask, how well it is, and how its workers come and go."""

from __future__ import annotations

import os
import signal
import socket
import stat
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from time import monotonic, sleep
from typing import Any

import httpx
import pytest
from daemons import PATIENCE_S, Daemon, background, home, running, write_config
from patience import until
from questions import TIP, Web, asked, failure, free_port, short_folder
from scenarios import address, block, chain, digest, output, point, tx

from daemon.http.supervisor import Reminder

TOKEN = "a long random text"
STORY = chain(3)


def children(pid: int) -> set[int]:
    """Return the processes that a process has started and that live."""
    found = set[int]()
    for folder in Path("/proc").iterdir():
        with suppress(OSError, ValueError):
            _, _, rest = (folder / "stat").read_text().rpartition(")")
            state, parent = rest.split()[:2]
            if int(parent) == pid and state != "Z":
                found.add(int(folder.name))
    return found


def gone(*pids: int) -> bool:
    for pid in pids:
        try:
            if "State:\tZ" not in Path(f"/proc/{pid}/status").read_text():
                return False
        except OSError:
            continue
    return True


def http(port: int, workers: int = 1, **more: Any) -> dict[str, Any]:
    return {"listen": f"127.0.0.1:{port}", "workers": workers} | more


def listens(port: int) -> bool:
    with socket.socket() as knock:
        return knock.connect_ex(("127.0.0.1", port)) == 0


@contextmanager
def serving(daemon: Daemon, *arguments: str) -> Iterator[subprocess.Popen[bytes]]:
    """Run `utxod serve` beside a daemon, or without one."""
    process = background(daemon.folder / "serve.log", "serve", "--config", daemon.config, *arguments)
    try:
        yield process
    finally:
        process.terminate()
        process.wait(PATIENCE_S)


# --- where it listens ----------------------------------------------------------------------------------------------


def test_on_a_port(tmp_path: Path) -> None:
    port = free_port()
    with running(tmp_path, http=http(port)), Web(port) as web:
        assert web.get("/health/live")["status"] == "live"


def test_on_an_address_of_version_6(tmp_path: Path) -> None:
    port = free_port()
    try:
        with socket.socket(socket.AF_INET6) as knock:
            knock.bind(("::1", port))
    except OSError:
        pytest.skip("no IPv6 here")
    with running(tmp_path, http={"listen": f"[::1]:{port}", "workers": 1}), httpx.Client() as client:
        until(lambda: _status(client, f"http://[::1]:{port}/health/live") == 200, why="nobody answers")


def _status(client: httpx.Client, url: str) -> int:
    try:
        return client.get(url).status_code
    except httpx.TransportError:
        return 0


def test_on_a_unix_socket_that_goes_with_the_daemon() -> None:
    with short_folder() as folder, asked(folder) as asking:
        assert asking.get("/health/live")["status"] == "live"
        mode = (folder / "http").stat().st_mode
        assert stat.S_ISSOCK(mode) and stat.S_IMODE(mode) == 0o660
        assert asking.daemon.term() == 0
        assert not (folder / "http").exists()


def test_a_unix_socket_left_behind_is_replaced() -> None:
    with short_folder() as folder, asked(folder) as asking:
        asking.get("/health/live")
        asking.daemon.kill()
        assert (folder / "http").exists()
        asking.daemon.start()
        with Web(folder / "http") as again:
            assert again.get("/health/live")["status"] == "live"


def test_a_unix_socket_that_is_removed_is_made_again() -> None:
    with short_folder() as folder, asked(folder) as asking:
        asking.get("/health/live")
        for _ in range(2):
            (folder / "http").unlink()
            until(lambda: (folder / "http").exists(), why="it is not made again")
            assert stat.S_IMODE((folder / "http").stat().st_mode) == 0o660
            with Web(folder / "http") as again:
                assert again.get("/health/live")["status"] == "live"
        assert asking.daemon.events().count("http_socket_gone") == 2
        assert len(children(asking.daemon.process.pid)) == 1


def test_a_unix_socket_of_another_process_in_its_place_is_left_alone() -> None:
    with short_folder() as folder, asked(folder) as asking, socket.socket(socket.AF_UNIX) as other:
        asking.get("/health/live")
        (folder / "http").unlink()
        other.bind(str(folder / "http"))
        other.listen()
        until(lambda: "http_listen_failed" in asking.daemon.events(), why="it has not noticed")
        assert asking.daemon.term() == 0
        assert (folder / "http").exists()


def test_a_unix_socket_that_somebody_listens_on_is_left_alone() -> None:
    with short_folder() as folder, asked(folder) as asking, serving(asking.daemon):
        log = folder / "serve.log"
        until(lambda: "http_listen_failed" in log.read_text(), why="it has not said that the address is taken")
        assert "another process listens there" in log.read_text()
        mine = children(asking.daemon.process.pid)
        assert asking.get("/health/live")["status"] == "live" and len(mine) == 1
        assert asking.daemon.term() == 0
        until(lambda: '"serving"' in log.read_text(), why="it has not taken over")
        with Web(folder / "http") as other:
            assert other.get("/health/live")["status"] == "live"


def test_without_workers_nobody_listens(tmp_path: Path) -> None:
    port = free_port()
    with running(tmp_path, http=http(port, workers=0)) as daemon:
        assert not listens(port) and not children(daemon.process.pid)


def test_a_port_that_is_taken_is_waited_for_and_the_chain_goes_on(tmp_path: Path) -> None:
    port = free_port()
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", port))
        taken.listen()
        with running(tmp_path, http=http(port)) as daemon, Web(port) as web:
            until(lambda: "http_listen_failed" in daemon.events(), why="it has not said that the address is taken")
            with daemon.client() as client:
                assert client.ask(STORY[0])["status"] == "applied"
            sleep(2)  # it tries again, and says nothing new
            taken.close()
            assert web.get("/api/v1/tip") == point(STORY[0])
            assert [event for event in daemon.events() if event in {"http_listen_failed", "serving"}] == [
                "http_listen_failed",
                "serving",
            ]


def test_what_fails_for_long_is_told_seldom() -> None:
    """A reason at once, the same one at growing intervals of ten minutes at most."""
    now = 1000.0
    reminder = Reminder(lambda: now)
    told: list[float] = []
    while now < 1000 + 3600:
        if reminder.due("taken"):
            told.append(now - 1000)
        now += 15
    assert told == [0, 30, 90, 210, 450, 930, 1530, 2130, 2730, 3330]
    assert reminder.due("not ours") and not reminder.due("not ours")  # another reason is news
    assert reminder.due("taken")


# --- who may ask ---------------------------------------------------------------------------------------------------


def test_a_token_is_asked_for() -> None:
    closed = [
        "/api/v1/tip",
        "/api/v1/status",
        "/metrics",
        "/openapi.json",
        "/messages.json",
        "/nothing",
        "/api/v1/pruner/jobs",
    ]
    opened = ["/health/live", "/docs", "/"]
    with short_folder() as folder, asked(folder, http={"token": TOKEN}) as asking:
        asking.feed(STORY[0])
        for said in ("", f"Bearer {TOKEN}x", f"Bearer {TOKEN[:-1]}", TOKEN, f"Basic {TOKEN}", "Bearer"):
            for path in closed:
                answer = asking.ask(path, **({"Authorization": said} if said else {}))
                failure(answer, 401, "unauthorized")
                assert answer.headers["www-authenticate"] == "Bearer"
                assert not set(TIP) & set(answer.headers)  # a stranger learns nothing
        for path in opened:
            assert asking.ask(path).status_code == 200
        shown = {"Authorization": f"Bearer {TOKEN}"}
        assert asking.get("/api/v1/tip", **shown) == point(STORY[0])
        failure(asking.ask("/nothing", **shown), 404, "unknown_path")
        assert asking.ask("/health/ready").status_code in (200, 503)
        assert TOKEN not in asking.daemon.log_text()


def test_a_daemon_without_a_store_asks_for_its_token_too() -> None:
    with short_folder() as folder, asked(folder, http={"token": TOKEN}, utxo={"enabled": False}) as asking:
        failure(asking.ask("/api/v1/tip"), 401, "unauthorized")
        failure(asking.ask("/api/v1/tip", Authorization=f"Bearer {TOKEN}"), 503, "not_enabled")


# --- how well it is ------------------------------------------------------------------------------------------------


def ready(web: Web) -> tuple[int, dict[str, Any]]:
    answer = web.ask("/health/ready")
    content = answer.json()
    assert set(content) == {"status", "reason", "seconds_since_last_block", "lag_blocks", "store_id"}
    assert answer.headers["content-type"] == "application/json"
    return answer.status_code, content


def becomes(web: Web, status: int, word: str) -> dict[str, Any]:
    """Wait until it is so; return what else it says."""
    until(lambda: ready(web)[1]["status"] == word, why=f"it is not {word}")
    code, content = ready(web)
    assert (code, content["status"]) == (status, word)
    return content


def test_ready_says_whether_answers_are_fresh() -> None:
    with short_folder() as folder, asked(folder) as asking, asking.daemon.client() as feeder:
        empty = becomes(asking.web, 503, "empty")
        assert empty["seconds_since_last_block"] is None and empty["lag_blocks"] is None
        assert "no block" in empty["reason"]
        feeder.feed(STORY[:2])
        until(lambda: ready(asking.web)[1]["seconds_since_last_block"] is not None, why="it has not heard of the block")
        found = becomes(asking.web, 200, "ready")
        assert 0 <= found["seconds_since_last_block"] < PATIENCE_S and found["lag_blocks"] is None
        feeder.hello(network_tip={"height": 12})
        until(lambda: ready(asking.web)[1]["lag_blocks"] == 10, why="it has not heard of the network's tip")
        assert ready(asking.web)[0] == 200  # ten blocks behind is not far
        feeder.hello(network_tip={"height": 13})
        assert becomes(asking.web, 503, "behind")["lag_blocks"] == 11
        assert asking.get("/api/v1/status")["chain"]["lag_blocks"] == 11
        feeder.feed(STORY[2:])
        assert becomes(asking.web, 200, "ready")["lag_blocks"] == 10
        assert asking.get("/health/live")["status"] == "live"


def test_a_worker_answers_without_its_daemon_and_says_so() -> None:
    with short_folder() as folder, home(folder, http={"listen": f"unix:{folder}/http", "workers": 0}) as daemon:
        daemon.start()
        with daemon.client() as feeder:
            feeder.feed(STORY)
        with serving(daemon), Web(folder / "http") as web:
            becomes(web, 200, "ready")
            daemon.kill()
            found = becomes(web, 503, "daemon_away")
            assert found["seconds_since_last_block"] is not None
            live = web.ask("/health/live")
            assert (live.status_code, live.json()["status"]) == (200, "live")
            assert web.get("/api/v1/tip") == point(STORY[-1])
            daemon.start()
            becomes(web, 200, "ready")


# --- workers -------------------------------------------------------------------------------------------------------


def test_serve_alone_with_two_workers() -> None:
    with short_folder() as folder, home(folder, http={"listen": f"unix:{folder}/http", "workers": 0}) as daemon:
        daemon.start()
        with daemon.client() as feeder:
            feeder.feed(STORY)
        assert daemon.term() == 0
        with serving(daemon, "--workers", "2") as process, Web(folder / "http") as web:
            assert web.get("/api/v1/tip") == point(STORY[-1])
            until(lambda: len(children(process.pid)) == 2, why="there are not two workers")
            pids = children(process.pid)
            process.terminate()
            assert process.wait(PATIENCE_S) == 0
            assert gone(*pids) and not (folder / "http").exists()


def test_serve_without_a_store_says_what_is_wrong(tmp_path: Path) -> None:
    port = free_port()
    write_config(tmp_path, {"http": http(port)})
    daemon = Daemon(tmp_path, {})
    with serving(daemon):
        until(lambda: "there is no store here" in (tmp_path / "serve.log").read_text(), why="it does not say")
        until(lambda: "http_worker_ended" in (tmp_path / "serve.log").read_text(), why="it does not say")


def test_a_worker_that_is_killed_comes_back(tmp_path: Path) -> None:
    port = free_port()
    with running(tmp_path, http=http(port)) as daemon, Web(port) as web:
        assert web.ask("/health/live").status_code == 200
        [worker] = children(daemon.process.pid)
        os.kill(worker, signal.SIGKILL)
        until(lambda: gone(worker), why="it lives")
        with daemon.client() as client:
            assert client.ask(STORY[0])["status"] == "applied"
        assert web.get("/api/v1/tip") == point(STORY[0])
        assert children(daemon.process.pid) - {worker}
        [line] = [line for line in daemon.log_lines() if line["event"] == "http_worker_ended"]
        assert (line["worker"], line["code"], line["level"]) == (0, -signal.SIGKILL, "error")


def test_two_workers_share_the_work(tmp_path: Path) -> None:
    """Many connections at once: each worker gets some."""
    port = free_port()
    with running(tmp_path, http=http(port, workers=2)) as daemon, Web(port) as web:
        web.get("/health/live")
        until(lambda: len(children(daemon.process.pid)) == 2, why="there are not two workers")
        inherited = 3
        until(lambda: min(map(_sockets, children(daemon.process.pid))) > inherited, why="one of them does not listen")
        socks = [socket.create_connection(("127.0.0.1", port)) for _ in range(60)]
        for sock in socks:
            sock.sendall(b"GET /health/live HTTP/1.1\r\nHost: localhost\r\n\r\n")
        for sock in socks:
            assert sock.recv(1 << 16).startswith(b"HTTP/1.1 200")
        held = [_sockets(pid) for pid in children(daemon.process.pid)]
        for sock in socks:
            sock.close()
        assert min(held) > 5, held


def _sockets(pid: int) -> int:
    links = []
    for each in Path(f"/proc/{pid}/fd").iterdir():
        with suppress(OSError):
            links.append(str(each.readlink()))
    return sum(link.startswith("socket:") for link in links)


def test_leaving_frees_the_port_and_takes_the_workers_along(tmp_path: Path) -> None:
    port = free_port()
    with home(tmp_path, http=http(port, workers=2)) as daemon:
        for _ in range(2):
            daemon.start()
            with Web(port) as web:
                web.get("/health/live")  # and keeps its connection
                workers = children(daemon.process.pid)
                began = monotonic()
                assert daemon.term() == 0
                assert monotonic() - began < 5
            assert len(workers) == 2 and gone(*workers)
            with socket.socket() as free:
                free.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
                free.bind(("127.0.0.1", port))
        assert daemon.events()[-1] == "stopped"


def test_a_killed_daemon_takes_its_workers_along_and_the_next_serves_at_once(tmp_path: Path) -> None:
    port = free_port()
    with home(tmp_path, http=http(port)) as daemon:
        for height in range(2):
            daemon.start()
            with daemon.client() as client:
                client.feed(STORY[height : height + 1])
            with Web(port) as web:
                assert web.get("/api/v1/tip") == point(STORY[height])
            workers = children(daemon.process.pid)
            daemon.kill()
            until(lambda workers=workers: gone(*workers), why="a worker outlives its daemon", within_s=2)  # type: ignore[misc]
        assert "http_listen_failed" not in daemon.events()


@pytest.mark.parametrize("after_s", [0, 0.05, 0.15, 0.3])
def test_a_daemon_that_is_killed_early_leaves_no_worker_behind(tmp_path: Path, after_s: float) -> None:
    """The worker may not have come to the line by which it leaves with its parent."""
    with home(tmp_path, http=http(free_port())) as daemon:
        daemon.spawn()
        until(lambda: children(daemon.process.pid), why="no worker was started")
        sleep(after_s)
        workers = children(daemon.process.pid)
        daemon.kill()
        until(lambda: gone(*workers), why="a worker outlives its daemon", within_s=5)


def test_a_worker_follows_a_map_that_grows() -> None:
    """The daemon doubles the map while the worker has the old one open."""
    ann = f"/api/v1/addresses/{address('ann').hex()}/utxos"
    storage = {"map_size": "1MiB", "max_map_size": "256MiB"}
    with short_folder() as folder, asked(folder, storage=storage) as asking:
        parent = block(None, tx("first", output("ann", 7)))
        asking.feed(parent)
        assert len(asking.get(ann)) == 1
        for number in range(4):
            many = [output(f"{number}/{n}", 1, inline_datum=digest(number, n) * 8) for n in range(2000)]
            parent = block(parent, tx(number, *many))
            asking.feed(parent)
            assert asking.get("/api/v1/tip") == point(parent)
            assert [each["lovelace_amount"] for each in asking.get(ann)] == [7]
        assert "map_grown" in asking.daemon.events()
