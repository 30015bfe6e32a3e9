"""`utxod verify` knows every rule of a history: each is broken by hand, with right checksums, and it says which one."""

from __future__ import annotations

import re
import shutil
from collections.abc import Callable, Iterator, Sequence
from functools import partial
from pathlib import Path
from random import Random
from struct import Struct as Packed
from typing import Any

import msgspec
import numpy as np
import pytest
from chains import Options, feed, open_chain, random_chain, random_genesis

import storage.history.filters
import storage.history.history
import storage.history.merging
import storage.history.runs
import storage.history.store
import storage.history.values
import storage.history.view
from storage.change_log import TABLES as LOG_TABLES
from storage.disk import Db, Disk, Txn
from storage.errors import Damaged
from storage.history import runs
from storage.history.bits import CHUNK, _seal
from storage.history.layout import (
    BLOCK,
    DATUMS,
    FILTER,
    HEAD_BYTES,
    LIVE,
    META,
    OUTPUT,
    OUTPUT_RECORD,
    RUN,
    SPEND,
    STATE,
    TABLES,
    TX,
    TX_RECORD,
    UNDO,
    Block,
    Extra,
    Records,
    State,
    check_row,
    count_of,
    seal,
    seal_row,
    stored_state,
    to_extra,
)
from storage.history.output_keys import RULES
from storage.history.runs import Manifest
from storage.history.stored import Stored
from storage.history.verify import verify
from storage.precheck import precheck

OPTIONS = Options(indexes=tuple(RULES), rollback_window=8, prune_depth=8, may_prune=True, map_size=1 << 24)
KEYS = [Random(n).getrandbits(64) | 1 for n in range(4)]
U32, U64, UNDO_KEY = (Packed(form) for form in (">I", ">Q", ">II"))


@pytest.fixture(scope="module", autouse=True)
def small() -> Iterator[None]:
    """Make values, merges and filters small, so that a short story has many of them."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(storage.history.runs, "VALUE_BYTES", 80)
        patch.setattr(storage.history.values, "VALUE_BYTES", 600)
        patch.setattr(storage.history.merging, "FANOUT", 3)
        patch.setattr(storage.history.history, "MERGED", 0)
        patch.setattr(storage.history.merging, "_REWRITTEN", 1)
        patch.setattr(storage.history.history, "LEAST_MERGED", 5)
        patch.setattr(storage.history.history, "_COUNTED", 4)
        patch.setattr(storage.history.history, "UNDO_ENTRIES", 3)
        patch.setattr(storage.history.filters, "PART", 2)
        patch.setattr(storage.history.store, "new_state", lambda: State(KEYS))
        patch.setattr(storage.history.view, "_VALUES", 2)
        yield


@pytest.fixture(scope="module")
def whole(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return a sound store with genesis outputs, runs, merges and a count in progress, and more than its window."""
    folder, random = tmp_path_factory.mktemp("whole"), Random(49)
    with open_chain(folder, **OPTIONS) as chain:
        chain.seed(random_genesis(random))
        for each in random_chain(random, 70, repeats=False):
            feed(chain, each)
        assert verify(chain.store.disk) == []
    with opened(folder) as disk, disk.read() as txn:
        hand = Hand(txn, disk.tables)
        assert 0 < hand.state.floor < hand.state.tip
        for kind in ("txid", "address_hash", "spender"):
            assert len(hand.manifest(kind).runs) > 1
        assert longest(hand.manifest("address_hash")).entries
        assert rewriting(hand.manifest("address_hash"))
        assert hand.manifest("address_hash").count.values
    return folder


def opened(folder: Path) -> Disk:
    return Disk(folder, (META, *TABLES, *LOG_TABLES), durable=False)


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

    def delete(self, table: str, key: bytes) -> None:
        assert self.txn.delete(key, db=self.tables[table])

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
        """Change the record of a number, or drop it."""
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
        """Change address and extra of an output."""
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
        """Return the undo logs of the window that have spends."""
        return [(key, records) for key, records, _ in self.records(UNDO) if len(records)]

    def long_undo(self) -> tuple[bytes, Records]:
        return next((key, records) for key, records in self.spends() if len(records) > 1)

    # --- runs ----------------------------------------------------------------------------------------------------

    def entries(self, kind: str, run: int | None = None) -> Iterator[tuple[bytes, Records]]:
        """Yield the values of a kind's runs in force, or of one run."""
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


