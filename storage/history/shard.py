"""The shard of a store: its name next to that of the chain, its records, and which transactions belong to it."""

from __future__ import annotations

import numpy as np

from formats.shards import Shard
from storage.disk import Db, Txn
from storage.history.layout import SHARD_TX_RECORD, TX_RECORD, Flags, Words, meta_row

CHAIN = b"chain"
_SHARD = ", shard "  # between the chain and the shard


def chain_of(chain: str, shard: str | None) -> str:
    """Return the name under which a store keeps a chain, or a shard of it."""
    return chain if shard is None else f"{chain}{_SHARD}{shard}"


def read_chain(txn: Txn, meta: Db) -> tuple[str, str | None]:
    """Return the chain of a store, and its shard if it has one."""
    chain, _, shard = (meta_row(txn, meta, CHAIN) or b"").decode(errors="replace").partition(_SHARD)
    return chain, shard or None


def tx_record(txn: Txn, meta: Db) -> np.dtype[np.void]:
    """Return which records of transactions a store has."""
    return TX_RECORD if read_chain(txn, meta)[1] is None else SHARD_TX_RECORD


def own_txs(ids: Words, shard: str | None) -> Flags:
    """Return which transactions belong to a shard, by their ids; without a shard, all of them."""
    if shard is None:
        return np.ones(len(ids), np.bool_)
    kept = Shard.parse(shard)
    found: Flags = ids[:, 0] % np.uint64(kept.count) == np.uint64(kept.number - 1)
    return found
