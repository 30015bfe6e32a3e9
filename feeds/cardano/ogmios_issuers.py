"""The issuer of a block, as an Ogmios server reports it."""

from __future__ import annotations

import msgspec
from msgspec import Struct

from feeds.cardano.ogmios_json import MessageError, Natural, unhex
from handlers.events import Issuer


class _Kes(Struct, frozen=True, gc=False, rename="camel"):
    verification_key: str


class _Certificate(Struct, frozen=True, gc=False):
    count: Natural
    kes: _Kes


class _Issuer(Struct, frozen=True, gc=False, rename="camel"):
    """Who made a block."""

    verification_key: str
    vrf_verification_key: str
    operational_certificate: _Certificate | None = None


_read = msgspec.json.Decoder(_Issuer).decode


def read_issuer(raw: msgspec.Raw) -> Issuer | None:
    """Return the issuer of a block; None if the server reports it in another form, since nothing depends on it."""
    try:
        block = _read(raw)
        certificate = block.operational_certificate
        return Issuer(
            unhex(block.verification_key, ".issuer", 32),
            unhex(block.vrf_verification_key, ".issuer", 32),
            None if certificate is None else unhex(certificate.kes.verification_key, ".issuer", 32),
            None if certificate is None else certificate.count,
        )
    except (msgspec.DecodeError, MessageError):
        return None
