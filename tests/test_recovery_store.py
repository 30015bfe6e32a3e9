"""The recovery tables: one suite, run on SQLite and on a real PostgreSQL."""

from __future__ import annotations

import asyncio
import re
import sqlite3
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import anyio
import asyncpg  # type: ignore[import-untyped]
import pytest
from proxy import Proxy
from recovering import Lab, read, status, tx, until, wake

from storage.errors import Damaged, WrongFormat
from storage.recovery import postgres, sql, sqlite
from storage.recovery.postgres import PostgresStorage
from storage.recovery.rows import HISTORY, STATUSES, Claim, Place, Settlement, Status, StoreAway
from storage.recovery.sqlite import SqliteStorage
from storage.recovery.tables import Storage

pytestmark = pytest.mark.anyio
FINAL: tuple[Status, ...] = ("confirmed", "deleted", "orphan", "dead")


async def due(storage: Storage, *numbers: int, age_s: float = 60.0) -> None:
    for n in numbers:
        assert await storage.add([tx(n)], 30.0, age_s) == 1


async def claim_one(storage: Storage, n: int = 1, owner: str = "A") -> Claim:
    await due(storage, n)
    (claim,) = await storage.claim(owner, 30.0, 10)
    return claim


def final(claim: Claim, status: Status, message: str = "") -> Settlement:
    return Settlement(claim, status, "valid", message=message)


async def test_a_new_row(storage: Storage) -> None:
    before = datetime.now(UTC) - timedelta(seconds=1)
    assert await storage.add([tx(2), tx(1), tx(2)], 30.0) == 2
    assert await storage.add([tx(1), tx(3)], 30.0) == 1
    row = await read(storage, tx(1))
    assert (row.status, row.message, row.owner, row.generation, row.attempts) == ("pending", "", None, 0, 0)
    assert before < row.submitted_at < datetime.now(UTC) + timedelta(seconds=1)
    assert row.next_attempt_at == row.submitted_at + timedelta(seconds=30)
    assert (row.history, row.lease_until, row.reopened, row.last_error) == ([], None, 0, "")
    assert await storage.row(tx(9)) is None
    assert await storage.add([], 30.0) == 0


async def test_a_late_result_is_written_unless_another_instance_took_over(storage: Storage, lab: Lab) -> None:
    claim = await claim_one(storage)
    await lab.pass_time(3600)
    assert await storage.settle([final(claim, "confirmed")]) == {tx(1)}


async def test_a_batch_settles_what_is_still_ours(storage: Storage) -> None:
    await due(storage, 1, 2, 3)
    claims = sorted(await storage.claim("A", 30.0, 10), key=lambda claim: claim.txid)
    await storage.conclude([tx(2)], "confirmed", "the listener was faster")
    settled = [final(claim, "deleted") for claim in claims]
    assert await storage.settle(settled) == {tx(1), tx(3)}
    assert await status(storage, tx(2)) == "confirmed"


async def test_renewing_keeps_others_away(storage: Storage, lab: Lab) -> None:
    claim = await claim_one(storage)
    await lab.pass_time(29)
    assert await storage.renew([claim], 30.0) == {tx(1)}
    await lab.pass_time(29)
    assert await storage.claim("B", 30.0, 1) == []
    await lab.pass_time(2)
    assert len(await storage.claim("B", 30.0, 1)) == 1


async def test_retry_waits_and_counts(storage: Storage, lab: Lab) -> None:
    claim = await claim_one(storage)
    failed = Settlement(claim, "pending", "transient", delay_s=50.0, error="no route", failed=True)
    assert await storage.settle([failed]) == {tx(1)}
    row = await read(storage, tx(1))
    assert (row.owner, row.attempts, row.failures, row.last_error, row.message) == (None, 1, 1, "no route", "")
    await lab.pass_time(49)
    assert await storage.claim("A", 30.0, 1) == []
    await lab.pass_time(2)
    (again,) = await storage.claim("A", 30.0, 1)
    assert (again.failures, again.attempts, again.generation) == (1, 1, 2)
    await storage.settle([Settlement(again, "pending", "transient", error="source down", attempt=False)])
    row = await read(storage, tx(1))
    assert (row.attempts, row.failures, row.last_error, len(row.history)) == (1, 1, "source down", 1)


