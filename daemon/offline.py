"""Work on a store that no daemon has open."""

from __future__ import annotations

import structlog

from config.settings import Config
from daemon.store import chain_name, open_disk, wanted_indexes, windows
from storage.disk import Txn
from storage.prune import Gone, Windows, prunable
from storage.prune import prune as prune_step
from storage.reindex import reindex as reindex_store
from storage.utxo import UtxoStore

log = structlog.get_logger("store")

_STEPS = 100  # nobody waits for the store: so many bounded steps share a commit


def prune(config: Config) -> str:
    """Prune everything that is due; return what went."""
    reach, budget = windows(config), config.utxo.prune_batch_size * _STEPS
    total = Gone()
    with open_disk(config) as disk:
        store = UtxoStore(disk)
        store.check_format(chain_name(config))

        def step(txn: Txn) -> Gone:
            return prune_step(store, txn, reach, budget)

        while _due(store, reach):
            gone = disk.write(step)
            total = total.plus(gone)
            log.info("pruned", **gone._asdict())
    outputs, transactions, records = total
    return f"pruned {outputs} spent outputs, {transactions} transactions, {records} undo records"


def _due(store: UtxoStore, reach: Windows) -> bool:
    with store.disk.read() as txn:
        return prunable(store.state(txn), reach)


def reindex(config: Config) -> str:
    """Build the configured indexes anew; return what was done."""
    wanted = wanted_indexes(config)
    with open_disk(config) as disk:
        store = UtxoStore(disk)
        store.check_format(chain_name(config))
        outputs = reindex_store(store, wanted, lambda done: log.info("reindexing", outputs=done))
    return f"indexed {outputs} outputs by {', '.join(wanted) or 'nothing'}"
