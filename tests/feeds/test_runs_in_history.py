"""Every run of real blocks, applied to a history: after each block the set in the store is what others computed.

The figures are made of what the store says of the block, not of the block: outputs and spends are read back.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any

import pytest
import test_bitcoin_runs
import test_cardano_runs
from bitcoin_runs import RUNS as BITCOIN
from bitcoin_runs import open_run
from chains import back_to, open_chain
from real_data import need
from test_cardano_runs import RUNS as CARDANO

from handlers.chain import Chain
from handlers.events import BlockApplied, GenesisOutputs
from storage.history.stored import Stored

_COMMITS_FOR_ONE = 7  # the last one of so many blocks is committed with those before it


class Sums:
    """The count, the value, and the sum of digests of the outputs in the store."""

    def __init__(self) -> None:
        self.count = self.value = self.acc = 0

    def add(self, stored: Stored, numbers: Iterable[int], sign: int) -> None:
        for number in numbers:
            body = stored.body(number)
            if body is None:
                continue
            tx = stored.tx_of(number)
            line = f"{tx.txid.hex()}:{number - tx.number}:{body.value}\n"
            self.count += sign
            self.value += sign * body.value
            self.acc = (self.acc + sign * int.from_bytes(hashlib.sha256(line.encode()).digest())) % (1 << 256)

    def block(self, stored: Stored, ordinal: int) -> None:
        block, undo = stored.block(ordinal), stored.undo(ordinal)
        self.add(stored, range(block.first, block.first + block.numbers), 1)
        self.add(stored, [spent.number for spent in undo or ()], -1)

    def figures(self) -> tuple[int, int, str]:
        return self.count, self.value, f"{self.acc:064x}"


def follow(chain: Chain, blocks: Iterator[tuple[BlockApplied, tuple[int, int, str]]]) -> list[BlockApplied]:
    """Apply blocks, some of them in one commit, and compare after each commit; return the blocks."""
    sums, done, waiting = Sums(), list[BlockApplied](), list[tuple[int, int, str]]()
    with chain.store.disk.read() as txn:
        genesis = Stored(txn, chain.store.disk.tables)
        if chain.store.genesis(txn):
            sums.add(genesis, range(genesis.block(0).numbers), 1)
    for block, expected in blocks:
        assert chain.apply(block, None)
        done.append(block)
        waiting.append(expected)
        if len(waiting) <= len(done) % _COMMITS_FOR_ONE:
            continue
        chain.commit()
        with chain.store.disk.read() as txn:
            stored = Stored(txn, chain.store.disk.tables)
            for ordinal, figures in enumerate(waiting, len(done) - len(waiting) + 1):
                sums.block(stored, ordinal)
                assert sums.figures() == figures, f"height {block.height}"
            assert stored.state.unspent == sums.count
        waiting.clear()
    chain.commit()
    return done


@pytest.mark.parametrize("run", BITCOIN)
def test_bitcoin(run: str, tmp_path: Path) -> None:
    source, _, expected = open_run(run)
    with (
        source,
        open_chain(tmp_path, rollback_window=10**6, chain="bitcoin/mainnet", indexes=()) as chain,
    ):
        pairs = zip(source.blocks(), expected, strict=True)
        blocks = follow(chain, ((block, test_bitcoin_runs.figures(row["core"])[:3]) for block, row in pairs))
        go_back(chain, blocks)


@pytest.mark.parametrize("directory", CARDANO)
def test_cardano(directory: str, tmp_path: Path) -> None:
    run = need(directory)
    genesis = test_cardano_runs.genesis_of(run)

    def figures(row: dict[str, Any]) -> tuple[int, int, str]:
        return row["utxo_count"], row["utxo_sum"], row["acc"]

    with open_chain(tmp_path, rollback_window=10**6) as chain:
        if genesis:
            chain.seed(GenesisOutputs(outputs=genesis))
        pairs = zip(test_cardano_runs.read(run, genesis), test_cardano_runs.expected(run), strict=True)
        blocks = follow(chain, ((block, figures(row)) for block, row in pairs))
        go_back(chain, blocks)


def go_back(chain: Chain, blocks: list[BlockApplied]) -> None:
    """Take everything back, half of what is left at a time: nothing remains but what was there before."""
    with chain.store.disk.read() as txn:
        last = Stored(txn, chain.store.disk.tables)
        left, unspent = last.state.tip, last.state.unspent
    assert unspent
    while left:
        left //= 2
        chain.rollback(back_to(blocks[left - 1] if left else "origin"))
    with chain.store.disk.read() as txn:
        stored = Stored(txn, chain.store.disk.tables)
        genesis = stored.block(0).numbers if chain.store.genesis(txn) else 0
        assert stored.state.next_number == genesis
        assert sum(map(stored.live.is_set, range(genesis + 5000))) == stored.state.unspent
