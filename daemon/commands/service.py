"""How a command runs that nobody watches: it logs, and what ends it is a log line too."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager

import structlog

from config.settings import Config, Log
from daemon.commands.common import FAILED, Exit
from daemon.logs import configure, is_json
from daemon.signals import stay_meanwhile

log = structlog.get_logger("process")


@contextmanager
def service(configured: Callable[[], Config]) -> Iterator[Config]:
    """Log as configured. Where lines are JSON, the reason for ending with an exit code is one of them."""
    stay_meanwhile()
    configure(Log())
    try:
        config = configured()
        configure(config.log)
        yield config
    except Exit as ended:
        if not is_json():
            raise
        log.critical("process_failed", error=ended.message, exit_code=ended.code)
        sys.exit(ended.code)
    except KeyboardInterrupt:  # before there is a loop that would hear it
        log.info("stopped", signal="SIGINT")
        sys.exit(FAILED)


@contextmanager
def one_failure() -> Iterator[None]:
    """Unwrap the failure that ended the process, if it is one alone."""
    try:
        yield
    except BaseExceptionGroup as group:
        error: BaseException = group
        while isinstance(error, BaseExceptionGroup) and len(error.exceptions) == 1:
            error = error.exceptions[0]
        raise error from group
