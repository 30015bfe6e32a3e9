"""Stores of either layout for tests of what stands on them: the same story has to end the same way."""

from __future__ import annotations

from collections.abc import Sequence

import pytest
from chains import LEAVES, live

import storage.history.filters
import storage.history.history
import storage.history.merging
import storage.history.recent
import storage.history.runs
import storage.history.values
from handlers.chain import Chain
from handlers.events import OutPoint
from handlers.history_chain import HistoryChain
from handlers.lives import Lives
from storage.buried import BuriedStore
from storage.chain_txs import ChainTxs
from storage.disk import Disk
from storage.history.layout import TABLES as HISTORY_TABLES
from storage.history.mined import MinedStore
from storage.history.store import HistoryStore
from storage.history.stored import Stored
from storage.jobs import TABLES as JOB_TABLES
from storage.prune import Windows
from storage.transactions import TABLES as TX_TABLES
from storage.transactions import TxStore
from storage.utxo import TABLES as UTXO_TABLES
from storage.utxo import UtxoStore

ALL_TABLES = tuple(dict.fromkeys((*UTXO_TABLES, *HISTORY_TABLES, *TX_TABLES, *JOB_TABLES)))
KINDS = ("classic", "history")

AnyStore = UtxoStore | HistoryStore


def open_rows(disk: Disk, kind: str, chain: str = "cardano/mainnet", indexes: Sequence[str] = ()) -> AnyStore:
    """Open the chain's tables on a disk."""
    if kind == "history":
        history = HistoryStore(disk)
        history.open(chain, indexes)
        return history
    store = UtxoStore(disk, LEAVES)
    store.open(chain, indexes, kind)
    return store


def chain_txs(store: AnyStore, maturity: int = 0, records: TxStore | None = None) -> ChainTxs:
    """Return what the transaction store asks of a chain."""
    records = records or TxStore(store.disk)
    return (MinedStore if isinstance(store, HistoryStore) else BuriedStore)(store, records, maturity)  # type: ignore[arg-type]


def open_over(store: AnyStore, windows: Windows, batch: int, lives: Lives | None) -> Chain:
    """Open the chain over its tables."""
    if isinstance(store, HistoryStore):
        return HistoryChain(store, windows, batch, lives)
    return Chain(store, windows, batch, lives)


def live_of(store: AnyStore) -> dict[OutPoint, tuple[bytes, int]]:
    """Return the unspent outputs."""
    if not isinstance(store, HistoryStore):
        return live(store)
    with store.disk.read() as txn:
        stored, found = Stored(txn, store.disk.tables), dict[OutPoint, tuple[bytes, int]]()
        for number in range(stored.state.next_number):
            if stored.live.is_set(number):
                tx, output = stored.tx_of(number), stored.output(number)
                assert output is not None
                found[tx.txid, number - tx.number] = output.address, output.value
        return found


def small_values(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let values, merges and filters of a history be small, so that a short story has many of them."""
    monkeypatch.setattr(storage.history.runs, "VALUE_BYTES", 80)
    monkeypatch.setattr(storage.history.values, "VALUE_BYTES", 300)
    monkeypatch.setattr(storage.history.merging, "FANOUT", 3)
    monkeypatch.setattr(storage.history.merging, "_REWRITTEN", 1)
    monkeypatch.setattr(storage.history.history, "MERGED", 2)
    monkeypatch.setattr(storage.history.history, "LEAST_MERGED", 3)
    monkeypatch.setattr(storage.history.recent, "_LOADED", 1)
    monkeypatch.setattr(storage.history.filters, "PART", 2)
