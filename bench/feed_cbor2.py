"""The same blocks through a general CBOR decoder, for `utxod bench feed`: Alonzo and Babbage, from valid files.

It takes hashes where they are due and makes the same events, but checks nothing and stops at nothing: the measure that
our own decoder has to hold against.
"""

from __future__ import annotations

from collections.abc import Iterator
from hashlib import blake2b
from io import BytesIO
from typing import Any

from cbor2 import CBORDecoder

from feeds.cardano.eras import NAMES, Network
from formats.cbor import array, mapping
from formats.scripts import script_hash
from handlers.events import Asset, BlockApplied, OutPoint, Output, Tx

_BREAK = 0xFF


class Items:
    """Decodes item by item, and tracks its position."""

    def __init__(self, raw: bytes) -> None:
        self.raw = raw
        self.stream = BytesIO(raw)
        self.decode = CBORDecoder(self.stream).decode

    def sized(self) -> tuple[Any, int, int]:
        """Return the next item, where it begins and where it ends."""
        begin = self.stream.tell()
        return self.decode(), begin, self.stream.tell()

    def each(self, head: tuple[int, int]) -> Iterator[int]:
        """Go into an array or map, and count its entries."""
        count, at = head
        self.stream.seek(at)
        done = 0
        while done != count:
            if count < 0 and self.raw[self.stream.tell()] == _BREAK:
                self.stream.seek(1, 1)
                return
            yield done
            done += 1


def read_blocks(raw: bytes, network: Network) -> Iterator[BlockApplied]:
    """Return the blocks of a chunk file."""
    items = Items(raw)
    while (at := items.stream.tell()) < len(raw):
        items.stream.seek(at + 3)
        header, begin, end = items.sized()
        height, slot, previous = header[0][:3]
        bodies = [items.sized() for _ in items.each(array(raw, end))]
        sizes = [end - begin + 2 for _, begin, end in bodies]
        for index in items.each(array(raw, items.stream.tell())):
            _, first, last = items.sized()
            sizes[index] += last - first
        for _ in items.each(mapping(raw, items.stream.tell())):
            index = items.decode()
            _, first, last = items.sized()
            sizes[index] += last - first - 1
        invalid = frozenset(items.decode())
        yield BlockApplied(
            height=height,
            hash=blake2b(raw[begin:end], digest_size=32).digest(),
            slot=slot,
            prev_hash=previous,
            time=network.time(slot),
            epoch=network.epoch(slot),
            era=NAMES[raw[at + 1]],
            txs=[
                _tx(body, blake2b(raw[first:last], digest_size=32).digest(), index not in invalid, sizes[index])
                for index, (body, first, last) in enumerate(bodies)
            ],
        )


def _tx(body: dict[int, Any], txid: bytes, valid: bool, size: int) -> Tx:
    return Tx(
        txid,
        _outpoints(body[0]),
        [_output(output) for output in body[1]],
        valid,
        _outpoints(body.get(13, ())),
        _outpoints(body.get(18, ())),
        _output(body[16]) if 16 in body else None,
        fee=body[2],
        size=size,
    )


def _outpoints(item: Any) -> list[OutPoint]:
    return list(dict.fromkeys((txid, index) for txid, index in item))


def _output(item: Any) -> Output:
    if isinstance(item, dict):
        kind, datum = item.get(2, (0, None))
        script = item[3].value if 3 in item else None
        address, value = item[0], item[1]
        datum_hash, inline = (None, datum.value) if kind else (datum, None)
    else:
        address, value, *rest = item
        datum_hash, inline, script = rest[0] if rest else None, None, None
    coin, assets = (value, {}) if isinstance(value, int) else value
    held: list[Asset] = [(p, n, quantity) for p, names in assets.items() for n, quantity in names.items() if quantity]
    return Output(address, coin, held, datum_hash, inline, script, None if script is None else script_hash(script))
