"""The index `history`: every transaction that touched an address, however the blocks came."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Callable, Sequence
from pathlib import Path
from random import Random

import numpy as np
import pytest
from chains import (
    ADDRESSES,
    INDEXES,
    LEAVES,
    Options,
    back_to,
    dump,
    feed,
    open_chain,
    prune_all,
    random_chain,
    random_genesis,
)
from corruption import Hand, harm, opened
from hypothesis import given, settings
from hypothesis import strategies as st
from model import Model
from stores import small_values
from test_model import fresh

import storage.history.reindex
from handlers.chain import Chain
from handlers.events import BlockApplied, GenesisOutputs, OutPoint
from storage.disk import META
from storage.errors import WrongFormat
from storage.history import runs, touches
from storage.history.ends import contradictions
from storage.history.layout import HEAD_BYTES, OUTPUT, OUTPUT_RECORD, TX, TX_RECORD, UNDO, count_of, seal
from storage.history.output_keys import address_key
from storage.history.reindex import reindex
from storage.history.verify import verify
from storage.indexes import NAMES

MET = Counter[str]()
Touched = dict[bytes, list[bytes]]


@pytest.fixture(autouse=True)
def small(monkeypatch: pytest.MonkeyPatch) -> None:
    small_values(monkeypatch)


def expected(genesis: GenesisOutputs, blocks: Sequence[BlockApplied]) -> Touched:
    """Return what touched each address, in the order of the chain, by the rules of the model."""
    model, found, owner = Model(), dict[bytes, list[bytes]](), dict[OutPoint, bytes]()
    model.seed(genesis)

    def touch(address: bytes, txid: bytes) -> None:
        txids = found.setdefault(address, [])
        if txid not in txids[-1:]:
            txids.append(txid)

    for point, coin in sorted(model.now.coins.items(), key=lambda each: each[1].place):
        owner[point] = coin.output.address
        touch(coin.output.address, point[0])
    for block in blocks:
        before = dict(model.now.coins)
        model.apply(block)
        for tx in block.txs:
            for point in dict.fromkeys(tx.inputs if tx.valid else tx.collateral):
                if before.pop(point, None):
                    touch(owner[point], tx.txid)
            for point in [point for point in before if point[0] == tx.txid]:
                del before[point]  # the same id again
                touch(owner[point], tx.txid)
            outputs = enumerate(tx.outputs) if tx.valid else [(len(tx.outputs), tx.collateral_return)]
            for index, output in outputs:
                if output is not None and output.spendable:
                    before[tx.txid, index] = None  # type: ignore[assignment]
                    owner[tx.txid, index] = output.address
                    touch(output.address, tx.txid)
            for point in list(before):
                before[point] = before[point] or True
    return found


def touched(chain: Chain) -> Touched:
    """Return what the index lists, the same up and down."""
    found = Touched()
    with chain.store.disk.read() as txn:
        stored = chain.store.stored(txn)
        for address in ADDRESSES:
            prefix = stored.prefix(address_key(address))
            index = stored.index(touches.KIND)
            up = [n for some in index.ascending(prefix) for n in some.tolist()]
            assert up == [n for some in index.descending(prefix) for n in some.tolist()][::-1]
            if up:
                found[address] = [stored.tx_of(number).txid for number in up]
    return found


def sound(chain: Chain) -> None:
    assert verify(chain.store.disk, quick=True, leaves=LEAVES) == []
    with chain.store.disk.read() as txn:
        assert list(contradictions(txn, chain.store.disk.tables)) == [], "a daemon would not start"


@settings(max_examples=50)
@given(st.integers(0, 2**32 - 1), st.sampled_from((1, 4, 25)), st.integers(0, 6), st.sampled_from((None, 10_000)))
def test_every_touch_is_listed(seed: int, most: int, window: int, ahead: int | None) -> None:
    rng = Random(seed)
    repeats = rng.random() < 0.3  # of transactions with one id the list has each
    genesis, blocks = random_genesis(rng), random_chain(rng, 20, repeats=repeats)
    with fresh(indexes=NAMES, rollback_window=window, prune_depth=0, may_prune=True) as chain:
        chain.seed(genesis)
        left = list(blocks)
        while left:
            size = rng.randint(1, most)
            feed(chain, *left[:size], network_height=ahead)
            del left[:size]
        MET["far below the tip"] += chain.state.floor == chain.state.tip
        back = rng.randrange(min(window, chain.state.tip - chain.state.floor) + 1)
        if back:
            chain.rollback(back_to(blocks[-back - 1]))
            MET["a rollback"] += 1
        blocks = blocks[: len(blocks) - back]
        more = random_chain(rng, 3, after=blocks, repeats=repeats)
        feed(chain, *more)
        prune_all(chain)
        chain.maintain(20)
        found, whole = touched(chain), expected(genesis, blocks + more)
        assert found == whole or (
            repeats and {a: {*t} for a, t in found.items()} == {a: {*t} for a, t in whole.items()}
        )
        sound(chain)


def test_the_chains_covered_what_they_are_for() -> None:
    assert all(MET[what] > 5 for what in ("far below the tip", "a rollback")), MET


def test_reindexing_builds_the_same_list(tmp_path: Path) -> None:
    rng = Random(3)
    genesis, blocks = random_genesis(rng), random_chain(rng, 30, repeats=False)
    with open_chain(tmp_path, indexes=NAMES, may_prune=True) as chain:
        chain.seed(genesis)
        feed(chain, *blocks)
        prune_all(chain)
        before = touched(chain)
        assert reindex(chain.store, NAMES, lambda _: None)
    with open_chain(tmp_path, indexes=NAMES, may_prune=True) as chain:
        assert touched(chain) == before == expected(genesis, blocks)
        sound(chain)


def test_a_history_that_begins_late_has_what_is_still_known(tmp_path: Path) -> None:
    """Outputs spent before are unknown; every touch above the rollback floor, and of live outputs, is found."""
    rng = Random(4)
    genesis, blocks = random_genesis(rng), random_chain(rng, 40, repeats=False)
    early, late = blocks[:30], blocks[30:]
    with open_chain(tmp_path, indexes=INDEXES, may_prune=True, rollback_window=5, prune_depth=5) as chain:
        chain.seed(genesis)
        feed(chain, *early)
        prune_all(chain)
        floor = chain.state.floor
        assert floor
    with pytest.raises(WrongFormat, match="index history was off"), open_chain(tmp_path, indexes=NAMES):
        pass
    with open_chain(tmp_path, indexes=INDEXES) as chain:
        reindex(chain.store, NAMES, lambda _: None)
    with open_chain(tmp_path, indexes=NAMES, may_prune=True, rollback_window=5, prune_depth=5) as chain:
        feed(chain, *late)
        prune_all(chain)
        sound(chain)
        whole, since = expected(genesis, blocks), {tx.txid for block in blocks[floor:] for tx in block.txs}
        with chain.store.disk.read() as txn:
            assert touches.first_block(txn, chain.store.meta) == floor + 1
        for address, txids in touched(chain).items():
            assert set(txids) <= set(whole[address])
            assert [txid for txid in txids if txid in since] == [txid for txid in whole[address] if txid in since]


@pytest.mark.parametrize("fed", [False, True])
def test_an_index_of_a_store_without_outputs_needs_no_reindex(tmp_path: Path, fed: bool) -> None:
    blocks = random_chain(Random(6), 10, repeats=False)
    with open_chain(tmp_path, indexes=("policy", "address_hash")) as chain:
        if fed:
            feed(chain, *blocks)
            assert chain.rollback(back_to("origin"))
    wanted = [name for name in NAMES if name != "policy"]
    with open_chain(tmp_path, indexes=wanted) as chain:
        feed(chain, *blocks)
        sound(chain)
        assert touched(chain) == expected(GenesisOutputs(outputs=[]), blocks)
        found = dump(chain.store)
    with open_chain(tmp_path / "direct", indexes=wanted) as chain:
        feed(chain, *blocks)
        assert dump(chain.store) == found and not {*wanted} - {*found} - {"history"}


def test_a_history_that_is_switched_off_is_deleted(tmp_path: Path) -> None:
    blocks = random_chain(Random(5), 30)
    with open_chain(tmp_path, indexes=NAMES, may_prune=True, rollback_window=5, prune_depth=5) as chain:
        feed(chain, *blocks)
        prune_all(chain)
    with open_chain(tmp_path, indexes=INDEXES, may_prune=True, rollback_window=5, prune_depth=5) as chain:
        sound(chain)
        with chain.store.disk.read() as txn:
            assert touches.first_block(txn, chain.store.meta) is None
            assert chain.store.stored(txn).log(chain.state.floor).size == 0
        for _ in range(10):
            chain.maintain(20)
        sound(chain)


@pytest.mark.parametrize("killed", [True, False])
def test_an_incomplete_history_is_deleted(killed: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Its building was killed, or it was left out of the indexes that were built."""
    blocks, windows = random_chain(Random(5), 60), Options(may_prune=True, rollback_window=5, prune_depth=5)
    with open_chain(tmp_path, **windows | {"indexes": INDEXES if killed else NAMES}) as chain:
        feed(chain, *blocks[:30])
        prune_all(chain)
    with open_chain(tmp_path, indexes=INDEXES if killed else NAMES) as chain, monkeypatch.context() as patch:
        if killed:
            patch.setattr(storage.history.reindex, "_add_touches", lambda *_: 1 / 0)
            with pytest.raises(ZeroDivisionError):
                reindex(chain.store, NAMES, lambda _: None)
        else:
            reindex(chain.store, (), lambda _: None)
        sound(chain)
    with open_chain(tmp_path, **windows | {"indexes": ()}) as chain:
        feed(chain, *blocks[30:])
        prune_all(chain)
        for _ in range(10):
            chain.maintain(20)
        sound(chain)
        reindex(chain.store, NAMES, lambda _: None)
        with chain.store.disk.read() as txn:
            assert touches.first_block(txn, chain.store.meta) == chain.state.floor + 1
        sound(chain)


