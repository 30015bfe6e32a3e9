"""Recovery inside the daemon, from outside: what is submitted gets a row, and the row follows the chain."""

from __future__ import annotations

import json
import re
import sqlite3
import sys
from collections.abc import Callable, Iterator
from contextlib import closing, contextmanager
from pathlib import Path
from typing import Any, cast
from urllib.parse import quote

import patience
from bitcoin_rpc_chain import FakeNode, Fault
from bitcoin_rpc_server import LOGIN, serving
from daemons import Client, Daemon, Message, home, running, statuses, utxod
from questions import Api, failure, running_api
from scenarios import at, back_to, block, chain, digest, output, tx
from test_metrics import scrape
from test_recovery_service import Explorer
from test_verify import apart

SOON = {"ttl": "200ms", "scan_interval": "200ms", "confirmations": 3, "lease_duration": "2s"}
FUNDS = tx("funds", *(output("ann", 10 + n) for n in range(8)))


def until(what: Callable[[], Any], wanted: Any) -> None:
    patience.until(what, lambda found: found == wanted)


def pay(name: str, n: int) -> Message:
    return tx(name, output(name), spends=[at("funds", n)])


def submit(client: Client, *transactions: Message) -> None:
    sent = [{"type": "TxSubmitted", "tx": each} for each in transactions]
    assert set(statuses(client.feed(sent))) == {"accepted"}


def output_of(daemon: Daemon, *words: str) -> Any:
    """Return the output of a command, once a daemon that has just started has created its tables."""
    done = patience.until(lambda: daemon.run("recovery", *words), lambda done: b"has no schema yet" not in done.stderr)
    assert done.returncode == 0, done.stderr.decode()
    return done.stdout.decode()


def rows(daemon: Daemon) -> dict[str, str]:
    """Return the status of every row, by the id's name."""
    listed = [json.loads(line) for line in output_of(daemon, "list", "--json").splitlines()]
    return {row["txid"]: row["status"] for row in listed}


def shown(daemon: Daemon, name: str) -> Any:
    return json.loads(output_of(daemon, "show", digest("tx", name).hex(), "--json"))


def status(daemon: Daemon, name: str) -> str | None:
    return rows(daemon).get(digest("tx", name).hex())


@contextmanager
def subscribed(daemon: Daemon) -> Iterator[Client]:
    with daemon.client() as listener:
        listener.ask({"type": "Subscribe", "events": ["TxStatusChanged"]})
        yield listener


def published(listener: Client, name: str, last: str) -> list[str]:
    """Return the statuses of a transaction up to one; a final one is published after its row is written."""
    found = list[str]()
    while found[-1:] != [last]:
        fact = listener.receive()
        assert fact is not None
        found += [fact["status"]] if fact["txid"] == digest("tx", name).hex() else []
    return found


def named(**expected: str) -> dict[str, str]:
    return {digest("tx", name).hex(): status for name, status in expected.items()}


def test_commands_read_the_tables_on_a_read_only_disk(tmp_path: Path) -> None:
    with home(tmp_path) as daemon:
        daemon.start()
        with daemon.client() as client:
            made = block(None, tx("a", output("ann")))
            assert statuses(client.feed([made])) == ["applied"]
            submitted = {"type": "TxSubmitted", "tx": tx("b", output("bob"), spends=[at("a")])}
            assert statuses(client.feed([submitted])) == ["accepted"]
        listed = ["recovery", "list", "--config", str(daemon.config)]
        until(lambda: digest("tx", "b").hex().encode() in utxod(*listed).stdout, True)
        assert daemon.term() == 0
        command = [sys.executable, "-m", "daemon.cli", *listed]
        done = apart(
            'mount --bind "$1" "$1"; mount -o remount,bind,ro "$1"; shift; exec "$@"', tmp_path / "data", *command
        )
        assert (done.returncode, done.stderr) == (0, b"")
        assert digest("tx", "b").hex() in done.stdout.decode()


def test_a_row_follows_its_transaction(folder: Path) -> None:
    with (
        running(folder, recovery=SOON, utxo={"rollback_window": 20}) as daemon,
        daemon.client() as client,
        subscribed(daemon) as listener,
        subscribed(daemon) as other,
    ):
        first = block(None, FUNDS)
        client.feed([first])
        submit(client, pay("mined", 0), pay("loses", 1), pay("waits", 2))
        until(lambda: rows(daemon), named(mined="pending", loses="pending", waits="pending"))
        second = block(first, pay("mined", 0), tx("wins", output("bob"), spends=[at("funds", 1)]))
        client.feed([second])
        until(lambda: rows(daemon), named(mined="pending", loses="deleted", waits="pending"))
        assert published(other, "loses", "deleted") == ["pending", "conflicting", "deleted"]
        more = chain(2, second)
        client.feed(more)
        until(lambda: rows(daemon), named(mined="confirmed", loses="deleted", waits="pending"))
        assert published(listener, "mined", "confirmed") == ["pending", "mined", "confirmed"]
        client.feed([back_to(first)])
        until(lambda: status(daemon, "mined"), "pending")
        client.feed([second, *more])
        until(lambda: status(daemon, "mined"), "confirmed")
        assert published(listener, "mined", "confirmed") == ["pending", "mined", "confirmed"]
        assert status(daemon, "waits") == "pending"
        assert daemon.term() == 0
        assert "recovery_stopped" in daemon.events()


