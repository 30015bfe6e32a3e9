"""Readiness: one rule, and what health, status, metrics and exit codes say when each of its conditions fails."""

from __future__ import annotations

import json
import socket
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from tempfile import TemporaryDirectory

import pytest
from daemons import Daemon, home, running
from patience import until
from questions import Web, free_port
from scenarios import back_to, chain

from daemon.http.daemon_link import DaemonLink
from handlers.events import ChainName, Welcome
from handlers.readiness import Readiness, blocks_behind, readiness

FRESH = {"daemon": True, "tip_height": 5, "lag_blocks": 0, "feeder_away_s": 0.0, "grace_s": 60.0}


@pytest.mark.parametrize(
    ("changes", "state"),
    [
        ({}, "ready"),
        ({"lag_blocks": None}, "ready"),
        ({"lag_blocks": 10}, "ready"),
        ({"lag_blocks": 11}, "behind"),
        ({"feeder_away_s": 60.0}, "ready"),
        ({"feeder_away_s": 60.1}, "no_feeder"),
        ({"feeder_away_s": None}, "no_feeder"),
        ({"tip_height": None, "feeder_away_s": 90.0}, "empty"),
        ({"daemon": False, "tip_height": None}, "daemon_away"),
        ({"tip_height": 0}, "ready"),
    ],
)
def test_readiness_names_the_first_condition_that_fails(changes: dict[str, object], state: str) -> None:
    found = readiness(**(FRESH | changes))  # type: ignore[arg-type]
    assert found.state == state
    assert (found.reason is None) == (found == Readiness("ready"))


def test_blocks_behind_are_unknown_without_a_feeder_and_never_negative() -> None:
    assert (blocks_behind(None, 5), blocks_behind(7, 5), blocks_behind(3, 5)) == (None, 2, 0)


def report(daemon: Daemon, code: int) -> dict[str, object]:
    """Return the output of `utxod status --json`; it exits with `code`."""
    done = daemon.run("status", "--json")
    assert done.returncode == code, done.stdout.decode()
    found: dict[str, object] = json.loads(done.stdout)
    return found


def handlers(found: dict[str, object]) -> dict[str, tuple[str, str]]:
    return {part["name"]: (part["state"], part["detail"]) for part in found["handlers"]}  # type: ignore[attr-defined]


@contextmanager
def answering(ready_grace: str) -> Iterator[tuple[Daemon, Web]]:
    """Yield a daemon with a worker, and a client that asks it."""
    with TemporaryDirectory(prefix="utxod-") as name:
        http = {"workers": 1, "listen": f"unix:{name}/http", "ready_grace": ready_grace}
        with running(Path(name), http=http) as daemon, Web(Path(name) / "http") as web:
            yield daemon, web


def test_readiness_ends_when_no_feeder_comes_back_within_the_grace_period() -> None:
    with answering("400ms") as (daemon, web):

        def health(word: str) -> dict[str, object]:
            until(lambda: web.ask("/health/ready").json()["status"] == word, why=f"it is not {word}")
            found: dict[str, object] = web.ask("/health/ready").json()
            return found

        with daemon.client() as feeder:
            feeder.hello(network_tip={"height": 3})
            feeder.feed(chain(3))
            assert health("ready")["lag_blocks"] == 0
            assert handlers(report(daemon, 0))["utxo"][0] == "ok"
        found = health("no_feeder")
        assert web.ask("/health/ready").status_code == 503
        assert found["lag_blocks"] is None and "no feeder" in str(found["reason"])
        assert web.get("/api/v1/status")["chain"]["lag_blocks"] is None
        state, detail = handlers(report(daemon, 0))["utxo"]
        assert state == "waiting" and "no feeder" in detail
        until(lambda: "utxod_ready 0.0" in web.ask("/metrics").text, why="the metric does not follow")
        assert "\nutxod_lag_blocks " not in web.ask("/metrics").text
        with daemon.client() as feeder:  # a feeder at the tip of a quiet chain has nothing to send
            feeder.hello(network_tip={"height": 3})
            assert health("ready")["reason"] is None
            until(lambda: "utxod_ready 1.0" in web.ask("/metrics").text, why="the metric does not follow")


