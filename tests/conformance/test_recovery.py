"""The conformance cases of the recovery service, one test each, named after the case."""

from __future__ import annotations

import asyncio
import hashlib
import itertools
import json
import re
import sqlite3
import time
from contextlib import AsyncExitStack
from functools import partial
from pathlib import Path
from typing import Any

import anyio
import asyncpg  # type: ignore[import-untyped]
import pytest
from recovering import (
    HOUR,
    Lab,
    Service,
    Shaky,
    Stub,
    Stubborn,
    becomes,
    manage,
    managing,
    old,
    read,
    status,
    tx,
    until,
)
from structlog.testing import capture_logs

from config.checks import problems
from config.load import ConfigError, load
from config.settings import Recovery
from handlers.recovery.finality import Source
from handlers.recovery.outcome import Invalid, NotFound, Outcome, Valid
from handlers.recovery.records import Mined, Pending, State
from handlers.recovery.rules import NEVER_ARRIVED
from storage.recovery.postgres import PostgresStorage, lock_id
from storage.recovery.rows import Claim, Settlement, StoreAway
from storage.recovery.tables import Storage

pytestmark = pytest.mark.anyio
HERE = Path(__file__).parent
CASES = {case["id"]: case for case in json.loads((HERE / "recovery.json").read_text())}


@pytest.fixture(autouse=True)
def impatient(monkeypatch: pytest.MonkeyPatch) -> None:
    """A cancelled handler that does not end is abandoned soon."""
    monkeypatch.setattr("handlers.recovery.attempts._SHUTTING_S", 0.05)


def test_every_case_has_its_test() -> None:
    numbers = [re.match(r"test_rec((?:_\d{3})+)_", name) for name in globals()]
    named = {f"REC-{number}" for found in numbers if found for number in found[1].split("_") if number}
    assert named | DOCUMENTED.keys() | CONFIGURED.keys() == set(CASES)


async def claimed(storage: Storage, owner: str, limit: int = 100, lease_s: float = 300.0) -> list[bytes]:
    return sorted(claim.txid for claim in await storage.claim(owner, lease_s, limit))


# --- lifecycle ---------------------------------------------------------------------------------------------------


def answers_after(go: asyncio.Event) -> Stub:
    """Return a handler that finds every transaction valid, once it may go on."""

    async def slowly() -> Outcome:
        await go.wait()
        return Valid()

    return Stub(lambda _: slowly())


async def test_rec_001_start_second_start_stop(on_sqlite: Storage) -> None:
    shaky = Shaky(on_sqlite)
    async with managing(shaky, Stub(), ttl=0.1, scan_interval=0.1) as manager:
        with pytest.raises(RuntimeError, match="already started"):
            await manager.run(anyio.create_task_group())
        await until(lambda: {"session", "claim"} <= set(shaky.calls))


async def test_rec_002_disabled_manager_is_inert(on_sqlite: Storage) -> None:
    await old(on_sqlite, 1)
    shaky = Shaky(on_sqlite)
    async with managing(shaky, Stub(), enabled=False):
        await asyncio.sleep(0.2)
    assert shaky.calls == []


async def test_rec_003_stop_before_start(on_sqlite: Storage) -> None:
    shaky = Shaky(on_sqlite)
    await manage(shaky, Stub()).stop()
    assert shaky.calls == []


async def test_rec_004_restart_after_stop(on_sqlite: Storage) -> None:
    manager = manage(on_sqlite, Stub())
    for n in (1, 2):
        await old(on_sqlite, n)
        await manager.start()
        await until(becomes(on_sqlite, tx(n), "confirmed"))
        await manager.stop()


# --- config ------------------------------------------------------------------------------------------------------


DEFAULTS = {"ttl": 30, "scan_interval": 5, "batch_size": 100, "worker_count": 4, "not_found_grace_period": 1800}
LATER = 'batch_size = 16\nworker_count = 8\nlease_duration = "5m"'
STALE = 'advisory_lock_id = 8389190333894887286\nttl = "45s"'
CONFIGURED: dict[str, list[tuple[str, dict[str, Any] | str]]] = {  # the section, and settings or an error
    "REC-006": [("", {"enabled": True, "lease_duration": 30} | DEFAULTS)],
    "REC-007": [("", {"attempt_timeout": 60}), (LATER, {"batch_size": 16, "worker_count": 8, "lease_duration": 300})],
    "REC-009": [('lease_duration = "900ms"', "at least 1s")],
    "REC-011": [('ttl = "45s"', {"enabled": True})],
    "REC-012": [(STALE, {"enabled": True, "ttl": 45})],
    "REC-013": [
        *(('attempt_timeout = "5s"', "at least 10s"), ('attempt_timeout = "0s"', {"attempt_timeout": 0})),
        ('attempt_timeout = "10s"', {"attempt_timeout": 10}),
    ],
}


