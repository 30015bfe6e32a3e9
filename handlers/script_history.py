"""Queries of Bitcoin wallets by the SHA-256 of a locking script, and for the block of a transaction."""

from __future__ import annotations

from collections.abc import Iterator
from typing import NamedTuple

import numpy as np

from handlers.answers import HistoryStatus
from handlers.boundary import NoIndex, Sum
from handlers.snapshot import Snapshot
from handlers.walk import PLACE
from storage.history import touches
from storage.history.layout import Found, Numbers, TxFound
from storage.history.output_keys import address_key

_STEP = 500  # entries that are read before other tasks get a turn


class ScriptTx(NamedTuple):
    """A transaction that pays to a script or spends from it."""

    txid: bytes
    height: int


class ScriptOutput(NamedTuple):
    """An unspent output of a script."""

    txid: bytes
    vout: int
    height: int
    value: int


class Located(NamedTuple):
    """The block of a transaction."""

    height: int
    block_hash: bytes
    time: int | None


def history(shot: Snapshot, key: bytes) -> Iterator[list[ScriptTx]]:
    """Yield the transactions that touched a script in chain order, some at a time; `key` is the script's SHA-256.

    Raises:
        NoIndex: the index `history` is not kept.
    """
    if touches.KIND not in shot.boundary.indexes:
        raise NoIndex(touches.KIND)
    stored = shot.stored
    for part in stored.index(touches.KIND).ascending(stored.prefix(key), -1):
        for at in range(0, len(part), _STEP):
            homes = stored.homes(part[at : at + _STEP].tolist()).values()
            yield [ScriptTx(home.txid, height_of(shot, home.block)) for home in homes]


def height_of(shot: Snapshot, ordinal: int) -> int:
    """Return the height of a block, from the cache of the process if it is there.

    Raises:
        Damaged: the block is not there.
    """
    known = shot.boundary.kept.height(ordinal)
    if known is None:
        shot.boundary.kept.keep_height(ordinal, known := shot.block(ordinal).height)
    return known


def numbers_down(shot: Snapshot, key: bytes, before: int | None) -> Iterator[int]:
    """Yield the numbers of the transactions that touched a script, the latest first, from below a number on.

    Raises:
        NoIndex: the index `history` is not kept.
    """
    if touches.KIND not in shot.boundary.indexes:
        raise NoIndex(touches.KIND)
    stored = shot.stored
    for part in stored.index(touches.KIND).descending(stored.prefix(key), before):
        yield from part.tolist()


class Funded(NamedTuple):
    """What the outputs of a script were worth when they were made, spent or not, and in how many transactions."""

    transactions: int
    outputs: int
    value: int


def funded(shot: Snapshot, key: bytes) -> Iterator[Funded]:
    """Yield what a script was paid in the transactions so far, and at the end.

    Raises:
        NoIndex: the index `history` is not kept.
    """
    stored, total = shot.stored, Funded(0, 0, 0)
    if touches.KIND not in shot.boundary.indexes:
        raise NoIndex(touches.KIND)
    for part in stored.index(touches.KIND).ascending(stored.prefix(key), -1):
        for at in range(0, len(part), _STEP):
            some = part[at : at + _STEP].tolist()
            paid = [found.value for number in some for found in _outputs(shot, number) if _pays(found, key)]
            total = Funded(total.transactions + len(some), total.outputs + len(paid), total.value + sum(paid))
            yield total


def _outputs(shot: Snapshot, number: int) -> list[Found]:
    """Return the outputs of a transaction that are on disk."""
    tx = shot.stored.tx_of(number)
    return list(shot.stored.bodies(np.arange(tx.number, tx.number + tx.outputs)).values())


def _pays(found: Found, key: bytes) -> bool:
    return address_key(found.address) == key


def history_begins_at(shot: Snapshot) -> int | None:
    """Return the height of the first block whose transactions are all in the index `history`; None without it."""
    first = touches.first_block(shot.txn, shot.store.meta)
    if first is None or touches.KIND not in shot.boundary.indexes:
        return None
    lowest = min(max(first, 1), shot.state.tip)
    return shot.block(lowest).height if lowest else 0


def history_status(shot: Snapshot) -> HistoryStatus | None:
    """Return how far back the index `history` reaches, and how large it is; None without it."""
    begins = history_begins_at(shot)
    if begins is None:
        return None
    index = shot.stored.index(touches.KIND)
    entries = sum(run.entries for run in index.runs)
    return HistoryStatus(from_height=begins, entries=entries, bytes=entries * index.dtype.itemsize)


