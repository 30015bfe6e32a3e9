"""Single real blocks of all eras: every transaction, field by field, is what another decoder read."""

from collections.abc import Iterable
from functools import cache
from typing import Any

import pytest
from plain_set import PlainSet, name
from real_data import document, every, names, need

from feeds.cardano.block import decode_block
from feeds.cardano.eras import MAINNET, NAMES
from formats.scripts import script_hash
from handlers.events import Asset, OutPoint, Output, Tx

FILES = names("cardano/single/*.cbor")


@cache
def expected() -> dict[str, dict[str, Any]]:
    blocks = (block for path in every("expected/cardano-single-blocks.json.xz") for block in document(path))
    return {f"cardano/single/{block['file']}": block for block in blocks}


@pytest.mark.parametrize("file", FILES)
def test_block(file: str) -> None:
    raw = need(file).read_bytes()
    expected_block = expected()[file]
    block, end = decode_block(raw, MAINNET)
    assert end == len(raw) == expected_block["size"] == (block.size or 0) + 2  # the pair of era and block
    assert (block.height, block.slot, block.era) == (
        expected_block["height"],
        expected_block["slot"],
        NAMES[expected_block["era"]],
    )
    assert (block.hash.hex(), block.prev_hash and block.prev_hash.hex()) == (
        expected_block["hash"],
        expected_block["prev_hash"],
    )
    assert [index for index, tx in enumerate(block.txs) if not tx.valid] == (expected_block["invalid"] or [])
    assert [facts(tx) for tx in block.txs] == [facts_of_row(tx) for tx in expected_block["txs"]]
    assert all((tx.size or 0) > row["size_body"] for tx, row in zip(block.txs, expected_block["txs"], strict=True))
    assert_set_after(block.txs, expected_block["after"])


def assert_set_after(txs: Iterable[Tx], after: dict[str, Any]) -> None:
    coins = PlainSet()
    assert sorted(name(point) for tx in txs for point in coins.apply(tx)) == sorted(after["unknown"])
    assert (len(coins.coins), coins.value) == (after["utxo_count"], after["utxo_sum"])
    assert coins.digests() == (after["digest"], after["digest_addr"])


def facts(tx: Tx) -> dict[str, Any]:
    return {
        "txid": tx.txid.hex(),
        "valid": tx.valid,
        "inputs": named(tx.inputs),
        "outputs": [output(each) for each in tx.outputs],
        "fee": tx.fee,
        "collateral": named(tx.collateral),
        "collateral_return": tx.collateral_return and output(tx.collateral_return),
        "reference_inputs": named(tx.references),
    }


def facts_of_row(row: dict[str, Any]) -> dict[str, Any]:
    nothing: dict[str, Any] = {"fee": None, "collateral": [], "collateral_return": None, "reference_inputs": []}
    left_out = {"bech32", "size_body", "certs", "mint", "withdrawals", "total_collateral"}
    row = nothing | {key: value for key, value in row.items() if key not in left_out}
    row["outputs"] = [{key: value for key, value in each.items() if key not in left_out} for each in row["outputs"]]
    return row


def named(points: list[OutPoint]) -> list[str]:
    return [name(point) for point in points]


def output(output: Output) -> dict[str, Any]:
    expected_block: dict[str, Any] = {"address": output.address.hex(), "value": output.value}
    if output.assets:
        expected_block["assets"] = {asset_name(asset): asset[2] for asset in output.assets}
        assert len(expected_block["assets"]) == len(output.assets)
    if output.datum_hash is not None:
        expected_block["datum_hash"] = output.datum_hash.hex()
    if output.inline_datum is not None:
        expected_block["inline_datum_bytes"] = len(output.inline_datum)
    if output.script_ref is not None:
        expected_block["script_ref_bytes"] = len(output.script_ref)
        assert output.script_ref_hash == script_hash(output.script_ref)
    return expected_block


def asset_name(asset: Asset) -> str:
    return f"{asset[0].hex()}.{asset[1].hex()}"
