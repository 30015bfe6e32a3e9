"""Batching, and the timing of merges and rewrites, never change an answer of a history."""

from __future__ import annotations

from collections import Counter
from pathlib import Path
from random import Random

import pytest
from chains import ADDRESSES, INDEXES, Options, back_to, dump, feed, open_chain, random_chain, random_genesis
from faults import watched
from hypothesis import given, settings
from hypothesis import strategies as st
from stores import fixed_keys, small_values
from test_model import cut, fresh

from handlers.chain import Chain
from handlers.events import BlockApplied
from storage.history import touches
from storage.history.output_keys import address_key
from storage.history.reindex import reindex
from storage.history.stored import Stored
from storage.indexes import NAMES

MET = Counter[str]()
MEANT = {"a run of the second level", "a run that is merged", "a run that is rewritten", "a run that is counted"}
MEANT |= {"a rollback", "a batch", "far below the tip", "a history", "mountain ranges"}
MEANT |= {"a rewrite of values", "deleted undo logs", "deleted values of runs"}


@pytest.fixture(autouse=True)
def small(monkeypatch: pytest.MonkeyPatch) -> None:
    small_values(monkeypatch, run_bytes=200, counted=1)


def answers(chain: Chain, blocks: list[BlockApplied]) -> list[object]:
    """Return everything that can be asked for: numbers are the same however a chain was applied."""
    with chain.store.disk.read() as txn:
        stored = Stored(txn, chain.store.disk.tables)
        found: list[object] = [stored.state.tip, stored.state.unspent, stored.state.floor, stored.state.next_number]
        for number in range(stored.state.next_number):
            output, by = stored.output(number), stored.spender(number)
            found.append((output, stored.live.is_set(number), by, output and stored.tx_of(number)))
        found += [stored.find_tx(tx.txid) for block in blocks for tx in block.txs]
        found += [(stored.ordinal_of(block.hash), stored.undo(n)) for n, block in enumerate(blocks, 1)]
        kinds = chain.store.kept_indexes(txn)
        for address in ADDRESSES if touches.KIND in kinds else ():
            up = stored.index(touches.KIND).ascending(stored.prefix(address_key(address)))
            found.append(listed := [n for some in up for n in some.tolist()])
            MET["a history"] += bool(listed)
    return [*found, dump(chain.store)]


def note(chain: Chain) -> None:
    lists = [index.manifest for index in chain.history.index.values()]
    begun = [merge for listed in lists for merge in listed.merges if merge.entries]
    MET["a run of the second level"] += any(run.level > 1 for listed in lists for run in listed.runs)
    MET["a run that is merged"] += any(len(merge.inputs) > 1 for merge in begun)
    MET["a run that is rewritten"] += any(len(merge.inputs) == 1 for merge in begun)
    MET["a run that is counted"] += any(listed.count.run for listed in lists)


# The kind of store, its indexes, and the height of the network.
KINDS: list[tuple[str, tuple[str, ...], int | None]] = [("classic", INDEXES, None), ("classic", NAMES, None)]
KINDS += [("mmr", INDEXES, None), ("classic", INDEXES, 10_000), ("classic", NAMES, 10_000)]


@pytest.mark.parametrize(("store", "indexes", "ahead"), KINDS)
@settings(max_examples=7)
@given(seed=st.integers(0, 2**32 - 1), most=st.integers(1, 12), merged=st.sampled_from((1, 7, 30_000)))
def test_any_batching_and_merging_has_the_same_answers(
    store: str, indexes: tuple[str, ...], ahead: int | None, seed: int, most: int, merged: int
) -> None:
    rng = Random(seed)
    window = rng.randrange(13)
    genesis, blocks = random_genesis(rng), random_chain(rng, 25)
    back = 0 if ahead else rng.randrange(min(window, 5) + 1)
    again = random_chain(rng, 4, after=blocks[: len(blocks) - back])
    chain = blocks[: len(blocks) - back] + again
    options = Options(store=store, indexes=indexes, rollback_window=window, prune_depth=0, may_prune=True)
    expected = list[object]()
    for parts in (1, most):
        with pytest.MonkeyPatch.context() as patch, fresh(**options) as applied, watched() as met:
            fixed_keys(patch, [1, 3, 5, 7])
            if parts > 1:
                small_values(patch, run_bytes=200, counted=1, merged=merged, least_merged=merged)
            applied.seed(genesis)
            for some in (blocks, again):
                for part in cut(rng, some, parts):
                    feed(applied, *part, network_height=ahead)
                    note(applied)
                if some is blocks:
                    applied.rollback(back_to(blocks[-back - 1]))
            while parts > 1 and applied.due_for_pruning():
                applied.prune()
            found = answers(applied, chain)
            assert found == (expected or found)
            expected = found
            if parts > 1:
                reindex(applied.store, indexes, lambda _: None)
                assert answers(applied, chain) == expected
        MET.update(met)
    MET["a rollback"] += bool(back)
    MET["a batch"] += most > 1
    MET["far below the tip"] += ahead is not None
    MET["mountain ranges"] += store == "mmr"


def test_the_chains_covered_what_they_are_for() -> None:
    assert all(MET[what] > 5 for what in MEANT), MET


def test_a_value_is_bounded(tmp_path: Path) -> None:
    """A record that is larger than a value stands alone; all others share values of at most the one size."""
    blocks = random_chain(Random(1), 30)
    with open_chain(tmp_path) as chain:
        feed(chain, *blocks)
        with chain.store.disk.read() as txn:
            for table, most in (("history_tx", 300), ("history_run", 200)):
                assert max(len(value) for _, value in txn.cursor(chain.store.disk.tables[table])) <= most
