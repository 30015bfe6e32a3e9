"""Random scenarios leave the MMR that a list of leaves has, and its proofs hold without the store."""

from __future__ import annotations

from random import Random

import pytest
from chains import LEAVES, Options, back_to, dump, feed, phrases, prune_all, random_chain, random_genesis
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.stateful import invariant
from mmr_reference import (
    Numbered,
    chunks,
    h,
    leaf_of,
    mmr_of,
    nodes_of,
    numbered,
    prover,
    range_root,
    roots_of,
    small_nodes,
    wrong,
)
from model import Model, Place
from stores import small_values
from test_model import MET, SEEDS, WINDOWS, Scenario, cut, fresh, search

import storage.history.mmr_nodes
import storage.history.mmr_thin
from handlers.proofs import NoProof, check
from storage import mmr
from storage.history.verify import verify


class MmrScenario(Scenario):
    store = "mmr"
    proved = -1  # the last commit whose roots were compared

    @invariant()
    def roots_equal_the_model(self) -> None:
        model = self.model
        if (last := self.last_commit()) == self.proved:
            return
        self.proved = last
        outputs, live = numbered(model, model.committed), live_of(model)
        leaves = [leaf_of(*each) for each in outputs]
        MET.meet("a number without an output", any(coin is None for _, coin, _ in outputs))
        size, output_root = range_root(leaves)
        _, bitmap_root = range_root(chunks([coin is not None and coin.place in live for _, coin, _ in outputs]))
        root = h(size, output_root, bitmap_root)
        assert roots_of(self.chain) == (size, len(leaves), output_root, bitmap_root, root)
        self.proofs_hold(outputs, leaves, live)

    def proofs_hold(self, outputs: list[Numbered], leaves: list[bytes], live: set[Place]) -> None:
        """Every unspent output is proved to be so; a spent one to have been created, while a rollback may reach it."""
        model, floor = self.model, self.chain.state.floor
        moments = model.moments[min(floor, model.committed) : model.committed + 1]
        kept = {coin.place for moment in moments for coin in moment.coins.values()}
        latest = {point[0]: number - point[1] for number, (point, _, _) in enumerate(outputs)}
        with prover(self.chain) as prove:
            for number, (point, coin, _) in enumerate(outputs):
                if latest[point[0]] != number - point[1]:  # the id came again: it means the later one
                    continue
                if coin is None or not (coin.place in kept or coin.place[0] > floor):
                    with pytest.raises(NoProof):
                        prove(point)
                    MET.meet("a proof that is no longer possible", coin is not None)
                    continue
                proof = prove(point)
                check(proof)
                assert (proof.leaf, proof.data) == (number, leaves[number].hex())
                assert proof.unspent == (coin.place in live)
                MET.meet("a proof of a spent output", not proof.unspent)

    def prune_everything(self) -> None:
        """Once everything may be pruned, what is left of the MMR is what proofs of live outputs need."""
        super().prune_everything()
        outputs, live = numbered(self.model, self.model.committed), live_of(self.model)
        size, width = mmr.size_of(len(outputs)), storage.history.mmr_nodes.NODES
        while self.chain.maintain(size).mmr_nodes:
            MET.meet("nodes of an MMR were removed")
        self.proved = -1
        self.roots_equal_the_model()
        with self.chain.store.disk.read() as txn:
            reach, kept = self.chain.store.stored(txn).reachable, mmr_of(self.chain).nodes(txn)
            there = {position for position in range(size) if kept.find(position) is not None}
        tops = set(mmr.peaks(size))
        needed = set(tops)
        for number, (_, coin, _) in enumerate(outputs):
            position = mmr.size_of(number)
            while (number >= reach or (coin and coin.place in live)) and position not in tops:
                parent, sibling = mmr.family(position)
                needed |= {position, sibling}
                position = parent
        assert needed <= there
        looked_at = mmr.size_of(reach) // width * width  # only whole values are
        if storage.history.mmr_thin.MOST == 0:
            assert [position for position in there - needed if mmr.family(position)[0] < looked_at] == []


def live_of(model: Model) -> set[Place]:
    return {coin.place for coin in model.stored.coins.values()}


@pytest.fixture(autouse=True)
def small(monkeypatch: pytest.MonkeyPatch) -> None:
    small_values(monkeypatch)
    small_nodes(monkeypatch)


@pytest.mark.parametrize(("nodes", "most", "rounds"), [(7, 0, 2), (2, 2, 1), (509, 2, 1)])
def test_random_scenarios_equal_the_model(nodes: int, most: int, rounds: int, monkeypatch: pytest.MonkeyPatch) -> None:
    small_nodes(monkeypatch, nodes, most)
    before = dict(MET.met)
    MET.met.clear()
    try:
        search(MmrScenario, MET, EXPECTED if most == 0 else set(), 10, rounds)
    finally:
        MET.met.update({name: MET.met.get(name, 0) + count for name, count in before.items()})


EXPECTED = phrases(
    "a collateral return; a failed transaction; a genesis; a number without an output; a proof of a spent output; "
    "a proof that is no longer possible; a reorganisation by hash; a restart; a txid again; an in-block spend; "
    "an unspendable collateral return; an unspendable output; nodes of an MMR were removed; "
    "several blocks in a commit; undo records were pruned"
)


@settings(max_examples=25)
@given(SEEDS, WINDOWS, st.booleans())
def test_back_and_forth_and_batches_leave_the_same_root(seed: int, rollback_window: int, prunes: bool) -> None:
    rng = Random(seed)
    options = Options(store="mmr", prune_depth=rng.randrange(4), rollback_window=rollback_window)
    chain, back = random_chain(rng, 12), rng.randint(0, rollback_window)
    with fresh(**options) as direct, fresh(**options) as wandering:
        genesis = random_genesis(rng)
        direct.seed(genesis)
        wandering.seed(genesis)
        for each in chain:
            feed(direct, each)
        for part in cut(rng, chain, 12):
            feed(wandering, *part)
        if prunes:
            prune_all(wandering)
            wandering.maintain(100)
        assert roots_of(wandering) == roots_of(direct)
        assert wandering.rollback(back_to(chain[11 - back])) == bool(back)
        assert wrong(wandering) == []
        for each in chain[12 - back :]:
            feed(wandering, each)
        assert roots_of(wandering) == roots_of(direct)
        assert verify(direct.store.disk, quick=True, leaves=LEAVES) == []
        assert verify(wandering.store.disk, leaves=LEAVES) == []


@settings(max_examples=25)
@given(SEEDS)
def test_a_rollback_leaves_what_was_there_before(seed: int) -> None:
    rng = Random(seed)
    with fresh(store="mmr", rollback_window=20) as chain:
        if rng.random() < 0.5:
            chain.seed(random_genesis(rng))
        blocks, before = random_chain(rng, 10), [(dump(chain.store), nodes_of(chain))]
        for each in blocks:
            feed(chain, each)
            before.append((dump(chain.store), nodes_of(chain)))
        left = len(blocks)
        while left:
            left -= rng.randint(1, left)
            chain.rollback(back_to(blocks[left - 1] if left else "origin"))
            assert (dump(chain.store), nodes_of(chain)) == before[left]
