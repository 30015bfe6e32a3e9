"""A large submission: read and decoded in pieces, because no block can be applied while one is decoded.

What can't be done in pieces is bounded, so that one client makes no other wait for more than a moment.
"""

from __future__ import annotations

import re
from abc import ABC, abstractmethod
from collections.abc import Awaitable, Callable, Iterator
from functools import partial
from typing import Any, Protocol, TypeVar

import msgspec

from handlers import json_shape, wire
from handlers.events import Output, TxSubmitted
from handlers.refusal import Refused

_T = TypeVar("_T")

LONG = 2 << 20  # bytes of a message that is examined before it is decoded
PIECE, JSON_PIECE = 20_000, 5_000  # outputs that are decoded at once
MOST = 100_000  # inputs of a submission, and of what else all is examined in one turn
LONGEST_JSON = 16 << 20  # bytes of a submission
_LISTS = "inputs", "collateral", "references", "previous", "datums"
_LONG_LIST, _HEAD = b"\xdd", 5  # a list's head, with the length in its last four bytes
_LONG_LISTS = (0xDC, 0xDD)
_SIZES = {0xDC: 2, 0xDD: 4, 0xDE: 2, 0xDF: 4}  # bytes of the length of a list or map that is not short
_NOTHING = b"\x90"  # a list
_PLACE = re.compile(r"`\$\[(\d+)\]")
# NOTE: msgspec reports the end of a value only in this error. The tests fail if its wording changes.
_TRAILING = re.compile(r"trailing characters \(byte (\d+)\)")


class Turn(Protocol):
    """How others get their turns between two steps."""

    def __call__(self, step: Callable[[], _T]) -> Awaitable[_T]:
        """Carry out a step in a turn of its own."""


_read_any = msgspec.msgpack.Decoder(msgspec.Raw).decode
_read_name = msgspec.msgpack.Decoder(str).decode
_read_txid = msgspec.msgpack.Decoder(bytes).decode
_read_outputs = msgspec.msgpack.Decoder(list[Output]).decode


class Outline(ABC):
    """A submission of a transaction of many outputs, which are decoded some at a time."""

    def __init__(self, txid: bytes, outputs: int, piece: int) -> None:
        """Take the number of its outputs, and how many of them are decoded at once."""
        self.txid, self.outputs, self.piece = txid, outputs, piece

    def decode(self, count: int, first: int) -> list[Output]:
        """Return the next outputs from the one of the number `first` on.

        Raises:
            Refused: they can't be read.
        """
        try:
            return self._decode(count)
        except wire.FAULTS as error:
            text = _PLACE.sub(lambda match: f"`$.tx.outputs[{first + int(match[1])}]", str(error))
            raise wire.refused(error, text, lambda: "TxSubmitted") from error

    @abstractmethod
    def _decode(self, count: int) -> list[Output]: ...

    @abstractmethod
    def rest(self) -> TxSubmitted:
        """Return the submission without its outputs, once they are decoded.

        Raises:
            Refused: it is none; a list is too long.
        """


def find(message: bytes | bytearray, encoding: wire.Encoding) -> Outline | None:
    """Return what a long message submits; None where only `wire.decode` can determine it.

    Raises:
        Refused: it would take long to decode.
    """
    if len(message) < LONG or wire.peek(message, encoding) != "TxSubmitted":
        return None
    try:
        if encoding == "json":
            check_json(message)
            line = json_shape.read(message)
            return None if line.tx.outputs is msgspec.UNSET else _Line(line)
        for name, at in _fields(message, 0):
            if name == "tx":
                return _of_frame(message, at)
    except (*wire.FAULTS, IndexError, ValueError):
        pass
    return None


async def whole(outline: Outline, turn: Turn) -> TxSubmitted:
    """Return the submission, some of its outputs decoded in each turn.

    Raises:
        Refused: it is none; a list is too long.
    """
    outputs = list[Output]()
    try:
        while (left := outline.outputs - len(outputs)) > 0:
            outputs += await turn(partial(outline.decode, min(outline.piece, left), len(outputs)))
        event = await turn(outline.rest)
    except Refused:
        await free(outputs, turn)
        raise
    event.tx.outputs.extend(outputs)
    return event


async def free(outputs: list[Output], turn: Turn) -> None:
    """Free the memory of outputs, some in each turn of the writer.

    On the thread of the event loop it would delay a commit by the interpreter's switch interval at each LMDB call.
    """

    def free_some() -> None:
        del outputs[-PIECE:]

    while outputs:
        await turn(free_some)


