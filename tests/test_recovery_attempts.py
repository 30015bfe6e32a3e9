"""One attempt of a row at a time, and no row held forever, whatever locks, clocks, leases and handlers do."""

from __future__ import annotations

import asyncio
import sys
from collections import Counter
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from functools import partial
from pathlib import Path
from random import Random
from typing import Any

import asyncpg  # type: ignore[import-untyped]
import pytest
from recovering import (
    HOUR,
    Lab,
    Shaky,
    Stub,
    Stubborn,
    becomes,
    capture_logs,
    manage,
    managing,
    old,
    read,
    tx,
    until,
    wake,
)

import storage.recovery.postgres
import storage.recovery.sqlite
from handlers.recovery.outcome import Busy, Invalid, NotFound, Outcome, Permanent, Transient, Valid
from storage.recovery.sqlite import SqliteStorage, machine_ms
from storage.recovery.tables import Storage

pytestmark = pytest.mark.anyio
LOCKER = """
import sqlite3, sys
with sqlite3.connect(sys.argv[1], isolation_level=None, timeout=30) as other:
    other.execute("BEGIN EXCLUSIVE")
    print("locked", flush=True)
    sys.stdin.read()
other.close()
"""


@pytest.fixture(autouse=True)
def impatient(monkeypatch: pytest.MonkeyPatch) -> None:
    """A handler that was cancelled, and a database that is locked, are not awaited for long."""
    monkeypatch.setattr("handlers.recovery.attempts._SHUTTING_S", 0.05)
    monkeypatch.setattr(storage.recovery.sqlite, "_BUSY_S", 0.2)
    monkeypatch.setattr(storage.recovery.postgres, "ANSWER_S", 0.5)


@asynccontextmanager
async def locked(lab: Lab) -> AsyncIterator[None]:
    """Let another process keep everybody from writing rows."""
    if lab.kind == "postgresql":
        other = await asyncpg.connect(lab.uri)
        async with other.transaction():
            await other.execute(f"LOCK TABLE {lab.table} IN EXCLUSIVE MODE")
            yield
        await other.close()
        return
    pipes = {"stdin": asyncio.subprocess.PIPE, "stdout": asyncio.subprocess.PIPE}
    process = await asyncio.create_subprocess_exec(sys.executable, "-c", LOCKER, str(lab.path), **pipes)  # type: ignore[arg-type]
    assert process.stdout is not None
    assert await process.stdout.readline() == b"locked\n"
    try:
        yield
    finally:
        await process.communicate(b"")


# --- one place for a row -------------------------------------------------------------------------------------------


async def test_a_lock_longer_than_a_lease_starts_no_second_attempt(storage: Storage, lab: Lab) -> None:
    """The attempt outlives its cancellation and its lease; the row is claimed again for it, and its result written."""
    await old(storage, 1)
    handler = Stubborn(Valid("at last"))
    changes = {"attempt_timeout": 0.05, "lease_duration": 1.0}
    async with handler, managing(storage, handler, **changes) as manager:
        await until(lambda: manager.numbers.stuck)
        async with locked(lab):
            await until(lambda: manager.numbers.lease_losses)
        await until(lambda: manager.numbers.claims == 2)
        before = await read(storage, tx(1))

        async def renewed() -> bool:
            row = await read(storage, tx(1))
            assert row.lease_until is not None and before.lease_until is not None
            return row.lease_until > before.lease_until

        await until(renewed)
        assert (handler.requests[tx(1)], before.owner) == (1, manager.owner)
        handler.go.set()
        await until(becomes(storage, tx(1), "confirmed"))
        await until(lambda: manager.numbers.held == 0)
    row = await read(storage, tx(1))
    assert (row.message, row.owner, handler.requests[tx(1)]) == ("at last", None, 1)
    assert manager.numbers.conflicts == 0