# --- one rule after the other ----------------------------------------------------------------------------------------

Damage = Callable[[Hand], object]
CASES: dict[str, tuple[Damage, str]] = {}


def says(finding: str) -> Callable[[Damage], Damage]:
    def add(damage: Damage) -> Damage:
        CASES[damage.__name__] = (damage, finding)
        return damage

    return add


def change_manifest(kind: str, act: Callable[[Manifest], object]) -> Damage:
    def damage(hand: Hand) -> None:
        manifest = hand.manifest(kind)
        act(manifest)
        hand.put_manifest(kind, manifest)

    return damage


STATES: dict[str, tuple[Callable[[State], dict[str, Any]], str]] = {
    "tip": (lambda state: {"tip": state.tip + 1}, "the last block is 70, the tip is 71"),
    "unspent": (
        lambda state: {"unspent": state.unspent + 1},
        "the blocks leave .* the counter says",
    ),
    "a floor too high": (lambda state: {"floor": state.floor + 1}, "there is an undo log of block 62"),
    "a floor too low": (lambda state: {"floor": state.floor - 1}, "block 61 (has no undo log|has .* records of)"),
    "a floor above the tip": (lambda state: {"floor": state.tip + 1}, "the rollback floor is 71, the tip is 70"),
    "next number": (lambda state: {"next_number": state.next_number + 1}, "the last block ends at number"),
    "keys": (lambda state: {"keys": [key ^ 2 for key in state.keys]}, "index txid misses transaction"),
    "three keys": (lambda state: {"keys": state.keys[1:]}, "the state has no four keys"),
    "no room": (lambda state: {"next_number": 1 << 63}, "the state counts"),
    "runs": (lambda _: {"next_run": 1}, "above the last one, 1"),
}
for name, (fields, finding) in STATES.items():
    CASES[f"state: {name}"] = (lambda hand, fields=fields: hand.change_state(**fields(hand.state)), finding)  # type: ignore[misc]


def longest(manifest: runs.Manifest) -> runs.Merge:
    """Return the merge that has most to read."""
    return max(manifest.merges, key=lambda merge: merge.room)


def liveliest(manifest: runs.Manifest) -> runs.Run:
    """Return the run with the most living entries."""
    return max(manifest.runs, key=lambda run: run.lived)


def rewriting(manifest: runs.Manifest) -> runs.Run:
    """Return the run that is being rewritten."""
    (merge,) = [merge for merge in manifest.merges if len(merge.inputs) == 1]
    return next(run for run in manifest.runs if run.id in merge.inputs)


def put_on_one_level(listed: Sequence[runs.Run | runs.Merge]) -> None:
    for each in listed:
        each.level = 1