@pytest.mark.parametrize("case", CONFIGURED)
def test_configuration(tmp_path: Path, case: str) -> None:
    file = tmp_path / "c.toml"
    for section, expected in CONFIGURED[case]:
        file.write_text(f"[recovery]\n{section}\n")
        if isinstance(expected, str):
            with pytest.raises(ConfigError, match=expected):
                load(file, {})
        else:
            found = load(file, {})
            assert {name: getattr(found.recovery, name) for name in expected} == expected
            assert problems(found) == []


def test_the_service_refuses_settings_that_a_file_may_not_have() -> None:
    with pytest.raises(ConfigError, match="at least 1s"):
        manage(None, Stub(), lease_duration=0.9)


async def test_rec_014_default_settings_raise_no_lease_warning(on_sqlite: Storage) -> None:
    with capture_logs() as logs:
        manager = Service(on_sqlite, Stub(), Recovery(), dice=lambda low, _: low)
        await manager.start()
        await until(lambda: manager.numbers.sweeps)
        await manager.stop()
    assert [line for line in logs if line["log_level"] in ("warning", "error")] == []


# --- sweep -------------------------------------------------------------------------------------------------------


async def test_rec_016_not_recovered_twice_when_not_claimed_again(on_sqlite: Storage) -> None:
    await old(on_sqlite, 1)
    handler = Stub()
    async with managing(on_sqlite, handler) as manager:
        await until(lambda: manager.numbers.sweeps >= 5)
    assert handler.requests == [tx(1)]


async def test_rec_018_leadership_failure_is_survivable(on_sqlite: Storage) -> None:
    await old(on_sqlite, 1)
    shaky = Shaky(on_sqlite)
    shaky.broken.add("session")
    with capture_logs() as logs:
        async with managing(shaky, Stub()) as manager:
            await until(lambda: manager.numbers.errors >= 2)
            assert await status(on_sqlite, tx(1)) == "pending"
            shaky.broken.clear()
            await until(becomes(on_sqlite, tx(1), "confirmed"))
    assert any(line["log_level"] == "error" and "session" in line["error"] for line in logs)


async def test_rec_019_claim_failure_gives_leadership_back(pg_lab: Lab) -> None:
    async with pg_lab.storage() as storage, pg_lab.storage() as other:
        await old(storage, 1)
        shaky = Shaky(storage)
        shaky.broken.add("claim")
        async with managing(shaky, Stub()) as manager:
            await until(lambda: manager.numbers.errors >= 1)
            session = await other.session(lambda: None)
            await until(session.lead)
            shaky.broken.clear()
            await session.close()
            await until(becomes(storage, tx(1), "confirmed"))


async def test_rec_022_backlog_is_drained(on_sqlite: Storage) -> None:
    await on_sqlite.add([tx(n) for n in range(250)], 0.0, HOUR)
    async with managing(on_sqlite, Stub(), batch_size=100, scan_interval=60.0) as manager:
        await until(lambda: manager.numbers.settled["confirmed"] == 250)
        assert manager.numbers.sweeps == 1


# --- claim -------------------------------------------------------------------------------------------------------


async def test_rec_023_024_rows_of_another_instance_can_be_claimed_when_its_lease_has_expired(lab: Lab) -> None:
    async with lab.storage() as one, lab.storage() as two:
        await old(one, 1)
        assert await claimed(one, "A", lease_s=60.0) == [tx(1)]
        assert await claimed(two, "B") == []
        await lab.pass_time(61)
        assert await claimed(two, "B") == [tx(1)]


async def test_rec_025_same_owner_may_claim_again(storage: Storage, lab: Lab) -> None:
    """On demand: it is how an owner whose answer was lost gets at what it holds. The generation stays."""
    await old(storage, 1)
    (first,) = await storage.claim("A", 300.0, 10)
    await lab.pass_time(290)
    (second,) = await storage.claim("A", 300.0, 10, again=True)
    assert (second.txid, second.generation) == (first.txid, first.generation)
    await lab.pass_time(290)
    assert await claimed(storage, "B") == []


