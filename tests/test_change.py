"""The laws of changes: they compose, in any grouping, and the way back from two is the two ways back.

Everything in the store stands on them: a batch is the sum of its blocks, a rollback the sum of the undone reversed.
"""

from __future__ import annotations

import tempfile
from collections.abc import Sequence
from pathlib import Path
from random import Random

from chains import block, dump, feed, open_chain, random_chain, tx
from hypothesis import given, settings
from hypothesis import strategies as st
from storage.change import ChangeSet, Diff

from handlers import ledger
from handlers.chain import Chain
from handlers.events import BlockApplied

Table = dict[bytes, bytes]

SEEDS = st.integers(0, 2**32 - 1)
KEYS = [bytes((n,)) for n in range(6)]
TABLES = st.dictionaries(st.sampled_from(KEYS), st.binary(max_size=1))
EDITS = st.dictionaries(st.sampled_from(KEYS), st.none() | st.binary(max_size=1))


def diff(table: Table, edits: dict[bytes, bytes | None]) -> tuple[Diff, Table]:
    """Return an edit of a table as a change, and the table after it."""
    change = Diff({key: table[key] for key in edits if key in table}, dict(edits))
    after = {key: row for key, row in (table | edits).items() if row is not None}
    return change, after


def done(table: Table, change: Diff) -> Table:
    """Return the table after a change; what the change says was there must have been."""
    assert {key: table[key] for key in change.after if key in table} == change.before
    return {key: row for key, row in (table | change.after).items() if row is not None}


def joined(*parts: Diff) -> Diff:
    whole = Diff()
    for part in parts:
        whole.absorb(part)
    return whole


@given(TABLES, EDITS, EDITS, EDITS)
def test_changes_of_a_table_compose_and_reverse(
    table: Table, one: dict[bytes, bytes | None], two: dict[bytes, bytes | None], three: dict[bytes, bytes | None]
) -> None:
    a, after_a = diff(table, one)
    b, after_b = diff(after_a, two)
    c, after_c = diff(after_b, three)
    assert joined(joined(a, b), c) == joined(a, joined(b, c))
    assert joined(a, b).reversed() == joined(b.reversed(), a.reversed())
    assert joined(a, b, c).reversed().reversed() == joined(a, b, c)
    assert done(table, joined(a, b, c)) == after_c
    assert done(after_c, joined(a, b, c).reversed()) == table
    assert joined(Diff(), a) == joined(a, Diff()) == a


def own_changes(chain: Chain, blocks: Sequence[BlockApplied]) -> list[ChangeSet]:
    """Commit blocks one by one; return the change of each, made from what is stored."""
    changes = []
    for ordinal, each in enumerate(blocks, 1):
        change = ChangeSet()
        connect(chain, change, each, ordinal)
        changes.append(change)
        feed(chain, each)
    return changes


def connect(chain: Chain, onto: ChangeSet, each: BlockApplied, ordinal: int) -> None:
    store = chain.store
    with store.disk.read() as txn:
        homes = store.homes(txn, ledger.named(each).difference(onto.txids.after))
        rows = store.rows(txn, ledger.places(each, homes))
    ledger.connect(each, ordinal, onto, homes, rows, embed_bodies=chain.windows.self_contained)


@settings(max_examples=100)
@given(SEEDS, st.booleans())
def test_changes_of_blocks_compose_and_reverse(seed: int, self_contained: bool) -> None:
    blocks = random_chain(Random(seed), 3, repeats=False)
    with tempfile.TemporaryDirectory() as folder, open_chain(Path(folder), self_contained=self_contained) as chain:
        a, b, c = own_changes(chain, blocks)
    assert a.then(b).then(c) == a.then(b.then(c))
    assert a.then(b).reversed() == b.reversed().then(a.reversed())
    assert a.then(b).then(c).reversed().reversed() == a.then(b).then(c)
    assert ChangeSet().then(a) == a.then(ChangeSet()) == a


def test_then_leaves_both_as_they_were() -> None:
    first, second = ChangeSet(), ChangeSet()
    first.outputs.after[b"a"] = b"1"
    second.outputs.before[b"a"], second.outputs.after[b"a"] = b"1", None
    both = first.then(second)
    assert both.outputs == Diff({}, {b"a": None})
    assert first.outputs == Diff({}, {b"a": b"1"})
    assert second.outputs == Diff({b"a": b"1"}, {b"a": None})
    assert both != first


@settings(max_examples=100)
@given(SEEDS, st.booleans())
def test_blocks_connected_onto_a_batch_are_the_sum_of_their_changes(seed: int, self_contained: bool) -> None:
    """The fast way, one batch in memory, and the law's way, block by block, say the same."""
    blocks = random_chain(Random(seed), 6, repeats=False)
    batch, composed = ChangeSet(), ChangeSet()
    with tempfile.TemporaryDirectory() as folder, open_chain(Path(folder), self_contained=self_contained) as chain:
        for ordinal, each in enumerate(blocks, 1):
            connect(chain, batch, each, ordinal)
        for change in own_changes(chain, blocks):
            composed.absorb(change)
    assert batch == composed


@settings(max_examples=100)
@given(SEEDS, st.booleans())
def test_a_composed_batch_writes_what_its_blocks_write_one_by_one(seed: int, self_contained: bool) -> None:
    """And its way back leaves the tables as they were, in one transaction."""
    rng = Random(seed)
    blocks = random_chain(rng, 8, repeats=False)
    with (
        tempfile.TemporaryDirectory() as one,
        tempfile.TemporaryDirectory() as other,
        open_chain(Path(one), self_contained=self_contained) as single,
        open_chain(Path(other), self_contained=self_contained) as composed,
    ):
        first, *rest = own_changes(single, blocks)
        store, state, before = composed.store, composed.state, dump(composed.store)
        batch = first
        for change in rest:
            batch = batch.then(change)
        tip = single.state
        store.disk.write(lambda txn: store.write(txn, batch, type(state)(tip=tip.tip, unspent=state.unspent)))
        assert dump(store) == dump(single.store)
        store.disk.write(lambda txn: store.write(txn, batch.reversed(), type(state)(unspent=tip.unspent)))
        assert dump(store) == before


@settings(max_examples=100)
@given(SEEDS, st.booleans())
def test_a_block_is_read_back_as_what_it_did(seed: int, self_contained: bool) -> None:
    """The undo record and the rows together say of the newest block all that its way back needs."""
    blocks = random_chain(Random(seed), 5, repeats=False)
    with tempfile.TemporaryDirectory() as folder, open_chain(Path(folder), self_contained=self_contained) as chain:
        *_, newest = own_changes(chain, blocks)
        with chain.store.disk.read() as txn:
            read = chain.store.change_of(txn, len(blocks), ChangeSet())
    assert read.outputs == newest.outputs
    for table in ("txs", "txids", "hashes"):
        assert getattr(read, table) == getattr(newest, table)
    for table in ("blocks", "undos"):
        assert getattr(read, table).reversed().after == getattr(newest, table).reversed().after


def test_an_empty_block_changes_no_output() -> None:
    change = ChangeSet()
    ledger.connect(block(None, tx("nothing")), 1, change, {}, {}, embed_bodies=False)
    assert change.outputs == Diff()
    assert len(change.txs.after) == len(change.blocks.after) == len(change.undos.after) == 1
