"""Readers of real sockets that share an inbox: time limits, memory, and which of them gives way."""

from __future__ import annotations

import socket
import struct
from collections.abc import AsyncIterator, Awaitable, Callable
from time import monotonic
from typing import NamedTuple

import anyio
import pytest
from anyio.abc import UNIXSocketStream

from daemon.framing import Reader, Unfinished
from daemon.inbox import Channel, Inbox, weight
from handlers.refusal import Refusal, Refused

pytestmark = pytest.mark.anyio
MIB = 1 << 20
LONGEST = 8 * MIB


class Ends(NamedTuple):
    stream: UNIXSocketStream
    far: socket.socket
    reader: Reader


Connect = Callable[..., Awaitable[Ends]]


@pytest.fixture
def anyio_backend() -> tuple[str, dict[str, bool]]:
    return "asyncio", {"use_uvloop": True}


@pytest.fixture
def inbox(request: pytest.FixtureRequest) -> Inbox:
    return Inbox(getattr(request, "param", MIB))


@pytest.fixture
async def connect(inbox: Inbox) -> AsyncIterator[Connect]:
    unfinished, opened = Unfinished(inbox.capacity), list[Ends]()

    async def connect(patience_s: float = 0.1, longest: int = LONGEST) -> Ends:
        near, far = socket.socketpair()
        stream = await UNIXSocketStream.from_socket(near)
        far.setblocking(False)
        opened.append(Ends(stream, far, Reader(stream, Channel(inbox, 0), unfinished, longest, patience_s)))
        return opened[-1]

    yield connect
    for ends in opened:
        ends.far.close()
        await ends.stream.aclose()


async def pour(far: socket.socket, data: bytes) -> None:
    view = memoryview(data)
    while view:
        try:
            view = view[far.send(view) :]
        except BlockingIOError:
            await anyio.sleep(0.001)


@pytest.mark.parametrize("part", [b"\0\0\0\x05ab", b"\0\0", b'{"type":'])
async def test_a_message_must_be_finished_in_time(part: bytes, connect: Connect, inbox: Inbox) -> None:
    ends = await connect()
    ends.far.send(part)
    began = monotonic()
    with pytest.raises(Refused, match=r"not complete within 0\.1 s") as refused:
        await ends.reader.message()
    assert 0.09 < monotonic() - began < 5
    assert (refused.value.refusal.code, refused.value.refusal.broken) == ("malformed", True)
    assert ends.reader.ended and inbox.reserved == 0


async def test_between_messages_there_is_no_time_limit(connect: Connect) -> None:
    async def later(far: socket.socket, *parts: bytes) -> None:
        await anyio.sleep(0.3)
        for part in parts:
            await anyio.sleep(0.02)
            far.send(part)

    ends = await connect()
    async with anyio.create_task_group() as both:
        both.start_soon(later, ends.far, b"\0\0\0\x02ab")
        assert await ends.reader.message() == b"ab"
        both.start_soon(later, ends.far, b"\0\0\0\x02c", b"d")
        assert await ends.reader.message() == b"cd"


@pytest.mark.parametrize("size", [MIB - 1, MIB, 2 * MIB + 5])
@pytest.mark.parametrize("framed", [True, False], ids=["frames", "json"])
@pytest.mark.parametrize("inbox", [8 * MIB], indirect=True)
async def test_messages_behind_a_long_one(size: int, framed: bool, connect: Connect, inbox: Inbox) -> None:
    """The next message is read from the same buffer."""

    ends = await connect(30.0)
    messages = [b"{" + bytes([n]) * (length - 1) for n, length in enumerate((7, size, 5, size, 3))]
    async with anyio.create_task_group() as both:
        both.start_soon(
            pour, ends.far, b"".join(struct.pack(">I", len(m)) + m if framed else m + b"\n" for m in messages)
        )
        for sent in messages:
            assert await ends.reader.message() == sent
            ends.reader._channel.release(len(sent))  # as its consumer does
    assert inbox.reserved == 0


async def test_a_long_message_has_more_time_and_waiting_for_space_does_not_count(
    connect: Connect, inbox: Inbox
) -> None:
    async def free(other: Channel) -> None:
        await anyio.sleep(0.5)
        other.release(MIB)

    ends = await connect()
    other = Channel(inbox, 0)
    await other.reserve(MIB)  # full
    ends.far.send(struct.pack(">I", 70_000) + b"x" * 70_000)
    async with anyio.create_task_group() as both:
        both.start_soon(free, other)
        assert await ends.reader.message() == b"x" * 70_000
        ends.far.send(b"\0\0\0\x02ab")
        assert await ends.reader.message() == b"ab"


