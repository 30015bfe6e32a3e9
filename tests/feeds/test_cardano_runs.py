"""Every run of real blocks, read and applied to a plain dict, is after each block what another decoder computed."""

import hashlib
import json
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any

import pytest
from real_data import lines, names, need, rows

from feeds.cardano.chunks import read_chain
from feeds.cardano.eras import NAMES, NETWORKS
from feeds.cardano.genesis import read_genesis
from handlers.events import BlockApplied, GenesisOutput, OutPoint, Output, Tx

RUNS = names("cardano/*-*")


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


def read(run: Path, genesis: list[GenesisOutput]) -> Iterator[BlockApplied]:
    return read_chain(run, NETWORKS[run.name.partition("-")[0]], genesis=genesis)


def genesis_of(run: Path) -> list[GenesisOutput]:
    file = run / "genesis.json"
    return read_genesis([file]).outputs.outputs if file.exists() else []


@pytest.mark.parametrize("directory", RUNS)
def test_run(directory: str) -> None:
    run = need(directory)
    genesis = genesis_of(run)
    coins, blocks = PlainSet(genesis), 0
    digests = checkpoints(run)
    for block, row in zip(read(run, genesis), expected(run), strict=True):
        unknown = [name(point) for tx in block.txs for point in coins.apply(tx)]
        assert sorted(unknown) == sorted(row.get("unknown", []))
        figures = coins.figures()
        assert figures == {key: row[key] for key in figures}, f"height {block.height}"
        said = row | {"txs": [without(tx, "coll_in_sum", "total_collateral") for tx in row["txs"]]}
        seen = head(block)
        assert seen == {key: said[key] for key in seen}
        assert block.era == NAMES[row["era"]]
        if row["hash"] in digests:
            seen = coins.digests()
            said = digests.pop(row["hash"])
            assert seen == {key: said[key] for key in seen}
        blocks += 1
    assert not digests
    assert blocks


def checkpoints(run: Path) -> dict[str, dict[str, Any]]:
    """Return the full digests that are known, by the hash of the block after which they hold."""
    if run.name == "preview-genesis-run":
        epochs = json.loads(need(f"expected/cardano-{run.name}.epochs.json").read_text())["epochs"]
        return {each["last_hash"]: each for each in epochs}
    summary = json.loads(need(f"expected/cardano-{run.name}.summary.json").read_text())
    return {each["hash"]: each for each in summary["checkpoints"]} | {summary["last"]["hash"]: summary["final"]}


def expected(run: Path) -> Iterator[dict[str, Any]]:
    return rows(need(f"expected/cardano-{run.name}.blocks.jsonl.xz"))


def test_preview_sets() -> None:
    """The whole sets at the ends of some epochs, not their digests: what differs is what pytest shows."""
    run = need("cardano/preview-genesis-run")
    epochs = json.loads(need(f"expected/cardano-{run.name}.epochs.json").read_text())["epochs"]
    files = {epochs[epoch]["last_height"]: csv_of(run, epoch) for epoch in (6, 8, 10, 12)}
    genesis = genesis_of(run)
    coins = PlainSet(genesis)
    for block in read_chain(run, NETWORKS["preview"], genesis=genesis, to_height=max(files)):
        for tx in block.txs:
            coins.apply(tx)
        assert block.time == 1_666_656_000 + (block.slot or 0)
        if block.height in files:
            said = {tuple(line.split(",")) for line in lines(files[block.height])}
            assert {(p[0].hex(), str(p[1]), str(o.value), o.address.hex()) for p, o in coins.coins.items()} == said


def csv_of(run: Path, epoch: int) -> Path:
    return need(f"expected/cardano-{run.name}.utxo-after-epoch{epoch:02}.csv.xz")


@pytest.mark.parametrize("directory", [run for run in RUNS if "preview-genesis-run" not in run])
def test_final_set(directory: str) -> None:
    run = need(directory)
    coins = PlainSet()
    for block in read(run, []):
        for tx in block.txs:
            coins.apply(tx)
    said = {tuple(line.split(",")) for line in lines(need(f"expected/cardano-{run.name}.utxo.csv.xz"))}
    assert {(p[0].hex(), str(p[1]), str(o.value), o.address.hex()) for p, o in coins.coins.items()} == said
