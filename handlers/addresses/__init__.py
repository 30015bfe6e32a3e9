"""Conversion of addresses between text and raw bytes, by chain family and network. Pure: no disk, no configuration.

An address *is* its raw bytes: what a Cardano output carries, or a Bitcoin locking script. Text is how people write it,
and `codec` knows how on one chain. Two rules hold for every family:

- `write` is total: bytes that are no address of the family come out as hex.
- `read` takes hex as exactly these bytes, whatever they are; every other text is checked to the last bit, and what is
  wrong with it is an `AddressError`. What `write` gave is read as the same bytes, except the two things that a query
  for an address must not accept: a stake address, and an address of another network.
"""

from __future__ import annotations

from typing import assert_never

from formats.errors import AddressError, Reason
from handlers.addresses.bitcoin import NETWORKS, Bitcoin, Scripts
from handlers.addresses.cardano import Cardano
from handlers.addresses.plain import Codec, Credentials, Family, Kind, Part

__all__ = ["AddressError", "Codec", "Credentials", "Family", "Kind", "Part", "Reason", "codec"]


def codec(family: Family, network: str) -> Codec:
    """Return how addresses are written on a chain.

    Cardano takes every name of a network: all but mainnet are test networks. Of Bitcoin's networks that we do not know,
    addresses are hex; the codec's `missing` reports it.
    """
    match family:
        case "cardano":
            return Cardano(network)
        case "bitcoin":
            return Bitcoin(network) if network in NETWORKS else Scripts(network)
        case "raw":
            return Codec(network)
        case _:
            assert_never(family)
