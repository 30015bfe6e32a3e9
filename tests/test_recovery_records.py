"""What the recovery scan does to incomplete transactions and lone locks, while the daemon runs."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from functools import partial
from typing import Any, cast

import pytest
import test_creation
from conformance.transactions_subject import Subject
from test_creation import LARGE, STEPS, WHOLE_AFTER, Rows, assert_spendable_only_when_complete, dying, rows

import handlers.creation
import handlers.recovery.records
from handlers.creation import acquire
from handlers.recovery.chores import heal
from handlers.recovery.records import Records, Waiting
from handlers.spending import TxFault

subject, before, after = test_creation.subject, test_creation.before, test_creation.after


@pytest.mark.parametrize("step", STEPS)
def test_what_a_creator_leaves_is_ended_when_its_lock_has(
    step: str, subject: Subject, before: Rows, after: Rows, monkeypatch: pytest.MonkeyPatch
) -> None:
    """While its lock is valid it is not changed; then it is completed or removed, and a second check finds nothing."""
    dying(subject, step, "after")
    assert subject.run(LARGE) == {"result": "error", "code": "CRASH"}
    records, txid = Records(subject.daemon.transactions), subject.words.txid("A")
    done, left = STEPS.index(step) + 1, rows(subject, locks=True)
    monkeypatch.setattr(handlers.creation, "time", lambda: 0.0)  # its lock counts
    assert subject.daemon.write(lambda view: records.heal(view, txid)) is None
    assert rows(subject, locks=True) == left
    monkeypatch.setattr(handlers.creation, "time", lambda: 1e12)  # every lock has ended
    healed = subject.daemon.write(lambda view: records.heal(view, txid))
    assert healed is (None if done > WHOLE_AFTER else done >= 5)
    assert rows(subject) == (after if done >= 5 else before)
    assert subject.daemon.write(lambda view: records.heal(view, txid)) in (None, False)
    assert_spendable_only_when_complete(subject)


def test_what_is_being_created_is_not_healed(subject: Subject, monkeypatch: pytest.MonkeyPatch) -> None:
    dying(subject, "record.write:1", "after")
    subject.run(LARGE)
    monkeypatch.setattr(handlers.creation, "time", lambda: 1e12)
    records, txid, left = Records(subject.daemon.transactions), subject.words.txid("A"), rows(subject, locks=True)
    subject.daemon.transactions.on_their_way.add(txid)
    assert subject.daemon.write(lambda view: records.heal(view, txid)) is None
    assert rows(subject, locks=True) == left


def test_locks_without_a_transaction_are_found(subject: Subject, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(handlers.recovery.records, "_SEEKS", 2)
    for n in range(5):
        subject.run({"op": "create", "tx": f"T{n}", "outs": 1, "height": 1})
    lone = sorted(subject.words.txid(f"L{n}") for n in range(3))
    for txid in lone:
        subject.daemon.write(partial(acquire, txid=txid, owner=b"owner", records=2, now=1000.0))
    records, found, after, steps = Records(subject.daemon.transactions), list[bytes](), b"", 0
    while True:
        some, further = records.locked(after)
        found, steps = found + some, steps + 1
        if further is None:
            break
        after = further
    assert sorted(set(found)) == lone and steps > 3
    for txid in lone:  # they ended long ago
        assert subject.daemon.write(lambda view, txid=txid: records.heal(view, txid)) is False  # type: ignore[misc]
    assert records.locked(b"")[0] == []


def test_whatever_waits_is_found_in_steps(subject: Subject, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(handlers.recovery.records, "_SEEKS", 3)
    for n in range(11):
        subject.run({"op": "create", "tx": f"W{n}", "outs": 1, "height": 1 + n // 4})
    subject.run({"op": "create", "tx": "C", "outs": 1, "height": 2, "conflicting": True})
    subject.run({"op": "create", "tx": "B", "outs": 1, "height": 2, "coinbase": True})
    dying(subject, "record.write:0", "after")
    subject.run(LARGE)
    records, found = Records(subject.daemon.transactions), list[Waiting]()
    some, after = records.waiting(None)
    while after is not None:
        assert len(some) <= 3
        found += some
        some, after = records.waiting(after)
    kinds = dict.fromkeys(["P", *(f"W{n}" for n in range(11))], "whole") | {"C": "conflicting", "A": "half-made"}
    assert sorted(found + some) == sorted((subject.words.txid(name), kind) for name, kind in kinds.items())
    with pytest.raises(TxFault):
        subject.daemon.write(lambda view: view.need(subject.words.txid("nobody")))


@pytest.mark.anyio
async def test_incomplete_creations_are_completed_and_a_lock_without_a_record_is_removed(
    subject: Subject, monkeypatch: pytest.MonkeyPatch
) -> None:
    dying(subject, STEPS[5], "after")
    assert await asyncio.to_thread(subject.run, LARGE) == {"result": "error", "code": "CRASH"}
    subject.daemon.write(lambda view: acquire(view, subject.words.txid("L"), b"owner", 2, 1000.0))
    monkeypatch.setattr(handlers.creation, "time", lambda: 1e12)  # every lock has ended
    records, logged, reported = Records(subject.daemon.transactions), list[bytes](), list[int]()

    async def turn(work: Callable[[], Any]) -> Any:
        return work()

    def publish() -> None:
        reported.append(len(logged))

    async def write(step: Callable[[Any], Any]) -> Any:
        return subject.daemon.write(step)

    for find in (records.incomplete, records.locked):
        await heal(records, cast("Any", turn), cast("Any", find), write, logged.append, publish)
    assert logged == [subject.words.txid("A")]
    assert reported == [1, 1] and records.locked(b"") == ([], None)
