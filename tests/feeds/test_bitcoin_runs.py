"""Every block of the runs of real blocks, field by field, is what an independent decoder read."""

from typing import Any

import pytest
from bitcoin_runs import RUNS, open_run
from plain_set import name

from handlers.events import BlockApplied, Point


def check_fields(block: BlockApplied, row: dict[str, Any]) -> None:
    previous = block.prev_hash or bytes(32)
    assert (block.height, block.hash.hex(), previous.hex(), block.time) == tuple(
        row[name] for name in ("height", "hash", "prev_hash", "time")
    )
    assert block.point == Point(row["height"], row["height"], block.hash)
    count_bytes = 1 if len(block.txs) < 0xFD else 3
    assert row["size"] == 80 + count_bytes + sum(tx.size or 0 for tx in block.txs)
    for tx, fields in zip(block.txs, row["txs"], strict=True):
        assert tx.txid.hex() == fields["txid"]
        assert [name(point) for point in tx.inputs] == fields["in"]
        assert (len(tx.outputs), sum(output.value for output in tx.outputs)) == (fields["n_out"], fields["sum_out"])
        assert tx.coinbase == (tx is block.txs[0]) == (not tx.inputs)
        assert tx.fee is None


@pytest.mark.parametrize("run", RUNS)
def test_run(run: str) -> None:
    chain, _, expected = open_run(run)
    with chain:
        for block, row in zip(chain.blocks(), expected, strict=True):
            check_fields(block, row)
