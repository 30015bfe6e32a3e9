"""What exists before the first block, as a block of its own."""

from __future__ import annotations

from hashlib import blake2b

import msgspec
import numpy as np

from handlers.columns import Made, amounts, joined_columns
from handlers.events import GenesisOutputs, Output
from storage.history.batch import Columns, Part, Waiting
from storage.history.layout import NO_COUNT, NO_FEE

_MOST_INDEX = 1 << 20
_MOST_NUMBERS = 1 << 22  # of one message, with those between the indexes that are listed


def genesis(event: GenesisOutputs) -> Waiting:
    """Return what exists before the first block as a block of its own.

    Raises:
        ValueError: an outpoint is listed twice, or an index is too large; it names the place.
    """
    return Waiting(0, 0, bytes(32), None, None, None, None, None, None, genesis_columns(event))


def genesis_columns(event: GenesisOutputs) -> Columns:
    """Return what exists before the first block as columns: outputs that are not listed are not spendable.

    Raises:
        ValueError: an outpoint is listed twice, or an index is too large; it names the place.
    """
    txs, place_of = dict[bytes, dict[int, Output]](), dict[bytes, int]()
    places = _places(event)
    for n, each in enumerate(event.outputs):
        name = f"$.outputs[{n}]: {each.txid.hex()}#{each.index}"
        if each.index in txs.setdefault(each.txid, {}):
            raise ValueError(f"{name} is listed twice")
        if each.index > _MOST_INDEX:
            raise ValueError(f"{name}: the index is larger than {_MOST_INDEX}")
        txs[each.txid][each.index] = each.output
        place_of.setdefault(each.txid, places[n])
    if (numbers := sum(max(outputs) + 1 for outputs in txs.values())) > _MOST_NUMBERS:
        raise ValueError(f"$.outputs: the indexes reach over {numbers:,} outputs, more than {_MOST_NUMBERS:,}")
    kept = {txid: outputs for txid, outputs in txs.items() if any(each.spendable for each in outputs.values())}
    nothing = Output(b"", 0, spendable=False)
    makes = [[outputs.get(index, nothing) for index in range(max(outputs) + 1)] for outputs in kept.values()]
    flags, nothing_more = np.zeros(len(kept), np.uint8), [None] * len(kept)
    fees, counts = amounts(nothing_more, NO_FEE), amounts(nothing_more, NO_COUNT)
    made: list[Made] = [(each, None) for each in makes]
    part = None
    if event.shard is not None:
        part = Part(event.shard, np.array([place_of[txid] for txid in kept], np.int64))
    return joined_columns(list(kept), flags, (fees, counts, counts), [[] for _ in kept], made, {}, part)


def _places(event: GenesisOutputs) -> list[int]:
    """Return the position of the transaction of each output among all of them."""
    if event.shard is None:
        return list(range(len(event.outputs)))
    places = event.places
    if places is None or len(places) != len(event.outputs):
        raise ValueError(f"$.places: a part of a shard has one for each of its {len(event.outputs)} outputs")
    return places


def digest(event: GenesisOutputs) -> bytes:
    """Return the digest of the genesis outputs; fields with default values count too."""
    asdict = msgspec.structs.asdict
    whole = [{**asdict(genesis), "output": asdict(genesis.output)} for genesis in event.outputs]
    return blake2b(msgspec.msgpack.encode(whole), digest_size=32).digest()
