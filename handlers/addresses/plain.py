"""Functions for all families, and the family whose addresses are plain bytes."""

# ruff: noqa: ARG002 -- what the base ignores, the families use

from __future__ import annotations

import re
from typing import Literal, NamedTuple

from formats.errors import AddressError

Family = Literal["cardano", "bitcoin", "raw"]
Part = Literal["payment", "stake"]
Kind = Literal["key", "script"]

LONGEST_TEXT = 32_768  # characters; hex may be longer
_HEX = re.compile(r"(?:[0-9a-fA-F]{2})+")


class Credentials(NamedTuple):
    """The payment and the stake credential, as far as an address has them; hashes of 28 bytes."""

    payment: bytes | None = None
    payment_kind: Kind | None = None
    stake: bytes | None = None
    stake_kind: Kind | None = None


NO_CREDENTIALS = Credentials()


def is_hex(text: str) -> bool:
    """Return whether the text is bytes in hex, of either case."""
    return _HEX.fullmatch(text) is not None


class Codec:
    """Addresses as plain bytes, in hex; the base of the families that write them otherwise."""

    family: Family = "raw"
    forms = "hex of the raw bytes"  # of addresses that `read` accepts, for who has written another
    missing: str | None = None  # what this codec can't do and its family can, for the log at startup

    def __init__(self, network: str) -> None:
        self.network = network

    def read(self, text: str) -> bytes:
        """Return the address that is written so; hex is taken as it is.

        Raises:
            AddressError: it is none, or not one that outputs of this network are sent to.
        """
        if is_hex(text):
            return bytes.fromhex(text)
        if not text:
            raise AddressError("malformed", "no text where an address is expected")
        if len(text) > LONGEST_TEXT:
            raise AddressError("malformed", f"{len(text)} characters are too many for an address")
        return self._read(text)

    def _read(self, text: str) -> bytes:
        """Return the address in one of the family's own notations."""
        why = "" if self.missing is None else f" ({self.missing})"
        raise AddressError("malformed", f"an address of the family {self.family} is an even number of hex digits{why}")

    def write(self, raw: bytes) -> str:
        """Return the address as text, and any other bytes as hex."""
        return raw.hex()

    def stake(self, raw: bytes) -> str | None:
        """Return, as text, the stake address that follows from an address; None when it has none of its own."""
        address = self.stake_address(raw)
        return None if address is None else self.write(address)

    def stake_address(self, raw: bytes) -> bytes | None:
        """Return the raw bytes of that stake address."""
        return None

    def credentials(self, raw: bytes) -> Credentials:
        """Return the credentials in the address: the keys of the indexes by credential."""
        return NO_CREDENTIALS

    def read_credential(self, text: str, part: Part = "payment") -> bytes:
        """Return the credential that is written so, 28 bytes; of an address, its own credential of that part.

        Raises:
            AddressError: it is none, or one of another part, or the family has no credentials.
        """
        raise AddressError("another kind", f"addresses of the family {self.family} have no credentials")
