"""The transactions that affected an address, from the optional index `history`."""

from __future__ import annotations

from collections.abc import Iterator
from functools import partial
from itertools import islice
from typing import Annotated

from msgspec import Meta, Struct

from handlers.answers import Hash
from handlers.boundary import NoIndex
from handlers.snapshot import Snapshot
from handlers.walk import PLACE, Cut, Order
from storage.history import touches
from storage.history.layout import Numbers, TxFound
from storage.history.output_keys import address_key


class AddressTx(Struct, frozen=True, kw_only=True):
    """A transaction that paid to an address, or spent from it."""

    tx_hash: Hash
    block_height: int
    block_hash: Hash
    slot: int
    block_time: int | None


class Touching(Struct, frozen=True, kw_only=True):
    """A page of them, and data about the list."""

    transactions: list[AddressTx]
    numbers: list[int]
    cut: Cut
    next_cursor: str | None
    complete_from: Annotated[int, Meta(description="height of the first block of which every transaction is listed")]


def touching(shot: Snapshot, address: bytes, count: int, order: Order, page: int, cursor: str | None) -> Touching:
    """Return a page of the transactions that touched an address, by place in the chain.

    Raises:
        NoIndex: the index is not kept.
        CursorGone: the cursor's block was rolled back.
        BadCursor: it is none of ours, or of another question.
    """
    first = touches.first_block(shot.txn, shot.store.meta)
    if first is None or touches.KIND not in shot.boundary.indexes:
        raise NoIndex(touches.KIND)
    question = touches.KIND.encode() + address
    after = None if cursor is None else int(PLACE.unpack(shot.read_cut(cursor, question, order))[0])
    index, prefix = shot.stored.index(touches.KIND), shot.stored.prefix(address_key(address))
    start, end = -1 if after is None else after, shot.state.next_number
    if order == "asc":
        listed: Iterator[Numbers] = (part[part < end] for part in index.ascending(prefix, start))
    else:
        listed = index.descending(prefix, end if after is None else min(after, end))
    numbers = list(islice(_flat(listed, (page - 1) * count), count + 1))
    cut = partial(shot.cut, key=question, order=order)
    lowest = min(max(first, 1), shot.state.tip)
    return Touching(
        transactions=[_answer(shot, number) for number in numbers[:count]],
        numbers=numbers[:count],
        cut=cut,
        next_cursor=cut(PLACE.pack(numbers[count - 1])) if len(numbers) > count else None,
        complete_from=shot.block(lowest).height if lowest else 0,
    )


def find_tx(shot: Snapshot, txid: bytes) -> TxFound | None:
    """Return a transaction; where the index is kept, also one whose outputs were spent long ago."""
    return shot.stored.find_tx(txid, kept_from=touches.first_block(shot.txn, shot.store.meta))


def _flat(parts: Iterator[Numbers], skip: int) -> Iterator[int]:
    """Yield numbers one by one, without the first ones; whole parts are skipped without being read."""
    for part in parts:
        passed = min(skip, len(part))
        skip -= passed
        yield from part[passed:].tolist()


def _answer(shot: Snapshot, number: int) -> AddressTx:
    tx = shot.stored.tx_of(number)
    block = shot.block(tx.block)
    return AddressTx(
        tx_hash=tx.txid.hex(),
        block_height=block.height,
        block_hash=block.hash.hex(),
        slot=block.slot,
        block_time=block.time,
    )
