"""HTTP as processes: where it listens, who may ask, its readiness, and how its workers start and end."""

from __future__ import annotations

import socket
import stat
from contextlib import suppress
from pathlib import Path
from time import monotonic, sleep
from typing import Any

import pytest
from daemons import PATIENCE_S, Daemon, home, running, write_config
from patience import until
from questions import TIP, Api, Web, failure, free_port, serve_alone, short_folder
from reader_processes import children
from scenarios import address, block, chain, digest, output, point, tx
from test_http import documented

from daemon.http.supervisor import Reminder

TOKEN = "a long random text"
CHAIN = chain(3)


def removed(*pids: int) -> bool:
    for pid in pids:
        with suppress(OSError):
            if "State:\tZ" not in Path(f"/proc/{pid}/status").read_text():
                return False
    return True


def http(port: int, workers: int = 1) -> dict[str, Any]:
    return {"listen": f"127.0.0.1:{port}", "workers": workers}


def test_a_unix_socket_is_created_again_and_removed_with_the_daemon(api: Api, folder: Path) -> None:
    path = folder / "http"
    for count in range(2):
        assert api.get("/health/live")["status"] == "live"
        mode = path.stat().st_mode
        assert stat.S_ISSOCK(mode) and stat.S_IMODE(mode) == 0o660
        assert api.daemon.events().count("http_socket_gone") == count
        assert len(children(api.daemon.process.pid)) == 1
        if count < 1:
            path.unlink()
            until(path.exists, why="it is not made again")
    api.daemon.kill()
    assert path.exists()
    api.daemon.start()
    with Web(path) as again:
        assert again.get("/health/live")["status"] == "live"
    assert api.daemon.term() == 0
    assert not path.exists()


def test_a_unix_socket_of_another_process_in_its_place_is_not_removed(api: Api, folder: Path) -> None:
    with socket.socket(socket.AF_UNIX) as other:
        api.get("/health/live")
        (folder / "http").unlink()
        other.bind(str(folder / "http"))
        other.listen()
        until(lambda: "http_listen_failed" in api.daemon.events(), why="it has not noticed")
        assert api.daemon.term() == 0
        assert (folder / "http").exists()


def test_a_unix_socket_on_which_another_process_listens_is_not_replaced(api: Api, folder: Path) -> None:
    with serve_alone(api.daemon):
        log = folder / "serve.log"
        until(lambda: "http_listen_failed" in log.read_text(), why="it has not said that the address is taken")
        assert "another process listens there" in log.read_text()
        mine = children(api.daemon.process.pid)
        assert api.get("/health/live")["status"] == "live" and len(mine) == 1
        assert api.daemon.term() == 0
        until(lambda: '"serving"' in log.read_text(), why="it has not taken over")
        with Web(folder / "http") as other:
            assert other.get("/health/live")["status"] == "live"


def test_the_chain_is_followed_while_the_port_is_taken(tmp_path: Path) -> None:
    port = free_port()
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", port))
        taken.listen()
        with running(tmp_path, http=http(port)) as daemon, Web(port) as web:
            until(lambda: "http_listen_failed" in daemon.events(), why="it has not said that the address is taken")
            with daemon.client() as client:
                assert client.ask(CHAIN[0])["status"] == "applied"
            sleep(0.4)  # it tries again, and logs nothing new
            taken.close()
            assert web.get("/api/v1/tip") == point(CHAIN[0])
            assert [event for event in daemon.events() if event in {"http_listen_failed", "serving"}] == [
                "http_listen_failed",
                "serving",
            ]


def test_a_failure_that_lasts_is_logged_less_and_less_often() -> None:
    now = 1000.0
    reminder = Reminder(lambda: now)
    reported: list[float] = []
    while now < 1000 + 3600:
        if reminder.due("taken"):
            reported.append(now - 1000)
        now += 15
    assert reported == [0, 30, 90, 210, 450, 930, 1530, 2130, 2730, 3330]
    assert reminder.due("not ours") and not reminder.due("not ours")  # another reason is news
    assert reminder.due("taken")