async def test_not_found_is_counted_in_a_row_and_from_the_first(storage: Storage, lab: Lab) -> None:
    claim = await claim_one(storage)
    for times in (1, 2):
        await storage.settle([Settlement(claim, "pending", "notfound", not_found=True)])
        await lab.pass_time(10)
        (claim,) = await storage.claim("A", 30.0, 1)
        assert claim.not_found == times
        assert claim.not_found_for_s == pytest.approx(10 * times, abs=2)
    await storage.settle([Settlement(claim, "pending", "transient", attempt=False)])
    await lab.pass_time(1)
    (claim,) = await storage.claim("A", 30.0, 1)
    assert claim.not_found == 2
    await storage.settle([Settlement(claim, "pending", "busy")])
    row = await read(storage, tx(1))
    assert (row.not_found, row.not_found_since) == (0, None)


async def test_history_is_bounded_and_keeps_the_latest(storage: Storage, lab: Lab) -> None:
    await due(storage, 1)
    for n in range(HISTORY + 5):
        (claim,) = await storage.claim("A", 30.0, 1)
        error = f'attempt {n} "quoted"\n' + "x" * 1000
        await storage.settle([Settlement(claim, "pending", "transient", error=error, failed=True)])
        await lab.pass_time(1)
    row = await read(storage, tx(1))
    assert len(row.history) == HISTORY
    assert [each.generation for each in row.history] == list(range(6, HISTORY + 6))
    assert {each.owner for each in row.history} == {"A"}
    assert str(row.history[-1].error).startswith(f'attempt {HISTORY + 4} "quoted"\n')
    assert row.attempts == HISTORY + 5
    assert datetime.now(UTC) - row.history[-1].at < timedelta(seconds=60)


async def test_text_that_a_database_can_not_keep(storage: Storage) -> None:
    claim = await claim_one(storage)
    await storage.settle(
        [Settlement(claim, "dead", "permanent", message="a\0b 😀 \ufdd0", error="'); DROP TABLE x; --\0")]
    )
    row = await read(storage, tx(1))
    assert (row.message, row.last_error, row.history[0].error) == (
        "ab 😀 \ufdd0",
        "'); DROP TABLE x; --",
        row.last_error,
    )


@pytest.mark.parametrize("end", FINAL)
async def test_what_is_final_stays(storage: Storage, lab: Lab, end: Status) -> None:
    claim = await claim_one(storage)
    await storage.settle([final(claim, end, "why")])
    for other in FINAL:
        assert await storage.conclude([tx(1)], other, "no") == set()
        assert await storage.settle([final(claim, other, "no")]) == set()
    assert await storage.add([tx(1)], 0.0, 99.0) == 0
    await lab.pass_time(9999)
    assert await storage.claim("B", 30.0, 9) == []
    row = await read(storage, tx(1))
    assert (row.status, row.message, row.next_attempt_at, row.owner) == (end, "why", None, None)


async def test_the_database_itself_refuses_another_end(storage: Storage, lab: Lab) -> None:
    claim = await claim_one(storage)
    await storage.settle([final(claim, "confirmed")])
    with pytest.raises((sqlite3.IntegrityError, asyncpg.RaiseError), match="a final status stays"):
        await lab.sql("UPDATE {t} SET status = 'deleted'")
    assert await status(storage, tx(1)) == "confirmed"


