"""One snapshot of the store, read table by table: some thousand records at a time, as arrays."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from itertools import islice

import msgspec
import numpy as np

from storage.disk import META, Db, Txn
from storage.history import runs, touches
from storage.history.layout import (
    BLOCK,
    HEAD_BYTES,
    OUTPUT,
    OUTPUT_RECORD,
    RUN,
    TX,
    Block,
    Flags,
    Numbers,
    Records,
    Words,
    count_of,
    stored_state,
)
from storage.history.prefixes import prefixes
from storage.history.shard import own_txs, read_chain, tx_record
from storage.history.stored import Stored
from storage.history.tally import BitSet
from storage.rows import check_row

Progress = Callable[[str, int, bytes], None]  # the table, how many rows of it were read, the key of the last one

_VALUES = 64  # that are joined to one array
_read_block = msgspec.msgpack.Decoder(Block).decode


class View:
    """The tables, and what `verify` has found out about them so far: it fills in the sets."""

    def __init__(self, txn: Txn, tables: dict[str, Db], progress: Progress = lambda *_: None) -> None:
        self.txn, self.tables, self._progress = txn, tables, progress
        self.meta = tables[META]
        self.lowest = 1  # the first block: 0 where there are genesis outputs
        self.block_firsts = np.empty(0, np.int64)  # of the blocks from that one on
        self.window = np.empty((0, 3), np.int64)  # above the floor: transactions, created, spent
        self.failed = np.empty(0, np.bool_)  # and whether one of their transactions failed
        self.failed_txs = np.empty((0, 3), np.int64)  # first number, outputs, whether there is a collateral return

    def believe_state(self) -> None:
        """Make space for what is as large as the state requires."""
        self.state = stored_state(self.txn, self.tables[META])
        self.stored = Stored(self.txn, self.tables)
        self._shard = read_chain(self.txn, self.meta)[1]
        self._keys = np.array(self.state.keys, np.uint64)
        size = self.state.next_number
        self.live, self.spent, self.tx_starts, self.kept_txs = (BitSet(size) for _ in range(4))
        self.revivable = self.live
        self.reachable = self.stored.reachable  # the lowest number that a rollback may roll back
        self.kept_from = touches.first_block(self.txn, self.meta)  # the block from which nothing is forgotten
        self.kept_number = self.reachable  # the number from which all transactions are kept
        if self.kept_from is not None and self.kept_from <= self.state.floor:
            self.kept_number = self.stored.block(self.kept_from).first if self.kept_from else 0

    def prefixes(self, digests: Words) -> Words:
        """Return prefixes under the store's keys."""
        return prefixes(digests, self._keys)

    def name(self, number: int) -> str:
        """Return what an output is called, as far as its transaction is known."""
        found = self.stored.txs.at_or_before(number)
        if found is None:
            return f"output {number}"
        first = int(found[0]["number"])
        return f"output {number} ({found[0]['id'].tobytes().hex()}#{number - first})"

    def block_of(self, numbers: Numbers) -> Numbers:
        """Return the ordinals of the blocks that have these numbers."""
        return np.searchsorted(self.block_firsts, numbers, "right") - 1 + self.lowest

    def counted(self, records: Records) -> Flags:
        """Return which transactions the rows of their blocks count."""
        return own_txs(records["id"], self._shard)

    # --- rows ----------------------------------------------------------------------------------------------------

    def scan(self, table: str, start: bytes = b"") -> Iterator[tuple[bytes, bytes]]:
        """Yield the rows of a table from a key on, and report each."""
        cursor, progress = self.txn.cursor(self.tables[table]), self._progress
        progress(table, 0, start)
        if cursor.set_range(start) if start else cursor.first():
            for row, item in enumerate(cursor, 1):
                progress(table, row, item[0])
                yield item

    def blocks(self) -> Iterator[tuple[int, Block]]:
        """Yield the blocks with their ordinals."""
        for key, raw in self.scan(BLOCK):
            ordinal = int.from_bytes(key, "big")
            yield ordinal, _read_block(check_row(raw, f"block {ordinal}"))

    def txs(self) -> Iterator[Records]:
        """Yield the records of transactions."""
        for records, _ in self._joined(TX, tx_record(self.txn, self.meta)):
            yield records

    def outputs(self) -> Iterator[tuple[Records, bytes]]:
        """Yield the records of outputs, and their bodies one after the other."""
        return self._joined(OUTPUT, OUTPUT_RECORD)

    def _joined(self, table: str, record: np.dtype[np.void]) -> Iterator[tuple[Records, bytes]]:
        rows = self.scan(table)
        while values := [value for _, value in islice(rows, _VALUES)]:
            ends = [HEAD_BYTES + count_of(value) * record.itemsize for value in values]
            pairs = list(zip(values, ends, strict=True))
            raw = b"".join([value[HEAD_BYTES:end] for value, end in pairs])
            yield np.frombuffer(raw, record), b"".join([value[end:] for value, end in pairs])

    def run(self, run: int, record: np.dtype[np.void]) -> Iterator[tuple[list[tuple[int, int]], Records, Numbers]]:
        """Yield the entries of a run, with the keys of their values, and where each value begins among them.

        A value whose length is not that of such entries is left out: it has no keys to compare.
        """
        rows = self._rows_of(run)
        while some := list(islice(rows, _VALUES)):
            whole = [
                (key, value) for key, value in some if len(value) == HEAD_BYTES + count_of(value) * record.itemsize
            ]
            counts = np.array([count_of(value) for _, value in whole], np.int64)
            keys = [runs.KEY.unpack(key)[1:] for key, _ in whole]
            raw = b"".join([value[HEAD_BYTES:] for _, value in whole])
            yield keys, np.frombuffer(raw, record), np.cumsum(counts) - counts

    def _rows_of(self, run: int) -> Iterator[tuple[bytes, bytes]]:
        for key, value in self.scan(RUN, runs.KEY.pack(run, 0, 0)):
            if runs.KEY.unpack(key)[0] != run:
                return
            yield key, value

    def runs(self) -> Iterator[int]:
        """Yield the runs that have values."""
        cursor, run = self.txn.cursor(self.tables[RUN]), 0
        while run < 1 << 32 and cursor.set_range(runs.KEY.pack(run, 0, 0)):
            run = runs.KEY.unpack(cursor.key())[0]
            yield run
            run += 1
