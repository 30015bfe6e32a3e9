"""A long submission: its outputs are decoded in pieces, because no block can be carried out while one is decoded."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Sequence
from functools import partial
from typing import Any, Protocol, TypeVar

import msgspec

from handlers import wire
from handlers.events import Output, Tx, TxSubmitted

_T = TypeVar("_T")

LONG = 2 << 20  # bytes of a message whose outputs are left undecoded
PIECE = 20_000  # outputs that are decoded at once
_ARRAY = b"\xdd"  # with its length in the four bytes behind


class Turn(Protocol):
    """How others get their turns between two steps."""

    def __call__(self, step: Callable[[], _T]) -> Awaitable[_T]:
        """Carry out a step in a turn of its own."""


class OutlineTx(Tx, frozen=True, gc=False, forbid_unknown_fields=True, omit_defaults=True):
    """A transaction whose outputs are bytes still."""

    outputs: list[msgspec.Raw] = []  # type: ignore[assignment]


class Outline(TxSubmitted, frozen=True, kw_only=True, tag="TxSubmitted"):
    """A submission of such a transaction."""

    tx: OutlineTx


_read = msgspec.msgpack.Decoder(Outline).decode
_read_outputs = msgspec.msgpack.Decoder(list[Output]).decode


def read(frame: bytes | bytearray) -> Outline | None:
    """Return a submission without its outputs if its frame is long, None where only `wire.decode` can say what it is.

    Raises:
        Refused: there is not one entry for each input where that is asked for.
    """
    if len(frame) < LONG:
        return None
    try:
        event = _read(frame)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
        return None
    wire.check_lengths(event)
    return event


def whole_at_once(event: TxSubmitted, message: bytes | bytearray) -> TxSubmitted:
    """Return a submission with its outputs.

    Raises:
        Refused: they can't be read.
    """
    return _decoded(message) if isinstance(event, Outline) else event


async def whole(event: TxSubmitted, message: bytes | bytearray, turn: Turn) -> TxSubmitted:
    """Return a submission with its outputs, some of them in each turn.

    Raises:
        Refused: they can't be read.
    """
    if not isinstance(event, Outline):
        return event
    raw, outputs = event.tx.outputs, list[Output]()
    for at in range(0, len(raw), PIECE):
        piece = await turn(partial(_piece, raw[at : at + PIECE]))
        if piece is None:
            return await turn(partial(_decoded, message))
        outputs += piece
    fields = _fields(event.tx, Tx) | {"outputs": outputs}
    return TxSubmitted(**_fields(event, TxSubmitted) | {"tx": Tx(**fields)})


def _piece(raw: Sequence[msgspec.Raw]) -> list[Output] | None:
    """Return some outputs; None if one of them can't be read."""
    try:
        return _read_outputs(_ARRAY + len(raw).to_bytes(4, "big") + b"".join(raw))
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
        return None


def _decoded(message: bytes | bytearray) -> TxSubmitted:
    event = wire.decode(message, "frames")  # which names the place of what is wrong
    assert isinstance(event, TxSubmitted)
    return event


def _fields(row: msgspec.Struct, kind: type[msgspec.Struct]) -> dict[str, Any]:
    return {name: getattr(row, name) for name in kind.__struct_fields__}
