"""The two encodings of the wire types: frames of MessagePack, and JSON Lines with byte strings as hex.

Both report errors alike: a code of the protocol and a message that names the place (`$.txs[3].inputs[0]`).
"""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from functools import partial
from struct import Struct as Packed
from typing import Any, Literal

import msgspec
from msgspec import Struct, inspect

from handlers import json_shape, spelling
from handlers.events import BlockApplied, Event, Inbound, Output, Tx, TxSubmitted
from handlers.refusal import Refused

Encoding = Literal["json", "frames"]
LENGTH = Packed(">I")

_I64_MIN, _U64_MAX = -(1 << 63), (1 << 64) - 1  # what MessagePack, and so a row on disk, can hold
_frames: msgspec.msgpack.Decoder[Inbound] = msgspec.msgpack.Decoder(Inbound)
_encode_frame = msgspec.msgpack.Encoder().encode
_encode_json = msgspec.json.Encoder().encode
FAULTS = msgspec.DecodeError, RecursionError, UnicodeDecodeError  # why a message can't be decoded
_LONGEST_ERROR = 400  # characters: an error may repeat what the client sent, which may be very long


class _Envelope(Struct):
    """Both are left as they are: any other value may be as large as the message, or larger once decoded."""

    type: msgspec.Raw = msgspec.Raw()
    seq: msgspec.Raw = msgspec.Raw()


_LONGEST_FIELD = 256  # bytes of `type` or `seq`
_json_envelope = msgspec.json.Decoder(_Envelope)
_frame_envelope = msgspec.msgpack.Decoder(_Envelope)
_FRAME_TYPE = re.compile(rb"(?:[\x80-\x8f]|\xde..|\xdf....)\xa4type(?:[\xa0-\xbf]|\xd9.)([A-Za-z]{1,64})", re.DOTALL)
_JSON_TYPE = re.compile(rb'\s*\{\s*"type"\s*:\s*"([A-Za-z]{1,64})"')


def peek(raw: bytes | bytearray, encoding: Encoding) -> str:
    """Return the message's type as cheaply as possible: at once when it is the first field, as most encoders put it.

    Raises:
        Refused: it is no message at all.
    """
    match = (_FRAME_TYPE if encoding == "frames" else _JSON_TYPE).match(raw)
    if match is not None:
        return match[1].decode()
    return _kind(_envelope(raw, encoding), encoding)


def sequence(raw: bytes | bytearray, encoding: Encoding) -> int | None:
    """Return the message's `seq` if it can be read at all."""
    try:
        seq = _plain(_envelope(raw, encoding).seq, encoding)
    except Refused:
        return None
    return seq if type(seq) is int else None


def decode(raw: bytes | bytearray, encoding: Encoding) -> Inbound:
    """Return the message.

    Raises:
        Refused: `malformed` with the place, or `unknown_type`.
    """
    try:
        message = _frames.decode(raw) if encoding == "frames" else _read_json(raw)
    except FAULTS as error:
        if "$.type" in str(error):
            kind = _kind(_envelope(raw, encoding), encoding)
            raise Refused("unknown_type", spelling.unknown_type(kind)) from error
        raise refused(error, str(error), partial(peek, raw, encoding)) from error
    if not raw.startswith(HEADS[kind := type(message).__name__], 1) and kind != peek(raw, encoding):
        raise Refused("malformed", "a message has one `type` - at `$.type`")  # another one was let in
    check_lengths(message)
    return message


def refused(error: Exception, text: str, kind: Callable[[], str]) -> Refused:
    """Return the exception for a message that cannot be decoded; `text` has the reason and the place in it."""
    return Refused("malformed", spelling.explain(text, kind) or _shortened(text), broken=_broken(error))


def encode(answer: Event, encoding: Encoding) -> bytes:
    """Return the message with its framing: a length in front, or a newline behind."""
    if encoding == "frames":
        body = _encode_frame(answer)
        return LENGTH.pack(len(body)) + body
    return _encode_json(plain(answer)) + b"\n"


def plain(message: Event) -> Any:
    """Return a message as plain values, every byte string as hex."""
    return _hex(msgspec.to_builtins(message, builtin_types=(bytes,)))


def _envelope(raw: bytes | bytearray, encoding: Encoding) -> _Envelope:
    try:
        return (_frame_envelope if encoding == "frames" else _json_envelope).decode(raw)
    except (msgspec.DecodeError, RecursionError, UnicodeDecodeError) as error:
        raise Refused("malformed", _shortened(str(error)), broken=_broken(error)) from error


def _read_json(raw: bytes | bytearray) -> Inbound:
    json_shape.check(raw)
    return from_json(msgspec.json.decode(raw))


def from_json(message: Any) -> Inbound:
    """Return a message of JSON values, or raise `Refused` or one of `FAULTS`."""
    made: Inbound = msgspec.convert(_unhex(message), Inbound, builtin_types=(bytes,))
    return made


def outputs_from_json(values: list[Any]) -> list[Output]:
    """Return outputs of JSON values, or raise one of `FAULTS` with the place `$[n]`."""
    try:
        return msgspec.convert(_OUTPUTS(values), list[Output], builtin_types=(bytes,))
    except _NotHex as error:
        raise msgspec.ValidationError(f"{error.what} - at `${error.place}`") from error


