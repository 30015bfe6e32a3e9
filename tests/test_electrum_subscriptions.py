"""Subscriptions by themselves: what is reported to whom, what counts towards the limits, and what is expected next."""

from __future__ import annotations

import json
from contextlib import nullcontext
from functools import partial
from hashlib import sha256
from typing import Any, cast

import anyio
import pytest

from daemon.wallets.electrum.ahead import Ahead
from daemon.wallets.electrum.multimap import Multimap
from daemon.wallets.electrum.subscriptions import Subscriptions, output_topic
from daemon.wallets.errors import RpcFault
from daemon.wallets.later import settled

pytestmark = pytest.mark.anyio

KEY, OTHER, TXID = (bytes([n]) * 32 for n in (1, 2, 3))


class Chain:
    """Statuses and scripts as a test sets them. Those of `slow` scripts are computed in several turns."""

    def __init__(self) -> None:
        self.statuses: dict[bytes, bytes] = {}
        self.slow: dict[bytes, anyio.Event] = {}
        self.scripts: dict[bytes, bytes] = {}
        self.outputs: dict[tuple[bytes, int], dict[str, object]] = {}
        self.fault: RpcFault | None = None
        self.torn = b""  # the script whose status cannot be computed

    def turn(self) -> nullcontext[None]:
        return nullcontext()

    def status(self, key: bytes) -> Any:
        if self.fault is not None:
            raise self.fault
        if key == self.torn:
            raise RpcFault(1, "torn")
        return partial(self._slowly, key) if key in self.slow else self.statuses.get(key, b"")

    async def _slowly(self, key: bytes) -> bytes:
        found = self.statuses.get(key, b"")
        await self.slow[key].wait()
        return found

    def script_of(self, txid: bytes, _: int) -> bytes | None:
        return self.scripts.get(txid)

    def outpoint_status(self, txid: bytes, index: int) -> dict[str, object]:
        return self.outputs.get((txid, index), {})


class Client:
    """A session that keeps what it is sent."""

    def __init__(self) -> None:
        self.statuses: dict[bytes, int | None] = {}
        self.sent: list[Any] = []

    def notify(self, message: bytes) -> None:
        assert message.endswith(b"\n")
        self.sent.append(json.loads(message)["params"])


def made(most: int = 100, most_each: int = 100) -> tuple[Chain, Subscriptions]:
    chain = Chain()
    return chain, Subscriptions(cast(Any, chain), most, most_each)


def subscribe(subscriptions: Subscriptions, client: Client, topic: bytes) -> Any:
    return subscriptions.subscribe(cast(Any, client), topic)


def status(text: str) -> bytes:
    return sha256(text.encode()).digest()


async def test_each_change_is_reported_once_to_every_session() -> None:
    chain, subscriptions = made()
    clients = [Client() for _ in range(3)]
    for client in clients[:2]:
        assert subscribe(subscriptions, client, KEY) is None
    assert subscribe(subscriptions, clients[2], OTHER) is None
    chain.statuses[KEY] = status("a")
    for touched in ({KEY, OTHER}, {KEY}, None):
        await subscriptions.report(touched)
    assert [client.sent for client in clients] == [[[KEY.hex(), status("a").hex()]]] * 2 + [[]]
    assert subscriptions.of_scripts([KEY, TXID]) == set(cast(Any, clients[:2]))
    del chain.statuses[KEY]  # a rollback
    assert subscriptions.remove(cast(Any, clients[0]), KEY) and not subscriptions.remove(cast(Any, clients[0]), KEY)
    await subscriptions.report(None)
    assert (len(clients[0].sent), clients[1].sent[1:]) == (1, [[KEY.hex(), None]])


async def test_a_status_that_changes_while_it_is_computed_is_computed_again() -> None:
    chain, subscriptions = made()
    chain.statuses[KEY], chain.slow[KEY] = status("old"), anyio.Event()
    client, found = Client(), list[object]()

    async def ask() -> None:
        found.append(await settled(subscribe(subscriptions, client, KEY)))

    async with anyio.create_task_group() as tasks:
        tasks.start_soon(ask)
        await anyio.wait_all_tasks_blocked()
        chain.statuses[KEY] = status("new")
        tasks.start_soon(subscriptions.report, {KEY})
        await anyio.wait_all_tasks_blocked()
        chain.slow[KEY].set()
    assert found == [status("new").hex()] and not client.sent
    chain.statuses[KEY] = status("newest")
    await subscriptions.report({KEY})
    assert client.sent == [[KEY.hex(), status("newest").hex()]]


async def test_a_subscription_ends_when_its_status_cannot_be_computed() -> None:
    chain, subscriptions = made(most=1)
    client, chain.fault = Client(), RpcFault(1, "torn")
    for _ in range(2):
        with pytest.raises(RpcFault, match="torn"):
            subscribe(subscriptions, client, KEY)
    assert (subscriptions.count, client.statuses) == (0, {})


