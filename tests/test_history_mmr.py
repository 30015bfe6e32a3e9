"""Any story leaves the mountain ranges of a history that a list of leaves has; proofs hold without the store.

The model keeps a leaf for every number, as the bytes that a client would be given, and hashes all of them anew each
time; the store never does. Values are made small, so that a short story has many of them.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from random import Random

import pytest
from chains import (
    CODEC,
    HISTORY_LEAVES,
    Options,
    at,
    back_to,
    block,
    dump,
    feed,
    open_chain,
    output,
    prune_all,
    random_chain,
    random_genesis,
    tx,
)
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.stateful import invariant, rule
from model import Coin, Model, Moment, made
from test_history_model import HistoryStory
from test_mmr_model import h, leaf, range_root
from test_model import MET, SEEDS, WINDOWS, cut, fresh, search

import handlers.chain
import storage.history.filters
import storage.history.history
import storage.history.merging
import storage.history.mmr
import storage.history.mmr_nodes
import storage.history.mmr_thin
import storage.history.runs
import storage.history.values
from handlers.chain import Chain
from handlers.events import OutPoint, Pruned
from handlers.proofs import MmrProof, NoProof, Prover, check
from handlers.query import Query
from storage import mmr
from storage.errors import WrongFormat
from storage.history.mmr import TABLES, StoredMmr, is_set
from storage.history.mmr_verify import mountains
from storage.history.store import HistoryStore
from storage.history.verify import verify

CHUNK = 1024
NOTHING = b"\xf6"
Numbered = tuple[OutPoint, Coin | None, Moment]


def numbered(model: Model, upto: int) -> list[Numbered]:
    """Return every number in order: the outpoint, and the output of it that can be spent."""
    found = list[Numbered]()
    coins, txs = model.moments[0].coins, dict[bytes, int]()
    for listed in model.genesis.outputs if model.genesis else []:
        txs[listed.txid] = max(txs.get(listed.txid, 0), listed.index)
    for txid, last in txs.items():
        if any(point[0] == txid for point in coins):
            found += [((txid, n), coins.get((txid, n)), model.moments[0]) for n in range(last + 1)]
    for ordinal, moment in enumerate(model.moments[1 : upto + 1], start=1):
        assert moment.block is not None
        for place, each in enumerate(moment.block.txs):
            kept = dict(made(each, ordinal, place))
            count = len(each.outputs) + (not each.valid and each.collateral_return is not None)
            MET.meet("a transaction without outputs", count == 0)
            found += [((each.txid, n), kept.get(n), moment) for n in range(max(count, 1))]
    return found


def said(point: OutPoint, coin: Coin | None, moment: Moment) -> bytes:
    return NOTHING if coin is None else leaf(point, coin, moment)


class HistoryMmrStory(HistoryStory):
    """The same story, of a history with mountain ranges."""

    store = "history-mmr"

    @rule()
    def let_go(self) -> None:
        self.commit()
        self.chain.prune("mmr")
        self.heard([])

    @invariant()
    def roots_equal_the_model(self) -> None:
        model, store = self.model, self.chain.store
        outputs = numbered(model, model.committed)
        live = {coin.place for coin in model.stored.coins.values()}
        leaves = [said(*each) for each in outputs]
        bits = bytearray(-(-len(outputs) // CHUNK) * CHUNK // 8)
        for n, (_, coin, _) in enumerate(outputs):
            if coin is not None and coin.place in live:
                bits[n >> 3] |= 1 << (n & 7)
        chunks = [bytes(bits[at : at + CHUNK // 8]) for at in range(0, len(bits), CHUNK // 8)]
        size, output_root = range_root(leaves)
        _, bitmap_root = range_root(chunks)
        with store.disk.read() as txn:
            kept = mountains_of(self.chain)
            assert kept.roots(txn) == (
                *(size, len(leaves), output_root, bitmap_root),
                h(size, output_root, bitmap_root),
            )
        assert wrong(self.chain) == []
        self.proofs_hold(outputs, leaves, live)

    def proofs_hold(self, outputs: list[Numbered], leaves: list[bytes], live: set[tuple[int, int, int]]) -> None:
        """Every unspent output is proved to be so; a spent one to have been created, while a rollback may reach it."""
        latest = {point[0]: number - point[1] for number, (point, _, _) in enumerate(outputs)}
        with self.stored() as stored, prover(self.chain) as prove:
            for number, (point, coin, _) in enumerate(outputs):
                if latest[point[0]] != number - point[1]:  # the id came again: it means the later one
                    continue
                try:
                    proof = prove(point)
                except NoProof:
                    assert coin is None or coin.place not in live
                    assert stored.output(number) is None
                    MET.meet("a proof that can't be made any more")
                    continue
                check(proof, bit=is_set)
                assert coin is not None
                assert proof.leaf == number
                assert proof.data == leaves[number].hex()
                assert proof.unspent == (coin.place in live)
                MET.meet("a proof of a spent output", not proof.unspent)

    def nothing_else_is_kept(self) -> None:
        """Once everything may be forgotten, what is left of the mountain range is what proofs of live outputs need."""
        model, chain = self.model, self.chain
        last = block(block(model.now.block))
        for _ in range(roots_of(chain).size // storage.history.mmr_nodes.NODES // 2 + 2):  # each looks at four values
            feed(chain, last := block(last))
        facts = chain.take_facts()
        MET.meet("nodes of a mountain range were let go", any(isinstance(f, Pruned) and f.mmr_nodes for f in facts))
        live = {coin.place for coin in model.stored.coins.values()}
        outputs = numbered(model, model.committed)
        with self.stored() as stored:
            reach, kept = stored.reachable, mountains_of(chain).nodes(stored.txn)
            alive = [n for n, (_, coin, _) in enumerate(outputs) if n >= reach or (coin and coin.place in live)]
            size, width = mmr.size_of(len(outputs)), storage.history.mmr_nodes.NODES
            there = {position for position in range(size) if kept.find(position) is not None}
        tops = set(mmr.peaks(size))
        needed = set(tops)
        for number in alive:
            position = mmr.size_of(number)
            while position not in tops:
                parent, sibling = mmr.family(position)
                needed |= {position, sibling}
                position = parent
        assert needed <= there
        looked_at = mmr.size_of(reach) // width * width  # only whole values are
        if storage.history.mmr_thin.MOST == 0:
            assert [position for position in there - needed if mmr.family(position)[0] < looked_at] == []


def mountains_of(chain: Chain) -> StoredMmr:
    kept = chain.store.mmr
    assert isinstance(kept, StoredMmr)
    return kept


def wrong(chain: Chain) -> list[str]:
    store: object = chain.store
    assert isinstance(store, HistoryStore)
    with store.disk.read() as txn:
        return list(mountains(store, txn))


def roots_of(chain: Chain) -> mmr.Roots:
    with chain.store.disk.read() as txn:
        return mountains_of(chain).roots(txn)


@contextmanager
def prover(chain: Chain) -> Iterator[Callable[[OutPoint], MmrProof]]:
    query = Query(chain.store, CODEC, "cardano")
    with query.snapshot() as shot:
        yield lambda point: Prover(query).proof(shot, *point)


@contextmanager
def small_values(nodes: int = 7, bit_nodes: int = 2, most: int = 0) -> Iterator[None]:
    with pytest.MonkeyPatch.context() as patch:
        for module in (storage.history.mmr_nodes, storage.history.mmr):
            patch.setattr(module, "NODES", nodes)
            patch.setattr(module, "BIT_NODES", bit_nodes)
        patch.setattr(storage.history.mmr_thin, "MOST", most)
        patch.setattr(storage.history.runs, "VALUE_BYTES", 200)
        patch.setattr(storage.history.values, "VALUE_BYTES", 300)
        patch.setattr(storage.history.merging, "FANOUT", 3)
        patch.setattr(storage.history.merging, "_REWRITTEN", 1)
        patch.setattr(storage.history.history, "MERGED", 2)
        patch.setattr(storage.history.history, "LEAST_MERGED", 3)
        patch.setattr(storage.history.filters, "PART", 2)
        yield


@pytest.mark.parametrize(("nodes", "most", "examples"), [(7, 0, 25), (5, 2, 10), (509, 2, 5)])
def test_any_story_equals_the_model(nodes: int, most: int, examples: int) -> None:
    before = dict(MET.met)
    MET.met.clear()
    try:
        with small_values(nodes, most=most):
            search(HistoryMmrStory, MET, EXPECTED if examples >= 25 else set(), examples)
        assert any(name.startswith("a reorganisation") for name in MET.met)
    finally:
        MET.met.update({name: MET.met.get(name, 0) + count for name, count in before.items()})


EXPECTED = {
    "a collateral return",
    "a genesis",
    "a proof of a spent output",
    "a proof that can't be made any more",
    "a restart",
    "a transaction without outputs",
    "a txid again",
    "an in-block spend",
    "an unspendable output",
    "nodes of a mountain range were let go",
    "several blocks in a commit",
    "undo records were pruned",
}


@settings(max_examples=40)
@given(SEEDS, WINDOWS, st.booleans())
def test_back_and_forth_and_batches_leave_the_same_root(seed: int, rollback_window: int, forget: bool) -> None:
    """A reorganisation that ends where it began has not happened, and a root does not tell how blocks were batched."""
    rng = Random(seed)
    options = Options(store="history-mmr", prune_depth=rng.randrange(4), rollback_window=rollback_window)
    chain, back = random_chain(rng, 12), rng.randint(0, rollback_window)
    with small_values(), fresh(**options) as direct, fresh(**options) as wandering:
        genesis = random_genesis(rng)
        direct.seed(genesis)
        wandering.seed(genesis)
        for each in chain:
            feed(direct, each)
        for part in cut(rng, chain, 12):
            feed(wandering, *part)
        if forget:
            prune_all(wandering)
        assert roots_of(wandering) == roots_of(direct)
        assert wandering.rollback(back_to(chain[11 - back])) == bool(back)
        assert wrong(wandering) == []
        for each in chain[12 - back :]:
            feed(wandering, each)
        assert roots_of(wandering) == roots_of(direct)
        assert wrong(wandering) == wrong(direct) == []
        assert verify(wandering.store.disk, leaves=HISTORY_LEAVES) == []


@settings(max_examples=40)
@given(SEEDS, st.sampled_from((3, 250_000)))
def test_a_rollback_leaves_the_root_that_was_there_before(seed: int, rollback_rows: int) -> None:
    """And the nodes, byte for byte, at each block on the way down to the origin, in one step or in many parts."""
    rng = Random(seed)
    with pytest.MonkeyPatch.context() as patch, small_values():
        patch.setattr(handlers.chain, "_ROLLBACK_ROWS", rollback_rows)
        with fresh(store="history-mmr", rollback_window=20) as chain:
            chain.seed(random_genesis(rng))
            blocks, before = random_chain(rng, 10), [(roots_of(chain), nodes_of(chain))]
            for each in blocks:
                feed(chain, each)
                before.append((roots_of(chain), nodes_of(chain)))
            left = len(blocks)
            while left:
                left -= rng.randint(1, left)
                chain.rollback(back_to(blocks[left - 1] if left else "origin"))
                assert (roots_of(chain), nodes_of(chain)) == before[left]


def nodes_of(chain: Chain) -> list[dict[bytes, bytes]]:
    tables = dump(chain.store)
    return [tables[name] for name in TABLES]


def test_far_below_the_tip_nothing_is_left_out(tmp_path: Path) -> None:
    """A leaf is in the root whether or not its output was born and spent far below the network's tip."""
    first = block(None, tx("one", output("ann")))
    second = block(first, tx("two", output("bob"), spends=[at("one")]), tx("three", spends=[at("two")]))
    with open_chain(tmp_path / "near", store="history-mmr") as near:
        feed(near, first, second)
        with open_chain(tmp_path / "far", store="history-mmr") as far:
            feed(far, first, second, network_height=100_000)
            assert roots_of(far) == roots_of(near)
            assert far.rollback(back_to(first))


