"""Opening the store as the configuration says."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import structlog

from config.settings import Config
from handlers.addresses import codec
from handlers.desk import Rules
from handlers.lives import Lives
from handlers.query import Query
from handlers.transactions import Transactions
from storage.blobs import Cached, open_blobs
from storage.buried import BuriedStore
from storage.disk import Disk
from storage.errors import StoreError
from storage.indexes import CARDANO_ONLY, TABLES
from storage.jobs import TABLES as JOB_TABLES
from storage.prune import Windows
from storage.transactions import TABLES as TX_TABLES
from storage.transactions import TxStore
from storage.utxo import TABLES as UTXO_TABLES
from storage.utxo import UtxoStore

log = structlog.get_logger("store")

_BLOB_CACHE = 64 << 20  # bytes of blobs that are kept in memory


def folder(config: Config) -> Path:
    """Return where the LMDB environment lives."""
    return config.data_dir / "lmdb"


def open_disk(config: Config, *, readonly: bool = False) -> Disk:
    """Open the environment; a writable one is held by this process alone."""
    return Disk(
        folder(config),
        (*UTXO_TABLES, *TX_TABLES, *JOB_TABLES),
        map_size=config.storage.map_size,
        max_map_size=config.storage.max_map_size,
        readonly=readonly,
        on_grow=lambda size: log.info("map_grown", map_size=size),
    )


@contextmanager
def open_query(config: Config) -> Iterator[Query]:
    """Open the store for questions, beside its daemon or without one."""
    with open_disk(config, readonly=True) as disk:
        store = UtxoStore(disk)
        store.check_format(chain_name(config))
        yield Query(store, codec(config.chain.family, config.chain.network), config.chain.family)


def open_utxo(disk: Disk, config: Config) -> UtxoStore:
    """Open the UTXO store for writing.

    Raises:
        StoreError: the configuration asks for a store that this version does not have.
    """
    if config.utxo.store != "classic":
        raise StoreError(f'utxo.store = "{config.utxo.store}" is not in this version; only "classic" is')
    store = UtxoStore(disk)
    store.open(chain_name(config), wanted_indexes(config))
    return store


def open_lives(store: UtxoStore, config: Config) -> Lives | None:
    """Open the transaction store beside the UTXO store, if the configuration wants it."""
    if not config.transactions.enabled:
        return None
    return Lives(transactions(store, config))


def transactions(store: UtxoStore, config: Config) -> Transactions:
    """Return the operations on the transaction store that shares the UTXO store's disk."""
    wish = config.transactions
    rules = Rules(
        batch_size=wish.batch_size,
        retention=wish.block_height_retention,
        maturity=wish.coinbase_maturity,
        max_inline_bytes=wish.max_inline_bytes,
        externalize_all=wish.externalize_all,
    )
    records = TxStore(store.disk)
    blobs = Cached(open_blobs(wish.blob_store, config.data_dir), _BLOB_CACHE)
    return Transactions(records, BuriedStore(store, records, wish.coinbase_maturity), blobs, rules)


def chain_name(config: Config) -> str:
    """Return the chain that a store belongs to."""
    return f"{config.chain.family}/{config.chain.network}"


def wanted_indexes(config: Config) -> list[str]:
    """Return the indexes to keep; credentials and policies are Cardano's."""
    chosen = [name for name in TABLES if getattr(config.utxo.index, name)]
    return [name for name in chosen if config.chain.family == "cardano" or name not in CARDANO_ONLY]


def windows(config: Config) -> Windows:
    """Return how far back the store reaches."""
    return Windows(config.utxo.prune_depth, config.utxo.rollback_window, config.utxo.delta.self_contained)
