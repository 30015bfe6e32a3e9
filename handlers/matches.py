"""Outputs that match several conditions, both unspent ones and those spent in the window, in chain order.

Indexes still list a spent output for as long as a rollback may revive it, so both kinds are found in the same
way: which of the listed numbers live is in the bits, and which were spent in the window is in the index of spenders.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from typing import NamedTuple

import numpy as np
from msgspec import Struct

from handlers.owners import spliced
from handlers.snapshot import Snapshot
from handlers.spends import NONE, Spends
from handlers.walk import HIGHEST, PLACE, Listed, Listing, Order, in_both
from storage.errors import Damaged
from storage.history.layout import Flags, Numbers, outputs_in, to_extra
from storage.history.output_keys import RULES

READ = 500  # outputs that are read before others get a turn
_RANGE = 1 << 16  # numbers that are examined together where no index is used
_SPARSE = 100  # numbers for each output, from which on few outputs are stored together
_KNOWN = 2000  # addresses of which it is known whether they match
_OF_OWNER = frozenset({"address_hash", "payment_credential", "stake_credential"})

Part = tuple[Numbers, Numbers]  # of outputs, and of the transactions that spent them
Range = tuple[int, int]  # of ordinals, both included
Owns = Callable[[bytes], bool]


class Row(NamedTuple):
    """An output; `first` is the number of its transaction, `spender` that of the transaction that spent it."""

    number: int
    txid: str
    output: int
    first: int
    block: int
    value: int
    address: bytes
    extra: bytes
    spender: int


class Wanted(Struct, frozen=True, kw_only=True):
    """Which outputs match: those that hold for every condition that is there."""

    lists: tuple[Listed, ...] = ()  # under all of these keys
    owns: Owns | None = None  # the required address, where no list determines it
    asset: bytes | None = None  # policy and name
    policy: bytes | None = None
    txid: bytes | None = None
    index: int | None = None
    unspent: bool = True  # whether live outputs match
    spent: bool = True  # whether outputs that were spent in the window match
    created: Range | None = None  # in blocks of these ordinals
    spent_in: Range | None = None
    bounds: tuple[object, ...] = ()  # of both ranges as requested: their ordinals may change with the tip
    order: Order = "desc"

    @property
    def question(self) -> bytes:
        """Return what distinguishes this list from others, for its cursors."""
        conditions = (self.lists, self.asset, self.policy, self.txid, self.index, self.unspent, self.spent)
        return repr((*conditions, self.owns is not None, self.bounds)).encode()


class Matches:
    """The outputs that match, in one snapshot."""

    def __init__(
        self, shot: Snapshot, wanted: Wanted, cursor: str | None = None, spends: Callable[[], Spends] | None = None
    ) -> None:
        self._shot, self._wanted = shot, wanted
        self._spends = spends or (lambda: Spends(shot))
        self._after = None if cursor is None else self._resumed(cursor)
        self._known: dict[bytes, bool] = {}
        self.live_only = wanted.unspent and not wanted.spent
        for index, _ in wanted.lists:
            shot.listed(index, b"")

    def _resumed(self, cursor: str) -> int:
        number: int = PLACE.unpack(self._shot.read_cut(cursor, self._wanted.question, self._wanted.order))[0]
        return min(number, HIGHEST)

    def cut_after(self, number: int) -> str:
        """Return the cursor that continues after an output."""
        return self._shot.cut(PLACE.pack(number), self._wanted.question, self._wanted.order)

    def rows(self, parts: Iterable[Part], step: int = READ) -> Iterator[list[Row]]:
        """Yield the outputs that match of some numbers, in order and some at a time; a list may be empty.

        Raises:
            Damaged: one is not there, or can't be read.
        """
        for numbers, spenders in parts:
            for at in range(0, max(len(numbers), 1), step):
                yield self._read(numbers[at : at + step], spenders[at : at + step])

    # --- numbers -------------------------------------------------------------------------------------------------

    def _bounds(self) -> Range:
        """Return the numbers, from the first to below the last, that the conditions leave."""
        shot, wanted = self._shot, self._wanted
        low, high = 0, shot.state.next_number
        if wanted.created is not None:
            first, last = wanted.created
            if first > last:
                return 0, 0
            low = shot.stored.block(first).first if first > 0 else 0
            if last < shot.state.tip:
                high = shot.stored.block(last + 1).first
        if wanted.txid is not None:
            tx = shot.stored.find_tx(wanted.txid)
            if tx is None or (wanted.index is not None and wanted.index >= tx.outputs):
                return 0, 0
            begin = tx.number + (wanted.index or 0)
            low, high = max(low, begin), min(high, tx.number + tx.outputs if wanted.index is None else begin + 1)
        return low, high

    def numbers(self) -> Iterator[Part]:
        """Yield the numbers that may match, in order, with their spenders; a part may be empty."""
        low, high = self._bounds()
        ascending = self._wanted.order == "asc"
        if self._after is not None:
            low, high = (max(low, self._after + 1), high) if ascending else (low, min(high, self._after))
        if low >= high:
            return
        listed, live = self._listed(low, high)
        last = None
        for part in listed:
            numbers = np.abs(part)
            if len(numbers):
                fresh = np.diff(numbers, prepend=-1 if last is None else last) != 0
                past = bool(numbers[-1] >= high) if ascending else bool(numbers[-1] < low)
                last = int(numbers[-1])
                numbers = numbers[fresh & (numbers >= low) & (numbers < high)]
                yield self._alive(numbers, live)
                if past:
                    return
            else:
                yield numbers, numbers

    def _alive(self, numbers: Numbers, live: Callable[[Numbers], Flags]) -> Part:
        """Return those that live, or were spent, as requested, and their spenders."""
        wanted, lives = self._wanted, live(numbers)
        if self.live_only:
            numbers = numbers[lives]
            return numbers, np.full(len(numbers), NONE, np.int64)
        spenders = np.full(len(numbers), NONE, np.int64)
        dead = np.flatnonzero(~lives)
        if len(dead):
            spenders[dead] = self._spenders(numbers[dead])
        there = spenders != NONE
        if wanted.spent_in is not None:
            first, end = self._spending_numbers(wanted.spent_in)
            there &= (spenders >= first) & (spenders < end)
        there = (there if wanted.spent else np.zeros_like(there)) | (lives if wanted.unspent else np.zeros_like(lives))
        return numbers[there], spenders[there]

    def _spenders(self, dead: Numbers) -> Numbers:
        if self._wanted.txid is None:
            return self._spends().of(dead)
        found = self._shot.stored.spenders(int(dead.min()), int(dead.max()) + 1)
        return np.array([found.get(number, NONE) for number in dead.tolist()], np.int64)

    def _spending_numbers(self, blocks: Range) -> Range:
        first, last = blocks
        if first > last or last < 1:
            return 0, 0
        block = self._shot.stored.block(last)
        return self._shot.stored.block(max(first, 1)).first, block.first + block.numbers

    def _listed(self, low: int, high: int) -> tuple[Iterator[Numbers], Callable[[Numbers], Flags]]:
        """Return the source of numbers, negative ones from the highest down, and the bits of those that live."""
        has, wanted = self._shot.stored.live.has, self._wanted
        if not wanted.lists or wanted.txid is not None:
            return self._ranges(low, high), has
        after = low - 1 if wanted.order == "asc" else high
        listings = [self._listing(where, after) for where in wanted.lists]
        if len(listings) > 1:
            return in_both(*listings), has
        moved = self._shot.owners.walk(self._shot.stored, wanted.lists[0]) if self.live_only else None
        if moved is not None:  # the operator gave some of them to others
            return spliced(listings[0].parts(), moved, wanted.order, after), has
        return (iter(listings[0]), listings[0].live) if self.live_only else (listings[0].parts(), has)

    def _listing(self, where: Listed, after: int) -> Listing:
        index, key = where
        prefix = self._shot.stored.prefix(key)
        start = after if after >= 0 else None
        return Listing(self._shot.stored, (index, prefix), self._wanted.order, start, self._shot.boundary.passed)

    def _ranges(self, low: int, high: int) -> Iterator[Numbers]:
        if self._wanted.order == "asc":
            for at in range(low, high, _RANGE):
                yield np.arange(at, min(at + _RANGE, high), dtype=np.int64)
        else:
            for at in range(high, low, -_RANGE):
                yield -np.arange(at - 1, max(at - _RANGE, low) - 1, -1, dtype=np.int64)

    # --- rows ----------------------------------------------------------------------------------------------------

    def _read(self, numbers: Numbers, spenders: Numbers) -> list[Row]:
        """Return those of some outputs that hold for the conditions, in the same order."""
        if len(numbers) == 0:
            return []
        descending = len(numbers) > 1 and bool(numbers[0] > numbers[-1])
        if descending:
            numbers, spenders = numbers[::-1], spenders[::-1]
        sparse = int(numbers[-1] - numbers[0]) > len(numbers) * _SPARSE
        rows = list((self._scattered if sparse else self._rows)(numbers, spenders))
        if len(rows) < len(numbers):
            there = {row.number for row in rows}
            lost = next(number for number in numbers.tolist() if number not in there)
            raise Damaged(f"output {lost} is unspent, or may be unspent again, but is missing")
        rows = self._owned(rows)
        kept = [row for row in rows if self._holds(row)]
        return kept[::-1] if descending else kept

    def _rows(self, numbers: Numbers, spenders: Numbers) -> Iterator[Row]:
        """Yield outputs by rising number, with their transactions."""
        stored = self._shot.stored
        ids, firsts, blocks = [""] * len(numbers), np.full(len(numbers), -1, np.int64), np.zeros(len(numbers), np.int64)
        for which, txs, _ in stored.txs.many(numbers, before=True):
            inside = numbers[which] - txs["number"] < np.maximum(outputs_in(txs["counts"]), 1)
            firsts[which[inside]], blocks[which] = txs["number"][inside], txs["block"]
            text = txs["id"].tobytes().hex()
            for n, at in enumerate(which.tolist()):
                ids[at] = text[n * 64 : n * 64 + 64]
        if (firsts < 0).any():
            raise Damaged(f"the transaction of output {int(numbers[firsts < 0][0])} is missing")
        homes = list(
            zip(numbers.tolist(), ids, (numbers - firsts).tolist(), firsts.tolist(), blocks.tolist(), strict=True)
        )
        by = spenders.tolist()
        for which, outputs, bodies in stored.outputs.many(numbers):
            fields = (which.tolist(), outputs["value"].tolist(), outputs["address"].tolist(), bodies)
            for at, value, length, raw in zip(*fields, strict=True):
                yield Row._make((*homes[at], value, raw[:length], raw[length:], by[at]))

    def _scattered(self, numbers: Numbers, spenders: Numbers) -> Iterator[Row]:
        """Yield the same where few of the outputs are stored together: reading them one by one is cheaper then."""
        wanted, stored = numbers.tolist(), self._shot.stored
        homes, bodies = stored.homes(wanted), stored.bodies(wanted)
        for number, by in zip(wanted, spenders.tolist(), strict=True):
            if (found := bodies.get(number)) is not None:
                home = homes[number]
                place = (number, home.txid.hex(), home.output, number - home.output, home.block)
                yield Row._make((*place, found.value, found.address, found.extra, by))

    def _owned(self, rows: list[Row]) -> list[Row]:
        """Return outputs with the owners to whom they were reassigned."""
        owners = self._shot.owners
        if owners.nothing_reassigned:
            return rows
        given = owners.among(self._shot.stored, [row.number for row in rows])
        return [row._replace(address=given[row.number].address) if row.number in given else row for row in rows]

    def _holds(self, row: Row) -> bool:
        wanted = self._wanted
        if not row.extra and (wanted.asset is not None or wanted.policy is not None):
            return False
        matches = self._known.get(row.address)
        if matches is None:
            matches = self._owner_holds(row.address)
            if len(self._known) >= _KNOWN:
                self._known.clear()
            self._known[row.address] = matches
        if not matches:
            return False
        for index, key in wanted.lists:
            if index not in _OF_OWNER and key not in RULES[index].keys(row.address, row.extra):
                return False
        if wanted.asset is None and wanted.policy is None:
            return True
        return any(
            wanted.asset in (None, policy + name) and wanted.policy in (None, policy)
            for policy, name, _ in to_extra(row.extra).assets
        )

    def _owner_holds(self, address: bytes) -> bool:
        wanted = self._wanted
        if wanted.owns is not None and not wanted.owns(address):
            return False
        return all(key in RULES[index].keys(address, b"") for index, key in wanted.lists if index in _OF_OWNER)