class _Line(Outline):
    """A submission in JSON, decoded to JSON values."""

    def __init__(self, message: Any) -> None:
        """Take a message that `json_shape.read` returned."""
        super().__init__(bytes.fromhex(message.tx.txid), len(message.tx.outputs), JSON_PIECE)
        self._message = message

    def _decode(self, count: int) -> list[Output]:
        values = self._message.tx.outputs
        some = msgspec.to_builtins(values[:count])
        del values[:count]
        return wire.outputs_from_json(some)

    def rest(self) -> TxSubmitted:
        try:
            event = wire.from_json(msgspec.to_builtins(self._message))
        except wire.FAULTS as error:
            raise wire.refused(error, str(error), lambda: "TxSubmitted") from error
        assert isinstance(event, TxSubmitted)
        check_count(len(event.tx.inputs), "$.tx.inputs")
        wire.check_lengths(event)
        return event


class _Frame(Outline):
    """A submission in a frame, of which nothing but its first fields was examined."""

    def __init__(self, frame: bytes | bytearray, txid: bytes, outputs: int, at: int, first: int) -> None:
        """Take where the list of its outputs begins, and where the first of them does."""
        super().__init__(txid, outputs, PIECE)
        self.frame = frame if isinstance(frame, bytearray) else bytearray(frame)
        self._at, self._next = at, first

    def _decode(self, count: int) -> list[Output]:
        """See `Outline`. The bytes in front of the outputs are made the head of a list meanwhile."""
        frame, start, at = self.frame, self._next - _HEAD, self._next
        before, frame[start:at] = frame[start:at], _LONG_LIST + count.to_bytes(4, "big")
        try:
            self._next = _end(frame, start)
            return _read_outputs(memoryview(frame)[start : self._next])
        finally:
            frame[start:at] = before

    def rest(self) -> TxSubmitted:
        rest = self.frame[: self._at] + _NOTHING + self.frame[self._next :]
        check_lists(rest)
        event = wire.decode(rest, "frames")
        assert isinstance(event, TxSubmitted)
        (tx, *others) = (at for name, at in _fields(rest, 0) if name == "tx")
        if others or [name for name, _ in _fields(rest, tx)].count("outputs") > 1:
            raise Refused("malformed", "a transaction has one list of outputs - at `$.tx.outputs`")
        return event


def _of_frame(frame: bytes | bytearray, at: int) -> Outline | None:
    txid, outputs = b"", 0
    for name, place in _fields(frame, at):
        if name == "txid":
            txid = _read_txid(memoryview(frame)[place : _end(frame, place)])
        elif name == "outputs":
            outputs = place
        if txid and outputs:
            count, first = _head(frame, outputs)
            return _Frame(frame, txid, count, outputs, first) if frame[outputs] in _LONG_LISTS else None
    return None


def check_lists(frame: bytes | bytearray) -> None:
    """Refuse a submission with too long a list before an object is made for each entry."""
    try:
        fields = list(_fields(frame, 0))
        lists = [(f"$.{name}", at) for name, at in fields if name == "input_hashes"]
        for tx in [at for name, at in fields if name == "tx"]:
            lists += [(f"$.tx.{name}", at) for name, at in _fields(frame, tx) if name in _LISTS]
    except (*wire.FAULTS, IndexError):
        return  # the decoder reports the error
    for place, at in lists:
        check_count(_head(frame, at)[0], place)


def check_count(count: int, place: str) -> None:
    """Refuse a submission that has too many of something: all of them are processed in one turn."""
    if count > MOST:
        what = f"{count:,} entries are more than the {MOST:,} that a submission may have - at `{place}`"
        raise Refused("too_large", what)


def check_json(line: bytes | bytearray) -> None:
    """Refuse a submission in JSON that would take long to decode."""
    if len(line) > LONGEST_JSON and wire.peek(line, "json") == "TxSubmitted":
        what = f"a submission of {len(line):,} bytes in JSON is longer than {LONGEST_JSON:,}"
        raise Refused("too_large", f"{what}: send it in a frame")


# --- MessagePack -----------------------------------------------------------------------------------------------------


def _fields(frame: bytes | bytearray, at: int) -> Iterator[tuple[str, int]]:
    """Yield the names in a map, and where their values begin.

    Raises:
        msgspec.DecodeError: it is no map, or ends early; so does IndexError.
    """
    count, at = _head(frame, at)
    for _ in range(count):
        value = _end(frame, at)
        yield _read_name(memoryview(frame)[at:value]), value
        at = _end(frame, value)


def _end(frame: bytes | bytearray, at: int) -> int:
    """Return where the value ends that begins at a place.

    Raises:
        msgspec.DecodeError: there is none.
    """
    try:
        _read_any(memoryview(frame)[at:])
    except msgspec.DecodeError as error:
        if (found := _TRAILING.search(str(error))) is None:
            raise
        return at + int(found[1])
    return len(frame)


def _head(frame: bytes | bytearray, at: int) -> tuple[int, int]:
    """Return how many entries a list or a map has, 0 for any other value, and where the first of them begins."""
    head = frame[at]
    first = at + 1 + _SIZES.get(head, 0)
    short = head & 0x0F if head & 0xE0 == 0x80 else 0
    return int.from_bytes(frame[at + 1 : first], "big") or short, first
