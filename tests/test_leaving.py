"""SIGTERM in the middle of each kind of work: the daemon ends in time, and keeps what it has acknowledged."""

from __future__ import annotations

import socket
from collections.abc import Callable
from contextlib import ExitStack
from typing import Any, NamedTuple

import pytest
from daemons import PATIENCE_S, Client, Daemon, Message, home, statuses
from patience import until
from questions import short_folder
from scenarios import back_to, block, chain, expected, output, point, tx

BLOCKS = chain(120, outputs=20)
BRANCH = chain(20, BLOCKS[9], branch="other")
LARGE = tx("large", *(output("ann") for _ in range(20_000)))


class Work(NamedTuple):
    before: list[Message]
    sent: list[Message]


def catching_up(client: Client, *_: Any) -> Work:
    return Work([], BLOCKS)


def rolling_back(client: Client, *_: Any) -> Work:
    return Work(BLOCKS, [back_to(BLOCKS[9]), *BRANCH])


def pruning(client: Client, *_: Any) -> Work:
    """Hundreds of steps are due at once: the node was not ready for a while."""
    client.ask({"type": "NodeState", "state": "catching_up", "height": 1})
    return Work(BLOCKS, [{"type": "NodeState", "state": "running", "height": 120}])


def creating(client: Client, *_: Any) -> Work:
    return Work(BLOCKS, [{"type": "TxSubmitted", "tx": LARGE}])


def asking_a_node(client: Client, daemon: Daemon, stack: ExitStack, node: socket.socket) -> Work:
    """The node accepts the connection and does not answer."""
    client.feed([block(None), {"type": "TxSubmitted", "tx": tx("asked", output("ann"))}])
    stack.enter_context(node.accept()[0])
    return Work([], [])


def answering(client: Client, daemon: Daemon, stack: ExitStack, _: socket.socket) -> Work:
    """One client reads none of its answers, one has not sent all of its request, one has asked nothing yet."""
    client.feed(BLOCKS)
    for request in (b"GET /api/v1/events HTTP/1.1\r\nHost: localhost\r\n\r\n" * 100, b"GET /health HT", b""):
        asking = stack.enter_context(socket.socket(socket.AF_UNIX))
        until(lambda asking=asking: asking.connect_ex(f"{daemon.folder}/http"), (0).__eq__)  # type: ignore[misc]
        asking.sendall(request)
    return Work([], [])


class Case(NamedTuple):
    begin: Callable[[Client, Daemon, ExitStack, socket.socket], Work]
    tables: dict[str, Any] = {}


ASKING = {"ttl": "100ms", "scan_interval": "100ms"}
CASES = {
    "a catch-up": Case(catching_up),
    "a rollback": Case(rolling_back),
    "pruning": Case(pruning, {"utxo": {"rollback_window": 2, "prune_depth": 2, "prune_batch_size": 1}}),
    "a large creation": Case(creating, {"transactions": {"batch_size": 100}}),
    "recovery": Case(asking_a_node, {"recovery": ASKING}),
    "answers over HTTP": Case(answering),
}


@pytest.mark.parametrize("name", CASES)
def test_sigterm_during(name: str) -> None:
    case = CASES[name]
    with short_folder() as folder, ExitStack() as stack, socket.create_server(("127.0.0.1", 0)) as node:
        node.settimeout(PATIENCE_S)
        tables = case.tables | {"http": {"workers": 1, "listen": f"unix:{folder}/http"}}
        if "recovery" in tables:
            url = f"http://user:password@127.0.0.1:{node.getsockname()[1]}"
            tables["recovery"] = tables["recovery"] | {"node_url": url}
        daemon = stack.enter_context(home(folder, **tables))
        daemon.start()
        with daemon.client("frames") as client:
            work = case.begin(client, daemon, stack, node)
            assert set(statuses(client.feed(work.before))) <= {"applied"}
            client.send(*({"seq": n} | sent for n, sent in enumerate(work.sent)))
            client.taken()
            daemon.process.terminate()
            answers = client.rest()
            assert daemon.wait() == 0, daemon.tail()
        events = daemon.events()
        assert events[-1] == "stopped" and not {"drain_timed_out", "http_worker_killed"} & set(events)
        assert len(answers) == len(work.sent)
        assert set(statuses(answers)) <= {"applied", "rolled_back", "accepted"}
        daemon.start()
        if chain_now := [*work.before, *(each for each in work.sent if each["type"] in ("BlockApplied", "Rollback"))]:
            with daemon.client() as client:
                assert client.hello()["tip"] == point(chain_now[-1])
            assert daemon.export() == expected(chain_now)
        assert daemon.term() == 0
        daemon.assert_sound()