async def test_a_subscription_continues_when_its_repetition_fails() -> None:
    chain, subscriptions = made()
    client = Client()
    subscribe(subscriptions, client, KEY)
    chain.fault = RpcFault(1, "torn")
    with pytest.raises(RpcFault, match="torn"):
        subscribe(subscriptions, client, KEY)
    chain.fault, chain.slow[KEY] = None, anyio.Event()
    later = subscribe(subscriptions, client, KEY)
    chain.slow[KEY].set()
    chain.fault = RpcFault(1, "torn")
    with pytest.raises(RpcFault, match="torn"):
        await settled(later)
    chain.fault, chain.statuses[KEY] = None, status("a")
    chain.slow.clear()
    await subscriptions.report({KEY})
    assert client.sent == [[KEY.hex(), status("a").hex()]]


async def test_the_others_are_reported_when_one_status_cannot_be_computed() -> None:
    chain, subscriptions = made()
    client = Client()
    for topic in (KEY, OTHER, TXID):
        subscribe(subscriptions, client, topic)
        chain.statuses[topic] = status("a")
    chain.torn = OTHER
    with pytest.raises(RpcFault, match="torn"):
        await subscriptions.report(None)
    assert [each for each, _ in client.sent] == [TXID.hex(), KEY.hex()]


async def test_an_output_is_reported_when_its_transaction_comes_and_when_its_script_is_touched() -> None:
    chain, subscriptions = made()
    client, place = Client(), [TXID.hex(), 1]
    assert subscribe(subscriptions, client, output_topic(TXID, 1)) == {}
    await subscriptions.report({KEY})
    chain.outputs[TXID, 1], chain.scripts[TXID] = {"funder_height": 0}, KEY
    await subscriptions.report({OTHER})
    assert not client.sent, "another transaction was looked for"
    await subscriptions.report({TXID})
    chain.outputs[TXID, 1] = {"funder_height": 5}
    await subscriptions.report({KEY})
    assert client.sent == [[*place, {"funder_height": 0}], [*place, {"funder_height": 5}]]
    await subscriptions.report({KEY, TXID})
    assert subscriptions.remove(cast(Any, client), output_topic(TXID, 1))
    chain.outputs[TXID, 1] = {}
    await subscriptions.report(None)
    await subscriptions.report({KEY})
    assert len(client.sent) == 2


async def test_a_part_of_the_limit_is_reserved_for_sessions_with_few_subscriptions() -> None:
    _, subscriptions = made(most=2_000, most_each=2_000)
    greedy, honest = Client(), Client()
    for n in range(1_800):
        subscribe(subscriptions, greedy, n.to_bytes(32))
    subscribe(subscriptions, greedy, (0).to_bytes(32))  # again
    what = "the server already has 1800 subscriptions: only sessions with fewer than 1000 may add more"
    with pytest.raises(RpcFault, match=what):
        subscribe(subscriptions, greedy, (1_800).to_bytes(32))
    for n in range(200):
        subscribe(subscriptions, honest, n.to_bytes(32))
    with pytest.raises(RpcFault, match="the server already has 2000 subscriptions, the limit"):
        subscribe(subscriptions, honest, (200).to_bytes(32))
    await subscriptions.forget(cast(Any, greedy))
    assert subscriptions.count == 200
    subscribe(subscriptions, honest, (200).to_bytes(32))


def test_values_by_key() -> None:
    values = Multimap[int, str]()
    for value in ("a", "a", "b"):
        values.add(1, value)
    values.add(2, "c")
    assert (sorted(values.get(1)), values.get(2), values.get(3)) == (["a", "b"], ("c",), ())
    for value in ("b", "b", "x"):
        values.discard(1, value)
    assert values.get(1) == ("a",) and 1 in values
    values.discard(1, "a")
    values.discard(1, "a")
    assert list(values) == [2]
    for n in range(20_000):
        values.add(n, "d")
    for n in range(20_000):
        values.discard(n, "d")
    assert list(values) == [2] and values.get(2) == ("c",)


def history(*numbers: int) -> bytes:
    return json.dumps([{"tx_hash": f"{n:064x}", "height": n} for n in numbers]).encode()


def ids(*numbers: int) -> dict[bytes, int]:
    return {n.to_bytes(32): n for n in numbers}


def test_transactions_are_expected_of_clients_that_requested_earlier_ones() -> None:
    ahead = Ahead()
    ahead.received(history(1, 2))
    assert ahead.expected() == {}, "it has requested none"
    ahead.received(history(2, 3))
    assert ahead.with_others((9).to_bytes(32)) == {}
    ahead.used()
    assert ahead.with_others((2).to_bytes(32)) == ids(2, 1, 3)
    assert ahead.expected() == {}, "it has received no others"
    ahead.received(history(4, 5))
    assert ahead.expected() == ids(4, 5)
    ahead.received(history(6))
    assert ahead.expected() == {}, "it has not requested those"
    assert ahead.with_others((6).to_bytes(32)) == ids(6)
    for n in range(3):
        ahead.received(history(*range(40 * n, 40 * n + 40)))
    assert ahead.with_others((1).to_bytes(32)) == {}, "more than 8,000 bytes are kept"
    assert ahead.with_others((119).to_bytes(32))
    ahead.received(history(*range(100)))
    assert len(ahead.with_others((60).to_bytes(32))) <= 51
