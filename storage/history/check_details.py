"""Check of the counts and sums of transactions in undo logs."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import groupby
from struct import Struct as Packed

from storage.errors import Damaged
from storage.history import details
from storage.history.layout import DETAILS, UNDO
from storage.history.view import View

_UNDO_KEY = Packed(">II")
Log = tuple[int, int, bytes, list[str]]  # block, part, value, and what is wrong with its details of transactions


def logs(view: View) -> Iterator[Log]:
    """Yield the parts of undo logs; the details of a block's transactions are one part."""
    rows = ((*_UNDO_KEY.unpack(key), value) for key, value in view.scan(UNDO))
    for (ordinal, is_details), each in groupby(rows, key=lambda row: (row[0], row[1] >= DETAILS)):
        if is_details:
            parts = [(part, value) for _, part, value in each]
            yield ordinal, *parts[0], [*_faults(view, ordinal, [value for _, value in parts])]
        else:
            yield from ((ordinal, part, value, []) for _, part, value in each)


def _faults(view: View, ordinal: int, values: list[bytes]) -> Iterator[str]:
    try:
        entries = details.unpack(ordinal, values)
    except Damaged as error:
        yield str(error)
        return
    if view.lowest <= ordinal <= view.state.tip and len(entries) != (txs := view.stored.block(ordinal).txs):
        yield f"block {ordinal} has {txs} transactions, but details of {len(entries)}"
