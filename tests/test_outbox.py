"""What clients leave unread: bounded for each and for all together, and who is cut off for it."""

from __future__ import annotations

import json
import socket
from collections.abc import Callable, Coroutine
from contextlib import ExitStack, suppress
from pathlib import Path
from random import Random
from typing import Any

import anyio
import anyio.lowlevel
import patience
import pytest
from anyio.abc import UNIXSocketStream
from daemons import Message, encoded, error, running, statuses
from scenarios import at, chain, output, point, tx

from daemon import outbox
from daemon.metrics import Numbers
from daemon.outbox import Outbox, Unread
from handlers.delivery import Answer
from handlers.events import Ack

MIB = 1 << 20


class Peer:
    """An outbox that is being sent, and who reads it or does not."""

    def __init__(self, unread: Unread, stream: UNIXSocketStream, far: UNIXSocketStream) -> None:
        self.outbox = Outbox(unread, Numbers(), 7)
        self.outbox.encoding = "json"
        self.stream, self.far = stream, far
        self.read = b""

    async def take(self) -> None:
        with suppress(anyio.EndOfStream, anyio.ClosedResourceError):
            while True:
                self.read += await self.far.receive()

    def lines(self) -> list[Message]:
        return [json.loads(line) for line in self.read.splitlines()]


class Peers:
    def __init__(self, capacity: int, tasks: anyio.abc.TaskGroup) -> None:
        self.unread, self._tasks = Unread(capacity), tasks
        self.all: list[Peer] = []

    async def add(self, *, reads: bool) -> Peer:
        near, far = socket.socketpair()
        near.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, 4096)
        streams = [await UNIXSocketStream.from_socket(end) for end in (near, far)]
        peer = Peer(self.unread, *streams)
        self.all.append(peer)
        self._tasks.start_soon(peer.outbox.send, peer.stream)
        if reads:
            self._tasks.start_soon(peer.take)
        return peer


def among_peers(capacity: int, test: Callable[[Peers], Coroutine[Any, Any, None]]) -> None:
    async def main() -> None:
        with anyio.fail_after(60):
            async with anyio.create_task_group() as tasks:
                peers = Peers(capacity, tasks)
                await test(peers)
                tasks.cancel_scope.cancel()
            for peer in peers.all:
                await peer.stream.aclose()
                await peer.far.aclose()
            assert peers.unread.bytes == sum(peer.outbox.bytes for peer in peers.all) == 0

    anyio.run(main, backend_options={"use_uvloop": True})


async def until(true: Callable[[], object]) -> None:
    while not true():  # noqa: ASYNC110
        await anyio.sleep(0.005)