RUNS: dict[str, tuple[str, Callable[[Manifest], object], str]] = {
    "listed twice": ("asset", lambda m: m.runs.append(m.runs[-1]), r"run \d+ is listed for asset and for asset"),
    "overlapping": (
        "asset",
        lambda m: setattr(m.runs[0], "high", m.runs[1].low + 1),
        "of asset has the range",
    ),
    "beyond the end": ("asset", lambda m: setattr(m.runs[-1], "high", 1 << 40), "of asset has the range"),
    "fewer entries": (
        "asset",
        lambda m: m.runs.insert(0, msgspec.structs.replace(one := m.runs.pop(0), entries=one.entries - 1, lived=0)),
        "entries, its list says",
    ),
    "more living entries than entries": (
        "asset",
        lambda m: setattr(m.runs[0], "lived", m.runs[0].entries + 1),
        r"run \d+ of asset counts \d+ living entries of",
    ),
    "fewer living entries": (
        "address_hash",
        lambda m: setattr(m.runs[-1], "lived", 0),
        r"run \d+ of address_hash has \d+ living entries, its list says at most 0",
    ),
    "less room": ("txid", lambda m: setattr(m.runs[0], "room", 0), r"run \d+ of txid counts \d+ entries of 0"),
    "a low bound too high": ("asset", lambda m: setattr(m.runs[0], "low", m.runs[0].high - 1), "has number"),
    "a high bound too low": (
        "address_hash",
        lambda m: setattr(m.runs[-1], "high", m.runs[-1].low + 1),
        "index address_hash misses output",
    ),
    "forgotten": ("asset", lambda m: m.runs.pop(), r"there are values of run \d+, which no index has"),
    "forgotten with a filter": ("txid", lambda m: m.runs.pop(), r"there is a filter of run \d+"),
    "a merge of strangers": (
        "address_hash",
        lambda m: longest(m).inputs.append(9999),
        "the merge of address_hash reads runs",
    ),
    "a merge with other room": (
        "address_hash",
        lambda m: setattr(longest(m), "room", longest(m).room - 1),
        r"the merge of address_hash has room for \d+ entries, \d+ of its runs live",
    ),
    "a merge with more entries than room": (
        "address_hash",
        lambda m: setattr(longest(m), "entries", longest(m).room + 1),
        r"the merge of address_hash counts \d+ entries of",
    ),
    "a rewrite of a run that lives": (
        "address_hash",
        lambda m: setattr(rewriting(m), "lived", rewriting(m).entries),
        r"the merge of address_hash rewrites run \d+, of which no entry has died",
    ),
    "a rewrite on another level": (
        "address_hash",
        lambda m: setattr(rewriting(m), "level", 7),
        "the merge of address_hash reads runs of other levels",
    ),
    "two merges on one level": (
        "address_hash",
        lambda m: put_on_one_level([*m.runs, *m.merges]),
        "several merges of address_hash are under way at one level",
    ),
    "a count of another run": (
        "address_hash",
        lambda m: setattr(m.count, "low", m.count.low + 1),
        r"the count of address_hash is at number \d+, its run \d+ begins with",
    ),
    "a count of no run": (
        "address_hash",
        lambda m: setattr(m.count, "run", 0),
        r"the count of address_hash says \d+ in \d+ values of run 0",
    ),
    "a count that goes backwards": (
        "address_hash",
        lambda m: setattr(m.count, "values", -1),
        "the count of address_hash says .* in -1 values",
    ),
    "a count behind the end": (
        "address_hash",
        lambda m: setattr(m.count, "values", 99),
        r"the count of address_hash has read 99 values of run \d+, which has",
    ),
    "a count that says more": (
        "address_hash",
        lambda m: setattr(m.count, "lived", 99),
        r"the count of address_hash says 99 in \d+ values of run \d+, where",
    ),
    "a count that says less": (
        "address_hash",
        lambda m: setattr(m, "count", runs.Count(liveliest(m).id, liveliest(m).low, 1, 0)),
        r"the count of address_hash says 0 in 1 values of run \d+, where [1-9]",
    ),
    "a merge that counts less": (
        "address_hash",
        lambda m: setattr(longest(m), "entries", longest(m).entries - 1),
        "entries, its list says",
    ),
    "a merge that is back": (
        "address_hash",
        lambda m: setattr(longest(m), "prefix", 0),
        "which it has not reached",
    ),
    "a merge that is ahead": (
        "address_hash",
        lambda m: setattr(longest(m), "prefix", (1 << 64) - 1),
        "the merge of address_hash has written other entries",
    ),
}
for name, (kind, act, finding) in RUNS.items():
    CASES[f"runs: {name}"] = (change_manifest(kind, act), finding)

WIDE = 69  # a block above the floor with four transactions


def less(block: Block) -> dict[str, Any]:
    return {"created": block.created - 1, "spent": block.spent - 1}


