"""What commits say, written into the tables: whenever they can be written, in any order with what others write."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any, cast

import pytest
from recovering import Change, Lab, Shaky, read, tx, until

import handlers.recovery.listener
from handlers.events import BlockCommitted, Fact, Point, RolledBack, TxStatusChanged
from handlers.recovery.listener import Listener
from handlers.recovery.numbers import Numbers
from storage.recovery.rows import Settlement, Status, Storage

pytestmark = pytest.mark.anyio
TO = Point(height=4, slot=4, hash=bytes(32))
BACK = RolledBack(from_=TO, to=TO, blocks=1)


def said(status: str, *numbers: int, height: int = 5) -> list[Fact]:
    return [TxStatusChanged(txid=tx(n), status=status, height=height) for n in numbers]


def block(height: int) -> Fact:
    return BlockCommitted(height=height, slot=height, hash=bytes(32), txs=0, created=0, spent=0, missing_inputs=0)


class Ear:
    """A listener that writes into a store, and what it told of."""

    def __init__(self) -> None:
        self.told = list[Change]()
        self.listener = Listener(30.0, 3, self.told.extend, Numbers())

    def hear(self, *facts: Fact) -> None:
        for fact in facts:
            self.listener.hear(fact)

    @asynccontextmanager
    async def writing(self, storage: Any) -> AsyncIterator[None]:
        along = asyncio.ensure_future(self.listener.write_along(cast("Storage", storage)))
        try:
            yield
        finally:
            along.cancel()
            await asyncio.wait({along})


def are(storage: Storage, **expected: Status) -> Any:
    """Return whether rows have these statuses: `t1="pending"`."""

    async def so() -> bool:
        rows = {f"t{int.from_bytes(row.txid)}": row.status for row in await storage.rows(None, 100)}
        return rows == expected

    return so


async def test_what_is_heard_before_there_is_a_database_makes_rows(lab: Lab) -> None:
    """Also of what is mined, or lost, by the time that somebody can write: its end is told like any other."""
    ear = Ear()
    ear.hear(*said("pending", 1, 2, 3), *said("mined", 1), *said("conflicting", 2), block(5), block(6), block(7))
    async with lab.storage() as storage, ear.writing(storage):
        await until(are(storage, t1="confirmed", t2="deleted", t3="pending"))
        await until(lambda: len(ear.told) == 2)
    assert {change.txid: change.status for change in ear.told} == {tx(1): "confirmed", tx(2): "deleted"}


async def test_a_row_that_a_kill_kept_from_being_made_is_made_by_the_block(lab: Lab) -> None:
    """Its submission was heard by a process that is gone; the block came before anybody looked."""
    ear = Ear()
    async with lab.storage() as storage, ear.writing(storage):
        ear.hear(*said("mined", 1), *said("conflicting", 2), block(5))
        await until(are(storage, t1="pending", t2="deleted"))
        ear.hear(block(6), block(7))
        await until(are(storage, t1="confirmed", t2="deleted"))


async def test_facts_wait_while_the_database_is_away(lab: Lab, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(handlers.recovery.listener, "_AGAIN_S", 0.01)
    ear = Ear()
    async with lab.storage() as storage:
        shaky = Shaky(storage)
        shaky.broken |= {"add", "reopen", "conclude"}
        async with ear.writing(shaky):
            ear.listener.begin(4)
            ear.hear(*said("pending", 1, 2))
            await until(lambda: shaky.calls.count("add") >= 2)
            ear.hear(*said("mined", 1), block(5), block(6), block(7), *said("pending", 3))
            await until(lambda: shaky.calls.count("add") >= 4)
            assert await storage.rows(None, 9) == []
            shaky.broken -= {"add", "reopen"}
            await until(lambda: shaky.calls.count("conclude") >= 2)
            shaky.broken.clear()
            await until(are(storage, t1="confirmed", t2="pending", t3="pending"))
    assert [(change.txid, change.status) for change in ear.told] == [(tx(1), "confirmed")]
    assert not ear.listener.lost
    assert {row.reopened for row in await rows_of(lab)} == {0}


async def rows_of(lab: Lab) -> list[Any]:
    async with lab.storage() as storage:
        return list(await storage.rows(None, 100))


async def test_too_many_facts_are_left_to_the_survey(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(handlers.recovery.listener, "_MOST", 3)
    ear = Ear()
    ear.listener.begin(4)
    ear.hear(*said("pending", 1, 2, 3))
    assert not ear.listener.lost
    ear.hear(*said("pending", 4))
    assert ear.listener.lost


async def test_a_submission_takes_back_no_confirmation(lab: Lab) -> None:
    """Who is behind hears of a submission late; a rollback is another matter, and so is what was given up."""
    ear = Ear()
    async with lab.storage() as storage, ear.writing(storage):
        await storage.add([tx(n) for n in range(1, 5)], 30.0)
        await storage.conclude([tx(1), tx(4)], "confirmed", "another daemon")
        await storage.conclude([tx(2)], "orphan", "another daemon")
        await storage.conclude([tx(3)], "deleted", "another daemon")
        ear.hear(*said("pending", 1, 2, 3))
        await until(are(storage, t1="confirmed", t2="pending", t3="pending", t4="confirmed"))
        ear.hear(*said("mined", 1), block(5), *said("pending", 4, height=4), BACK)
        await until(are(storage, t1="confirmed", t2="pending", t3="pending", t4="pending"))
        ear.hear(*said("pending", 1, height=4), BACK)
        await until(are(storage, t1="pending", t2="pending", t3="pending", t4="pending"))
        assert (await read(storage, tx(1))).reopened == 1


async def test_a_rollback_is_told_from_submissions_whatever_else_it_says(lab: Lab) -> None:
    """A block with a coinbase says `conflicting` of it last, and a submission may come right before the rollback."""
    ear = Ear()
    async with lab.storage() as storage, ear.writing(storage):
        for n, height in ((1, 5), (2, 5), (3, 4)):
            await storage.add([tx(n)], 30.0)
            await storage.conclude([tx(n)], "confirmed", f"mined at height {height}")
        ear.hear(block(5), *said("pending", 3), *said("pending", 1, 2, 9, height=4), *said("conflicting", 9), BACK)
        await until(are(storage, t1="pending", t2="pending", t3="confirmed", t9="deleted"))
        assert (await read(storage, tx(3))).reopened == 0
        ear.hear(block(5), *said("pending", 3, height=0), RolledBack(from_=TO, to="origin", blocks=5))
        await until(are(storage, t1="pending", t2="pending", t3="pending", t9="deleted"))


async def test_a_rollback_voids_what_was_found_out_before_it(lab: Lab) -> None:
    """An attempt that read the chain before the rollback has its result refused, or its row reopened: at any moment."""
    ear = Ear()
    async with lab.storage() as storage:
        await storage.add([tx(n) for n in range(1, 5)], 0.0, 60.0)
        claims = {claim.txid: claim for claim in await storage.claim("A", 30.0, 9)}
        shaky, landed, late = Shaky(storage), list[set[bytes]](), iter(range(2, 5))

        def settling(verb: str) -> Any:
            """Return a verb after which another result arrives."""
            real = getattr(storage, verb)

            async def call(*values: Any) -> Any:
                answer = await real(*values)
                landed.append(await storage.settle([Settlement(claims[tx(next(late))], "confirmed", "valid")]))
                return answer

            return call

        assert await storage.settle([Settlement(claims[tx(1)], "confirmed", "valid")]) == {tx(1)}
        for verb in ("revoke", "add", "reopen"):
            setattr(shaky, verb, settling(verb))
        async with ear.writing(shaky):
            ear.hear(*said("pending", 1, 2, 3, 4, height=4), BACK)
            await until(lambda: len(landed) == 3)
            await until(are(storage, t1="pending", t2="pending", t3="pending", t4="pending"))
        assert landed == [set()] * 3


async def test_a_rollback_that_waits_to_be_written_is_not_overtaken(lab: Lab) -> None:
    """A row that is mined at 5 is not confirmed by the blocks of the branch that took its place."""
    ear = Ear()
    async with lab.storage() as storage:
        shaky, go = Shaky(storage), asyncio.Event()
        add_really = storage.add

        async def slowly(*values: Any) -> int:
            await go.wait()
            return await add_really(*values)

        shaky.add = slowly  # type: ignore[attr-defined]
        async with ear.writing(shaky):
            ear.hear(block(5), *said("mined", 1))
            await until(lambda: ear.listener._at)
            ear.hear(*said("pending", 1, height=4), BACK, *(block(height) for height in range(5, 9)))
            go.set()
            await until(lambda: not ear.listener._at)
            await until(are(storage, t1="pending"))
        assert ear.told == []


async def test_a_transaction_that_is_pruned_before_its_row_is_written_is_confirmed(
    lab: Lab, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Also if the database is away at that moment; one that lost and is pruned says nothing new."""
    monkeypatch.setattr(handlers.recovery.listener, "_AGAIN_S", 0.01)
    ear = Ear()
    async with lab.storage() as storage:
        shaky = Shaky(storage)
        async with ear.writing(shaky):
            ear.hear(block(5), *said("mined", 1), *said("pending", 2))
            await until(are(storage, t1="pending", t2="pending"))
            shaky.broken.add("conclude")
            ear.hear(*said("mined", 3), *said("pruned", 1, 3), *said("conflicting", 2), *said("pruned", 2, 4))
            await until(lambda: shaky.calls.count("conclude") >= 2)
            shaky.broken.clear()
            await until(are(storage, t1="confirmed", t2="deleted", t3="confirmed"))


async def test_a_callback_that_raises_does_not_stop_the_listener(lab: Lab) -> None:
    def broken(_: list[Change]) -> None:
        raise LookupError("a bug")

    ear, numbers = Ear(), Numbers()
    ear.listener = Listener(30.0, 3, broken, numbers)
    async with lab.storage() as storage, ear.writing(storage):
        ear.hear(*said("conflicting", 1))
        await until(are(storage, t1="deleted"))
        await until(lambda: numbers.callback_errors == 1)
        ear.hear(*said("conflicting", 2))
        await until(are(storage, t1="deleted", t2="deleted"))
