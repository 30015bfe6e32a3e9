"""Hostile clients of the Electrum server: clear errors, bounded memory, and answers for the others meanwhile."""

from __future__ import annotations

import json
import select
import socket
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from bcoin_node import free_ports
from daemons import Daemon, running
from electrum_client import Wallet
from patience import patience

[PORT] = free_ports(1)
MOST, LIST = 25_000, 10_000
KB = 1.5  # that a subscription may take; it takes about 0.7


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[int]:
    """Yield the process of the wallet protocols."""
    own = {"enabled": True, "listen": f"127.0.0.1:{PORT}", "max_subscriptions_per_session": MOST}
    folder: Path = tmp_path_factory.mktemp("hostile")
    chain = {"family": "bitcoin", "network": "testnet3"}
    with running(folder, chain=chain, electrum=own, utxo={"index": {"history": True}}) as daemon, Wallet(PORT):
        yield process_of(daemon)


def process_of(daemon: Daemon) -> int:
    pid = daemon.process.pid
    children = Path(f"/proc/{pid}/task/{pid}/children").read_text().split()
    (found,) = (int(each) for each in children if b"wallets" in Path(f"/proc/{each}/cmdline").read_bytes())
    return found


def memory_kb(process: int) -> int:
    lines = Path(f"/proc/{process}/status").read_text().splitlines()
    return next(int(line.split()[1]) for line in lines if line.startswith("RssAnon"))


def subscriptions(first: int) -> bytes:
    calls = [
        {"id": n, "method": "blockchain.scripthash.subscribe", "params": [f"{n:064x}"]}
        for n in range(first, first + LIST)
    ]
    return json.dumps(calls).encode() + b"\n"


def test_endless_subscriptions_end_at_the_limit_with_bounded_memory(server: int) -> None:
    with Wallet(PORT) as other:
        before = memory_kb(server)
        with Wallet(PORT) as greedy:
            greedy.socket.settimeout(patience(60))
            refused = 0
            for first in range(0, 4 * LIST, LIST):
                greedy.raw(subscriptions(first))
                assert other.call("server.ping") is None
                answers = greedy.receive()
                errors = [each["error"] for each in answers if "error" in each]
                refused += len(errors)
                what = f"this session already has {MOST} subscriptions, the limit"
                assert all(error == {"code": 1, "message": what} for error in errors)
            assert refused == 4 * LIST - MOST
            assert memory_kb(server) - before < MOST * KB + 20_000
        full = memory_kb(server)
        with Wallet(PORT) as next_one:  # the memory of those that have left is used again
            next_one.socket.settimeout(patience(60))
            for first in range(0, 2 * LIST, LIST):
                next_one.raw(subscriptions(first))
                assert not any("error" in each for each in next_one.receive())
            assert memory_kb(server) - full < 10_000


def test_thousands_of_half_lines_take_little_memory(server: int) -> None:
    before, half = memory_kb(server), b'{"id": 1, "method": "server.ping", "params": ["' + b"x" * 3_000
    clients = [socket.create_connection(("127.0.0.1", PORT)) for _ in range(400)]
    try:
        for client in clients:
            client.sendall(half)
        with Wallet(PORT) as other:
            assert other.call("server.ping") is None
            assert memory_kb(server) - before < 400 * 60
            for client in clients[::40]:
                client.sendall(b'"]}\n')
                client.settimeout(patience(20))
                assert json.loads(client.recv(1000)) == {"jsonrpc": "2.0", "id": 1, "result": None}
    finally:
        for client in clients:
            client.close()


DEEP = ["[" * 2_000_000, '{"a":' * 500_000, '[[{"method":' * 100_000, "[" * 50 + "]" * 50]


@pytest.mark.parametrize("line", DEEP, ids=range(len(DEEP)))
def test_deep_lists_are_refused(server: int, line: str) -> None:
    before = memory_kb(server)
    with Wallet(PORT) as wallet, Wallet(PORT) as other:
        wallet.socket.settimeout(patience(20))
        wallet.raw(line.encode() + b"\n")
        answer: Any = wallet.receive()
        code = (answer[0] if isinstance(answer, list) else answer)["error"]["code"]
        assert code in (-32700, -32600)
        assert other.call("server.ping") is None
    assert memory_kb(server) - before < 40_000


def test_clients_that_read_nothing_do_not_fill_the_memory(server: int) -> None:
    """Each sends lists of calls and reads no answer: the server stops to read from it."""
    call = {"id": 1, "method": "server.features", "params": []}
    line, before, slow = json.dumps([call] * 5_000).encode() + b"\n", memory_kb(server), list[socket.socket]()
    try:
        for _ in range(6):
            client = socket.create_connection(("127.0.0.1", PORT))
            client.setblocking(False)
            slow.append(client)
        sent = [0] * len(slow)
        while ready := select.select([], slow, [], patience(1.0))[1]:
            for client in ready:
                at = slow.index(client)
                sent[at] += client.send(line[sent[at] % len(line) :])
                assert sent[at] < 64 << 20, "the server reads on"
        with Wallet(PORT) as other:
            assert other.call("server.ping") is None
        assert memory_kb(server) - before < len(slow) * 16_000
    finally:
        for client in slow:
            client.close()
