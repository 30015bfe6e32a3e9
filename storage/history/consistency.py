"""Checks that blocks, transactions, outputs, unspent bits and undo logs agree with each other.

Each of these walks reads one table, relies on what earlier walks have checked, and reports to the sinks of the indexes
which entries they must have.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from functools import partial
from itertools import islice

import msgspec
import numpy as np

from storage.history import touches
from storage.history.bits import BITS
from storage.history.check_details import logs
from storage.history.check_touches import check_touches
from storage.history.datums import datum_hash
from storage.history.layout import (
    DATUMS,
    DETAILS,
    HEAD_BYTES,
    LIVE,
    REPLACED,
    SPEND,
    Extra,
    Flags,
    Numbers,
    Records,
    Words,
    count_of,
    outputs_in,
    words,
)
from storage.history.output_keys import RULES
from storage.history.prefixes import checks
from storage.history.tally import BitSet, Sink
from storage.history.values import bodies
from storage.history.view import View
from storage.rows import TxFlag

_NAMED = 20  # of one kind of finding in one array
_BLOCKS = 10_000  # at a time
_FAILED = ("is not marked as having a failed transaction", "is marked as having a failed transaction")
_read_extra = msgspec.msgpack.Decoder(Extra).decode

Sinks = Mapping[str, Sink]


def walks(view: View, kinds: list[str], sinks: Sinks) -> dict[str, Callable[[], Iterator[str]]]:
    """Return the walks that report what indexes should have; `kinds` are those over outputs."""
    found: dict[str, Callable[[], Iterator[str]]] = {
        "hashes of blocks": partial(check_hashes, view, sinks),
        "undo logs": partial(check_undo, view, sinks),
        "transactions": partial(check_txs, view, sinks),
        "outputs": partial(check_outputs, view, [kind for kind in kinds if kind in RULES], sinks),
    }
    if touches.KIND in kinds:
        found["history"] = partial(check_touches, view, sinks[touches.KIND])
    return found


def check_blocks(view: View) -> Iterator[str]:
    """Blocks: one after the other up to the tip, and their counts add up to the state's."""
    state, following, number, unspent = view.state, None, 0, 0
    firsts, created, failed = list[int](), list[tuple[int, int, int]](), list[bool]()
    for ordinal, block in view.blocks():
        if following is None:
            view.lowest = ordinal
        elif ordinal != following:
            yield f"block {following} has no row; the next row is that of block {ordinal}"
        if block.first != number:
            yield f"block {ordinal} begins with number {block.first}, but the block before it ends at {number}"
        if max(block.txs, block.created) > block.numbers:
            counts = f"{block.txs} transactions and {block.created} outputs"
            yield f"block {ordinal} has {counts}, but only {block.numbers} numbers"
        following, number = ordinal + 1, block.first + block.numbers
        unspent += block.created - block.spent
        firsts.append(block.first)
        if ordinal > state.floor:
            created.append((block.txs, block.created, block.spent))
            failed.append(block.failed)
    last = 0 if following is None else following - 1
    if view.lowest > 1:
        yield f"block 1 has no row; the first row is that of block {view.lowest}"
    if (view.lowest == 0) != (view.txn.get(b"genesis", db=view.meta) is not None):
        missing = "the digest of the genesis outputs" if view.lowest == 0 else "block 0, of the genesis outputs,"
        yield f"{missing} is missing"
    if last != state.tip:
        yield f"the last block is {last}, but the tip is {state.tip}"
    if number != state.next_number:
        yield f"the last block ends at number {number}, but the state continues at {state.next_number}"
    if unspent != state.unspent:
        yield f"the blocks leave {unspent} outputs unspent, but the state counts {state.unspent}"
    view.block_firsts = np.array(firsts, np.int64)
    view.window = np.array(created, np.int64).reshape(-1, 3)
    view.failed = np.array(failed, np.bool_)


def check_hashes(view: View, sinks: Sinks) -> Iterator[str]:
    """Report under which prefix each block is found by its hash."""
    blocks = view.blocks()
    while some := list(islice(blocks, _BLOCKS)):
        hashes = words(b"".join([block.hash for _, block in some]))
        sinks["block"].expect(view.prefixes(hashes), np.array([ordinal for ordinal, _ in some], np.int64))
    yield from ()


