"""`python -m bench.history run --config FILE`: the daemon, with the prototype in the place of its store."""

from __future__ import annotations

import os
from contextlib import ExitStack
from typing import cast

import daemon.app
from bench.history.chain import HistoryChain
from bench.history.columns import read
from bench.history.history import TABLES
from config.settings import Config
from daemon.cli import entry
from daemon.store import open_changes
from handlers import wire
from handlers.chain import Chain
from handlers.delivery import Delivery
from handlers.events import Inbound
from handlers.utxo import Turns
from storage.disk import Disk


def open_turns(config: Config, stores: ExitStack) -> Turns:
    """Open the prototype."""
    disk = stores.enter_context(Disk(config.data_dir / "lmdb", TABLES, map_size=1 << 30))
    return Turns(
        cast("Chain", HistoryChain(disk, config.utxo.rollback_window, open_changes(disk, config))), pruning=False
    )


def event(delivery: Delivery) -> Inbound:
    """Return a message, an ordinary block with its columns."""
    block = read(delivery.raw) if delivery.encoding == "frames" else None
    return wire.decode(delivery.raw, delivery.encoding) if block is None else block


vars(daemon.app).update(_open_turns=open_turns, check_store=lambda _: None, store_id=lambda _: None)
type.__setattr__(Delivery, "event", event)
os.environ |= {f"UTXOD_{part}__ENABLED": "false" for part in ("TRANSACTIONS", "PRUNER", "RECOVERY")}
entry()
