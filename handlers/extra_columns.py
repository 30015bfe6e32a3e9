"""What transactions and outputs have besides amounts: assets, datums and scripts of outputs, counts and sums."""

from __future__ import annotations

from collections.abc import Sequence
from operator import attrgetter
from typing import Protocol

import msgspec

from handlers.events import Details, Output
from storage.history import details
from storage.history.datums import datum_hash
from storage.history.layout import Extra

_OTHERS = attrgetter("assets", "datum_hash", "inline_datum", "script_ref", "script_ref_hash")
_NOTHING = [None, None, None, None]


class _Witnessing(Protocol):
    """A transaction, in either of its forms."""

    @property
    def datums(self) -> list[bytes]: ...
    @property
    def details(self) -> Details | None: ...


def witnessed_of(txs: Sequence[_Witnessing]) -> dict[bytes, bytes]:
    """Return the datums among the witnesses of transactions, each once, by hash."""
    return {datum_hash(datum): datum for tx in txs for datum in tx.datums}


def details_of(txs: Sequence[_Witnessing], inputs: list[int]) -> bytes:
    """Return counts and sums of transactions as they are stored; nothing if the feeder sent none."""
    given = list(map(attrgetter("details"), txs))
    if given.count(None) == len(given):
        return b""
    fields = [None if each is None else msgspec.structs.astuple(each) for each in given]
    return details.encode(list(zip(inputs, fields, strict=True)))


def extra_of(outputs: list[Output], returns: set[int], witnessed: dict[bytes, bytes]) -> dict[int, bytes]:
    """Return what outputs have besides address and value, with the datums of the hashes that they name."""
    extra = dict[int, bytes]()
    for place, (assets, *others) in enumerate(map(_OTHERS, outputs)):
        if assets or others != _NOTHING or place in returns:
            datum = witnessed.get(others[0]) if others[0] is not None else None
            datum = None if datum == others[1] else datum  # the inline one is that datum already
            extra[place] = msgspec.msgpack.encode(
                Extra(assets, others[0], others[1], others[2], others[3], place in returns, datum)
            )
    return extra
