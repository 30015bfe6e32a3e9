"""The delta of one block: the outputs that it created and spent, as they were at that block.

It is there for every block above the rollback floor, and does not change while the block is in the chain.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import suppress
from itertools import islice
from typing import Annotated, Any, Generic, Protocol, TypeVar

import msgspec
from msgspec import UNSET, Meta, Struct, UnsetType

from formats.canonical import Item, encode
from handlers.answers import Hash, Utxo
from handlers.effects import Effects
from handlers.parts import DeltaPart
from handlers.query import Snapshot
from handlers.records import Entry
from storage.errors import Damaged
from storage.rows import BlockRow
from storage.windows import Windows

_STEP = 100  # outputs that are written before other tasks get a turn
_HASH_DIGITS = 64
_MOST_HEIGHT = 0xFFFF_FFFF
(HEIGHT, SLOT, HASH, CREATED, SPENDS, FLAGS, TX_FLAGS, MMR) = range(8)
(OUTPOINT, RECORD, SPENT_BY) = range(3)

T = TypeVar("T")
_encode = msgspec.json.Encoder().encode


class Changed(Struct, frozen=True, kw_only=True, gc=False):
    """An output that a block created or spent, as it was before it was spent; the spender only of one that it spent."""

    tx_hash: Hash
    output_index: int
    spent_tx_hash: Hash | UnsetType = UNSET
    utxo: Utxo


class DeltaFlags(Struct, frozen=True):
    """What is unusual about a block."""

    contains_invalid_tx: bool


class DeltaTx(Struct, frozen=True):
    """What is unusual about a transaction."""

    tx_hash: Hash
    is_invalid: bool
    had_collateral_return: bool


class DeltaLeaves(Struct, frozen=True):
    """The leaves of an MMR store that a block appended, and those whose bits it cleared."""

    inserts: list[int]
    deletes: list[int]


class BlockDelta(Struct, frozen=True, kw_only=True):
    """What one block did to the set."""

    block_number: Annotated[int, Meta(description="the height")]
    slot: int
    block_hash: Hash
    created: Annotated[list[Changed], Meta(description="in chain order")]
    spent: Annotated[list[Changed], Meta(description="in the order of spending")]
    flags: DeltaFlags
    tx_flags: Annotated[list[DeltaTx], Meta(description="only transactions that failed phase 2")]
    mmr: Annotated[DeltaLeaves | None, Meta(description='null unless utxo.store = "mmr"')]


class NoDelta(Exception):
    """There is none: `code` is whether the block is unknown, or no longer above the rollback floor."""

    def __init__(self, code: str, message: str) -> None:
        super().__init__(message)
        self.code = code


class Whole(Protocol):
    """What a delta is written from: that of a block, or of its parts in several shards."""

    created: list[Any]
    spent: list[Any]
    contains_invalid: bool

    @property
    def block(self) -> BlockRow | DeltaPart:
        """Return the place of the block."""

    def failed(self) -> Iterator[tuple[bytes, bool]]:
        """Yield the transactions that failed phase 2, and whether they had a collateral return."""

    def leaves(self) -> tuple[list[int], list[int]] | None:
        """Return the leaves that the block appended and those that it spent; None where there are none."""


class Form(Protocol[T]):
    """How a delta is written: its outputs one by one, then all of it."""

    def output(self, entry: Entry) -> T:
        """Return an output as it was before it was spent, with its spender if there is one."""

    def whole(self, delta: Delta[T]) -> bytes:
        """Return the answer."""


class Delta(Generic[T]):
    """The delta of one block."""

    def __init__(self, effects: Effects, form: Form[T]) -> None:
        self._effects, self._form = effects, form
        self.block: BlockRow = effects.block
        self.contains_invalid = effects.contains_invalid
        self.created: list[T] = []
        self.spent: list[T] = []

    @property
    def size(self) -> int:
        """Return how many outputs the block created and spent."""
        return self._effects.created_count + self._effects.spent_count

    def read(self) -> Iterator[None]:
        """Read the outputs; yields now and then, so that others get a turn.

        Raises:
            Damaged: something of it is not there.
        """
        effects, form = self._effects, self._form
        for found, entries in ((self.created, effects.created()), (self.spent, effects.spent())):
            while part := list(islice(entries, _STEP)):
                found += map(form.output, part)
                yield
        if len(self.created) != effects.created_count:
            created = f"{effects.created_count} outputs, {len(self.created)} are there"
            raise Damaged(f"block {self.block.hash.hex()} created {created}")

    def whole(self) -> bytes:
        """Return the answer, once all of it is read."""
        return self._form.whole(self)

    def part(self, write: Callable[[T], bytes]) -> DeltaPart:
        """Return the part of a shard for a gateway, once all of it is read."""
        effects = self._effects
        return DeltaPart(
            self.block.height,
            self.block.slot,
            self.block.hash,
            self.contains_invalid,
            (list(effects.created_keys()), list(map(write, self.created))),
            (list(effects.spent_keys()), list(map(write, self.spent))),
            [(key, *each) for key, each in zip(effects.failed_keys(), effects.failed(), strict=True)],
        )

    def failed(self) -> Iterator[tuple[bytes, bool]]:
        """Yield the transactions that failed phase 2, and whether they had a collateral return."""
        return self._effects.failed()

    def leaves(self) -> tuple[list[int], list[int]] | None:
        """Return the leaves that the block appended and those that it spent; None where there are none."""
        return self._effects.leaves()


class InJson:
    """The form of JSON."""

    def __init__(self, shot: Snapshot) -> None:
        self._shot = shot

    def output(self, entry: Entry) -> Changed:
        """Return an output with its fields."""
        spender = UNSET if entry.spend is None else entry.spend.txid.hex()
        utxo = self._shot.utxo(msgspec.structs.replace(entry, spend=None))
        return Changed(tx_hash=utxo.tx_hash, output_index=utxo.output_index, spent_tx_hash=spender, utxo=utxo)

    def whole(self, delta: Delta[Changed]) -> bytes:
        """Return the delta with its fields."""
        return whole_json(delta)


class InCbor:
    """The form of canonical CBOR with integer keys."""

    def __init__(self, shot: Snapshot) -> None:
        self._records = shot.query.records

    def output(self, entry: Entry) -> Item:
        """Return an output's map."""
        fields: dict[int, object] = {OUTPOINT: [entry.txid, entry.index], RECORD: self._records.live(entry)}
        if entry.spend is not None:
            fields[SPENT_BY] = entry.spend.txid
        return Item(encode(fields))

    def whole(self, delta: Delta[Item]) -> bytes:
        """Return the delta's map."""
        return whole_cbor(delta)


