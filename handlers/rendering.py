"""Rendering outputs: as objects of `answers.Utxo`, or, for pages of live ones, directly as its JSON.

A page is the most frequent request, so its outputs get no object each. What they share, owner and block, is rendered
once; and rendered outputs are cached, because live outputs look the same while their blocks are in the chain.
"""

from __future__ import annotations

from functools import lru_cache
from hashlib import blake2b
from typing import Generic, Protocol, TypeVar

import msgspec
from msgspec import Struct

from formats.scripts import hash_of_reference
from handlers.answers import Amount, Utxo
from storage import indexes
from storage.history.layout import Extra
from storage.rows import BlockRow, Body

_OWNERS = 8192  # addresses whose text is kept
_SHORT = 128  # bytes; the few longer addresses are not cached
_BLOCKS = 8192
_OVERHEAD = 200  # bytes that a cached list takes besides its text
_encode = msgspec.json.Encoder().encode
K = TypeVar("K")
V = TypeVar("V")


class AddressText(Protocol):
    """How the chain's family writes addresses."""

    def write(self, raw: bytes) -> str:
        """Return an address as text."""

    def stake(self, raw: bytes) -> str | None:
        """Return the stake address in it, as text."""

    def stake_address(self, raw: bytes) -> bytes | None:
        """Return the stake address in it, as raw bytes."""


class Owner(Struct, frozen=True, gc=False):
    """The parts of an address, in the names of `Utxo`."""

    owner_addr: str
    owner_stake_addr: str | None
    owner_payment_credential: str | None
    owner_stake_credential: str | None


class _Script(Struct, frozen=True, gc=False):
    """What an output has besides its value, in the names of `Utxo`."""

    data_hash: str | None = None
    inline_datum: str | None = None
    script_ref: str | None = None
    reference_script_hash: str | None = None
    is_collateral_return: bool = False


class _CreatedAt(Struct, frozen=True, gc=False):
    """Where an output was created, in the names of `Utxo`."""

    slot: int
    block: int
    block_hash: str
    epoch: int | None
    block_time: int | None


class OutputRenderer:
    """Writes the outputs of one chain."""

    def __init__(self, text: AddressText, family: str) -> None:
        self.unit = {"cardano": "lovelace", "bitcoin": "satoshi"}.get(family, "unit")
        self._text = text
        self.names_owners = family == "cardano"  # whether an address has credentials, and a stake address of its own
        self._kept_owner = lru_cache(_OWNERS)(self._owner_json)
        base = _inside(Amount(self.unit, None, None, ""))
        self._base = '"amounts":[{' + base.removesuffix('"')  # up to the quantity's digits

    def utxo(self, txid: bytes, index: int, body: Body, block: BlockRow) -> Utxo:
        """Return an output as an object."""
        owner, script, created_at = self.owner(body.address), _script(body), _created_at(block)
        return Utxo(
            tx_hash=txid.hex(),
            output_index=index,
            owner_addr=owner.owner_addr,
            owner_stake_addr=owner.owner_stake_addr,
            owner_payment_credential=owner.owner_payment_credential,
            owner_stake_credential=owner.owner_stake_credential,
            lovelace_amount=body.value,
            amounts=self._amounts(body),
            data_hash=script.data_hash,
            inline_datum=script.inline_datum,
            script_ref=script.script_ref,
            reference_script_hash=script.reference_script_hash,
            is_collateral_return=script.is_collateral_return,
            slot=created_at.slot,
            block=created_at.block,
            block_hash=created_at.block_hash,
            epoch=created_at.epoch,
            block_time=created_at.block_time,
        )

    def json(self, txid: bytes, index: int, address: bytes, value: int, body: Body | None, created_at: str) -> str:
        """Return the JSON of `utxo`, byte for byte; `created_at` is what `created_json` gave for its block.

        An output without `body` has nothing but address and value.
        NOTE: the hot path: one template an output. The tests hold it to what `utxo` gives.
        """
        owner = self._kept_owner(address) if len(address) <= _SHORT else self._owner_json(address)
        assets, script = "", _NOTHING_ELSE
        if body is not None:
            assets = _assets(body.assets) if body.assets else ""
            script = _inside(_script(body)) if _has_script(body) else _NOTHING_ELSE
        return (
            f'{{"tx_hash":"{txid.hex()}","output_index":{index},{owner},"lovelace_amount":{value},'
            f'{self._base}{value}"}}{assets}],{script},{created_at}}}'
        )

    def created_json(self, block: BlockRow) -> str:
        """Return the part of the JSON that the outputs of a block share."""
        return _inside(_created_at(block))

    def _owner_json(self, address: bytes) -> str:
        return _inside(self.owner(address))

    def owner(self, address: bytes) -> Owner:
        """Return the parts of an address."""
        payment, stake = self.credentials(address)
        return Owner(self._text.write(address), self._text.stake(address), _hex(payment), _hex(stake))

    def credentials(self, address: bytes) -> tuple[bytes | None, bytes | None]:
        """Return the payment and the stake credential in an address."""
        if not self.names_owners:
            return None, None
        return indexes.payment_credential(address), indexes.stake_credential(address)

    def stake_address(self, address: bytes) -> bytes | None:
        """Return the raw stake address in an address."""
        return self._text.stake_address(address)

    def _amounts(self, body: Body) -> list[Amount]:
        return amounts(self.unit, body.value, [((policy, name), quantity) for policy, name, quantity in body.assets])


