"""Which messages are accepted from the feeder, from operators and from other clients."""

from __future__ import annotations

import asyncio
import socket
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from contextlib import ExitStack, asynccontextmanager, contextmanager
from pathlib import Path
from tempfile import TemporaryDirectory
from time import monotonic, sleep

import anyio
import msgspec
import pytest
from anyio.abc import UNIXSocketStream
from daemons import Client, Daemon, Encoding, Message, ack, as_user, encoded, error, only_root, running, statuses
from scenarios import block, chain, digest, point

from config.settings import Config
from daemon.app import make_hub
from daemon.bus import Bus
from daemon.connection import Connection
from daemon.hub import Hub
from handlers.delivery import acknowledge, done, refuse, send
from handlers.events import ChainMessage, TxMessage
from handlers.refusal import Refused
from handlers.wire import LENGTH, decode

STRANGER, OPERATOR = 65534, 65533
REPORTS: dict[str, Message] = {
    "NodeState": {"state": "running", "height": 1},
    "BlockPersisted": {"height": 1},
    "TxMined": {"txids": [digest("x")], "block_id": 1, "height": 1},
    "TxWithdrawn": {"txids": [digest("x")], "reason": "evicted"},
}
CHAIN: dict[str, Message] = {
    "BlockApplied": {"height": 1, "hash": digest("h")},
    "Rollback": {"to": "origin"},
    "GenesisOutputs": {"outputs": []},
}
FOR_ALL: dict[str, Message] = {"TxSubmitted": {"tx": {"txid": digest("x")}}, "TxUnlocked": {"txids": [digest("x")]}}
FOR_OPERATORS: dict[str, Message] = {
    **{kind: {"txids": [digest("x")]} for kind in ("TxLocked", "TxConflicting", "WinnersDecided")},
    **{kind: {"outpoints": [[digest("x"), 0]]} for kind in ("OutputsFrozen", "OutputsUnfrozen")},
    "OutputReassigned": {"outpoint": [digest("x"), 0], "address": b"\x61"},
    "TxPreserved": {"txids": [digest("x")], "until": 9},
}


class Near:
    """The peer of a connection that the kernel would report as a given user's."""

    def __init__(self, stream: UNIXSocketStream) -> None:
        self._stream = stream
        self._buffer = b""

    async def ask(self, kind: str, fields: Message) -> str:
        await self._stream.send(encoded({"type": kind, "seq": 1} | fields, "frames"))
        while len(self._buffer) < LENGTH.size or len(self._buffer) < LENGTH.size + LENGTH.unpack_from(self._buffer)[0]:
            self._buffer += await self._stream.receive()
        (length,) = LENGTH.unpack_from(self._buffer)
        answer = msgspec.msgpack.decode(self._buffer[LENGTH.size : LENGTH.size + length])
        self._buffer = self._buffer[LENGTH.size + length :]
        status: str = answer.get("status") or answer["code"]
        return status

    async def send(self, data: bytes) -> None:
        await self._stream.send(data)

    async def leave(self) -> None:
        await self._stream.aclose()


class Connections:
    """Connections to a hub without a daemon; its consumer accepts every message."""

    def __init__(self, hub: Hub, tasks: anyio.abc.TaskGroup) -> None:
        self.hub, self._tasks = hub, tasks
        self.entered: list[Near] = []

    async def enter(self, uid: int) -> Near:
        near, far = socket.socketpair()
        connection = Connection(self.hub, await UNIXSocketStream.from_socket(near), uid)
        self._tasks.start_soon(connection.serve)
        self.entered.append(Near(await UNIXSocketStream.from_socket(far)))
        return self.entered[-1]


@asynccontextmanager
async def connections() -> AsyncIterator[Connections]:
    bus = Bus()
    inbox = bus.inbox(*ChainMessage.__args__, *TxMessage.__args__, capacity=1 << 20)

    async def accept() -> None:
        while batch := await inbox.take():
            for delivery in batch:
                answers = acknowledge(delivery, 1, "accepted", None)
                if delivery.refused is not None:
                    answers = refuse(delivery, 1, delivery.refused)
                else:
                    try:
                        decode(delivery.raw, delivery.encoding)
                    except Refused as refused:
                        answers = refuse(delivery, 1, refused.refusal)
                send(answers)
            done(batch)

    config = msgspec.convert({"socket": {"admin_uids": [OPERATOR]}, "utxo": {"enabled": False}}, Config)
    async with anyio.create_task_group() as tasks:
        tasks.start_soon(accept)
        opened = Connections(make_hub(config, bus, inbox), tasks)
        with anyio.fail_after(30):
            yield opened
        for near in opened.entered:
            await near.leave()
        inbox.close()


