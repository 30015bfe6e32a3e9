"""Stores that a test damages by hand: rows are changed by what they mean, and get right checksums."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from struct import Struct as Packed
from typing import Any

import msgspec
import numpy as np
from chains import TABLES

from storage.disk import META, Db, Disk, Txn
from storage.history import mmr_nodes, runs
from storage.history.bits import CHUNK, _seal
from storage.history.layout import (
    BLOCK,
    DATUMS,
    HEAD_BYTES,
    LIVE,
    OUTPUT,
    OUTPUT_RECORD,
    RUN,
    SPEND,
    STATE,
    TX,
    TX_RECORD,
    UNDO,
    Block,
    Records,
    State,
    count_of,
    seal,
    stored_state,
)
from storage.history.mmr import NODE
from storage.history.runs import Manifest
from storage.history.store import HistoryStore
from storage.history.stored import Stored
from storage.rows import check_row, seal_row

U32, U64, UNDO_KEY = (Packed(form) for form in (">I", ">Q", ">II"))


@contextmanager
def opened(folder: Path) -> Iterator[Disk]:
    with Disk(folder, TABLES, durable=False) as disk:
        HistoryStore(disk)
        yield disk


def harm(folder: Path, damage: Callable[[Hand], object]) -> None:
    with opened(folder) as disk:
        disk.write(lambda txn: damage(Hand(txn, disk.tables)))


class Hand:
    """The tables of a store in a write transaction: what a test wants to change, found and sealed again."""

    def __init__(self, txn: Txn, tables: dict[str, Db]) -> None:
        self.txn, self.tables = txn, tables
        self.state: State = stored_state(txn, tables[META])
        self.stored = Stored(txn, tables)

    def rows(self, table: str) -> list[tuple[bytes, bytes]]:
        return list(self.txn.cursor(self.tables[table]))

    def put(self, table: str, key: bytes, value: bytes) -> None:
        self.txn.put(key, value, db=self.tables[table])

    def delete(self, table: str, key: bytes) -> object:
        assert self.txn.delete(key, db=self.tables[table])
        return None

    def remove_node(self, position: int) -> None:
        self.change_node(position, None)

    def change_node(self, position: int, act: Callable[[Records], object] | None) -> None:
        first = position // mmr_nodes.NODES * mmr_nodes.NODES
        key, at = first.to_bytes(8, "big"), position - first
        value = mmr_nodes.unpack(dict(self.rows(NODE))[key], first)
        there, hashes = value.there.copy(), value.hashes.copy()
        assert there[at]
        row = int(there[:at].sum())
        if act is None:
            there[at], hashes = False, np.delete(hashes, row, axis=0)
        else:
            act(hashes[row])
        self.put(NODE, key, mmr_nodes.pack(mmr_nodes.Value(there, hashes)))

    def change_state(self, **fields: Any) -> None:
        self.put(META, STATE, seal_row(msgspec.structs.replace(self.state, **fields)))

    def block(self, ordinal: int) -> Block:
        raw = self.txn.get(U32.pack(ordinal), db=self.tables[BLOCK])
        assert raw is not None
        return msgspec.msgpack.decode(check_row(raw, "block"), type=Block)

    def change_block(self, ordinal: int, **fields: Any) -> None:
        self.put(BLOCK, U32.pack(ordinal), seal_row(msgspec.structs.replace(self.block(ordinal), **fields)))

    def manifest(self, kind: str) -> Manifest:
        return runs.manifest(self.txn, self.tables[META], kind)

    def put_manifest(self, kind: str, manifest: Manifest) -> None:
        self.put(META, f"runs:{kind}".encode(), seal_row(manifest))

    # --- numbered values -----------------------------------------------------------------------------------------

    def records(self, table: str) -> Iterator[tuple[bytes, Records, bytes]]:
        """Yield the key of each value, its records, and its heap; not the datums of undo logs."""
        dtype = {TX: TX_RECORD, OUTPUT: OUTPUT_RECORD, UNDO: SPEND}[table]
        for key, value in self.rows(table):
            if table == UNDO and UNDO_KEY.unpack(key)[1] >= DATUMS:
                continue
            end = HEAD_BYTES + count_of(value) * dtype.itemsize
            yield key, np.frombuffer(value, dtype, count_of(value), HEAD_BYTES).copy(), value[end:]

    def replace(self, table: str, key: bytes, records: Records, heap: bytes = b"") -> None:
        self.delete(table, key)
        if len(records):
            first = key if table == UNDO else U64.pack(int(records["number"][0]))
            self.put(table, first, seal(len(records), records.tobytes(), heap))

    def change(self, table: str, number: int, act: Callable[[Any], object] | None) -> None:
        for key, records, heap in self.records(table):
            at = np.flatnonzero(records["number"] == number)
            if not len(at):
                continue
            if act is not None:
                act(records[at[0] : at[0] + 1])
            else:
                if table == OUTPUT:
                    end = int(records["length"][: at[0] + 1].sum())
                    heap = heap[: end - int(records["length"][at[0]])] + heap[end:]
                records = np.delete(records, at[0])
            return self.replace(table, key, records, heap)
        raise AssertionError(f"{table} has no record of {number}")

    def change_body(self, number: int, change: Callable[[bytes, bytes], tuple[bytes, bytes]]) -> None:
        for key, records, heap in self.records(OUTPUT):
            at = np.flatnonzero(records["number"] == number)
            if not len(at):
                continue
            start = int(records["length"][: at[0]].sum())
            middle, end = start + int(records["address"][at[0]]), start + int(records["length"][at[0]])
            address, extra = change(heap[start:middle], heap[middle:end])
            records["address"][at], records["length"][at] = len(address), len(address + extra)
            return self.replace(OUTPUT, key, records, heap[:start] + address + extra + heap[end:])
        raise AssertionError(f"there is no output {number}")

    def live(self) -> list[int]:
        numbers = np.arange(self.state.next_number)
        return list(map(int, numbers[self.stored.live.has(numbers)]))

    def dead(self) -> int:
        """Return the number of an output that has no record any more."""
        kept = {int(n) for _, records, _ in self.records(OUTPUT) for n in records["number"]}
        return min(set(range(self.stored.reachable)) - kept)

    def flip(self, *numbers: int) -> None:
        for number in numbers:
            key, bit = U32.pack(number // 1024), number % 1024
            bits = bytearray((self.txn.get(key, db=self.tables[LIVE]) or bytes(CHUNK + 4))[:CHUNK])
            bits[bit >> 3] ^= 1 << (bit & 7)
            self.put(LIVE, key, _seal(bytes(bits)))

    def spends(self) -> list[tuple[bytes, Records]]:
        return [(key, records) for key, records, _ in self.records(UNDO) if len(records)]

    def long_undo(self) -> tuple[bytes, Records]:
        return next((key, records) for key, records in self.spends() if len(records) > 1)

    # --- runs ----------------------------------------------------------------------------------------------------

    def entries(self, kind: str, run: int | None = None) -> Iterator[tuple[bytes, Records]]:
        ids = [each.id for each in self.manifest(kind).runs] if run is None else [run]
        for key, value in self.rows(RUN):
            if runs.KEY.unpack(key)[0] in ids:
                yield key, np.frombuffer(value, runs.record_of(kind), count_of(value), HEAD_BYTES).copy()

    def put_entries(self, old: bytes, entries: Records) -> None:
        self.delete(RUN, old)
        if len(entries):
            key = runs.KEY.pack(runs.KEY.unpack(old)[0], int(entries["prefix"][0]), int(entries["number"][0]))
            self.put(RUN, key, seal(len(entries), entries.tobytes()))

    def where(self, kind: str, number: int) -> tuple[bytes, Records, int]:
        for key, entries in self.entries(kind):
            for at in np.flatnonzero(entries["number"] == number).tolist():
                return key, entries, at
        raise AssertionError(f"{kind} has no entry of {number}")

    def recount(self, kind: str, run: int, by: int) -> None:
        manifest = self.manifest(kind)
        for each in manifest.runs:
            if each.id == run:
                each.entries += by
                each.room, each.lived = max(each.room, each.entries), each.lived + by
        for merge in manifest.merges:
            merge.room += by if run in merge.inputs else 0
        if manifest.merges and longest(manifest).id == run:
            longest(manifest).entries += by
        self.put_manifest(kind, manifest)

    def drop_entry(self, kind: str, number: int) -> None:
        key, entries, at = self.where(kind, number)
        self.put_entries(key, np.delete(entries, at))
        self.recount(kind, runs.KEY.unpack(key)[0], -1)


def liveliest(manifest: Manifest) -> runs.Run:
    return max(manifest.runs, key=lambda run: run.lived)


def rewriting(manifest: Manifest) -> runs.Run:
    (merge,) = [merge for merge in manifest.merges if len(merge.inputs) == 1]
    return next(run for run in manifest.runs if run.id in merge.inputs)


def longest(manifest: Manifest) -> runs.Merge:
    return max(manifest.merges, key=lambda merge: merge.room)
