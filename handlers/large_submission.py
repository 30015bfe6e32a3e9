"""A long submission: its outputs are decoded in pieces, because no block can be carried out while one is decoded.

What can't be done in pieces is bounded, so that one client makes no other wait for more than a moment.
"""

from __future__ import annotations

import re
from collections.abc import Awaitable, Callable, Sequence
from functools import partial
from typing import Any, Protocol, TypeVar

import msgspec

from handlers import wire
from handlers.events import Output, Tx, TxSubmitted
from handlers.refusal import Refused

_T = TypeVar("_T")

LONG = 2 << 20  # bytes of a message whose outputs are left undecoded
PIECE = 20_000  # outputs that are decoded at once
MOST = 100_000  # inputs of a submission, and of what else all is looked at in one turn
LONGEST_JSON = 16 << 20  # bytes of a submission
_LISTS = "inputs", "collateral", "references", "previous", "datums"
_ARRAY = b"\xdd"  # with its length in the four bytes behind
_NONE = msgspec.Raw(b"\x90")
_PLACE = re.compile(r"`\$\[(\d+)\]")


class Turn(Protocol):
    """How others get their turns between two steps."""

    def __call__(self, step: Callable[[], _T]) -> Awaitable[_T]:
        """Carry out a step in a turn of its own."""


class _BareTx(Tx, frozen=True, gc=False, forbid_unknown_fields=True, omit_defaults=True):
    inputs: msgspec.Raw = _NONE  # type: ignore[assignment]
    outputs: msgspec.Raw = _NONE  # type: ignore[assignment]
    collateral: msgspec.Raw = _NONE  # type: ignore[assignment]
    references: msgspec.Raw = _NONE  # type: ignore[assignment]
    previous: msgspec.Raw = _NONE  # type: ignore[assignment]
    datums: msgspec.Raw = _NONE  # type: ignore[assignment]


class _Bare(TxSubmitted, frozen=True, kw_only=True, tag="TxSubmitted"):
    tx: _BareTx
    input_hashes: msgspec.Raw = _NONE  # type: ignore[assignment]


class OutlineTx(Tx, frozen=True, gc=False, forbid_unknown_fields=True, omit_defaults=True):
    """A transaction whose outputs are bytes still."""

    outputs: list[msgspec.Raw] = []  # type: ignore[assignment]


class Outline(TxSubmitted, frozen=True, kw_only=True, tag="TxSubmitted"):
    """A submission of such a transaction."""

    tx: OutlineTx


_read_bare = msgspec.msgpack.Decoder(_Bare).decode
_read = msgspec.msgpack.Decoder(Outline).decode
_read_outputs = msgspec.msgpack.Decoder(list[Output]).decode


def read(frame: bytes | bytearray) -> Outline | None:
    """Return a submission without its outputs if its frame is long, None where only `wire.decode` can say what it is.

    Raises:
        Refused: a list is too long; there is not one entry for each input where that is asked for.
    """
    if len(frame) < LONG:
        return None
    try:
        bare = _read_bare(frame)  # which makes no object for what is in the lists
        lists = {f"$.tx.{name}": getattr(bare.tx, name) for name in _LISTS} | {"$.input_hashes": bare.input_hashes}
        for place, raw in lists.items():
            check_count(_count(raw), place)
        event = _read(frame)
    except wire.FAULTS:
        return None
    wire.check_lengths(event)
    return event


def check_count(count: int, place: str) -> None:
    """Refuse a submission that has too many of something: all of them are looked at in one turn.

    Raises:
        Refused: it has.
    """
    if count > MOST:
        raise Refused(
            "too_large", f"{count:,} entries are more than the {MOST:,} that a submission may have - at `{place}`"
        )


def check_json(line: bytes | bytearray) -> None:
    """Refuse a submission in JSON that would take long to decode.

    Raises:
        Refused: it would.
    """
    if len(line) > LONGEST_JSON and wire.peek(line, "json") == "TxSubmitted":
        what = f"a submission of {len(line):,} bytes in JSON is longer than {LONGEST_JSON:,}"
        raise Refused("too_large", f"{what}: send it in a frame")


def whole_at_once(event: TxSubmitted, message: bytes | bytearray) -> TxSubmitted:
    """Return a submission with its outputs.

    Raises:
        Refused: they can't be read.
    """
    if not isinstance(event, Outline):
        return event
    decoded = wire.decode(message, "frames")
    assert isinstance(decoded, TxSubmitted)
    return decoded


async def whole(event: TxSubmitted, turn: Turn) -> TxSubmitted:
    """Return a submission with its outputs, some of them in each turn.

    Raises:
        Refused: they can't be read.
    """
    if not isinstance(event, Outline):
        return event
    raw, outputs = event.tx.outputs, list[Output]()
    for at in range(0, len(raw), PIECE):
        outputs += await turn(partial(_piece, raw[at : at + PIECE], at))
    fields = _fields(event.tx, Tx) | {"outputs": outputs}
    return TxSubmitted(**_fields(event, TxSubmitted) | {"tx": Tx(**fields)})


def _piece(raw: Sequence[msgspec.Raw], first: int) -> list[Output]:
    """Return some outputs, from the one of this number on."""
    try:
        return _read_outputs(_ARRAY + len(raw).to_bytes(4, "big") + b"".join(raw))
    except wire.FAULTS as error:
        text = _PLACE.sub(lambda match: f"`$.tx.outputs[{first + int(match[1])}]", str(error))
        raise wire.refused(error, text, lambda: "TxSubmitted") from error


def _count(raw: msgspec.Raw) -> int:
    """Return how many entries a list has; what is none has 0."""
    head = bytes(memoryview(raw)[:5])
    if head[:1] == b"\xdc":
        return int.from_bytes(head[1:3], "big")
    return int.from_bytes(head[1:5], "big") if head[:1] == _ARRAY else 0  # those of one byte are short


def _fields(row: msgspec.Struct, kind: type[msgspec.Struct]) -> dict[str, Any]:
    return {name: getattr(row, name) for name in kind.__struct_fields__}