def whole_json(delta: Whole) -> bytes:
    """Return a delta in JSON, with outputs in that form."""
    leaves = delta.leaves()
    answer = BlockDelta(
        block_number=delta.block.height,
        slot=delta.block.slot,
        block_hash=delta.block.hash.hex(),
        created=delta.created,
        spent=delta.spent,
        flags=DeltaFlags(delta.contains_invalid),
        tx_flags=[DeltaTx(txid.hex(), True, returned) for txid, returned in delta.failed()],
        mmr=None if leaves is None else DeltaLeaves(*leaves),
    )
    return _encode(answer)


def whole_cbor(delta: Whole) -> bytes:
    """Return a delta in CBOR, with outputs in that form."""
    failed, leaves = list(delta.failed()), delta.leaves()
    fields: dict[int, object] = {
        HEIGHT: delta.block.height,
        SLOT: delta.block.slot,
        HASH: delta.block.hash,
        CREATED: delta.created,
        SPENDS: delta.spent,
        FLAGS: {0: delta.contains_invalid},
    }
    if failed:
        fields[TX_FLAGS] = [{0: txid, 1: True, 2: returned} for txid, returned in failed]
    if leaves is not None:
        fields[MMR] = dict(enumerate(leaves))
    return encode(fields)


def read_block(text: str) -> int | bytes:
    """Return the height or the hash of a block that is written so.

    Raises:
        ValueError: it is neither.
    """
    if len(text) == _HASH_DIGITS and text.isalnum():
        with suppress(ValueError):
            return bytes.fromhex(text)
    elif text.isascii() and text.isdigit() and len(text) <= 10 and int(text) <= _MOST_HEIGHT:
        return int(text)
    raise ValueError(f"{text!r}; it is a height, from 0 to {_MOST_HEIGHT}, or a hash, {_HASH_DIGITS} hex digits")


def find(shot: Snapshot, windows: Windows, block: int | bytes, form: Form[T]) -> Delta[T]:
    """Return the delta of a block, by its height or hash; of several blocks of one height that of the first.

    Raises:
        NoDelta: there is no such block, or it is no longer above the rollback floor.
    """
    floor, tip = windows.floor(shot.state), shot.tip()
    lowest = shot.point(floor)
    where = "the origin" if lowest is None else f"height {lowest.height}"
    if isinstance(block, bytes):
        ordinal, known = shot.ordinal_of(block) or 0, True
        if not ordinal:
            raise NoDelta("unknown_block", f"block {block.hex()} is not in the chain")
    elif tip is not None and block <= tip.height:
        ordinal, found = shot.reaching(block)
        known = found.height == block
    else:
        ordinal, known = shot.state.tip + 1, False
    if not known and ordinal > floor:
        raise NoDelta("unknown_block", f"the chain has no block of height {block!r}")
    effects = shot.effects(ordinal) if ordinal > floor else None
    if effects is None:
        what = f"the delta of this block is no longer kept: only blocks above the rollback floor, {where}, have one"
        raise NoDelta("delta_gone", what)
    return Delta(effects, form)
