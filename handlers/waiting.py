"""The list of unmined transactions: the oldest first, or parents first.

Order `age` is that of the index: the height since which a transaction waits, and among equals the id. `parents_first`
is the same order, but a transaction whose parents come later is listed after the last of its ancestors: nothing comes
before what it spends. Whether it has to be put off is found in its ancestors, and what was put off until then in its
descendants. So a page needs no other transactions than those on it, what they build on, and what builds on them.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Annotated, Literal, NamedTuple, get_args

from msgspec import Meta, Struct

from handlers import cursors, spending
from handlers.answers import Hash
from handlers.cursors import BadCursor
from handlers.transactions import TxView
from handlers.tx_query import Inpoint, inpoints
from storage import keys
from storage.pool_layout import FROZEN, HASH, OutPoint, claimant

Status = Literal["unmined", "conflicting"]
Order = Literal["parents_first", "age"]
STATUSES: tuple[Status, ...] = get_args(Status)
ORDERS: tuple[Order, ...] = get_args(Order)

EXAMINED = 20_000  # transactions, inputs and outputs that are examined before a page ends early
MOST_EXAMINED = 200_000  # for one package, or for the pages before the requested one
_TURN = 500  # of them at a time


class Waiting(Struct, frozen=True):
    """A transaction that waits for a block, or that has lost a conflict."""

    txid: Hash
    status: Status
    locked: bool
    unmined_since: Annotated[int, Meta(description="height since which it is unmined")]
    created_at: Annotated[int, Meta(description="milliseconds since 1970")]
    fee: int | None
    size_in_bytes: int | None
    total_utxos: int
    tx_inpoints: list[Inpoint]


class Place(NamedTuple):
    """An entry of the index, and how many transactions were listed there already: None is all."""

    height: Annotated[int, Meta(ge=0, le=keys.HIGHEST)]
    txid: Annotated[bytes, Meta(min_length=32, max_length=32)]
    listed: Annotated[int, Meta(ge=0)] | None = None


class _Cut(Struct, frozen=True, array_like=True):
    """Where a page ended, and of which list."""

    status: Status
    order: Order
    place: Place


class TooMuchToExamine(Exception):
    """An answer would take more work than one may."""


class _Seen(Struct, frozen=True):
    """What is kept of a transaction of the list: its place in the index, what it spends, and where its children are."""

    key: bytes
    created_at: int
    inputs: list[OutPoint]
    conflicting_children: list[bytes]
    pages: int


def cut(status: Status, order: Order, place: Place) -> str:
    """Return the cursor that continues from a place."""
    return cursors.write(_Cut(status, order, place))


def resumed(cursor: str, status: Status, order: Order) -> Place:
    """Return the place where a page ended. It stays good, whatever has left the list meanwhile.

    Raises:
        BadCursor: it is none of ours, or of another list.
    """
    found = cursors.read(cursor, _Cut)
    if (found.status, found.order) != (status, order):
        raise BadCursor("a cursor of another list")
    return found.place


class WaitingList:
    """A walk along what waits, in one snapshot."""

    def __init__(self, view: TxView, status: Status, order: Order) -> None:
        self._view = view
        self._status, self._order = status, order
        self._examined, self._turn_at = 0, _TURN
        self._seen: dict[bytes, _Seen | None] = {}
        self._last: dict[bytes, bytes] = {}  # of each transaction, the last place that an ancestor or it has
        self.found: list[bytes] = []
        self.next: Place | None = None  # where the list continues

    def search(self, after: Place | None, skip: int, count: int, most: int = EXAMINED) -> Iterator[None]:
        """Find up to `count` transactions behind a place and those that are skipped, in turns; it may end early.

        Raises:
            TooMuchToExamine: what is skipped, or one package, takes more than may be.
        """
        for height, txid in self._entries(after):
            begun = (after.listed or 0) if after is not None and after[:2] == (height, txid) else 0
            group: list[bytes] = []
            yield from self._listed_at(txid, group)
            group, begun = group[begun:], begun + min(skip, len(group[begun:]))
            group, skip = group[skip:], max(skip - len(group), 0)
            space = count - len(self.found)
            self.found += group[:space]
            if len(self.found) == count or (self._examined >= most and not skip):
                self.next = Place(height, txid, None if len(group) <= space else begun + space)
                return
            if self._turn():
                yield

    def waiting(self) -> list[Waiting]:
        """Return what was found."""
        return [self._waiting(txid) for txid in self.found]

    def _waiting(self, txid: bytes) -> Waiting:
        record = self._view.record(txid)
        assert record is not None and record.unmined_since is not None
        return Waiting(
            txid=txid.hex(),
            status=self._status,
            locked=record.locked,
            unmined_since=record.unmined_since,
            created_at=record.created_at,
            fee=record.fee,
            size_in_bytes=record.size,
            total_utxos=record.total,
            tx_inpoints=inpoints(self._view.body(txid)),
        )

    # --- the index -----------------------------------------------------------------------------------------------

    def _entries(self, after: Place | None) -> Iterator[tuple[int, bytes]]:
        """Yield the entries of the index behind a place; one of which not all was listed is the first."""
        pool, first = self._view.pool, after.height if after else 0
        for entry in pool.due(self._view.txn, pool.unmined, keys.HIGHEST, first):
            if after is None or entry > after[:2] or (entry == after[:2] and after.listed is not None):
                yield entry

    def _listed_at(self, txid: bytes, group: list[bytes]) -> Iterator[None]:
        """Append what is listed at an entry of the index: nothing if it is put off, else it and what waits for it."""
        seen = self._see(txid)
        if seen is None:
            return
        if self._order == "age":
            group.append(txid)
            return
        yield from self._find_last(txid)
        if self._last[txid] != seen.key:
            return
        found, waiting = {txid: None}, [txid]
        while waiting:
            for child in list(self._children(waiting.pop())):
                if child in found or self._see(child) is None:
                    continue
                yield from self._find_last(child)
                if self._last[child] == seen.key:
                    found[child] = None
                    waiting.append(child)
            if self._turn():
                yield
        package = {each: its for each in found if (its := self._seen[each]) is not None}
        group += spending.parents_first({each: (its.created_at, its.inputs) for each, its in package.items()})

    # --- families ------------------------------------------------------------------------------------------------

    def _see(self, txid: bytes) -> _Seen | None:
        """Return what is known of a transaction if it is one of the list."""
        if txid in self._seen:
            return self._seen[txid]
        self._examined += 1
        self._seen[txid], record = None, self._view.record(txid)
        if record is None or record.unmined_since is None or record.creating or record.is_coinbase:
            return None
        if record.conflicting != (self._status == "conflicting"):
            return None
        inputs = [] if self._order == "age" else self._view.inputs(txid)
        self._examined += len(inputs)
        key = keys.u32(record.unmined_since) + txid
        self._seen[txid] = seen = _Seen(key, record.created_at, inputs, record.conflicting_children, record.pages)
        return seen

    def _find_last(self, txid: bytes) -> Iterator[None]:
        """Find the last place that a transaction, or one that it builds on, has."""
        path, families = [txid], dict[bytes, list[bytes]]()
        while path:
            at = path[-1]
            if at in self._last or (seen := self._see(at)) is None:
                path.pop()
                continue
            if at not in families:
                families[at] = list(self._parents(at, seen.inputs))
                path += [parent for parent in families[at] if parent not in self._last and parent not in families]
            else:  # its parents are done, unless transactions build on each other in a circle
                path.pop()
                last = [self._last[parent] for parent in families[at] if parent in self._last]
                self._last[at] = max([seen.key, *last])
            if self._turn():
                yield

    def _parents(self, txid: bytes, inputs: list[OutPoint]) -> Iterator[bytes]:
        """Yield the parents that are in the list and have an edge to the transaction: only those lead back to it."""
        known = set[bytes]()
        for parent, index in inputs:
            if parent in known or (seen := self._see(parent)) is None:
                continue
            row = self._view.row((parent, index))
            claimed = row is not None and spending.spent(row) and claimant(row)[0] == txid
            if claimed or txid in seen.conflicting_children:
                known.add(parent)
                yield parent

    def _children(self, txid: bytes) -> Iterator[bytes]:
        """Yield what builds on a transaction of the list."""
        seen = self._see(txid)
        assert seen is not None
        yield from seen.conflicting_children
        for number in range(seen.pages + 1):
            for by in self._view.claims(txid, number).values():
                self._examined += 1
                if by != FROZEN:
                    yield by[:HASH]

    def _turn(self) -> bool:
        """Return whether others should have a turn.

        Raises:
            TooMuchToExamine: more was examined than may be.
        """
        if self._examined >= MOST_EXAMINED:
            what = f"more than {MOST_EXAMINED:,} transactions, inputs and outputs would have to be examined"
            raise TooMuchToExamine(f"{what}: for the pages before this one, or for one package")
        if self._examined < self._turn_at:
            return False
        self._turn_at = self._examined + _TURN
        return True
