"""The change log for handlers: facts that are recorded during a write are committed or discarded with it.

`write` is the only way in: it appends the facts that were recorded to the log in the same transaction. After the commit
they have their sequences and wait, in the order of the log, until they are taken.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Collection, Iterable
from itertools import islice
from typing import Literal, TypeVar, cast

from msgspec.structs import force_setattr

from handlers.causes import (
    AnyCause,
    BlockRolledBack,
    Decided,
    DoubleSpend,
    Expired,
    InBlock,
    ParentLost,
    Submitted,
    Withdrawn,
)
from handlers.events import BlockCommitted, Fact, Point, Pruned, RolledBack, TxStatusChanged
from storage import change_log as stored
from storage.change_log import CauseName, LogStore, Place, Retention, read_row
from storage.disk import Disk, Txn
from storage.errors import Damaged

FactType = Literal["BlockCommitted", "RolledBack", "Pruned"]

_T = TypeVar("_T")
_KINDS: dict[FactType, type[stored.Fact]] = {
    "BlockCommitted": stored.BlockFact,
    "RolledBack": stored.RollbackFact,
    "Pruned": stored.PrunedFact,
}
_EXAMINED = 5_000  # rows that are searched for recent facts: what happens to transactions is thousands of facts a block


class Gone(Exception):
    """Facts that are no longer kept; `oldest` is the first that is."""

    def __init__(self, sequence: int, oldest: int) -> None:
        super().__init__(f"the facts from sequence {sequence} on are no longer kept; the oldest one is {oldest}")
        self.oldest = oldest


class NotYet(Exception):
    """A sequence that no fact has, and that the next one will not have either."""

    def __init__(self, sequence: int, newest: int) -> None:
        super().__init__(f"sequence {sequence} is in the future: the newest one is {newest}")
        self.newest = newest


class ChangeLog:
    """The change log of one store, for its one writer."""

    def __init__(self, disk: Disk, keep: Retention | None = None) -> None:
        self.store, self.keep = LogStore(disk), keep or Retention()
        self.facts: list[Fact] = []  # of the current write
        self.written: list[Fact] = []  # what the last write recorded
        self.prepare: Callable[[Txn], object] = lambda _: None  # is called before each write
        self._elsewhere = deque[Fact]()
        self._durable = deque[list[Fact]]()

    # --- writing -------------------------------------------------------------------------------------------------

    def record(self, fact: Fact) -> None:
        """Append a fact to the log if the current write is committed."""
        self.facts.append(fact)

    def write(self, work: Callable[[Txn], _T]) -> _T:
        """Run `work` in one write transaction, which also appends the facts that it records.

        Raises:
            StoreFull: there is no space: nothing was changed, and its facts are dropped.
        """
        elsewhere = first = 0

        def logged(txn: Txn) -> _T:
            nonlocal elsewhere, first
            self.facts, elsewhere = [], len(self._elsewhere)
            self.prepare(txn)
            done = work(txn)
            if facts := [*self.facts, *(self._elsewhere[n] for n in range(elsewhere))]:  # other tasks may add meanwhile
                first = self.store.append(txn, list(map(_to_row, facts)), self.keep)
            return done

        self.written = []
        done = self.store.disk.write(logged)
        self.written, self.facts = self.facts, []
        durable = [*self.written, *(self._elsewhere.popleft() for _ in range(elsewhere))]
        for n, fact in enumerate(durable, first):
            force_setattr(fact, "sequence", n)  # in half the time of a copy
        if durable:
            self._durable.append(durable)
        return done

    def append_later(self, facts: Iterable[Fact]) -> None:
        """Let the next write append facts that another database has committed already; any thread may call this."""
        self._elsewhere.extend(facts)

    @property
    def waiting(self) -> bool:
        """Return whether facts wait for the next write."""
        return bool(self._elsewhere)

    # --- reading -------------------------------------------------------------------------------------------------

    def take(self) -> list[Fact]:
        """Return what has become durable since the last call, in the order of the log."""
        taken = list[Fact]()
        while self._durable:
            taken += self._durable.popleft()
        return taken

    def newest(self) -> int:
        """Return the newest sequence, 0 of an empty log."""
        with self.store.disk.read() as txn:
            return self.store.ends(txn)[1]

    def logged_at(self, sequence: int) -> int | None:
        """Return when a fact was logged, in unix seconds; None when it is not kept."""
        with self.store.disk.read() as txn:
            row = next((read_row(*raw) for raw in self.store.rows(txn, sequence)), None)
        return row.at if row is not None and row.first <= sequence <= row.last else None

    def last_statuses(self, txids: Collection[bytes]) -> dict[bytes, str]:
        """Return the latest status of transactions, as far as the newest facts contain it."""
        with self.store.disk.read() as txn:
            return self.store.last_statuses(txn, txids)

    def fetch(self, sequence: int, most: int) -> list[tuple[bytes, bytes]]:
        """Return at most `most` rows from a sequence on, as they are stored: a short turn.

        Raises:
            Gone, NotYet: what follows can't be read without a gap.
        """
        with self.store.disk.read() as txn:
            check(self.store, txn, sequence)
            return list(islice(self.store.rows(txn, sequence), most))


def read(rows: Iterable[tuple[bytes, bytes]], sequence: int) -> list[Fact]:
    """Return the facts in rows of the log, from a sequence on.

    Raises:
        Damaged: a row can't be read.
    """
    found = (read_row(*raw) for raw in rows)
    return [from_row(fact, n) for row in found for n, fact in enumerate(row.facts, row.first) if n >= sequence]


def recent(store: LogStore, txn: Txn, types: Collection[FactType], most: int) -> list[tuple[int, Fact]]:
    """Return the newest facts of some types, newest first, each with the unix second in which it was logged.

    They are fewer than `most` where the newest rows of the log have fewer.

    Raises:
        Damaged: a row can't be read.
    """
    found = store.back(txn, [_KINDS[name] for name in types], most_rows=_EXAMINED)
    return [(at, from_row(fact, n)) for n, at, fact in islice(found, most)]


def check(store: LogStore, txn: Txn, sequence: int) -> None:
    """Refuse a sequence from which facts can't be read without a gap; the next one that will be given is allowed.

    Raises:
        Gone, NotYet: they can't.
    """
    oldest, newest = store.ends(txn)
    if sequence < oldest:
        raise Gone(sequence, oldest)
    if sequence > newest + 1:
        raise NotYet(sequence, newest)


# --- facts as they are stored ------------------------------------------------------------------------------------


def _to_row(fact: Fact) -> stored.Fact:
    if isinstance(fact, TxStatusChanged):  # there may be thousands: a class pattern takes longer
        name, refers_to = _PLAIN_ROWS.get(type(fact.cause)) or _cause(fact.cause)
        return stored.TxFact(fact.txid, fact.status, fact.height, name, refers_to)
    match fact:
        case BlockCommitted():
            counts = fact.txs, fact.created, fact.spent, fact.missing_inputs
            return stored.BlockFact(fact.height, fact.slot, fact.hash, *counts)
        case RolledBack(to=to):
            return stored.RollbackFact(_place(fact.from_), None if to == "origin" else _place(to), fact.blocks)
        case Pruned():
            gone = fact.spent_outputs, fact.transactions, fact.undo_records, fact.mmr_nodes
            return stored.PrunedFact(*gone, None if fact.floor is None else _place(fact.floor))


def from_row(row: stored.Fact, sequence: int) -> Fact:
    """Return a stored fact as it is published.

    Raises:
        Damaged: its cause is unknown.
    """
    if isinstance(row, stored.TxFact):
        cause = None if row.cause is None else _to_cause(row.cause, row.refers_to, sequence)
        return TxStatusChanged(txid=row.txid, status=row.status, height=row.height, cause=cause, sequence=sequence)
    match row:
        case stored.BlockFact():
            return BlockCommitted(
                height=row.height,
                slot=row.slot,
                hash=row.hash,
                txs=row.txs,
                created=row.created,
                spent=row.spent,
                missing_inputs=row.missing_inputs,
                sequence=sequence,
            )
        case stored.RollbackFact(before=before, after=after):
            to: Point | Literal["origin"] = "origin" if after is None else Point(*after)
            return RolledBack(from_=Point(*before), to=to, blocks=row.blocks, sequence=sequence)
        case stored.PrunedFact():
            return Pruned(
                spent_outputs=row.spent_outputs,
                transactions=row.transactions,
                undo_records=row.undo_records,
                mmr_nodes=row.mmr_nodes,
                floor=row.floor and Point(*row.floor),
                sequence=sequence,
            )


def _place(point: Point) -> Place:
    return point.height, point.slot, point.hash


_PLAIN = {
    str(cause.__struct_config__.tag): cause
    for cause in (Submitted(), InBlock(), BlockRolledBack(), Decided(), Expired())
}
_PLAIN_ROWS: dict[type, tuple[CauseName, None]] = {
    type(cause): (cast("CauseName", name), None) for name, cause in _PLAIN.items()
}


def _cause(cause: AnyCause | None) -> tuple[CauseName | None, bytes | None]:
    match cause:
        case DoubleSpend(by=txid):
            return "double_spend", txid
        case ParentLost(txid=txid):
            return "parent", txid
        case Withdrawn(reason=reason):
            return "withdrawn", reason.encode()
        case _:
            return None, None


def _to_cause(name: str, refers_to: bytes | None, sequence: int) -> AnyCause:
    if name in _PLAIN and refers_to is None:
        return _PLAIN[name]
    match name, refers_to:
        case "double_spend", _:
            return DoubleSpend(refers_to)
        case "parent", bytes() as txid:
            return ParentLost(txid)
        case "withdrawn", bytes() as reason:
            return Withdrawn(reason.decode(errors="replace"))
        case _:
            raise Damaged(f"fact {sequence} of the change log has the cause {name!r}, which can't be read")