def check_live(view: View) -> Iterator[str]:
    """Unspent bits: as many as the state counts, and only at numbers of blocks."""
    for key, value in view.scan(LIVE):
        chunk = int.from_bytes(key, "big")
        if not view.live.put(chunk * BITS, value[:-4]):
            yield f"chunk {chunk} of the unspent bits has bits at or above the next number, {view.state.next_number}"
    if (unspent := view.live.count()) != view.state.unspent:
        yield f"{unspent} outputs are unspent, but the state counts {view.state.unspent}"


def check_tx_order(view: View) -> Iterator[str]:
    """Transactions: one after the other inside their blocks; those of retained blocks without a gap."""
    state, end = view.state, 0  # where the transaction before ends
    window_end = view.reachable
    counts, failed = np.zeros(len(view.window), np.int64), np.zeros(len(view.window), np.bool_)
    block_ends = np.append(view.block_firsts[1:], state.next_number)
    for records in view.txs():
        number = records["number"]
        ends = number + np.maximum(outputs_in(records["counts"]), 1)
        before = np.concatenate(([end], ends[:-1]))
        inside = number < state.next_number
        for at in _first(~inside | (number < before)):
            yield f"the transaction at number {number[at]} does not follow the one that ends at {before[at]}"
        blocks = view.block_of(number)
        for at in _first(inside & (blocks != records["block"])):
            yield f"the transaction at number {number[at]} is in block {blocks[at]}, not in {records['block'][at]}"
        for at in _first(inside & (ends > block_ends[np.maximum(blocks - view.lowest, 0)])):
            yield f"the transaction at number {number[at]} has outputs beyond the end of its block, {blocks[at]}"
        flags = records["counts"] & 7
        for at in _first(flags & (TxFlag.INVALID | TxFlag.COLLATERAL_RETURN) == TxFlag.COLLATERAL_RETURN):
            yield f"the transaction at number {number[at]} has a collateral return, but is not marked as failed"
        recent = np.flatnonzero(inside & (number >= view.reachable))
        if len(recent):
            expected = np.concatenate(([window_end], ends[recent][:-1]))
            for at in _first(number[recent] != expected):
                yield f"the transaction at number {expected[at]} has no record, but its block can still be rolled back"
            window_end = int(ends[recent[-1]])
            places = blocks[recent] - state.floor - 1
            counts += np.bincount(places[view.counted(records[recent])], minlength=len(counts))[: len(counts)]
            failed[places[flags[recent] & TxFlag.INVALID != 0]] = True
        view.tx_starts.add(number[inside])
        end = int(ends[-1])
    if window_end != state.next_number:
        yield f"the transaction at number {window_end} has no record, but its block can still be rolled back"
    for at in _first(counts != view.window[:, 0]):
        declared = view.window[at, 0]
        yield f"block {state.floor + 1 + at} has {declared} transactions, but records of {counts[at]}"
    for at in _first(failed != view.failed):
        yield f"block {state.floor + 1 + at} {_FAILED[bool(view.failed[at])]}, but its records of transactions differ"


def check_undo(view: View, sinks: Sinks) -> Iterator[str]:
    """Undo logs: one for each block above the floor, of outputs that are spent, by transactions of the block."""
    state, at, parts = view.state, view.state.floor, 0
    count, last = 0, np.empty(0, SPEND)
    for ordinal, part, value, faults in logs(view):
        yield from faults
        if view.kept_from is not None and view.kept_from <= ordinal <= state.floor:
            continue  # `check_touches` compares it
        if not state.floor < ordinal <= state.tip:
            yield f"block {ordinal} has an undo log, but the floor is {state.floor} and the tip is {state.tip}"
            continue
        if ordinal != at:
            yield from _ended(view, at, count)
            yield from (f"block {missing} has no undo log" for missing in range(at + 1, min(ordinal, at + _NAMED)))
            at, parts, count, last = ordinal, 0, 0, last[:0]
        if part in (DATUMS, DETAILS) and parts:
            parts = part
        if part != parts:
            yield f"part {parts} of the undo log of block {ordinal} is missing; the next part is {part}"
        parts = part + 1
        if part >= DATUMS:
            continue
        spends = np.frombuffer(value, SPEND, count_of(value), HEAD_BYTES)
        count += len(spends)
        if len(spends):
            yield from _spends(view, ordinal, spends, last, sinks)
            last = spends[-1:]
    yield from _ended(view, at, count)
    yield from (f"block {missing} has no undo log" for missing in range(at + 1, min(state.tip, at + _NAMED) + 1))
    view.revivable = view.live.union(view.spent)


