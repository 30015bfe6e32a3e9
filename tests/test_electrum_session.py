"""A session of an Electrum client by itself: turns of others while it works, and the order of what it sends."""

from __future__ import annotations

import asyncio
import json
import resource
from contextlib import nullcontext
from time import monotonic, thread_time
from types import SimpleNamespace
from typing import Any, cast

import anyio
import pytest
from anyio.abc import TaskGroup
from structlog.testing import capture_logs

from config.settings import Config
from daemon.wallets.electrum.budget import Metered
from daemon.wallets.electrum.server import Server
from daemon.wallets.electrum.session import Session

pytestmark = pytest.mark.anyio
PINGS = 10_000  # the most that a list may have; they take several turns on any machine
NEWS = b'{"method":"news"}\n'


class Client(asyncio.Transport):
    """A client: what it receives, whether it reads, and how it is disconnected."""

    def __init__(self) -> None:
        super().__init__()
        self.received, self.unread, self.ended = b"", 0, list[str]()
        self.reads = self.heard = True

    def write(self, data: Any) -> None:
        self.received += data
        self.unread += len(data)

    def get_write_buffer_size(self) -> int:
        return 0 if self.reads else self.unread

    def get_extra_info(self, name: str, default: Any = None) -> Any:
        return None

    def close(self) -> None:
        self.ended.append("closed")

    def abort(self) -> None:
        self.ended.append("aborted")

    def pause_reading(self) -> None:
        assert self.heard
        self.heard = False

    def resume_reading(self) -> None:
        self.heard = True

    def messages(self) -> list[Any]:
        return [json.loads(line) for line in self.received.splitlines()]


def connected(tasks: TaskGroup | None = None) -> tuple[Session, Client]:
    chain = SimpleNamespace(turn=nullcontext)
    server = SimpleNamespace(stopping=False, chain=chain, left=lambda _: None)
    if tasks is not None:
        server.start_soon = tasks.start_soon
    session, client = Session(cast(Any, server)), Client()
    session.connection_made(client)
    return session, client


def pings(count: int) -> bytes:
    return json.dumps([{"id": n, "method": "server.ping"} for n in range(count)]).encode() + b"\n"


async def test_others_get_turns_during_a_list_and_its_answer_is_sent_before_notifications() -> None:
    session, client = connected()
    session.data_received(pings(PINGS))
    turns = 0
    while not client.received.endswith(b"\n"):
        turns += 1
        session.notify(b'{"turn":%d}\n' % turns)
        await anyio.lowlevel.checkpoint()
    first, *others = client.messages()
    assert [each["id"] for each in first] == list(range(PINGS))
    assert turns > 1 and others == [{"turn": n} for n in range(1, turns + 1)]
    session.notify(NEWS)
    assert client.received.endswith(NEWS)


async def test_what_is_received_while_a_list_is_answered_is_kept_and_answered_after_it() -> None:
    session, client = connected()
    session.data_received(pings(PINGS))
    session.data_received(b'{"id":"next","method":"server.ping"}\n{"id":"last",')
    session.data_received(b'"method":"server.ping"')
    assert client.heard
    session.data_received(b" " * 70_000)
    assert not client.heard, "the server reads on"
    while not client.heard:
        await anyio.lowlevel.checkpoint()
    assert [each["id"] for each in client.messages()[1:]] == ["next"]
    session.data_received(b"}\n")
    assert client.messages()[-1]["id"] == "last"


async def test_a_client_that_reads_nothing_is_answered_no_more_and_disconnected_after_a_minute() -> None:
    session, client = connected()
    client.reads = False
    session.pause_writing()
    session.data_received(pings(10) + pings(20))
    for _ in range(10):
        await anyio.lowlevel.checkpoint()
    assert len(client.received.split(b'"id"')) == 2, "more than the call that was being answered"
    session.notify(NEWS)
    session.end_if_stuck(monotonic() + 59)
    assert not client.ended
    session.resume_writing()
    while NEWS not in client.received:
        await anyio.lowlevel.checkpoint()
    assert [len(each) for each in client.messages()] == [10, 1, 20]
    session.pause_writing()
    session.end_if_stuck(monotonic() + 61)
    assert client.ended == ["aborted"]


async def test_a_client_that_leaves_many_notifications_unread_is_disconnected() -> None:
    session, client = connected()
    client.reads = False
    news = b"x" * (1 << 20)
    for _ in range(32):
        session.notify(news)
        assert not client.ended
    session.notify(news)
    assert client.ended == ["aborted"]


async def test_what_a_client_sent_before_it_left_is_answered() -> None:
    session, client = connected()
    session.data_received(pings(PINGS))
    assert session.eof_received(), "the connection is closed at once"
    while not client.ended:
        await anyio.lowlevel.checkpoint()
    assert client.ended == ["closed"] and len(client.messages()[0]) == PINGS
    other, client = connected()
    other.data_received(b'{"id":')
    assert not other.eof_received()


async def test_work_ends_when_the_client_has_left() -> None:
    async with anyio.create_task_group() as tasks:
        session, client = connected(tasks)
        left = list[Session]()
        cast(Any, session.server).left = left.append
        session.data_received(pings(PINGS))
        session.connection_lost(None)
        sent = client.received
        for _ in range(10):
            await anyio.lowlevel.checkpoint()
        session.notify(NEWS)
        assert client.received == sent and left == [session]


async def test_a_client_that_is_silent_for_ten_minutes_is_disconnected() -> None:
    session, client = connected()
    session.end_if_stuck(monotonic() + 599)
    assert not client.ended
    session.end_if_stuck(monotonic() + 601)
    assert client.ended == ["aborted"]


async def test_a_client_that_has_used_its_time_is_answered_later() -> None:
    session, client = connected()
    session._budget.spend(5.3)  # a second more than it has, at the rate at which it comes back
    session.data_received(b'{"id":1,"method":"server.ping"}\n')
    assert len(client.messages()) == 1
    session.data_received(b'{"id":2,"method":"server.ping"}\n')
    assert len(client.messages()) == 1
    while len(client.messages()) == 1:
        await anyio.lowlevel.checkpoint()


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


@pytest.mark.parametrize(("hard", "expected"), [(resource.RLIM_INFINITY, 10_000), (5_100, 5_000), (150, 75)])
async def test_fewer_clients_are_accepted_where_descriptors_are_scarce(
    hard: int, expected: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    given = list[tuple[int, int]]()
    monkeypatch.setattr(resource, "getrlimit", lambda _: (100, hard))
    monkeypatch.setattr(resource, "setrlimit", lambda _, limits: given.append(limits))
    backend = SimpleNamespace(config=Config(), chain=None, upstream=None)
    with capture_logs() as logs:
        server = Server(cast(Any, backend))
        server._limit_sessions()
    assert server._max_sessions == expected and given[0][0] == (10_100 if expected == 10_000 else hard)
    assert [each["event"] for each in logs] == ["electrum_sessions_limited"] * (expected < 10_000)
