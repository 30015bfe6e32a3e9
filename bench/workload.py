"""The chain that is applied: generated, or read from a folder with `chain.mp` and `meta.json`.

Such a folder holds one MessagePack map a block: height, hash, prev, and txs of txid, inputs and [script, value]
outputs. It may be put on top of an old set.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path

import msgpack  # type: ignore[import-untyped]
import msgspec

from bench.old_outputs import OldSet, Spending, onto
from bench.sample import Sample
from handlers import wire
from handlers.events import BlockApplied, Output, Tx


class Workload(msgspec.Struct, frozen=True):
    """Encoded blocks: `warm` ones that only set the stage, `timed` ones that are measured."""

    name: str
    warm: list[bytes]
    timed: list[bytes]
    transactions: int  # in the timed part
    outputs: int
    tip: bytes
    height: int

    @property
    def heights(self) -> range:
        """Return the heights of the timed part."""
        return range(self.height - len(self.timed) + 1, self.height + 1)


class Chain(msgspec.Struct, frozen=True):
    """The blocks of a workload; the first `warm` ones are not measured."""

    name: str
    blocks: list[BlockApplied]
    warm: int

    def on(self, old: OldSet, spending: Spending, share: float) -> Chain:
        """Return the same chain on top of an old set, of which a share of the measured inputs spends."""
        blocks = [block for block in self.blocks if block.height]  # without the block that a chain begins with
        warm = self.warm - (len(self.blocks) - len(blocks))
        name = f"{self.name}, {share:.0%} of its inputs spend ({spending}) {old.outputs} old outputs"
        return Chain(name, list(onto(old, blocks, spending, share, warm)), warm)

    def encoded(self) -> Workload:
        """Return what is sent."""
        frames = [
            wire.encode(msgspec.structs.replace(block, seq=seq), "frames")
            for seq, block in enumerate(self.blocks, start=1)
        ]
        warm, timed = self.warm, self.blocks[self.warm :]
        counts = sum(len(block.txs) for block in timed), sum(len(tx.outputs) for block in timed for tx in block.txs)
        return Workload(self.name, frames[:warm], frames[warm:], *counts, timed[-1].hash, timed[-1].height)


def converted(folder: Path) -> Chain:
    """Return a folder's chain as our events."""
    return Chain(
        str(folder), list(read_blocks(folder)), int(json.loads((folder / "meta.json").read_text())["full_from"])
    )


def read_blocks(folder: Path) -> Iterator[BlockApplied]:
    """Yield them one by one."""
    with (folder / "chain.mp").open("rb") as file:
        for block in msgpack.Unpacker(file, max_buffer_size=1 << 30):
            txs = [
                Tx(
                    txid=tx["txid"],
                    inputs=[(txid, index) for txid, index in tx["inputs"]],
                    outputs=[Output(script, value) for script, value in tx["outputs"]],
                )
                for tx in block["txs"]
            ]
            yield BlockApplied(height=block["height"], hash=block["hash"], prev_hash=block["prev"], txs=txs)


def made_up(blocks: int, txs: int) -> Workload:
    """Return a small chain of our own, where no other is at hand."""
    return sample_chain(blocks, txs).encoded()


def sample_chain(blocks: int, txs: int) -> Chain:
    """Return the blocks of that chain; the first of them also makes what the others spend at first."""
    sample = Sample(1, txs)
    funds = [Tx(made.txid, outputs=[made.output]) for made in sample.genesis().outputs]
    first, *others = (sample.block() for _ in range(blocks + blocks // 4))
    return Chain("made up", [msgspec.structs.replace(first, txs=[*funds, *first.txs]), *others], blocks // 4)
