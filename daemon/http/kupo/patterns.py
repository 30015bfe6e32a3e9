"""Kupo's patterns: their meaning, and the indexes that find their outputs."""

from __future__ import annotations

import re
from collections.abc import Collection
from hashlib import blake2b

from msgspec import Struct

from formats import base58, bech32
from formats.errors import AddressError
from handlers.addresses import byron, shelley
from handlers.matches import Owns
from handlers.query import Listed, NoIndex
from storage.history.output_keys import address_key, asset_key
from storage.indexes import payment_credential, stake_credential

_HASH_BYTES, _KEY_BYTES, _ID_BYTES = 28, 32, 32
_MOST_NAME, _MOST_INDEX = 32, 0xFFFF
_HASHES = frozenset({"vkh", "addr_vkh", "stake_vkh", "script"})
_KEYS = frozenset({"vk", "addr_vk", "stake_vk"})
_HEX = re.compile(r"(?:[0-9a-fA-F]{2})*")


class BadPattern(ValueError):
    """A text that is not a pattern."""


class Pattern(Struct, frozen=True):
    """Which outputs a pattern matches: those for which everything holds that is there."""

    address: bytes | None = None
    payment: bytes | None = None
    stake: bytes | None = None
    shelley: bool = False  # only addresses that have a payment credential
    policy: bytes | None = None
    name: bytes | None = None
    txid: bytes | None = None
    index: int | None = None

    def lists(self, kept: Collection[str]) -> tuple[Listed, ...]:
        """Return where its outputs are listed, by the indexes that are kept; nothing if every output is examined.

        Raises:
            NoIndex: it needs an index that is not kept.
        """
        if self.txid is not None:
            return ()
        found: list[Listed] = []
        if self.address is not None:
            found = [("address_hash", address_key(self.address))]
            if "address_hash" not in kept and (payment := payment_credential(self.address)) is not None:
                found = [("payment_credential", payment)]
        credentials = (("payment_credential", self.payment), ("stake_credential", self.stake))
        wanted = [(index, key) for index, key in credentials if key is not None]
        found += [each for each in wanted if each[0] in kept] or wanted[:1]
        if self.policy is not None:
            found.append(asset_list(self.policy, self.name, kept))
        for index, _ in found:
            if index not in kept:
                raise NoIndex(index)
        return tuple(found)

    @property
    def owns(self) -> Owns | None:
        """Return the condition on the address of an output; None if there is none."""
        if self.payment is self.stake is self.address is None and not self.shelley:
            return None
        return self._owns

    def _owns(self, address: bytes) -> bool:
        payment = payment_credential(address)
        return (
            self.address in (None, address)
            and self.payment in (None, payment)
            and self.stake in (None, stake_credential(address))
            and not (self.shelley and payment is None)
        )


def asset_list(policy: bytes, name: bytes | None, kept: Collection[str]) -> Listed:
    """Return where the outputs are listed that hold an asset, or one of its policy."""
    if name is not None and "asset" in kept:
        return "asset", asset_key(policy, name)
    return "policy", policy


def parse(text: str) -> Pattern:
    """Return the pattern that is written so.

    Raises:
        BadPattern: it is not a pattern; the message has the reason.
    """
    if text == "*":
        return Pattern()
    if text.startswith("{"):
        raise BadPattern("metadata is not kept, so outputs are not found by its labels")
    if "/" in text:
        return _credentials(text)
    if "@" in text:
        return _reference(text)
    if "." in text:
        policy, _, name = text.partition(".")
        return Pattern(
            policy=_sized(policy, _HASH_BYTES, "a policy id"), name=None if name == "*" else asset_name(name)
        )
    return _address(text)


def policy_id(text: str) -> bytes:
    """Return a policy id.

    Raises:
        BadPattern: it is not valid.
    """
    return _sized(text, _HASH_BYTES, "a policy id")


def transaction_id(text: str) -> bytes:
    """Return a transaction id.

    Raises:
        BadPattern: it is not valid.
    """
    return _sized(text, _ID_BYTES, "a transaction id")


def asset_name(text: str) -> bytes:
    """Return the name of an asset.

    Raises:
        BadPattern: it is not valid.
    """
    if not _HEX.fullmatch(text) or len(text) > 2 * _MOST_NAME:
        raise BadPattern(f"{_shown(text)} is not an asset name: at most {2 * _MOST_NAME} hex digits")
    return bytes.fromhex(text)


def output_index(text: str) -> int:
    """Return the index of an output.

    Raises:
        BadPattern: it is not valid.
    """
    if not (text.isascii() and text.isdigit() and len(text) <= 5 and int(text) <= _MOST_INDEX):
        raise BadPattern(f"{_shown(text)} is not an output index: a whole number from 0 to {_MOST_INDEX}")
    return int(text)


def _reference(text: str) -> Pattern:
    index, _, txid = text.partition("@")
    return Pattern(txid=transaction_id(txid), index=None if index == "*" else output_index(index))


def _credentials(text: str) -> Pattern:
    payment, _, stake = text.partition("/")
    return Pattern(payment=_credential(payment), stake=_credential(stake), shelley=True)


def _credential(text: str) -> bytes | None:
    if text == "*":
        return None
    if _HEX.fullmatch(text) and len(text) in (2 * _HASH_BYTES, 2 * _KEY_BYTES):
        return _hashed(bytes.fromhex(text))
    try:
        prefix, number, length, constant = bech32.decode(text)
        raw = bech32.data(number, length)
    except AddressError:
        prefix, raw, constant = "", b"", 0
    sizes = {**dict.fromkeys(_HASHES, _HASH_BYTES), **dict.fromkeys(_KEYS, _KEY_BYTES)}
    if constant != bech32.BECH32 or sizes.get(prefix) != len(raw):
        forms = ", ".join(sorted(_HASHES | _KEYS))
        raise BadPattern(f"{_shown(text)} is not a credential: 56 or 64 hex digits, or bech32 of {forms}")
    return _hashed(raw)


def _hashed(raw: bytes) -> bytes:
    return raw if len(raw) == _HASH_BYTES else blake2b(raw, digest_size=_HASH_BYTES).digest()


def _address(text: str) -> Pattern:
    try:
        raw = bytes.fromhex(text) if text and _HEX.fullmatch(text) else _decoded(text)
        if shelley.is_stake(raw):
            return Pattern(stake=raw[1:], shelley=True)
        if not shelley.is_payment(raw):
            byron.network_magic(raw)
    except AddressError as error:
        raise BadPattern(f"{_shown(text)} is not a pattern: {error}") from error
    return Pattern(address=raw)


def _decoded(text: str) -> bytes:
    if not bech32.is_meant(text, ("addr", "addr_test", "stake", "stake_test")):
        return base58.decode(text)
    prefix, number, length, constant = bech32.decode(text)
    if constant != bech32.BECH32 or prefix not in ("addr", "addr_test", "stake", "stake_test"):
        raise AddressError("unknown prefix", f"{prefix} is not the prefix of an address")
    return bech32.data(number, length)


def _sized(text: str, size: int, what: str) -> bytes:
    if not _HEX.fullmatch(text) or len(text) != 2 * size:
        raise BadPattern(f"{_shown(text)} is not {what}: {2 * size} hex digits")
    return bytes.fromhex(text)


def _shown(text: str) -> str:
    return repr(text if len(text) <= 120 else f"{text[:117]}...")
