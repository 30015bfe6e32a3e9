"""The parameters of `/matches`: flags, ranges, filters, and our own `limit` and `cursor`."""

from __future__ import annotations

from typing import NamedTuple
from urllib.parse import unquote_plus

from msgspec import Struct

from daemon.http.kupo.errors import Refused
from daemon.http.kupo.patterns import (
    BadPattern,
    Pattern,
    asset_list,
    asset_name,
    output_index,
    policy_id,
    transaction_id,
)
from handlers.blocks import last_upto
from handlers.matches import Range, Wanted
from handlers.query import Order, Snapshot

MOST = 10_000  # matches of a page
_MOST_SLOT = (1 << 63) - 1
FLAGS = frozenset({"unspent", "spent", "resolve_hashes"})
VALUES = frozenset(
    {
        "order",
        "created_after",
        "created_before",
        "spent_after",
        "spent_before",
        "policy_id",
        "asset_name",
        "transaction_id",
        "output_index",
        "limit",
        "cursor",
    }
)
_ORDERS: dict[str, Order] = {"most_recent_first": "desc", "oldest_first": "asc"}


class Bound(NamedTuple):
    """A bound of a range: a slot, or a block that must be on the chain."""

    slot: int
    hash: bytes | None = None


class Parameters(Struct, frozen=True, kw_only=True):
    """The parameters next to the pattern."""

    unspent: bool = True
    spent: bool = True
    resolve_hashes: bool = False
    order: Order = "desc"
    created: tuple[Bound | None, Bound | None] = (None, None)
    spent_in: tuple[Bound | None, Bound | None] = (None, None)
    policy: bytes | None = None
    name: bytes | None = None
    txid: bytes | None = None
    index: int | None = None
    limit: int | None = None
    cursor: str | None = None


def parse(query: bytes) -> Parameters:
    """Return the parameters of a query string; unknown ones are ignored.

    Raises:
        Refused: one of them is malformed, or they contradict each other.
    """
    given = _given(query)
    flags = {name: name in given for name in FLAGS}
    if flags["unspent"] and flags["spent"]:
        raise Refused(400, "`spent` and `unspent` exclude each other; without either, both kinds are listed")
    order = given.get("order", "most_recent_first") or ""
    if order not in _ORDERS:
        raise Refused(400, f"`order` is {order!r}; it is most_recent_first or oldest_first")
    bounds = {name: bound(given[name] or "", name) for name in given if name.endswith(("_after", "_before"))}
    for side in ("after", "before"):
        if f"created_{side}" in bounds and f"spent_{side}" in bounds:
            raise Refused(400, f"`created_{side}` and `spent_{side}` cannot be combined")
    try:
        policy = None if (text := given.get("policy_id")) is None else policy_id(text)
        name = None if (text := given.get("asset_name")) is None else asset_name(text)
        txid = None if (text := given.get("transaction_id")) is None else transaction_id(text)
        index = None if (text := given.get("output_index")) is None else output_index(text)
    except BadPattern as error:
        raise Refused(400, str(error)) from error
    if name is not None and policy is None:
        raise Refused(400, "`asset_name` needs `policy_id`")
    if index is not None and txid is None:
        raise Refused(400, "`output_index` needs `transaction_id`")
    if txid is not None and policy is not None:
        raise Refused(400, "`transaction_id` and `policy_id` cannot be combined")
    spent_in = bounds.get("spent_after"), bounds.get("spent_before")
    return Parameters(
        unspent=not flags["spent"] and spent_in == (None, None),
        spent=not flags["unspent"],
        resolve_hashes=flags["resolve_hashes"],
        order=_ORDERS[order],
        created=(bounds.get("created_after"), bounds.get("created_before")),
        spent_in=spent_in,
        policy=policy,
        name=name,
        txid=txid,
        index=index,
        limit=_limit(given.get("limit")),
        cursor=given.get("cursor"),
    )


def _given(query: bytes) -> dict[str, str | None]:
    given = dict[str, str | None]()
    for part in query.decode("latin-1").split("&") if query else ():
        raw, equals, value = part.partition("=")
        name = unquote_plus(raw)
        if name not in FLAGS and name not in VALUES:
            continue
        if name in given:
            raise Refused(400, f"`{name}` is given twice")
        if name in FLAGS and equals:
            raise Refused(400, f"`{name}` is a flag, and has no value")
        if name in VALUES and not equals:
            raise Refused(400, f"`{name}` needs a value")
        given[name] = unquote_plus(value) if equals else None
    return given


