"""Custom handlers: configured by name, and called before the daemon's handlers."""

from __future__ import annotations

import inspect
from collections.abc import Sequence
from importlib import import_module
from typing import cast

from config.load import ConfigError
from handlers.recovery.outcome import Busy, Handler, Invalid, NotFound, Outcome, Permanent, Transient, Valid, checked

GROUP = "utxod.recovery_handlers"


def load(names: Sequence[str]) -> list[Handler]:
    """Return the handlers of `recovery.handlers`: `package.module:Class`, or the name of an entry point.

    Raises:
        ConfigError: with everything that is wrong, by place.
    """
    handlers, problems = list[Handler](), list[str]()
    for n, name in enumerate(names):
        try:
            handlers.append(_made(_found(name)))
        except Exception as error:  # noqa: BLE001 -- a module of the operator's may raise anything
            what = str(error) if isinstance(error, _Wrong) else f"{type(error).__name__}: {error}"
            problems.append(f"[recovery] handlers[{n}]: {name!r}: {what}")
    if problems:
        raise ConfigError(problems)
    return handlers


class _Wrong(Exception):
    """There is no such handler."""


def _found(name: str) -> object:
    module, colon, attribute = name.partition(":")
    if not colon:
        from importlib.metadata import entry_points  # it takes a tenth of the daemon's start

        found = entry_points(group=GROUP, name=name)
        if not found:
            known = ", ".join(sorted(entry_points(group=GROUP).names)) or "none"
            raise _Wrong(f"expected package.module:Class, or an entry point of the group {GROUP} (installed: {known})")
        return next(iter(found)).load()
    try:
        return getattr(import_module(module), attribute)
    except ModuleNotFoundError as error:
        raise _Wrong(f"there is no module named {error.name}; is its package installed, or on PYTHONPATH?") from error
    except AttributeError as error:
        raise _Wrong(str(error)) from error


def _made(found: object) -> Handler:
    if not inspect.isclass(found):
        raise _Wrong("it is not a class")
    if not inspect.iscoroutinefunction(getattr(found, "recover", None)):
        raise _Wrong("it has no method `async def recover(self, txid)`")
    return cast("Handler", found())


class InTurn:
    """Calls several handlers, in order, until one is sure."""

    def __init__(self, handlers: Sequence[Handler]) -> None:
        """Use these handlers, in order of precedence."""
        self._handlers = handlers

    async def recover(self, txid: bytes) -> Outcome:
        """See `Handler`. A transaction is not found only if no handler has it."""
        unsure = list[Outcome]()
        for handler in self._handlers:
            try:
                outcome = checked(await handler.recover(txid))
            except Exception as error:  # noqa: BLE001 -- it fails this attempt, and not the other handlers
                outcome = Transient(f"{type(handler).__name__}: {type(error).__name__}: {error}")
            if isinstance(outcome, Valid | Invalid | Permanent):
                return outcome
            unsure.append(outcome)
        for kind in (Busy, Transient):
            if found := [outcome for outcome in unsure if isinstance(outcome, kind)]:
                return found[0]
        unknown = [outcome for outcome in unsure if isinstance(outcome, NotFound)]
        patience_s = max((outcome.patience_s for outcome in unknown), default=0.0)
        return NotFound(all(outcome.caught_up for outcome in unknown), patience_s=patience_s)