def _ended(view: View, ordinal: int, count: int) -> Iterator[str]:
    if ordinal > view.state.floor and count != (declared := int(view.window[ordinal - view.state.floor - 1, 2])):
        yield f"block {ordinal} spent {declared} outputs, but its undo log has {count}"


def _spends(view: View, ordinal: int, spends: Records, last: Records, sinks: Sinks) -> Iterator[str]:
    """Check a part of a block's undo log, after the last spend before it."""
    place = ordinal - view.lowest
    first = int(view.block_firsts[place])
    numbers, spenders = spends["number"], first + spends["spender"].astype(np.int64)
    name = f"the undo log of block {ordinal}"
    good = (numbers >= 0) & (numbers < spenders)
    for at in _first(~good):
        yield f"{name}: output {numbers[at]} was spent by transaction {spenders[at]}, before it was created"
    known = view.tx_starts.has(spenders) & (view.block_of(spenders) == ordinal)
    for at in _first(~known):
        yield f"{name}: output {numbers[at]} was spent by transaction {spenders[at]}, which is not in this block"
    chosen = numbers[good & known]
    for at in _first(view.live.has(chosen)):
        yield f"{name}: output {chosen[at]} was spent, but is unspent"
    seen, times = np.unique(chosen, return_counts=True)
    for at in _first(view.spent.has(seen) | (times > 1)):
        yield f"{name}: output {seen[at]} was spent twice"
    view.spent.add(seen)
    whole = np.concatenate((last, spends)) if len(last) else spends
    order = whole["spender"].astype(np.int64) << 32 | whole["input"]
    wrong = (order[1:] < order[:-1]) | ((order[1:] == order[:-1]) & (whole["input"][1:] != REPLACED))
    for at in _first(wrong):
        yield f"{name}: the spends are not in order after output {whole['number'][at]}"
    sinks["spender"].expect(numbers[good & known].astype(np.uint64), spenders[good & known])


def check_txs(view: View, sinks: Sinks) -> Iterator[str]:
    """Transactions: each output that is unspent or restorable belongs to one, which is found by its id."""
    low, failed = 0, [np.empty((0, 3), np.int64)]
    for records in view.txs():
        number, outputs = records["number"], outputs_in(records["counts"])
        alive = revivable_of(view.revivable, number, outputs)
        high = int(number[-1]) + int(outputs[-1])
        if view.revivable.count(low, high) != int(alive.sum()):
            yield from _without(view, low, high, number, outputs)
        low = high
        some = np.flatnonzero((alive > 0) | (number >= view.kept_number))
        kept = records[some]
        view.kept_txs.add(number[some])
        sinks["txid"].expect(view.prefixes(np.ascontiguousarray(kept["id"])), number[some], extra_of(kept))
        bad = np.flatnonzero(records["counts"] & TxFlag.INVALID)
        back = (records["counts"][bad] & TxFlag.COLLATERAL_RETURN) != 0
        failed.append(np.stack((number[bad], outputs[bad], back), axis=1))
    if view.revivable.count(low):
        yield from _without(view, low, view.state.next_number, np.empty(0, np.int64), np.empty(0, np.int64))
    view.failed_txs = np.concatenate(failed)


def _without(view: View, low: int, high: int, number: Numbers, outputs: Numbers) -> Iterator[str]:
    """Name outputs of a range that belong to none of these transactions."""
    ends = np.concatenate(([low], number + outputs))
    for some in view.revivable.numbers(low, high):
        outside = some >= ends[np.searchsorted(number, some, "right")]
        for at in _first(outside):
            yield f"the transaction of output {some[at]} has no record"


def extra_of(records: Records) -> Words:
    """Return what an entry has besides prefix and number: a part of the id, and how many outputs there are."""
    check = checks(records["id"]).astype(np.uint64) << np.uint64(32)
    joined: Words = check | outputs_in(records["counts"]).astype(np.uint64)
    return joined