async def test_rec_026_limit_is_respected_across_owners(storage: Storage) -> None:
    for n in range(10):
        await old(storage, n, age_s=HOUR - n)
    first, second = await claimed(storage, "A", 3), await claimed(storage, "B", 3)
    assert (first, second) == ([tx(0), tx(1), tx(2)], [tx(3), tx(4), tx(5)])


async def test_rec_029_age_boundary_is_strict(storage: Storage, lab: Lab) -> None:
    """With the clock held still: by the transaction in PostgreSQL, by a clock of our own in SQLite."""
    await old(storage, 1)
    if isinstance(storage, PostgresStorage):
        from storage.recovery.postgres import worded
        from storage.recovery.sql import CLAIM

        connection = await asyncpg.connect(lab.uri)
        (claim, names), values = worded(CLAIM, lab.table), {"owner": "A", "lease": 1000, "limit": 10}
        try:
            for moved, found in (("now()", 0), ("now() - interval '1 us'", 1)):
                async with connection.transaction():
                    await connection.execute(f"UPDATE {lab.table} SET next_attempt_at = {moved}")
                    rows = await connection.fetch(claim, *(values[name] for name in names))
                    assert len(rows) == found
        finally:
            await connection.close()
    else:
        from storage.recovery.sqlite import SqliteStorage

        now = (await read(storage, tx(1))).next_attempt_at
        assert now is not None
        for later, count in ((0, 0), (1, 1)):
            still = SqliteStorage(lab.path, partial(int, round(now.timestamp() * 1000) + later))
            await still.open()
            assert len(await still.claim("A", 1.0, 10)) == count
            await still.close()


async def test_rec_028_030_young_and_final_rows_are_not_claimed(storage: Storage) -> None:
    """An unknown transaction has no row, so that four statuses are left alone."""
    await old(storage, 9, age_s=10.0)
    for n, end in enumerate(("confirmed", "deleted", "orphan", "dead")):
        await old(storage, n)
        await storage.conclude([tx(n)], end, "")  # type: ignore[arg-type]
    assert await claimed(storage, "A") == []


async def test_rec_031_audit_and_owner_claims_are_independent(lab: Lab, tmp_path: Path, postgres_uri: str) -> None:
    (tmp_path / "audit").mkdir()
    audit_lab = Lab(lab.kind, tmp_path / "audit", postgres_uri)
    async with lab.storage() as owner, audit_lab.storage() as audit:
        await old(owner, 1)
        await old(audit, 2)
        assert await claimed(audit, "A") == [tx(2)]
        assert await claimed(owner, "A") == [tx(1)]
        one, two = await owner.session(lambda: None), await audit.session(lambda: None)
        assert await one.lead()
        assert await two.lead()
        await one.close()
        await two.close()


async def test_rec_033_short_lease_keeps_its_length(storage: Storage) -> None:
    await old(storage, 1)
    assert await claimed(storage, "A", lease_s=0.9) == [tx(1)]
    assert await claimed(storage, "B") == []


async def test_rec_034_session_time_zone_does_not_matter(pg_lab: Lab) -> None:
    def zone(name: str) -> str:
        return f"{pg_lab.uri}{'&' if '?' in pg_lab.uri else '?'}timezone={name}"

    async with pg_lab.storage(uri=zone("UTC")) as utc, pg_lab.storage(uri=zone("Asia/Tokyo")) as tokyo:
        assert isinstance(tokyo, PostgresStorage)
        assert await tokyo._run(lambda c: c.fetchval("SHOW timezone")) == "Asia/Tokyo"
        for one, two, n in ((utc, tokyo, 1), (tokyo, utc, 2)):
            await old(one, n)
            assert await claimed(one, "A") == [tx(n)]
            assert await claimed(two, "B") == []
        await pg_lab.pass_time(301)
        assert await claimed(tokyo, "B") == [tx(1), tx(2)]


async def test_rec_035_sqlite_claims_are_real_and_exclusive(lab: Lab) -> None:
    async with AsyncExitStack() as stack:
        stores = [await stack.enter_async_context(lab.storage()) for _ in range(4)]
        await stores[0].add([tx(n) for n in range(2_000)], 0.0, HOUR)

        started = asyncio.Barrier(len(stores))

        async def drain(storage: Storage, owner: str) -> list[bytes]:
            got = [claim.txid for claim in await storage.claim(owner, 300.0, 16)]
            await started.wait()  # otherwise one may be late for any
            while claims := await storage.claim(owner, 300.0, 16):
                got += [claim.txid for claim in claims]
            return got

        shares = await asyncio.gather(*(drain(storage, f"{n}") for n, storage in enumerate(stores)))
        assert sorted(txid for share in shares for txid in share) == [tx(n) for n in range(2_000)]
        assert all(shares)


