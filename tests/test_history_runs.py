"""The runs of a history's indexes, made small so that a short chain has merges of them."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import pytest
from chains import at, block, feed, open_chain, output, tx, txid

import storage.history.filters
import storage.history.history
import storage.history.merging
import storage.history.runs
from handlers.events import BlockApplied
from storage.history.stored import Stored


def chain_of(length: int, width: int) -> Sequence[BlockApplied]:
    """Return blocks of some transactions, each of which spends what one of the block before has paid."""
    blocks: list[BlockApplied] = []
    for n in range(length):
        paid = [tx(f"{n} {k}", output("ann"), spends=[at(f"{n - 1} {k}")] if n else []) for k in range(width)]
        blocks.append(block(blocks[-1] if blocks else None, *paid))
    return blocks


def test_a_merge_that_keeps_little_leaves_a_whole_filter(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """Parts of it that no entry has touched are there too: readers ask them for other ids."""
    monkeypatch.setattr(storage.history.filters, "PART", 2)
    monkeypatch.setattr(storage.history.runs, "VALUE_BYTES", 200)
    monkeypatch.setattr(storage.history.merging, "FANOUT", 3)
    monkeypatch.setattr(storage.history.history, "MERGED", 0)
    monkeypatch.setattr(storage.history.history, "LEAST_MERGED", 200)
    with open_chain(tmp_path, store="history", rollback_window=1, prune_depth=1, may_prune=True) as chain:
        for each in chain_of(30, 40):
            feed(chain, each)
        with chain.store.disk.read() as txn:
            stored = Stored(txn, chain.store.disk.tables)
            assert any(run.entries < run.room / 4 for run in stored.index("txid").runs)
            for k in range(200):
                assert stored.find_tx(txid(f"nobody {k}")) is None
                assert k >= 40 or stored.find_tx(txid(f"29 {k}")) is not None


def test_a_new_run_has_a_whole_filter(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """Readers ask also for ids whose part of the filter no entry of the run has touched."""
    monkeypatch.setattr(storage.history.filters, "PART", 1)
    monkeypatch.setattr(storage.history.filters, "_BITS", 640)  # for each entry, so that entries are far apart
    with open_chain(tmp_path, store="history", rollback_window=9, prune_depth=9) as chain:
        feed(chain, block(None, *[tx(f"0 {k}", output("ann")) for k in range(3)]))
        with chain.store.disk.read() as txn:
            stored = Stored(txn, chain.store.disk.tables)
            for k in range(200):
                assert stored.find_tx(txid(f"nobody {k}")) is None
