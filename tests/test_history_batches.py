"""Batching, and the timing of merges and rewrites, never change an answer of a history."""

from __future__ import annotations

from collections import Counter
from pathlib import Path
from random import Random

import pytest
from chains import ADDRESSES, back_to, credential, feed, open_chain, random_chain, random_genesis
from hypothesis import given, settings
from hypothesis import strategies as st
from stores import small_values
from test_model import cut, fresh

from handlers.chain import Chain
from handlers.events import BlockApplied
from storage.history.output_keys import address_key
from storage.history.runs import manifest
from storage.history.stored import Stored

MET = Counter[str]()
MEANT = ("a run of the second level", "a run that is rewritten", "a run that is counted", "a rollback", "a batch")


@pytest.fixture(autouse=True)
def small(monkeypatch: pytest.MonkeyPatch) -> None:
    small_values(monkeypatch, run_bytes=200, counted=1)


def answers(chain: Chain, blocks: list[BlockApplied]) -> list[object]:
    """Return everything that can be asked for: numbers are the same however a chain was applied."""
    keys = [("address_hash", address_key(address)) for address in ADDRESSES]
    keys += [("policy", credential(f"policy {n}")) for n in range(3)]
    with chain.store.disk.read() as txn:
        stored = Stored(txn, chain.store.disk.tables)
        found: list[object] = [stored.state.tip, stored.state.unspent, stored.state.floor, stored.state.next_number]
        for number in range(stored.state.next_number):
            output, by = stored.output(number), stored.spender(number)
            found.append((output, stored.live.is_set(number), by, output and stored.tx_of(number)))
        found += [stored.find_tx(tx.txid) for block in blocks for tx in block.txs]
        found += [(stored.ordinal_of(block.hash), stored.undo(n)) for n, block in enumerate(blocks, 1)]
        for kind, key in keys:
            listed = [n for some in stored.index(kind).ascending(stored.prefix(key)) for n in some.tolist()]
            found.append([n for n in listed if stored.live.is_set(n)])
        runs = [run for kind in ("txid", "spender", "address_hash") for run in stored.index(kind).runs]
        MET["a run of the second level"] += any(run.level > 1 for run in runs)
        lists = [manifest(txn, chain.store.meta, kind) for kind in ("txid", "spender", "address_hash")]
        MET["a run that is rewritten"] += any(len(merge.inputs) == 1 for some in lists for merge in some.merges)
        MET["a run that is counted"] += any(some.count.run for some in lists)
        return found


@settings(max_examples=30)
@given(st.integers(0, 2**32 - 1), st.integers(1, 12), st.sampled_from((1, 7, 30_000)), st.integers(0, 12))
def test_any_batching_and_merging_has_the_same_answers(seed: int, most: int, merged: int, window: int) -> None:
    rng = Random(seed)
    genesis, blocks = random_genesis(rng), random_chain(rng, 25)
    back = rng.randrange(min(window, 5) + 1)
    again = random_chain(rng, 4, after=blocks[: len(blocks) - back])
    chain = blocks[: len(blocks) - back] + again
    expected = list[object]()
    for parts in (1, most):
        with (
            pytest.MonkeyPatch.context() as patch,
            fresh(rollback_window=window, prune_depth=0, may_prune=True) as applied,
        ):
            if parts > 1:
                small_values(patch, run_bytes=200, counted=1, merged=merged, least_merged=merged)
            applied.seed(genesis)
            for some in (blocks, again):
                for part in cut(rng, some, parts):
                    feed(applied, *part)
                if some is blocks:
                    applied.rollback(back_to(blocks[-back - 1]))
            while parts > 1 and applied.due_for_pruning():
                applied.prune()
            found = answers(applied, chain)
        assert found == (expected or found)
        expected = found
    MET["a rollback"] += bool(back)
    MET["a batch"] += most > 1


def test_the_chains_met_what_they_are_for() -> None:
    assert all(MET[what] > 5 for what in MEANT), MET


def test_a_value_is_bounded(tmp_path: Path) -> None:
    """A record that is larger than a value stands alone; all others share values of at most the one size."""
    blocks = random_chain(Random(1), 30)
    with open_chain(tmp_path) as chain:
        feed(chain, *blocks)
        with chain.store.disk.read() as txn:
            for table, most in (("history_tx", 300), ("history_run", 200)):
                assert max(len(value) for _, value in txn.cursor(chain.store.disk.tables[table])) <= most
