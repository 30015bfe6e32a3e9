"""Cardano's scripts in outputs: CBOR `[language, script]`, and the hash that identifies a script.

Language 0 is a native script, which is included as a CBOR item; the others are Plutus V1 and on, as byte strings.
"""

from __future__ import annotations

from hashlib import blake2b

from formats.cbor import CborError, bytestring, close, embedded, fields, skip, uint

NATIVE = 0
_EMBEDDED = 0xD8  # how tag 24 begins


def split_reference(script: bytes, offset: int = 0) -> tuple[int, bytes]:
    """Return the language of a script reference and its script: of a Plutus script what its byte string holds.

    Raises:
        CborError: the bytes are not a script reference; it counts them from `offset`.
    """
    try:
        count, at = fields(script, 0, 2, what="a script reference")
        language, at = uint(script, at)
        if language == NATIVE:
            end = skip(script, at)
            code = script[at:end]
        elif language < 256:
            code, end = bytestring(script, at)
        else:
            raise CborError(f"a script of language {language}", at)
        if close(script, end, count, "a script reference") != len(script):
            raise CborError("a script reference does not end where its byte string does", end)
    except IndexError:
        raise CborError("a script reference is cut short", offset) from None
    except CborError as error:
        raise CborError(error.what, offset + error.offset) from None
    return language, code


def script_hash(script: bytes, offset: int = 0) -> bytes:
    """Return the hash of a script reference: blake2b-224 of the language's byte and the script.

    A native script counts in its original CBOR, a Plutus script in the bytes that its byte string holds.

    Raises:
        CborError: the bytes are not a script reference; it counts them from `offset`.
    """
    language, code = split_reference(script, offset)
    return blake2b(bytes((language,)) + code, digest_size=28).digest()


def unwrapped(script: bytes) -> bytes:
    """Return a script reference without the tag 24 that may be around it; nothing, if more follows than that."""
    if script[:1] == bytes((_EMBEDDED,)):
        begin, end = embedded(script, 0)
        return script[begin:end] if end == len(script) else b""
    return script


def hash_of_reference(script: bytes) -> bytes | None:
    """Return the hash of a script reference, with or without the tag 24 around it; None of any other bytes."""
    try:
        return script_hash(unwrapped(script))
    except (CborError, IndexError):
        return None
