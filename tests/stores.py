"""Stores for tests of what stands on them."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import pytest
from chains import LEAVES, TABLES
from msgspec import Struct

import storage.history.filters
import storage.history.history
import storage.history.merging
import storage.history.recent
import storage.history.runs
import storage.history.values
from handlers import new_records, spending
from handlers.events import OutPoint, Tx
from handlers.spending import TxFault
from handlers.transactions import PLACEHOLDER, Transactions, show
from storage.disk import Disk, Txn
from storage.ghost_records import GhostTxStore
from storage.history.mined import MinedStore
from storage.history.store import HistoryStore
from storage.jobs import TABLES as JOB_TABLES
from storage.transactions import HASH, claimant
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


class Looked(Struct, frozen=True):
    """What is said of one output."""

    status: str
    hash: bytes | None = None
    spender: tuple[bytes, int] | None = None


def look(transactions: Transactions, txn: Txn, outpoint: OutPoint, wanted: bytes | None = None) -> Looked:
    """Say whether an output may be spent, or why not.

    Raises:
        TxFault: the hash is another output's.
    """
    held = transactions.hold(txn, outpoint[0])
    page, _, slot, row = transactions.slot(txn, held, outpoint[1]) if held else (None, 0, 0, None)
    if held is None or page is None or row is None:
        return Looked("NOT_FOUND")
    if wanted is not None and row[:HASH] != wanted:
        raise TxFault("UTXO_HASH_MISMATCH", f"{show(outpoint)} is {row[:HASH].hex()}, not {wanted.hex()}")
    status, spender = "OK", None
    if spending.spent(row):
        status, spender = "SPENT", claimant(row)
    if page.spendable_in.get(slot, 0) > transactions.height:
        status = "IMMATURE"
    if held.record.spending_height is not None and held.record.spending_height > transactions.height + 1:
        status = "IMMATURE"
    if spending.frozen(row):
        status, spender = "FROZEN", (PLACEHOLDER, outpoint[1])
    if held.record.conflicting:
        status = "CONFLICTING"
    if held.record.locked:
        status = "LOCKED"
    return Looked(status, row[:HASH], spender)


def create(transactions: Transactions, txn: Txn, tx: Tx, height: int, **about: Any) -> None:
    """Create the record of a transaction that fits one page, whatever it spends."""
    if new_records.known(transactions, txn, tx):
        raise TxFault("TX_EXISTS", f"transaction {tx.txid.hex()} exists")
    record = new_records.draft(transactions.rules, tx, height, **about)
    new_records.put_page(transactions, txn, tx, record, 0)


def submit(transactions: Transactions, txn: Txn, tx: Tx, *, locked: bool = False) -> bool:
    """Spend what a transaction spends and keep it as unmined; return False when it is known already."""
    if new_records.known(transactions, txn, tx):
        return False
    new_records.claim_inputs(transactions, txn, tx.txid, tx.inputs, {}, keeps_loser=False)
    create(transactions, txn, tx, transactions.height, locked=locked)
    return True


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
