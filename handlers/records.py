"""Outputs as records with integer keys, which become canonical CBOR: what a client may ask for, and what a leaf holds.

Here alone it is known which key a field has. `record` makes the whole of an answer; `LeafWriter` writes the bytes of a
live output's record at once, for each output of each block that an MMR store takes in. Tests hold the two together.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import lru_cache
from typing import NamedTuple

import msgspec

from handlers.answers import Utxo
from handlers.scribe import Scribe, data_hash
from storage.rows import BlockRow, Body

_OWNERS = 8192  # addresses whose part is kept
_SHORT = 128  # bytes; there is no room for the few addresses that are longer
_PLAIN = 0x92  # how a body begins that is address and value alone

(ADDRESS, VALUE, ASSETS, DATUM_HASH, INLINE_DATUM, SCRIPT_REF, SCRIPT_HASH, IS_RETURN) = range(8)
(SLOT, HEIGHT, BLOCK_HASH, EPOCH, TIME, PAYMENT, STAKE, STAKE_ADDRESS) = range(8, 16)
(SPENT_BY, SPENT_SLOT, SPENT_HEIGHT, SPENT_BLOCK_HASH, SPENT_TIME, SPENT_EPOCH, BEFORE) = range(7)

_read_body = msgspec.msgpack.Decoder(Body).decode


def record(utxo: Utxo) -> dict[int, object]:
    """Return an output's record, or, when it is spent, the record of the spend around it; what is absent has no key."""
    live = _live(utxo)
    if not isinstance(utxo.spent_tx_hash, str):
        return live
    spent = {
        SPENT_BY: bytes.fromhex(utxo.spent_tx_hash),
        SPENT_SLOT: utxo.spent_at_slot,
        SPENT_HEIGHT: utxo.spent_at_block,
        SPENT_BLOCK_HASH: bytes.fromhex(str(utxo.spent_at_block_hash)),
        SPENT_TIME: utxo.spent_block_time,
        SPENT_EPOCH: utxo.spent_epoch,
        BEFORE: live,
    }
    return {key: value for key, value in spent.items() if value is not None}


def _live(utxo: Utxo) -> dict[int, object]:
    assets = [
        [bytes.fromhex(amount.policy_id), bytes.fromhex(amount.asset_name or ""), int(amount.quantity)]
        for amount in utxo.amounts
        if amount.policy_id is not None
    ]
    fields: dict[int, object] = {
        ADDRESS: utxo.owner_addr,
        VALUE: utxo.lovelace_amount,
        ASSETS: assets or None,
        DATUM_HASH: _raw(utxo.data_hash),
        INLINE_DATUM: _raw(utxo.inline_datum),
        SCRIPT_REF: _raw(utxo.script_ref),
        SCRIPT_HASH: _raw(utxo.reference_script_hash),
        IS_RETURN: utxo.is_collateral_return,
        SLOT: utxo.slot,
        HEIGHT: utxo.block,
        BLOCK_HASH: bytes.fromhex(utxo.block_hash),
        EPOCH: utxo.epoch,
        TIME: utxo.block_time,
        PAYMENT: _raw(utxo.owner_payment_credential),
        STAKE: _raw(utxo.owner_stake_credential),
        STAKE_ADDRESS: utxo.owner_stake_addr,
    }
    return {key: value for key, value in fields.items() if value is not None}


def _raw(text: str | None) -> bytes | None:
    return None if text is None else bytes.fromhex(text)


# --- the bytes at once -------------------------------------------------------------------------------------------


class _Part(NamedTuple):
    """Some entries of a map, one after the other, and how many they are."""

    raw: bytes
    entries: int