@pytest.mark.configured(http={"token": TOKEN})
def test_a_token_is_required(api: Api) -> None:
    closed = [path for path in documented("/health", "/docs") if path != "/"] + ["/nothing"]
    api.feed(CHAIN[0])
    wrong = ("", f"Bearer {TOKEN}x", f"Bearer {TOKEN[:-1]}", TOKEN, f"Basic {TOKEN}", "Bearer")
    for n, path in enumerate(closed * 2):
        for printed in wrong[n % 3 :: 3]:
            answer = api.ask(path, **({"Authorization": printed} if printed else {}))
            failure(answer, 401, "unauthorized")
            assert answer.headers["www-authenticate"] == "Bearer" and answer.headers["cache-control"] == "no-store"
            assert not set(TIP) & set(answer.headers)  # a stranger learns nothing
    for path in ("/health/live", "/docs", "/"):
        assert api.ask(path).status_code == 200
    shown = {"Authorization": f"Bearer {TOKEN}"}
    assert api.get("/api/v1/tip", **shown) == point(CHAIN[0])
    failure(api.ask("/nothing", **shown), 404, "unknown_path")
    assert api.ask("/health/ready").status_code in (200, 503)
    assert TOKEN not in api.daemon.log_text()
    counted = 'utxod_query_seconds_count{route="unmatched",status="401"}'
    until(lambda: counted in api.ask("/metrics", **shown).text, why="it is not counted")


@pytest.mark.configured(http={"token": TOKEN}, utxo={"enabled": False})
def test_a_daemon_without_a_store_requires_its_token_too(api: Api) -> None:
    failure(api.ask("/api/v1/tip"), 401, "unauthorized")
    failure(api.ask("/api/v1/tip", Authorization=f"Bearer {TOKEN}"), 503, "not_enabled")


def ready(web: Web) -> tuple[int, dict[str, Any]]:
    answer = web.ask("/health/ready")
    content = answer.json()
    assert set(content) == {"status", "reason", "seconds_since_last_block", "lag_blocks", "store_id"}
    assert answer.headers["content-type"] == "application/json"
    return answer.status_code, content


def becomes(web: Web, status: int, word: str) -> dict[str, Any]:
    """Wait for this state; return the other fields of the answer."""
    until(lambda: ready(web)[1]["status"] == word, why=f"it is not {word}")
    code, content = ready(web)
    assert (code, content["status"]) == (status, word)
    return content


def test_ready_reports_whether_answers_are_fresh(api: Api) -> None:
    with api.daemon.client() as feeder:
        empty = becomes(api.web, 503, "empty")
        assert empty["seconds_since_last_block"] is None and empty["lag_blocks"] is None
        assert "no block" in empty["reason"]
        feeder.feed(CHAIN[:2])
        until(lambda: ready(api.web)[1]["seconds_since_last_block"] is not None, why="it has not heard of the block")
        found = becomes(api.web, 200, "ready")
        assert 0 <= found["seconds_since_last_block"] < PATIENCE_S and found["lag_blocks"] is None
        feeder.hello(network_tip={"height": 12})
        until(lambda: ready(api.web)[1]["lag_blocks"] == 10, why="it has not heard of the network's tip")
        assert ready(api.web)[0] == 200  # ten blocks behind is not far
        feeder.hello(network_tip={"height": 13})
        assert becomes(api.web, 503, "behind")["lag_blocks"] == 11
        assert api.get("/api/v1/status")["chain"]["lag_blocks"] == 11
        feeder.feed(CHAIN[2:])
        assert becomes(api.web, 200, "ready")["lag_blocks"] == 10
        assert api.get("/health/live")["status"] == "live"


def test_a_worker_answers_without_its_daemon_and_reports_it() -> None:
    with short_folder() as folder, home(folder, http={"listen": f"unix:{folder}/http", "workers": 0}) as daemon:
        daemon.start()
        with daemon.client() as feeder:
            feeder.feed(CHAIN)
        with serve_alone(daemon), Web(folder / "http") as web:
            becomes(web, 200, "ready")
            daemon.kill()
            found = becomes(web, 503, "daemon_away")
            assert found["seconds_since_last_block"] is not None
            live = web.ask("/health/live")
            assert (live.status_code, live.json()["status"]) == (200, "live")
            assert web.get("/api/v1/tip") == point(CHAIN[-1])
            daemon.start()
            becomes(web, 200, "ready")


