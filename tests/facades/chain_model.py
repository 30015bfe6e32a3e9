"""A chain as plain outputs: what every facade's answers are compared with."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from hashlib import blake2b
from typing import Any, NamedTuple

from handlers.events import BlockApplied, GenesisOutputs, Output
from handlers.scripts import read_reference


class Spend(NamedTuple):
    """Who spent an output."""

    block: BlockApplied
    txid: bytes
    input: int


class Coin(NamedTuple):
    """An output of a chain."""

    block: BlockApplied
    place: int
    txid: bytes
    number: int
    output: Output
    spend: Spend | None = None


Coins = dict[tuple[bytes, int], Coin]


GENESIS = BlockApplied(height=0, hash=bytes(32), slot=0)


def coins_of(blocks: Iterable[BlockApplied], seeded: GenesisOutputs) -> Coins:
    """Return every output that was there before the first block or that blocks created, in order, and who spent it."""
    found: Coins = {}
    places = dict[bytes, int]()
    for each in seeded.outputs:
        place = places.setdefault(each.txid, len(places))
        found[each.txid, each.index] = Coin(GENESIS, place, each.txid, each.index, each.output)
    for block in blocks:
        for place, tx in enumerate(block.txs):
            for n, outpoint in enumerate(sorted({*(tx.inputs if tx.valid else tx.collateral)})):
                if outpoint in found:
                    found[outpoint] = found[outpoint]._replace(spend=Spend(block, tx.txid, n))
            if tx.valid:
                made = list(enumerate(tx.outputs))
            else:
                made = [] if tx.collateral_return is None else [(len(tx.outputs), tx.collateral_return)]
            for index, output in made:
                found[tx.txid, index] = Coin(block, place, tx.txid, index, output)
    return found


def datum_of(coin: Coin) -> bytes | None:
    """Return the hash of an output's datum."""
    inline = coin.output.inline_datum
    return coin.output.datum_hash if inline is None else blake2b(inline, digest_size=32).digest()


def match_of(coin: Coin, write: Any) -> dict[str, Any]:
    """Return an output as Kupo writes it."""
    datum = datum_of(coin)
    kind = {} if datum is None else {"datum_type": "hash" if coin.output.inline_datum is None else "inline"}
    spend = coin.spend
    return {
        "transaction_index": coin.place,
        "transaction_id": coin.txid.hex(),
        "output_index": coin.number,
        "address": write(coin.output.address),
        "value": {
            "coins": coin.output.value,
            "assets": {f"{p.hex()}.{n.hex()}" if n else p.hex(): q for p, n, q in coin.output.assets},
        },
        "datum_hash": None if datum is None else datum.hex(),
        **kind,
        "script_hash": None if coin.output.script_ref_hash is None else coin.output.script_ref_hash.hex(),
        "created_at": point_of(coin.block),
        "spent_at": None
        if spend is None
        else {
            **point_of(spend.block),
            "transaction_id": spend.txid.hex(),
            "input_index": spend.input,
            "redeemer": None,
        },
    }


def point_of(block: BlockApplied) -> dict[str, Any]:
    return {"slot_no": block.slot, "header_hash": block.hash.hex()}


def scripts_of(coins: Coins) -> Iterator[tuple[bytes, int, bytes]]:
    """Yield the scripts that outputs carry: hash, language and code."""
    for coin in coins.values():
        if coin.output.script_ref is not None and coin.output.script_ref_hash is not None:
            script = read_reference(coin.output.script_ref)
            assert script is not None
            yield coin.output.script_ref_hash, script.language, script.code
