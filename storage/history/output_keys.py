"""The index keys of outputs: each kind of index is a rule from outputs to digests of 32 bytes.

Addresses are named by their SHA-256, as Bitcoin's clients do; hashes of 28 bytes are padded with zeros.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from hashlib import sha256

import msgspec
import numpy as np

from formats.scripts import hash_of_reference
from storage.history.datums import datum_hash
from storage.history.layout import Extra, Numbers, Words, words
from storage.indexes import payment_credential, stake_credential

_read_extra = msgspec.msgpack.Decoder(Extra).decode

OfAddress = Callable[[bytes], bytes | None]
OfExtra = Callable[[Extra], Iterable[bytes]]


class Rule:
    """One kind of index: from an address, or from what an output has next to it, to keys."""

    def __init__(self, *, of_address: OfAddress | None = None, of_extra: OfExtra | None = None) -> None:
        self._of_address, self._of_extra = of_address, of_extra

    def of_outputs(self, addresses: Sequence[bytes], extra: Mapping[int, bytes]) -> tuple[Words, Numbers | None]:
        """Return the digests of many outputs, and the places of these outputs; None means that it is one of each."""
        if self._of_address is address_key:  # all of them, and whole digests: the hot path
            return words(b"".join([sha256(address).digest() for address in addresses])), None
        if self._of_address is not None:
            found = [self._of_address(address) for address in addresses]
            if None not in found:
                return _digests(found), None
            there = [at for at, key in enumerate(found) if key is not None]
            return _digests([found[at] for at in there]), np.array(there, np.int64)
        pairs = [(key, at) for at in sorted(extra) for key in sorted(self.keys(b"", extra[at]))]
        return _digests([key for key, _ in pairs]), np.array([at for _, at in pairs], np.int64)

    def keys(self, address: bytes, extra: bytes) -> set[bytes]:
        """Return the keys of one output."""
        if self._of_address is not None:
            key = self._of_address(address)
            return set() if key is None else {key}
        assert self._of_extra is not None
        return set(self._of_extra(_read_extra(extra))) if extra else set()


def address_key(address: bytes) -> bytes:
    """Return the key of an address or locking script."""
    return sha256(address).digest()


def asset_key(policy: bytes, name: bytes) -> bytes:
    """Return the key of an asset."""
    return sha256(policy + name).digest()


def _digests(keys: Sequence[bytes | None]) -> Words:
    return words(b"".join([key.ljust(32, b"\0") for key in keys if key is not None]))


def _policies(extra: Extra) -> Iterable[bytes]:
    return (policy for policy, _, _ in extra.assets)


def _assets(extra: Extra) -> Iterable[bytes]:
    return (asset_key(policy, name) for policy, name, _ in extra.assets)


def _datum_hashes(extra: Extra) -> Iterable[bytes]:
    """Return the hash of the datum; of an inline one it is derived where it was not given."""
    given, inline = extra.datum_hash, extra.inline_datum
    if given is None and inline is not None:
        given = datum_hash(inline)
    return _sized(given, 32)


def _script_hashes(extra: Extra) -> Iterable[bytes]:
    """Return the hash of the script that an output carries; it is derived where only the script was given."""
    given = extra.script_ref_hash
    if given is None and extra.script_ref is not None:
        given = hash_of_reference(extra.script_ref)
    return _sized(given, 28)


def _sized(given: bytes | None, size: int) -> Iterable[bytes]:
    """Return a hash as a key; one of another size is not a hash, and cannot be queried."""
    return () if given is None or len(given) != size else (given,)


RULES: dict[str, Rule] = {
    "address_hash": Rule(of_address=address_key),
    "payment_credential": Rule(of_address=payment_credential),
    "stake_credential": Rule(of_address=stake_credential),
    "policy": Rule(of_extra=_policies),
    "asset": Rule(of_extra=_assets),
    "datum": Rule(of_extra=_datum_hashes),
    "script": Rule(of_extra=_script_hashes),
}
