"""The chain that is applied: made up by ourselves, or converted from a folder with `chain.mp` and `meta.json`.

Such a folder holds one MessagePack map a block: height, hash, prev, and txs of txid, inputs and [script, value]
outputs.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path

import msgpack  # type: ignore[import-untyped]
import msgspec

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


def converted(folder: Path) -> Workload:
    """Return a folder's chain as our events."""
    meta = json.loads((folder / "meta.json").read_text())
    return _workload(str(folder), list(_blocks(folder)), int(meta["full_from"]))


def _blocks(folder: Path) -> Iterator[BlockApplied]:
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
    sample = Sample(1, txs)
    sample.coins.update({(made.txid, made.index): made.output for made in sample.genesis().outputs})
    return _workload("made up", [sample.block() for _ in range(blocks + blocks // 4)], blocks // 4)


def _workload(name: str, blocks: list[BlockApplied], warm: int) -> Workload:
    frames = [
        wire.encode(msgspec.structs.replace(block, seq=seq), "frames") for seq, block in enumerate(blocks, start=1)
    ]
    timed = blocks[warm:]
    return Workload(
        name,
        frames[:warm],
        frames[warm:],
        sum(len(block.txs) for block in timed),
        sum(len(tx.outputs) for block in timed for tx in block.txs),
        timed[-1].hash,
    )