BLOCKS: dict[str, tuple[int, Callable[[Block], dict[str, Any]], str]] = {
    "hash": (50, lambda _: {"hash": bytes(32)}, "index block misses block 50"),
    "first": (50, lambda block: {"first": block.first + 1}, "block 50 begins with number"),
    "numbers": (50, lambda block: {"numbers": block.numbers + 1}, "block 51 begins with number"),
    "too many": (50, lambda block: {"txs": 999}, "block 50 has 999 transactions and"),
    "txs": (WIDE, lambda block: {"txs": block.txs - 1}, "has 3 transactions, there are records of 4"),
    "failed": (70, lambda block: {"failed": not block.failed}, "block 70 says wrongly whether"),
    "spent by an old one": (9, lambda block: {"spent": block.spent + 1}, "the blocks leave"),
    "created": (WIDE, less, "created .* outputs, there are records of"),
    "spent": (WIDE, less, "spent .* outputs, its undo log has"),
    "a short hash": (50, lambda _: {"hash": bytes(31)}, "block 50 has a hash of 31 bytes"),
}
for name, (ordinal, changed, finding) in BLOCKS.items():
    CASES[f"block: {name}"] = (
        lambda hand, n=ordinal, changed=changed: hand.change_block(n, **changed(hand.block(n))),  # type: ignore[misc]
        finding,
    )


@says("block 50 has no row")
def a_block_is_gone(hand: Hand) -> None:
    hand.delete(BLOCK, U32.pack(50))


@says("the last block is 71, the tip is 70")
def a_block_above_the_tip(hand: Hand) -> None:
    block = hand.block(70)
    hand.put(
        BLOCK, U32.pack(71), seal_row(msgspec.structs.replace(block, first=block.first + block.numbers, numbers=0))
    )


@says("block 0 without a digest")
def no_genesis(hand: Hand) -> None:
    hand.delete(META, b"genesis")


@says("utxo_meta has a row b'what', which nothing has written")
def a_strange_row(hand: Hand) -> None:
    hand.put(META, b"what", b"1")


@says("the list of indexes is")
def an_index_that_nobody_knows(hand: Hand) -> None:
    hand.put(META, b"indexes", b"address_hush")


@says("the merge of address_hash reads runs of other levels")
def a_merge_of_several_levels(hand: Hand) -> None:
    manifest = hand.manifest("address_hash")
    assert manifest.merges
    for run in manifest.runs:
        run.level += run.id == longest(manifest).inputs[0]
    hand.put_manifest("address_hash", manifest)


@says("the change log ends at block")
def the_change_log_is_shorter(hand: Hand) -> None:
    hand.delete("change_log", hand.rows("change_log")[-1][0])


@says("is unspent, but has no record")
def a_bit_of_a_dead_output(hand: Hand) -> None:
    hand.flip(hand.dead(), hand.live()[0])


@says(r"\d+ outputs are unspent, the counter says")
def a_bit_less(hand: Hand) -> None:
    hand.flip(hand.live()[0])


@says("at or above number")
def a_bit_above_all(hand: Hand) -> None:
    hand.flip(hand.state.next_number)


@says("at or above number")
def a_chunk_above_all(hand: Hand) -> None:
    hand.flip(99_999)


@says("has no record, and may be rolled back")
def a_recent_transaction_is_gone(hand: Hand) -> None:
    hand.change(TX, hand.stored.tx_of(hand.state.next_number - 1).number, None)


@says("is of a transaction that has no record")
def an_old_transaction_is_gone(hand: Hand) -> None:
    hand.change(TX, hand.stored.tx_of(hand.live()[0]).number, None)


@says("is in block 0, not in 3")
def a_transaction_of_another_block(hand: Hand) -> None:
    hand.change(TX, 0, lambda tx: tx.__setitem__("block", 3))


@says("does not follow the one that ends at")
def a_transaction_with_more_outputs(hand: Hand) -> None:
    hand.change(TX, 0, lambda tx: tx.__setitem__("counts", 999 << 3))


@says("has outputs beyond its block 0")
def a_transaction_beyond_its_block(hand: Hand) -> None:
    hand.change(TX, 0, lambda tx: tx.__setitem__("counts", 999 << 3))