def sockets(pid: int) -> int:
    links = []
    for each in Path(f"/proc/{pid}/fd").iterdir():
        with suppress(OSError):
            links.append(str(each.readlink()))
    return sum(link.startswith("socket:") for link in links)


def test_serve_alone_with_two_workers_that_share_the_connections(tmp_path: Path) -> None:
    port = free_port()
    with home(tmp_path, http=http(port, workers=0)) as daemon:
        daemon.start()
        with daemon.client() as feeder:
            feeder.feed(CHAIN)
        assert daemon.term() == 0
        with serve_alone(daemon, "--workers", "2") as process, Web(port) as web:
            assert web.get("/api/v1/tip") == point(CHAIN[-1])
            until(lambda: len(children(process.pid)) == 2, why="there are not two workers")
            pids, inherited = children(process.pid), 3
            until(lambda: min(map(sockets, pids)) > inherited, why="one of them does not listen")
            held = [socket.create_connection(("127.0.0.1", port)) for _ in range(60)]
            for each in held:
                each.sendall(b"GET /health/live HTTP/1.1\r\nHost: localhost\r\n\r\n")
            assert all(each.recv(1 << 16).startswith(b"HTTP/1.1 200") for each in held)
            assert min(map(sockets, pids)) > 5
            for each in held:
                each.close()
            process.terminate()
            assert process.wait(PATIENCE_S) == 0
            assert removed(*pids)


def test_serve_without_a_store_reports_what_is_wrong(tmp_path: Path) -> None:
    port = free_port()
    write_config(tmp_path, {"http": http(port)})
    daemon = Daemon(tmp_path, {})
    with serve_alone(daemon):
        until(lambda: "there is no store here" in (tmp_path / "serve.log").read_text(), why="it does not say")
        until(lambda: "http_worker_ended" in (tmp_path / "serve.log").read_text(), why="it does not say")


def test_a_stopped_daemon_frees_the_port_and_ends_its_workers(tmp_path: Path) -> None:
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
            assert len(workers) == 2 and removed(*workers)
            with socket.socket() as free:
                free.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
                free.bind(("127.0.0.1", port))
        assert daemon.events()[-1] == "stopped"


def test_workers_end_with_a_killed_daemon_and_the_next_one_serves_at_once(tmp_path: Path) -> None:
    port = free_port()
    with home(tmp_path, http=http(port)) as daemon:
        for height in range(2):
            daemon.start()
            with daemon.client() as client:
                client.feed(CHAIN[height : height + 1])
            with Web(port) as web:
                assert web.get("/api/v1/tip") == point(CHAIN[height])
            workers = children(daemon.process.pid)
            daemon.kill()
            until(lambda workers=workers: removed(*workers), why="a worker outlives its daemon", within_s=2)  # type: ignore[misc]
        assert "http_listen_failed" not in daemon.events()


@pytest.mark.parametrize("after_s", [0, 0.15])
def test_a_daemon_that_is_killed_early_leaves_no_worker_behind(tmp_path: Path, after_s: float) -> None:
    """The worker may not have set yet that it ends with its parent."""
    with home(tmp_path, http=http(free_port())) as daemon:
        daemon.spawn()
        until(lambda: children(daemon.process.pid), why="no worker was started")
        sleep(after_s)
        workers = children(daemon.process.pid)
        daemon.kill()
        until(lambda: removed(*workers), why="a worker outlives its daemon", within_s=5)


@pytest.mark.configured(storage={"map_size": "1MiB", "max_map_size": "256MiB"})
def test_a_worker_follows_a_map_that_grows(api: Api) -> None:
    ann = f"/api/v1/addresses/{address('ann').hex()}/utxos"
    parent = block(None, tx("first", output("ann", 7)))
    api.feed(parent)
    assert len(api.get(ann)) == 1
    for number in range(4):
        many = [output(f"{number}/{n}", 1, inline_datum=digest(number, n) * 8) for n in range(2000)]
        parent = block(parent, tx(number, *many))
        api.feed(parent)
        assert api.get("/api/v1/tip") == point(parent)
        assert [each["lovelace_amount"] for each in api.get(ann)] == [7]
    assert "map_grown" in api.daemon.events()
