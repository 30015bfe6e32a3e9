"""Who may say what of the chain: one feeder, the operators, and everybody else."""

from __future__ import annotations

import socket
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager, contextmanager
from pathlib import Path
from tempfile import TemporaryDirectory

import anyio
import msgspec
import pytest
from anyio.abc import UNIXSocketStream
from daemons import Client, Daemon, Encoding, Message, ack, as_user, encoded, error, only_root, running, statuses
from scenarios import block, chain, digest, point

from config.settings import Config
from daemon.app import make_hub
from daemon.bus import Bus
from daemon.connection import Connection, Hub
from handlers.delivery import acknowledge, done, refuse, send
from handlers.events import ChainMessage, TxMessage
from handlers.refusal import Refused
from handlers.wire import LENGTH

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
FOR_OPERATORS: dict[str, Message] = {"TxLocked": {"txids": [digest("x")]}}


# --- the rule: connections of any user, without a daemon -----------------------------------------------------------


class Near:
    """The far end of a connection that the kernel would say is some user's."""

    def __init__(self, stream: UNIXSocketStream) -> None:
        self._stream = stream
        self._buffer = b""

    async def ask(self, kind: str, fields: Message) -> str:
        """Return the status, or the code, of the answer."""
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


class House:
    """A hall whose consumer accepts everything that it is handed."""

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
async def house() -> AsyncIterator[House]:
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
                        delivery.event()
                    except Refused as refused:
                        answers = refuse(delivery, 1, refused.refusal)
                send(answers)
            done(batch)

    config = msgspec.convert({"socket": {"admin_uids": [OPERATOR]}, "utxo": {"enabled": False}}, Config)
    async with anyio.create_task_group() as tasks:
        tasks.start_soon(accept)
        opened = House(make_hub(config, bus, inbox), tasks)
        with anyio.fail_after(30):
            yield opened
        for near in opened.entered:
            await near.leave()
        inbox.close()


def in_house(test: object) -> None:
    async def main() -> None:
        async with house() as opened:
            await test(opened)  # type: ignore[operator]

    anyio.run(main, backend_options={"use_uvloop": True})


def test_strangers_report_nothing_while_another_feeds() -> None:
    async def test(opened: House) -> None:
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

    in_house(test)


@pytest.mark.parametrize("kind", REPORTS)
def test_a_feeder_may_begin_with_a_report(kind: str) -> None:
    """It is the feeder from then on, until it leaves."""

    async def test(opened: House) -> None:
        feeder, other = await opened.enter(STRANGER), await opened.enter(STRANGER)
        assert await feeder.ask(kind, REPORTS[kind]) == "accepted"
        assert await other.ask("BlockApplied", CHAIN["BlockApplied"]) == "feeder_busy"
        assert await feeder.ask("BlockApplied", CHAIN["BlockApplied"]) == "accepted"
        await feeder.leave()
        assert await other.ask(kind, REPORTS[kind]) == "accepted"

    in_house(test)


@pytest.mark.parametrize("kind", REPORTS)
def test_an_operator_that_reports_is_no_feeder(kind: str) -> None:
    async def test(opened: House) -> None:
        operator, feeder = await opened.enter(OPERATOR), await opened.enter(STRANGER)
        assert await operator.ask(kind, REPORTS[kind]) == "accepted"
        assert await feeder.ask("BlockApplied", CHAIN["BlockApplied"]) == "accepted"
        assert await operator.ask(kind, REPORTS[kind]) == "accepted"

    in_house(test)


def test_a_message_for_all_makes_nobody_the_feeder() -> None:
    async def test(opened: House) -> None:
        one, other = await opened.enter(STRANGER), await opened.enter(STRANGER)
        for kind, fields in (FOR_ALL | FOR_OPERATORS).items():
            await one.ask(kind, fields)
        assert await other.ask("BlockApplied", CHAIN["BlockApplied"]) == "accepted"

    in_house(test)


# --- a daemon, and users as the kernel sees them -------------------------------------------------------------------


@contextmanager
def guarded() -> Iterator[Daemon]:
    """Give a daemon whose socket other users of the group can reach."""
    with TemporaryDirectory() as name, running(Path(name), socket={"admin_uids": [OPERATOR]}) as daemon:
        Path(name).chmod(0o750)
        yield daemon


def user(daemon: Daemon, uid: int, encoding: Encoding) -> Client:
    with as_user(uid):
        return daemon.client(encoding)


@only_root
def test_reports_are_the_feeders_and_the_operators(encoding: Encoding) -> None:
    blocks = chain(3)
    with guarded() as daemon, user(daemon, STRANGER, encoding) as feeder, user(daemon, STRANGER, encoding) as other:
        assert statuses(feeder.feed(blocks)) == ["applied"] * 3
        for kind, fields in REPORTS.items():
            answer = other.ask({"type": kind} | fields)
            error(answer, "not_permitted")
            assert kind in answer["message"] and str(STRANGER) in answer["message"]
        assert other.hello()["persisted_height"] is None
        with user(daemon, OPERATOR, encoding) as operator, daemon.client(encoding) as root:
            for client in (operator, root, feeder):
                state = {"type": "NodeState", "state": "running", "height": 3}
                ack(client.ask(state), "accepted", point(blocks[-1]))
            persisted = {"type": "BlockPersisted", "height": 2}
            ack(operator.ask(persisted), "accepted", point(blocks[-1]))
            ack(feeder.ask(persisted), "duplicate", point(blocks[-1]))
            error(operator.ask(block(blocks[-1])), "feeder_busy")
        assert other.hello()["persisted_height"] == 2


def test_only_the_feeder_says_how_far_the_network_is(tmp_path: Path) -> None:
    """Far behind the network nothing is pruned and no submission is too old, so a stranger's word must not last."""
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
def test_a_feeder_of_another_user_begins_with_the_nodes_state(encoding: Encoding) -> None:
    with guarded() as daemon, user(daemon, STRANGER, encoding) as feeder, user(daemon, OPERATOR, encoding) as other:
        ack(feeder.ask({"type": "NodeState", "state": "catching_up", "height": 0}), "accepted", None)
        error(other.ask(block(None)), "feeder_busy")
        ack(feeder.ask(block(None)), "applied", point(block(None)))
        feeder.close()
        ack(other.ask(chain(2)[1]), "applied", point(chain(2)[1]))
