"""Conversion of durations, sizes and endpoints between the operator's text and the program's numbers.

Arithmetic is in fractions, so `0.1s` is the float nearest to a tenth, and what is shown reads back as the same value.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from decimal import Decimal
from fractions import Fraction
from pathlib import Path
from typing import Any, NamedTuple

_SECONDS = {"d": Fraction(86400), "h": Fraction(3600), "m": Fraction(60), "s": Fraction(1), "ms": Fraction(1, 1000)}
# Powers of two only: `64MB` is ambiguous.
_BYTES = {unit: Fraction(1 << bits) for unit, bits in [("TiB", 40), ("GiB", 30), ("MiB", 20), ("KiB", 10), ("B", 0)]}
_QUANTITY = re.compile(r"([0-9]{1,400}(?:\.[0-9]{1,400})?) ?([A-Za-z]*)")
_HOST_PORT = re.compile(r"(?:\[([0-9A-Fa-f:.]+)\]|([^\s:/\[\]]+)):([0-9]{1,5})")
# The same as in storage.blobs: no way out of the data folder, no name that a bucket would have to escape.
_BLOB_STORE = re.compile(
    r"file:(?!//[^/])(/*(?:\./+)*(?:(?!\.\.?(?:/|$))[^/\x00-\x1f\x7f]+(?:/+|$))+)"
    r"|s3://([A-Za-z0-9][A-Za-z0-9._-]*)((?:/(?!\.\.?(?:/|$))[A-Za-z0-9_!.*'()-]+)*)/?"
)


class Notation(NamedTuple):
    """How one kind of value is written; `parse` raises ValueError, and `show` is its inverse."""

    expects: str
    parse: Callable[[object], object]
    show: Callable[[Any], str]


def parse_duration(value: object) -> float:
    """Return seconds; a plain number is seconds already.

    Raises:
        ValueError: not a duration, negative, or not finite.
    """
    try:
        return float(_quantity(value, _SECONDS, "s", DURATION))
    except OverflowError:
        raise _unexpected(value, DURATION) from None


def parse_size(value: object) -> int:
    """Return bytes; a plain number is bytes already.

    Raises:
        ValueError: not a size, negative, or not a whole number of bytes.
    """
    quantity = _quantity(value, _BYTES, "B", SIZE)
    if quantity.denominator != 1:
        raise _unexpected(value, SIZE)
    return int(quantity)


def format_duration(seconds: float) -> str:
    """Return the text with the largest unit that leaves a whole number, else a decimal fraction of seconds."""
    decimal = Decimal(repr(seconds))
    return _largest_whole(Fraction(decimal), _SECONDS) or f"{decimal:f}s"


def format_size(size: int) -> str:
    """Return the text with the largest unit that leaves a whole number."""
    return _largest_whole(Fraction(size), _BYTES) or "0B"


def parse_endpoint(text: str) -> Path | tuple[str, int]:
    """Return the path of a Unix socket, or host and port; the brackets of an IPv6 host are removed.

    Raises:
        ValueError: neither of them, or a port above 65535.
    """
    if text.startswith("unix:") and len(text) > len("unix:"):
        return Path(text.removeprefix("unix:"))
    parts = _HOST_PORT.fullmatch(text)
    if parts is None or int(parts[3]) > 65535:
        raise _unexpected(text, ENDPOINT)
    return parts[1] or parts[2], int(parts[3])


def _endpoint_text(value: object) -> str:
    text = str(value)
    parse_endpoint(text)
    return text


def _blob_store_text(value: object) -> str:
    text = str(value)
    if not _BLOB_STORE.fullmatch(text):
        raise _unexpected(value, BLOB_STORE)
    return text


def _quantity(value: object, units: Mapping[str, Fraction], plain: str, notation: Notation) -> Fraction:
    text = f"{Decimal(repr(value)):f}" if type(value) in (int, float) else value
    parts = _QUANTITY.fullmatch(text.strip()) if isinstance(text, str) else None
    unit = units.get(parts[2] or plain) if parts else None
    if parts is None or unit is None:
        raise _unexpected(value, notation)
    return Fraction(parts[1]) * unit


def _largest_whole(quantity: Fraction, units: Mapping[str, Fraction]) -> str | None:
    whole = (f"{quantity / size}{unit}" for unit, size in units.items() if (quantity / size).denominator == 1)
    return next(whole, None) if quantity else None


def _unexpected(value: object, notation: Notation) -> ValueError:
    return ValueError(f"{value!r}: expected {notation.expects}")


DURATION = Notation("a duration such as 30s, 5m, 1h, 500ms", parse_duration, format_duration)
SIZE = Notation("a size such as 64MiB, 1GiB, 4096", parse_size, format_size)
ENDPOINT = Notation("host:port or unix:/path", _endpoint_text, str)
BLOB_STORE = Notation("file:folder or s3://bucket/prefix", _blob_store_text, str)