@says("has a collateral return, but did not fail")
def a_return_of_what_did_not_fail(hand: Hand) -> None:
    hand.change(TX, 0, lambda tx: tx.__setitem__("counts", tx["counts"] | 2))


@says("index txid misses transaction 0 ")
def a_transaction_with_another_id(hand: Hand) -> None:
    hand.change(TX, 0, lambda tx: tx["id"].__setitem__((0, 3), 5))


@says("is unspent, but has no record")
def a_live_output_is_gone(hand: Hand) -> None:
    hand.change(OUTPUT, hand.live()[0], None)


@says("may be unspent again, but has no record")
def a_spent_output_is_gone(hand: Hand) -> None:
    hand.change(OUTPUT, int(hand.spends()[0][1]["number"][0]), None)


@says("index address_hash misses output")
def another_address(hand: Hand) -> None:
    hand.change_body(hand.live()[0], lambda address, extra: (address[:-1] + b"?", extra))


@says("cannot be read")
def an_extra_of_garbage(hand: Hand) -> None:
    hand.change_body(hand.live()[0], lambda address, _: (address, b"\x93\xc1"))


@says("is a collateral return, or should be")
def a_return_of_nobody(hand: Hand) -> None:
    extra = msgspec.msgpack.encode(Extra(is_collateral_return=True))
    hand.change_body(hand.live()[0], lambda address, _: (address, extra))


@says(r"block \d+ created \d+ outputs, there are records of")
def an_output_too_much(hand: Hand) -> None:
    kept = {int(n) for _, records, _ in hand.records(OUTPUT) for n in records["number"]}
    for key, records, heap in reversed(list(hand.records(OUTPUT))):
        extra = int(records["number"][-1]) + 1
        if extra < hand.state.next_number and extra not in kept:
            more = np.array([(extra, 0, 0, 0)], OUTPUT_RECORD)
            return hand.replace(OUTPUT, key, np.concatenate((records, more)), heap)
    raise AssertionError("every number has an output")


@says(r"block \d+ has no undo log")
def an_undo_log_is_gone(hand: Hand) -> None:
    ordinal = UNDO_KEY.unpack(hand.rows(UNDO)[-1][0])[0]
    for key, _ in hand.rows(UNDO):
        if UNDO_KEY.unpack(key)[0] == ordinal:
            hand.delete(UNDO, key)


@says("part 0 of the undo log of block")
def a_part_of_an_undo_log_is_gone(hand: Hand) -> None:
    later = next(key for key, _ in hand.rows(UNDO) if UNDO_KEY.unpack(key)[1] > 0)
    hand.delete(UNDO, UNDO_KEY.pack(UNDO_KEY.unpack(later)[0], 0))


def _datums(hand: Hand) -> tuple[bytes, bytes]:
    """Return the last undo log's row of datums."""
    return [row for row in hand.rows(UNDO) if UNDO_KEY.unpack(row[0])[1] >= DATUMS][-1]


@says(r"part 2147483648 of the undo log of block \d+ was written for block")
def datums_of_another_block(hand: Hand) -> None:
    key, value = _datums(hand)
    hand.delete(UNDO, key)
    hand.put(UNDO, UNDO_KEY.pack(70, DATUMS), value)
    assert key[:4] != U32.pack(70)


@says(r"the next one is 2147483649")
def the_first_datums_are_gone(hand: Hand) -> None:
    key, value = _datums(hand)
    hand.delete(UNDO, key)
    hand.put(UNDO, UNDO_KEY.pack(UNDO_KEY.unpack(key)[0], DATUMS + 1), value)


@says("part 0 of the undo log of block .* is missing, the next one is 2147483648")
def datums_without_spends(hand: Hand) -> None:
    ordinal = UNDO_KEY.unpack(_datums(hand)[0])[0]
    for key, _ in hand.rows(UNDO):
        if UNDO_KEY.unpack(key)[0] == ordinal and UNDO_KEY.unpack(key)[1] < DATUMS:
            hand.delete(UNDO, key)