@pytest.mark.parametrize("end", FINAL)
async def test_operators_replay_discard_and_reopen(storage: Storage, end: Status) -> None:
    review = end in ("orphan", "dead")
    claim = await claim_one(storage)
    done = Settlement(claim, end, "x", message="why", error="e", failed=True, not_found=True)
    await storage.settle([done])
    assert await storage.replay([tx(1), tx(7)]) == ({tx(1)} if review else set())
    if not review:
        assert await storage.discard([tx(1)], "no") == set()
        assert await storage.reopen([tx(1)], "rolled back") == {tx(1)}
    row = await read(storage, tx(1))
    assert (row.status, row.failures, row.not_found, row.attempts, row.reopened) == ("pending", 0, 0, 1, 1)
    assert row.message == ("why" if review else "rolled back")
    (again,) = await storage.claim("B", 30.0, 1)
    assert again.generation == 2
    assert await storage.reopen([tx(1)], "it is pending") == set()
    assert await storage.discard([tx(1)], "given up") == {tx(1)}
    assert await storage.settle([final(again, "confirmed")]) == set()
    row = await read(storage, tx(1))
    assert (row.status, row.message, row.owner) == ("deleted", "given up", None)


@pytest.mark.parametrize("wanted", [(), ("confirmed",), ("orphan", "dead"), ("pending", "deleted"), FINAL])
async def test_only_rows_of_the_named_statuses_are_reopened(storage: Storage, wanted: tuple[Status, ...]) -> None:
    """What is pending, or held, is never touched, also where it is named."""
    await due(storage, 0)
    (held,) = await storage.claim("A", 30.0, 1)
    for n, end in enumerate(FINAL, 1):
        await due(storage, n)
        await storage.conclude([tx(n)], end, "why")
    again = {tx(n) for n, end in enumerate(FINAL, 1) if end in wanted}
    assert await storage.reopen([tx(n) for n in range(7)], "it was not so", wanted) == again
    for n, end in enumerate(FINAL, 1):
        row = await read(storage, tx(n))
        reopened = ("pending", "it was not so", 1) if tx(n) in again else (end, "why", 0)
        assert (row.status, row.message, row.reopened) == reopened
    assert {claim.txid for claim in await storage.claim("B", 30.0, 10)} == again
    row = await read(storage, tx(0))
    assert (row.owner, row.generation, row.reopened) == ("A", held.generation, 0)
    assert await storage.reopen([tx(n) for n in range(7)], "again", wanted) == set()


