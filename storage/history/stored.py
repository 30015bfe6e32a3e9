"""Reads of the chain's tables at one commit: single look-ups, within a read transaction."""

from __future__ import annotations

from struct import Struct as Packed
from typing import NamedTuple

import numpy as np
from msgspec import Struct

from storage.disk import META, Db, Txn
from storage.errors import Damaged
from storage.history import datums
from storage.history.arrays import joined, places_among_distinct
from storage.history.earlier import bits_of
from storage.history.kept import Kept
from storage.history.layout import (
    BLOCK,
    DATUMS,
    HEAD_BYTES,
    LIVE,
    OUTPUT,
    OUTPUT_RECORD,
    SPEND,
    TX,
    TX_RECORD,
    UNDO,
    Block,
    Flags,
    Found,
    Numbers,
    Records,
    State,
    TxFound,
    Words,
    check,
    count_of,
    outputs_in,
    stored_state,
    to_tx,
)
from storage.history.prefixes import prefix_of, prefixes
from storage.history.shard import tx_record
from storage.history.stored_index import StoredIndex
from storage.history.stored_values import StoredValues
from storage.rows import open_row

_TX, _OUTPUT = Packed("<q32sqII"), Packed("<qQII")  # records, the first one without its end
_PLACE, _PLACE_AT = Packed("<I"), TX_RECORD.itemsize  # which a record of a shard has behind the others
_U32 = Packed(">I")
_UNDO_KEY = Packed(">II")


class Spent(NamedTuple):
    """Who spent an output, with which input; `REPLACED` is for none."""

    number: int
    spender: int
    input: int


class Home(Struct, frozen=True, gc=False):
    """Where an output belongs: its transaction, which output of it that is, and the block."""

    txid: bytes
    output: int
    block: int
    place: int | None = None  # of the transaction in the whole block, in the store of a shard