def with_connections(test: Callable[[Connections], Awaitable[None]]) -> None:
    async def main() -> None:
        async with connections() as opened:
            await test(opened)

    anyio.run(main, backend_options={"use_uvloop": True})


def test_strangers_report_nothing_while_another_feeds() -> None:
    async def test(opened: Connections) -> None:
        feeder, stranger, operator = [await opened.enter(uid) for uid in (STRANGER, STRANGER, OPERATOR)]
        assert await feeder.ask("BlockApplied", CHAIN["BlockApplied"]) == "accepted"
        for kind, fields in REPORTS.items():
            assert await stranger.ask(kind, fields) == "not_permitted"
            assert await feeder.ask(kind, fields) == "accepted"
            assert await operator.ask(kind, fields) == "accepted"
        for kind, fields in CHAIN.items():
            assert await stranger.ask(kind, fields) == "feeder_busy"
            assert await operator.ask(kind, fields) == "feeder_busy"
        for kind, fields in FOR_ALL.items():
            for client in (feeder, stranger, operator):
                assert await client.ask(kind, fields) == "accepted"
        for kind, fields in FOR_OPERATORS.items():
            assert await feeder.ask(kind, fields) == await stranger.ask(kind, fields) == "not_permitted"
            assert await operator.ask(kind, fields) == "accepted"

    with_connections(test)


@pytest.mark.parametrize("kind", REPORTS)
def test_a_feeder_may_begin_with_a_report(kind: str) -> None:
    async def test(opened: Connections) -> None:
        feeder, other = await opened.enter(STRANGER), await opened.enter(STRANGER)
        assert await feeder.ask(kind, REPORTS[kind]) == "accepted"
        assert await other.ask("BlockApplied", CHAIN["BlockApplied"]) == "feeder_busy"
        assert await feeder.ask("BlockApplied", CHAIN["BlockApplied"]) == "accepted"
        await feeder.leave()
        assert await other.ask(kind, REPORTS[kind]) == "accepted"

    with_connections(test)


def test_other_messages_and_reports_of_operators_make_no_client_the_feeder() -> None:
    async def test(opened: Connections) -> None:
        one, other = await opened.enter(STRANGER), await opened.enter(STRANGER)
        operator = await opened.enter(OPERATOR)
        for kind, fields in (FOR_ALL | FOR_OPERATORS).items():
            await one.ask(kind, fields)
        for kind, fields in REPORTS.items():
            assert await operator.ask(kind, fields) == "accepted"
        assert await other.ask("BlockApplied", CHAIN["BlockApplied"]) == "accepted"

    with_connections(test)


@contextmanager
def guarded() -> Iterator[Daemon]:
    """Yield a daemon whose socket other users of the group can reach."""
    with TemporaryDirectory() as name, running(Path(name), socket={"admin_uids": [OPERATOR]}) as daemon:
        Path(name).chmod(0o750)
        yield daemon


def user(daemon: Daemon, uid: int) -> Client:
    with as_user(uid):
        return daemon.client()


@only_root
def test_reports_are_accepted_from_the_feeder_and_operators() -> None:
    blocks = chain(3)
    with guarded() as daemon, user(daemon, STRANGER) as feeder, user(daemon, STRANGER) as other:
        assert statuses(feeder.feed(blocks)) == ["applied"] * 3
        for kind, fields in REPORTS.items():
            answer = other.ask({"type": kind} | fields)
            error(answer, "not_permitted")
            assert kind in answer["message"] and str(STRANGER) in answer["message"]
        assert other.hello()["persisted_height"] is None
        with user(daemon, OPERATOR) as operator, daemon.client() as root:
            for client in (operator, root, feeder):
                state = {"type": "NodeState", "state": "running", "height": 3}
                ack(client.ask(state), "accepted", point(blocks[-1]))
            persisted = {"type": "BlockPersisted", "height": 2}
            ack(operator.ask(persisted), "accepted", point(blocks[-1]))
            ack(feeder.ask(persisted), "duplicate", point(blocks[-1]))
            error(operator.ask(block(blocks[-1])), "feeder_busy")
        assert other.hello()["persisted_height"] == 2


