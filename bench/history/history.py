"""The tables of the prototype and the one thread that writes them: blocks in, numbers out, and the way back.

Every transaction and every output has a running number. A batch of blocks is resolved and written at once, with arrays:
what each input spends, what was spent twice, what lives. A spend is a bit that is cleared and a number in the undo log.
"""

from __future__ import annotations

import secrets
from hashlib import sha256
from struct import Struct
from typing import Any

import lmdb
import msgspec
import numpy as np
import numpy.typing as npt

from bench.history.batch import Batch, Done, Spends, Waiting
from bench.history.bits import Bits, Flags, Numbers
from bench.history.columns import Words, words
from bench.history.pieces import OUTPUT, TX, Pieces, Records
from bench.history.runs import Index, Manifest, Prefixes, ordered
from handlers.events import Point
from storage import change_log

TABLES = ("h_meta", "h_block", "h_tx", "h_output", "h_live", "h_known", "h_undo", "h_run", *change_log.TABLES)
KINDS = ("txid", "block", "address", "spender")
_U32, _UNDO = Struct(">I"), Struct(">II")
_STATE = b"state"
_UNDO_ENTRY = np.dtype([("number", "<i8"), ("spender", "<u4")])
_UNDO_VALUE = 1350 * _UNDO_ENTRY.itemsize
MERGED = 20_000  # entries of an index that are merged for each block
_SHIFT = 32  # a place is the block's ordinal, then the transaction in it


class Block(msgspec.Struct, array_like=True, frozen=True):
    """What is kept of every block."""

    point: Point
    time: int | None
    first_tx: int
    first_output: int
    txs: int
    outputs: int


class State(msgspec.Struct):
    """Where the store is, and what is in force."""

    keys: list[int]
    tip: int = 0
    floor: int = 0
    next_tx: int = 0
    next_output: int = 0
    unspent: int = 0
    next_run: int = 0
    indexes: dict[str, Manifest] = {}
    garbage: dict[str, list[int]] = {}


