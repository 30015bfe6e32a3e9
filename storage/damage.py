"""Classification of unexpected exceptions: reading a damaged row may raise any of them.

Most damage is found by a rule and raised as `Damaged`. The rest shows as an error of LMDB, of struct or msgspec, or as
an index beyond the end of a row: commands and the daemon turn these into `Damaged` where they end.
"""

from __future__ import annotations

import struct
from collections.abc import Iterator
from types import TracebackType

import lmdb
import msgspec

from storage.errors import Damaged, RecoveryDamaged

_PACKAGES = ("storage.", "handlers.", "daemon.inspect", "daemon.offline", "daemon.commands.")  # code that reads rows
_EXCEPTED = ("daemon.commands.service", "daemon.commands.common")  # every exception passes through them
_LONGEST = 200  # characters of an exception's own message
# LMDB's answers on a sound file too: a limit was reached, or the caller requested what does not exist.
_NO_DAMAGE = (
    lmdb.BadRslotError,
    lmdb.DbsFullError,
    lmdb.KeyExistsError,
    lmdb.MapFullError,
    lmdb.MapResizedError,
    lmdb.NotFoundError,
    lmdb.ReadersFullError,
    lmdb.TlsFullError,
    lmdb.TxnFullError,
)
# What code raises that reads a row of another length or content than it expects.
UNREADABLE = (
    lmdb.Error,
    msgspec.MsgspecError,
    struct.error,
    ArithmeticError,
    AssertionError,
    AttributeError,
    LookupError,
    MemoryError,
    TypeError,
    ValueError,
)


def broken(error: lmdb.Error) -> bool:
    """Return whether this answer of LMDB means that the file is damaged."""
    return (error.code < 0 and not isinstance(error, _NO_DAMAGE)) or isinstance(error, lmdb.InvalidParameterError)


def damage(error: BaseException) -> Damaged | None:
    """Return the error for an exception where only damage was expected to cause it; None if it is another one."""
    if isinstance(error, Damaged):
        return error
    what, places = f"{type(error).__name__}: {str(error)[:_LONGEST]}", list(_places(error.__traceback__))
    if isinstance(error, lmdb.Error):
        return Damaged(f"the store is damaged: {what}") if broken(error) else None
    if not isinstance(error, UNREADABLE) or not places:
        return None
    kind = RecoveryDamaged if places[-1].startswith("storage/recovery") else Damaged
    return kind(f"the store cannot be read, or this is a bug in utxod: {what} (in {places[-1]})")


def _places(trace: TracebackType | None) -> Iterator[str]:
    """Yield where an exception passed through the code that reads rows, the innermost last."""
    while trace is not None:
        module = str(trace.tb_frame.f_globals.get("__name__", ""))
        if module.startswith(_PACKAGES) and module not in _EXCEPTED:
            yield f"{module.replace('.', '/')}.py:{trace.tb_lineno}"
        trace = trace.tb_next