def check_lengths(message: Inbound) -> None:
    """Check what the types can't express: `previous` and `input_hashes` have one entry for each input.

    Raises:
        Refused: they have not.
    """
    if isinstance(message, TxSubmitted):
        if message.tx.previous is not None:
            _check_each(message.tx, message.tx.previous, "$.tx.previous")
        if message.input_hashes is not None:
            _check_each(message.tx, message.input_hashes, "$.input_hashes")
    elif isinstance(message, BlockApplied):
        for n, tx in enumerate(message.txs):
            _check_each(tx, tx.previous, f"$.txs[{n}].previous")


def _check_each(tx: Tx, entries: Sequence[object] | None, place: str) -> None:
    if entries is not None and len(entries) != len(tx.inputs):
        what = f"Expected one entry for each of the {len(tx.inputs)} inputs, got {len(entries)}"
        raise Refused("malformed", f"{what} - at `{place}`")


def _shortened(text: str) -> str:
    """Return a text without its middle if it is very long: a place is at its end."""
    half = _LONGEST_ERROR // 2
    return text if len(text) <= _LONGEST_ERROR else f"{text[:half]} … {text[-half:]}"


def _broken(error: Exception) -> bool:
    """Return whether the bytes are no value at all; a value of another type is an error, not noise."""
    return not isinstance(error, msgspec.ValidationError)


def _kind(envelope: _Envelope, encoding: Encoding) -> str:
    kind = _plain(envelope.type, encoding)
    if not isinstance(kind, str):
        raise Refused("malformed", "a message needs a `type`, a short string - at `$.type`")
    return kind


def _plain(field: msgspec.Raw, encoding: Encoding) -> object:
    """Return the value of a field; None when there is none, or one that is too long to be right."""
    if not 0 < len(field) <= _LONGEST_FIELD:
        return None
    try:
        return (msgspec.msgpack if encoding == "frames" else msgspec.json).decode(field)
    except (msgspec.DecodeError, UnicodeDecodeError):
        return None


def _hex(value: Any) -> Any:
    """Return plain values with every byte string as hex."""
    if isinstance(value, bytes):
        return value.hex()
    if isinstance(value, dict):
        return {key: _hex(item) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [_hex(item) for item in value]
    return value


# --- hex to bytes, where the wire types have bytes ---------------------------------------------------------------

_Reader = Callable[[Any], Any]


class _NotHex(Exception):
    """A string is not hex, or a number is too large; the place is composed while the error is raised."""

    def __init__(self, what: str) -> None:
        self.what = what
        self.place = ""


def _unhex(message: Any) -> Any:
    """Return a decoded JSON message with its hex strings as bytes; the type check sees what has another shape."""
    kind = message.get("type") if isinstance(message, dict) else None
    reader = _READERS.get(kind) if isinstance(kind, str) else None
    if reader is None:
        return message
    try:
        return reader(message)
    except _NotHex as error:
        raise Refused("malformed", f"{error.what} - at `${error.place}`") from error


def _read_bytes(value: Any) -> Any:
    if not isinstance(value, str):
        if isinstance(value, list | dict | bool | int | float):
            raise _NotHex("Expected a hex string")
        return value
    try:
        raw = bytes.fromhex(value)
    except ValueError:
        raise _NotHex("Expected a hex string") from None
    if len(raw) * 2 != len(value):
        raise _NotHex("Expected a hex string")
    return raw


def _read_int(value: Any) -> Any:
    if isinstance(value, int) and not _I64_MIN <= value <= _U64_MAX:
        raise _NotHex("Expected a number from -2^63 to 2^64-1")
    return value


def _reader(kind: inspect.Type) -> _Reader | None:
    """Return the conversion of a JSON value to this type, or None when nothing in it needs converting."""
    match kind:
        case inspect.Metadata(type=described):
            return _reader(described)
        case inspect.BytesType():
            return _read_bytes
        case inspect.IntType():
            return _read_int
        case inspect.ListType(item_type=item):
            return _each([_reader(item)], repeated=True)
        case inspect.TupleType(item_types=items):
            return _each([_reader(item) for item in items], repeated=False)
        case inspect.StructType(fields=fields):
            return _fields({field.encode_name: found for field in fields if (found := _reader(field.type))})
        case inspect.UnionType(types=types):
            readers = [found for item in types if (found := _reader(item))]
            return readers[0] if readers else None
        case _:
            return None


def _each(readers: list[_Reader | None], *, repeated: bool) -> _Reader:
    def read(value: Any) -> Any:
        if not isinstance(value, list | tuple):
            return value
        row, n = [], 0
        try:
            for n, item in enumerate(value):
                reader = readers[0] if repeated else readers[n] if n < len(readers) else None
                row.append(item if reader is None or item is None else reader(item))
        except _NotHex as error:
            error.place = f"[{n}]{error.place}"
            raise
        return row

    return read


def _fields(readers: dict[str, _Reader]) -> _Reader:
    def read(value: Any) -> Any:
        if not isinstance(value, dict):
            return value
        read, name = dict(value), ""
        try:
            for name, item in value.items():
                if item is not None and (reader := readers.get(name)) is not None:
                    read[name] = reader(item)
        except _NotHex as error:
            error.place = f".{name}{error.place}"
            raise
        return read

    return read


def _readers() -> dict[str, _Reader]:
    kinds = [kind for kind in map(inspect.type_info, Inbound.__args__) if isinstance(kind, inspect.StructType)]
    return {str(kind.tag): reader for kind in kinds if (reader := _reader(kind))}


_READERS = _readers()
_OUTPUTS = _each([_reader(inspect.type_info(Output))], repeated=True)
MESSAGES = frozenset(str(kind.__struct_config__.tag) for kind in Inbound.__args__)
HEADS = {kind: _encode_frame("type") + _encode_frame(kind) for kind in MESSAGES}  # of frames with the type in front
