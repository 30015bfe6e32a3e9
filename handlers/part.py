"""The part of a block that a shard receives: which part it is, and the positions that it states."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol

import numpy as np

from handlers.events import BlockApplied, GenesisOutputs
from handlers.refusal import Refused
from storage.history.batch import Part
from storage.history.layout import Numbers


class _Placed(Protocol):
    """A transaction with its positions."""

    @property
    def place(self) -> int | None:
        """The position in the whole block."""

    @property
    def input_places(self) -> list[int] | None:
        """The positions of its inputs among all of them."""


def check_shard(event: BlockApplied | GenesisOutputs, shard: str | None) -> None:
    """Refuse blocks and genesis outputs of another shard than the store's.

    Raises:
        Refused: `wrong_shard`.
    """
    if event.shard == shard:
        return
    what = "whole" if event.shard is None else f"the part of shard {event.shard}"
    here = "this store is not of a shard" if shard is None else f"this store is of shard {shard}"
    advice = "feed it from the stream of the chain" if shard is None else "feed it from the stream of its shard"
    name = f"block {event.height}" if isinstance(event, BlockApplied) else "GenesisOutputs"
    raise Refused("wrong_shard", f"{name} is {what}, but {here}: {advice}")


def refuse_in_shard(shard: str | None) -> None:
    """Refuse a submission where a part of its inputs may be in other shards.

    Raises:
        Refused: `unavailable`.
    """
    if shard is not None:
        raise Refused("unavailable", f"TxSubmitted: shard {shard} does not have all outputs that it could spend")


def read_part(shard: str | None, txs: Sequence[_Placed], inputs_of: Numbers) -> Part | None:
    """Return the positions that the part of a shard states; None for a whole block.

    Raises:
        Refused: `malformed`: a position is missing, or they do not ascend.
    """
    if shard is None:
        return None
    places, last = [tx.place for tx in txs], -1
    for n, place in enumerate(places):
        if place is None or place <= last:
            raise Refused("malformed", f"the part of a shard has ascending positions - at `$.txs[{n}].place`")
        last = place
    counts, ends = inputs_of.tolist(), np.cumsum(inputs_of)
    inputs = np.arange(int(inputs_of.sum())) - np.repeat(ends - inputs_of, inputs_of)
    for n, tx in enumerate(txs):
        if tx.input_places is None:
            continue
        at = np.array(tx.input_places, np.int64)
        if len(at) != counts[n] or np.any(at[1:] <= at[:-1]):
            what = f"Expected {counts[n]} ascending positions, one for each input"
            raise Refused("malformed", f"{what} - at `$.txs[{n}].input_places`")
        inputs[int(ends[n]) - counts[n] : int(ends[n])] = at
    return Part(shard, np.array(places, np.int64), inputs)
