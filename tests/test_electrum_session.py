"""A session of an Electrum client by itself: turns of others while it works, and the order of what it sends."""

from __future__ import annotations

import json
from types import SimpleNamespace
from typing import Any, cast

import anyio
import pytest
from anyio.abc import ByteStream

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