async def test_an_attempt_does_not_speak_for_a_row_that_others_had_since(on_sqlite: Storage) -> None:
    """Its row is given back, again and again, until it has ended; then another attempt finds out what is true now."""
    await old(on_sqlite, 1)
    handler = Stubborn(Valid("before the rollback"), Invalid("after it"))
    async with handler, managing(on_sqlite, handler, attempt_timeout=0.05, lease_duration=1.0) as manager:
        await until(lambda: manager.numbers.stuck)
        await on_sqlite.conclude([tx(1)], "confirmed", "the listener")
        await until(lambda: manager.numbers.lease_losses)
        await on_sqlite.reopen([tx(1)], "rolled back")
        await until(lambda: manager.numbers.claims >= 3)
        row = await read(on_sqlite, tx(1))
        assert (row.status, row.attempts, row.last_error) == ("pending", 0, "an earlier attempt has not ended yet")
        assert handler.requests[tx(1)] == 1
        handler.go.set()
        await until(becomes(on_sqlite, tx(1), "deleted"))
    row = await read(on_sqlite, tx(1))
    assert (row.message, handler.requests[tx(1)], handler.most) == ("after it", 2, 1)


async def test_a_lease_that_ends_early_is_claimed_again(on_sqlite: Storage, sqlite_lab: Lab) -> None:
    """The clock of the database jumps ahead: the row stays ours: queued, attempted, or being written."""
    await old(on_sqlite, 1, 2)
    shaky = Shaky(on_sqlite)
    go = shaky.before["settle"] = asyncio.Event()
    handler = Stubborn(Valid())
    async with handler, managing(shaky, handler, worker_count=1) as manager:
        await until(lambda: manager.numbers.claims == 2)
        await until(lambda: handler.requests)
        await sqlite_lab.pass_time(31)  # one is attempted, one is queued
        await until(lambda: manager.numbers.claims == 4)
        handler.go.set()
        await until(lambda: "settle" in shaky.calls)
        await sqlite_lab.pass_time(31)  # one or both are being written
        await until(lambda: manager.numbers.claims == 6)
        go.set()
        for n in (1, 2):
            await until(becomes(on_sqlite, tx(n), "confirmed"))
        await until(lambda: manager.numbers.held == 0)
    numbers = manager.numbers
    assert (sum(handler.requests.values()), numbers.conflicts, numbers.lease_losses) == (2, 0, 0)
    assert (await read(on_sqlite, tx(1))).generation == 3


async def test_a_row_that_falls_due_while_its_answer_is_on_the_way_is_attempted_again(on_sqlite: Storage) -> None:
    """It was put off by a result that landed, and claimed again before we heard that it had."""
    await old(on_sqlite, 1)
    shaky = Shaky(on_sqlite)
    go = shaky.after["settle"] = asyncio.Event()
    handler = Stub(lambda _: Busy("once more") if len(handler.requests) == 1 else Valid())
    async with managing(shaky, handler) as manager:
        await until(lambda: manager.numbers.claims == 2)
        go.set()
        await until(becomes(on_sqlite, tx(1), "confirmed"))
    assert (len(handler.requests), manager.numbers.conflicts) == (2, 0)


async def test_an_attempt_that_outlives_the_service_keeps_its_row(on_sqlite: Storage, sqlite_lab: Lab) -> None:
    await old(on_sqlite, 1)
    handler = Stubborn(Valid("of another life"))
    changes = {"attempt_timeout": 0.05, "lease_duration": 1.0}
    async with handler:
        async with managing(on_sqlite, handler, **changes) as manager:
            await until(lambda: manager.numbers.stuck)
        await manager.start()
        await sqlite_lab.pass_time(2)
        await until(lambda: manager.numbers.claims == 2)
        handler.go.set()
        await until(becomes(on_sqlite, tx(1), "confirmed"))
        await manager.stop()
    assert (await read(on_sqlite, tx(1))).message == "of another life"
    assert handler.requests[tx(1)] == 1


