"""Any story of blocks, reorganisations, restarts and pruning leaves the mountain ranges that a list of leaves has.

The model keeps every output that was ever created on the chain, as the bytes that a client would be given, and hashes
all of them anew each time; the store never does.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import cache
from hashlib import blake2b
from pathlib import Path
from random import Random
from struct import pack
from typing import Any

import cbor2
import msgspec
import pytest
from chains import (
    CODEC,
    Options,
    at,
    back_to,
    block,
    dump,
    feed,
    go_all_the_way_back,
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
from model import Coin, Moment, made
from storage.mmr_verify import mountains
from test_model import MET, SEEDS, WINDOWS, Story, fresh, search

import handlers.chain
from handlers.addresses.shelley import stake_address
from handlers.chain import Chain
from handlers.events import BlockApplied, OutPoint, Pruned
from handlers.proofs import MmrProof, NoProof, Prover, check
from handlers.query import Query
from storage import mmr
from storage.errors import Damaged
from storage.keys import locator, u32
from storage.rows import pack_undo

CHUNK = 1024


# --- a mountain range, hashed from nothing -------------------------------------------------------------------------


def h(number: int, *parts: bytes) -> bytes:
    return blake2b(pack(">Q", number) + b"".join(parts), digest_size=32).digest()


def range_root(leaves: Sequence[bytes]) -> tuple[int, bytes]:
    """Return size and root: perfect trees side by side, by recursion."""
    tops, begin, position = list[bytes](), 0, 0
    for height in reversed(range(len(leaves).bit_length())):
        if len(leaves) >> height & 1:
            tops.append(_tree(tuple(leaves[begin : begin + (1 << height)]), position))
            begin, position = begin + (1 << height), position + (2 << height) - 1
    if not tops:
        return 0, bytes(32)
    root = tops.pop()
    while tops:
        root = h(position, tops.pop(), root)
    return position, root


@cache
def _tree(leaves: tuple[bytes, ...], position: int) -> bytes:
    """Return the top of a perfect tree whose first node is at `position`."""
    if len(leaves) == 1:
        return h(position, leaves[0])
    half = len(leaves) // 2
    left, right = _tree(leaves[:half], position), _tree(leaves[half:], position + 2 * half - 1)
    return h(position + 4 * half - 2, left, right)


# --- what the leaves are -------------------------------------------------------------------------------------------


def created(moments: Sequence[Moment]) -> list[tuple[OutPoint, Coin, Moment]]:
    """Return every output that the chain created, in its order, with the block that it was born in."""
    genesis = sorted(moments[0].coins.items(), key=lambda each: each[1].place)
    born = [(point, coin, moments[0]) for point, coin in genesis]
    for ordinal, moment in enumerate(moments[1:], start=1):
        assert moment.block is not None
        for number, each in enumerate(moment.block.txs):
            born += [((each.txid, index), coin, moment) for index, coin in made(each, ordinal, number)]
    return born


def leaf(point: OutPoint, coin: Coin, moment: Moment) -> bytes:
    """Return an output's leaf: the record that is answered, with its outpoint."""
    out, at, address = coin.output, moment.point, coin.output.address
    owner = CODEC.credentials(address)
    datum = out.datum_hash or (out.inline_datum is not None and blake2b(out.inline_datum, digest_size=32).digest())
    record: dict[int, Any] = {
        0: address,
        1: out.value,
        2: [list(asset) for asset in out.assets] or None,
        3: datum or None,
        4: out.inline_datum,
        5: out.script_ref,
        6: out.script_ref_hash,
        7: coin.collateral_return,
        8: at.slot if at else 0,
        9: at.height if at else 0,
        10: at.hash if at else bytes(32),
        11: moment.block and moment.block.epoch,
        12: moment.block and moment.block.time,
        13: owner.payment,
        14: owner.stake,
        15: stake_address(address),
    }
    there = {key: value for key, value in record.items() if value is not None}
    raw: bytes = cbor2.dumps([list(point), there], canonical=True)
    return raw


# --- the story -----------------------------------------------------------------------------------------------------