# --- what `verify` finds ---------------------------------------------------------------------------------------------


def last_left_out(table: str, record: np.dtype[np.void]) -> Callable[[Hand], object]:
    """Return what deletes a record in the middle of a table: nothing there lives, and no rollback reaches it."""

    def damage(hand: Hand) -> None:
        dead = [row for row in hand.rows(table) if count_of(row[1]) > 1][1:]
        for key, value in dead:
            count = count_of(value)
            records = np.frombuffer(value, record, count, HEAD_BYTES)
            if not hand.stored.live.has(np.arange(records["number"][-1], records["number"][-1] + 9)).any():
                heap = value[HEAD_BYTES + count * record.itemsize :]
                kept = len(heap) - (int(records["length"][-1]) if table == OUTPUT else 0)
                hand.put(table, key, seal(count - 1, records[:-1].tobytes(), heap[:kept]))
                return
        pytest.fail("everything lives")

    return damage


def entry_left_out(kind: str) -> Callable[[Hand], object]:
    def damage(hand: Hand) -> None:
        key, found = next((key, found) for key, found in hand.entries(kind) if len(found) > 1)
        hand.put_entries(key, np.delete(found, 1))
        hand.recount(kind, runs.KEY.unpack(key)[0], -1)

    return damage


def undo_left_out(hand: Hand) -> None:
    hand.delete(UNDO, next(key for key, value in hand.rows(UNDO) if count_of(value)))