async def test_slow_messages_are_given_up_for_others(connect: Connect) -> None:
    """Nine messages fill most of the space and stall; some are refused when another one needs space."""

    given_up: list[Refusal] = []

    async def stall(ends: Ends) -> None:
        try:
            await ends.reader.message()
        except Refused as refused:
            given_up.append(refused.refusal)

    slow = [await connect(30.0) for _ in range(9)]
    async with anyio.create_task_group() as all_:
        for ends in slow:
            all_.start_soon(stall, ends)
            await pour(ends.far, struct.pack(">I", LONGEST) + b"x" * 100_000)
        await anyio.sleep(0.6)
        fast = await connect()
        all_.start_soon(pour, fast.far, struct.pack(">I", 300_000) + b"y" * 300_000)
        with anyio.fail_after(5):
            assert await fast.reader.message() == b"y" * 300_000
        await anyio.sleep(0.05)
        assert 0 < len(given_up) < 9
        assert {(each.code, each.retryable, each.broken) for each in given_up} == {("unavailable", True, True)}
        all_.cancel_scope.cancel()


@pytest.mark.parametrize("framed", [True, False], ids=["frames", "json"])
async def test_messages_that_are_read_whole_are_taken_together(framed: bool, connect: Connect, inbox: Inbox) -> None:
    ends = await connect(30.0, longest=100)
    messages = [b"{" + b"x" * length for length in (1, 2, 3, 0, 99)]
    data = b"".join(struct.pack(">I", len(each)) + each if framed else each + b"\n" for each in messages)
    assert ends.reader.at_hand(9) == []  # the encoding is not known yet
    ends.far.send(data + b"{" * 101 + b"\n")
    assert await ends.reader.message() == messages[0]
    assert ends.reader.at_hand(2) == messages[1:3]
    taken = inbox.reserved
    inbox.shared.reserved = inbox.capacity - weight(99)
    assert ends.reader.at_hand(9) == []  # there is space for one
    inbox.shared.reserved = taken
    assert ends.reader.at_hand(9) == messages[3:]
    assert inbox.reserved == sum(weight(len(each)) for each in messages)
    with pytest.raises(Refused, match="longer than 100"):  # what is too long, or not whole, is left
        await ends.reader.message()
    ends.reader._channel.release(*map(len, messages))
    assert inbox.reserved == 0 == inbox.clients


async def test_the_longest_message_gives_way_to_others_that_are_quick(connect: Connect, inbox: Inbox) -> None:
    giant = await connect(30.0)
    given_up: list[BaseException] = []

    async def flood() -> None:
        try:
            async with anyio.create_task_group() as both:
                both.start_soon(pour, giant.far, b"{" + b"x" * (LONGEST - 10))
                await giant.reader.message()
        except* Refused as group:
            given_up.append(group)

    async with anyio.create_task_group() as all_:
        all_.start_soon(flood)
        for _ in range(20):
            small = await connect()
            all_.start_soon(pour, small.far, struct.pack(">I", 100_000) + b"y" * 100_000)
            with anyio.fail_after(5):
                assert await small.reader.message() == b"y" * 100_000
            inbox.shared.release(inbox.reserved, inbox.reserved)
        all_.cancel_scope.cancel()


async def test_lines_that_are_too_long_are_skipped_and_frames_are_not(connect: Connect) -> None:
    ends = await connect(longest=100)
    line, frame = b"{" + b"x" * 99, b"x" * 100
    ends.far.send(line + b"\n" + line + b"x\n{}\n{" + b"x" * 5000)
    assert await ends.reader.message() == line
    with pytest.raises(Refused, match="longer than 100") as refused:
        await ends.reader.message()
    assert (refused.value.refusal.code, refused.value.refusal.broken) == ("too_large", False)
    assert await ends.reader.message() == b"{}"
    async with anyio.create_task_group() as both:
        both.start_soon(pour, ends.far, b"x" * 500_000 + b'\n{"a":1}\n')
        with pytest.raises(Refused, match="longer than 100"):
            await ends.reader.message()
        assert await ends.reader.message() == b'{"a":1}'
    framed = await connect(longest=100)
    framed.far.send(struct.pack(">I", 100) + frame + struct.pack(">I", 101) + frame)
    assert await framed.reader.message() == frame
    with pytest.raises(Refused, match="longer than 100") as refused:
        await framed.reader.message()
    assert (refused.value.refusal.code, refused.value.refusal.broken) == ("malformed", True)
