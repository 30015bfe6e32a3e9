"""Opening the store with the configured settings."""

from __future__ import annotations

import signal
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from functools import partial
from hashlib import blake2b
from pathlib import Path
from typing import cast

import click
import structlog

from config.settings import Config
from handlers.addresses import codec
from handlers.chain import Chain
from handlers.change_log import ChangeLog
from handlers.leaves import LeafWriter
from handlers.query import Query
from handlers.rendering import OutputRenderer
from handlers.spending import Rules
from handlers.transactions import Transactions
from handlers.tx_blocks import TxBlocks
from storage.blobs import Blobs, Late, open_blobs
from storage.change_log import TABLES as LOG_TABLES
from storage.change_log import Retention
from storage.disk import META, Disk
from storage.errors import SnapshotExpired
from storage.history.layout import FORMAT
from storage.history.layout import TABLES as HISTORY_TABLES
from storage.history.mined import MinedStore
from storage.history.shard import chain_of
from storage.history.store import HistoryStore
from storage.home import refuse_copy, settle
from storage.indexes import CARDANO_ONLY, NAMES
from storage.jobs import TABLES as JOB_TABLES
from storage.pool import TABLES as TX_TABLES
from storage.pool import Pool
from storage.windows import Windows

log = structlog.get_logger("store")


TABLES = (META, *HISTORY_TABLES, *LOG_TABLES, *TX_TABLES, *JOB_TABLES)
_CHECK_EVERY_S = 0.5


def folder(config: Config) -> Path:
    """Return the folder of the LMDB environment."""
    return config.data_dir / "lmdb"


def store_id(config: Config) -> str:
    """Return a name for this very store: another store has another, and so has a copy of it."""
    found = (folder(config) / "data.mdb").stat()
    return blake2b(b"%d %d" % (found.st_dev, found.st_ino), digest_size=8).hexdigest()


def open_disk(config: Config, *, readonly: bool = False, copies: bool = False) -> Disk:
    """Open the environment; a writable one is held by this process alone, a read-only one limits its snapshots' age.

    `copies` opens files that were copied from a running store, too.

    Raises:
        WrongFormat: another version wrote it, or it was copied from a running store; nothing in it was changed.
    """
    disk = Disk(
        folder(config),
        TABLES,
        map_size=config.storage.map_size,
        max_map_size=config.storage.max_map_size,
        readonly=readonly,
        version=FORMAT,
        max_reader_age=config.store.max_reader_age if readonly else None,
        on_grow=lambda size: log.info("map_grown", map_size=size),
    )
    if not copies:
        try:
            refuse_copy(disk)
        except BaseException:
            disk.close()
            raise
    return disk


@contextmanager
def limited(disk: Disk, advice: str = "request less, or raise it") -> Iterator[None]:
    """End this process when a read transaction of `disk` reaches its greatest age, with an error that ends in `advice`.

    This is for commands. A signal checks the age, so that it is checked whatever the command waits for; `SystemExit` is
    not taken for an error of the store.
    """

    def check_age(*_: object) -> None:
        try:
            disk.check_ages()
        except SnapshotExpired as error:
            click.echo(f"Error: {error}: {advice}", err=True)
            sys.exit(1)

    before, every_s = signal.signal(signal.SIGALRM, check_age), min(_CHECK_EVERY_S, (disk.max_reader_age or 1.0) / 4)
    signal.setitimer(signal.ITIMER_REAL, every_s, every_s)
    try:
        yield
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
        signal.signal(signal.SIGALRM, before)


@contextmanager
def open_query(config: Config) -> Iterator[Query]:
    """Open the store for queries, with or without a running daemon."""
    with open_disk(config, readonly=True) as disk:
        store = open_store(disk, config)
        yield Query(store, codec(config.chain.family, config.chain.network), config.chain.family)


def open_store(disk: Disk, config: Config) -> HistoryStore:
    """Return the store on a disk, for callers that do not apply blocks to it.

    Raises:
        WrongFormat: it keeps another chain, or was never run.
    """
    store = HistoryStore(disk, leaf_writer(config))
    store.check_chain(chain_name(config))
    return store


def open_chain(disk: Disk, config: Config) -> Chain:
    """Open the store for writing, made if it is not there, with the chain that it keeps."""
    store, changes = HistoryStore(disk, leaf_writer(config)), open_changes(disk, config)
    store.open(chain_name(config), wanted_indexes(config), config.utxo.store)
    settle(disk)
    return Chain(store, windows(config), config.utxo.prune_batch_size, open_tx_blocks(store, config, changes), changes)


def leaf_writer(config: Config) -> LeafWriter:
    """Return the rule for the leaves of outputs in an MMR store of this chain."""
    return LeafWriter(OutputRenderer(codec(config.chain.family, config.chain.network), config.chain.family))


def open_changes(disk: Disk, config: Config) -> ChangeLog:
    """Open the change log for writing."""
    keep = config.store.log_retention
    return ChangeLog(disk, Retention(keep.count, keep.age))


def open_tx_blocks(store: HistoryStore, config: Config, changes: ChangeLog | None = None) -> TxBlocks | None:
    """Open the transaction store next to the UTXO store, if it is configured."""
    pool = Pool(store.disk)
    if not config.transactions.enabled:
        if pool.give_up():
            log.warning(
                "records_go_stale", advice="transactions.enabled is off: their records are dropped when it is on"
            )
        return None
    if pool.drop_stale():
        log.warning("stale_records_dropped", reason="blocks may have come while transactions.enabled was off")
    return TxBlocks(transactions(store, config), changes or open_changes(store.disk, config))


def transactions(store: HistoryStore, config: Config) -> Transactions:
    """Return the operations on the transaction store that shares the UTXO store's disk.

    Raises:
        BlobFailed: the blobs can't be opened.
    """
    return _transactions(store, config, open_blobs(config.transactions.blob_store, config.data_dir))


def reading(store: HistoryStore, config: Config) -> Transactions:
    """Return the same for readers: the blobs are opened when they are first needed."""
    where = partial(open_blobs, config.transactions.blob_store, config.data_dir, make=False)
    return _transactions(store, config, cast("Blobs", Late(where)))


def _transactions(store: HistoryStore, config: Config, blobs: Blobs) -> Transactions:
    settings, replicated = config.transactions, config.cluster.stream is not None
    rules = Rules(
        batch_size=settings.batch_size,
        retention=settings.block_height_retention,
        maturity=settings.coinbase_maturity,
        reassign_delay=settings.reassign_delay,
        max_inline_bytes=settings.max_inline_bytes,
        externalize_all=settings.externalize_all,
        max_pending_bytes=settings.max_pending_bytes,
        max_pending_count=settings.max_pending_count,
        max_pending_age_s=0.0 if replicated else settings.max_pending_age,
        in_log_order=replicated,
    )
    return Transactions(Pool(store.disk), MinedStore(store, settings.coinbase_maturity), blobs, rules)


def chain_name(config: Config) -> str:
    """Return the chain that a store belongs to, with its shard if it has one."""
    return chain_of(f"{config.chain.family}/{config.chain.network}", config.cluster.shard)


def wanted_indexes(config: Config) -> list[str]:
    """Return the indexes to keep."""
    chosen = [name for name in NAMES if getattr(config.utxo.index, name)]
    return [name for name in chosen if config.chain.family == "cardano" or name not in CARDANO_ONLY]


def windows(config: Config) -> Windows:
    """Return how far back the store reaches."""
    return Windows(config.utxo.prune_depth, config.utxo.rollback_window)
