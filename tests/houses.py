"""Stores for tests of what stands on them."""

from __future__ import annotations

from collections.abc import Sequence

import pytest
from chains import LEAVES, TABLES

import storage.history.filters
import storage.history.history
import storage.history.merging
import storage.history.recent
import storage.history.runs
import storage.history.values
from storage.disk import Disk
from storage.ghost_records import GhostTxStore
from storage.history.mined import MinedStore
from storage.history.store import HistoryStore
from storage.jobs import TABLES as JOB_TABLES
from storage.transactions import TABLES as TX_TABLES

ALL_TABLES = (*TABLES, *TX_TABLES, *JOB_TABLES)


def open_store(
    disk: Disk, kind: str = "classic", chain: str = "cardano/mainnet", indexes: Sequence[str] = ()
) -> HistoryStore:
    """Open the chain's tables on a disk."""
    store = HistoryStore(disk, LEAVES)
    store.open(chain, indexes, kind)
    return store


def chain_txs(store: HistoryStore, maturity: int = 0, records: GhostTxStore | None = None) -> MinedStore:
    """Return what the transaction store asks of a chain."""
    return MinedStore(store, records or GhostTxStore(store.disk), maturity)


def small_values(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let values, merges and filters be small, so that a short story has many of them."""
    monkeypatch.setattr(storage.history.runs, "VALUE_BYTES", 80)
    monkeypatch.setattr(storage.history.values, "VALUE_BYTES", 300)
    monkeypatch.setattr(storage.history.merging, "FANOUT", 3)
    monkeypatch.setattr(storage.history.merging, "_REWRITTEN", 1)
    monkeypatch.setattr(storage.history.history, "MERGED", 2)
    monkeypatch.setattr(storage.history.history, "LEAST_MERGED", 3)
    monkeypatch.setattr(storage.history.recent, "_LOADED", 1)
    monkeypatch.setattr(storage.history.filters, "PART", 2)