def test_operators_replay_discard_and_reopen(folder: Path) -> None:
    with running(folder, recovery={"ttl": "1h", "scan_interval": "300ms"}) as daemon:
        with daemon.client() as client:
            client.feed([block(None, FUNDS)])
            submit(client, pay("waits", 0))
        txid = digest("tx", "waits").hex()
        until(lambda: rows(daemon), {txid: "pending"})
        assert daemon.run("recovery", "replay", txid).returncode == 1  # it is neither dead nor an orphan
        assert txid in output_of(daemon, "discard", txid, "--reason", "not needed")
        row = shown(daemon, "waits")
        assert (row["status"], row["message"], row["history"]) == ("deleted", "not needed", [])
        until(lambda: "discarded_withdrawn" in daemon.events(), True)
        with daemon.client() as client:
            submit(client, pay("later", 1))
        later = digest("tx", "later").hex()
        until(lambda: rows(daemon), {txid: "deleted", later: "pending"})  # so that it was withdrawn was read
        assert txid in output_of(daemon, "reopen", txid)
        assert shown(daemon, "waits")["reopened"] == 2
        until(lambda: "no source has the transaction" in output_of(daemon, "show", txid), True)  # looked at, again
        assert txid in output_of(daemon, "discard", txid) and later in output_of(daemon, "discard", later)
        assert later in output_of(daemon, "reopen", later)
        counts = json.loads(output_of(daemon, "status", "--json"))
        assert counts["by_status"]["deleted"] == 1
        assert daemon.run("recovery", "show", "00" * 32).returncode == 1
        assert daemon.run("recovery", "show", "nonsense").returncode == 2


def test_a_node_is_queried_too_and_its_circuit_is_reported(folder: Path) -> None:
    """What the node has deep enough is confirmed. While it is away no attempt is counted."""
    there = Explorer()
    there.mined[digest("tx", "ahead").hex()] = 95
    with serving(cast("FakeNode", there)) as server:
        url = f"http://{quote(LOGIN, safe=':')}@127.0.0.1:{server.port}"
        wish = SOON | {"node_url": url, "retry_base": "50ms", "retry_cap": "50ms"}
        with running_api(folder, recovery=wish) as api, subscribed(api.daemon) as listener:
            api.feed(block(None, FUNDS), {"type": "TxSubmitted", "tx": pay("ahead", 0)})
            until(lambda: rows(api.daemon), named(ahead="confirmed"))
            assert shown(api.daemon, "ahead")["message"] == "mined at height 95"
            assert published(listener, "ahead", "confirmed") == ["pending", "confirmed"]
            until(lambda: scrape(api.daemon).get("utxod_recovery_settled_total{status=confirmed}"), 1)
            numbers = scrape(api.daemon)
            assert numbers["utxod_recovery_outcomes_total{outcome=valid}"] == 1
            assert numbers["utxod_recovery_leader"] == 1 <= numbers["utxod_recovery_claims_total"]
            assert node_circuit(api) == "closed"
            there.says = Fault(-28, "Loading block index")
            with closing(sqlite3.connect(folder / "data" / "recovery.db")) as connection, connection:
                connection.execute(
                    "INSERT INTO recovery_tx (txid, status, submitted_at, created_at, updated_at, next_attempt_at)"
                    " VALUES (?, 'pending', 0, 0, 0, 0)",
                    (digest("tx", "unknown"),),
                )
            until(lambda: node_circuit(api), "open")
            row = shown(api.daemon, "unknown")
            assert (row["status"], row["attempts"], row["history"]) == ("pending", 0, [])
            assert "Loading block index" in row["last_error"] or "not queried for some time" in row["last_error"]
            there.says = None
            until(lambda: node_circuit(api), "closed")


def node_circuit(api: Api) -> str:
    """Return the metrics of the node's circuit breaker."""
    found = re.compile(r"utxod_recovery_circuit\{.*source=node.*\}")
    (state,) = [name for name, value in scrape(api.daemon).items() if value and found.fullmatch(name)]
    return str(re.findall("state=(\\w+)", state)[0])