def test_a_client_that_only_sends_hello_is_no_feeder() -> None:
    with TemporaryDirectory(prefix="utxod-") as name, running(Path(name), http={"ready_grace": "0s"}) as daemon:
        with daemon.client() as feeder:
            feeder.feed(chain(2))
        with daemon.client() as reader:
            reader.hello()
            until(lambda: reader.hello()["feeder_away_s"] > 0, why="the feeder has not gone")


def test_status_distinguishes_another_daemon_on_the_same_port() -> None:
    with TemporaryDirectory(prefix="utxod-") as one, TemporaryDirectory(prefix="utxod-") as other:
        http = {"workers": 1, "listen": f"unix:{one}/http"}
        with running(Path(one), http=http) as first, home(Path(other), http=http) as second:
            until(lambda: handlers(report_any(first))["http"][0] == "ok", why="its workers do not answer")
            second.configure(http={"workers": 0})
            second.start()
            second.configure(http=http)
            state, detail = handlers(report(second, 1))["http"]
            assert state == "away" and "another daemon" in detail
            second.term()
            found = report(second, 1)
            assert handlers(found)["http"][0] == "away" and handlers(found)["socket"][0] == "away"
            assert handlers(report(first, 0))["http"][0] == "ok"


def report_any(daemon: Daemon) -> dict[str, object]:
    """Return the status while the daemon still starts its workers."""
    found: dict[str, object] = json.loads(daemon.run("status", "--json").stdout)
    return found


def test_status_distinguishes_another_daemon_on_the_same_socket() -> None:
    folders = TemporaryDirectory(prefix="utxod-"), TemporaryDirectory(prefix="utxod-")
    with folders[0] as one, folders[1] as other, running(Path(one)) as first, home(Path(other)) as second:
        second.start()
        second.term()
        done = second.run("status", "--socket", str(first.socket))
        assert done.returncode == 1 and b"another daemon answers there" in done.stdout


def test_status_of_a_daemon_on_an_address_of_version_6(tmp_path: Path) -> None:
    if not socket.has_ipv6:
        pytest.skip("no IPv6 here")
    with running(tmp_path, http={"workers": 1, "listen": f"[::1]:{free_port()}"}) as daemon:
        until(lambda: handlers(report_any(daemon))["http"][0] == "ok", why="it is not found")


def test_status_counts_unmined_transactions_that_lost_a_conflict(tmp_path: Path) -> None:
    with running(tmp_path) as daemon, daemon.client() as client:
        first = chain(1)
        fork = chain(2, first[0], branch="a")
        client.feed([*first, *fork])
        client.ask(back_to(first[0]))
        found = report(daemon, 0)
        assert (found["unmined"], found["waiting"], found["conflicting"]) == (2, 2, 0)
        client.feed(chain(1, first[0], branch="b"))  # spends what a transaction of the other branch spent
        found = report(daemon, 0)
        assert (found["unmined"], found["waiting"], found["conflicting"]) == (2, 0, 2)
        assert "2 in no block (0 waiting, 2 conflicting)" in handlers(found)["transactions"][1]


def test_a_new_worker_has_the_age_of_the_last_block(tmp_path: Path) -> None:
    link = DaemonLink(tmp_path)
    welcome = Welcome(
        protocol=1,
        version="0",
        chain=ChainName("cardano", "mainnet"),
        tip=None,
        points=[],
        rollback_floor=None,
        persisted_height=None,
        seconds_since_last_block=100.0,
    )
    link.take(welcome)
    since = link.seconds_since_last_block()
    assert since is not None and since >= 100.0