@says("has 1 datums, not 2")
def fewer_datums_than_counted(hand: Hand) -> None:
    key, _ = _datums(hand)
    hand.put(UNDO, key, seal(2, msgspec.msgpack.encode((UNDO_KEY.unpack(key)[0], [b"d"]))))


@says("of the undo log of block .* cannot be read")
def datums_of_garbage(hand: Hand) -> None:
    hand.put(UNDO, _datums(hand)[0], seal(1, b"\xc1"))


@says("has a datum whose hash it does not name")
def a_datum_of_another_hash(hand: Hand) -> None:
    def change(address: bytes, raw: bytes) -> tuple[bytes, bytes]:
        return address, msgspec.msgpack.encode(msgspec.structs.replace(to_extra(raw), datum=b"another"))

    hand.change_body(hand.live()[0], change)


@says("there is an undo log of block 71")
def an_undo_log_too_much(hand: Hand) -> None:
    hand.put(UNDO, UNDO_KEY.pack(71, 0), seal(0))


@says(r"block \d+ spent \d+ outputs, its undo log has")
def a_spend_is_gone(hand: Hand) -> None:
    key, spends = hand.long_undo()
    hand.replace(UNDO, key, spends[1:])


@says("was spent, and is unspent")
def a_live_output_is_spent(hand: Hand) -> None:
    key, spends = hand.spends()[0]
    spends["number"][0] = hand.live()[0]
    hand.replace(UNDO, key, spends)


@says("was spent twice")
def an_output_is_spent_twice(hand: Hand) -> None:
    (first, spends), (key, more) = hand.spends()[0], hand.spends()[-1]
    more["number"][0] = spends["number"][0]
    assert first != key
    hand.replace(UNDO, key, more)


@says("which is no transaction of this block")
def a_spender_of_another_block(hand: Hand) -> None:
    key, spends = hand.spends()[-1]
    spends["spender"][0] = 5000
    hand.replace(UNDO, key, spends)


@says("before it was created")
def a_spend_before_its_time(hand: Hand) -> None:
    key, spends = hand.spends()[0]
    spends["number"][0] = hand.state.next_number - 1
    hand.replace(UNDO, key, spends)


@says("the spends are not in order")
def spends_out_of_order(hand: Hand) -> None:
    key, spends = hand.long_undo()
    hand.replace(UNDO, key, spends[::-1])


@says("index spender misses transaction")
def a_spender_is_not_found(hand: Hand) -> None:
    hand.drop_entry("spender", hand.manifest("spender").runs[-1].high - 1 and _recent_spender(hand))


def _recent_spender(hand: Hand) -> int:
    return max(int(n) for _, entries in hand.entries("spender") for n in entries["number"])


for name in ("address_hash", "payment_credential", "stake_credential", "policy", "asset"):

    def drop_one(hand: Hand, kind: str = name) -> None:
        for _, entries in hand.entries(kind):
            if len(entries) > 1 and (kept := hand.stored.revivable(entries["number"])).any():
                return hand.drop_entry(kind, int(entries["number"][kept][0]))
        raise AssertionError(f"{kind} finds nothing")

    CASES[f"an output is not found by {name}"] = (drop_one, f"index {name} misses output")


@says("index txid misses transaction")
def a_transaction_is_not_found(hand: Hand) -> None:
    hand.drop_entry("txid", hand.stored.tx_of(hand.live()[-1]).number)


@says("which is not its own")
def an_entry_of_another_output(hand: Hand) -> None:
    live = hand.live()
    key, entries, at = hand.where("address_hash", live[0])
    entries["prefix"][at] += 1
    hand.put_entries(key, entries)


@says("index txid misses transaction")
def an_entry_with_another_check(hand: Hand) -> None:
    key, entries, at = hand.where("txid", hand.stored.tx_of(hand.live()[0]).number)
    entries["check"][at] ^= 1
    hand.put_entries(key, entries)


@says("where outputs of another transaction are")
def an_entry_that_leads_astray(hand: Hand) -> None:
    number = next(n for n in hand.live() if hand.stored.tx_of(n).number != n)
    key, entries, at = hand.where("txid", hand.stored.tx_of(number).number)
    entries["number"][at] = number
    hand.put_entries(key, entries)


