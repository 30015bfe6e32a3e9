"""Thousands of clients that send at once have short turns at the event loop, and little of it is kept in memory."""

from __future__ import annotations

import asyncio
from contextlib import ExitStack
from pathlib import Path
from time import monotonic, sleep

import pytest
from daemons import Encoding, Message, encoded, running
from scenarios import chain, digest
from test_permissions import STRANGER, House, in_house

UNLOCKED: Message = {"type": "TxUnlocked", "txids": [digest("x")]}
MIB = 1 << 20


def test_few_messages_are_routed_between_two_looks_at_everybody() -> None:
    clients, each = 50, 200

    async def test(opened: House) -> None:
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

    in_house(test)


LONG: Message = {"type": "TxUnlocked", "txids": [digest(n) for n in range(600)]}


@pytest.mark.parametrize("encoding", ["json", "frames"])
@pytest.mark.parametrize("first", [UNLOCKED, LONG], ids=["short", "long"])
def test_what_clients_sent_ahead_waits_in_the_kernel(tmp_path: Path, first: Message, encoding: Encoding) -> None:
    clients = 300
    with (
        running(tmp_path, batch={"max_bytes": "1MiB"}) as daemon,
        daemon.client("frames") as feeder,
        ExitStack() as all_,
    ):
        feeder.feed(chain(2))
        before, most, until = daemon.memory(), 0, monotonic() + 2
        for _ in range(clients):
            client = all_.enter_context(daemon.client(encoding))
            client.socket.setblocking(False)
            assert (
                client.socket.send(encoded(first, encoding) + encoded(UNLOCKED, encoding) * 5000) > 100_000
            )  # what the system takes
        while monotonic() < until:
            most = max(most, daemon.memory() - before)
            sleep(0.01)
        assert most < 20 * MIB, most