def test_the_client_with_most_unread_bytes_is_cut_off(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(outbox, "_PATIENCE_S", 0.1)

    async def test(peers: Peers) -> None:
        little, much = await peers.add(reads=False), await peers.add(reads=False)
        for peer, size in ((little, 3), (much, 5)):
            for _ in range(size):
                peer.outbox.put(b"x" * 100_000)
        await until(lambda: min(peer.outbox._idle_s() for peer in (little, much)) > 0.1)
        reader = await peers.add(reads=True)
        for _ in range(8):
            reader.outbox.put(b"y" * 100_000)
        assert (little.outbox.closed, much.outbox.closed, reader.outbox.closed) == (False, True, False)
        await until(lambda: len(reader.read) == 800_000)

    among_peers(1_200_000, test)


def test_a_client_that_reads_is_not_cut_off_for_those_that_do_not() -> None:
    async def test(peers: Peers) -> None:
        deaf = [await peers.add(reads=False) for _ in range(8)]
        for peer in deaf:
            for _ in range(10):
                peer.outbox.put(b"x" * 10_000)
        await anyio.sleep(0.2)
        reader = await peers.add(reads=True)
        for _ in range(60):
            reader.outbox.put(b"y" * 10_000)
        assert not reader.outbox.closed and any(peer.outbox.closed for peer in deaf)
        await until(lambda: len(reader.read) == 600_000)

    among_peers(1_000_000, test)


def test_a_client_that_reads_nothing_of_its_answers_is_cut_off() -> None:
    async def test(peers: Peers) -> None:
        deaf, reader = await peers.add(reads=False), await peers.add(reads=True)
        for peer in (deaf, reader):
            peer.outbox.put(b"x" * 400_000)
        assert await reader.outbox.drained_to(1000, 60)
        assert not await deaf.outbox.drained_to(1000, 0.05)
        assert (deaf.outbox.closed, reader.outbox.closed) == (True, False)
        async with anyio.create_task_group() as reading:
            reading.start_soon(deaf.take)
            await until(lambda: b"were not read for 0.05 s" in deaf.read)
            reading.cancel_scope.cancel()

    among_peers(MIB, test)


def test_a_client_that_is_cut_off_may_still_receive_the_reason() -> None:
    async def test(peers: Peers) -> None:
        peer = await peers.add(reads=False)
        for _ in range(30):
            peer.outbox.put(b'"%s"\n' % (b"x" * 50_000))
            await anyio.lowlevel.checkpoint()
        assert peer.outbox.closed and peers.unread.bytes < 1000
        async with anyio.create_task_group() as reading:
            reading.start_soon(peer.take)
            await until(lambda: b'"too_slow"' in peer.read)
            reading.cancel_scope.cancel()

    among_peers(1_000_000, test)


@pytest.mark.parametrize("seed", range(2))
def test_bytes_are_counted_exactly(seed: int) -> None:
    async def test(peers: Peers) -> None:
        random = Random(seed)
        for _ in range(12):
            await peers.add(reads=random.random() < 0.5)
        for _ in range(150):
            random.choice(peers.all).outbox.put(b"x" * random.choice([1, 500, 40_000, 700_000]))
            assert peers.unread.bytes == sum(peer.outbox.bytes for peer in peers.all), f"seed {seed}"
            open_ = sum(peer.outbox.bytes for peer in peers.all if not peer.outbox.closed)
            assert open_ <= 2_000_000, f"seed {seed}"
            await anyio.sleep(0.003)
        cut_off = sum(peer.outbox.closed for peer in peers.all)
        assert 0 < cut_off < 12, f"seed {seed}: {cut_off} were cut off"

    among_peers(2_000_000, test)


def ack(seq: int) -> Ack:
    return Ack(seq=seq, status="accepted", tip=None)


def test_answers_behind_a_gap_wait_and_facts_do_not() -> None:
    async def test(peers: Peers) -> None:
        peer = await peers.add(reads=True)
        box = peer.outbox
        box.answer(Answer(None, ack(1)))  # type: ignore[arg-type]
        first = box.hold()
        box.answer(Answer(None, ack(3)))  # type: ignore[arg-type]
        second = box.hold()
        box.answer(Answer(None, ack(5)))  # type: ignore[arg-type]
        box.put(box.encoded(ack(100)))
        second.fill([Answer(None, ack(4))])  # type: ignore[arg-type]
        await until(lambda: len(peer.lines()) == 2)
        assert [line["seq"] for line in peer.lines()] == [1, 100]
        first.fill([Answer(None, ack(2))])  # type: ignore[arg-type]
        box.answer(Answer(None, ack(6), last=True))  # type: ignore[arg-type]
        await until(lambda: len(peer.lines()) == 7)
        assert [line["seq"] for line in peer.lines()] == [1, 100, 2, 3, 4, 5, 6]
        assert box.closed

    among_peers(MIB, test)


def test_the_last_answer_waits_for_those_before_it() -> None:
    async def test(peers: Peers) -> None:
        peer = await peers.add(reads=True)
        gap = peer.outbox.hold()
        peer.outbox.answer(Answer(None, ack(2), last=True))  # type: ignore[arg-type]
        assert not peer.outbox.closed
        gap.fill([Answer(None, ack(1))])  # type: ignore[arg-type]
        await until(lambda: len(peer.lines()) == 2)
        assert [line["seq"] for line in peer.lines()] == [1, 2] and peer.outbox.closed

    among_peers(MIB, test)


def test_a_client_with_too_many_answers_behind_a_gap_is_not_read(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(outbox, "_HELD_BYTES", 1000)

    async def test(peers: Peers) -> None:
        peer = await peers.add(reads=True)
        box = peer.outbox
        await box.ready_for_more()
        gap = box.hold()
        for n in range(50):
            box.answer(Answer(None, ack(n)))  # type: ignore[arg-type]
        with anyio.move_on_after(0.05) as waited:
            await box.ready_for_more()
        assert waited.cancelled_caught and peers.unread.bytes > 1000  # what is held back counts as well
        gap.fill([])
        await box.ready_for_more()
        await until(lambda: len(peer.lines()) == 50)

    among_peers(MIB, test)


def test_clients_that_do_not_read_are_bounded_together(tmp_path: Path) -> None:
    requests: Message = {
        "type": "TxSubmitted",
        "tx": tx("x", output("x"), spends=[at("nobody", n) for n in range(400)]),
    }
    with running(tmp_path, socket={"max_unread_bytes": "4MiB"}) as daemon, ExitStack() as stack:
        feeder = stack.enter_context(daemon.client("frames"))
        deaf = [stack.enter_context(daemon.client("json")) for _ in range(6)]
        reader = stack.enter_context(daemon.client("json"))
        line = encoded(requests | {"seq": 1}, "json")
        answer = reader.ask(requests)
        error(answer, "UTXO_ERROR")
        for client in deaf:
            client.raw(line * (MIB // len(json.dumps(answer)) + 20))  # and what the kernel holds for each
        cut_off = patience.until(lambda: [line for line in daemon.log_lines() if line["event"] == "client_too_slow"])
        blocks = chain(5)
        assert statuses(feeder.feed(blocks)) == ["applied"] * 5
        assert reader.hello()["tip"] == point(blocks[-1])
        assert len(cut_off) < len(deaf) and all("all clients together" in line["reason"] for line in cut_off)