class History:
    """The history on one LMDB environment."""

    def __init__(self, txn: lmdb.Transaction[bytes], tables: dict[str, Any], window: int) -> None:
        self._meta, self._block, self._undo = tables["h_meta"], tables["h_block"], tables["h_undo"]
        self._window = window
        self._run_table = tables["h_run"]
        self.tx, self.output = Pieces(tables["h_tx"], TX, False), Pieces(tables["h_output"], OUTPUT, True)
        self.live, self.known = Bits(tables["h_live"]), Bits(tables["h_known"])
        self.load(txn)

    def load(self, txn: lmdb.Transaction[bytes]) -> None:
        """Take over what is on disk."""
        raw = txn.get(_STATE, db=self._meta)
        self.state = msgspec.msgpack.decode(raw, type=State) if raw else State(_new_keys())
        self._keys = np.array(self.state.keys, np.uint64)
        self.index = {kind: Index(self._run_table, self._manifest(kind), self._next_run) for kind in KINDS}
        for kind, index in self.index.items():
            index.garbage = self.state.garbage.setdefault(kind, [])
            index.load(txn)
        for table in (self.tx, self.output, self.live, self.known):
            table.load(txn)

    def _manifest(self, kind: str) -> Manifest:
        return self.state.indexes.setdefault(kind, Manifest())

    def _next_run(self) -> int:
        self.state.next_run += 1
        return self.state.next_run

    # --- prefixes ------------------------------------------------------------------------------------------------

    def prefixes(self, digests: npt.NDArray[np.uint64]) -> Prefixes:
        """Return the prefixes of 32-byte digests: nobody without the store's keys can make two of them collide."""
        prefixes: Prefixes = (digests * self._keys).sum(axis=1, dtype=np.uint64)
        return prefixes

    def of_addresses(self, addresses: list[bytes]) -> Prefixes:
        """Return the prefixes of addresses, by way of their SHA-256."""
        return self.prefixes(words(b"".join([sha256(address).digest() for address in addresses])))

    # --- applying ------------------------------------------------------------------------------------------------

    def apply(self, txn: lmdb.Transaction[bytes], batch: list[Waiting], deep: bool) -> list[Done]:
        """Write a batch of blocks; far below the tip, what was born and died in it leaves no trace."""
        made = Batch(batch, self.state.next_tx, self.state.next_output)
        spend = self._resolve(txn, made)
        live = made.spendable.copy()
        own = spend.numbers >= made.first_output
        live[spend.numbers[own] - made.first_output] = False
        self.live.clear(spend.numbers[~own])
        self.live.set(made.first_output + np.flatnonzero(live))
        self._write_txs(txn, made, live if deep else None)
        kept = live if deep else made.spendable
        self._write_outputs(txn, made, kept)
        numbers = made.first_output + np.flatnonzero(kept)
        addresses = made.addresses if kept.all() else [made.addresses[at] for at in np.flatnonzero(kept).tolist()]
        self._add(txn, "address", self.of_addresses(addresses), numbers, made.first_output, made.next_output)
        if not deep:
            self._write_undo(txn, made, spend)
        self._write_blocks(txn, made)
        state = self.state
        state.next_tx, state.next_output = made.next_tx, made.next_output
        state.unspent += int(made.spendable.sum()) - len(spend.numbers)
        state.tip += len(batch)
        if deep:
            state.floor = state.tip
        return made.told(spend)

    def _resolve(self, txn: lmdb.Transaction[bytes], made: Batch) -> Spends:
        """Find what each input spends: an output of the batch, or one that lives; the first of several counts."""
        prefixes = self.prefixes(made.previous)
        local = made.places(self.prefixes(made.txids), prefixes)
        numbers = np.full(len(local), -1, np.int64)
        inside = np.flatnonzero((local >= 0) & (local < made.spender))
        where = local[inside]
        good = made.index[inside] < made.outputs_of[where]
        inside, found = inside[good], (made.first[where] + made.index[inside])[good]
        good = made.spendable[found - made.first_output]
        numbers[inside[good]] = found[good]
        outside = np.flatnonzero(local < 0)
        if len(outside):
            first, count = self.find_txs(txn, made.previous[outside], prefixes[outside])
            good = (first >= 0) & (made.index[outside] < count)
            found = first + made.index[outside]
            good[good] = self.live.has(found[good])
            numbers[outside[good]] = found[good]
        valid = np.flatnonzero(numbers >= 0)
        chosen, at = np.unique(numbers[valid], return_index=True)
        inputs = valid[at]
        missing = np.ones(len(numbers), np.bool_)
        missing[inputs] = False
        if len(valid) > len(inputs):  # what a transaction lists twice is spent once
            winner = inputs[np.searchsorted(chosen, numbers[valid])]
            missing[valid[made.spender[winner] == made.spender[valid]]] = False
        return Spends(chosen, inputs, np.flatnonzero(missing))

    def find_txs(self, txn: lmdb.Transaction[bytes], txids: Words, prefixes: Prefixes) -> tuple[Numbers, Numbers]:
        """Return the first output and the count of outputs of transactions; -1 where there is no such one."""
        first, count = np.full(len(txids), -1, np.int64), np.zeros(len(txids), np.int64)
        order = np.argsort(prefixes)
        for enough in (True, False):  # two ids with one prefix: the second time all of them are looked at
            places, numbers = self.index["txid"].find(txn, prefixes[order], enough=enough)
            by_number = np.argsort(numbers)
            places, numbers = order[places][by_number], numbers[by_number]
            there, records = self.tx.records(txn, numbers)
            same = there & (records["id"] == txids[places]).all(axis=1)
            first[places[same]], count[places[same]] = records["first"][same], records["outputs"][same]
            order = order[np.isin(order, places[~same]) & (first[order] < 0)]
            if len(order) == 0:
                break
        return first, count

    def _write_txs(self, txn: lmdb.Transaction[bytes], made: Batch, live: Flags | None) -> None:
        records = np.empty(len(made.txids), TX)
        records["number"] = made.first_tx + np.arange(len(records))
        records["first"], records["outputs"] = made.first, made.outputs_of
        records["block"] = self.state.tip + 1 + np.repeat(np.arange(len(made.batch)), made.txs_of)
        records["id"] = made.txids
        if live is not None:
            sums = np.concatenate(([0], np.cumsum(live)))
            at = made.first - made.first_output
            records = records[sums[at + made.outputs_of] > sums[at]]
        self.tx.append(txn, records)
        self.known.set(records["number"].copy())
        self._add(txn, "txid", self.prefixes(records["id"]), records["number"], made.first_tx, made.next_tx)

    def _write_outputs(self, txn: lmdb.Transaction[bytes], made: Batch, kept: Flags) -> None:
        bodies = made.addresses
        if made.extra:
            bodies = [address + made.extra.get(at, b"") for at, address in enumerate(bodies)]
        records = np.empty(len(bodies), OUTPUT)
        records["number"] = made.first_output + np.arange(len(bodies))
        records["value"] = made.values
        records["length"] = np.fromiter(map(len, bodies), np.uint32, len(bodies))
        if not kept.all():
            bodies, records = [bodies[at] for at in np.flatnonzero(kept).tolist()], records[kept]
        self.output.append(txn, records, b"".join(bodies))

    def _add(
        self, txn: lmdb.Transaction[bytes], kind: str, prefixes: Prefixes, numbers: Numbers, low: int, high: int
    ) -> None:
        self.index[kind].add(txn, *ordered(prefixes, numbers), low, high)

    def _write_undo(self, txn: lmdb.Transaction[bytes], made: Batch, spend: Spends) -> None:
        """Write what each block spent in order, and a run from output to spender."""
        low, high = (self.state.tip + 1) << _SHIFT, (self.state.tip + 1 + len(made.batch)) << _SHIFT
        order = np.argsort(spend.inputs)
        entries = np.empty(len(order), _UNDO_ENTRY)
        entries["number"] = spend.numbers[order]
        spender = made.spender[spend.inputs]
        entries["spender"] = made.in_block(spender[order])
        ends = np.searchsorted(spend.inputs[order], made.input_ends)
        start, rows = 0, []
        for n, end in enumerate(ends.tolist()):
            raw = entries[start:end].tobytes()
            rows += [
                (_UNDO.pack(self.state.tip + 1 + n, part), raw[at : at + _UNDO_VALUE])
                for part, at in enumerate(range(0, max(len(raw), 1), _UNDO_VALUE))
            ]
            start = end
        txn.cursor(self._undo).putmulti(rows, append=True)
        places = ((self.state.tip + 1 + made.block_of(spender)) << _SHIFT) | made.in_block(spender)
        self.index["spender"].add(txn, spend.numbers.astype(np.uint64), places, low, high)

    def _write_blocks(self, txn: lmdb.Transaction[bytes], made: Batch) -> None:
        rows, ordinal = [], self.state.tip
        for waiting, first_tx, txs, first, outputs in zip(
            made.batch, made.tx_starts, made.txs_of.tolist(), made.output_starts, made.outputs_in, strict=True
        ):
            ordinal += 1
            block = Block(waiting.point, waiting.time, first_tx, first, txs, outputs)
            rows.append((_U32.pack(ordinal), msgspec.msgpack.encode(block)))
        txn.cursor(self._block).putmulti(rows, append=True)
        hashes = self.prefixes(words(b"".join([waiting.point.hash for waiting in made.batch])))
        numbers = np.arange(self.state.tip + 1, ordinal + 1)
        self._add(txn, "block", hashes, numbers, self.state.tip + 1, ordinal + 1)

    # --- keeping house -------------------------------------------------------------------------------------------

    def tidy(self, txn: lmdb.Transaction[bytes], blocks: int) -> None:
        """Raise the floor, and take bounded steps of merging, thinning and deleting, in proportion to the blocks."""
        state = self.state
        floor = max(state.tip - self._window, state.floor)
        self._drop_undo(txn, floor, 2 * blocks + 2)
        for kind, index in self.index.items():
            index.merge(txn, MERGED * blocks if kind != "block" else 8 * blocks + 8, self._wanted(txn, kind))
            index.collect(txn, 40 * blocks)
        if state.floor:
            bottom = self.block(txn, state.floor)
            below = (bottom.first_tx + bottom.txs, bottom.first_output + bottom.outputs)
            self.output.thin(txn, below[1], 40 * blocks, lambda records: self._revivable(txn, records["number"]))
            gone = self.tx.thin(txn, below[0], 20 * blocks, lambda records: self._alive(txn, records))
            self.known.clear(gone)

    def _drop_undo(self, txn: lmdb.Transaction[bytes], floor: int, most: int) -> None:
        """Delete the undo logs below the floor, a bounded number of blocks at a time, and raise it with them."""
        cursor = txn.cursor(self._undo)
        target = min(floor, self.state.floor + most)
        while cursor.first() and _UNDO.unpack(cursor.key())[0] <= target:
            cursor.delete()
        self.state.floor = target
        self.index["spender"].drop_below((target + 1) << _SHIFT)

    def _wanted(self, txn: lmdb.Transaction[bytes], kind: str) -> Any:
        match kind:
            case "txid":
                return self.known.has
            case "address":
                return lambda numbers: self._revivable(txn, numbers)
            case "spender":
                return lambda places: places >= (self.state.floor + 1) << _SHIFT
            case _:
                return lambda numbers: np.ones(len(numbers), np.bool_)

    def _revivable(self, txn: lmdb.Transaction[bytes], numbers: Numbers) -> Flags:
        """Return which outputs live, or were spent in a block that may be rolled back."""
        flags = self.live.has(numbers)
        dead = np.unique(numbers[~flags])
        if len(dead):
            places, by = self.index["spender"].find(txn, dead.astype(np.uint64))
            recent = dead[places[by >= (self.state.floor + 1) << _SHIFT]]
            flags |= np.isin(numbers, recent)
        return flags

    def _alive(self, txn: lmdb.Transaction[bytes], records: Records) -> Flags:
        """Return which transactions have outputs that live or may live again."""
        low = int(records["first"][0])
        high = int(records["first"][-1]) + int(records["outputs"][-1])
        numbers = np.arange(low, high)
        sums = np.concatenate(([0], np.cumsum(self._revivable(txn, numbers))))
        at = records["first"] - low
        alive: Flags = sums[at + records["outputs"]] > sums[at]
        return alive

    def save(self, txn: lmdb.Transaction[bytes]) -> None:
        """Write what has changed beside the values."""
        self.live.flush(txn)
        self.known.flush(txn)
        txn.put(_STATE, msgspec.msgpack.encode(self.state), db=self._meta)

    # --- the way back --------------------------------------------------------------------------------------------

    def rollback(self, txn: lmdb.Transaction[bytes], target: int) -> None:
        """Take back every block after one."""
        state, bottom = self.state, self.block(txn, target + 1)
        first_tx, first = bottom.first_tx, bottom.first_output
        revived = [np.empty(0, np.int64)]
        for ordinal in range(target + 1, state.tip + 1):
            revived.append(self.undo(txn, ordinal)["number"])
            txn.delete(_U32.pack(ordinal), db=self._block)
        cursor = txn.cursor(self._undo)
        while cursor.set_range(_UNDO.pack(target + 1, 0)):
            cursor.delete()
        numbers = np.concatenate(revived)
        older = numbers[numbers < first]
        born = int(self.live.within(first, state.next_output).sum())
        self.live.cut(first, state.next_output)
        self.live.set(older)
        self.known.cut(first_tx, state.next_tx)
        self.tx.cut(txn, first_tx)
        self.output.cut(txn, first)
        bounds = {"txid": first_tx, "address": first, "block": target + 1, "spender": (target + 1) << _SHIFT}
        for kind, bound in bounds.items():
            self.index[kind].cut(bound)
        state.unspent += len(older) - born
        state.tip, state.next_tx, state.next_output = target, first_tx, first

    # --- reading -------------------------------------------------------------------------------------------------

    def block(self, txn: lmdb.Transaction[bytes], ordinal: int) -> Block:
        """Return what is kept of a block."""
        return msgspec.msgpack.decode(txn.get(_U32.pack(ordinal), db=self._block) or b"", type=Block)

    def ordinal_of(self, txn: lmdb.Transaction[bytes], block_hash: bytes) -> int | None:
        """Return the ordinal of a block."""
        _, found = self.index["block"].find(txn, self.prefixes(words(block_hash)))
        return next((n for n in found.tolist() if self.block(txn, n).point.hash == block_hash), None)

    def undo(self, txn: lmdb.Transaction[bytes], ordinal: int) -> Records:
        """Return what a block spent, in order."""
        parts, cursor = [], txn.cursor(self._undo)
        if cursor.set_range(_UNDO.pack(ordinal, 0)):
            for key, value in cursor:
                if _UNDO.unpack(key)[0] != ordinal:
                    break
                parts.append(value)
        return np.frombuffer(b"".join(parts), _UNDO_ENTRY)

    def at_address(self, txn: lmdb.Transaction[bytes], address: bytes) -> list[int]:
        """Return the numbers of the live outputs of an address, in chain order."""
        _, numbers = self.index["address"].find(txn, self.of_addresses([address]))
        return [n for n in np.sort(numbers[self.live.has(numbers)]).tolist() if self._body(txn, n)[1] == address]

    def spender_of(self, txn: lmdb.Transaction[bytes], number: int) -> tuple[int, int] | None:
        """Return block and transaction that spent an output, inside the window."""
        _, places = self.index["spender"].find(txn, np.array([number], np.uint64))
        return (int(places[0]) >> _SHIFT, int(places[0]) & ((1 << _SHIFT) - 1)) if len(places) else None

    def _body(self, txn: lmdb.Transaction[bytes], number: int) -> tuple[int, bytes]:
        found = self.output.heap_of(txn, number)
        assert found is not None, number
        return int(found[0]["value"]), found[1]

    def all(self, txn: lmdb.Transaction[bytes]) -> dict[int, tuple[int, bytes]]:
        """Return every live output: number → value and body."""
        numbers = np.flatnonzero(self.live.within(0, self.state.next_output)).tolist()
        return {number: self._body(txn, number) for number in numbers}


def _new_keys() -> list[int]:
    return [secrets.randbits(64) | 1 for _ in range(4)]
