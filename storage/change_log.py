"""The change log: committed facts in order, each appended by the commit that caused it.

change_log   sequence of the first fact u64 → checksum u32 | unix seconds u64 | MessagePack array of facts

The facts of a commit share a row, or several rows when they are many. A row is never changed. Sequences begin at 1 and
have no gap; rows leave only at the old end, and the last row stays, so a sequence is never given twice.
"""

from __future__ import annotations

import struct
import sys
import zlib
from collections.abc import Callable, Collection, Iterator, Sequence
from time import time
from typing import Literal, cast

import lmdb
import msgspec
from msgspec import Struct

from storage.disk import Disk, Txn
from storage.errors import Damaged

TABLES = ("change_log",)
ROW_BYTES = 1900  # of facts: two rows fill a page, and none needs pages of its own

_SEQUENCE = struct.Struct(">Q")
_HEAD = struct.Struct(">IQBH")  # checksum, unix seconds, array16, how many facts
_ARRAY16 = 0xDC
_CHECKED = 4  # bytes, of the checksum itself
_BLOCK, _ROLLBACK = b"\x98\x01", b"\x94\x02\x93"  # the prefix of such facts: rows without these have none
_SEARCHED = 200_000  # rows that are searched for a block
_EXAMINED = 5_000  # rows that are read for the transactions in them
_TRIMMED = 256  # rows that a commit removes at most, besides as many as it adds

Place = tuple[int, int, bytes]  # height, slot, hash
CauseName = Literal["submitted", "block", "rollback", "double_spend", "parent", "decided", "withdrawn", "expired"]


class BlockFact(Struct, array_like=True, frozen=True, tag=1):
    """A block was committed."""

    height: int
    slot: int
    hash: bytes
    txs: int
    created: int
    spent: int
    missing_inputs: int


class RollbackFact(Struct, array_like=True, frozen=True, tag=2):
    """Blocks were rolled back; None is the origin."""

    before: Place
    after: Place | None
    blocks: int


class PrunedFact(Struct, array_like=True, frozen=True, tag=3):
    """Rows were pruned."""

    spent_outputs: int
    transactions: int
    undo_records: int
    mmr_nodes: int
    floor: Place | None


class TxFact(Struct, array_like=True, frozen=True, tag=4):
    """A transaction's status changed. `refers_to` belongs to the cause: an id, or the text of a reason."""

    txid: bytes
    status: str
    height: int | None
    cause: CauseName | None
    refers_to: bytes | None


Fact = BlockFact | RollbackFact | PrunedFact | TxFact

_MARKS: dict[type, bytes] = {BlockFact: _BLOCK, RollbackFact: _ROLLBACK, PrunedFact: b"\x96\x03"}

_encode = msgspec.msgpack.Encoder().encode
_decode = msgspec.msgpack.Decoder(list[Fact]).decode


class Retention(Struct, frozen=True):
    """Which facts are kept: at least `count` of the newest, unless they are older than `age_s`; 0 means no limit."""

    count: int = 0
    age_s: float = 0


class Row(Struct, frozen=True):
    """The facts of one row."""

    first: int
    at: int  # unix seconds
    facts: list[Fact]

    @property
    def last(self) -> int:
        """Return the sequence of the last fact."""
        return self.first + len(self.facts) - 1