class Halves(Generic[K, V]):
    """A cache of bounded size; values that were not used lately are dropped first."""

    def __init__(self, size: int) -> None:
        self._half = size // 2  # of each half
        self._young: dict[K, tuple[V, int]] = {}
        self._old: dict[K, tuple[V, int]] = {}
        self._size = 0

    def __len__(self) -> int:
        return len(self._young) + len(self._old)

    def find(self, key: K) -> V | None:
        """Return a value, if it is known."""
        found = self._young.get(key)
        if found is None and (found := self._old.get(key)) is not None:
            self.keep(key, *found)
        return None if found is None else found[0]

    def keep(self, key: K, value: V, size: int) -> None:
        """Cache a value, which takes about this many bytes with its key."""
        self._young[key] = value, size
        self._size += size + _OVERHEAD
        if self._size > self._half:
            self._old, self._young, self._size = self._young, {}, 0


class Written:
    """A cache of rendered lists of outputs, by their places.

    The same outputs look the same for as long as their blocks are in the chain, however it grows. When a block is
    rolled back, what takes its place needs a memory of its own.
    """

    def __init__(self, size: int) -> None:
        self.created_parts: dict[int, str] = {}  # what the outputs of a block share, by ordinal
        self.lists = Halves[bytes, bytes](size)
        self.find = self.lists.find

    def keep_created(self, ordinal: int, created_at: str) -> None:
        """Cache the part that the outputs of a block share."""
        if len(self.created_parts) >= _BLOCKS:
            self.created_parts.clear()
        self.created_parts[ordinal] = created_at

    def keep(self, places: bytes, json: bytes) -> None:
        """Cache a list."""
        self.lists.keep(places, json, len(places) + len(json))


def amounts(unit: str, value: int, assets: list[tuple[tuple[bytes, bytes], int]]) -> list[Amount]:
    """Return what is held, the base unit first."""
    return [
        Amount(unit, None, None, str(value)),
        *(
            Amount(policy.hex() + name.hex(), policy.hex(), name.hex(), str(quantity))
            for (policy, name), quantity in assets
        ),
    ]


def _assets(assets: list[tuple[bytes, bytes, int]]) -> str:
    """Return the JSON of assets, as it follows the base unit."""
    text = ""
    for policy, name, quantity in assets:
        p, n = policy.hex(), name.hex()
        text += f',{{"unit":"{p}{n}","policy_id":"{p}","asset_name":"{n}","quantity":"{quantity}"}}'
    return text


def _has_script(body: Body) -> bool:
    return (
        body.datum_hash is not None
        or body.inline_datum is not None
        or body.script_ref is not None
        or body.script_ref_hash is not None
        or body.is_collateral_return
    )


def data_hash(body: Body | Extra) -> bytes | None:
    """Return the hash of an output's datum; of an inline one it is derived where it was not given."""
    if body.datum_hash is None and body.inline_datum is not None:
        return blake2b(body.inline_datum, digest_size=32).digest()
    return body.datum_hash


def script_hash(body: Body | Extra) -> bytes | None:
    """Return the hash of the script that an output carries; it is derived where only the script was given."""
    if body.script_ref_hash is None and body.script_ref is not None:
        return hash_of_reference(body.script_ref)
    return body.script_ref_hash


def _script(body: Body) -> _Script:
    return _Script(
        _hex(data_hash(body)),
        _hex(body.inline_datum),
        _hex(body.script_ref),
        _hex(script_hash(body)),
        body.is_collateral_return,
    )


def _created_at(block: BlockRow) -> _CreatedAt:
    return _CreatedAt(block.slot, block.height, block.hash.hex(), block.epoch, block.time)


def _inside(part: Struct) -> str:
    """Return the JSON of a part of an object, without its braces."""
    return _encode(part).decode()[1:-1]


def _hex(raw: bytes | None) -> str | None:
    return None if raw is None else raw.hex()


_NOTHING_ELSE = _inside(_Script())
