"""Limits of pending submissions: the oldest are evicted first, each with all its descendants.

A package is taken apart from its ends: a transaction goes only when nothing unmined builds on it any more, so the store
is whole after every step, and a step is bounded however large the package is. The next step continues where one has
stopped. What has a frozen or reassigned output stays, with everything that it builds on: submitted again it would be
neither. Only submissions count: what was in a block and waits again after a rollback is not evicted for its own sake.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator
from math import inf
from sys import maxsize
from time import time

import structlog
from msgspec import Struct, field

from handlers.causes import AnyCause, Expired, Withdrawn
from handlers.claims import spend
from handlers.creation import Write
from handlers.events import Tx, TxSubmitted
from handlers.new_records import known, size_of
from handlers.removal import remove
from handlers.spending import Rules, TxFault
from handlers.states import Status
from handlers.transactions import TxView
from storage.pool_layout import FROZEN, HASH

log = structlog.get_logger("transactions")

_ROWS = 5_000  # that a step examines before it stops
_ANCESTORS = 1_000  # unmined transactions that one may build on while the limits are reached
_STEPS = 200  # for one large submission

Report = Callable[[TxView, bytes, Status, int | None, AnyCause], None]  # transaction, status, height or None, cause
_CAUSES: dict[str, AnyCause] = {"limit": Withdrawn("evicted"), "age": Expired()}


class EvictionNumbers(Struct):
    """How many transactions were evicted since the daemon started, by reason."""

    evicted: dict[str, int] = field(default_factory=lambda: dict.fromkeys(_CAUSES, 0))


class _Gone(Struct):
    """What one write has evicted."""

    reason: str = "limit"
    count: int = 0
    size: int = 0
    oldest_at: int | None = None  # milliseconds


class _Stays(Exception):
    """A transaction is not to be evicted, or something that builds on it."""


async def room_for(event: TxSubmitted, evictor: Evictor, write: Write) -> int:
    """Evict until there is space for a large submission, in separate commits; return the number of evicted ones.

    Raises:
        TxFault: `PENDING_FULL`, and as `Evictor.make_room`.
    """
    evicted = 0
    for _ in range(_STEPS):
        gone, fits = await write(lambda view: evictor.make_room(view, event))
        evicted += gone
        if fits:
            return evicted
    raise await write(lambda view: evictor.refusal(view, evicted))


class Evictor:
    """Evicts pending submissions, inside the write transaction of the caller. `report` is called for each one."""

    def __init__(self, rules: Rules, report: Report) -> None:
        self._rules, self._report = rules, report
        self._most_count, self._most_bytes = rules.max_pending_count or inf, rules.max_pending_bytes or inf
        self.numbers = EvictionNumbers()
        self._way: list[bytes] = []  # from the oldest submission down to where the last step has stopped
        self._rows = 0  # that this step may still examine
        self.begin()

    def begin(self) -> None:
        """Reset the results of an attempt at this write."""
        self._gone = _Gone()

    def settle(self) -> None:
        """Count what a commit has evicted."""
        gone = self._gone
        if gone.count:
            self.numbers.evicted[gone.reason] += gone.count
            age_s = None if gone.oldest_at is None else round(max(time() - gone.oldest_at / 1000, 0), 1)
            log.warning("pending_evicted", reason=gone.reason, count=gone.count, bytes=gone.size, oldest_age_s=age_s)
        self.begin()

    # --- limits --------------------------------------------------------------------------------------------------

    def make_room(self, view: TxView, event: TxSubmitted) -> tuple[int, bool]:
        """Evict for a submission, in one step, what it does not build on.

        What is known already, or can't be submitted, evicts nothing. Returns how many transactions went, and whether
        there is space now.

        Raises:
            TxFault: `too_large`: it would take more than all of them may; or why it can't be submitted.
        """
        size = size_of(event.tx)
        return self._make_room(view, event, size) if self._full(view, size) else (0, True)

    def _make_room(self, view: TxView, event: TxSubmitted, size: int) -> tuple[int, bool]:
        tx = event.tx
        record = view.record(tx.txid)
        if (record is not None and record.creating) or known(view, tx):  # an interrupted attempt has its space
            return 0, True
        if size > (most := self._most_bytes):
            what = f"transaction {tx.txid.hex()} would take {size} bytes, transactions.max_pending_bytes is {most}"
            raise TxFault("too_large", what, detail={"bytes": size, "max_pending_bytes": most})
        height, recorded, wanted = view.height + 1, event.on_spent == "record", event.input_hashes
        spend(view, tx.txid, tx.inputs, height, wanted=wanted, is_new=True, only_check=True, keeps_loser=recorded)
        before = self._gone.count
        if (spared := _ancestors(view, tx)) is not None:
            self._step(view, "limit", lambda: self._full(view, size), spared)
        return self._gone.count - before, not self._full(view, size)

    def refusal(self, view: TxView, evicted: int) -> TxFault:
        """Return why a submission is refused although this many others were evicted for it."""
        totals = view.rows.totals()
        what = f"{totals.count} transactions of {totals.size} bytes wait for a block: there is no space for another"
        advice = "send it again later, or raise transactions.max_pending_count and max_pending_bytes"
        detail = {"count": totals.count, "bytes": totals.size, "evicted": evicted}
        return TxFault("PENDING_FULL", f"{what}; {advice}", detail=detail)

    def _full(self, view: TxView, size: int) -> bool:
        totals = view.rows.totals()
        return totals.count >= self._most_count or totals.size + size > self._most_bytes

    # --- age -----------------------------------------------------------------------------------------------------

    def aged(self, view: TxView, now: int) -> bool:
        """Return whether the oldest submission is older than may be; `now` in milliseconds."""
        oldest = next(_oldest(view), None) if self._rules.max_pending_age_s else None
        record = None if oldest is None else view.record(oldest)
        return record is not None and now - record.created_at > self._rules.max_pending_age_s * 1000

    @property
    def under_way(self) -> bool:
        """Return whether the last step has stopped within a package."""
        return bool(self._way)

    def evict_aged(self, view: TxView, now: int) -> None:
        """Evict some of what is too old."""
        self._step(view, "age", lambda: self.aged(view, now), ())

    # --- a step --------------------------------------------------------------------------------------------------

    def _step(self, view: TxView, reason: str, wanted: Callable[[], bool], spared: Collection[bytes]) -> None:
        """Evict whole packages while needed, up to the limit of one step.

        When something in a package has to stay, its oldest submission is put back in line.
        """
        self._gone.reason, self._rows, passed = reason, _ROWS, set(spared)
        if self._rules.in_log_order:  # a step begins and ends in the same way in every replica
            self._way, self._rows = [], maxsize
        if self._way and self._way[0] in passed:
            self._way.clear()
        while self._rows > 0 and (self._way or wanted()):
            if not self._way:
                oldest = next((txid for txid in _oldest(view) if txid not in passed), None)
                if oldest is None:
                    return
                self._way = [oldest]
            try:
                self._walk(view)
            except _Stays:
                passed.add(first := self._way[0])
                self._way.clear()
                record = view.record(first)
                if record is not None and record.submission is not None:  # the last in the order, as old as it is
                    record.submission = view.rows.next_number()
                    view.put(first, record)

    def _walk(self, view: TxView) -> None:
        """Go through what builds on the last place of the way; evict that on which nothing builds any more."""
        at, path, done = self._way[-1], dict[bytes, Iterator[bytes]](), dict[bytes, None]()
        record = view.record(at)
        if record is not None and record.unmined_since is not None:  # else a block has it meanwhile, or it was removed
            path[at] = _children(view, at)
        self._rows -= 1
        while path and self._rows > 0:
            self._rows -= 1
            txid, children = next(reversed(path.items()))
            child = next(children, None)
            if child is None:
                done[txid] = None
                del path[txid]
            elif child in path:
                raise _Stays
            elif child not in done:
                path[child] = _children(view, child)
        for txid in done:
            self._evict(view, txid)
        if not path:
            self._way.pop()
        elif (deepest := next(reversed(path))) != at:
            self._way.append(deepest)

    def _evict(self, view: TxView, txid: bytes) -> None:
        gone, record = self._gone, view.record(txid)
        assert record is not None
        remove(view, txid, record)
        self._report(view, txid, "pruned", None, _CAUSES[gone.reason])
        gone.count += 1
        if record.submission is not None:
            gone.size += record.weight
            gone.oldest_at = min(gone.oldest_at or record.created_at, record.created_at)


def _children(view: TxView, txid: bytes) -> Iterator[bytes]:
    """Yield the unmined transactions that build on one, or raise `_Stays`."""
    record = view.record(txid)
    if record is None or record.creating:
        raise _Stays
    found = dict.fromkeys(record.conflicting_children)
    for number in range(record.pages + 1):
        page, claims = view.rows.page(txid, number) if number else record, view.claims(txid, number).values()
        if page is None or page.reassignments or FROZEN in claims:
            raise _Stays
        found.update(dict.fromkeys(by[:HASH] for by in claims))
        for child in found:
            other = view.record(child)
            if other is not None and other.unmined_since is None:
                raise _Stays
            if other is not None:
                yield child
        found.clear()


def _ancestors(view: TxView, tx: Tx) -> set[bytes] | None:
    """Return the unmined transactions that a submission builds on, None when they are too many."""
    found, waiting = set[bytes](), [txid for txid, _ in tx.inputs]
    while waiting and len(found) <= _ANCESTORS:
        txid = waiting.pop()
        record = None if txid in found else view.record(txid)
        if record is not None and record.unmined_since is not None:
            found.add(txid)
            waiting += [parent for parent, _ in view.inputs(txid)]
    return found if len(found) <= _ANCESTORS else None


def _oldest(view: TxView) -> Iterator[bytes]:
    """Yield the submissions that wait, the oldest first."""
    view.flush()
    return (txid for _, txid in view.pool.pending.ordered(view.txn))
