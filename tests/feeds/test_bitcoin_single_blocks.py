"""Single real blocks of several networks and years, field by field, with the outputs that they spend."""

import hashlib
import lzma
from functools import cache
from typing import Any

import pytest
from plain_set import PlainSet
from real_data import document, every, lines, names, need

from feeds.bitcoin.block import decode_block
from feeds.bitcoin.networks import NETWORKS
from handlers.events import BlockApplied, Output, Tx

FILES = names("bitcoin/blocks/*.blk.xz")


@cache
def expected_blocks() -> dict[str, dict[str, Any]]:
    return {row["name"]: row for path in every("expected/bitcoin-single-blocks.json") for row in document(path)}


def block_of(file: str) -> tuple[BlockApplied, dict[str, Any], bytes]:
    raw = lzma.decompress(need(file).read_bytes())
    row = expected_blocks()[file.rpartition("/")[2].removesuffix(".blk.xz")]
    return decode_block(raw, row["height"], NETWORKS[row["network"]]), row, raw


@pytest.mark.parametrize("file", FILES)
def test_fields(file: str) -> None:
    block, row, raw = block_of(file)
    stats, outputs = row["stats"], [output for tx in block.txs for output in tx.outputs]
    assert (block.hash.hex(), block.time) == (row["hash"], row["time"])
    assert block.prev_hash is not None
    assert block.prev_hash.hex() == row["prev_hash"]
    assert block.slot is None
    assert len(raw) == row["size"]
    txids = [tx.txid.hex() for tx in block.txs]
    assert txids == row["txids"]
    assert hashlib.sha256("".join(f"{txid}\n" for txid in txids).encode()).hexdigest() == row["txids_sha256"]
    assert sum(output.value for output in outputs) == row["sum_out"]
    assert [len(block.txs), len(outputs), sum(len(tx.inputs) for tx in block.txs)] == [
        stats["tx"],
        stats["outputs"],
        stats.get("inputs", 0),
    ]
    assert sum(output.address[:1] == b"\x6a" for output in outputs) == stats["op_return_outputs"]
    assert sum(not output.spendable for output in outputs) == stats["op_return_outputs"]
    assert sum(output.value == 0 for output in outputs) == stats["zero_value_outputs"]


@pytest.mark.parametrize("file", FILES)
def test_set_after_the_block(file: str) -> None:
    block, row, _ = block_of(file)
    coins = preloaded(row)
    in_block = {tx.txid for tx in block.txs}
    unknown = [point for tx in block.txs for point in coins.apply(tx)]
    after = row["after"]
    assert (len(coins.coins), coins.value) == (after["utxo_count"], after["utxo_sum"])
    assert coins.digests() == (after["digest"], after["digest_script"])
    assert len(unknown) == after["unknown"]
    spent_inside = sum(txid in in_block for tx in block.txs for txid, _ in tx.inputs)
    assert spent_inside == row["stats"].get("same_block_spends", 0)
    if row["value_check"]:
        check_fees(block, preloaded(row), row["value_check"])


def check_fees(block: BlockApplied, before: PlainSet, expected: dict[str, int]) -> None:
    """The fees of a block are its inputs less its outputs, and the coinbase pays them out."""
    values = {point: output.value for point, output in before.coins.items()}
    values |= {(tx.txid, index): output.value for tx in block.txs for index, output in enumerate(tx.outputs)}
    fees = sum(values[point] for tx in block.txs for point in tx.inputs) - sum(map(paid, block.txs[1:]))
    assert (fees, paid(block.txs[0])) == (expected["fees"], expected["coinbase_out"])


def paid(tx: Tx) -> int:
    return sum(output.value for output in tx.outputs)


def preloaded(row: dict[str, Any]) -> PlainSet:
    coins = PlainSet()
    if row["prevouts"] is not None:
        for text in lines(need(f"bitcoin/prevouts/{row['name']}.csv.xz")):
            txid, index, value, script, _ = text.split(",")
            coins.coins[bytes.fromhex(txid), int(index)] = Output(bytes.fromhex(script), int(value))
        assert len(coins.coins) == row["prevouts"]["external"]
        assert coins.digests() == (row["prevouts"]["digest"], row["prevouts"]["digest_script"])
    return coins