class Stored:
    """One snapshot of the tables. Everything is read on demand."""

    def __init__(self, txn: Txn, tables: dict[str, Db], kept: Kept | None = None) -> None:
        self.txn, self._tables, self._kept = txn, tables, kept
        record = tx_record(txn, tables[META])
        if kept is None:
            self.state: State = stored_state(txn, tables[META])
            self.txs = StoredValues(txn, tables[TX], record)
            self.outputs = StoredValues(txn, tables[OUTPUT], OUTPUT_RECORD)
        else:
            self.state = kept.state
            self.txs = StoredValues(txn, tables[TX], record, kept.txs, kept.checked)
            self.outputs = StoredValues(txn, tables[OUTPUT], OUTPUT_RECORD, kept.outputs, kept.checked)
        self.live = bits_of(txn, tables[LIVE], kept)
        self._indexes: dict[str, StoredIndex] = {}
        self._reachable: int | None = None

    def index(self, kind: str) -> StoredIndex:
        """Return an index."""
        if kind not in self._indexes:
            kept = () if self._kept is None else (self._kept.runs, self._kept.checked)
            self._indexes[kind] = StoredIndex(self.txn, self._tables, kind, *kept)
        return self._indexes[kind]

    def prefixes(self, digests: Words) -> Words:
        """Return the prefixes of digests."""
        return prefixes(digests, np.array(self.state.keys, np.uint64))

    def prefix(self, key: bytes) -> int:
        """Return the prefix of one key of at most 32 bytes."""
        return prefix_of(key.ljust(32, b"\0"), self.state.keys)

    @property
    def reachable(self) -> int:
        """Return the lowest number that a rollback may roll back."""
        if self._reachable is None:
            self._reachable = reachable(self.txn, self._tables[BLOCK], self.state.floor)
        return self._reachable

    # --- blocks --------------------------------------------------------------------------------------------------

    def block(self, ordinal: int) -> Block:
        """Return a block."""
        return read_block(self.txn, self._tables[BLOCK], ordinal)

    @property
    def has_genesis(self) -> bool:
        """Return whether there are genesis outputs, under the ordinal 0."""
        return self.txn.get(_U32.pack(0), db=self._tables[BLOCK]) is not None

    def ordinal_of(self, block_hash: bytes) -> int | None:
        """Return the ordinal of a block."""
        for entry in self.index("block").find(self.prefix(block_hash)):
            ordinal = int(entry["number"])
            if self.block(ordinal).hash == block_hash:
                return ordinal
        return None

    def log(self, ordinal: int) -> Records:
        """Return what a block spent, in order, as long as it is on disk; nothing when it is not."""
        there = self.txn.get(_UNDO_KEY.pack(ordinal, 0), db=self._tables[UNDO]) is not None
        return read_undo(self.txn, self._tables[UNDO], ordinal) if there else np.empty(0, SPEND)

    def undo(self, ordinal: int) -> list[Spent] | None:
        """Return what a block spent, in order; None once a rollback can't reach it."""
        if not self.state.floor < ordinal <= self.state.tip:
            return None
        first = self.block(ordinal).first
        entries = read_undo(self.txn, self._tables[UNDO], ordinal).tolist()
        return [Spent(number, first + spender, at) for number, spender, at in entries]

    def revealed(self, ordinal: int) -> list[bytes]:
        """Return the datums among a block's witnesses that no output of it names; none once no rollback reaches it."""
        return datums.read(self.txn, self._tables[UNDO], ordinal)

    # --- transactions --------------------------------------------------------------------------------------------

    def tx_of(self, number: int) -> TxFound:
        """Return the transaction that an output, or its first one, belongs to.

        Raises:
            Damaged: it is missing.
        """
        found = self.txs.at_or_before(number)
        if found is None or (tx := to_tx(found[0])).number + max(tx.outputs, 1) <= number:
            raise Damaged(f"the transaction of output {number} is missing")
        return tx

    def find_tx(self, txid: bytes, *, kept_from: int | None = None) -> TxFound | None:
        """Return the latest transaction of an id that is kept; blocks from `kept_from` on keep all of theirs."""
        for entry in self.index("txid").find(self.prefix(txid)):
            found = self.txs.get(int(entry["number"]))
            if found is None or found[0]["id"].tobytes() != txid or found[0]["number"] >= self.state.next_number:
                continue
            tx = to_tx(found[0])
            return tx if (kept_from is not None and tx.block >= kept_from) or self.is_kept(tx) else None
        return None

    def is_kept(self, tx: TxFound) -> bool:
        """Return whether a transaction is answered for, whatever is still on disk."""
        end = tx.number + tx.outputs
        return (
            tx.number >= self.reachable
            or bool(self.live.has(np.arange(tx.number, end)).any())
            or bool(self.spenders(tx.number, end))
        )

    # --- outputs -------------------------------------------------------------------------------------------------

    def output(self, number: int) -> Found | None:
        """Return an output that is unspent or restorable."""
        if not self.live.is_set(number) and self.spender(number) is None:
            return None
        return self.body(number)

    def body(self, number: int) -> Found | None:
        """Return an output as long as it is on disk."""
        return self.bodies([number]).get(number)

    def bodies(self, numbers: Numbers | list[int]) -> dict[int, Found]:
        """Return those outputs that are on disk, by number; of neighbours a value is searched for once."""
        found, size = dict[int, Found](), _OUTPUT.size
        for number, value, place in self.outputs.located(numbers if isinstance(numbers, list) else numbers.tolist()):
            raw = value.raw
            there, amount, address, length = _OUTPUT.unpack_from(raw, HEAD_BYTES + place * size)
            if there == number:
                start = value.offsets[place]
                middle = start + address
                found[number] = Found(number, amount, raw[start:middle], raw[middle : start + length])
        return found

    def homes(self, numbers: Numbers | list[int]) -> dict[int, Home]:
        """Return where outputs belong, by number; each number is there once.

        Raises:
            Damaged: the transaction of one is missing.
        """
        found, size = dict[int, Home](), self.txs.record.itemsize
        wanted = numbers if isinstance(numbers, list) else numbers.tolist()
        for number, value, place in self.txs.located(wanted):
            first, txid, _, counts, block = _TX.unpack_from(value.raw, at := HEAD_BYTES + place * size)
            if number - first < (counts >> 3 or 1):
                in_block = _PLACE.unpack_from(value.raw, at + _PLACE_AT)[0] if size > _PLACE_AT else None
                found[number] = Home(txid, number - first, block, in_block)
        if len(found) < len(wanted) and (lost := [number for number in wanted if number not in found]):
            raise Damaged(f"the transaction of output {lost[0]} is missing")
        return found

    def home_columns(self, numbers: Numbers) -> tuple[Words, Numbers]:
        """Return the ids of the transactions that outputs belong to, and which outputs of them they are.

        Raises:
            Damaged: the transaction of one is missing.
        """
        wanted, back = places_among_distinct(numbers)
        ids, indexes = np.zeros((len(wanted), 4), np.uint64), np.full(len(wanted), -1, np.int64)
        found = list(self.txs.many(wanted, before=True))
        which = np.concatenate([np.empty(0, np.int64), *(each for each, _, _ in found)])
        records = joined((each for _, each, _ in found), self.txs.record)
        at = wanted[which] - records["number"]
        inside = at < np.maximum(outputs_in(records["counts"]), 1)
        ids[which[inside]], indexes[which[inside]] = records["id"].compress(inside, axis=0), at[inside]
        if len(lost := wanted[indexes < 0]):
            raise Damaged(f"the transaction of output {int(lost[0])} is missing")
        return ids.take(back, axis=0), indexes[back]

    def spender(self, number: int) -> TxFound | None:
        """Return the spender of an output, in a block that may be rolled back."""
        for entry in self.index("spender").find(number):
            by = int(entry["number"])
            if self.reachable <= by < self.state.next_number:
                return self.tx_of(by)
        return None

    def spenders(self, low: int, high: int) -> dict[int, int]:
        """Return the spenders of the outputs of a range in blocks that may be rolled back: numbers by number."""
        found = dict[int, int]()
        for entries in self.index("spender").within(low, high):
            entries = entries[(entries["number"] >= self.reachable) & (entries["number"] < self.state.next_number)]
            found.update(zip(entries["prefix"].tolist(), entries["number"].tolist(), strict=True))
        return found

    def revivable(self, numbers: Numbers) -> Flags:
        """Return which outputs are unspent or restorable."""
        flags = self.live.has(numbers)
        for at in np.flatnonzero(~flags).tolist():
            flags[at] = self.spender(int(numbers[at])) is not None
        return flags