async def test_rec_036_expired_claims_can_be_swept(storage: Storage, lab: Lab) -> None:
    await old(storage, 1, 2, 3)
    assert len(await claimed(storage, "A", lease_s=1.0)) == 3
    assert await claimed(storage, "B") == []
    await lab.pass_time(2)
    assert len(await claimed(storage, "B")) == 3  # claiming is the cleanup, and reports what it takes over


async def test_rec_037_owner_ids_never_collide(lab: Lab) -> None:
    async with lab.storage() as one, lab.storage() as two:
        async with managing(one, Stub(), instance_id="same") as a, managing(two, Stub(), instance_id="same") as b:
            assert a.owner.startswith("same/")
            assert a.owner != b.owner
        await old(one, 1, 2, 3)
        first = await claimed(one, a.owner, 2)
        assert set(first).isdisjoint(await claimed(two, b.owner))
        assert (await read(one, first[0])).owner == a.owner


# --- release -----------------------------------------------------------------------------------------------------


async def test_rec_038_042_a_released_row_is_free_at_once_and_has_no_message(storage: Storage) -> None:
    await old(storage, 1)
    claims = await storage.claim("A", 300.0, 10)
    assert await storage.release(claims) == {tx(1)}
    row = await read(storage, tx(1))
    assert (row.status, row.message, row.last_error, row.attempts) == ("pending", "", "", 0)
    assert await claimed(storage, "B") == [tx(1)]


async def test_rec_039_040_another_owner_cannot_release_a_claim(storage: Storage) -> None:
    await old(storage, 1)
    (claim,) = await storage.claim("A", 300.0, 10)
    assert await storage.release([Claim(claim.txid, "B", claim.generation, 0, 0, 0, 0.0, 0.0)]) == set()
    assert await claimed(storage, "C") == []
    (again,) = await storage.claim("A", 300.0, 10, again=True)
    assert (again.txid, again.generation) == (claim.txid, claim.generation)


async def test_rec_043_old_generation_cannot_release(storage: Storage, lab: Lab) -> None:
    await old(storage, 1)
    (mine,) = await storage.claim("A", 1.0, 10)
    await lab.pass_time(2)
    assert await claimed(storage, "B") == [tx(1)]
    before = await read(storage, tx(1))
    assert await storage.release([mine]) == set()
    assert await storage.renew([mine], 30.0) == set()
    assert await storage.settle([Settlement(mine, "deleted", "invalid", message="stale")]) == set()
    assert await read(storage, tx(1)) == before


# --- handler -----------------------------------------------------------------------------------------------------


class Fixed:
    """A source of finality that is told what to say."""

    name = "told"

    def __init__(self, state: State) -> None:
        self.state = state

    async def state_of(self, txid: bytes) -> State:
        return self.state

    async def caught_up(self) -> bool:
        return True


class Network:
    """The network of the handler in the document."""

    def __init__(self) -> None:
        self.answers: dict[bytes, Any] = {}
        self.requests = 0

    async def status(self, txid: bytes) -> Any:
        self.requests += 1
        return self.answers.get(txid)


DOCUMENT: dict[str, Any] = {}


def documented() -> dict[str, Any]:
    """Return what the example in the document defines."""
    if not DOCUMENT:
        text = (HERE.parent.parent / "docs" / "recovery.md").read_text()
        (code,) = re.findall(r"```python\n(.*?)```", text, re.DOTALL)
        exec(compile(code, "docs/recovery.md", "exec"), DOCUMENT)
    return DOCUMENT


class Books:
    """The database of the handler in the document, which may be made to fail."""

    def __init__(self) -> None:
        self.connection = sqlite3.connect(":memory:")
        self.connection.execute("CREATE TABLE requests (txid BLOB PRIMARY KEY, request BLOB)")
        self.connection.execute("CREATE TABLE tokens (txid BLOB PRIMARY KEY, token BLOB)")
        self.connection.execute("INSERT INTO requests VALUES (?, ?)", (tx(1), b"ten tokens"))
        self.connection.commit()

    def __enter__(self) -> Books:
        return self

    def __exit__(self, *_: object) -> None:
        self.connection.close()

    def tokens(self) -> list[Any]:
        return self.connection.execute("SELECT token FROM tokens").fetchall()