async def test_lists_are_pages_in_the_order_of_submission(storage: Storage) -> None:
    for n in range(12):
        await due(storage, n, age_s=1000.0 - n // 2)  # two at a time, more or less
    await storage.conclude([tx(n) for n in range(0, 12, 3)], "confirmed", "")
    await storage.conclude([tx(4)], "dead", "")

    async def walk(wanted: Status | None, newest_first: bool) -> list[bytes]:
        walked: list[Any] = []
        after: Place | None = None
        while page := await storage.rows(wanted, 2, after=after, newest_first=newest_first):
            assert len(page) <= 2
            walked, after = walked + page, page[-1].place
        return [row.id for row in walked]

    everything = [row.id for row in await storage.rows(None, 100)]
    assert sorted(everything) == [tx(n) for n in range(12)]
    for wanted in (None, *STATUSES):
        listed = [row.id for row in await storage.rows(wanted, 100)]
        assert await walk(wanted, False) == listed
        assert await walk(wanted, True) == listed[::-1]
        assert [row.id for row in await storage.rows(wanted, 3, offset=2)] == listed[2:5]
    assert {row.id for row in await storage.rows("confirmed", 100)} == {tx(0), tx(3), tx(6), tx(9)}
    assert await storage.rows("orphan", 100) == []


async def test_counts_and_the_oldest(storage: Storage) -> None:
    empty = await storage.counts()
    assert (empty.by_status, empty.oldest_pending_s) == (dict.fromkeys(STATUSES, 0), 0.0)
    await due(storage, 1, age_s=500.0)
    await due(storage, 2, 3, age_s=100.0)
    await storage.conclude([tx(1)], "orphan", "")
    counts = await storage.counts()
    assert counts.by_status == {"pending": 2, "confirmed": 0, "deleted": 0, "orphan": 1, "dead": 0}
    assert counts.oldest_pending_s == pytest.approx(100, abs=5)


async def test_rows_to_be_reviewed_are_not_forgotten(storage: Storage, lab: Lab) -> None:
    for n, end in enumerate(("pending", *FINAL)):
        await due(storage, n, n + 10)
        if end != "pending":
            await storage.conclude([tx(n), tx(n + 10)], end, "")
    assert await storage.forget(("confirmed", "deleted"), 3600.0, 100) == 0
    await lab.pass_time(7200)
    assert await storage.forget(("confirmed", "deleted"), 3600.0, 3) == 3
    assert await storage.forget(("confirmed", "deleted"), 3600.0, 100) == 1
    counts = (await storage.counts()).by_status
    assert counts == {"pending": 2, "confirmed": 0, "deleted": 0, "orphan": 2, "dead": 2}


async def test_dropping_removes_held_rows_too(storage: Storage) -> None:
    claim = await claim_one(storage, 1)
    await due(storage, 2, 3, 4)
    await due(storage, 5)
    await storage.conclude([tx(3)], "confirmed", "")
    await storage.conclude([tx(5)], "orphan", "")
    assert await storage.drop([tx(1), tx(2), tx(3), tx(5), tx(9)]) == {tx(1), tx(2), tx(5)}
    assert {row.id for row in await storage.rows(None, 100)} == {tx(3), tx(4)}
    assert await storage.settle([final(claim, "confirmed")]) == set()
    assert await storage.renew([claim], 30.0) == set()
    assert await storage.drop([]) == set()


async def test_sessions_are_notified_of_what_is_due_at_once(lab: Lab) -> None:
    async with lab.storage() as storage, lab.storage() as other:
        rung = asyncio.Event()
        session = await storage.session(rung.set)
        ringer = storage if lab.kind == "sqlite" else other  # other processes are heard in PostgreSQL only
        await ringer.add([tx(1)], 30.0)
        await asyncio.sleep(0.05)
        assert not rung.is_set()
        await wake(ringer, [tx(1)])
        await asyncio.wait_for(rung.wait(), 5)
        rung.clear()
        await ringer.conclude([tx(1)], "dead", "")
        await ringer.replay([tx(1)])
        await asyncio.wait_for(rung.wait(), 5)
        await session.close()
        rung.clear()
        await ringer.add([tx(2)], 0.0, 1.0)
        await asyncio.sleep(0.05)
        assert not rung.is_set()


async def test_who_is_cut_off_inside_a_transaction_keeps_no_row_for_longer_than_a_lease(pg_lab: Lab) -> None:
    """The server would wait for hours, with the row locked, and a claim passes by what is locked."""
    async with Proxy(pg_lab.uri) as way, pg_lab.storage() as other:
        await other.add([tx(1)], 0.0, 60.0)
        async with pg_lab.storage(lease_s=1.0, uri=way.uri) as storage:
            way.cut_after(tx(1))
            waking = asyncio.ensure_future(storage.transact(lambda verbs: wake(verbs, [tx(1)])))
            await until(lambda: way.is_cut)
            silent = f"state = 'idle in transaction' AND query LIKE '%{pg_lab.table}%'"
            await until(lambda: pg_lab.sql(f"SELECT 1 FROM pg_stat_activity WHERE {silent}"))
            assert await other.claim("B", 30.0, 1) == []
            await until(lambda: other.claim("B", 30.0, 1))
            way.mend()
            with pytest.raises(StoreAway):
                await waking


async def test_a_cancelled_caller_does_not_tear_a_transaction(storage: Storage) -> None:
    for n in range(20):
        await due(storage, n)
        task = asyncio.ensure_future(storage.claim(f"{n}", 30.0, 1))
        await asyncio.sleep(0.0002 * n)
        task.cancel()
        await asyncio.wait({task})
    mine = [await storage.claim(f"{n}", 30.0, 0, again=True) for n in range(20)]
    assert sum(map(len, mine)) == 0  # no room was asked for
    for n in range(20):  # every row is either free or held by one who can ask for it again
        row = await read(storage, tx(n))
        assert (row.owner is None) == (row.generation == 0)
    free = await storage.claim("last", 30.0, 100)
    held = [claim for n in range(20) for claim in await storage.claim(f"{n}", 30.0, 1, again=True)]
    assert len(free) + len(held) == 20


async def test_cancelling_open_is_never_taken_for_an_absent_database(tmp_path: Path) -> None:
    cancelled = 0
    for attempt in range(80):
        storage = SqliteStorage(tmp_path / f"{attempt}.db")
        with anyio.move_on_after(attempt / 20_000) as opening:
            await storage.open()
        cancelled += opening.cancelled_caught
        await storage.close()
    assert cancelled > 0


async def test_a_later_schema_is_not_changed(lab: Lab) -> None:
    async with lab.storage():
        pass
    if lab.kind == "sqlite":
        await lab.sql("PRAGMA user_version = 9")
    else:
        await lab.sql("INSERT INTO {t}_schema VALUES (9)")
    with pytest.raises(WrongFormat, match="recovery schema 9"):
        async with lab.storage():
            pass


async def test_a_query_before_the_schema_is_made_is_refused(pg_lab: Lab) -> None:
    reader = PostgresStorage(pg_lab.uri, lease_s=30.0, table=pg_lab.table, readonly=True)
    with pytest.raises(StoreAway, match="no schema yet: a daemon of this version creates schema"):
        await reader.open()
    async with pg_lab.storage():
        await reader.open()
        await reader.close()


async def test_instances_that_start_together_make_one_schema(pg_lab: Lab) -> None:
    stores = [PostgresStorage(pg_lab.uri, lease_s=30.0, table=pg_lab.table) for _ in range(5)]
    try:
        await asyncio.gather(*(store.open() for store in stores))
        assert [len(row) for row in await pg_lab.sql("SELECT version FROM {t}_schema")] == [1]
    finally:
        for store in stores:
            await store.close()


async def test_errors_name_what_is_wrong(tmp_path: Path, pg_lab: Lab) -> None:
    (tmp_path / "broken.db").write_bytes(b"this is no database" * 100)
    with pytest.raises(Damaged, match="not a database"):
        await SqliteStorage(tmp_path / "broken.db").open()
    with pytest.raises(StoreAway, match="unable to open"):
        await SqliteStorage(tmp_path / "nowhere" / "x.db").open()
    with pytest.raises(StoreAway, match="not open"):
        await SqliteStorage(tmp_path / "y.db").row(tx(1))
    secret = "postgresql://someone:s3cret@127.0.0.1:1/x"
    with pytest.raises(StoreAway) as away:
        await PostgresStorage(secret, lease_s=30.0).open()
    assert "s3cret" not in str(away.value)
    with pytest.raises(StoreAway, match="not open"):
        await PostgresStorage(pg_lab.uri, lease_s=30.0).row(tx(1))
    with pytest.raises(ValueError, match="not the name of a table"):
        PostgresStorage(pg_lab.uri, lease_s=30.0, table='x"; DROP')


# --- plans: with many pending rows a claim reads its batch -----------------------------------------

MANY = 100_000


async def test_sqlite_reads_its_batch_and_not_the_table(sqlite_lab: Lab) -> None:
    async with sqlite_lab.storage() as storage:
        await storage.add([tx(n) for n in range(1000)], 0.0, 60.0)
    connection = sqlite3.connect(sqlite_lab.path)
    by_key = [sql.RENEW, sql.SETTLE, sql.RELEASE, sql.CONCLUDE, sql.REVOKE, sql.DISCARD, sql.DROP]
    by_key += [sql.reopen(FINAL)]
    for template in (sql.CLAIM, *by_key):
        statement = sqlite.worded(template)
        values = dict.fromkeys(re.findall(r":(\w+)", statement), 0) | {"batch": "[]"}
        plan = [row[3] for row in connection.execute(f"EXPLAIN QUERY PLAN {statement}", values)]
        first = "SEARCH recovery_tx USING INDEX recovery_tx_due (next_attempt_at<?)"
        assert (first in plan) == (template == sql.CLAIM), plan
        assert any("USING PRIMARY KEY (txid=?)" in step for step in plan), plan
        scanned = {step.removeprefix("SCAN ").split()[0] for step in plan if step.startswith("SCAN ")}
        assert scanned <= {"json_each", "chosen"}, plan
        assert not any("TEMP B-TREE" in step for step in plan), plan
    connection.close()


async def explain(lab: Lab, storage: Storage, statement: str, *columns: list[Any], **values: Any) -> str:
    """Return how the store's own connections carry a statement out, after they did so often."""
    assert isinstance(storage, PostgresStorage)
    text, names = postgres.worded(statement, lab.table)
    query, given = f"EXPLAIN (ANALYZE, BUFFERS, TIMING off, SUMMARY off) {text}", values
    given |= {f"batch{n}": column for n, column in enumerate(columns)}

    async def work(connection: Any) -> str:
        for _ in range(7):  # from the sixth time on a plan for all values would be considered
            async with connection.transaction():
                found = await connection.fetch(query, *(given[name] for name in names))
        return "\n".join(row[0] for row in found)

    return await storage._run(work)


async def test_postgres_reads_its_batch_and_not_the_table(on_postgres: Storage, pg_lab: Lab) -> None:
    await on_postgres.add([tx(n) for n in range(MANY)], 0.0, 60.0)
    await pg_lab.sql("ANALYZE {t}")
    plan = await explain(pg_lab, on_postgres, sql.CLAIM, owner="A", lease=30_000, limit=100)
    reads = re.search(rf"Index Scan using {pg_lab.table}_due.*rows=(\d+)(?:\.\d+)? loops=1\)", plan)
    assert reads, plan
    assert int(reads[1]) == 100, plan
    claims = await on_postgres.claim("A", 30.0, 100)
    keys = [claim.txid for claim in claims], ["A"] * 100, [1] * 100
    renewal = await explain(pg_lab, on_postgres, sql.RENEW, *keys, lease=30_000)
    ends = {"status": "confirmed", "message": "", "reporter": None}
    conclusion = await explain(pg_lab, on_postgres, sql.CONCLUDE, keys[0], **ends)
    await on_postgres.reopen(keys[0], "again")
    deletion = await explain(pg_lab, on_postgres, sql.DROP, keys[0])
    for each in (renewal, conclusion, deletion):
        assert f"Index Scan using {pg_lab.table}_pkey" in each, each
        assert f"{pg_lab.table}_held" not in each, each
    for each in (plan, renewal, conclusion, deletion):
        assert "Seq Scan" not in each, each
        assert "Sort" not in each, each


async def test_results_are_written_by_key_before_there_are_statistics(on_postgres: Storage, pg_lab: Lab) -> None:
    await pg_lab.sql("ALTER TABLE {t} SET (autovacuum_enabled = false)")
    await on_postgres.add([tx(n) for n in range(20_000)], 0.0, 60.0)
    claims = await on_postgres.claim("A", 30.0, 10_000)
    keys = [claim.txid for claim in claims[:500]], ["A"] * 500, [1] * 500
    plan = await explain(pg_lab, on_postgres, sql.RENEW, *keys, lease=30_000)
    ends = {"status": "confirmed", "message": "", "reporter": None}
    conclusion = await explain(pg_lab, on_postgres, sql.CONCLUDE, keys[0], **ends)
    assert f"Index Scan using {pg_lab.table}_pkey" in plan, plan
    for each in (plan, conclusion):
        assert f"on {pg_lab.table}_pkey" in each or f"using {pg_lab.table}_pkey" in each, each
        assert not re.search(rf"Seq Scan|{pg_lab.table}_(held|due)", each), each


async def test_a_scan_with_nothing_due_is_one_probe(on_postgres: Storage, pg_lab: Lab) -> None:
    await on_postgres.add([tx(n) for n in range(20_000)], 3600.0)
    await pg_lab.sql("ANALYZE {t}")
    plan = await explain(pg_lab, on_postgres, sql.CLAIM, owner="A", lease=30_000, limit=100)
    buffers = re.search(r"Buffers: shared hit=(\d+)", plan)
    assert buffers, plan
    assert int(buffers[1]) <= 8, plan
