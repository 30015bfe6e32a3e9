"""A model in plain dicts, told random lives of transactions, says what is gone at each height: the store agrees."""

from __future__ import annotations

from pathlib import Path
from random import Random

import pytest
from chains import Branches, txid
from msgspec import Struct
from pruning import PRESERVATION, RETENTION, UNMINED, LocalStore, open_local_store, pay

from handlers import conflicts, new_records, states
from handlers.claims import spend
from handlers.deletion import safe_height
from handlers.events import OutPoint
from handlers.prune_request import Terms
from handlers.spending import Mined, TxFault
from handlers.transactions import TxView
from storage.disk import Txn

PAGE = 3


class Life(Struct):
    """What the model knows of a transaction."""

    name: str
    inputs: list[tuple[str, int]]
    spenders: list[str | None]  # of its outputs
    since: int | None = None  # unmined
    mined: int | None = None
    conflicting: bool = False
    preserve: int | None = None
    due: int | None = None
    deleted: dict[int, set[str]] = {}  # by page: children that are gone

    def settle(self, height: int) -> None:
        if self.preserve is not None:
            return
        if self.conflicting:
            self.due = height + RETENTION if self.due is None else self.due
        elif self.mined is not None and self.since is None and None not in self.spenders:
            self.due = max(self.due or 0, height + RETENTION)
        else:
            self.due = None


