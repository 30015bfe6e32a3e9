"""The change log, written into the recovery tables: each fact once, whenever the database, or we, were away."""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any, cast

import anyio
import pytest
from recovering import Lab, Shaky, capture_logs, quick, read, tx, until

import handlers.recovery.following
from handlers.causes import AnyCause, BlockRolledBack, DoubleSpend, Expired, InBlock, Submitted, Withdrawn
from handlers.change_log import ChangeLog
from handlers.events import BlockCommitted, Fact, Point, RolledBack, TxStatusChanged
from handlers.recovery.following import Follower
from storage.change_log import TABLES, Retention
from storage.disk import Disk
from storage.recovery.rows import Cursor, Settlement, Status, StoreAway
from storage.recovery.tables import Storage, Verbs

pytestmark = pytest.mark.anyio
STORE = "ours"
TO = Point(height=4, slot=4, hash=bytes(32))
BACK = RolledBack(from_=TO, to=TO, blocks=1)
CAUSES: dict[str, AnyCause] = {
    "pending": Submitted(),
    "mined": InBlock(),
    "conflicting": DoubleSpend(),
    "back": BlockRolledBack(),
}


def status_facts(status: str, *numbers: int, height: int = 5) -> list[Fact]:
    """Return facts about transactions; `back` is pending by a rollback."""
    reported = "pending" if status == "back" else status
    return [TxStatusChanged(txid=tx(n), status=reported, height=height, cause=CAUSES[status]) for n in numbers]


def block(height: int) -> Fact:
    return BlockCommitted(height=height, slot=height, hash=bytes(32), txs=0, created=0, spent=0, missing_inputs=0)


class Log:
    """A change log, and lives of its reader."""

    def __init__(self, disk: Disk) -> None:
        self.changes = ChangeLog(disk)
        self.surveys = list[bool]()
        self.decides, self.tip, self.rung = True, 4, anyio.Event()
        self.fetched = list[int]()

    def log(self, *facts: Fact) -> None:
        def work(_: Any) -> None:
            for fact in facts:
                self.changes.record(fact)

        self.changes.write(work)
        self.rung.set()

    async def _heard(self) -> None:
        await self.rung.wait()
        self.rung = anyio.Event()

    async def _survey(self, *, decides: bool) -> None:
        self.surveys.append(decides)

    async def _turn(self, work: Callable[[], Any]) -> Any:
        await anyio.lowlevel.checkpoint()
        done = work()
        if isinstance(done, list):
            self.fetched.append(len(done))
        return done

    @asynccontextmanager
    async def following(
        self, storage: Any, store: str = STORE, began: Callable[[], None] = lambda: None
    ) -> AsyncIterator[None]:
        follower = Follower(
            *(cast("Storage", storage), self.changes, store, cast("Any", self._turn), cast("Any", self._survey)),
            quick(confirmations=3, scan_interval=0.05),
            wait_for_facts=self._heard,
            decides=lambda: self.decides,
            tip=lambda: self.tip,
            wrote=lambda: None,
        )
        await follower.begin()
        began()
        async with anyio.create_task_group() as group:
            group.start_soon(follower.follow)
            yield
            group.cancel_scope.cancel()

    async def is_read(self, storage: Storage, store: str = STORE) -> None:
        """Wait until the log was read to its end."""

        async def so() -> bool:
            cursor = await storage.reached(store)
            return cursor is not None and cursor.next == self.changes.newest() + 1

        await until(so)


