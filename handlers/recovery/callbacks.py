"""Calls into code of a user of this package: what it raises is logged and counted, and the service goes on."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

import structlog

from handlers.recovery.numbers import Numbers

log = structlog.get_logger("recovery")


@contextmanager
def contained(callback: str, numbers: Numbers, *passing: type[Exception]) -> Iterator[None]:
    """Log and count any exception but those in `passing`, and continue after the block."""
    try:
        yield
    except passing:
        raise
    except Exception:
        numbers.callback_errors += 1
        log.exception("callback_failed", callback=callback)
