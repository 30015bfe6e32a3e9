"""Scripts of outputs in the encoding of a transaction: CBOR `[language, script]`, and their hashes.

A native script comes as a tree of clauses; only a server that includes the CBOR of scripts sends its original bytes.
Without them it is written canonically: nearly every script is, and only of another one would body and hash differ.
"""

from __future__ import annotations

import cbor2

from feeds.cardano.ogmios_json import (
    After,
    AllOf,
    AnyOf,
    Before,
    Clause,
    MessageError,
    Script,
    Signature,
    SomeOf,
    unhex,
)
from formats.cbor import CborError
from formats.scripts import script_hash

_LANGUAGES = {"native": 0, "plutus:v1": 1, "plutus:v2": 2, "plutus:v3": 3}
_KEY_HASH_BYTES = 28


def read_script(script: Script) -> tuple[bytes, bytes]:
    """Return the script reference and the script's hash.

    Raises:
        MessageError: there is no script in it.
    """
    language = _LANGUAGES[script.language]
    if script.cbor is not None:
        code = unhex(script.cbor, ".cbor")
        body = bytes((0x82, language)) + (cbor2.dumps(code) if language else code)
    elif script.json is not None and not language:
        body = bytes((0x82, language)) + _encoded(script.json)
    else:
        raise MessageError(f"a script of {script.language} has no bytes", ".cbor")
    try:
        return body, script_hash(body)
    except CborError as error:
        raise MessageError(f"not a script: {error.what}", ".cbor") from None


def _encoded(clause: Clause) -> bytes:
    """Return a clause as the ledger writes it: `[kind, …]`."""
    match clause:
        case Signature(key=key):
            return b"\x82\x00" + cbor2.dumps(unhex(key, ".json", _KEY_HASH_BYTES))
        case AllOf(clauses=clauses):
            return b"\x82\x01" + _list(clauses)
        case AnyOf(clauses=clauses):
            return b"\x82\x02" + _list(clauses)
        case SomeOf(at_least=count, clauses=clauses):
            return b"\x83\x03" + cbor2.dumps(count) + _list(clauses)
        case After(slot=slot):
            return b"\x82\x04" + cbor2.dumps(slot)
        case Before(slot=slot):
            return b"\x82\x05" + cbor2.dumps(slot)


def _list(clauses: list[Clause]) -> bytes:
    count = cbor2.dumps(len(clauses))  # an array begins as the number of its items, but for three bits
    return bytes((0x80 | count[0],)) + count[1:] + b"".join(map(_encoded, clauses))
