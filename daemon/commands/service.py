"""The end of a long-running command: a log line and an exit code."""

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
    except KeyboardInterrupt:  # no event loop could receive it yet
        log.info("stopped", signal="SIGINT")
        sys.exit(FAILED)


@contextmanager
def one_failure() -> Iterator[None]:
    """Unwrap the failure that ended the process: the only one, or the first that reports damage."""
    from storage.damage import damage

    try:
        yield
    except BaseExceptionGroup as group:
        failures = list(_failures(group))
        for failure in failures:
            if len(failures) == 1 or damage(failure) is not None:
                raise failure from group
        raise


def _failures(group: BaseExceptionGroup[BaseException]) -> Iterator[BaseException]:
    for error in group.exceptions:
        if isinstance(error, BaseExceptionGroup):
            yield from _failures(error)
        else:
            yield error
