"""Outputs as records with integer keys, in canonical CBOR: for clients, and as the content of a leaf.

Only this module defines the keys of fields. Addresses are raw bytes, as the chain has them. Absent fields have no key.
"""

from __future__ import annotations

from functools import lru_cache, partial

from msgspec import Struct

from formats.canonical import ARRAY, BYTES, MAP, UINT, Item, encode, head
from handlers.rendering import OutputRenderer, data_hash, script_hash
from storage.history.layout import Extra
from storage.rows import BlockRow, Body

_OWNERS = 8192  # addresses whose part is kept
_SHORT = 128  # bytes; the few longer addresses are not cached
_Part = tuple[bytes, int]  # some entries of a map, one after the other, and how many they are

(ADDRESS, VALUE, ASSETS, DATUM_HASH, INLINE_DATUM, SCRIPT_REF, SCRIPT_HASH, IS_RETURN) = range(8)
(SLOT, HEIGHT, BLOCK_HASH, EPOCH, TIME, PAYMENT, STAKE, STAKE_ADDRESS, REASSIGNED_AT) = range(8, 17)
(SPENT_BY, SPENT_SLOT, SPENT_HEIGHT, SPENT_BLOCK_HASH, SPENT_TIME, SPENT_EPOCH, BEFORE) = range(7)


class Spend(Struct, frozen=True, gc=False):
    """Which transaction spent an output, and in which block."""

    txid: bytes
    block: BlockRow


class Entry(Struct, frozen=True, gc=False):
    """An output as it is stored, with the block that created it.

    One that was given to another owner has that address, and `reassigned_at` is the height at which it was given.
    """

    txid: bytes
    index: int
    body: Body
    block: BlockRow
    spend: Spend | None = None
    reassigned_at: int | None = None


class RecordWriter:
    """Writes outputs as `[[txid, index], record]`, which is also what the leaf of a live one holds (`leaves.py`)."""

    def __init__(self, renderer: OutputRenderer) -> None:
        self.renderer = renderer
        self._kept_owner = lru_cache(_OWNERS)(self._owner)
        self._names_owners = renderer.names_owners

    def owner(self, address: bytes) -> tuple[bytes, bytes, int]:
        """Return what comes before the value, its key with it, what comes after the block, and how many entries."""
        if not self._names_owners:
            return script_of(address), b"", 2
        return self._kept_owner(address) if len(address) <= _SHORT else self._owner(address)

    def pair(self, entry: Entry) -> bytes:
        """Return `[[txid, index], record]` of an output, live or spent."""
        return outpoint(entry.txid, entry.index) + self.record(entry)

    def record(self, entry: Entry) -> Item:
        """Return an output's record, or, when it is spent, the record of the spend around it."""
        live = self.live(entry)
        if entry.spend is None:
            return live
        block = entry.spend.block
        spent, entries = _entries(
            (SPENT_BY, entry.spend.txid),
            (SPENT_SLOT, block.slot),
            (SPENT_HEIGHT, block.height),
            (SPENT_BLOCK_HASH, block.hash),
            (SPENT_TIME, block.time),
            (SPENT_EPOCH, block.epoch),
            (BEFORE, live),
        )
        return Item(head(MAP, entries) + spent)

    def live(self, entry: Entry) -> Item:
        """Return the record that an output has, or had, while it is unspent."""
        text, rest, owned = self.owner(entry.body.address)
        more, others = more_of(entry.body)
        created_at, entries = created_at_of(entry.block)
        given, last = _entries((REASSIGNED_AT, entry.reassigned_at))
        start = MAPS[owned + others + entries + last] + text + head(UINT, entry.body.value)
        return Item(start + more + created_at + rest + given)

    def _owner(self, address: bytes) -> tuple[bytes, bytes, int]:
        payment, stake = self.renderer.credentials(address)
        own, _ = _entries((ADDRESS, address))
        stake_address = self.renderer.stake_address(address)
        rest, entries = _entries((PAYMENT, payment), (STAKE, stake), (STAKE_ADDRESS, stake_address))
        return own + _VALUE, rest, 2 + entries


def script_of(address: bytes) -> bytes:
    """Return the entry of an address that names no owner, and the key of the value behind it."""
    return _ADDRESS + _start(len(address)) + address + _VALUE


def outpoint(txid: bytes, index: int) -> bytes:
    """Return how the leaf of an output begins."""
    return PAIRS + txid + head(UINT, index)


def created_at_of(block: BlockRow) -> _Part:
    """Return what the outputs of a block share."""
    return _entries(
        (SLOT, block.slot),
        (HEIGHT, block.height),
        (BLOCK_HASH, block.hash),
        (EPOCH, block.epoch),
        (TIME, block.time),
    )


def more_of(body: Body | Extra) -> _Part:
    """Return what an output has next to address and value."""
    if body.assets and body.datum_hash is body.inline_datum is body.script_ref is body.script_ref_hash is None:
        return _assets(body.assets) + (_RETURN if body.is_collateral_return else _NO_RETURN), 2
    return _entries(
        (ASSETS, body.assets or None),
        (DATUM_HASH, data_hash(body)),
        (INLINE_DATUM, body.inline_datum),
        (SCRIPT_REF, body.script_ref),
        (SCRIPT_HASH, script_hash(body)),
        (IS_RETURN, body.is_collateral_return),
    )


def _assets(assets: list[tuple[bytes, bytes, int]]) -> bytes:
    """Return the entry of an output's assets, as `encode` would write it: most outputs with more have these alone."""
    parts = [_ASSETS, head(ARRAY, len(assets))]
    for policy, name, quantity in assets:
        amount = head(UINT, quantity) if quantity >= 0 else encode(quantity)
        parts += (b"\x83", _start(len(policy)), policy, _start(len(name)), name, amount)
    return b"".join(parts)


def _entries(*entries: tuple[int, object]) -> _Part:
    there = [(key, value) for key, value in entries if value is not None]
    return b"".join(bytes((key,)) + encode(value) for key, value in there), len(there)


PAIRS = b"\x82\x82" + head(BYTES, 32)  # a pair whose first is a pair whose first has 32 bytes
SMALL = 24  # whole numbers below it are one byte
MAPS = tuple(head(MAP, entries) for entries in range(18))  # the first byte of a map, by its number of entries
_start = lru_cache(256)(partial(head, BYTES))  # of a byte string; policies and names of assets are short
_ADDRESS, _VALUE, _ASSETS = bytes((ADDRESS,)), bytes((VALUE,)), bytes((ASSETS,))
NOTHING_MORE = _entries((IS_RETURN, False))
_NO_RETURN, _RETURN = NOTHING_MORE[0], _entries((IS_RETURN, True))[0]
