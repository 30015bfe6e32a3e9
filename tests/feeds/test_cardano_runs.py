"""Every block of the runs of real blocks, field by field, is what an independent decoder read."""

from typing import Any

import pytest
from cardano_runs import RUNS, expected_rows, genesis_of, network_of
from plain_set import name
from real_data import need

from feeds.cardano.chunks import read_chain
from feeds.cardano.eras import NAMES, PREVIEW
from handlers.events import BlockApplied, Tx


def head(block: BlockApplied) -> dict[str, Any]:
    return {
        "height": block.height,
        "slot": block.slot,
        "hash": block.hash.hex(),
        "prev_hash": block.prev_hash and block.prev_hash.hex(),
        "txs": [transaction(tx) for tx in block.txs],
        "invalid": [index for index, tx in enumerate(block.txs) if not tx.valid],
    }


def transaction(tx: Tx) -> dict[str, Any]:
    row: dict[str, Any] = {
        "txid": tx.txid.hex(),
        "valid": tx.valid,
        "in": [name(point) for point in tx.inputs],
        "n_out": len(tx.outputs),
        "sum_out": sum(output.value for output in tx.outputs),
        "fee": tx.fee,
    }
    if tx.collateral:
        row["coll"] = [name(point) for point in tx.collateral]
    if tx.collateral_return is not None:
        back = tx.collateral_return
        row["coll_return"] = {"index": len(tx.outputs), "value": back.value, "address": back.address.hex()}
    return row


def without(row: dict[str, Any], *keys: str) -> dict[str, Any]:
    return {key: value for key, value in row.items() if key not in keys}


@pytest.mark.parametrize("run", RUNS)
def test_run(run: str) -> None:
    network, blocks = network_of(run), 0
    chain = read_chain(need(run), network, genesis=genesis_of(run).outputs)
    for block, row in zip(chain, expected_rows(run), strict=True):
        expected = row | {"txs": [without(tx, "coll_in_sum", "total_collateral") for tx in row["txs"]]}
        seen = head(block)
        assert seen == {key: expected[key] for key in seen}
        assert block.era == NAMES[row["era"]]
        if network is PREVIEW:
            assert block.time == 1_666_656_000 + (block.slot or 0)
        blocks += 1
    assert blocks
