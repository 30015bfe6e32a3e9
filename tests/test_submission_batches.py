"""Messages that share a commit get the answers, the facts and the rows that they get one by one."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path
from random import Random
from typing import Any

import pytest
from chains import Branches, at, block, phrases, txid
from msgspec.structs import replace
from test_pending import Pool, open_pool, pay

import handlers.transactions
from handlers.events import (
    Ack,
    BlockApplied,
    Error,
    Fact,
    Inbound,
    OutPoint,
    OutputsFrozen,
    OutputsUnfrozen,
    TxConflicting,
    TxLocked,
    TxMessage,
    TxSubmitted,
    TxUnlocked,
    TxWithdrawn,
)
from storage.jobs import TABLES as JOB_TABLES
from storage.pending import TABLE as PENDING
from storage.pool import TABLES as TX_TABLES
from storage.pool_layout import HASH, output_hash

MOST = 2, 30  # submissions that may wait
TO_MEET = phrases(
    "accepted; duplicate; recorded as conflicting; a parent of the same batch; a rival of the same batch; evicted; "
    "SPENT; TX_NOT_FOUND; UTXO_NOT_FOUND; UTXO_HASH_MISMATCH; FROZEN; LOCKED; CONFLICTING; PENDING_FULL; withdrawn; "
    "a parent that is withdrawn in the same batch; a block"
)


class Scenario:
    """Random messages, of which none depends on an answer."""

    def __init__(self, random: Random) -> None:
        self.random = random
        self.blocks = [block(None, *(pay(f"fund {n}", outs=4) for n in range(8)))]
        self.names = [f"fund {n}" for n in range(8)]

    def messages(self) -> Iterator[TxMessage]:
        for _ in range(self.random.randint(1, 25)):
            kind = self.random.random()
            if kind < 0.8:
                yield self._submission()
            elif kind < 0.84:
                yield TxWithdrawn(txids=[txid(self._name())], reason="evicted")
            elif kind < 0.9:
                kinds: list[type[TxLocked | TxUnlocked]] = [TxLocked, TxUnlocked]
                yield self.random.choice(kinds)(txids=[txid(self._name())])
            elif kind < 0.97:
                marks: list[type[OutputsFrozen | OutputsUnfrozen]] = [OutputsFrozen, OutputsUnfrozen]
                yield self.random.choice(marks)(outpoints=[self._output()])
            else:
                yield TxConflicting(txids=[txid(self._name())])

    def _name(self) -> str:
        return self.random.choice(self.names[-20:])

    def _output(self) -> OutPoint:
        name = self._name() if self.random.random() < 0.97 else "nobody"
        return at(name, self.random.choice([0, 0, 1, 1, 2, 7]))

    def _submission(self) -> TxSubmitted:
        random = self.random
        if random.random() < 0.1:
            name = self._name()
        else:
            self.names.append(name := f"t {len(self.names)}")
        spends = [self._output() for _ in range(random.choice([1, 1, 2, 3]))]
        hashes = [output_hash(*each, b"another") if random.random() < 0.3 else None for each in spends]
        return TxSubmitted(
            tx=pay(name, *spends, outs=3),
            locked=random.random() < 0.05,
            on_spent=random.choice(["refuse", "record"]),
            input_hashes=hashes if random.random() < 0.1 else None,
        )

    def block(self) -> BlockApplied:
        """Return a block with some of what was submitted, whatever became of it."""
        chosen = [at(f"fund {self.random.randrange(8)}", 3) for _ in range(2)]
        made = block(self.blocks[-1], *(pay(f"m {len(self.blocks)} {n}", each) for n, each in enumerate({*chosen})))
        self.blocks.append(made)
        return made


class Side:
    def __init__(self, pool: Pool) -> None:
        self.pool = pool
        self.answers: list[Ack | Error] = []
        self.facts: list[Fact] = []

    def tell(self, *events: Inbound) -> None:
        answers = self.pool.send(*events)
        self.answers += [replace(each, seq=0) for each in answers]
        self.facts += self.pool.chain.changes.take()

    def rows(self) -> dict[str, list[tuple[bytes, Any]]]:
        """Return all rows of transactions; of the numbers of submissions only the order, which is what they are for."""
        tables, pool, names = self.pool.utxo.disk.tables, self.pool.store, {*TX_TABLES, *JOB_TABLES} - {"tx", PENDING}
        with self.pool.utxo.disk.read() as txn:
            rows: dict[str, Any] = {name: list(txn.cursor(tables[name.rstrip("*")])) for name in names}
            order = [name for _, name in pool.pending.ordered(txn)]
            records = pool.records(txn, [key for key, _ in txn.cursor(pool.tx) if len(key) == HASH])
            rows["tx"] = [(key, row) for key, row in txn.cursor(pool.tx) if len(key) > HASH]
            return rows | {"order": order, "records": [replace(each, submission=None) for each in records.values()]}


def met_in(messages: list[TxMessage], answers: list[Ack | Error], facts: list[Fact], branches: Branches) -> None:
    """Count what one batch has met."""
    accepted, withdrawn, spent = set[bytes](), set[bytes](), set[OutPoint]()
    for message, answer in zip(messages, answers, strict=True):
        if isinstance(message, TxWithdrawn):
            branches.meet("withdrawn", isinstance(answer, Ack))
            withdrawn.update(message.txids)
        if not isinstance(message, TxSubmitted):
            continue
        inputs = set(message.tx.inputs)
        parents = {parent for parent, _ in inputs}
        branches.meet("a parent that is withdrawn in the same batch", not withdrawn.isdisjoint(parents))
        branches.meet("a rival of the same batch", not spent.isdisjoint(inputs) and isinstance(answer, Error))
        if isinstance(answer, Ack):
            branches.meet(answer.status)
            branches.meet("evicted", answer.evicted)
            branches.meet("a parent of the same batch", answer.status == "accepted" and accepted & parents)
            accepted.add(message.tx.txid)
            spent |= inputs
        else:
            branches.meet(answer.code)
            inputs_of: Any = answer.detail.get("inputs", ())
            for each in inputs_of:
                branches.meet(each["code"])
    branches.meet("recorded as conflicting", any(getattr(fact, "status", "") == "conflicting" for fact in facts))


def test_what_shares_a_commit_is_answered_as_one_by_one(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(handlers.transactions, "time", lambda: 1_700_000_000.0)
    branches = Branches()
    for seed in range(12):
        scenario = Scenario(Random(seed))
        with ExitStack() as stores:
            folders = [tmp_path / f"{seed} {name}" for name in ("one by one", "together")]
            alone, together = (
                Side(stores.enter_context(open_pool(folder, max_pending_count=MOST[seed % 2]))) for folder in folders
            )
            for side in (alone, together):
                side.tell(scenario.blocks[0])
            for _ in range(10):
                messages = list(scenario.messages())
                answered, reported = len(together.answers), len(together.facts)
                for each in messages:
                    alone.tell(each)
                together.tell(*messages)
                met_in(messages, together.answers[answered:], together.facts[reported:], branches)
                assert together.answers == alone.answers
                assert together.facts == alone.facts
                assert together.rows() == alone.rows()
                made = scenario.block()
                for side in (alone, together):
                    side.tell(made)
                branches.meet("a block")
            together.pool.assert_sound()
    assert branches.met.keys() >= TO_MEET, TO_MEET - branches.met.keys()
