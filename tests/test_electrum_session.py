"""A session of an Electrum client by itself: turns of others while it works, and the order of what it sends."""

from __future__ import annotations

import asyncio
import json
import resource
from collections.abc import Generator, Iterator
from contextlib import contextmanager, nullcontext
from functools import partial
from time import monotonic, thread_time
from types import SimpleNamespace
from typing import Any, cast

import anyio
import pytest
from anyio.abc import TaskGroup
from structlog.testing import capture_logs

from config.settings import Config
from daemon.wallets.backend import Backend, Touched
from daemon.wallets.electrum import jsonrpc
from daemon.wallets.electrum.budget import Metered
from daemon.wallets.electrum.calls import answer_line
from daemon.wallets.electrum.methods import METHODS
from daemon.wallets.electrum.server import Server
from daemon.wallets.electrum.session import Session
from daemon.wallets.errors import RpcFault
from storage.errors import StoreError

pytestmark = pytest.mark.anyio
PINGS = 10_000  # the most that a list may have; they take several turns on any machine
NEWS = b'{"method":"news"}\n'


@pytest.fixture
def backend() -> Backend:
    config = SimpleNamespace(transactions=SimpleNamespace(enabled=False))
    return Backend(cast(Any, config), cast(Any, None), cast(Any, None))


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


async def test_a_client_that_has_used_its_time_waits_for_each_result_that_takes_long(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    began, debt = list[float](), 0.1

    async def long() -> str:
        began.append(monotonic())
        return "done"

    monkeypatch.setitem(METHODS, "long", (lambda *_: partial(long), 0, 0))
    async with anyio.create_task_group() as tasks:
        session, client = connected(tasks)
        session._budget.spend(5.0 + debt / 4)
        since = monotonic()
        session.data_received(b'[{"id":1,"method":"long"},{"id":2,"method":"server.ping"}]\n')
    assert began[0] - since >= debt * 0.9 and len(client.messages()[0]) == 2


async def test_a_client_that_has_used_its_time_is_not_answered_sooner_because_it_reads_late() -> None:
    session, client = connected()
    session._budget.spend(5.1)
    client.reads = False
    session.pause_writing()
    session.data_received(pings(10))
    session.resume_writing()
    for _ in range(10):
        await anyio.lowlevel.checkpoint()
    assert client.received.count(b'"id"') == 1, "it was answered before its time came back"
    while not client.received.endswith(b"\n"):
        await anyio.lowlevel.checkpoint()


async def test_notifications_are_sent_between_the_requests_of_a_client_that_has_used_its_time() -> None:
    session, client = connected()
    session._budget.spend(6)
    session.data_received(b'{"id":1,"method":"server.ping"}\n')
    session.notify(NEWS)
    assert client.messages()[1:] == [json.loads(NEWS)]
    session.connection_lost(None)


async def test_others_get_turns_during_blank_lines() -> None:
    session, _ = connected()
    session._turn_at = 0.0
    assert list(answer_line(session, b" ")) == [None]
    session._turn_at = monotonic() + 60
    assert not list(answer_line(session, b" "))


@pytest.mark.parametrize("number", ["[" * 900 + "]" * 900, "{}"])
async def test_an_id_that_is_a_list_or_an_object_is_refused(number: str) -> None:
    session, client = connected()
    session.data_received(b'{"id":%b,"method":"server.ping"}\n' % number.encode())
    (answer,) = client.messages()
    assert answer["error"] == {"code": -32600, "message": "an id is a number, a string or null"}
    assert answer["id"] is None


async def test_a_failure_of_one_session_disconnects_no_other(monkeypatch: pytest.MonkeyPatch) -> None:
    async def fail(*_: object) -> str:
        raise ValueError("torn")

    def refuse(*_: object) -> bytes:
        raise RecursionError

    monkeypatch.setitem(METHODS, "long", (lambda *_: partial(fail), 0, 0))
    monkeypatch.setattr(jsonrpc, "error", refuse)
    async with anyio.create_task_group() as tasks:
        session, client = connected(tasks)
        with capture_logs() as logs:
            session.data_received(b'{"id":1,"method":"long"}\n')
            while not client.ended:
                await anyio.lowlevel.checkpoint()
    assert client.ended == ["aborted"] and logs[-1]["reason"] == "the session failed"


async def test_only_one_prefetch_of_a_session_runs(monkeypatch: pytest.MonkeyPatch) -> None:
    running, end = list[object](), anyio.Event()

    async def prefetch(*arguments: object) -> None:
        running.append(arguments[-1])
        await end.wait()
        raise ValueError("torn")

    monkeypatch.setattr("daemon.wallets.electrum.transactions.prefetch", prefetch)
    async with anyio.create_task_group() as tasks:
        session, _ = connected(tasks)
        cast(Any, session.server).upstream = None
        cast(Any, session).ahead = SimpleNamespace(expected=lambda: {b"txid": 1})
        for _ in range(3):
            session.data_received(NEWS)
            await anyio.wait_all_tasks_blocked()
        assert len(running) == 1
        with capture_logs() as logs:
            end.set()
            await anyio.wait_all_tasks_blocked()
        assert [each["log_level"] for each in logs] == ["error"], "the failure ended more than the prefetch"
        session.data_received(NEWS)
    assert len(running) == 2


async def test_only_some_long_answers_read_the_store_at_once(backend: Backend, monkeypatch: pytest.MonkeyPatch) -> None:
    opened, most = 0, 0

    @contextmanager
    def snapshot() -> Iterator[object]:
        nonlocal opened, most
        opened += 1
        most = max(most, opened)
        yield SimpleNamespace(boundary=None, check_age=lambda: None)
        opened -= 1

    def steps(*_: object) -> Generator[None, None, bytes]:
        yield
        yield
        return b"[1]"

    monkeypatch.setattr(backend.chain, "snapshot", snapshot)
    async with anyio.create_task_group() as tasks:
        for n in range(70):
            tasks.start_soon(backend.chain._answer_in_turns, b"history", bytes([n]) * 32, steps)
    assert most == 50


async def test_a_change_is_reported_once_the_store_can_be_read(
    backend: Backend, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("daemon.wallets.backend._RETRIES_S", (0, 0))
    reported, failures, change = list[Touched](), list[Exception](), {b"key"}

    async def report(touched: Touched) -> None:
        reported.append(touched)
        if failures:
            raise failures.pop()

    torn = [RpcFault(1, "torn"), StoreError("unreadable"), RpcFault(1, "torn")]
    for count, expected in ((0, [change]), (2, [change] * 3), (3, [change] * 3), (0, [None]), (0, [change])):
        reported.clear()
        failures += torn[:count]
        await backend._report(change, report)
        assert reported == expected


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