def test_a_store_of_several_chunks_and_values(tmp_path: Path) -> None:
    """Bits pass from one chunk to the next and back again; values have the size that they have outside of tests."""
    with open_chain(tmp_path, store="history-mmr") as chain:
        first = block(None, *(tx(f"fund {n}", *(output("ann") for _ in range(500))) for n in range(5)))
        feed(chain, first)
        before = roots_of(chain), nodes_of(chain)
        assert [len(value) for value in before[1][0].values()] == [8 + 509 * 32] * 9 + [8 + (4995 - 9 * 509) * 32]
        spends = [at("fund 0", 7), at("fund 4", 60)]
        feed(chain, block(first, tx("spend", *(output("bob") for _ in range(600)), spends=spends)))
        assert wrong(chain) == []
        assert roots_of(chain).leaves == 3100
        with prover(chain) as prove:
            for point, unspent in ((at("fund 0", 7), False), (at("fund 4", 61), True), (at("spend", 599), True)):
                proof = prove(point)
                check(proof, bit=is_set)
                assert proof.unspent == unspent
        assert chain.rollback(back_to(first))
        assert (roots_of(chain), nodes_of(chain)) == before
        assert wrong(chain) == []


def test_large_dead_trees_are_let_go_over_restarts(tmp_path: Path) -> None:
    """Of 3,000 dead outputs the tops are left, though a turn looks at four values and a restart comes after each."""
    options = Options(store="history-mmr", prune_depth=0, rollback_window=0, may_prune=True)
    first = block(None, *(tx(f"fund {n}", *(output("ann") for _ in range(500))) for n in range(8)))
    spends = [at(f"fund {n}", each) for n in range(6) for each in range(500)]
    last = block(first, tx("spend", output("bob"), spends=spends))
    with open_chain(tmp_path, **options) as chain:
        feed(chain, first)
        feed(chain, last)
        before, rows = roots_of(chain), len(nodes_of(chain)[0])
    for _ in range(12):
        with open_chain(tmp_path, **options) as chain:
            last = block(last)
            feed(chain, last)
            assert wrong(chain) == []
    with open_chain(tmp_path, **options) as chain:
        after = roots_of(chain)
        assert (after.output_root, after.bitmap_root) == (before.output_root, before.bitmap_root)
        left = nodes_of(chain)[0]
        assert sum(map(len, left.values())) < 32 * (2 * 1001 + 509)  # what lives, and a value that is not whole
        assert len(left) <= rows // 2
        with prover(chain) as prove:
            check(prove(at("fund 6", 3)), bit=is_set)
            with pytest.raises(NoProof):
                prove(at("fund 0", 3))


def test_a_store_is_opened_as_what_it_was_made(tmp_path: Path) -> None:
    for own, other in (("history", "history-mmr"), ("history-mmr", "history")):
        with open_chain(tmp_path / own, store=own):
            pass
        with pytest.raises(WrongFormat, match="MMR"), open_chain(tmp_path / own, store=other):
            pass