GOOD = ("valid", hashlib.sha256(b"ten tokens").digest())


async def after(storage: Storage, handler: Any, wanted: str, **changes: Any) -> Any:
    """Run the service on one row until it was looked at and has a status; return the row."""
    await old(storage, 1)
    async with managing(storage, handler, **changes) as manager:
        await until(lambda: sum(manager.numbers.settled.values()))
        await until(becomes(storage, tx(1), wanted))
        return await read(storage, tx(1))


# What the network says, the status of the row then, what is done to the database before that, what the message or error
# of the row has, whether the attempt failed, and how many tokens there are.
FULL = "CREATE TRIGGER full BEFORE INSERT ON tokens BEGIN SELECT RAISE(FAIL, 'full'); END"
THERE = f"INSERT INTO tokens VALUES (x'{tx(1).hex()}', 'ten tokens')"
DOCUMENTED: dict[str, tuple[Any, str, str, str, bool, int]] = {
    "REC-046": (("invalid", "bad signature"), "deleted", "DROP TABLE requests", "bad signature", False, 0),
    "REC-047": (("busy", ""), "pending", "", "", False, 0),
    "REC-048": (("a word nobody knows", ""), "pending", "", "", False, 0),
    "REC-049": (("valid", b"another"), "deleted", "", "mismatch", False, 0),
    "REC-051": (GOOD, "pending", "DROP TABLE requests", "no such table", True, 0),
    "REC-052": (GOOD, "pending", FULL, "full", True, 0),
    "REC-055": (("valid", None), "dead", "", "no hash", True, 0),
    "REC-056": (GOOD, "confirmed", THERE, "", False, 1),
}


@pytest.mark.parametrize("case", DOCUMENTED)
async def test_the_handler_in_the_document(on_sqlite: Storage, case: str) -> None:
    answer, wanted, before, details, fails, tokens = DOCUMENTED[case]
    with Books() as books:
        books.connection.execute(before)
        network = Network()
        network.answers[tx(1)] = answer
        row = await after(on_sqlite, documented()["TokenHandler"](network, books.connection), wanted)
        assert len(books.tokens()) == tokens
    assert (row.failures > 0) == fails and details in (row.last_error if fails else row.message)
    assert row.history[-1].outcome == ("busy" if wanted == "pending" and not fails else row.history[-1].outcome)


async def test_rec_053_status_write_fails(on_sqlite: Storage) -> None:
    await old(on_sqlite, 1)
    shaky, handler = Shaky(on_sqlite), Stub(lambda _: Invalid("no"))
    shaky.broken.add("settle")
    async with managing(shaky, handler) as manager:
        await until(lambda: len(handler.requests) >= 2)
        assert manager.numbers.errors >= 1
        assert await status(on_sqlite, tx(1)) == "pending"
        shaky.broken.clear()
        await until(becomes(on_sqlite, tx(1), "deleted"))


# --- orphan ------------------------------------------------------------------------------------------------------


async def test_rec_057_059_promoted_past_grace_whatever_the_wording(on_sqlite: Storage) -> None:
    """Unknown for the whole grace since the first time, and several times: so it is seen more than once before."""
    changes: list[str] = []
    handler, changed = Stub(lambda _: NotFound(reason="not in the index")), lambda: changes.append("a final status")
    row = await after(on_sqlite, handler, "orphan", not_found_grace_period=0.01, changed=changed)
    assert changes == ["a final status"]
    assert (row.message, row.last_error, row.not_found >= 3) == (NEVER_ARRIVED, "not in the index", True)


async def test_rec_060_within_grace_stays_pending(on_sqlite: Storage) -> None:
    await old(on_sqlite, 1, age_s=600.0)
    handler = Stub(lambda _: NotFound())
    async with managing(on_sqlite, handler, not_found_grace_period=1800.0):
        await until(lambda: len(handler.requests) >= 6)
    row = await read(on_sqlite, tx(1))
    assert (row.status, row.owner) == ("pending", None)
    assert row.last_error == NotFound().reason


async def test_rec_062_other_errors_never_promote(on_sqlite: Storage) -> None:
    await old(on_sqlite, 1, age_s=2 * HOUR)
    handler = Stub(lambda _: ConnectionRefusedError("connection refused: code = NotFound, tx not found"))
    async with managing(on_sqlite, handler, not_found_grace_period=0.01):
        await until(lambda: len(handler.requests) >= 6)
    assert await status(on_sqlite, tx(1)) == "pending"


