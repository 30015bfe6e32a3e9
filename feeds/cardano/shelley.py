"""The transactions of a block since Shelley, and its header. Hot path of a catch-up.

The common encodings are read inline; all others that CBOR allows are read by the functions of `cbor`.
"""

from __future__ import annotations

import re
from hashlib import blake2b

from feeds.cardano.errors import BlockError
from formats.cbor import (
    BREAK,
    array,
    bytestring,
    close,
    embedded,
    fields,
    mapping,
    sized_bytes,
    skip,
    small_uint,
    uint,
)
from formats.scripts import script_hash
from handlers.events import Asset, OutPoint, Output

_INPUT_HEAD = b"\x82\x58\x20"  # [transaction id of 32 bytes, …
_POLICY_HEAD = b"\x58\x1c"
_SET_TAG = 258

Body = tuple[bytes, list[OutPoint], list[Output], list[OutPoint], list[OutPoint], Output | None, int, dict[int, int]]


# {0: address, 1: coin or [coin, assets]} as far as the coin: the address of either length, whether assets follow, coin.
_USUAL_OUTPUT = re.compile(rb"\xa2\x00\x58(?:\x1d(.{29})|\x39(.{57}))\x01(\x82)?(?:\x1a(.{4})|\x1b(.{8}))", re.DOTALL)


def read_body(buf: bytes, at: int) -> tuple[Body, int]:
    """Return one transaction body, and its end.

    It has id, inputs, outputs, collateral, references, collateral return, fee, and where its other fields begin.
    """
    begin = at
    inputs: list[OutPoint] | None = None
    outputs: list[Output] | None = None
    fee: int | None = None
    collateral: list[OutPoint] = []
    references: list[OutPoint] = []
    collateral_return: Output | None = None
    others: dict[int, int] = {}
    count, at = mapping(buf, at)
    while count:
        key = buf[at]
        if key == BREAK and count < 0:
            at += 1
            break
        count -= 1
        if key > 23:
            key, at = uint(buf, at)
        else:
            at += 1
        if key == 0:
            inputs, at = _outpoints(buf, at)
        elif key == 1:
            outputs, at = _outputs(buf, at)
        elif key == 2:
            fee, at = uint(buf, at)
        elif key == 13:
            collateral, at = _outpoints(buf, at)
        elif key == 16:
            collateral_return, at = _output(buf, at)
        elif key == 18:
            references, at = _outpoints(buf, at)
        else:
            others[key] = at
            at = skip(buf, at)
    if inputs is None or outputs is None or fee is None:
        raise BlockError("a transaction lacks inputs, outputs or fee", begin)
    txid = blake2b(buf[begin:at], digest_size=32).digest()
    return (txid, inputs, outputs, collateral, references, collateral_return, fee, others), at


def _outpoints(buf: bytes, at: int) -> tuple[list[OutPoint], int]:
    """Return a set of outpoints in the order of the body, each once."""
    count, at = array(buf, at) if buf[at] >> 5 != 6 else array(buf, after_set_tag(buf, at))
    found: list[OutPoint] = []
    while count:
        if buf[at : at + 3] == _INPUT_HEAD:
            index = buf[at + 35]
            found.append((buf[at + 3 : at + 35], index))
            at += 36
            if index > 23:
                index, at = small_uint(buf, at - 1)
                found[-1] = (found[-1][0], index)
        elif count < 0 and buf[at] == BREAK:
            at += 1
            break
        else:
            outpoint, at = _odd_outpoint(buf, at)
            found.append(outpoint)
        count -= 1
    if len(found) > 1 and len(set(found)) != len(found):
        return list(dict.fromkeys(found)), at
    return found, at


def after_set_tag(buf: bytes, at: int) -> int:
    """Return where the array of a set begins, whose tag begins at `at`."""
    if buf[at : at + 3] != b"\xd9\x01\x02":
        raise BlockError(f"tag {_SET_TAG} of a set is missing", at)
    return at + 3


def _odd_outpoint(buf: bytes, at: int) -> tuple[OutPoint, int]:
    count, at = fields(buf, at, 2, what="an input")
    txid, at = sized_bytes(buf, at, 32, "a transaction id")
    index, at = small_uint(buf, at)
    return (txid, index), close(buf, at, count, "an input")


def _outputs(buf: bytes, at: int) -> tuple[list[Output], int]:
    count, at = array(buf, at)
    found: list[Output] = []
    while count:
        if count < 0 and buf[at] == BREAK:
            at += 1
            break
        output, at = _output(buf, at)
        found.append(output)
        count -= 1
    return found, at