def revivable_of(revivable: BitSet, first: Numbers, outputs: Numbers) -> Numbers:
    """Return how many outputs of each transaction are unspent or restorable."""
    counts = np.zeros(len(first), np.int64)
    some = np.flatnonzero(outputs > 0)
    if len(some):
        starts = np.cumsum(outputs[some]) - outputs[some]
        numbers = np.arange(int(outputs[some].sum())) + np.repeat(first[some] - starts, outputs[some])
        counts[some] = np.add.reduceat(revivable.has(numbers), starts, dtype=np.int64)
    return counts


def check_outputs(view: View, kinds: list[str], sinks: Sinks) -> Iterator[str]:
    """Outputs: whatever is unspent or restorable has a record; its body determines the keys under which it is found."""
    low, size = 0, view.state.next_number
    counts = np.zeros(len(view.window), np.int64)
    for records, heap in view.outputs():
        numbers = records["number"]
        alive = view.revivable.has(numbers)
        high = int(numbers[-1]) + 1
        if high > size or int(numbers[0]) < low or np.any(numbers[1:] <= numbers[:-1]):
            yield f"the numbers of outputs do not ascend from {low} to {size}"
            return
        if view.revivable.count(low, high) != int(alive.sum()):
            yield from _missing(view, low, high, numbers)
        low = high
        recent = view.block_of(numbers[numbers >= view.reachable]) - view.state.floor - 1
        counts += np.bincount(recent, minlength=len(counts))[: len(counts)]
        yield from _bodies(view, records, heap, alive, kinds, sinks)
    yield from _missing(view, low, size, np.empty(0, np.int64))
    for at in _first(counts != view.window[:, 1]):
        declared = view.window[at, 1]
        yield f"block {view.state.floor + 1 + at} created {declared} outputs, but has records of {counts[at]}"


def _missing(view: View, low: int, high: int, there: Numbers) -> Iterator[str]:
    for some in view.revivable.numbers(low, high):
        for number in np.setdiff1d(some, there, assume_unique=True)[:_NAMED].tolist():
            what = "is unspent" if view.live.has(np.array([number]))[0] else "may be unspent again"
            yield f"{view.name(number)} {what}, but has no record"


def _bodies(view: View, records: Records, heap: bytes, alive: Flags, kinds: list[str], sinks: Sinks) -> Iterator[str]:
    """Read the bodies of outputs that are unspent or restorable, and report their keys to the sinks."""
    some = np.flatnonzero(alive)
    numbers = records["number"][some]
    addresses, extra = bodies(records, heap, some)
    returns = np.zeros(len(some), np.bool_)
    for at, raw in list(extra.items()):
        try:
            read = _read_extra(raw)
        except msgspec.DecodeError as error:
            yield f"{view.name(int(numbers[at]))} cannot be read: {error}"
            del extra[at]
            continue
        returns[at] = read.is_collateral_return
        if read.datum is not None and datum_hash(read.datum) != read.datum_hash:
            yield f"{view.name(int(numbers[at]))} has a datum that does not match its datum hash"
    yield from _returns(view, numbers, returns)
    for kind in kinds:
        digests, places = RULES[kind].of_outputs(addresses, extra)
        sinks[kind].expect(view.prefixes(digests), numbers if places is None else numbers[places])


def _returns(view: View, numbers: Numbers, returns: Flags) -> Iterator[str]:
    """A failed transaction has its collateral return as its only output; other transactions have none."""
    failed = view.failed_txs
    expected, allowed = np.zeros(len(numbers), np.bool_), np.ones(len(numbers), np.bool_)
    if len(failed):
        tx = np.maximum(np.searchsorted(failed[:, 0], numbers, "right") - 1, 0)
        first, outputs, back = failed[tx].T
        inside = (numbers >= first) & (numbers < first + outputs)
        expected = inside & (back == 1) & (numbers == first + outputs - 1)
        allowed = ~inside | expected
    for at in _first(~allowed | (returns != expected)):
        if not allowed[at]:
            what = "has a record, but its transaction failed and did not create it"
        elif expected[at]:
            what = "is the collateral return of a failed transaction, but is not marked as one"
        else:
            what = "is marked as a collateral return, but its transaction did not fail"
        yield f"{view.name(int(numbers[at]))} {what}"


def _first(flags: Flags) -> list[int]:
    """Return the places of the first findings."""
    return list(map(int, np.flatnonzero(flags)[:_NAMED]))