async def test_rec_063_failed_promotion_is_retried(on_sqlite: Storage) -> None:
    await old(on_sqlite, 1)
    shaky, handler = Shaky(on_sqlite), Stub(lambda _: NotFound())
    async with managing(shaky, handler, not_found_grace_period=0.01):
        await until(lambda: len(handler.requests) >= 2)
        shaky.broken.add("settle")
        requests = len(handler.requests)
        await until(lambda: len(handler.requests) >= requests + 3)
        assert await status(on_sqlite, tx(1)) == "pending"
        shaky.broken.clear()
        await until(becomes(on_sqlite, tx(1), "orphan"))


async def test_rec_064_late_confirmation_wins(on_sqlite: Storage) -> None:
    await old(on_sqlite, 1)

    async def overtaken() -> Outcome:
        await on_sqlite.conclude([tx(1)], "confirmed", "the listener knows")
        return NotFound()

    async with managing(on_sqlite, Stub(lambda _: overtaken()), not_found_grace_period=0.001) as manager:
        await until(lambda: manager.numbers.conflicts == 1)
    row = await read(on_sqlite, tx(1))
    assert (row.status, row.message) == ("confirmed", "the listener knows")


async def test_rec_065_no_promotion_after_stop(on_sqlite: Storage) -> None:
    await old(on_sqlite, 1)
    shaky, settings = Shaky(on_sqlite), {"attempt_timeout": 0.05, "not_found_grace_period": 0.001}
    async with Stubborn(NotFound()) as handler, managing(shaky, handler, **settings) as manager:
        await until(lambda: manager._attempts.abandoned)
    await asyncio.sleep(0.1)
    assert "settle" not in shaky.calls
    assert await status(on_sqlite, tx(1)) == "pending"


# --- timeout -----------------------------------------------------------------------------------------------------


async def test_rec_066_hung_handler_that_honours_cancellation(on_sqlite: Storage) -> None:
    await old(on_sqlite, 1, 2)
    handler = Stub(lambda txid: asyncio.sleep(60) if txid == tx(1) else Valid())
    async with managing(on_sqlite, handler, attempt_timeout=0.05, worker_count=1) as manager:
        await until(lambda: handler.requests.count(tx(1)) >= 2)
        await until(becomes(on_sqlite, tx(2), "confirmed"))
        assert manager.numbers.timeouts >= 1
    row = await read(on_sqlite, tx(1))
    assert "deadline" in row.last_error
    assert (row.owner, row.history[0].outcome) == (None, "timeout")


async def test_rec_067_handler_that_ignores_cancellation(on_sqlite: Storage) -> None:
    await old(on_sqlite, 1)
    shaky = Shaky(on_sqlite)
    async with (
        Stubborn(Valid()) as handler,
        managing(shaky, handler, attempt_timeout=0.05, lease_duration=1.0) as manager,
    ):
        await until(lambda: manager.numbers.stuck)
        for _ in range(15):  # longer than the lease: the heartbeat keeps it
            assert await on_sqlite.claim("B", 1.0, 10) == []
            await asyncio.sleep(0.1)
        sweeps = manager.numbers.sweeps
        await until(lambda: manager.numbers.sweeps > sweeps + 2)
    assert shaky.calls.count("session") == 1
    assert "release" not in shaky.calls
    assert (handler.requests[tx(1)], manager.numbers.leader) == (1, False)


async def test_rec_070_result_at_the_deadline_is_kept(on_sqlite: Storage) -> None:
    """The handler holds up the loop until the deadline is over, and then has a result."""

    async def slow() -> Outcome:
        await asyncio.sleep(0)
        time.sleep(0.1)  # noqa: ASYNC251 -- what is tested
        return Invalid("just in time")

    await old(on_sqlite, 1)
    async with managing(on_sqlite, Stub(lambda _: slow()), attempt_timeout=0.05) as manager:
        await until(becomes(on_sqlite, tx(1), "deleted"))
    assert (await read(on_sqlite, tx(1))).message == "just in time"
    assert manager.numbers.timeouts == 0