async def test_a_worker_is_replaced_while_its_attempt_does_not_end(on_sqlite: Storage) -> None:
    running, most = Counter[bool](), 0

    async def counted(txid: bytes) -> Outcome:
        nonlocal most
        running[True] += 1
        most = max(most, running[True])
        await asyncio.sleep(0.01)
        running[True] -= 1
        return Valid()

    await old(on_sqlite, 1)
    stubborn = Stubborn(Valid("at last"))
    handler = Stub(lambda txid: stubborn.recover(txid) if txid == tx(1) else counted(txid))
    async with stubborn, managing(on_sqlite, handler, attempt_timeout=0.05, worker_count=1) as manager:
        await until(lambda: manager.numbers.stuck)
        await old(on_sqlite, *range(2, 6))
        await until(lambda: manager.numbers.settled["confirmed"] == 4)
        stubborn.go.set()
        await until(becomes(on_sqlite, tx(1), "confirmed"))
        await old(on_sqlite, *range(6, 12))
        await until(lambda: manager.numbers.settled["confirmed"] == 11)
    assert (most, manager.numbers.conflicts) == (1, 0)


async def test_a_cancelled_handler_may_wait_to_end(on_sqlite: Storage, monkeypatch: pytest.MonkeyPatch) -> None:
    """It is not cancelled again at once, so what it awaits then is carried out."""
    monkeypatch.setattr("handlers.recovery.attempts._SHUTTING_S", 10.0)
    ended = list[str]()

    async def slow() -> Outcome:
        try:
            await asyncio.sleep(60)
        finally:
            for step in ("first", "second"):
                await asyncio.sleep(0.005)
                ended.append(step)
        return Valid()

    await old(on_sqlite, 1)
    async with managing(on_sqlite, Stub(lambda _: slow()), attempt_timeout=0.05) as manager:
        await until(lambda: manager.numbers.outcomes["timeout"])
        assert ended[:2] == ["first", "second"]
    assert not manager._attempts.abandoned


async def test_a_lost_lease_cancels_the_attempt_and_a_later_result_is_logged(on_sqlite: Storage) -> None:
    await old(on_sqlite, 1)
    handler = Stubborn(Valid("too late"))
    with capture_logs() as logs:
        async with handler, managing(on_sqlite, handler, lease_duration=1.0, attempt_timeout=3600.0) as manager:
            await until(lambda: handler.requests)
            await on_sqlite.conclude([tx(1)], "deleted", "an operator")
            await until(lambda: handler.cancelled)
            assert manager.numbers.lease_losses == 1
            handler.go.set()
            await until(lambda: manager.numbers.held == 0)
    (late,) = [line for line in logs if line["event"] == "result_too_late"]
    assert (late["txid"], late["outcome"]) == (tx(1).hex(), "valid")
    assert (await read(on_sqlite, tx(1))).message == "an operator"


# --- clocks --------------------------------------------------------------------------------------------------------


async def test_a_clock_that_is_set_back_holds_no_row_of_a_killed_instance(storage: Storage, lab: Lab) -> None:
    await old(storage, 1, 2)
    (first,) = await storage.claim("killed", 30.0, 1)
    await lab.pass_time(-10.0)  # less than a lease: it is awaited, or we would take rows from who is alive
    assert len(await storage.claim("alive", 30.0, 1)) == 1
    assert await storage.claim("another", 30.0, 2) == []
    await lab.pass_time(-2 * HOUR)
    again = await storage.claim("another", 30.0, 9)
    assert {claim.txid for claim in again} == {tx(1), tx(2)}
    assert {claim.generation for claim in again} == {2}
    assert await storage.renew([first], 30.0) == set()


async def test_a_clock_that_is_set_back_does_not_put_rows_off(tmp_path: Path) -> None:
    skew_ms = 2 * round(HOUR) * 1000

    def skewed() -> int:
        return machine_ms() + skew_ms

    store = SqliteStorage(tmp_path / "recovery.db", skewed)
    await store.open()
    try:
        await store.add([tx(1)], 0.0, 1.0)
        (claim,) = await store.claim("A", 30.0, 1)
        await store.release([claim])
        await store.add([tx(2)], 30.0)
        skew_ms = 0
        assert {each.txid for each in await store.claim("A", 30.0, 9)} == {tx(1), tx(2)}
        assert await store.claim("A", 30.0, 9) == []
        skew_ms = 2 * round(HOUR) * 1000
        await store.add([tx(3)], 30.0)
    finally:
        await store.close()
    skew_ms = 0
    store = SqliteStorage(tmp_path / "recovery.db", skewed)
    await store.open()
    try:
        assert tx(3) in {each.txid for each in await store.claim("B", 30.0, 9)}
        await store.add([tx(4)], 30.0)
        assert await store.claim("B", 30.0, 9) == []  # it is young, and not put off
    finally:
        await store.close()