def test_what_is_discarded_claims_nothing(folder: Path) -> None:
    """Its inputs can be spent, its descendants are discarded too, and the cause is published. A frozen one stays."""
    shared = {"ttl": "1h", "scan_interval": "200ms"}
    with running(folder, recovery=shared) as daemon, daemon.client() as client:
        client.feed([block(None, FUNDS)])
        child = tx("child", output("child"), spends=[at("stuck")])
        submit(client, pay("stuck", 0), child, pay("other", 1))
        until(lambda: rows(daemon), named(stuck="pending", child="pending", other="pending"))
        rival = {"type": "TxSubmitted", "tx": tx("rival", output("rival"), spends=[at("funds", 0)])}
        assert client.ask(rival)["type"] == "Error"
        with subscribed(daemon) as listener:
            output_of(daemon, "discard", digest("tx", "stuck").hex())
            received = [listener.receive() for _ in range(2)]
        reported = [(fact["txid"], fact["cause"]) for fact in received if fact is not None]
        withdrawn = {"type": "withdrawn", "reason": "operator"}
        assert reported == [(digest("tx", name).hex(), withdrawn) for name in ("stuck", "child")]
        until(lambda: rows(daemon), named(stuck="deleted", other="pending"))
        assert client.ask(rival)["status"] == "accepted"
        until(lambda: rows(daemon), named(stuck="deleted", other="pending", rival="pending"))
        output_of(daemon, "discard", digest("tx", "rival").hex())
        daemon.kill()  # whether it was withdrawn or not
        daemon.start()
        until(lambda: status(daemon, "rival"), "deleted")
    with running(folder, recovery=shared) as daemon, daemon.client() as client:
        until(lambda: client.ask({"type": "TxSubmitted", "tx": pay("third", 0)}).get("status"), "accepted")
        assert client.ask({"type": "OutputsFrozen", "outpoints": [at("other")]})["status"] == "accepted"
        output_of(daemon, "discard", digest("tx", "other").hex())
        until(lambda: "discard_refused" in daemon.events(), True)
        assert client.ask({"type": "TxSubmitted", "tx": pay("late", 1)})["type"] == "Error"
        assert daemon.term() == 0
        daemon.assert_sound()


def test_a_held_transaction_that_no_other_source_has_becomes_an_orphan(folder: Path) -> None:
    with (
        running(folder, recovery=SOON | {"not_found_grace_period": "2s"}) as daemon,
        daemon.client() as client,
        subscribed(daemon) as listener,
    ):
        client.hello(network_tip={"height": 1})
        first = block(None, FUNDS)
        client.feed([first])
        submit(client, pay("unknown", 0))
        until(lambda: rows(daemon), named(unknown="orphan"))
        row = shown(daemon, "unknown")
        assert row["message"] == "it never reached the chain" and row["not_found"] >= 3
        assert published(listener, "unknown", "orphan") == ["pending", "orphan"]
        second = block(first, pay("unknown", 0))
        client.feed([second])
        until(lambda: status(daemon, "unknown"), "pending")
        client.feed(chain(2, second))
        until(lambda: status(daemon, "unknown"), "confirmed")
        assert published(listener, "unknown", "confirmed") == ["mined", "confirmed"]


def test_pending_transactions_over_http(folder: Path) -> None:
    with running_api(folder, recovery={"ttl": "1h"}) as api:
        api.feed(block(None, FUNDS), *({"type": "TxSubmitted", "tx": pay(f"tx {n}", n)} for n in range(5)))
        until(lambda: len(rows(api.daemon)), 5)
        path = "/api/v1/recovery/transactions"
        whole = api.get(path)
        assert {row["txid"]: row["status"] for row in whole} == rows(api.daemon)
        assert api.web.pages(path, 2) == [whole[:2], whole[2:4], whole[4:]]
        assert api.get(f"{path}?order=desc") == whole[::-1]
        assert api.get(f"{path}?count=2&page=3") == whole[4:] and api.get(f"{path}?status=dead") == []
        cursor = api.ask(f"{path}?status=pending&count=2").headers["x-next-cursor"]
        assert api.get(f"{path}?status=pending&count=2&cursor={cursor}") == whole[2:4]
        for wrong in ("status=lost", "status=dead&status=dead", f"status=dead&cursor={cursor}", "cursor=x", "asset=00"):
            assert api.ask(f"{path}?{wrong}").status_code == 400, wrong
        txid = digest("tx", "tx 3").hex()
        assert api.daemon.run("recovery", "discard", txid).returncode == 0
        row = api.get(f"{path}/{txid}")
        assert (row["status"], row["message"], row["history"]) == ("deleted", "discarded by an operator", [])
        assert api.ask(f"{path}/{'00' * 32}").status_code == 404
        assert api.ask(f"{path}/nonsense").status_code == 400


def test_a_daemon_without_the_recovery_service(folder: Path) -> None:
    with running_api(folder, recovery={"enabled": False}) as api:
        api.feed(block(None, FUNDS), {"type": "TxSubmitted", "tx": pay("waits", 0)})
        failure(api.ask("/api/v1/recovery/transactions"), 503, "not_enabled")
        assert not (folder / "data" / "recovery.db").exists()
        assert api.daemon.run("recovery", "list").returncode == 1
