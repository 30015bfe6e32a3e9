"""The state of a store between two commits, pages of its lists, and the reasons why a query fails."""

from __future__ import annotations

from msgspec import Struct

from handlers.answers import Utxo
from handlers.events import Point
from handlers.passed import Passed
from handlers.rendering import Written
from handlers.walk import Order
from storage.history.kept import Kept
from storage.history.layout import State


class NoIndex(Exception):
    """The index that a query needs is not kept; the message names it."""


class CursorGone(Exception):
    """The block at which a cursor was cut is no longer in the chain."""


class Torn(Exception):
    """The map of the store grew in this process while a query yielded to others: try again."""


class Cut(Struct, array_like=True, frozen=True):
    """The content of a cursor: the page ended after this output, in this order, of this key, at this block."""

    ordinal: int
    hash: bytes
    place: bytes
    order: Order
    key: bytes


class Page(Struct, frozen=True):
    """Outputs in order, and where the next page begins."""

    utxos: list[Utxo]
    next_cursor: str | None


class Sum(Struct):
    """A balance that is being summed."""

    value: int = 0
    count: int = 0
    assets: dict[tuple[bytes, bytes], int] = {}


class Boundary(Struct, frozen=True):
    """The state between two commits, before any output is read."""

    marks: tuple[bytes | None, bytes | None]  # `state` and `indexes` as they are stored
    state: State
    indexes: list[str]
    block: bytes | None  # the tip's row
    tip: Point | None
    written: Written
    passed: Passed
    kept: Kept