# --- handlers and callbacks that misbehave ---------------------------------------------------------------------------


class Wrong:
    def __init__(self, answer: Callable[[], Any]) -> None:
        self.answer = answer

    def recover(self, txid: bytes) -> Any:
        async def right() -> Outcome:
            return Valid()

        return right() if txid == tx(2) else self.answer()


async def raising(error: BaseException) -> Outcome:
    raise error


async def giving(answer: Any) -> Any:
    return answer


@pytest.mark.parametrize(
    ("answer", "error"),
    [
        (lambda: raising(asyncio.CancelledError()), "the handler cancelled itself"),
        (lambda: raising(ValueError("half a character: \udce9")), "ValueError: half a character: ?"),
        (lambda: giving(None), "TypeError: the handler returned None, which is not an outcome"),
        (lambda: giving(Invalid(None)), "Expected `str`, got `null`"),  # type: ignore[arg-type]
        (lambda: giving(Busy("", float("nan"))), "a patience of nan s"),
        (lambda: giving(Busy("", 1e300)), "a patience of 1e+300 s"),
        (Valid, "TypeError: object Valid can't be used in 'await' expression"),
        (lambda: 1 // 0, "ZeroDivisionError"),
    ],
)
async def test_a_handler_that_misbehaves_fails_its_row(
    on_sqlite: Storage, answer: Callable[[], Any], error: str
) -> None:
    await old(on_sqlite, 1)
    async with managing(on_sqlite, Wrong(answer), max_attempts=2, worker_count=1):
        await until(becomes(on_sqlite, tx(1), "dead"))
        await old(on_sqlite, 2)
        await until(becomes(on_sqlite, tx(2), "confirmed"))
    row = await read(on_sqlite, tx(1))
    assert error in row.last_error
    assert [look.outcome for look in row.history] == ["transient", "transient"]


async def test_callbacks_that_raise_are_contained(on_sqlite: Storage) -> None:
    """Each is logged and counted; claiming, settling and the other callbacks continue."""
    await old(on_sqlite, 1)
    calls, broken = Counter[str](), {"changed", "available", "chore"}

    def call(name: str) -> bool:
        if name in broken:
            raise LookupError(f"a bug in {name}")
        calls[name] += 1
        return True

    async def chore(name: str) -> None:
        call(name)

    callbacks: dict[str, Any] = {name: partial(call, name) for name in ("changed", "available")}
    callbacks["chores"] = [(0.0, partial(chore, name)) for name in ("chore", "another chore")]
    with capture_logs() as logs:
        async with managing(on_sqlite, Stub(), **callbacks) as manager:
            await until(lambda: manager.numbers.callback_errors >= 3 and calls["another chore"] >= 2)
            assert manager.numbers.claims == 0  # while it is unknown whether a source is available
            broken -= {"available", "chore"}
            await until(lambda: manager.numbers.settled["confirmed"] == 1)
            await old(on_sqlite, 2)
            await until(lambda: manager.numbers.settled["confirmed"] == 2)
            assert not calls["changed"]
            broken.clear()
            await old(on_sqlite, 3)
            await until(lambda: calls["changed"] == 1)
    failures = [line for line in logs if line["event"] == "callback_failed"]
    assert {line["callback"] for line in failures} == {"available", "changed", "chore"}
    assert len(failures) == manager.numbers.callback_errors


# --- random sequences -----------------------------------------------------------------------------------------------


class Moody(Stubborn):
    """A handler that is quick or slow, raises, cancels itself, or ignores its cancellation; correct in the end."""

    def __init__(self, random: Random) -> None:
        super().__init__(Valid())
        self.random, self.calm, self.met = random, False, Counter[str]()

    async def recover(self, txid: bytes) -> Outcome:
        self.running[txid] += 1
        self.most = max(self.most, self.running[txid])
        try:
            return Valid() if self.calm else await self._in_a_mood()
        finally:
            self.running[txid] -= 1

    async def _in_a_mood(self) -> Outcome:
        mood = self.random.choice(["quick", "slow", "stubborn", "raises", "cancelled", "busy", "unknown", "away"])
        self.met[mood] += 1
        match mood:
            case "slow":
                await asyncio.sleep(self.random.random() / 4)
            case "stubborn":
                ended = asyncio.get_running_loop().time() + self.random.random()
                while not self.calm and asyncio.get_running_loop().time() < ended:
                    try:
                        await asyncio.sleep(0.05)
                    except asyncio.CancelledError:
                        continue
            case "raises":
                raise LookupError("a bug")
            case "cancelled":
                raise asyncio.CancelledError
            case "busy" | "unknown":
                return Busy("not yet") if mood == "busy" else NotFound()
            case "away":
                return Transient("down", counts=False)
        ends: list[Outcome] = [Valid(), Invalid("no"), Permanent("no")]
        return self.random.choice(ends)


@pytest.mark.parametrize(("lab", "seed"), [("sqlite", 1), ("postgresql", 2)], indirect=["lab"])
async def test_no_row_stays_held_whatever_happens(storage: Storage, lab: Lab, seed: int) -> None:
    """Locks, outages, lost answers, clocks that jump, operators, listeners, and the service stopped in between."""
    random = Random(seed)
    rows = [tx(n) for n in range(12)]
    await storage.add(rows, 0.0, HOUR)
    shaky, handler, met = Shaky(storage), Moody(random), Counter[str]()
    changes = {"attempt_timeout": 0.1, "lease_duration": 1.0, "max_attempts": 3, "batch_size": 20}
    manager = manage(shaky, handler, not_found_grace_period=0.01, **changes)
    await manager.start()

    async def restart() -> None:
        await manager.stop()
        await manager.start()

    some = partial(random.sample, rows, 4)
    events: dict[str, Callable[[], Any]] = {
        "clock ahead": lambda: lab.pass_time(random.choice([0.7, 2.0, 100.0])),
        "clock back": lambda: lab.pass_time(-random.choice([0.7, 5.0, 100.0])),
        "concluded": lambda: storage.conclude(some(), "confirmed", "the listener"),
        "discarded": lambda: storage.discard(some(), "an operator"),
        "reopened": lambda: storage.reopen(rows, "the chain"),
        "revoked": lambda: storage.revoke(some()),
        "woken": lambda: wake(storage, rows),
        "restarted": restart,
    }

    def met_all() -> bool:
        return len(handler.met) == 8 and bool(manager.numbers.lease_losses and manager.numbers.timeouts)

    for step in range(120):
        if step >= 30 and met_all():
            break
        await storage.reopen(some(), "so that there is something to do")
        await wake(storage, rows)
        event = random.choice([*events, "broken", "mute"])
        met[event] += 1
        if event in ("broken", "mute"):
            verbs = set(random.sample(["claim", "settle", "renew", "release"], 2))
            getattr(shaky, event).update(verbs)
            await asyncio.sleep(random.choice([0.05, 0.1, 0.4]))
            getattr(shaky, event).clear()
        else:
            await events[event]()
            await asyncio.sleep(random.random() / 10)
    handler.calm = True
    await storage.reopen(rows, "for the last time")

    async def over() -> bool:
        await wake(storage, rows)
        listed = await storage.rows(None, 100)
        return all(row.status != "pending" and row.owner is None for row in listed)

    await until(over)
    await until(lambda: manager.numbers.held == 0)
    await manager.stop()
    print(f"seed {seed}: {dict(met)}, {dict(handler.met)}, {manager.numbers}")
    assert handler.most == 1
    assert met_all()
