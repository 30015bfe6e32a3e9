"""Cardano's addresses: bech32 since Shelley, base58 before. The raw bytes contain their network."""

from __future__ import annotations

from functools import lru_cache
from hashlib import blake2b

from formats import base58, bech32
from formats.errors import AddressError
from handlers.addresses import byron, shelley
from handlers.addresses.plain import Codec, Credentials, Family, Part, is_hex

_ADDRESS = ("addr_test", "addr")  # by network id
_STAKE = ("stake_test", "stake")
_NETWORK = ("a test network", "mainnet")
_HASH_BYTES = 28
_KEY_BYTES = 32


def _credential_forms() -> dict[str, tuple[Part | None, int]]:
    """Return, by prefix (CIP 5), of which part a credential is, and its bytes: a hash, a key, a key with chain code."""
    forms: dict[str, tuple[Part | None, int]] = {"script": (None, _HASH_BYTES)}
    owners: tuple[tuple[str, Part], ...] = (("addr", "payment"), ("stake", "stake"))
    for owner, part in owners:
        for stem in (owner, f"{owner}_shared"):
            forms |= {f"{stem}_vkh": (part, _HASH_BYTES), f"{stem}_vk": (part, _KEY_BYTES), f"{stem}_xvk": (part, 64)}
    return forms


_CREDENTIALS = _credential_forms()
_PREFIXES = {*_ADDRESS, *_STAKE, *_CREDENTIALS}
_CACHED_BYTES = 128  # the few longer addresses are not cached


class Cardano(Codec):
    """Cardano's addresses; every network but mainnet is a test network, and these share their prefixes."""

    family: Family = "cardano"

    def __init__(self, network: str) -> None:
        super().__init__(network)
        self._id = int(network == "mainnet")
        self.forms = f"bech32 ({_ADDRESS[self._id]}1…), base58 of Byron, and hex of the raw bytes"

    def _read(self, text: str) -> bytes:
        if not bech32.is_meant(text, _PREFIXES):
            raw = base58.decode(text)
            magic = byron.network_magic(raw)
            self._check_network(int(magic is None), "" if magic is None else f" (magic {magic})")
            return raw
        prefix, raw = _decode(text)
        if prefix not in _ADDRESS:
            raise _no_address(prefix)
        self._check_network(_ADDRESS.index(prefix))
        if not shelley.is_payment(raw) or shelley.network_id(raw) != self._id:
            raise _not_behind(prefix)
        return raw

    def write(self, raw: bytes) -> str:
        """Return the address as text, by the network in its header, and any other bytes as hex."""
        return _write(raw) if len(raw) <= _CACHED_BYTES else _write.__wrapped__(raw)

    def stake_address(self, raw: bytes) -> bytes | None:
        """Return the raw stake address that follows from an address; None when it has none of its own."""
        return shelley.stake_address(raw)

    def credentials(self, raw: bytes) -> Credentials:
        """Return the credentials in the address; none, if it is Byron's. A pointer is no credential."""
        return shelley.credentials(raw)

    def read_credential(self, text: str, part: Part = "payment") -> bytes:
        """Return the credential of that part: 56 hex digits, a form of CIP 5, or an address in text.

        Raises:
            AddressError: it is none, or one of the other part.
        """
        if is_hex(text):
            if len(text) != 2 * _HASH_BYTES:
                raise AddressError("malformed", f"{len(text)} hex digits, where a credential has {2 * _HASH_BYTES}")
            return bytes.fromhex(text)
        if bech32.is_meant(text, _PREFIXES):
            prefix, raw = _decode(text)
            if prefix in _CREDENTIALS:
                return _credential(prefix, raw, part)
            if part == "stake" and prefix in _STAKE:
                self._check_network(_STAKE.index(prefix))
                if not shelley.is_stake(raw) or shelley.network_id(raw) != self._id:
                    raise _not_behind(prefix)
                return raw[1:]
        found = shelley.credentials(self.read(text))
        credential = found.payment if part == "payment" else found.stake
        if credential is None:
            raise AddressError("another kind", f"neither a {part} credential nor an address that has one")
        return credential

    def _check_network(self, network_id: int, more: str = "") -> None:
        if network_id != self._id:
            theirs = _NETWORK[network_id] + more
            raise AddressError("another network", f"an address of {theirs}, but chain.network is {self.network}")


@lru_cache(8192)
def _write(raw: bytes) -> str:
    if shelley.is_payment(raw):
        return bech32.encode(_ADDRESS[shelley.network_id(raw)], *bech32.symbols(raw))
    if shelley.is_stake(raw):
        return bech32.encode(_STAKE[shelley.network_id(raw)], *bech32.symbols(raw))
    try:
        byron.network_magic(raw)
    except AddressError:
        return raw.hex()
    return base58.encode(raw)


def _decode(text: str) -> tuple[str, bytes]:
    prefix, number, length, constant = bech32.decode(text)
    if prefix not in _PREFIXES:
        raise AddressError("unknown prefix", f"{prefix} is none of {', '.join(sorted(_PREFIXES))}")
    if constant != bech32.BECH32:
        raise AddressError("bad checksum", "it is that of bech32m, and Cardano has bech32")
    return prefix, bech32.data(number, length)


def _credential(prefix: str, raw: bytes, part: Part) -> bytes:
    only, size = _CREDENTIALS[prefix]
    if only not in (None, part):
        raise AddressError("another kind", f"{prefix} is a {only} credential where a {part} credential is expected")
    if len(raw) != size:
        raise AddressError("malformed", f"{len(raw)} bytes behind {prefix}, which has {size}")
    return raw if size == _HASH_BYTES else blake2b(raw[:_KEY_BYTES], digest_size=_HASH_BYTES).digest()


def _no_address(prefix: str) -> AddressError:
    if prefix in _STAKE:
        return AddressError("another kind", "a stake address where a payment address is expected")
    return AddressError("another kind", f"a credential ({prefix}) where an address is expected")


def _not_behind(prefix: str) -> AddressError:
    return AddressError("malformed", f"the bytes behind {prefix} are of another kind or network, or cut off")
