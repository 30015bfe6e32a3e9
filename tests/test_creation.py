"""Creation of large transactions: a fault, a kill or a rival at any step never leaves a part that can be spent."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterator
from contextlib import closing
from time import time
from typing import Any, TypeVar

import pytest
from conformance.transactions_subject import Subject
from conformance.words import Op
from stores import draft

from handlers.claims import spend
from handlers.creation import Creation, heal, lock_ttl
from handlers.events import Error, TxSubmitted
from handlers.recovery.records import Records
from handlers.spending import TxFault
from handlers.transactions import TxView
from storage.pool import TABLES
from storage.pool_layout import claim

_T = TypeVar("_T")
Rows = dict[str, dict[bytes, list[bytes]]]

PARENT: Op = {"op": "create", "tx": "P", "outs": 1, "height": 1, "createdAtMs": 1}
LARGE: Op = {"op": "create", "tx": "A", "outs": 7, "height": 5, "ins": ["P:0"], "spends": True, "createdAtMs": 5}
STEPS = [
    "lock.acquire",
    *(f"record.write:{number}" for number in range(4)),
    *(f"clearCreating:{number}" for number in (1, 2, 3, 0)),
    "lock.release",
]
WHOLE_AFTER = STEPS.index("clearCreating:0")
LATER = 1000  # seconds, when every lock has ended


def rows(subject: Subject, *, locks: bool = False, without: str = "") -> Rows:
    """Return every row of the transaction store but locks, without those of one transaction."""
    found: Rows = {}
    left_out = subject.words.txid(without)
    with subject.daemon.disk.read() as txn:
        for name in (table.rstrip("*") for table in TABLES):
            table = found[name] = {}
            for key, value in txn.cursor(subject.daemon.disk.tables[name]):
                if key.startswith(left_out) or value.startswith(left_out) or left_out in key:
                    continue
                if locks or name != "tx" or key[32:] != b"\xff" * 4:
                    table.setdefault(key, []).append(value)
    return found


def fresh() -> Subject:
    subject = Subject()
    subject.run({"op": "config", "batchSize": 2})
    subject.run(PARENT)
    return subject


@pytest.fixture
def subject() -> Iterator[Subject]:
    with closing(fresh()) as made:
        yield made


@pytest.fixture(scope="module")
def before() -> Rows:
    with closing(fresh()) as made:
        return rows(made)


@pytest.fixture(scope="module")
def after() -> Rows:
    with closing(fresh()) as made:
        assert made.run(LARGE) == {"result": "ok"}
        return rows(made)


def slots(subject: Subject, name: str) -> list[str | None]:
    found: list[str | None] = subject.run({"op": "get", "tx": name}).get("slots", [])
    return found


def assert_spendable_only_when_complete(subject: Subject) -> None:
    state = subject.state("A")
    whole = state is not None and not state["creating"]
    assert slots(subject, "P") == (["A:0"] if whole else ["unspent"])
    if whole:
        assert slots(subject, "A") == ["unspent"] * 7
        return
    for index in range(7):
        refused = subject.run({"op": "spend", "tx": "B", "ins": [f"A:{index}"], "height": 6, "ignoreLocked": True})
        assert refused["perInput"] == {"0": "TX_NOT_FOUND" if state is None else "CREATING"}


# --- faults and crashes --------------------------------------------------------------------------------------------


def test_the_steps(subject: Subject) -> None:
    """The other tests interrupt each of these steps."""
    seen: list[str] = []
    real = subject.faults.write

    def watched(commit: Callable[..., Any], work: Callable[[TxView], Any], step: str = "") -> Any:
        seen.append(step)
        return real(commit, work, step)

    subject.faults.write = watched  # type: ignore[method-assign]
    subject.run(LARGE)
    assert [step for step in seen if step] == STEPS


@pytest.mark.parametrize("when", ["before", "after"])
@pytest.mark.parametrize("step", STEPS)
@pytest.mark.parametrize("cure", ["again", "recovery"])
def test_a_process_that_is_killed(step: str, when: str, cure: str, subject: Subject, before: Rows, after: Rows) -> None:
    dying(subject, step, when)
    assert subject.run(LARGE) == {"result": "error", "code": "CRASH"}
    assert_spendable_only_when_complete(subject)
    done = STEPS.index(step) + (when == "after")
    assert (subject.state("lock") is not None) == (0 < done < len(STEPS))
    if cure == "again":
        if 0 < done < len(STEPS) - 1:  # its lock still counts
            held = rows(subject, locks=True)
            assert subject.run(LARGE) == {"result": "error", "code": "TX_EXISTS"}
            assert rows(subject, locks=True) == held
        again = subject.run(LARGE | {"afterSeconds": LATER})
        assert again == ({"result": "ok"} if done <= 1 else {"result": "error", "code": "TX_EXISTS"})
        assert rows(subject) == after
    else:
        finished, removed = subject.daemon.write(heal)
        assert (len(finished), len(removed)) == (int(5 <= done <= WHOLE_AFTER), int(1 < done < 5))
        assert rows(subject) == (after if done >= 5 else before)
        assert subject.daemon.write(heal) == ([], [])
        again = subject.run(LARGE | {"afterSeconds": LATER})
        assert again == ({"result": "ok"} if done < 5 else {"result": "error", "code": "TX_EXISTS"})
        assert rows(subject) == after
    assert_spendable_only_when_complete(subject)


def dying(subject: Subject, at: str, moment: str) -> None:
    real, last = subject.faults.crashes, (moment, at)
    subject.faults.set.clear()

    def crashes(when: str, step: str) -> bool:
        return (when, step) == last or real(when, step)

    subject.faults.crashes = crashes  # type: ignore[method-assign]
    reopen = subject.daemon.restart

    def revived() -> None:
        subject.faults.crashes = real  # type: ignore[method-assign]
        reopen()

    subject.daemon.restart = revived  # type: ignore[method-assign]


def test_a_blob_that_cant_be_written(subject: Subject, before: Rows, after: Rows) -> None:
    subject.run({"op": "fault", "at": "blob.write"})
    assert subject.run(LARGE) == {"result": "error", "code": "STORAGE_ERROR"}
    assert rows(subject, locks=True) == before
    assert subject.run(LARGE) == {"result": "ok"}
    assert rows(subject, locks=True) == after


def test_recovery_removes_a_creation_whose_lock_was_not_released(subject: Subject, before: Rows) -> None:
    for step in ("record.write:2", "lock.release"):
        subject.run({"op": "fault", "at": step})
    subject.run(LARGE)
    records = Records(subject.daemon.transactions)
    assert subject.daemon.write(lambda view: records.heal(view, subject.words.txid("A"))) is False
    assert rows(subject, locks=True) == before


def test_locks_that_were_given_up_are_remembered_only_until_they_end(subject: Subject) -> None:
    for name in "ABC":
        for step in ("record.write:1", "lock.release"):
            subject.run({"op": "fault", "at": step})
        subject.run(LARGE | {"tx": name})
        given_up = subject.daemon.transactions.given_up
        assert len(given_up) == 1
        given_up.update(dict.fromkeys(given_up, 0.0))  # they have ended


@pytest.mark.parametrize("missing", range(1, 4))
def test_mining_an_incomplete_transaction_is_refused(missing: int, subject: Subject) -> None:
    subject.run({"op": "fault", "at": f"record.write:{missing}"})
    subject.run(LARGE)
    half = rows(subject)
    mined = subject.run({"op": "setMined", "txs": ["A"], "block": 7, "height": 6, "subtree": 0})
    assert (mined["result"], mined["code"]) == ("error", "CREATING")
    assert rows(subject) == half


def test_a_pruned_transaction_is_created_again_from_nothing(subject: Subject, after: Rows) -> None:
    """Further pages are deleted after the master, so a process that is killed in between leaves spent pages."""
    subject.run(LARGE)
    spent = [subject.words.outpoint(out) for out in ("A:3", "A:6")]
    subject.daemon.write(lambda view: spend(view, subject.words.txid("B"), spent, 6))
    subject.daemon.write(lambda view: view.rows.remove(subject.words.txid("A"), 0))
    subject.daemon.write(lambda view: view.release(subject.words.outpoint("P:0"), claim(subject.words.txid("A"), 0)))
    assert subject.state("A#1")["spentUtxos"] == 1
    assert subject.run(LARGE) == {"result": "ok"}
    assert rows(subject) == after
    assert_spendable_only_when_complete(subject)


# --- others --------------------------------------------------------------------------------------------------------


def rival(subject: Subject, where: str) -> None:
    real = subject.faults.write

    def watched(commit: Callable[..., Any], work: Callable[[TxView], Any], step: str = "") -> Any:
        if step == where:
            subject.faults.write = real  # type: ignore[method-assign]
            subject.run({"op": "spend", "tx": "R", "ins": ["P:0"], "height": 6})
        return real(commit, work, step)

    subject.faults.write = watched  # type: ignore[method-assign]


@pytest.mark.parametrize("step", STEPS[1 : WHOLE_AFTER + 1])
def test_a_creation_whose_input_is_spent_meanwhile_is_removed(step: str, subject: Subject, before: Rows) -> None:
    rival(subject, step)
    answer = subject.run(LARGE)
    assert (answer["code"], answer["perInput"]) == ("UTXO_ERROR", {"0": {"code": "SPENT", "conflictingTx": "R"}})
    assert subject.state("A") is None
    assert subject.state("lock") is None
    assert slots(subject, "P") == ["R:0"]
    left = rows(subject, locks=True, without="R")
    assert left.keys() == before.keys()
    assert left["tx"].keys() == before["tx"].keys()
    assert left["tx_unmined"] == before["tx_unmined"]
    assert subject.state("blob:A") == {"kind": "tx", "name": "A.tx"}  # an orphan, for the sweep
    assert subject.run(LARGE)["code"] == "UTXO_ERROR"
    assert subject.state("A") is None


def test_a_creation_whose_parent_is_deleted_is_refused(subject: Subject) -> None:
    """A missing parent is tolerated only for accepted transactions."""
    subject.run({"op": "fault", "at": "clearCreating:0"})
    subject.run(LARGE)
    subject.daemon.write(lambda view: view.remove(subject.words.txid("P")))
    (refused,) = subject.daemon.ask(TxSubmitted(tx=subject.words.tx(LARGE)))
    assert isinstance(refused, Error) and refused.code == "UTXO_ERROR"
    assert refused.detail["inputs"] == [{"outpoint": subject.words.outpoint("P:0"), "code": "TX_NOT_FOUND"}]
    assert subject.state("A") is None
    subject.run({"op": "create", "tx": "B", "outs": 1, "height": 5})
    tolerated = {"op": "spend", "tx": "B", "ins": ["P:0"], "height": 6}
    assert subject.run(tolerated)["result"] == "ok", "one that was accepted does"


@pytest.mark.parametrize("number", range(4))
@pytest.mark.parametrize("kind", ["fails", "before", "after"])
def test_an_interrupted_removal_is_completed(number: int, kind: str, subject: Subject, before: Rows) -> None:
    rival(subject, "clearCreating:0")
    step = f"record.remove:{number}"
    if kind == "fails":
        subject.run({"op": "fault", "at": step})
        assert subject.run(LARGE)["code"] == "UTXO_ERROR"
    else:
        dying(subject, step, kind)
        assert subject.run(LARGE)["code"] == "CRASH"
    state = subject.state("A")
    assert (state is None) == ((number, kind) == (0, "after"))
    assert state is None or state["creating"]
    assert subject.run(LARGE | {"afterSeconds": LATER})["code"] == "UTXO_ERROR"
    subject.daemon.write(heal)
    assert slots(subject, "P") == ["R:0"]
    left = rows(subject, without="R")
    assert left["tx"].keys() == before["tx"].keys()
    assert left["tx_unmined"] == before["tx_unmined"]


def creation(subject: Subject, later_s: float = 0.0) -> Creation:
    tx, transactions = subject.words.tx(LARGE), subject.daemon.transactions
    record = draft(transactions.rules, tx, 5, created_at=5)
    return Creation(transactions, TxSubmitted(tx=tx), record, clock=lambda: time() + later_s)


def writer(subject: Subject) -> Callable[..., Any]:
    async def write(step: Callable[[TxView], _T]) -> _T:
        return subject.daemon.write(step)

    return write


async def attempt(creation: Creation, write: Callable[..., Any], subject: Subject) -> str:
    async def put_blob(name: str, data: bytes) -> None:
        subject.daemon.files.put(name, data)

    try:
        await creation.run(write, put_blob)
    except TxFault as fault:
        return fault.code
    return "ok"


@pytest.mark.parametrize("stall", STEPS[1:])
def test_a_creator_that_continues_after_its_lock_expired(stall: str, subject: Subject, after: Rows) -> None:
    """Another process has completed the creation in the meantime, so the first one must not write."""

    async def scenario() -> tuple[str, str]:
        stalled, resume = asyncio.Event(), asyncio.Event()
        at = -1

        async def slow(step: Callable[[TxView], _T]) -> _T:
            nonlocal at
            at += 1
            if STEPS[at] == stall and not stalled.is_set():
                stalled.set()
                await resume.wait()
            return subject.daemon.write(step)

        first = asyncio.create_task(attempt(creation(subject), slow, subject))
        await stalled.wait()
        second = await attempt(creation(subject, lock_ttl(4) + 1), writer(subject), subject)
        whole = rows(subject, locks=True)
        resume.set()
        answers = await first, second
        if stall != "lock.release":
            assert rows(subject, locks=True) == whole
        return answers

    first, second = asyncio.run(scenario())
    assert second == ("ok" if stall == "record.write:0" else "TX_EXISTS")
    assert first == ("ok" if stall == "lock.release" else "TX_EXISTS")
    assert rows(subject, locks=True) == after
    assert_spendable_only_when_complete(subject)