def test_only_the_feeder_reports_the_height_of_the_network(tmp_path: Path) -> None:
    """Far below that height nothing is pruned and no submission expires, so other clients must not set it."""
    lie = {"height": 4_000_000_000}
    with running(tmp_path) as daemon, daemon.client() as other, daemon.client() as feeder:
        assert other.hello(network_tip=lie)["network_tip_height"] == lie["height"]  # it may be about to feed
        assert statuses(feeder.feed(chain(2))) == ["applied"] * 2
        assert feeder.hello()["network_tip_height"] is None
        assert other.hello(network_tip=lie)["network_tip_height"] is None
        assert feeder.hello(network_tip={"height": 3})["network_tip_height"] == 3
        assert statuses(feeder.feed(chain(3))) == ["duplicate"] * 2 + ["applied"]
        assert other.hello(network_tip=lie)["network_tip_height"] == 3


@only_root
@pytest.mark.parametrize("kind", ['"TxLocked","txids":[]', '"Rollback","to":"origin"'])
def test_a_second_type_gives_no_permission(kind: str) -> None:
    with guarded() as daemon, user(daemon, STRANGER) as stranger, daemon.client() as feeder:
        ack(feeder.ask(block(None)), "applied", point(block(None)))
        for line in (
            f'{{"type":"BlockPersisted","seq":1,"height":1,"type":{kind}}}',
            f'{{"type":"Hello","seq":1,"type":{kind}}}',
            f'{{"type":"BlockPersisted","seq":1,"height":1,"t\\u0079pe":{kind}}}',
            f'{{"seq":1,"type":"Hello","type":{kind}}}',
        ):
            stranger.raw(line.encode() + b"\n")
            answer = stranger.receive()
            assert answer is not None and answer["code"] in {"malformed", "not_permitted", "feeder_busy"}, line
        assert feeder.hello()["tip"] == point(block(None))


UNLOCKED: Message = {"type": "TxUnlocked", "txids": [digest("x")]}


def test_few_messages_are_routed_in_one_turn_of_the_event_loop() -> None:
    clients, each = 50, 200

    async def test(opened: Connections) -> None:
        routed, most = 0, 0
        nears = [await opened.enter(STRANGER) for _ in range(clients)]

        async def flood() -> None:
            for near in nears:
                await near.send(encoded(UNLOCKED, "frames") * each)

        flooding = asyncio.create_task(flood())
        while routed < clients * each:
            await asyncio.sleep(0)
            before, routed = routed, opened.hub.numbers.messages["TxUnlocked"]
            most = max(most, routed - before)
        await flooding
        assert most <= 16

    with_connections(test)


LONG: Message = {"type": "TxUnlocked", "txids": [digest(n) for n in range(600)]}


@pytest.mark.parametrize(("first", "encoding"), [(UNLOCKED, "json"), (LONG, "frames")], ids=["short", "long"])
def test_what_clients_sent_ahead_waits_in_the_kernel(tmp_path: Path, first: Message, encoding: Encoding) -> None:
    clients = 200
    with (
        running(tmp_path, batch={"max_bytes": "1MiB"}) as daemon,
        daemon.client("frames") as feeder,
        ExitStack() as all_,
    ):
        feeder.feed(chain(2))
        before, most, until = daemon.memory(), 0, monotonic() + 1
        for _ in range(clients):
            client = all_.enter_context(daemon.client(encoding))
            client.socket.setblocking(False)
            assert (
                client.socket.send(encoded(first, encoding) + encoded(UNLOCKED, encoding) * 5000) > 100_000
            )  # what the system takes
        while monotonic() < until:
            most = max(most, daemon.memory() - before)
            sleep(0.01)
            assert most < 20 << 20, most
