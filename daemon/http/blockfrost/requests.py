"""Blockfrost's requests: parameters, pages, and errors with Blockfrost's wording."""

from __future__ import annotations

from typing import Any, Literal, TypeVar
from urllib.parse import parse_qsl

from msgspec import Struct

_NAMES = {
    400: "Bad Request",
    403: "Forbidden",
    404: "Not Found",
    405: "Method Not Allowed",
    500: "Internal Server Error",
    501: "Not Implemented",
    503: "Service Unavailable",
}
_MOST, _PAGES = 100, 21_474_836
NOT_FOUND = "The requested component has not been found."
BAD_PATH = "Invalid path. Please check https://docs.blockfrost.io/"
BAD_ADDRESS = "Invalid address for this network or malformed address format."
_T = TypeVar("_T")


class Refused(Exception):
    """A question that is not answered."""

    def __init__(self, status: int, message: str) -> None:
        super().__init__(message)
        self.status = status

    @property
    def content(self) -> dict[str, Any]:
        """Return the answer."""
        return {"status_code": self.status, "error": _NAMES.get(self.status, "Error"), "message": str(self)}


def not_found() -> Refused:
    """Return the error for an object that does not exist."""
    return Refused(404, NOT_FOUND)


def required(value: _T | None, what: str) -> _T:
    """Return a value without which an object cannot have the form that Blockfrost publishes.

    Raises:
        Refused: it was not sent to the daemon.
    """
    if value is None:
        raise Refused(501, f"This needs {what}, which no feeder has sent.")
    return value


class Paging(Struct, frozen=True):
    """Which page of a list."""

    count: int = _MOST
    page: int = 1
    order: Literal["asc", "desc"] = "asc"

    @property
    def skip(self) -> int:
        """Return how many come before the page."""
        return (self.page - 1) * self.count

    def of(self, everything: list[Any]) -> list[Any]:
        """Return the page of a list that is there as a whole, in ascending order."""
        listed = everything if self.order == "asc" else everything[::-1]
        return listed[self.skip : self.skip + self.count]


def paging(query: bytes) -> Paging:
    """Return the paging parameters; unknown ones are ignored.

    Raises:
        Refused: one of them is out of range.
    """
    given = dict[str, list[str]]()
    for name, value in parse_qsl(query.decode("latin-1"), keep_blank_values=True):
        given.setdefault(name, []).append(value)
    order = given.get("order", ["asc"])
    if order not in (["asc"], ["desc"]):
        raise Refused(400, "querystring/order must be equal to one of the allowed values")
    count, page = _whole(given, "count", _MOST, _MOST), _whole(given, "page", 1, _PAGES)
    return Paging(count, page, "asc" if order == ["asc"] else "desc")


def _whole(given: dict[str, list[str]], name: str, default: int, most: int) -> int:
    values = given.get(name)
    if values is None:
        return default
    text = values[0].removeprefix("-") if len(values) == 1 else ""
    if not (text.isascii() and text.isdigit()):
        raise Refused(400, f"querystring/{name} must be integer")
    if text != values[0] or not text.strip("0"):
        raise Refused(400, f"querystring/{name} must be >= 1")
    if len(text.lstrip("0")) > 10 or int(text) > most:
        raise Refused(400, f"querystring/{name} must be <= {most}")
    return int(text)


def hex_of(text: str, size: int) -> bytes:
    """Return bytes of a fixed size.

    Raises:
        Refused: 404, the text is not a name of this kind.
    """
    try:
        raw = bytes.fromhex(text) if text.isalnum() else b""
    except ValueError:
        raw = b""
    if len(raw) != size:
        raise not_found()
    return raw
