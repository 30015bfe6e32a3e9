"""Outputs as they are answered: as objects of `answers.Utxo`, and, for pages of live ones, as its JSON at once.

A page is what is asked most, so its outputs get no object each. What they share, owner and block, is written once; and
what was written is kept, because a live output looks the same for as long as its block is in the chain.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import lru_cache
from hashlib import blake2b
from typing import Protocol

import msgspec
from msgspec import Struct

from handlers.answers import Amount, Utxo
from storage import indexes
from storage.rows import BlockRow, Body

_OWNERS = 8192  # addresses whose text is kept
_SHORT = 128  # bytes; there is no room for the few addresses that are longer
_BLOCKS = 8192
_OVERHEAD = 150  # bytes that a kept output takes beside its text
_encode = msgspec.json.Encoder().encode


class AddressText(Protocol):
    """How the chain's family writes addresses."""

    def write(self, raw: bytes) -> str:
        """Return an address as text."""

    def stake(self, raw: bytes) -> str | None:
        """Return the stake address in it, as text."""


class Owner(Struct, frozen=True, gc=False):
    """What an address says, in the names of `Utxo`."""

    owner_addr: str
    owner_stake_addr: str | None
    owner_payment_credential: str | None
    owner_stake_credential: str | None


class _Script(Struct, frozen=True, gc=False):
    """What an output has beside its value, in the names of `Utxo`."""

    data_hash: str | None = None
    inline_datum: str | None = None
    script_ref: str | None = None
    reference_script_hash: str | None = None
    is_collateral_return: bool = False


class _Birth(Struct, frozen=True, gc=False):
    """Where an output was created, in the names of `Utxo`."""

    slot: int
    block: int
    block_hash: str
    epoch: int | None
    block_time: int | None


class Scribe:
    """Writes the outputs of one chain."""

    def __init__(self, text: AddressText, family: str) -> None:
        self.unit = {"cardano": "lovelace", "bitcoin": "satoshi"}.get(family, "unit")
        self._text = text
        self._credentials = family == "cardano"
        self._kept_owner = lru_cache(_OWNERS)(self._owner_json)
        base = _inside(Amount(self.unit, None, None, ""))
        self._base = '"amounts":[{' + base.removesuffix('"')  # up to the quantity's digits

    def utxo(self, txid: bytes, index: int, body: Body, block: BlockRow) -> Utxo:
        """Return an output as an object."""
        owner, script, birth = self._owner(body.address), _script(body), _birth(block)
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
            slot=birth.slot,
            block=birth.block,
            block_hash=birth.block_hash,
            epoch=birth.epoch,
            block_time=birth.block_time,
        )

    def json(self, txid: bytes, index: int, body: Body, birth: str) -> bytes:
        """Return the JSON of `utxo`, byte for byte; `birth` is what `birth_json` gave for its block.

        NOTE: the hot path: one template an output. The tests hold it to what `utxo` gives.
        """
        address, value = body.address, body.value
        owner = self._kept_owner(address) if len(address) <= _SHORT else self._owner_json(address)
        amounts = f'{self._base}{value}"}}]'
        script = _NOTHING_ELSE
        if body.assets:
            amounts = f'"amounts":{_encode(self._amounts(body)).decode()}'
        if not _is_bare(body):
            script = _inside(_script(body))
        place = f'"tx_hash":"{txid.hex()}","output_index":{index}'
        return f'{{{place},{owner},"lovelace_amount":{value},{amounts},{script},{birth}}}'.encode()

    def birth_json(self, block: BlockRow) -> str:
        """Return the part of the JSON that the outputs of a block share."""
        return _inside(_birth(block))

    def _owner_json(self, address: bytes) -> str:
        return _inside(self._owner(address))

    def _owner(self, address: bytes) -> Owner:
        payment = stake = None
        if self._credentials:
            payment, stake = indexes.payment_credential(address), indexes.stake_credential(address)
        return Owner(self._text.write(address), self._text.stake(address), _hex(payment), _hex(stake))

    def _amounts(self, body: Body) -> list[Amount]:
        return amounts(self.unit, body.value, [((policy, name), quantity) for policy, name, quantity in body.assets])


class Written:
    """Outputs as they were written, by place: the ones not asked for lately are forgotten when there is no room.

    Places are those of one chain. When a block of it goes, what takes its place needs a memory of its own.
    """

    def __init__(self, room: int) -> None:
        self._births: dict[bytes, str] = {}
        self._room = room // 2  # of each half
        self._young: dict[bytes, bytes] = {}
        self._old: dict[bytes, bytes] = {}
        self._size = 0

    def birth(self, own: bytes, look: Callable[[bytes], str]) -> str:
        """Return the part that the outputs of a block share; `look` finds it the first time."""
        birth = self._births.get(own)
        if birth is None:
            if len(self._births) >= _BLOCKS:
                self._births.clear()
            birth = self._births[own] = look(own)
        return birth

    def find(self, places: list[bytes]) -> list[bytes | None]:
        """Return what is known of outputs."""
        found: list[bytes | None] = list(map(self._young.get, places))
        if self._old and None in found:
            for n, place in enumerate(places):
                if found[n] is None and (old := self._old.get(place)) is not None:
                    found[n] = old
                    self.keep(place, old)
        return found

    def keep(self, place: bytes, json: bytes) -> None:
        """Remember an output."""
        self._young[place] = json
        self._size += len(json) + _OVERHEAD
        if self._size > self._room:
            self._old, self._young, self._size = self._young, {}, 0


def amounts(unit: str, value: int, assets: list[tuple[tuple[bytes, bytes], int]]) -> list[Amount]:
    """Return what is held, the base unit first."""
    return [
        Amount(unit, None, None, str(value)),
        *(
            Amount(policy.hex() + name.hex(), policy.hex(), name.hex(), str(quantity))
            for (policy, name), quantity in assets
        ),
    ]


def _is_bare(body: Body) -> bool:
    return (
        body.datum_hash is None
        and body.inline_datum is None
        and body.script_ref is None
        and body.script_ref_hash is None
        and not body.is_collateral_return
    )


def _script(body: Body) -> _Script:
    data_hash = body.datum_hash
    if data_hash is None and body.inline_datum is not None:
        data_hash = blake2b(body.inline_datum, digest_size=32).digest()
    return _Script(
        _hex(data_hash),
        _hex(body.inline_datum),
        _hex(body.script_ref),
        _hex(body.script_ref_hash),
        body.is_collateral_return,
    )


def _birth(block: BlockRow) -> _Birth:
    return _Birth(block.slot, block.height, block.hash.hex(), block.epoch, block.time)


def _inside(part: Struct) -> str:
    """Return the JSON of a part of an object, without its braces."""
    return _encode(part).decode()[1:-1]


def _hex(raw: bytes | None) -> str | None:
    return None if raw is None else raw.hex()


_NOTHING_ELSE = _inside(_Script())
