"""The header of a block since Shelley: its slot and height, the previous block, and its issuer."""

from __future__ import annotations

import re

from formats.cbor import CborError, fields, sized_bytes, skip, uint
from handlers.events import Issuer


def _usual_headers() -> tuple[re.Pattern[bytes], re.Pattern[bytes]]:
    """Return a header in its shortest encoding as eras until Alonzo have it, and as those since; see `read_header`.

    Height, slot and the hash of the block before are its groups, and the hot key and the counter of the operational
    certificate; every key, proof and signature has its one length.
    """
    number = rb"(?:[\x00-\x17]|\x18.|\x19..|\x1a.{4}|\x1b.{8})"
    key, signature, proof = rb"\x58\x20.{32}", rb"\x58\x40.{64}", rb"\x82\x58\x40.{64}\x58\x50.{80}"
    begin = b"(" + number + b")(" + number + rb")\x58\x20(.{32})" + 2 * key
    body, certificate = number + key, rb"\x58\x20(.{32})(" + number + b")" + number + signature
    flat = rb"\x82\x8f" + begin + 2 * proof + body + certificate + 2 * number
    nested = rb"\x82\x8a" + begin + proof + body + rb"\x84" + certificate + rb"\x82" + 2 * number
    sum_signature = rb"\x59\x01\xc0.{448}"
    return re.compile(flat + sum_signature, re.DOTALL), re.compile(nested + sum_signature, re.DOTALL)


_USUAL_FLAT, _USUAL_NESTED = _usual_headers()


def read_header(buf: bytes, at: int) -> tuple[int, int, bytes | None, Issuer | None, int]:
    """Return height, slot, the hash of the block before (None if there is none), the issuer, and where the header ends.

    Most blocks of a chain are little more than their header, so its usual form is found in one step.
    """
    usual = (_USUAL_NESTED if buf[at + 1] == 0x8A else _USUAL_FLAT).match(buf, at)
    if usual is not None:
        height, _ = uint(buf, at + 2)
        slot, _ = uint(buf, usual.start(2))
        counter, _ = uint(buf, usual.start(5))
        keys = usual.end(3)
        issuer = Issuer(buf[keys + 2 : keys + 34], buf[keys + 36 : keys + 68], usual[4], counter)
        return height, slot, usual[3], issuer, usual.end()
    end = skip(buf, at)
    _, at = fields(buf, at, 2, what="the header")
    count, at = fields(buf, at, 10, 15, what="the header's body")
    height, at = uint(buf, at)
    slot, at = uint(buf, at)
    if buf[at] == 0xF6:
        previous, at = None, at + 1
    else:
        previous, at = sized_bytes(buf, at, 32, "the previous block's hash")
    return height, slot, previous, _read_issuer(buf, at, count), end


def _read_issuer(buf: bytes, at: int, count: int) -> Issuer | None:
    """Return a header's issuer; None where its keys are not as they should be."""
    try:
        vkey, at = sized_bytes(buf, at, 32, "the issuer's key")
        vrf_vkey, at = sized_bytes(buf, at, 32, "the issuer's VRF key")
        at = skip(buf, at)
        nested = buf[at] >> 5 == 0 if count < 0 else count == 10  # since Babbage there is one proof, then the size
        at = skip(buf, at, 2 if nested else 3)
        if nested:
            _, at = fields(buf, at, 4, what="the operational certificate")
        hot, at = sized_bytes(buf, at, 32, "the hot key")
        counter, _ = uint(buf, at)
    except (CborError, IndexError):
        return None
    return Issuer(vkey, vrf_vkey, hot, counter)
