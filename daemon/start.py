"""The start of a service: its first log line, and the checks before a store is opened.

Damage is one line and an exit code, before any client can connect.
"""

from __future__ import annotations

import os
from pathlib import Path

import structlog

from config.load import DEFAULT_FILE, named_file
from config.settings import Config, socket_path
from daemon import VERSION
from daemon.child import run_in_child
from daemon.crash import refuse_after_crash
from daemon.store import TABLES, chain_name, folder
from storage.copies import remove_stale
from storage.precheck import precheck, refuse_incomplete

log = structlog.get_logger("daemon")


def announce(config: Config, config_file: Path | None, workers: int) -> None:
    """Log the first line of a service: which configuration it has found, and what it will use.

    `config_file` is the one named on the command line, `workers` the number of processes that are to answer HTTP.
    """
    found = named_file(config_file, os.environ) or (DEFAULT_FILE if DEFAULT_FILE.exists() else "defaults")
    log.info(
        "starting",
        version=VERSION,
        config=str(found),
        chain=chain_name(config),
        store=config.utxo.store if config.utxo.enabled else None,
        data_dir=str(config.data_dir.absolute()),
        socket=str(socket_path(config, os.environ)),
        http=config.http.listen if workers else None,
        pid=os.getpid(),
    )


def check_store(config: Config) -> None:
    """Check what can be checked in some milliseconds, and clear away the copies of a `verify` that was killed.

    Raises:
        StoreError: the store is damaged, or can't be opened.
    """
    for copy in remove_stale(config.data_dir):
        log.info("stale_copy_removed", folder=str(copy))
    refuse_incomplete(config.data_dir)
    refuse_after_crash(folder(config))
    run_in_child(lambda: precheck(folder(config), TABLES))