class MmrStory(Story):
    """The same story, of an MMR store."""

    store = "mmr"

    @rule()
    def let_go(self) -> None:
        self.commit()
        self.chain.prune("mmr")
        self.heard([])

    @invariant()
    def roots_equal_the_model(self) -> None:
        model, store = self.model, self.chain.store
        assert store.mmr is not None
        moments = model.moments[: model.committed + 1]
        outputs, live = created(moments), {coin.place for coin in model.stored.coins.values()}
        leaves = [leaf(*each) for each in outputs]
        bits = "".join("1" if coin.place in live else "0" for _, coin, _ in outputs)
        chunks = [
            int(bits[at : at + CHUNK].ljust(CHUNK, "0"), 2).to_bytes(CHUNK // 8, "big")
            for at in range(0, len(bits), CHUNK)
        ]
        size, output_root = range_root(leaves)
        _, bitmap_root = range_root(chunks)
        with store.disk.read() as txn:
            assert store.mmr.roots(txn) == (
                *(size, len(leaves), output_root, bitmap_root),
                h(size, output_root, bitmap_root),
            )
            assert list(mountains(store, txn, store.state(txn))) == []
        self.proofs_hold(outputs, leaves, live)

    def proofs_hold(
        self, outputs: list[tuple[OutPoint, Coin, Moment]], leaves: list[bytes], live: set[tuple[int, int, int]]
    ) -> None:
        """Every unspent output is proved to be so; a spent one to have been created, while its body is kept."""
        query = Query(self.chain.store, CODEC, "cardano")
        prover = Prover(query)
        homes = {point[0]: coin.place[:2] for point, coin, _ in outputs}
        for ordinal, moment in enumerate(self.model.moments):
            homes |= {tx.txid: (ordinal, n) for n, tx in enumerate(moment.block.txs if moment.block else [])}
        with query.snapshot() as shot:
            for number, (point, coin, _) in enumerate(outputs):
                if homes[point[0]] != coin.place[:2]:  # the id came again: whoever asks by it means the later one
                    continue
                try:
                    proof = prover.proof(shot, *point)
                except NoProof:
                    assert coin.place not in live
                    row = self.chain.store.row(shot.txn, locator(*coin.place))
                    MET.meet("a proof that can't be made any more")
                    assert row is None or len(row) == 13
                    continue
                check(proof)
                assert proof.leaf == number and proof.data == leaves[number].hex()
                assert proof.unspent == (coin.place in live)
                MET.meet("a proof of a spent output", not proof.unspent)

    def forget_all(self) -> None:
        """Once everything may be forgotten, what is left of the mountain range is what proofs of live outputs need."""
        super().forget_all()
        facts = self.chain.take_facts()
        MET.meet("nodes of a mountain range were let go", any(isinstance(f, Pruned) and f.mmr_nodes for f in facts))
        tables, model = dump(self.chain.store), self.model
        live = {coin.place for coin in model.stored.coins.values()}
        outputs = created(model.moments)
        needed = set(mmr.peaks(mmr.size_of(len(outputs))))
        for number, (_, coin, _) in enumerate(outputs):
            position = mmr.size_of(number)
            while coin.place in live and position not in mmr.peaks(mmr.size_of(len(outputs))):
                parent, sibling = mmr.family(position)
                needed |= {position, sibling}
                position = parent
        kept = {int.from_bytes(key, "big") for key in tables["utxo_mmr_nodes"]}
        assert kept == needed
        assert tables["utxo_mmr_dead"] == {}
        assert set(tables["utxo_mmr_tx"]) == set(tables["utxo_tx"])


def test_any_story_equals_the_model() -> None:
    before = dict(MET.met)
    MET.met.clear()
    try:
        search(MmrStory, MET, EXPECTED, examples=80)
    finally:
        MET.met.update({name: MET.met.get(name, 0) + count for name, count in before.items()})


EXPECTED = {
    "a collateral return",
    "a failed transaction",
    "a genesis",
    "a proof of a spent output",
    "a proof that can't be made any more",
    "a reorganisation by hash",
    "a restart",
    "a txid again",
    "an in-block spend",
    "an unspendable collateral return",
    "an unspendable output",
    "another undo mode",
    "compact undo",
    "nodes of a mountain range were let go",
    "self-contained undo",
    "several blocks in a commit",
    "undo records were pruned",
}


@settings(max_examples=50)
@given(SEEDS, WINDOWS, st.booleans(), st.booleans())
def test_back_and_forth_leaves_the_same_bytes(
    seed: int, rollback_window: int, self_contained: bool, forget: bool
) -> None:
    """A reorganisation that ends where it began has not happened, whatever was let go before it."""
    rng = Random(seed)
    options = Options(
        store="mmr", prune_depth=rng.randrange(4), rollback_window=rollback_window, self_contained=self_contained
    )
    chain, back = random_chain(rng, 12), rng.randint(0, rollback_window)
    with fresh(**options) as direct, fresh(**options) as wandering:
        for each in chain:
            feed(direct, each)
        feed(wandering, *chain)  # in one commit
        if forget:
            prune_all(wandering)
        assert wandering.rollback(back_to(chain[11 - back])) == bool(back)
        check_all(wandering)
        for each in chain[12 - back :]:
            feed(wandering, each)
        if forget:
            prune_all(wandering)
            prune_all(direct)
        if not any_again(chain):
            assert dump(wandering.store) == dump(direct.store)


def any_again(chain: Sequence[BlockApplied]) -> bool:
    """Return whether an id was used twice: then several blocks in a commit may leave other rows than one by one."""
    txids = [tx.txid for each in chain for tx in each.txs]
    return len(set(txids)) < len(txids)


@settings(max_examples=40)
@given(SEEDS, st.booleans(), st.sampled_from((3, 250_000)))
def test_a_rollback_leaves_what_was_there_before(seed: int, self_contained: bool, rollback_rows: int) -> None:
    """Every table is what it was at each block on the way, down to the origin, in one step or in many parts."""
    rng = Random(seed)
    options = Options(store="mmr", rollback_window=20, self_contained=self_contained)
    with pytest.MonkeyPatch.context() as patch, fresh(**options) as chain:
        patch.setattr(handlers.chain, "_ROLLBACK_ROWS", rollback_rows)
        chain.seed(random_genesis(rng))
        go_all_the_way_back(chain, rng)


def test_a_store_of_several_chunks(tmp_path: Path) -> None:
    """Bits pass from one chunk to the next and back again, and only what is touched is written."""
    with open_chain(tmp_path, store="mmr") as chain:
        first = block(None, *(tx(f"fund {n}", *(output("ann") for _ in range(500))) for n in range(5)))
        feed(chain, first)
        before = dump(chain.store)
        assert [len(bits) for bits in before["utxo_mmr_bits"].values()] == [128] * 3
        spends = [at("fund 0", 7), at("fund 4", 60)]  # leaves 7 and 2060
        second = block(first, tx("spend", *(output("bob") for _ in range(600)), spends=spends))
        feed(chain, second)
        after = dump(chain.store)
        changed = {key[-1] for key, bits in after["utxo_mmr_bits"].items() if before["utxo_mmr_bits"].get(key) != bits}
        assert changed == {0, 2, 3}
        check_all(chain)
        assert chain.rollback(back_to(first))
        assert dump(chain.store) == before
        check_all(chain)


def test_a_proof_does_not_change_when_its_neighbour_is_let_go(tmp_path: Path) -> None:
    """UTXO-105: two leaves; the proof of the second is the same, byte for byte, once the first has gone."""
    with open_chain(tmp_path, store="mmr", prune_depth=0, rollback_window=0) as chain:
        first = block(None, tx("two", output("ann"), output("bob")))
        second = block(first, tx("spend", spends=[at("two", 0)]))
        feed(chain, first, second)
        before = proof_of(chain, at("two", 1))
        feed(chain, third := block(second), block(third))
        prune_all(chain)
        assert [len(node) for node in dump(chain.store)["utxo_mmr_nodes"].values()] == [33, 32, 32]
        after = proof_of(chain, at("two", 1))
        assert (after.path, after.root, after.data) == (before.path, before.root, before.data)
        with pytest.raises(NoProof):
            proof_of(chain, at("two", 0))


def test_proofs_of_before_a_rolled_back_block_hold_again(tmp_path: Path) -> None:
    """UTXO-106: a block appends five leaves and spends two older ones; without it root, size and bits are as before."""
    with open_chain(tmp_path, store="mmr") as chain:
        first = block(None, tx("old", *(output("ann", n) for n in range(7))))
        feed(chain, first)
        before = {n: proof_of(chain, at("old", n)) for n in range(7)}
        news = tx("new", *(output("bob") for _ in range(5)), spends=[at("old", 2), at("old", 6)])
        feed(chain, block(first, news))
        moved = {n: proof_of(chain, at("old", n)) for n in range(7)}
        assert [n for n, proof in moved.items() if not proof.unspent] == [2, 6]
        for n, proof in moved.items():
            check(proof)
            assert proof.root != before[n].root and proof.size == mmr.size_of(12)
        assert chain.rollback(back_to(first))
        assert {n: proof_of(chain, at("old", n)) for n in range(7)} == before


def test_a_block_that_was_applied_to_other_leaves_is_not_taken_back(tmp_path: Path) -> None:
    """What its undo record says of the leaves before it is compared with its transactions; nothing is changed."""
    with open_chain(tmp_path, store="mmr") as chain:
        first = block(None, tx("one", output("ann")))
        feed(chain, first, block(first, tx("two", output("bob"))))
        store, own = chain.store, u32(2)
        with store.disk.read() as txn:
            undo = store.undo_at(txn, 2)
        assert undo is not None and undo.mmr == 1
        wrong = pack_undo(msgspec.structs.replace(undo, mmr=2))
        store.disk.write(lambda txn: txn.put(own, wrong, db=store.delta))
        before = dump(store)
        with pytest.raises(Damaged, match="block 2 was applied to 2 leaves, its transactions say otherwise"):
            chain.rollback(back_to(first))
        assert dump(store) == before


def test_nothing_is_elided_far_below_the_tip(tmp_path: Path) -> None:
    """Outputs that are born and spent in one batch have their leaves, and every block can be taken back."""
    with open_chain(tmp_path / "far", store="mmr") as far, open_chain(tmp_path / "near", store="mmr") as near:
        first = block(None, tx("one", output("ann")), tx("two", output("bob"), spends=[at("one")]))
        second = block(first, tx("three", spends=[at("two")]))
        feed(far, first, second, network_height=1_000_000)
        feed(near, first, second)
        assert dump(far.store) == dump(near.store)
        assert far.rollback(back_to("origin"))


def proof_of(chain: Chain, point: OutPoint) -> MmrProof:
    query = Query(chain.store, CODEC, "cardano")
    with query.snapshot() as shot:
        return Prover(query).proof(shot, *point)


def check_all(chain: Chain) -> None:
    with chain.store.disk.read() as txn:
        assert list(mountains(chain.store, txn, chain.store.state(txn))) == []
