"""Hostile clients of the Electrum server: clear errors, bounded memory, and answers for the others meanwhile."""

from __future__ import annotations

import json
import select
import socket
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from bcoin_node import free_ports
from daemons import Daemon, running
from electrum_client import Wallet
from patience import patience, until

[PORT] = free_ports(1)
LIST = 10_000  # calls in a list, as many as are allowed
MOST, IN_ALL = 400_000, 2_000_000  # subscriptions of a session; and of all sessions, by default
FREE = IN_ALL - IN_ALL // 10  # the rest is for sessions with few of them
KB = 0.3  # that a subscription may take; it takes about 0.2


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


class Greedy:
    """A client that subscribes to more and more scripts, and counts its answers."""

    def __init__(self, number: int) -> None:
        self.socket = socket.create_connection(("127.0.0.1", PORT), timeout=patience(60))
        self._in = self.socket.makefile("rb", buffering=1 << 20)
        self._next = number << 32
        self.accepted, self.errors = 0, Counter[str]()

    def send(self) -> None:
        call = b'{"id":0,"method":"blockchain.scripthash.subscribe","params":["%064x"]}'
        calls = b",".join([call % n for n in range(self._next, self._next + LIST)])
        self._next += LIST
        self.socket.sendall(b"[" + calls + b"]\n")

    def receive(self) -> None:
        line = self._in.readline()
        good = line.count(b'"result":null')
        self.accepted += good
        if good < LIST:
            answers = json.loads(line)
            assert len(answers) == LIST
            self.errors.update(each["error"]["message"] for each in answers if "error" in each)
            assert all(each["error"]["code"] == 1 for each in answers if "error" in each)

    def close(self) -> None:
        self._in.close()
        self.socket.close()


def test_millions_of_subscriptions_end_at_the_limits_with_bounded_memory(server: int) -> None:
    before, kept = memory_kb(server), "%064x" % (1 << 128)
    with Wallet(PORT) as honest:
        greedy = [Greedy(n) for n in range(5)]
        try:
            for _ in range(MOST // LIST + 1):
                for each in greedy[:4]:
                    each.send()
                assert honest.call("server.ping") is None
                for each in greedy[:4]:
                    each.receive()
            of_session = f"this session already has {MOST} subscriptions, the limit"
            assert [(each.accepted, each.errors) for each in greedy[:4]] == [(MOST, {of_session: LIST})] * 4
            last = greedy[4]
            for _ in range(MOST // LIST + 1):
                last.send()
                assert honest.call("blockchain.scripthash.get_history", kept) == []
                last.receive()
            of_server = f"the server already has {FREE} subscriptions: only sessions with fewer than 1000 may add more"
            assert (last.accepted, last.errors) == (FREE - 4 * MOST, {of_server: MOST + LIST - last.accepted})
            assert honest.call("blockchain.scripthash.subscribe", kept) is None
            assert memory_kb(server) - before < FREE * KB
        finally:
            for each in greedy:
                each.close()
        until(
            lambda: memory_kb(server) - before,
            lambda found: found < FREE * KB / 10,
            why="the memory of clients that have left is not given back",
        )
        again = Greedy(0)
        again.send()
        again.receive()
        again.close()
        assert again.accepted == LIST


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
DEEP += ['{"method":"blockchain.relayfee","id":%s}' % ("[" * n + "]" * n) for n in (900, 985)]


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
