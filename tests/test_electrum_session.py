"""A session of an Electrum client by itself: turns of others while it works, and the order of what it sends."""

from __future__ import annotations

import json
from time import monotonic, thread_time
from types import SimpleNamespace
from typing import Any, cast

import anyio
import pytest
from anyio.abc import ByteStream

from daemon.wallets.electrum.budget import Metered
from daemon.wallets.electrum.session import Session

pytestmark = pytest.mark.anyio
PINGS = 10_000  # the most that a list may have; they take several turns on any machine


class Wire:
    """A stream: what the client sends, and then its end; what it receives."""

    def __init__(self, sent: bytes) -> None:
        self._left, self.received = [sent], b""

    async def receive(self, most: int) -> bytes:
        await anyio.lowlevel.checkpoint()
        if not self._left:
            raise anyio.EndOfStream
        sent = self._left.pop()
        if len(sent) > most:
            self._left.append(sent[most:])
        return sent[:most]

    async def send(self, data: bytes) -> None:
        await anyio.lowlevel.checkpoint()
        self.received += data


async def test_others_get_turns_during_a_list_and_its_answer_is_sent_before_notifications() -> None:
    calls = [{"id": n, "method": "server.ping"} for n in range(PINGS)]
    wire = Wire(json.dumps(calls).encode() + b"\n")
    session = Session(cast(Any, SimpleNamespace(stopping=False)), cast(ByteStream, wire))
    turns = 0

    async def other() -> None:
        nonlocal turns
        while not wire.received:
            if session._answering:
                turns += 1
                session.notify("blockchain.scripthash.subscribe", [turns])
            await anyio.lowlevel.checkpoint()

    async with anyio.create_task_group() as tasks:
        tasks.start_soon(session.run)
        tasks.start_soon(other)
    first, *others = map(json.loads, wire.received.splitlines())
    assert [each["id"] for each in first] == list(range(PINGS))
    assert turns > 1 and [each["params"] for each in others] == [[n] for n in range(1, turns + 1)]


async def test_a_client_that_is_silent_for_ten_minutes_is_disconnected() -> None:
    wire = Silent()
    session = Session(cast(Any, SimpleNamespace(stopping=False)), cast(ByteStream, wire))
    async with anyio.create_task_group() as tasks:
        tasks.start_soon(session.run)
        await anyio.wait_all_tasks_blocked()
        session.end_if_silent(monotonic() + 599)
        await anyio.wait_all_tasks_blocked()
        assert not wire.ended
        session.end_if_silent(monotonic() + 601)
    assert wire.ended


class Silent(Wire):
    """A client that sends nothing."""

    def __init__(self) -> None:
        super().__init__(b"")
        self.ended = False

    async def receive(self, most: int) -> bytes:
        try:
            await anyio.sleep_forever()
        finally:
            self.ended = True
        raise AssertionError


async def test_only_the_work_of_a_call_counts() -> None:
    async def call() -> str:
        deadline = thread_time() + 0.03
        while thread_time() < deadline:
            pass
        await anyio.lowlevel.checkpoint()
        await other.wait()
        return "waited"

    async def busy() -> None:
        deadline = thread_time() + 0.2
        while thread_time() < deadline:
            await anyio.lowlevel.checkpoint()
        other.set()

    other, work = anyio.Event(), Metered(call())
    async with anyio.create_task_group() as tasks:
        tasks.start_soon(busy)
        assert await work == "waited"
    assert 0.03 <= work.spent < 0.15
    with pytest.raises(ValueError, match="mine"):
        await Metered(fails())
    with anyio.move_on_after(0.01) as patience:
        await Metered(anyio.Event().wait())
    assert patience.cancelled_caught


async def fails() -> object:
    raise ValueError("mine")
