"""Outputs and amounts in Blockfrost's format."""

from __future__ import annotations

from collections.abc import Callable
from functools import lru_cache
from typing import Any, Literal

import msgspec

from formats.cbor import CborError
from formats.plutus import datum_json
from handlers.addresses import Codec
from handlers.records import Entry
from handlers.rendering import data_hash, script_hash
from storage.rows import Body

_ADDRESSES = 8192  # whose text is kept
_SHORT = 128  # bytes; there is no space for the few addresses that are longer
_Assets = list[tuple[bytes, bytes, int]]
_encode = msgspec.json.Encoder().encode
Form = Literal["", "script", "asset"]  # of an output: in most lists, among those with a script, with an asset


class Renderer:
    """Writes the outputs of one chain."""

    def __init__(self, codec: Codec, time: Callable[[int | None, int], int | None]) -> None:
        self._time = time
        self._text, self._long = lru_cache(_ADDRESSES)(codec.write), codec.write

    def address(self, raw: bytes) -> str:
        """Return an address as text."""
        return self._text(raw) if len(raw) <= _SHORT else self._long(raw)

    def utxo(self, entry: Entry, form: Form = "") -> str:
        """Return an unspent output as JSON, in the form of one of the lists.

        NOTE: the hot path of pages.
        """
        body, index, block = entry.body, entry.index, entry.block
        old, more = f'"tx_index":{index},' if form == "" else "", ""
        if form == "asset":
            datum = "null" if body.inline_datum is None else _encode(datum_value(body.inline_datum)).decode()
            time = _encode(self._time(block.time, block.slot)).decode()
            more = f',"block_height":{block.height},"block_time":{time},"inline_datum_json":{datum}'
        return (
            f'{{"address":"{self.address(body.address)}","tx_hash":"{entry.txid.hex()}",{old}"output_index":{index},'
            f'"amount":{amount_json(body)},"block":"{block.hash.hex()}",{_script_json(body)}{more}}}'
        )

    def plain(self, entry: Entry) -> dict[str, Any]:
        """Return what every form of an output has, as a value."""
        body = entry.body
        return {
            "address": self.address(body.address),
            "amount": amounts(body.value, body.assets),
            "output_index": entry.index,
            "data_hash": _hex(data_hash(body)),
            "inline_datum": _hex(body.inline_datum),
            "reference_script_hash": _hex(script_hash(body)),
        }


def amounts(value: int, assets: _Assets) -> list[dict[str, str]]:
    """Return amounts, lovelace first."""
    return [
        {"unit": "lovelace", "quantity": str(value)},
        *({"unit": policy.hex() + name.hex(), "quantity": str(quantity)} for policy, name, quantity in assets),
    ]


def summed(bodies: list[Body]) -> list[dict[str, str]]:
    """Return what outputs hold together."""
    assets = dict[tuple[bytes, bytes], int]()
    for body in bodies:
        for policy, name, quantity in body.assets:
            assets[policy, name] = assets.get((policy, name), 0) + quantity
    return amounts(sum(body.value for body in bodies), [(*unit, quantity) for unit, quantity in sorted(assets.items())])


def amount_json(body: Body) -> str:
    """Return the assets of an output, as JSON."""
    assets = "".join(
        f',{{"unit":"{policy.hex()}{name.hex()}","quantity":"{quantity}"}}' for policy, name, quantity in body.assets
    )
    return f'[{{"unit":"lovelace","quantity":"{body.value}"}}{assets}]'


def _script_json(body: Body) -> str:
    if body.datum_hash is body.inline_datum is body.script_ref is body.script_ref_hash is None:
        return '"data_hash":null,"inline_datum":null,"reference_script_hash":null'
    return (
        f'"data_hash":{_quoted(data_hash(body))},"inline_datum":{_quoted(body.inline_datum)},'
        f'"reference_script_hash":{_quoted(script_hash(body))}'
    )


def datum_value(raw: bytes) -> Any:
    """Return a datum as a value; nothing where it is nested too deeply to be written so."""
    try:
        return datum_json(raw)
    except CborError:
        return None


def _quoted(raw: bytes | None) -> str:
    return "null" if raw is None else f'"{raw.hex()}"'


def _hex(raw: bytes | None) -> str | None:
    return None if raw is None else raw.hex()
