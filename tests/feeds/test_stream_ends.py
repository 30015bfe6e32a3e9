"""What a feed finds at the end of a stream, and a replica at its place, after something is missing there."""

from __future__ import annotations

import time
from collections.abc import AsyncIterator, Awaitable, Callable
from itertools import count
from pathlib import Path

import anyio
import pytest
from jetstream import servers
from patience import patience

import feeds.stream.publisher
import feeds.stream.submissions
from feeds.errors import FeedError
from feeds.stream.connection import shown
from feeds.stream.lease import Lease
from feeds.stream.log import Log, opened
from feeds.stream.publisher import Publisher
from feeds.stream.replica import check_reached
from feeds.stream.submissions import create, publish_all, taking
from handlers.events import BlockApplied, ChainName, Inbound, TxWithdrawn
from handlers.replication import Published, Submission, Unpublished
from handlers.wire import LENGTH, encode

CHAIN = ChainName("bitcoin", "regtest")
WITHDRAWN = TxWithdrawn(txids=[bytes(32)], reason="operator")


def block(height: int) -> BlockApplied:
    return BlockApplied(height=height, hash=b"%032d" % height)


async def each(*messages: Inbound) -> AsyncIterator[Inbound]:
    for message in messages:
        yield message


def publisher(log: Log, *, leads: bool = False) -> Publisher:
    lease = Lease(log.connection, "bitcoin.regtest", log.notice) if leads else None
    return Publisher(log, CHAIN, 1, None, 64 << 20, lease, lambda *_: None)


def carry_out(folder: Path, story: Callable[[Log, list[str]], Awaitable[None]]) -> None:
    """Carry out a story with a stream, and the list of the notices."""
    notices = list[str]()

    async def main(url: str) -> None:
        with anyio.fail_after(patience(30)):
            async with opened(url, CHAIN, notices.append) as log:
                await story(log, notices)

    with servers(folder) as (nats,):
        anyio.run(main, nats.url)


async def purge(log: Log, before: int) -> None:
    async with log.connection.api() as api:
        await api.purge_stream(log.name, seq=before)


