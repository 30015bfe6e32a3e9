"""Every run of real blocks, read and applied to a plain dict, is after each block what another decoder computed."""

import hashlib
from collections.abc import Iterable
from typing import Any

import pytest
from cardano_runs import RUNS, checkpoints, expected_rows, genesis_of, network_of, whole_sets
from real_data import lines, need

from feeds.cardano.chunks import read_chain
from feeds.cardano.eras import NAMES, PREVIEW
from handlers.events import BlockApplied, GenesisOutput, OutPoint, Output, Tx


class PlainSet:
    """The unspent outputs as a dict, with the sums that the expected figures are made of."""

    def __init__(self, genesis: Iterable[GenesisOutput] = ()) -> None:
        self.coins: dict[OutPoint, Output] = {}
        self.value = self.acc = self.acc_addr = 0
        for each in genesis:
            self._create((each.txid, each.index), each.output)

    def apply(self, tx: Tx) -> list[OutPoint]:
        """Spend, then create; returns the inputs that nobody had created."""
        unknown = []
        for point in tx.inputs if tx.valid else tx.collateral:
            if point in self.coins:
                self._count(point, self.coins.pop(point), -1)
            else:
                unknown.append(point)
        if tx.valid:
            for index, output in enumerate(tx.outputs):
                self._create((tx.txid, index), output)
        elif tx.collateral_return is not None:
            self._create((tx.txid, len(tx.outputs)), tx.collateral_return)
        return unknown

    def _create(self, point: OutPoint, output: Output) -> None:
        assert point not in self.coins
        self.coins[point] = output
        self._count(point, output, 1)

    def _count(self, point: OutPoint, output: Output, sign: int) -> None:
        line = f"{name(point)}:{output.value}"
        self.value += sign * output.value
        self.acc += sign * number(f"{line}\n")
        self.acc_addr += sign * number(f"{line}:{output.address.hex()}\n")

    def figures(self) -> dict[str, int | str]:
        return {
            "utxo_count": len(self.coins),
            "utxo_sum": self.value,
            "acc": f"{self.acc % 2**256:064x}",
            "acc_addr": f"{self.acc_addr % 2**256:064x}",
        }

    def digests(self) -> dict[str, str]:
        plain = sorted(f"{name(point)}:{output.value}\n" for point, output in self.coins.items())
        full = sorted(f"{name(point)}:{o.value}:{o.address.hex()}\n" for point, o in self.coins.items())
        return {
            "digest": hashlib.sha256("".join(plain).encode()).hexdigest(),
            "digest_addr": hashlib.sha256("".join(full).encode()).hexdigest(),
        }


def name(point: OutPoint) -> str:
    return f"{point[0].hex()}:{point[1]}"


def number(line: str) -> int:
    return int.from_bytes(hashlib.sha256(line.encode()).digest(), "big")


def head(block: BlockApplied) -> dict[str, Any]:
    """Return of a block what a row of the expected file says of it."""
    return {
        "height": block.height,
        "slot": block.slot,
        "hash": block.hash.hex(),
        "prev_hash": block.prev_hash and block.prev_hash.hex(),
        "txs": [transaction(tx) for tx in block.txs],
        "invalid": [index for index, tx in enumerate(block.txs) if not tx.valid],
    }


def transaction(tx: Tx) -> dict[str, Any]:
    said: dict[str, Any] = {
        "txid": tx.txid.hex(),
        "valid": tx.valid,
        "in": [name(point) for point in tx.inputs],
        "n_out": len(tx.outputs),
        "sum_out": sum(output.value for output in tx.outputs),
        "fee": tx.fee,
    }
    if tx.collateral:
        said["coll"] = [name(point) for point in tx.collateral]
    if tx.collateral_return is not None:
        back = tx.collateral_return
        said["coll_return"] = {"index": len(tx.outputs), "value": back.value, "address": back.address.hex()}
    return said


def without(row: dict[str, Any], *keys: str) -> dict[str, Any]:
    return {key: value for key, value in row.items() if key not in keys}


@pytest.mark.parametrize("run", RUNS)
def test_run(run: str) -> None:
    born = genesis_of(run).outputs
    coins, blocks = PlainSet(born), 0
    digests = checkpoints(run)
    network = network_of(run)
    for block, row in zip(read_chain(need(run), network, genesis=born), expected_rows(run), strict=True):
        unknown = [name(point) for tx in block.txs for point in coins.apply(tx)]
        assert sorted(unknown) == sorted(row.get("unknown", []))
        figures = coins.figures()
        assert figures == {key: row[key] for key in figures}, f"height {block.height}"
        said = row | {"txs": [without(tx, "coll_in_sum", "total_collateral") for tx in row["txs"]]}
        seen = head(block)
        assert seen == {key: said[key] for key in seen}
        assert block.era == NAMES[row["era"]]
        if network is PREVIEW:
            assert block.time == 1_666_656_000 + (block.slot or 0)
        if row["hash"] in digests:
            seen = coins.digests()
            said = digests.pop(row["hash"])
            assert seen == {key: said[key] for key in seen}
        blocks += 1
    assert not digests
    assert blocks


@pytest.mark.parametrize("run", [run for run in RUNS if whole_sets(run)])
def test_whole_sets(run: str) -> None:
    """After some blocks the sets themselves, not their digests: what differs is what pytest shows."""
    born, files = genesis_of(run).outputs, whole_sets(run)
    coins = PlainSet(born)
    for block in read_chain(need(run), network_of(run), genesis=born):
        for tx in block.txs:
            coins.apply(tx)
        if (file := files.pop(block.hash.hex(), None)) is not None:
            said = {tuple(line.split(",")) for line in lines(file)}
            assert {(p[0].hex(), str(p[1]), str(o.value), o.address.hex()) for p, o in coins.coins.items()} == said
    assert not files
