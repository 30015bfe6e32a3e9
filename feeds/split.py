"""The parts of a chain's events for shards: each shard gets its outputs, and the inputs that spend them.

A part names its shard, and has the transactions of the shard, in whole but for inputs that spend outputs of others, and
of other transactions only their ids and the inputs that spend outputs of the shard. Every transaction has its position
in the whole block. Events without outputs and inputs are the same for all shards.
"""

from __future__ import annotations

import struct
from hashlib import blake2b

import msgspec

from feeds.errors import FeedError
from formats.shards import Shard
from handlers import wire
from handlers.events import BlockApplied, Details, GenesisOutputs, Hash32, Output

_WHOLE = msgspec.Raw(b"\x90")  # an empty list
_FIRST = struct.Struct("<Q").unpack_from
_OutPoint = tuple[bytes, int]


class _Tx(msgspec.Struct, gc=False, forbid_unknown_fields=True, omit_defaults=True):
    """A transaction whose outputs remain bytes. It has the fields of `Tx`."""

    txid: Hash32
    inputs: list[_OutPoint] = []
    outputs: msgspec.Raw = _WHOLE
    valid: bool = True
    collateral: list[_OutPoint] = []
    references: msgspec.Raw = _WHOLE
    collateral_return: Output | None = None
    coinbase: bool = False
    fee: int | None = None
    size: int | None = None
    subtree_index: int | None = None
    raw: bytes | None = None
    version: int | None = None
    lock_time: int | None = None
    previous: list[msgspec.Raw] | None = None
    datums: list[bytes] = []
    details: Details | None = None  # the store of a shard does not keep them
    place: int | None = None
    input_places: list[int] | None = None

    @property
    def spends(self) -> list[_OutPoint]:
        """Return the outputs that it spends."""
        return self.inputs if self.valid else self.collateral


class _Named(msgspec.Struct):
    """An output, of which only the hash of the datum is read."""

    datum_hash: bytes | None = None


class _Block(BlockApplied, frozen=True, tag="BlockApplied"):
    """A block with these transactions."""

    txs: list[_Tx] = []  # type: ignore[assignment]


_decode = msgspec.msgpack.Decoder(_Block).decode
_encode = msgspec.msgpack.Encoder().encode
_names = msgspec.msgpack.Decoder(list[_Named]).decode


def parts(raw: bytes, count: int) -> list[bytes]:
    """Return the parts of an event for the shards 1 to `count`; all of them are MessagePack, without framing.

    Raises:
        FeedError: the event cannot be read, or is a part of a shard already.
    """
    kind = wire.peek(raw, "frames")
    try:
        if kind == "BlockApplied":
            return _parts_of_block(_decode(raw), count)
        if kind == "GenesisOutputs":
            event = wire.decode(raw, "frames")
            assert isinstance(event, GenesisOutputs)
            return _parts_of_genesis(event, count)
    except wire.FAULTS as error:
        raise FeedError(f"{kind} cannot be divided: {error}") from error
    return [raw] * count


def _parts_of_block(block: _Block, count: int) -> list[bytes]:
    if block.shard is not None:
        raise FeedError(f"block {block.height} is a part already, of shard {block.shard}")
    chosen: list[list[_Tx]] = [[] for _ in range(count)]
    found = _revealed(block.txs) if any(tx.datums for tx in block.txs) else {}
    for place, tx in enumerate(block.txs):
        owner, spends = _FIRST(tx.txid)[0] % count, tx.spends
        homes = [_FIRST(txid)[0] % count for txid, _ in spends]
        for shard in {owner, *homes}:
            mine = [n for n, home in enumerate(homes) if home == shard]
            part = _own(tx, mine, found.get(place)) if shard == owner else _foreign(tx, mine)
            part.place = place
            chosen[shard].append(part)
    fields = {name: getattr(block, name) for name in block.__struct_fields__ if name not in {"seq", "txs", "shard"}}
    return [_encode(_Block(**fields, txs=txs, shard=str(Shard(n, count)))) for n, txs in enumerate(chosen, 1)]


def _own(tx: _Tx, mine: list[int], datums: list[bytes] | None) -> _Tx:
    """Return a transaction of the shard with those of the inputs that spend outputs of the shard."""
    if datums is None and len(mine) == len(tx.spends):
        return tx
    part = msgspec.structs.replace(tx)
    if datums is not None:
        part.datums = datums
    if len(mine) < len(tx.spends):
        _choose(part, tx, mine)
        if tx.valid and tx.previous is not None:
            part.previous = [tx.previous[n] for n in mine]
    return part


def _foreign(tx: _Tx, mine: list[int]) -> _Tx:
    """Return what a shard needs of the transaction of another shard."""
    part = _Tx(tx.txid, valid=tx.valid)
    _choose(part, tx, mine)
    return part


def _choose(part: _Tx, tx: _Tx, mine: list[int]) -> None:
    spends = tx.spends
    if tx.valid:
        part.inputs = [spends[n] for n in mine]
    else:
        part.collateral = [spends[n] for n in mine]
    part.input_places = mine


def _revealed(txs: list[_Tx]) -> dict[int, list[bytes]]:
    """Return the datums of a part, by the place of its transaction, where other transactions of the block have some.

    A datum belongs to every output of the block that names it, whichever transaction has it among its witnesses.
    """
    known = {blake2b(datum, digest_size=32).digest(): datum for tx in txs for datum in tx.datums}
    datums = dict[int, list[bytes]]()
    for place, tx in enumerate(txs):
        named = {output.datum_hash for output in _names(tx.outputs)}
        if tx.collateral_return is not None:
            named.add(tx.collateral_return.datum_hash)
        others = [datum for name, datum in known.items() if name in named and datum not in tx.datums]
        if others:
            datums[place] = [*tx.datums, *others]
    return datums


def _parts_of_genesis(event: GenesisOutputs, count: int) -> list[bytes]:
    if event.shard is not None:
        raise FeedError(f"the genesis outputs are a part already, of shard {event.shard}")
    place_of = dict[bytes, int]()
    places = [place_of.setdefault(each.txid, len(place_of)) for each in event.outputs]
    made = list[bytes]()
    for number in range(1, count + 1):
        shard = Shard(number, count)
        mine = [n for n, each in enumerate(event.outputs) if shard.has(each.txid)]
        part = GenesisOutputs(
            outputs=[event.outputs[n] for n in mine], shard=str(shard), places=[places[n] for n in mine]
        )
        made.append(_encode(part))
    return made
