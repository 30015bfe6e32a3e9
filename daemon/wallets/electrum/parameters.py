"""Parameters of Electrum calls: their types, and the errors of invalid ones."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from daemon.wallets.errors import bad_params


def count(value: object, name: str) -> int:
    """Return a count or a height.

    Raises:
        RpcFault: it is something else.
    """
    if not isinstance(value, int) or isinstance(value, bool) or not 0 <= value < 1 << 31:
        raise bad_params(f"{name} must be a non-negative integer, not {_shown(value)}")
    return value


def checkpoint_height(params: Sequence[Any], at: int) -> int:
    """Return the height of a checkpoint, 0 without one.

    Raises:
        RpcFault: it is something else.
    """
    return count(params[at], "cp_height") if len(params) > at and params[at] is not None else 0


def flag(params: Sequence[Any], at: int, name: str) -> bool:
    """Return a parameter that is true or false, and false if it is left out.

    Raises:
        RpcFault: it is something else.
    """
    value = params[at] if len(params) > at else False
    if value not in (True, False):
        raise bad_params(f"{name} must be true or false, not {_shown(value)}")
    return bool(value)


def script_key(value: object) -> bytes:
    """Return the SHA-256 of a script, which Electrum writes in reversed order.

    Raises:
        RpcFault: it is something else.
    """
    return _hash(value, "a script hash")[::-1]


def transaction_id(value: object) -> bytes:
    """Return the id of a transaction.

    Raises:
        RpcFault: it is something else.
    """
    return _hash(value, "a transaction id")


def _hash(value: object, what: str) -> bytes:
    raw = raw_bytes(value, what) if isinstance(value, str) and len(value) == 64 else b""
    if len(raw) != 32:
        raise bad_params(f"{what} must have 64 hexadecimal digits, not {_shown(value)}")
    return raw


def raw_bytes(value: object, what: str) -> bytes:
    """Return the bytes of hexadecimal digits.

    Raises:
        RpcFault: it is something else.
    """
    try:
        return bytes.fromhex(value)  # type: ignore[arg-type]
    except (TypeError, ValueError):
        raise bad_params(f"{what} must consist of hexadecimal digits, not {_shown(value)}") from None


def _shown(value: object) -> str:
    text = repr(value)
    return text if len(text) <= 80 else f"{text[:77]}..."