async def alerts(storage: Storage, threshold: int, times: int) -> list[str]:
    """Return how loud each of several timeouts of one transaction was."""
    await old(storage, 1)
    changes = {"attempt_timeout": 0.01, "stuck_alert_threshold": threshold, "max_attempts": 100}
    with capture_logs() as logs:
        async with managing(storage, Stub(lambda _: asyncio.sleep(60)), **changes) as manager:
            await until(lambda: manager.numbers.timeouts >= times)
    return [line["log_level"] for line in logs if line["event"] == "recovery_timeout"][:times]


async def test_rec_071_072_the_alert_escalates_and_backs_off_and_can_be_disabled(on_sqlite: Storage) -> None:
    levels = await alerts(on_sqlite, 2, 9)
    assert [n + 1 for n, level in enumerate(levels) if level == "error"] == [2, 4, 8]
    assert len(levels) == 9
    assert await alerts(on_sqlite, 0, 5) == ["warning"] * 5


async def test_rec_073_shutdown_is_not_a_timeout(on_sqlite: Storage) -> None:
    await old(on_sqlite, 1)
    handler = Stub(lambda _: asyncio.sleep(60))
    with capture_logs() as logs:
        async with managing(on_sqlite, handler, attempt_timeout=60.0, stuck_alert_threshold=1) as manager:
            await until(lambda: handler.requests)
    assert (manager.numbers.timeouts, manager.numbers.interrupted) == (0, 1)
    events = [line["event"] for line in logs]
    assert "recovery_interrupted" in events
    assert "recovery_timeout" not in events
    row = await read(on_sqlite, tx(1))
    assert (row.owner, row.attempts, row.failures) == (None, 0, 0)


async def test_rec_074_summary_separates_skipped_from_succeeded(on_sqlite: Storage) -> None:
    await old(on_sqlite, 1)
    stubborn = Stubborn(Valid())
    handler = Stub(lambda txid: stubborn.recover(txid) if txid == tx(1) else Valid())
    with capture_logs() as logs:
        async with stubborn, managing(on_sqlite, handler, attempt_timeout=0.05) as manager:
            await until(lambda: manager.numbers.stuck)
            await old(on_sqlite, 2)
            await until(becomes(on_sqlite, tx(2), "confirmed"))
            await until(lambda: any(line.get("skipped") == 1 and line.get("settled") == 1 for line in logs))
    assert not any(line["event"] == "recovery_wedged" for line in logs)


# --- leadership --------------------------------------------------------------------------------------------------


async def test_rec_076_078_one_holder_at_a_time_also_after_the_acquiring_deadline(pg_lab: Lab) -> None:
    async with pg_lab.storage() as one, pg_lab.storage() as two:
        holder, other = await one.session(lambda: None), await two.session(lambda: None)
        async with asyncio.timeout(0.1):
            assert await holder.lead()
        assert await holder.lead()
        await asyncio.sleep(0.15)
        assert not await other.lead()
        await holder.close()
        assert await other.lead()
        await other.close()


async def test_rec_077_close_twice(storage: Storage) -> None:
    session = await storage.session(lambda: None)
    assert await session.lead()
    await session.close()
    await session.close()
    with pytest.raises(StoreAway):
        await session.lead()


async def test_rec_079_different_ids_do_not_conflict(pg_lab: Lab) -> None:
    stores = [PostgresStorage(pg_lab.uri, lease_s=30.0, lock=n, table=pg_lab.table) for n in (1, 2)]
    sessions = []
    for store in stores:
        await store.open()
        sessions.append(await store.session(lambda: None))
    assert [await session.lead() for session in sessions] == [True, True]
    for store, session in zip(stores, sessions, strict=True):
        await session.close()
        await store.close()


def test_rec_081_derived_id_is_stable_and_distinct() -> None:
    names = itertools.product((0, 1), ("public", "a"), ("recovery", "recovery_tx"), ("leader", "schema"))
    ids = {name: lock_id(*name) for name in names}
    assert len(set(ids.values())) == len(ids)
    assert {name: lock_id(*name) for name in ids} == ids
    assert all(-(1 << 63) <= each < 1 << 63 for each in ids.values())
    assert lock_id(0, "public", "recovery_tx", "leader") == 4436303747282636489


