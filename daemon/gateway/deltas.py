"""The delta of a block from those of its parts."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from operator import itemgetter
from typing import Any

import msgspec

from formats.canonical import Item
from handlers.deltas import whole_cbor, whole_json
from handlers.parts import DeltaPart, Key

read_delta = msgspec.msgpack.Decoder(DeltaPart).decode
_first = itemgetter(0)
_Side = tuple[Sequence[Key], Sequence[bytes]]


class _Merged:
    """The whole block, as `handlers.deltas.Whole` has it."""

    def __init__(self, parts: Sequence[DeltaPart], created: list[Any], spent: list[Any]) -> None:
        self._parts, self.block, self.created, self.spent = parts, parts[0], created, spent
        self.contains_invalid = any(part.contains_invalid for part in parts)

    def failed(self) -> Iterator[tuple[bytes, bool]]:
        """Yield the transactions that failed phase 2; of those in several parts, one has the collateral return."""
        found = dict[Key, tuple[bytes, bool]]()
        for part in self._parts:
            for key, txid, returned in part.failed:
                found[key] = (txid, returned or (key in found and found[key][1]))
        for _, each in sorted(found.items()):
            yield each

    def leaves(self) -> None:
        """Return nothing: the leaves of shards are numbered by each shard."""


def merged_delta(parts: Sequence[DeltaPart], *, as_cbor: bool) -> bytes:
    """Return the delta of the block of which these are the parts."""
    wrap = Item if as_cbor else msgspec.Raw
    created, spent = (list(map(wrap, _merged(side))) for side in ([p.created for p in parts], [p.spent for p in parts]))
    whole = _Merged(parts, created, spent)
    return whole_cbor(whole) if as_cbor else whole_json(whole)


def _merged(sides: Sequence[_Side]) -> Iterator[bytes]:
    items = [item for keys, texts in sides for item in zip(keys, texts, strict=True)]
    items.sort(key=_first)
    for _, text in items:
        yield text