class LogStore:
    """The change log's table on one disk."""

    def __init__(self, disk: Disk) -> None:
        self.disk = disk
        self._db = disk.tables["change_log"]

    # --- reading -------------------------------------------------------------------------------------------------

    def ends(self, txn: Txn) -> tuple[int, int]:
        """Return the oldest and the newest sequence; an empty log is (1, 0)."""
        cursor = txn.cursor(self._db)
        if not cursor.first():
            return 1, 0
        oldest = _sequence(cursor.key())
        cursor.last()
        return oldest, _last(*cursor.item())

    def size(self, txn: Txn) -> int:
        """Return how many bytes the table takes on disk."""
        stat = txn.stat(self._db)
        return stat["psize"] * (stat["branch_pages"] + stat["leaf_pages"] + stat["overflow_pages"])

    def rows(self, txn: Txn, sequence: int = 1) -> Iterator[tuple[bytes, bytes]]:
        """Yield the rows from the one that has `sequence`, or else from the first one after it; `read_row` reads them.

        Raises:
            Damaged: a row was cut off.
        """
        cursor = txn.cursor(self._db)
        if not _at_or_before(cursor, sequence):
            there = cursor.first()
        else:
            there = _last(*cursor.item()) >= sequence or cursor.next()
        while there:
            yield cursor.item()
            there = cursor.next()

    def moves(self, txn: Txn, sequence: int) -> Iterator[BlockFact | RollbackFact]:
        """Yield how the tip moved, from a sequence on.

        Raises:
            Damaged: a row can't be read.
        """
        for key, raw in self.rows(txn, sequence):
            if _BLOCK in raw or _ROLLBACK in raw:
                row = read_row(key, raw)
                for n, fact in enumerate(row.facts, row.first):
                    if n >= sequence and isinstance(fact, BlockFact | RollbackFact):
                        yield fact

    def moves_back(self, txn: Txn, sequence: int) -> Iterator[tuple[int, BlockFact | RollbackFact]]:
        """Yield how the tip moved, from a sequence back to the oldest, each with its own sequence.

        Raises:
            Damaged: a row can't be read.
        """
        for n, _, fact in self.back(txn, (BlockFact, RollbackFact), sequence):
            yield n, cast("BlockFact | RollbackFact", fact)

    def back(
        self, txn: Txn, kinds: Collection[type[Fact]], sequence: int | None = None, most_rows: int = sys.maxsize
    ) -> Iterator[tuple[int, int, Fact]]:
        """Yield facts of some kinds back to the oldest: the sequence of each, when it was logged, and the fact.

        They begin at `sequence`, without it at the newest. Of more rows than `most_rows` none is read.

        Raises:
            Damaged: a row can't be read.
        """
        cursor, marks = txn.cursor(self._db), [_MARKS[kind] for kind in kinds]
        there = cursor.last() if sequence is None else _at_or_before(cursor, sequence)
        while there and most_rows:
            key, raw = cursor.item()
            if any(mark in raw for mark in marks):
                row = read_row(key, raw)
                for n, fact in zip(range(row.last, row.first - 1, -1), reversed(row.facts), strict=True):
                    if (sequence is None or n <= sequence) and type(fact) in kinds:
                        yield n, row.at, fact
            there, most_rows = cursor.prev(), most_rows - 1

    def rollbacks(self, txn: Txn, sequence: int) -> Iterator[RollbackFact]:
        """Yield the rollbacks from a sequence on.

        Raises:
            Damaged: a row can't be read.
        """
        for key, raw in self.rows(txn, sequence):
            if _ROLLBACK in raw:
                row = read_row(key, raw)
                for n, fact in enumerate(row.facts, row.first):
                    if n >= sequence and isinstance(fact, RollbackFact):
                        yield fact

    def find_block(self, txn: Txn, block_hash: bytes) -> tuple[int, BlockFact] | None:
        """Return a block that was committed, with its last sequence; None where the newest rows do not contain it.

        Raises:
            Damaged: a row can't be read.
        """
        cursor, examined = txn.cursor(self._db), 0
        there = cursor.last()
        while there and examined < _SEARCHED:
            key, raw = cursor.item()
            if block_hash in raw:
                row = read_row(key, raw)
                for n, fact in zip(range(row.last, row.first - 1, -1), reversed(row.facts), strict=True):
                    if isinstance(fact, BlockFact) and fact.hash == block_hash:
                        return n, fact
            there, examined = cursor.prev(), examined + 1
        return None

    def last_statuses(self, txn: Txn, txids: Collection[bytes]) -> dict[bytes, str]:
        """Return the latest status of transactions, as far as the newest rows contain it.

        Raises:
            Damaged: a row can't be read.
        """
        found, cursor, examined = dict[bytes, str](), txn.cursor(self._db), 0
        there = cursor.last()
        while there and examined < _EXAMINED and len(found) < len(txids):
            for fact in reversed(read_row(*cursor.item()).facts):
                if isinstance(fact, TxFact) and fact.txid in txids:
                    found.setdefault(fact.txid, fact.status)
            there, examined = cursor.prev(), examined + 1
        return found

    # --- writing -------------------------------------------------------------------------------------------------

    def append(self, txn: Txn, facts: Sequence[Fact], keep: Retention) -> int:
        """Append facts to an open transaction, and remove some of what is no longer kept; return the first sequence.

        Raises:
            Damaged: the log does not end where its last row ends.
        """
        cursor, first, at = txn.cursor(self._db), 1, int(time())
        if cursor.last():
            key, raw = cursor.item()
            first, at = _last(key, raw) + 1, max(at, _HEAD.unpack_from(raw)[1])  # clocks may go back
        rows = list(_packed(facts, first, at))
        if cursor.putmulti(rows, append=True)[1] != len(rows):
            raise Damaged(f"the change log has a fact at {first} already, after its last row")
        self._trim(txn, first + len(facts) - 1, at, keep, len(rows) + _TRIMMED)
        return first

    def _trim(self, txn: Txn, newest: int, now: int, keep: Retention, most: int) -> None:
        cursor = txn.cursor(self._db)
        there = cursor.first()
        while there and most:
            key, raw = cursor.item()
            last, at = _last(key, raw), _HEAD.unpack_from(raw)[1]
            many = keep.count and newest - last >= keep.count
            old = keep.age_s and at < now - keep.age_s
            if last >= newest or not (many or old):
                return
            there, most = cursor.delete() and cursor.first(), most - 1