class LeafWriter:
    """Writes `[[txid, index], record]` of live outputs, byte for byte what the canonical encoding of it is.

    NOTE: the hot path of an MMR store: one call an output. What outputs share, owner and block, is written once.
    """

    def __init__(self, scribe: Scribe) -> None:
        self._scribe = scribe
        self._kept_owner = lru_cache(_OWNERS)(self._owner)

    def __call__(self, block: BlockRow) -> Callable[[bytes, int, bytes], bytes]:
        """Return what writes the outputs that are born in a block, by transaction id, index and body."""
        birth, born = _entries(
            (SLOT, block.slot),
            (HEIGHT, block.height),
            (BLOCK_HASH, block.hash),
            (EPOCH, block.epoch),
            (TIME, block.time),
        )
        owner, kept_owner, plain = self._owner, self._kept_owner, _NOTHING_MORE

        def write(txid: bytes, index: int, raw: bytes) -> bytes:
            body = _read_body(raw)
            address = body.address
            text, rest, owned = kept_owner(address) if len(address) <= _SHORT else owner(address)
            more, others = plain if raw[0] == _PLAIN else _more(body)
            place = _PAIRS + txid + (_SMALL[index] if index < 24 else _head(0x00, index))
            return place + _MAPS[owned + others + born] + text + _head(0x00, body.value) + more + birth + rest

        return write

    def _owner(self, address: bytes) -> tuple[bytes, bytes, int]:
        """Return what comes before the value, its key with it, what comes after the block, and how many entries."""
        owner = self._scribe.owner(address)
        text = _entries((ADDRESS, owner.owner_addr))
        rest = _entries(
            (PAYMENT, _raw(owner.owner_payment_credential)),
            (STAKE, _raw(owner.owner_stake_credential)),
            (STAKE_ADDRESS, owner.owner_stake_addr),
        )
        return text.raw + bytes((VALUE,)), rest.raw, text.entries + rest.entries + 1


def outpoint(txid: bytes, index: int) -> bytes:
    """Return how the leaf of an output begins."""
    return _PAIRS + txid + _head(0x00, index)


def _more(body: Body) -> _Part:
    """Return what an output has beside address and value."""
    return _entries(
        (ASSETS, body.assets or None),
        (DATUM_HASH, data_hash(body)),
        (INLINE_DATUM, body.inline_datum),
        (SCRIPT_REF, body.script_ref),
        (SCRIPT_HASH, body.script_ref_hash),
        (IS_RETURN, body.is_collateral_return),
    )


def _entries(*entries: tuple[int, object]) -> _Part:
    there = [(key, value) for key, value in entries if value is not None]
    return _Part(b"".join(bytes((key,)) + _cbor(value) for key, value in there), len(there))


def _cbor(value: object) -> bytes:
    match value:
        case bool():
            return b"\xf5" if value else b"\xf4"
        case int():
            return _head(0x00, value) if value >= 0 else _head(0x20, -1 - value)
        case bytes():
            return _head(0x40, len(value)) + value
        case str():
            raw = value.encode()
            return _head(0x60, len(raw)) + raw
        case list() | tuple():
            return _head(0x80, len(value)) + b"".join(map(_cbor, value))
        case _:
            raise TypeError(f"a record has no {type(value).__name__}")


def _head(kind: int, number: int) -> bytes:
    """Return how an item of this kind begins, in the shortest form."""
    if number < 24:
        return bytes((kind | number,))
    if number < 1 << 8:
        return bytes((kind | 24, number))
    if number < 1 << 16:
        return bytes((kind | 25,)) + number.to_bytes(2, "big")
    if number < 1 << 32:
        return bytes((kind | 26,)) + number.to_bytes(4, "big")
    return bytes((kind | 27,)) + number.to_bytes(8, "big")


_PAIRS = bytes.fromhex("82825820")  # a pair whose first is a pair whose first has 32 bytes
_SMALL = tuple(bytes((number,)) for number in range(24))
_MAPS = tuple(bytes((0xA0 + entries,)) for entries in range(17))  # how a map of so many entries begins
_NOTHING_MORE = _entries((IS_RETURN, False))