def test_the_tip_is_found_behind_many_submissions(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(feeds.stream.publisher, "KEPT", 4)
    monkeypatch.setattr(feeds.stream.publisher, "_NEEDED", 2)

    async def story(log: Log, _: list[str]) -> None:
        first, second = publisher(log), publisher(log)
        await first.arrive()
        await first.feed(each(*map(block, range(9)), *[WITHDRAWN] * 20))
        welcome = await second.arrive()
        assert welcome.tip == block(8).point
        assert [point.height for point in welcome.points] == [8, 7, 6, 5, 4, 3, 2, 1, 0][: len(welcome.points)]
        assert len(welcome.points) >= 2
        await purge(log, 29)  # one submission is left, which has the tip too
        assert (await second.arrive()).tip == block(8).point
        await purge(log, 30)
        with pytest.raises(FeedError, match="has no event left, so its tip is not known"):
            await second.arrive()

    carry_out(tmp_path, story)


async def submit(log: Log, *names: str) -> None:
    """Publish submissions."""
    became = list[Published | Unpublished]()
    until, body = int(time.time() * 1000) + 60_000, encode(WITHDRAWN, "frames")[LENGTH.size :]

    async def waiting() -> AsyncIterator[Submission]:
        for name in names:
            yield Submission(origin=name, until=until, encoding="frames", message=body)

    await publish_all(log, waiting(), became.append)
    assert sorted(each.origin for each in became if isinstance(each, Published)) == sorted(names), became


async def taken(log: Log, begin: int) -> str:
    """Return the origin of the first submission from a sequence on."""
    async for found in taking(log, begin):
        return found.origin
    raise AssertionError


def test_messages_that_are_no_submissions_are_ignored(tmp_path: Path) -> None:
    async def story(log: Log, notices: list[str]) -> None:
        submissions = log.submissions()
        await create(submissions, 1)
        headers = {"Utxod-Event": "TxSubmitted", "Utxod-Origin": "x", "Utxod-Until": str(1 << 60)}
        async with log.connection.api() as api:
            for wrong in (None, headers | {"Utxod-Part": "1"}, headers | {"Utxod-Until": "soon"}, headers):
                await api.publish(submissions.subject, b"\xc0", headers=wrong)
            await api.publish(submissions.subject, b"\x81\xa4type\xabTxSubmitted", headers=headers)
            await api.publish(
                submissions.subject, b"\x82\xa4type\xa5Hello\xa6client\xa1x", headers=headers | {"Utxod-Event": "Hello"}
            )
            of_the_chain = headers | {"Utxod-Event": "BlockApplied"}
            await api.publish(submissions.subject, encode(block(0), "frames")[LENGTH.size :], headers=of_the_chain)
        await submit(submissions, "good")
        assert await taken(submissions, 1) == "good"
        assert [line.partition(" of stream")[0] for line in notices[:3]] == ["message 1", "message 2", "message 3"]
        assert notices[3:] == [
            f"submission x is not a {kind}: it is ignored"
            for kind in ("TxSubmitted", "TxSubmitted", "Hello", "BlockApplied")
        ]

    carry_out(tmp_path, story)


def test_submissions_continue_in_a_stream_that_has_become_shorter(tmp_path: Path) -> None:
    async def story(log: Log, _: list[str]) -> None:
        submissions = log.submissions()
        await create(submissions, 1)
        async with anyio.create_task_group() as group:
            found = list[str]()

            async def take() -> None:
                found.append(await taken(submissions, 1000))

            group.start_soon(take)
            for number in count():
                await submit(submissions, f"a{number}")
                await anyio.sleep(0.05)
                if found:
                    break

    carry_out(tmp_path, story)


def test_submissions_that_have_their_places_are_deleted(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(feeds.stream.submissions, "_PURGE_S", 0.05)

    async def story(log: Log, _: list[str]) -> None:
        async def blocks() -> AsyncIterator[Inbound]:
            yield block(0)
            await submit(log.submissions(), "a", "b")
            while await log.submissions().ends() != (3, 2):  # noqa: ASYNC110 -- another task changes it
                await anyio.sleep(0.05)

        leader = publisher(log, leads=True)
        await leader.arrive()
        await leader.feed(blocks())
        end = (await log.ends())[1]
        found = [entry async for entry in log.entries(1, end=end)]
        assert {entry.origin for entry in found} == {"", "a", "b"} and len(found) == 3

    carry_out(tmp_path, story)


def test_a_replica_that_has_another_message_does_not_continue(tmp_path: Path) -> None:
    async def story(log: Log, _: list[str]) -> None:
        feed = publisher(log)
        await feed.arrive()
        await feed.feed(each(*map(block, range(3))))
        found = [entry async for entry in log.entries(1, end=3)]
        for entry in found:
            assert entry.id
            await check_reached(log, entry.sequence, entry.id)
            await check_reached(log, entry.sequence, "")  # stored by an older version
        with pytest.raises(
            FeedError, match="message 2 of stream UTXOD_BITCOIN_REGTEST is not the one that was applied"
        ):
            await check_reached(log, 2, "2:0123")
        with pytest.raises(FeedError, match="ends at 3, and message 4 was applied"):
            await check_reached(log, 4, "4:0123")
        await purge(log, 3)
        await check_reached(log, 2, "2:0123")

    carry_out(tmp_path, story)


def test_two_feeds_of_one_process_id_do_not_share_a_lease(tmp_path: Path) -> None:
    async def story(log: Log, notices: list[str]) -> None:
        one, two = (Lease(log.connection, "bitcoin.regtest", log.notice) for _ in range(2))
        await one.take(1)
        async with anyio.create_task_group() as group:
            group.start_soon(two.take, 1)
            while not notices:  # noqa: ASYNC110 -- it comes from the task
                await anyio.sleep(0.01)
            await one.release()
        assert "standing by" in notices[0]

    carry_out(tmp_path, story)


def test_urls_are_shown_without_credentials() -> None:
    urls = "nats://user:p@ss@10.0.0.1:4222,tls://token@10.0.0.2,nats://10.0.0.3:4222,user:word@10.0.0.4"
    assert shown(urls) == "nats://10.0.0.1:4222,tls://10.0.0.2,nats://10.0.0.3:4222,10.0.0.4"