def _limit(text: str | None) -> int | None:
    if text is None:
        return None
    if not (text.isascii() and text.isdigit() and len(text) <= 6 and 1 <= int(text) <= MOST):
        raise Refused(400, f"`limit` is {text!r}; it is a whole number from 1 to {MOST}")
    return int(text)


def slot_of(text: str, name: str) -> int:
    """Return a slot.

    Raises:
        Refused: it is not valid.
    """
    if not (text.isascii() and text.isdigit() and len(text) <= 19 and int(text) <= _MOST_SLOT):
        raise Refused(400, f"`{name}` is {text[:80]!r}; it is a slot, or a slot, a dot and the hash of its block")
    return int(text)


def bound(text: str, name: str) -> Bound:
    """Return a slot, or a point.

    Raises:
        Refused: it is neither.
    """
    slot, dot, hexed = text.partition(".")
    if not dot:
        return Bound(slot_of(slot, name))
    try:
        return Bound(slot_of(slot, name), transaction_id(hexed))
    except BadPattern:
        raise Refused(400, f"`{name}` is {text[:120]!r}; the hash of a block has 64 hex digits") from None


def wanted(shot: Snapshot, pattern: Pattern, requested: Parameters) -> Wanted:
    """Return which outputs are requested.

    Raises:
        Refused: a point is not on the chain, or the pattern and the parameters contradict each other.
        NoIndex: an index is needed that is not kept.
    """
    kept = shot.boundary.indexes
    txid = pattern.txid if requested.txid is None else requested.txid
    index = pattern.index if requested.index is None else requested.index
    lists = () if txid is not None else pattern.lists(kept)
    policies = {each for each in (pattern.policy, requested.policy) if each is not None}
    names = {each for each in (pattern.name, requested.name) if each is not None}
    contradict = (
        len(policies) > 1
        or len(names) > 1
        or (requested.txid is not None and pattern.txid not in (None, requested.txid))
        or (requested.index is not None and pattern.index not in (None, requested.index))
    )
    policy, name = next(iter(policies), None), next(iter(names), None)
    if policy is not None and txid is None:
        held = asset_list(policy, name, kept)
        if held[0] in kept and held not in lists:
            lists = (*(each for each in lists if each[0] not in ("policy", "asset")), held)
    return Wanted(
        lists=lists[-2:] if len(lists) > 2 else lists,
        owns=pattern.owns,
        asset=None if name is None or policy is None else policy + name,
        policy=policy if name is None else None,
        txid=txid,
        index=index,
        unspent=requested.unspent,
        spent=requested.spent,
        created=(1, 0) if contradict else _range(shot, *requested.created),
        spent_in=_range(shot, *requested.spent_in),
        bounds=(*requested.created, *requested.spent_in),
        order=requested.order,
    )


def _range(shot: Snapshot, after: Bound | None, before: Bound | None) -> Range | None:
    if after is before is None:
        return None
    first, last = 0, shot.state.tip
    if after is not None:
        first = on_chain(shot, after) if after.hash else last_upto(shot, after.slot - 1) + 1 if after.slot else 0
    if before is not None:
        last = on_chain(shot, before) if before.hash else last_upto(shot, before.slot)
    return (first, last) if first <= shot.state.tip else (1, 0)


def on_chain(shot: Snapshot, point: Bound) -> int:
    """Return the ordinal of a point's block.

    Raises:
        Refused: it is not on the chain; the error has the last block before it.
    """
    ordinal = None if point.hash is None else shot.ordinal_of(point.hash)
    if ordinal is None or shot.block(ordinal).slot != point.slot:
        raise not_on_chain(shot, last_upto(shot, max(point.slot - 1, 0)))
    return ordinal


def not_on_chain(shot: Snapshot, ancestor: int) -> Refused:
    """Return the error for a block that is not on the chain, with the last one that is."""
    at = shot.point(ancestor)
    details = None if at is None else {"ancestor": {"slot_no": at.slot, "header_hash": at.hash.hex()}}
    return Refused(400, "this block is not on the chain, or no longer: start again from its ancestor", details)