def read_block(txn: Txn, table: Db, ordinal: int) -> Block:
    """Return a block.

    Raises:
        Damaged: it is missing, or can't be read.
    """
    raw = txn.get(_U32.pack(ordinal), db=table)
    if raw is None:
        raise Damaged(f"block {ordinal} has no row")
    return open_row(Block, raw, f"block {ordinal}")


def read_undo(txn: Txn, table: Db, ordinal: int) -> Records:
    """Return what a block spent, in order.

    Raises:
        Damaged: its undo log is missing, or is not as it was written.
    """
    parts, cursor = [], txn.cursor(table)
    if cursor.set_range(_UNDO_KEY.pack(ordinal, 0)):
        for key, value in cursor:
            if _UNDO_KEY.unpack(key) >= (ordinal, DATUMS):
                break
            check(value, f"the undo log of block {ordinal}")
            parts.append(np.frombuffer(value, SPEND, count_of(value), HEAD_BYTES))
    if not parts:
        raise Damaged(f"block {ordinal} has no undo log")
    return joined(parts, SPEND)


def read_spent(txn: Txn, table: Db, blocks: Db, ordinal: int) -> Numbers:
    """Return the numbers of what a block spent, as many as its row counts.

    Raises:
        Damaged: its undo log is missing, or is not whole.
    """
    numbers: Numbers = read_undo(txn, table, ordinal)["number"]
    if len(numbers) != (count := read_block(txn, blocks, ordinal).spent):
        raise Damaged(f"the undo log of block {ordinal} has {len(numbers)} of its {count} spends")
    return numbers


def reachable(txn: Txn, table: Db, floor: int) -> int:
    """Return the lowest number that a rollback may roll back, when blocks up to `floor` stay."""
    if floor == 0 and txn.get(_U32.pack(0), db=table) is None:
        return 0
    block = read_block(txn, table, floor)
    return block.first + block.numbers