def begin_at(ordinal: int) -> Callable[[Hand], object]:
    return lambda hand: touches.put_first_block(hand.txn, hand.tables[META], ordinal)


LOST: dict[str, Callable[[Hand], object]] = {
    r"block \d+ created \d+ outputs, but the history has": last_left_out(OUTPUT, OUTPUT_RECORD),
    r"block \d+ has \d+ transactions, but the history has": last_left_out(TX, TX_RECORD),
    r"index history has no entry for transaction": entry_left_out("history"),
    r"index txid has no entry for transaction": entry_left_out("txid"),
    r"block \d+ spent \d+ outputs, but its undo log has": undo_left_out,
    r"block \d+ has an undo log, but": begin_at(5),
    r"the index history is kept, but its first block is not": lambda hand: hand.delete(META, touches.FROM),
}


@pytest.mark.parametrize("words", LOST)
def test_what_a_history_has_lost_is_found(words: str, tmp_path: Path) -> None:
    rng = Random(4)
    with open_chain(tmp_path, indexes=NAMES, may_prune=True, rollback_window=5, prune_depth=5) as chain:
        chain.seed(random_genesis(rng))
        for each in random_chain(rng, 40, repeats=False):
            feed(chain, each)
        prune_all(chain)
        sound(chain)
    harm(tmp_path, LOST[words])
    with opened(tmp_path) as disk:
        found = verify(disk, quick=True, leaves=LEAVES)
    assert any(re.search(words, each) for each in found), found
