"""The leaves of outputs, many at once: the bytes of `records.RecordWriter`, from columns."""

from __future__ import annotations

from struct import Struct as Packed

import msgspec
import numpy as np

from formats.canonical import BYTES, UINT, head
from handlers.records import ADDRESS, MAPS, NOTHING_MORE, PAIRS, SMALL, VALUE, RecordWriter, created_at_of, more_of
from handlers.rendering import OutputRenderer
from storage.history.layout import Extra
from storage.history.mmr import Born
from storage.rows import BlockRow

_read_extra = msgspec.msgpack.Decoder(Extra).decode
_UINT16, _UINT32, _UINT64 = Packed(">BH").pack, Packed(">BI").pack, Packed(">BQ").pack
_ADDRESS, _VALUE = bytes((ADDRESS,)), bytes((VALUE,))


class LeafWriter:
    """Writes the leaves of outputs, block by block."""

    def __init__(self, renderer: OutputRenderer) -> None:
        self._records = RecordWriter(renderer)
        self._names_owners = renderer.names_owners

    def leaves(self, block: BlockRow, born: Born) -> list[bytes]:
        """Return the leaves of outputs that were born in a block, each behind its position.

        NOTE: the hot path of an MMR store. Most outputs are address and value alone.
        """
        heads, values = _heads(born), _unsigned(born.values)
        created_at, entries = created_at_of(block)
        plain, plain_entries = NOTHING_MORE.raw + created_at, NOTHING_MORE.entries + entries
        owner = self._records.owner
        if self._names_owners:
            maps = MAPS[plain_entries:]
            found = [
                b"".join((place, maps[owned], text, value, plain, rest))
                for place, (text, rest, owned), value in zip(heads, map(owner, born.addresses), values, strict=True)
            ]
        else:
            start = _Start(MAPS[2 + plain_entries])
            found = [
                b"".join((place, start[len(address)], address, _VALUE, value, plain))
                for place, address, value in zip(heads, born.addresses, values, strict=True)
            ]
        for at, raw in born.extra.items():
            text, rest, owned = owner(born.addresses[at])
            more, others = more_of(_read_extra(raw).body(born.addresses[at], born.values[at]))
            found[at] = b"".join((heads[at], MAPS[owned + others + entries], text, values[at], more, created_at, rest))
        return found


def _heads(born: Born) -> list[bytes]:
    """Return the positions of leaves with the outpoints behind them."""
    rows = np.empty((len(born.txids), 8 + len(PAIRS) + 32 + 1), np.uint8)
    rows[:, :8], rows[:, 8:-33] = born.positions, np.frombuffer(PAIRS, np.uint8)
    rows[:, -33:-1], rows[:, -1] = born.txids.view(np.uint8).reshape(-1, 32), born.indexes
    heads: list[bytes] = rows.view(f"V{rows.shape[1]}").ravel().tolist()
    for at in np.flatnonzero(born.indexes >= SMALL).tolist():
        heads[at] = heads[at][:-1] + head(UINT, int(born.indexes[at]))
    return heads


def _unsigned(values: list[int]) -> list[bytes]:
    """Return whole numbers in canonical CBOR; most values have more than 16 bits."""
    return [
        _UINT32(26, value)
        if 0xFFFF < value <= 0xFFFF_FFFF
        else _UINT64(27, value)
        if value > 0xFFFF
        else _UINT16(25, value)
        if value > 0xFF
        else head(UINT, value)
        for value in values
    ]


class _Start(dict[int, bytes]):
    """How a record begins whose address has so many bytes."""

    def __init__(self, entries: bytes) -> None:
        self._entries = entries

    def __missing__(self, length: int) -> bytes:
        made = self[length] = self._entries + _ADDRESS + head(BYTES, length)
        return made