@says("its entries are not in order")
def entries_out_of_order(hand: Hand) -> None:
    key, entries = next((key, entries) for key, entries in hand.entries("address_hash") if len(entries) > 2)
    hand.put(RUN, key, seal(len(entries), entries[[0, 2, 1, *range(3, len(entries))]].tobytes()))


@says("its entries are not in order")
def an_entry_twice(hand: Hand) -> None:
    key, entries, at = hand.where("address_hash", hand.live()[0])
    hand.put_entries(key, np.insert(entries, at, entries[at]))
    hand.recount("address_hash", runs.KEY.unpack(key)[0], 1)


@says("begins with another entry")
def a_value_under_another_key(hand: Hand) -> None:
    key, entries = next(hand.entries("address_hash"))
    hand.delete(RUN, key)
    run, prefix, number = runs.KEY.unpack(key)
    hand.put(RUN, runs.KEY.pack(run, prefix - 1, number), seal(len(entries), entries.tobytes()))


@says("entries, its list says")
def a_value_of_a_run_is_gone(hand: Hand) -> None:
    hand.delete(RUN, next(hand.entries("stake_credential"))[0])


@says("the merge of address_hash has written other entries")
def a_merge_has_lost_an_entry(hand: Hand) -> None:
    merge = longest(hand.manifest("address_hash"))

    for key, entries in hand.entries("address_hash", merge.id):
        for at in range(len(entries)):
            if hand.stored.revivable(entries["number"][at : at + 1])[0]:
                hand.put_entries(key, np.delete(entries, at))
                return hand.recount("address_hash", merge.id, -1)
    raise AssertionError("the merge has not begun")


@says(r"there are values of run 9999, which no index has")
def a_run_of_nobody(hand: Hand) -> None:
    _, entries = next(hand.entries("address_hash"))
    prefix, number = entries[0].tolist()
    hand.put(RUN, runs.KEY.pack(9999, prefix, number), seal(len(entries), entries.tobytes()))


@says("part 0 of the filter of run")
def a_part_of_a_filter_is_gone(hand: Hand) -> None:
    hand.delete(FILTER, UNDO_KEY.pack(hand.manifest("txid").runs[0].id, 0))


@says("part 0 of the filter of run")
def a_part_of_a_filter_is_short(hand: Hand) -> None:
    hand.put(FILTER, UNDO_KEY.pack(hand.manifest("txid").runs[0].id, 0), seal(0))


@says(r"the filter of run \d+ does not let entry [0-9a-f]{16} pass")
def an_empty_filter(hand: Hand) -> None:
    key, value = hand.rows(FILTER)[0]
    hand.put(FILTER, key, seal(count_of(value), bytes(8 * count_of(value))))


@says("there is a filter of run 9999")
def a_filter_of_nobody(hand: Hand) -> None:
    hand.put(FILTER, UNDO_KEY.pack(9999, 0), seal(1, bytes(8)))


for table in TABLES:

    def flip_a_byte(hand: Hand, table: str = table) -> None:
        key, value = hand.rows(table)[-1]
        hand.put(table, key, value[:-5] + bytes([value[-5] ^ 1]) + value[-4:])

    def cut_off(hand: Hand, table: str = table) -> None:
        key, value = hand.rows(table)[0]
        hand.put(table, key, value[:3])

    def a_short_key(hand: Hand, table: str = table) -> None:
        hand.put(table, b"\0\0\1", hand.rows(table)[0][1])

    CASES[f"a byte of {table}"] = (flip_a_byte, "checksum")
    CASES[f"a short value of {table}"] = (cut_off, "checksum")
    CASES[f"a short key of {table}"] = (a_short_key, f"{table} has a key of 3 bytes")


def wrong_length(table: str, finding: str, count: int) -> None:
    def damage(hand: Hand) -> None:
        key, value = hand.rows(table)[0]
        hand.put(table, key, seal(count, value[HEAD_BYTES:]))

    CASES[f"{table} says that it has {count} records"] = (damage, finding)