def read_row(key: bytes, raw: bytes) -> Row:
    """Return a row.

    Raises:
        Damaged: it can't be read, or is not what was written.
    """
    what = f"the facts of the change log at {key.hex()}"
    if len(key) != _SEQUENCE.size or len(raw) < _HEAD.size:
        raise Damaged(f"{what} were cut off")
    checksum, at, kind, count = _HEAD.unpack_from(raw)
    if zlib.crc32(raw[_CHECKED:], zlib.crc32(key)) != checksum or kind != _ARRAY16:
        raise Damaged(f"{what} are damaged: the checksum differs")
    try:
        facts = _decode(raw[_HEAD.size - 3 :])
    except msgspec.DecodeError as error:
        raise Damaged(f"{what} cannot be read: {error}") from error
    if len(facts) != count or not facts:
        raise Damaged(f"{what} are {len(facts)}, but the head of the row counts {count}")
    return Row(_sequence(key), at, facts)


def _at_or_before(cursor: lmdb.Cursor[bytes], sequence: int) -> bool:
    """Go to the last row that begins at a sequence or before it."""
    return cursor.prev() if cursor.set_range(_SEQUENCE.pack(sequence + 1)) else cursor.last()


def contradictions(log: LogStore, txn: Txn, tip: bytes | None, progress: Callable[[int, bytes], None]) -> Iterator[str]:
    """Yield where the log contradicts itself, or its newest block is not the tip, whose hash is `tip`.

    `progress` is called with how many rows were read, and the key of the last one.

    Raises:
        Damaged: a row can't be read.
    """
    following, at, moved = None, 0, False
    where: bytes | None = None  # the tip, as the log has it
    for n, (key, raw) in enumerate(log.rows(txn), 1):
        progress(n, key)
        row = read_row(key, raw)
        if following is not None and row.first != following:
            yield f"the change log has a gap: fact {row.first} follows fact {following - 1}"
        if row.at < at:
            yield f"the facts of the change log from {row.first} on are older than those before them"
        following, at = row.last + 1, row.at
        for fact in row.facts:
            match fact:
                case BlockFact():
                    where, moved = fact.hash, True
                case RollbackFact():
                    where, moved = None if fact.after is None else fact.after[2], True
    if moved and where != tip:
        names = [block.hex() if block else "the origin" for block in (where, tip)]
        yield f"the change log ends at block {names[0]}, but the tip is {names[1]}"


def _packed(facts: Sequence[Fact], first: int, at: int) -> Iterator[tuple[bytes, bytes]]:
    """Yield the rows that hold these facts."""
    parts, size = list[bytes](), 0
    for n, fact in enumerate(facts):
        raw = _encode(fact)
        if parts and size + len(raw) > ROW_BYTES:
            yield _row(first + n - len(parts), at, parts)
            parts, size = [], 0
        parts.append(raw)
        size += len(raw)
    if parts:
        yield _row(first + len(facts) - len(parts), at, parts)


def _row(first: int, at: int, parts: list[bytes]) -> tuple[bytes, bytes]:
    key = _SEQUENCE.pack(first)
    rest = (_HEAD.pack(0, at, _ARRAY16, len(parts)) + b"".join(parts))[_CHECKED:]
    return key, zlib.crc32(rest, zlib.crc32(key)).to_bytes(_CHECKED, "big") + rest


def _sequence(key: bytes) -> int:
    number: int = _SEQUENCE.unpack(key)[0]
    return number


def _last(key: bytes, raw: bytes) -> int:
    """Return the sequence of a row's last fact.

    Raises:
        Damaged: it was cut off.
    """
    if len(key) != _SEQUENCE.size or len(raw) < _HEAD.size:
        raise Damaged(f"the facts of the change log at {key.hex()} were cut off")
    count: int = _HEAD.unpack_from(raw)[3]
    return _sequence(key) + count - 1