async def test_rec_082_lost_session_is_noticed(on_postgres: Storage, pg_lab: Lab) -> None:
    """What was not started is released. No other leads here, so it is claimed again, in another generation."""
    await old(on_postgres, *range(10))
    handler = answers_after(go := asyncio.Event())
    with capture_logs() as logs:
        async with managing(on_postgres, handler, worker_count=1, scan_interval=60.0) as manager:
            await until(lambda: handler.requests)
            first = handler.requests[0]
            await pg_lab.sql("SELECT pg_terminate_backend(pid) FROM pg_locks WHERE locktype = 'advisory' AND granted")
            await until(lambda: manager.numbers.leadership_losses == 1)
            await until(lambda: manager.numbers.leader)
            assert handler.requests == [first]
            go.set()
            await until(lambda: manager.numbers.settled["confirmed"] == 10)
    (lost,) = [line for line in logs if line["event"] == "leadership_lost"]
    assert (lost["log_level"], lost["unstarted"]) == ("warning", 9)
    generations = {row.id: row.generation for row in await on_postgres.rows("confirmed", 100)}
    assert generations == {tx(n): 1 if tx(n) == first else 2 for n in range(10)}


# --- resilience --------------------------------------------------------------------------------------------------


async def test_rec_083_crash_then_reclaim(on_sqlite: Storage, sqlite_lab: Lab) -> None:
    await old(on_sqlite, 1)
    assert await claimed(on_sqlite, "killed", lease_s=30.0) == [tx(1)]
    async with managing(on_sqlite, Stub()) as manager:
        await until(lambda: manager.numbers.sweeps >= 3)
        assert await status(on_sqlite, tx(1)) == "pending"
        await sqlite_lab.pass_time(31)
        await until(becomes(on_sqlite, tx(1), "confirmed"))


async def test_rec_084_stuck_rows_do_not_starve_new_ones(on_sqlite: Storage) -> None:
    await old(on_sqlite, *range(8))
    await old(on_sqlite, 100, age_s=31.0)
    handler = Stub(lambda txid: Valid() if txid == tx(100) else asyncio.sleep(60))
    async with managing(on_sqlite, handler, batch_size=8, worker_count=4, attempt_timeout=0.1, retry_cap=60.0):
        await until(becomes(on_sqlite, tx(100), "confirmed"), 5.0)


async def test_rec_085_busy_rows_do_not_starve_new_ones(on_sqlite: Storage) -> None:
    await old(on_sqlite, *range(8))
    await old(on_sqlite, 100, age_s=31.0)
    source = {tx(100): Mined(5, 6)}
    handler = Stub(lambda txid: Source(Fixed(source.get(txid, Pending())), 6).recover(txid))
    async with managing(on_sqlite, handler, batch_size=8, dice=lambda _, high: high):
        await until(becomes(on_sqlite, tx(100), "confirmed"), 5.0)
    assert await status(on_sqlite, tx(0)) == "pending"


async def test_rec_087_attempts_are_limited(on_sqlite: Storage) -> None:
    broken = [True]
    handler = Stub(lambda _: OSError("no route") if broken[0] else Valid())
    row = await after(on_sqlite, handler, "dead", max_attempts=3)
    assert (row.failures, row.last_error, len(row.history)) == (3, "OSError: no route", 3)
    assert await claimed(on_sqlite, "B") == []
    assert [each.id for each in await on_sqlite.rows("dead", 10)] == [tx(1)]
    broken[0] = False
    async with managing(on_sqlite, handler):
        assert await on_sqlite.replay([tx(1)]) == {tx(1)}
        await until(becomes(on_sqlite, tx(1), "confirmed"))


async def test_rec_089_graceful_stop_releases_unstarted_claims(on_sqlite: Storage) -> None:
    await old(on_sqlite, *range(10))
    handler = answers_after(go := asyncio.Event())
    manager = manage(on_sqlite, handler, worker_count=2)
    await manager.start()
    await until(lambda: len(handler.requests) == 2)
    assert manager.numbers.claims == 10
    stopping = asyncio.ensure_future(manager.stop())
    await until(lambda: manager.numbers.released == 8)
    assert len(await claimed(on_sqlite, "B")) == 8
    go.set()
    await stopping
    assert (await on_sqlite.counts()).by_status["confirmed"] == 2
    assert len(handler.requests) == 2


async def test_rec_090_handler_crash_is_contained(on_sqlite: Storage) -> None:
    crashes = [LookupError("a bug"), RecursionError("another")]
    row = await after(on_sqlite, Stub(lambda _: crashes.pop(0) if crashes else Valid()), "confirmed", worker_count=1)
    assert [each.outcome for each in row.history] == ["transient", "transient", "valid"]
    assert [each.error for each in row.history][:2] == ["LookupError: a bug", "RecursionError: another"]