def _output(buf: bytes, at: int) -> tuple[Output, int]:
    """Return an output in either form: the array of all eras, or the map since Babbage."""
    first = buf[at]
    if first == 0xA2 and (usual := _USUAL_OUTPUT.match(buf, at)) is not None:
        assets: list[Asset] = []
        end = usual.end()
        if usual[3]:
            end = _assets(buf, end, assets)
        return Output(usual[1] or usual[2], int.from_bytes(usual[4] or usual[5], "big"), assets), end
    if first >> 5 == 5:
        return _map_output(buf, at)
    count, at = (first - 0x80, at + 1) if first == 0x82 or first == 0x83 else fields(buf, at, 2, 3, what="an output")
    address, at = bytestring(buf, at)
    if buf[at] < 0x1C:
        value, at = uint(buf, at)
        if count == 2:
            return Output(address, value), at
        assets = []
    else:
        value, assets, at = _value(buf, at)
    datum_hash = None
    if count == 3 or (count < 0 and buf[at] != BREAK):
        datum_hash, at = sized_bytes(buf, at, 32, "a datum hash")
    return Output(address, value, assets, datum_hash), close(buf, at, count, "an output")


def _map_output(buf: bytes, at: int) -> tuple[Output, int]:
    begin = at
    address = value = datum_hash = datum = script = None
    assets: list[Asset] = []
    count, at = mapping(buf, at)
    while count:
        key = buf[at]
        at += 1
        if key == BREAK and count < 0:
            break
        count -= 1
        if key == 0:
            address, at = bytestring(buf, at)
        elif key == 1:
            value, assets, at = _value(buf, at)
        elif key == 2:
            datum_hash, datum, at = _datum(buf, at)
        elif key == 3:
            script_at, at = embedded(buf, at)
            script = buf[script_at:at]
        else:
            raise BlockError(f"an output has an unknown field, {key}", at - 1)
    if address is None or value is None:
        raise BlockError("an output lacks address or value", begin)
    if script is None:
        return Output(address, value, assets, datum_hash, datum), at
    return Output(address, value, assets, datum_hash, datum, script, script_hash(script, at - len(script))), at


def _value(buf: bytes, at: int) -> tuple[int, list[Asset], int]:
    """Return coin and assets; an asset with quantity 0 is left out."""
    if buf[at] < 0x1C:
        coin, at = uint(buf, at)
        return coin, [], at
    values, at = fields(buf, at, 2, what="a value")
    coin, at = uint(buf, at)
    assets: list[Asset] = []
    return coin, assets, close(buf, _assets(buf, at, assets), values, "a value")


def _assets(buf: bytes, at: int, assets: list[Asset]) -> int:
    """Add what an output holds besides coins; return where that ends."""
    count, at = mapping(buf, at)
    while count:
        if buf[at : at + 2] == _POLICY_HEAD:
            policy = buf[at + 2 : at + 30]
            at += 30
        elif count < 0 and buf[at] == BREAK:
            return at + 1
        else:
            policy, at = sized_bytes(buf, at, 28, "a policy id")
        at = _names(buf, at, policy, assets)
        count -= 1
    return at


def _names(buf: bytes, at: int, policy: bytes, assets: list[Asset]) -> int:
    """Add what an output holds of one policy; return where that ends."""
    count, at = mapping(buf, at)
    while count:
        if count < 0 and buf[at] == BREAK:
            return at + 1
        first = buf[at]
        if 0x40 <= first < 0x58:
            name = buf[at + 1 : at + first - 0x3F]
            at += first - 0x3F
        else:
            name, at = bytestring(buf, at)
            if len(name) > 32:
                raise BlockError("an asset name has more than 32 bytes", at)
        quantity = buf[at]
        if quantity < 0x18:
            at += 1
        elif quantity == 0x18:
            quantity = buf[at + 1]
            at += 2
        elif quantity == 0x19:
            quantity = buf[at + 1] << 8 | buf[at + 2]
            at += 3
        else:
            quantity, at = uint(buf, at)
        if quantity:
            assets.append((policy, name, quantity))
        count -= 1
    return at


def _datum(buf: bytes, at: int) -> tuple[bytes | None, bytes | None, int]:
    """Return the datum's hash, or the datum itself in its original bytes: never both."""
    count, at = fields(buf, at, 2, what="a datum option")
    kind, at = uint(buf, at)
    if kind == 0:
        digest, at = sized_bytes(buf, at, 32, "a datum hash")
        return digest, None, close(buf, at, count, "a datum option")
    if kind != 1:
        raise BlockError(f"a datum option of unknown kind {kind}", at)
    begin, at = embedded(buf, at)
    return None, buf[begin:at], close(buf, at, count, "a datum option")
