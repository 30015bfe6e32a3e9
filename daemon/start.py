"""What is looked at before a store is opened: damage is one line and an exit code, before anybody is let in."""

from __future__ import annotations

import structlog

from config.settings import Config
from daemon.child import run_in_child
from daemon.crash import refuse_after_crash
from daemon.store import TABLES, folder
from storage.copies import remove_stale
from storage.precheck import precheck

log = structlog.get_logger("daemon")


def check_store(config: Config) -> None:
    """Check what can be checked in some milliseconds, and clear away the copies of a `verify` that was killed.

    Raises:
        StoreError: the store is damaged, or can't be opened.
    """
    for copy in remove_stale(config.data_dir):
        log.info("stale_copy_removed", folder=str(copy))
    refuse_after_crash(folder(config))
    run_in_child(lambda: precheck(folder(config), TABLES))
