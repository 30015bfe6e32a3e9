"""The leaves of many outputs at once: the same bytes as `records.RecordWriter`, made from columns."""

from __future__ import annotations

from functools import partial
from operator import itemgetter

import msgspec
import numpy as np

from formats.canonical import BYTES, UINT, head
from handlers.records import (
    ADDRESS,
    MAPS,
    NOTHING_MORE,
    PAIRS,
    SMALL,
    VALUE,
    RecordWriter,
    created_at_of,
    more_of,
    script_of,
)
from handlers.rendering import OutputRenderer
from storage.history.arrays import distinct
from storage.history.layout import Bytes, Extra, Numbers
from storage.history.mmr import Born
from storage.rows import BlockRow

_read_extra = msgspec.msgpack.Decoder(Extra).decode
_LIMITS = np.array([SMALL, 1 << 8, 1 << 16, 1 << 32], np.uint64)  # from which on a whole number is written longer:
_WIDTHS = (b"", 1), (b"\x18", 1), (b"\x19", 2), (b"\x1a", 4), (b"\x1b", 8)  # what precedes it, and its bytes
_unsigned = partial(head, UINT)
_ADDRESS, _VALUE = bytes((ADDRESS,)), bytes((VALUE,))
_FEW = 32  # up to this many leaves of one length are written one by one: a call of NumPy takes longer


class LeafWriter:
    """Writes the leaves of outputs, block by block."""

    def __init__(self, renderer: OutputRenderer) -> None:
        self._records = RecordWriter(renderer)
        self._names_owners = renderer.names_owners

    def leaves(self, block: BlockRow, born: Born) -> list[bytes]:
        """Return the leaves of outputs that were created in a block, each after its position.

        NOTE: the hot path of an MMR store. Most outputs are address and value alone.
        """
        created_at, entries = created_at_of(block)
        nothing_more, others = NOTHING_MORE
        plain, plain_entries = nothing_more + created_at, others + entries
        owner, heads = self._records.owner, _heads(born)
        if self._names_owners:
            maps, values = MAPS[plain_entries:], map(_unsigned, born.values.tolist())
            owners = map(owner, born.addresses)
            places = _split(heads, born, np.arange(len(heads)))
            found = [
                b"".join((place, maps[owned], text, value, plain, rest))
                for place, (text, rest, owned), value in zip(places, owners, values, strict=True)
            ]
        else:
            found = _of_scripts(born, heads, MAPS[2 + plain_entries], plain)
        some = np.fromiter(born.extra, np.int64, len(born.extra))
        fields = zip(some.tolist(), _split(heads, born, some), born.values.take(some).tolist(), strict=True)
        for at, place, value in fields:
            text, rest, owned = owner(born.addresses[at])
            more, others = more_of(_read_extra(born.extra[at]))
            start = MAPS[owned + others + entries]
            found[at] = b"".join((place, start, text, _unsigned(value), more, created_at, rest))
        return found


def _of_scripts(born: Born, heads: Bytes, start: bytes, plain: bytes) -> list[bytes]:
    """Return the leaves of outputs whose owner is a locking script, as if they had nothing next to it and a value.

    Those whose scripts and values take as many bytes have leaves of one length, which are rows of an array.
    """
    lengths = np.fromiter(map(len, born.addresses), np.int64, len(born.addresses))
    kinds = lengths * len(_WIDTHS) + _LIMITS.searchsorted(born.values, "right")
    kinds[born.indexes >= SMALL] = -1
    found = np.empty(len(kinds), np.object_)
    for kind in distinct(kinds).tolist():
        some = np.flatnonzero(kinds == kind)
        if kind < 0 or len(some) < _FEW:
            single = zip(_split(heads, born, some), some.tolist(), born.values.take(some).tolist(), strict=True)
            found[some] = [
                b"".join((place, start, script_of(born.addresses[at]), _unsigned(value), plain))
                for place, at, value in single
            ]
            continue
        length, (mark, width) = kind // len(_WIDTHS), _WIDTHS[kind % len(_WIDTHS)]
        scripts = b"".join(itemgetter(*some.tolist())(born.addresses))
        fields = (
            heads.take(some, axis=0),
            np.frombuffer(start + _ADDRESS + head(BYTES, length), np.uint8),
            np.frombuffer(scripts, np.uint8).reshape(len(some), length),
            np.frombuffer(_VALUE + mark, np.uint8),
            born.values.take(some).astype(f">u{width}").view(np.uint8).reshape(-1, width),
            np.frombuffer(plain, np.uint8),
        )
        ends = np.cumsum([field.shape[-1] for field in fields]).tolist()
        rows = np.empty((len(some), ends[-1]), np.uint8)
        for field, end in zip(fields, ends, strict=True):
            rows[:, end - field.shape[-1] : end] = field
        found[some] = rows.view(f"V{ends[-1]}").ravel().tolist()
    leaves: list[bytes] = found.tolist()
    return leaves


def _heads(born: Born) -> Bytes:
    """Return the positions of leaves with the outpoints behind them; an index of more than a byte is not whole."""
    rows = np.empty((len(born.txids), 8 + len(PAIRS) + 32 + 1), np.uint8)
    rows[:, :8], rows[:, 8:-33] = born.positions, np.frombuffer(PAIRS, np.uint8)
    rows[:, -33:-1], rows[:, -1] = born.txids.view(np.uint8).reshape(-1, 32), born.indexes
    return rows


def _split(heads: Bytes, born: Born, some: Numbers) -> list[bytes]:
    """Return some heads, with whole indexes."""
    indexes = born.indexes.take(some)
    found: list[bytes] = heads.take(some, axis=0).view(f"V{heads.shape[1]}").ravel().tolist()
    for at in np.flatnonzero(indexes >= SMALL).tolist():
        found[at] = found[at][:-1] + head(UINT, int(indexes[at]))
    return found
