"""How the process reacts to signals: stop, reload, write diagnostics, or nothing."""

from __future__ import annotations

import signal
from collections.abc import AsyncIterator, Callable
from contextlib import AbstractContextManager

import anyio
import structlog

log = structlog.get_logger("process")

_LEAVE = (signal.SIGTERM, signal.SIGINT, signal.SIGQUIT)
_STAY = (signal.SIGHUP, signal.SIGUSR1, signal.SIGUSR2)


def stay_meanwhile() -> None:
    """Ignore signals that would end the process, until `receiver` is there."""
    for number in _STAY:
        signal.signal(number, signal.SIG_IGN)


def receiver() -> AbstractContextManager[AsyncIterator[signal.Signals]]:
    """Receive every signal that `wait_for_stop` handles."""
    return anyio.open_signal_receiver(*_LEAVE, *_STAY)


async def wait_for_stop(
    signals: AsyncIterator[signal.Signals], dump: Callable[[], None], reload: Callable[[], object] | None = None
) -> signal.Signals:
    """React to signals until one stops the process; return that one. The callbacks must not wait."""
    while (number := signal.Signals(await anext(signals))) not in _LEAVE:
        if number == signal.SIGHUP and reload is not None:
            reload()
        elif number == signal.SIGUSR1:
            dump()
        else:
            log.warning("signal_ignored", signal=number.name)
    return number