class Model:
    """All lives, and what a cycle does to them."""

    def __init__(self, branches: Branches) -> None:
        self.lives: dict[str, Life] = {}
        self.branches = branches

    def create(self, name: str, inputs: list[tuple[str, int]], outs: int, height: int, *, mined: bool) -> None:
        life = Life(name, inputs, [None] * outs, None if mined else height, height if mined else None)
        self.lives[name] = life
        for parent, index in inputs:
            self.lives[parent].spenders[index] = name
            self.lives[parent].settle(height)

    def cycle(self, height: int, safe: int, *, defensive: bool) -> set[str]:
        for life in [life for life in self.lives.values() if life.since is not None]:
            if height > UNMINED and (life.since or 0) <= height - UNMINED:
                for parent in {parent for parent, _ in life.inputs}.intersection(self.lives):
                    kept = self.lives[parent]
                    self.branches.meet("a preservation made longer", kept.preserve)
                    self.branches.meet("a parent preserved")
                    kept.preserve, kept.due = max(kept.preserve or 0, height + PRESERVATION), None
        for life in self.lives.values():
            if life.preserve is not None and life.preserve <= height:
                self.branches.meet("a preservation ended")
                life.preserve = life.due = None
                life.settle(height)
        gone: set[str] = set()
        for life in sorted(self.lives.values(), key=lambda life: (life.due or 0, txid(life.name))):
            if life.due is not None and life.due <= safe and not self._held(life, safe, defensive):
                gone.add(life.name)
                del self.lives[life.name]
                self._mark(life)
            elif life.due is not None and safe < life.due <= height:
                self.branches.meet("the persister holds it")
        return gone

    def _held(self, life: Life, safe: int, defensive: bool) -> bool:
        for index, name in enumerate(life.spenders):
            child = self.lives.get(name or "")
            if child is None or child.name in life.deleted.get(index // PAGE, set()):
                continue
            if child.since is not None and not child.conflicting:
                self.branches.meet("an unmined child holds it")
                return True
            if defensive and (child.since is not None or child.mined is None or safe < child.mined + RETENTION):
                self.branches.meet("a child is not deep enough")
                return True
        return False

    def _mark(self, life: Life) -> None:
        self.branches.meet("a conflicting one deleted", life.conflicting)
        self.branches.meet("a large one deleted", len(life.spenders) > PAGE)
        for parent, index in life.inputs:
            if parent in self.lives and self.lives[parent].spenders[index] == life.name:
                self.branches.meet("a marker")
                self.branches.meet("a marker on a further page", index >= PAGE)
                self.lives[parent].deleted.setdefault(index // PAGE, set()).add(life.name)


class Scenario:
    """One life of a store, and of its model."""

    def __init__(self, local: LocalStore, random: Random, branches: Branches, *, defensive: bool) -> None:
        self.local, self.random, self.branches, self.defensive = local, random, branches, defensive
        self.model, self.height, self.number = Model(branches), 1, 0

    def step(self) -> None:
        lives = list(self.model.lives.values())
        waiting = [life for life in lives if life.since is not None and not life.conflicting]
        kind = self.random.random()
        if kind < 0.45 or not lives:
            self._create()
        elif kind < 0.65 and waiting:
            self._mine(self.random.choice(waiting))
        elif kind < 0.70:
            self._unmine(self.random.choice(lives))
        elif kind < 0.74 and waiting:
            self._conflict(self.random.choice(waiting))
        elif kind < 0.76:
            self._preserve(self.random.choice(lives))
        elif kind < 0.92:
            self.height += self.random.choice((1, 1, 2, 6))
        else:
            self._cycle()
        self.local.transactions.height = self.height

    def _create(self) -> None:
        self.number += 1
        name, mined = str(self.number), self.random.random() < 0.5
        free = [
            (life.name, index)
            for life in self.model.lives.values()
            for index, spender in enumerate(life.spenders)
            if spender is None and not life.conflicting
        ]
        inputs = self.random.sample(free, min(len(free), self.random.randrange(3)))
        outs = self.random.choice((1, 1, 2, 5))
        made, transactions, height = (
            pay(name, *[(txid(p), n) for p, n in inputs], outs=outs),
            self.local.transactions,
            self.height,
        )

        def write(view: TxView) -> None:
            record = new_records.draft(transactions.rules, made, height, mined=[Mined(height, height)] if mined else [])
            for number in range(record.pages + 1):
                new_records.put_page(view, made, record, number)
            spend(view, made.txid, made.inputs, height)

        self.local.write(write)
        self.model.create(name, inputs, outs, height, mined=mined)

    def _mine(self, life: Life) -> None:
        height, name = self.height, txid(life.name)
        self.local.write(lambda view: states.set_mined(view, name, Mined(height, height)))
        life.mined, life.since = max(life.mined or 0, height), None
        life.settle(height)

    def _unmine(self, life: Life) -> None:
        if life.since is None:
            self.branches.meet("taken off the longest chain")
            self.local.write(lambda view: self._take_off(view, txid(life.name)))
            life.since = self.height
            life.settle(self.height)

    def _take_off(self, view: TxView, name: bytes) -> None:
        record = view.need(name)
        record.main_ids, record.unmined_since = [], self.height
        view.settle(name, record, self.height)

    def _conflict(self, life: Life) -> None:
        def write(view: TxView) -> None:
            conflicts.give_way(view, [txid(life.name)])

        self.local.write(write)
        life.conflicting = True
        life.settle(self.height)
        for parent, index in life.inputs:
            if parent in self.model.lives and self.model.lives[parent].spenders[index] == life.name:
                self.model.lives[parent].spenders[index] = None
                self.model.lives[parent].settle(self.height)

    def _preserve(self, life: Life) -> None:
        until = self.height + self.random.randrange(1, 30)
        self.local.write(lambda view: states.preserve(view, txid(life.name), until))
        life.preserve, life.due = until, None

    def _cycle(self) -> None:
        persisted = self.random.choice((None, self.height, max(self.height - RETENTION - 2, 1)))
        safe = safe_height(self.height, persisted, RETENTION)
        before = dict(self.model.lives)
        gone = self.model.cycle(self.height, safe, defensive=self.defensive)
        self.local.published.clear()
        self.local.run_cycle(self.height, persisted)
        assert set(self.local.deleted) == {txid(name) for name in gone}
        self._compare(before)
        self._replay([before[name] for name in gone])

    def _compare(self, before: dict[str, Life]) -> None:
        with self.local.disk.read() as txn:
            assert set(self.local.transactions.pool.txids(txn)) == {txid(name) for name in self.model.lives}
            for name, life in self.model.lives.items():
                record = self.local.store.record(txn, txid(name))
                assert record is not None
                assert (record.delete_at, record.preserve_until, record.unmined_since, record.conflicting) == (
                    life.due,
                    life.preserve,
                    life.since,
                    life.conflicting,
                )
                for number in range(record.pages + 1):
                    page = self.local.store.page(txn, txid(name), number)
                    assert page is not None
                    assert set(page.deleted_children) == {txid(child) for child in life.deleted.get(number, set())}
            indexed = {txid_ for db, _ in self.local.transactions.pool.indexes for _, txid_ in txn.cursor(db)}
            assert indexed <= {txid(name) for name in self.model.lives}, "no index speaks of what is gone"

    def _spend_again(self, txn: Txn, life: Life, inputs: list[OutPoint]) -> None:
        view = self.local.transactions.view(txn)
        spend(view, txid(life.name), inputs, self.height, is_new=True, only_check=True)

    def _replay(self, gone: list[Life]) -> None:
        """Nobody who is gone can spend again what his parent remembers."""
        for life in gone:
            inputs = [(txid(parent), index) for parent, index in life.inputs]
            for parent, index in life.inputs:
                alive = self.model.lives.get(parent)
                if alive is not None and life.name in alive.deleted.get(index // PAGE, set()):
                    self.branches.meet("a replay refused")
                    with self.local.disk.read() as txn, pytest.raises(TxFault):
                        spend(
                            self.local.transactions.view(txn),
                            txid(life.name),
                            inputs,
                            self.height,
                            is_new=True,
                            only_check=True,
                        )


@pytest.mark.parametrize("defensive", [False, True])
def test_the_store_forgets_what_the_model_says(tmp_path: Path, defensive: bool) -> None:
    branches = Branches()
    for seed in range(20):
        terms = Terms(
            retention=RETENTION, unmined_retention=UNMINED, defensive=defensive, chunk_size=3, batch_size=2, history=5
        )
        with open_local_store(tmp_path / str(seed), terms, page=PAGE) as local:
            story = Scenario(local, Random(seed), branches, defensive=defensive)
            for _ in range(250):
                story.step()
    expected = {
        "a parent preserved",
        "a preservation made longer",
        "a preservation ended",
        "taken off the longest chain",
        "an unmined child holds it",
        "the persister holds it",
        "a conflicting one deleted",
        "a large one deleted",
        "a marker",
        "a marker on a further page",
        "a replay refused",
    }
    assert expected <= set(branches.met), branches.met
    assert ("a child is not deep enough" in branches.met) is defensive