def unspent(shot: Snapshot, key: bytes) -> Iterator[list[ScriptOutput]]:
    """Yield the unspent outputs of a script in chain order, some at a time.

    Raises:
        NoIndex: the index `address_hash` is not kept.
    """
    walk = shot.walk(shot.listed("address_hash", key), "asc", None)
    while places := walk.next(_STEP):
        numbers: Numbers = np.array([PLACE.unpack(place)[0] for place in places], np.int64)
        homes = shot.stored.homes(np.unique(numbers))
        values = {found.number: found.value for found in shot.outputs(sorted(numbers.tolist()))}
        yield [
            ScriptOutput(homes[n].txid, homes[n].output, shot.block(homes[n].block).height, values[n])
            for n in numbers.tolist()
        ]


def balance(shot: Snapshot, key: bytes) -> Iterator[Sum]:
    """Yield the sum of the unspent outputs of a script so far, and at the end.

    Raises:
        NoIndex: the index `address_hash` is not kept.
    """
    yield from shot.balance(shot.listed("address_hash", key))


# --- transactions ------------------------------------------------------------------------------------------------


def find_transaction(shot: Snapshot, txid: bytes) -> TxFound | None:
    """Return the latest transaction of an id as long as it is on disk, whether or not its outputs are spent."""
    stored = shot.stored
    for entry in stored.index("txid").find(stored.prefix(txid)):
        number = int(entry["number"])
        if (found := stored.txs.get(number)) is not None and found[0]["id"].tobytes() == txid:
            return stored.tx_of(number)
    return None


def locate(shot: Snapshot, txid: bytes) -> Located | None:
    """Return where a transaction is in the chain, None if it is not in the store."""
    found = find_transaction(shot, txid)
    return None if found is None else located(shot, found)


def located(shot: Snapshot, found: TxFound) -> Located:
    """Return where a transaction is."""
    block = shot.stored.block(found.block)
    return Located(block.height, block.hash, block.time)


def output_of(shot: Snapshot, txid: bytes, index: int) -> Found | None:
    """Return an output as long as it is on disk, whether or not it is spent."""
    found = find_transaction(shot, txid)
    if found is None or not 0 <= index < found.outputs:
        return None
    return shot.stored.body(found.number + index)


class SpentBy(NamedTuple):
    """Who spends an output, with which input, in the block of which ordinal."""

    txid: bytes
    input: int
    block: int


def spender_of_output(shot: Snapshot, number: int) -> SpentBy | None:
    """Return the spender of an output of a stored transaction; None while it is unspent.

    Raises:
        NoIndex: the index `history` is not kept, so that an output without a body may have been spent long ago.
    """
    found = shot.stored.body(number)
    if found is not None:
        return spender_of(shot, found)
    if history_begins_at(shot) is None:
        raise NoIndex(touches.KIND)
    return None  # with the index every output that can be spent keeps its body


def spender_of(shot: Snapshot, found: Found) -> SpentBy | None:
    """Return the spender of an output; None while it is unspent.

    Only recent spends are indexed. The spender of an older one is among the transactions that touched the script: the
    undo logs of their blocks have what they spent.
    """
    stored = shot.stored
    if stored.live.is_set(found.number):
        return None
    examined = set[int]()
    recent = stored.spender(found.number)
    candidates = (recent.number,) if recent is not None else _up(shot, address_key(found.address), found.number)
    for number in candidates:
        block = stored.tx_of(number).block
        if block in examined:
            continue
        examined.add(block)
        log = stored.log(block)
        for at in np.flatnonzero(log["number"] == found.number).tolist():
            by = stored.tx_of(stored.block(block).first + int(log["spender"][at]))
            return SpentBy(by.txid, int(log["input"][at]), block)
    return None


def _up(shot: Snapshot, key: bytes, after: int) -> Iterator[int]:
    if touches.KIND not in shot.boundary.indexes:
        raise NoIndex(touches.KIND)
    for part in shot.stored.index(touches.KIND).ascending(shot.stored.prefix(key), after):
        yield from part.tolist()


def transaction_ids(shot: Snapshot, ordinal: int) -> list[bytes] | None:
    """Return the ids of a block's transactions in order, None if the store has not kept all of them."""
    stored, block = shot.stored, shot.stored.block(ordinal)
    parts = stored.txs.span(block.first, block.first + block.numbers)
    joined = b"".join([records["id"].tobytes() for records, _ in parts])
    ids = [joined[at : at + 32] for at in range(0, len(joined), 32)]
    return ids if len(ids) == block.txs else None


def touched_keys(shot: Snapshot, ordinal: int) -> set[bytes]:
    """Return the SHA-256 of each script that a block above the rollback floor paid to or spent from."""
    stored, block = shot.stored, shot.stored.block(ordinal)
    made = stored.outputs.within(block.first, block.first + block.numbers)
    spent = np.unique(stored.log(ordinal)["number"])
    numbers: Numbers = np.union1d(made, spent)
    addresses = {found.address for found in stored.bodies(numbers).values()}
    return {digest.tobytes() for digest in touches.digests(list(addresses))}