for counted, finding in ((TX, "for 999 records"), (OUTPUT, "for 999 records"), (UNDO, "for 999 spends")):
    wrong_length(counted, finding, 999)
wrong_length(RUN, "for 999 entries", 999)
wrong_length(FILTER, "for 999 words", 999)


@pytest.mark.parametrize("case", CASES)
def test_each_rule_is_named(case: str, whole: Path, tmp_path: Path) -> None:
    damage, finding = CASES[case]
    shutil.copytree(whole, tmp_path / "copy")
    with opened(tmp_path / "copy") as disk:
        disk.write(lambda txn: damage(Hand(txn, disk.tables)))
        findings = verify(disk, quick=True)
        assert any(re.search(finding, each) for each in findings) or not finding, (case, findings)
        assert not [each for each in findings if "can't be read to the end" in each], findings


AT_THE_START = (
    *(
        case
        for case in CASES
        if case.startswith(("state: tip", "state: a floor", "state: n", "a byte of", "a short value"))
    ),
    "a_block_above_the_tip",
    "a_strange_row",
    "an_undo_log_too_much",
)


def test_a_sound_store_may_be_opened(whole: Path) -> None:
    precheck(whole, (*LOG_TABLES, *TABLES))


@pytest.mark.parametrize("case", AT_THE_START)
def test_some_damage_is_refused_before_a_service_opens_the_store(case: str, whole: Path, tmp_path: Path) -> None:
    shutil.copytree(whole, tmp_path / "copy")
    with opened(tmp_path / "copy") as disk:
        disk.write(lambda txn: CASES[case][0](Hand(txn, disk.tables)))
    with pytest.raises(Damaged):
        precheck(tmp_path / "copy", (*LOG_TABLES, *TABLES))


def test_a_state_row_with_a_changed_byte_is_refused(whole: Path, tmp_path: Path) -> None:
    shutil.copytree(whole, tmp_path / "copy")
    with opened(tmp_path / "copy") as disk:
        raw = seal_row(State(KEYS))
        disk.write(lambda txn: txn.put(STATE, raw[:-1] + bytes([raw[-1] ^ 1]), db=disk.tables[META]))
    with pytest.raises(Damaged, match="the state does not have the checksum"):
        precheck(tmp_path / "copy", (*LOG_TABLES, *TABLES))


def test_no_byte_of_a_value_changes_unseen(whole: Path, tmp_path: Path) -> None:
    """Whichever byte of whichever value, or key: it is a finding, and never a traceback."""
    random = Random(7)
    shutil.copytree(whole, tmp_path / "copy")
    with opened(tmp_path / "copy") as disk:
        with disk.read() as txn:
            rows = [(table, *row) for table in TABLES for row in txn.cursor(disk.tables[table])]
            rows += [(META, *row) for row in txn.cursor(disk.tables[META])]
            unsealed = (b"format", b"chain", b"genesis", b"indexes")  # what is said once, and protected by nothing
        for _ in range(400):
            table, key, value = random.choice([row for row in rows if row[1] not in unsealed])
            in_value = random.random() < 0.8 or table == META
            new = (key, flipped(value, random)) if in_value else (flipped(key, random), value)
            there = [row for name, *row in rows if name == table]
            disk.write(partial(put, disk.tables[table], [row for row in there if row[0] != key] + [[*new]]))
            assert verify(disk, quick=True), (table, key, new)
            disk.write(partial(put, disk.tables[table], there))
        assert verify(disk, quick=True) == []


def flipped(raw: bytes, random: Random) -> bytes:
    at = random.randrange(len(raw))
    return raw[:at] + bytes([raw[at] ^ 1 << random.randrange(8)]) + raw[at + 1 :]


def put(table: Db, rows: Sequence[Sequence[bytes]], txn: Txn) -> None:
    """Make these the rows of a table."""
    for key in [key for key, _ in txn.cursor(table)]:
        txn.delete(key, db=table)
    for key, value in rows:
        txn.put(key, value, db=table)