@pytest.fixture(autouse=True)
def soon(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(handlers.recovery.following, "_GATHER_S", 0.005)
    monkeypatch.setattr(handlers.recovery.following, "_AGAIN_S", 0.01)


@pytest.fixture
def log(tmp_path: Path) -> Iterator[Log]:
    with Disk(tmp_path / "log", TABLES, map_size=1 << 24, durable=False) as disk:
        yield Log(disk)


async def begun(log: Log, storage: Storage) -> None:
    """Let a first life read the log to its end."""
    async with log.following(storage):
        await log.is_read(storage)


def are(storage: Storage, **expected: Status) -> Any:
    """Return whether rows have these statuses: `t1="pending"`."""

    async def so() -> bool:
        rows = {f"t{int.from_bytes(row.id)}": row.status for row in await storage.rows(None, 100)}
        return rows == expected

    return so


async def test_facts_logged_while_no_process_reads_are_read_later(lab: Lab, log: Log) -> None:
    async with lab.storage(reporter="me") as storage:
        await begun(log, storage)
        log.log(
            *status_facts("pending", 1, 2, 3),
            *status_facts("mined", 1),
            *status_facts("conflicting", 2),
            block(5),
            block(6),
            block(7),
        )
        async with log.following(storage):
            await until(are(storage, t1="confirmed", t2="deleted", t3="pending"))
        assert await storage.unpublished(9) == [(tx(1), "confirmed"), (tx(2), "deleted")]
        assert (await read(storage, tx(1))).message == "mined at height 5"
        assert log.surveys == [True]


async def test_what_is_mined_is_confirmed_by_a_later_life(on_sqlite: Storage, log: Log) -> None:
    await begun(log, on_sqlite)
    log.log(*status_facts("mined", 1), block(5), block(6))
    async with log.following(on_sqlite):
        await log.is_read(on_sqlite)
        assert await are(on_sqlite, t1="pending")()
    log.log(block(7))
    async with log.following(on_sqlite):
        await until(are(on_sqlite, t1="confirmed"))
    assert await on_sqlite.mined(STORE, 100, 9) == []


class Failing:
    """A store in which the k-th step of a transaction fails, once."""

    def __init__(self, storage: Storage, at: int) -> None:
        self._storage, self.left = storage, at

    def __getattr__(self, verb: str) -> Any:
        return getattr(self._storage, verb)

    async def transact(self, steps: Callable[[Any], Any]) -> Any:
        async def failing(verbs: Verbs) -> Any:
            return await steps(Steps(verbs, self))

        return await self._storage.transact(failing)


class Steps:
    def __init__(self, verbs: Verbs, failing: Failing) -> None:
        self._verbs, self._failing = verbs, failing

    def __getattr__(self, verb: str) -> Any:
        real = getattr(self._verbs, verb)

        async def step(*values: Any) -> Any:
            self._failing.left -= 1
            if self._failing.left == 0:
                raise StoreAway(f"{verb} does not work")
            return await real(*values)

        return step


async def test_a_failure_at_any_step_leaves_all_of_it_or_nothing(storage: Storage, lab: Lab, log: Log) -> None:
    """A reader that resumes has the same rows in the end, and reopens none of them twice."""
    story = [
        *(
            *status_facts("pending", 1, 2, 3, 6),
            *status_facts("mined", 1, height=3),
            *status_facts("mined", 4),
            *status_facts("conflicting", 2),
        ),
        *(block(5), block(6), block(7), *status_facts("back", 4), BACK, *status_facts("mined", 4), block(5)),
        *(*status_facts("conflicting", 6), *status_facts("pending", 5)),
        TxStatusChanged(txid=tx(3), status="pruned", height=5, cause=Withdrawn("evicted")),
    ]
    at, left = 0, 0
    while left <= 0:
        at += 1
        store = f"reader {at}"
        async with log.following(storage, store):
            await log.is_read(storage, store)
        await lab.sql("DELETE FROM {t}")
        await storage.add([tx(1), tx(4), tx(5)], 30.0)
        await storage.conclude([tx(4)], "confirmed", "by another instance")
        await storage.conclude([tx(5)], "orphan", "by another instance")
        log.log(*story)
        failing = Failing(storage, at)
        async with log.following(failing, store):
            await log.is_read(storage, store)
            await until(are(storage, t1="confirmed", t2="deleted", t4="pending", t5="pending", t6="deleted"))
        rows = {row.id: row for row in await storage.rows(None, 100)}
        assert {int.from_bytes(txid): row.reopened for txid, row in rows.items() if row.reopened} == {4: 1, 5: 1}
        assert await storage.mined(store, 100, 9) == [(tx(4), 5)]
        left = failing.left
    assert at > 10


async def test_facts_wait_in_the_log_while_the_database_is_away(sqlite_lab: Lab, log: Log) -> None:
    async with sqlite_lab.storage(reporter="me") as storage:
        await begun(log, storage)
        shaky = Shaky(storage)
        shaky.broken.add("transact")
        async with log.following(shaky):
            log.log(*status_facts("pending", 1, 2))
            await until(lambda: shaky.calls.count("transact") >= 2)
            assert await storage.rows(None, 9) == []
            shaky.broken.clear()
            shaky.mute.add("transact")
            log.log(*status_facts("mined", 1), block(5), block(6), block(7), *status_facts("pending", 3))
            await log.is_read(storage)
            await until(are(storage, t1="confirmed", t2="pending", t3="pending"))
            shaky.mute.clear()
            log.log(*status_facts("conflicting", 2))
            await until(are(storage, t1="confirmed", t2="deleted", t3="pending"))
        assert await storage.unpublished(9) == [(tx(1), "confirmed"), (tx(2), "deleted")]
        assert {row.reopened for row in await storage.rows(None, 100)} == {0}
        assert log.surveys == [True]


async def test_a_deep_rollback_is_read_in_parts(on_sqlite: Storage, log: Log, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(handlers.recovery.following, "_ROWS", 3)
    await begun(log, on_sqlite)
    log.log(*status_facts("back", *range(2000)), BACK)
    log.fetched.clear()
    async with log.following(on_sqlite):
        await log.is_read(on_sqlite)
    assert max(log.fetched) == 3 and len(log.fetched) > 5
    assert (await on_sqlite.counts()).by_status["pending"] == 2000


# --- where the log cannot be read on ---------------------------------------------------------------------------------


async def test_a_survey_replaces_facts_that_are_no_longer_kept(on_sqlite: Storage, log: Log) -> None:
    await begun(log, on_sqlite)
    log.log(*status_facts("pending", 1))
    log.changes.keep = Retention(count=1)
    log.log(block(5))
    log.log(*status_facts("pending", 2))
    log.surveys.clear()
    with capture_logs() as logs:
        async with log.following(on_sqlite):
            await until(lambda: log.surveys)
            log.log(*status_facts("pending", 3))
            await until(are(on_sqlite, t3="pending"))
    (line,) = [line for line in logs if line["event"] == "recovery_survey_started"]
    assert "no longer kept" in line["reason"]
    assert log.surveys == [True]


async def test_another_log_is_not_read_on(on_sqlite: Storage, log: Log, tmp_path: Path) -> None:
    log.log(*status_facts("pending", 1, 2, 3))
    await begun(log, on_sqlite)
    for facts, reason in ((0, "is in the future"), (9, "the change log is not the one")):
        with Disk(tmp_path / f"{facts}", TABLES, map_size=1 << 24, durable=False) as disk:
            other = Log(disk)
            with pytest.MonkeyPatch.context() as patch:
                patch.setattr("storage.change_log.time", lambda: 4e9)
                other.log(*status_facts("pending", *range(facts)), block(5)) if facts else None
            with capture_logs() as logs:
                async with other.following(on_sqlite):
                    await until(lambda: other.surveys)  # noqa: B023
                    await other.is_read(on_sqlite)
            (line,) = [line for line in logs if line["event"] == "recovery_survey_started"]
            assert reason in line["reason"]
        await on_sqlite.move(STORE, None, Cursor(4, 0, 0, True))


async def test_stores_on_one_database_have_cursors_and_chains_of_their_own(lab: Lab, log: Log, tmp_path: Path) -> None:
    """What one has mined is not confirmed by the blocks of the other."""
    with Disk(tmp_path / "other", TABLES, map_size=1 << 24, durable=False) as disk:
        other = Log(disk)
        async with lab.storage() as storage, log.following(storage), other.following(storage, "theirs"):
            await log.is_read(storage)
            await other.is_read(storage, "theirs")
            log.log(*status_facts("mined", 1), block(5))
            await until(are(storage, t1="pending"))
            other.log(*(block(height) for height in range(5, 12)))
            await other.is_read(storage, "theirs")
            await log.is_read(storage)
            assert await are(storage, t1="pending")()
            log.log(block(6), block(7))
            await until(are(storage, t1="confirmed"))


async def test_what_is_final_is_compared_once_the_chain_decides(on_sqlite: Storage, log: Log) -> None:
    log.decides = False
    for _ in range(2):
        await begun(log, on_sqlite)
    assert log.surveys == [False]
    async with log.following(on_sqlite):
        log.decides = True
        await until(lambda: log.surveys == [False, True])
    await begun(log, on_sqlite)
    assert log.surveys == [False, True]


# --- what facts mean -------------------------------------------------------------------------------------------------


async def test_a_submission_revokes_no_confirmation(sqlite_lab: Lab, log: Log) -> None:
    """Who is behind reads of a submission late; a rollback is another matter, and so is what was given up."""
    async with sqlite_lab.storage() as storage, log.following(storage):
        await log.is_read(storage)
        await storage.add([tx(n) for n in range(1, 5)], 30.0)
        await storage.conclude([tx(1), tx(4)], "confirmed", "another daemon")
        await storage.conclude([tx(2)], "orphan", "another daemon")
        await storage.conclude([tx(3)], "deleted", "another daemon")
        log.log(*status_facts("pending", 1, 2, 3))
        await until(are(storage, t1="confirmed", t2="pending", t3="pending", t4="confirmed"))
        log.log(*status_facts("back", 4, height=4), BACK)
        await until(are(storage, t1="confirmed", t2="pending", t3="pending", t4="pending"))
        log.log(*status_facts("back", 1, height=4), BACK)
        await until(are(storage, t1="pending", t2="pending", t3="pending", t4="pending"))
        assert (await read(storage, tx(1))).reopened == 1


async def test_a_rollback_voids_what_was_found_out_before_it(storage: Storage, log: Log) -> None:
    """An attempt that read the chain before the rollback has its result refused, or its row reopened."""
    await begun(log, storage)
    await storage.add([tx(n) for n in (1, 2)], 0.0, 60.0)
    claims = {claim.txid: claim for claim in await storage.claim("A", 30.0, 9)}
    assert await storage.settle([Settlement(claims[tx(1)], "confirmed", "valid")]) == {tx(1)}
    log.log(*status_facts("back", 1, 2, height=4), BACK)
    await begun(log, storage)
    assert await storage.settle([Settlement(claims[tx(2)], "confirmed", "valid")]) == set()
    assert await are(storage, t1="pending", t2="pending")()


async def test_a_pruned_transaction_is_confirmed_when_it_is_deep(sqlite_lab: Lab, log: Log) -> None:
    """Deletion of its rows does not change a status; one that lost and is pruned keeps its status."""
    async with sqlite_lab.storage() as storage, log.following(storage):
        await log.is_read(storage)
        pruned = [TxStatusChanged(txid=tx(n), status="pruned", height=6) for n in (1, 2, 3)]
        log.log(block(5), *status_facts("mined", 1), *status_facts("conflicting", 2), *pruned)
        await until(are(storage, t1="pending", t2="deleted"))
        log.log(block(6), block(7))
        await until(are(storage, t1="confirmed", t2="deleted"))


@pytest.mark.parametrize(
    ("status", "cause"), [("pruned", Withdrawn("evicted")), ("pruned", Expired()), ("withdrawn", Withdrawn("operator"))]
)
async def test_what_is_taken_out_of_the_pool_leaves_the_list_unless_it_is_final(
    lab: Lab, log: Log, cause: AnyCause, status: str
) -> None:
    removed = [TxStatusChanged(txid=tx(n), status=status, height=5, cause=cause) for n in (1, 2, 3)]
    async with lab.storage() as storage, log.following(storage):
        await log.is_read(storage)
        log.log(*status_facts("pending", 1, 2, 4))
        await until(are(storage, t1="pending", t2="pending", t4="pending"))
        await storage.conclude([tx(2)], "confirmed", "by another instance")
        log.log(*status_facts("pending", 3), *removed)
        await until(are(storage, t2="confirmed", t4="pending"))
        log.log(*removed, *status_facts("pending", 1))
        await until(are(storage, t1="pending", t2="confirmed", t4="pending"))


async def test_facts_logged_before_the_first_survey_are_read_after_it(on_sqlite: Storage, log: Log) -> None:
    """The database was away: what has lost by then never had a row, and a survey does not look for it."""
    async with log.following(
        on_sqlite, began=lambda: log.log(*status_facts("pending", 1), *status_facts("conflicting", 1))
    ):
        await until(are(on_sqlite, t1="deleted"))
    assert log.surveys == [True]
