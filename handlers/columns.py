"""A block as columns: the data of its transactions that the UTXO rule needs, one array for each field.

Inputs and outputs of ordinary blocks are read from the frame's bytes with arrays, without an object for each. A frame
that does not have exactly the expected bytes is decoded the general way, so a client can make this slow, never wrong.
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import chain
from operator import attrgetter

import msgspec
import numpy as np

from handlers import large_submission, wire
from handlers.events import U32, BlockApplied, Count, Details, Hash32, Inbound, OutPoint, Output, Tx
from handlers.extra_columns import details_of, extra_of, witnessed_of
from handlers.part import read_part
from storage.history.batch import Columns, Part, Waiting
from storage.history.layout import NO_COUNT, NO_FEE, Bytes, Flags, Numbers, Words, words
from storage.rows import TxFlag

_EMPTY = msgspec.Raw(b"\x90")


class RawTx(msgspec.Struct, gc=False, forbid_unknown_fields=True):
    """A transaction whose inputs and outputs are bytes still. Others than these fields take the general way."""

    txid: Hash32
    inputs: msgspec.Raw = _EMPTY
    outputs: msgspec.Raw = _EMPTY
    valid: bool = True
    coinbase: bool = False
    fee: int | None = None
    size: int | None = None
    version: int | None = None
    lock_time: int | None = None
    previous: list[tuple[Count, bytes] | None] | None = None
    datums: list[bytes] = []
    place: U32 | None = None
    input_places: list[U32] | None = None
    details: Details | None = None


class RawBlock(BlockApplied, frozen=True, tag="BlockApplied", dict=True):
    """A block whose columns are kept apart, with its message; it has its transactions as `RawTx`, or not at all."""

    txs: list[RawTx] = []  # type: ignore[assignment]


_decode = msgspec.msgpack.Decoder(RawBlock).decode
_BLOCK_HEAD = wire.HEADS["BlockApplied"]


def decode(raw: bytes | bytearray, encoding: wire.Encoding) -> Inbound:
    """Return a message; of a block only the columns are kept, unless it contains bytes of its transactions.

    A submission that would take long to decode is refused.

    Raises:
        Refused: it is none.
    """
    if encoding == "frames":
        if raw.startswith(_BLOCK_HEAD, 1) and (block := read(raw)) is not None:
            return block
        if len(raw) >= large_submission.LONG and wire.peek(raw, encoding) == "TxSubmitted":
            large_submission.check_lists(raw)
    else:
        large_submission.check_json(raw)
    event = wire.decode(raw, encoding)
    if type(event) is BlockApplied and all(tx.raw is None for tx in event.txs):
        return _raw(event, raw, encoding)
    return event


def _raw(block: BlockApplied, message: bytes | bytearray, encoding: wire.Encoding) -> RawBlock:
    """Return a block without its transactions: thousands of objects would wait for the commit, and slow it down."""
    fields = {name: getattr(block, name) for name in block.__struct_fields__ if name != "txs"}
    raw = RawBlock(**fields)
    raw.__dict__.update(columns=columns(block), message=message, encoding=encoding)
    return raw


def read(frame: bytes | bytearray) -> RawBlock | None:
    """Return a frame's block with its columns, or None where only the general decoder can read it."""
    try:
        block = _decode(frame)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
        return None
    txs = block.txs
    if not txs or not all(map(attrgetter("valid"), txs)):
        return None
    inputs = _inputs(list(map(attrgetter("inputs"), txs)))
    outputs = _outputs(list(map(attrgetter("outputs"), txs)))
    if inputs is None or outputs is None or not _has_one_for_each(txs, inputs[0]):
        return None
    txids = words(b"".join(map(attrgetter("txid"), txs)))
    flags = np.fromiter(map(attrgetter("coinbase"), txs), np.uint8, len(txs)) * np.uint8(TxFlag.COINBASE)
    fees, sizes = amounts([tx.fee for tx in txs], NO_FEE), amounts([tx.size for tx in txs], NO_COUNT)
    subtrees, datums = np.full(len(txs), NO_COUNT), list(witnessed_of(txs).values())
    part = read_part(block.shard, txs, inputs[0])
    made = block.__dict__["columns"] = Columns(
        txids, flags, fees, sizes, subtrees, outputs[0], inputs[1], inputs[2], inputs[0], *outputs[1:], {}, datums, part
    )
    if part is None:
        made.details = details_of(txs, inputs[0].tolist())
    block.__dict__.update(message=frame, encoding="frames")
    return block


def _has_one_for_each(txs: list[RawTx], inputs_of: Numbers) -> bool:
    """Return whether `previous` has one entry for each input wherever it is given."""
    entries = list(map(attrgetter("previous"), txs))
    if entries.count(None) == len(entries):
        return True
    return all(each is None or len(each) == count for each, count in zip(entries, inputs_of.tolist(), strict=True))


def whole(block: BlockApplied) -> BlockApplied:
    """Return a block with its transactions as objects.

    Raises:
        Refused: its message can't be read the general way.
    """
    if not isinstance(block, RawBlock):
        return block
    read = wire.decode(block.__dict__["message"], block.__dict__["encoding"])
    assert isinstance(read, BlockApplied)
    return read


def named(columns: Columns) -> tuple[list[bytes], list[OutPoint]]:
    """Return the ids of a block's transactions, and what they spend."""
    ids, previous = columns.txids.tobytes(), columns.previous.tobytes()
    txids = [ids[at : at + 32] for at in range(0, len(ids), 32)]
    parents = [previous[at : at + 32] for at in range(0, len(previous), 32)]
    return txids, list(zip(parents, columns.index.tolist(), strict=True))


def columns(block: BlockApplied) -> Columns:
    """Return a block's columns."""
    if isinstance(block, RawBlock):
        made: Columns = block.__dict__["columns"]
        return made
    txs = block.txs
    spends = [tx.inputs if tx.valid else tx.collateral for tx in txs]
    others = (
        amounts([tx.fee for tx in txs], NO_FEE),
        amounts([tx.size for tx in txs], NO_COUNT),
        amounts([tx.subtree_index for tx in txs], NO_COUNT),
    )
    part = read_part(block.shard, txs, np.array(list(map(len, spends)), np.int64))
    txids = [tx.txid for tx in txs]
    made = joined_columns(txids, _flags(txs), others, spends, list(map(_made, txs)), witnessed_of(txs), part)
    if part is None:
        made.details = details_of(txs, list(map(len, spends)))
    return made


def waiting(block: BlockApplied) -> Waiting:
    """Return a block as it waits for the commit."""
    point, issuer = block.point, block.issuer
    return Waiting(
        point.height,
        point.slot,
        point.hash,
        block.time,
        block.epoch,
        block.size,
        block.prev_hash,
        block.header,
        block.block_id,
        columns(block),
        block.era,
        None if issuer is None else (issuer.vkey, issuer.vrf_vkey, issuer.op_cert, issuer.op_cert_counter),
    )


_MOST_INDEX = np.uint64(0xFFFF_FFFF)
_MOST_AMOUNT = {NO_FEE: (1 << 63) - 1, NO_COUNT: (1 << 31) - 1}
Made = tuple[list[Output], int | None]  # outputs, and which of them is a collateral return


def joined_columns(
    txids: list[bytes],
    flags: Bytes,
    others: tuple[Numbers, Numbers, Numbers],
    spends: list[list[OutPoint]],
    makes: list[Made],
    witnessed: dict[bytes, bytes],
    part: Part | None,
) -> Columns:
    """Return the columns of transactions; `others` are fees, sizes and subtrees."""
    outputs = list(chain.from_iterable([made for made, _ in makes]))
    inputs: list[OutPoint] = list(chain.from_iterable(spends))
    counts = np.array([len(made) for made, _ in makes], np.int64)
    starts = (np.cumsum(counts) - counts).tolist()
    returns = {start + at for start, (_, at) in zip(starts, makes, strict=True) if at is not None}
    named = {output.datum_hash for output in outputs if output.spendable} if witnessed else set()
    return Columns(
        txids=words(b"".join(txids)),
        flags=flags,
        fees=others[0],
        sizes=others[1],
        subtrees=others[2],
        outputs_of=counts,
        previous=words(b"".join([txid for txid, _ in inputs])),
        index=np.array([index for _, index in inputs], np.int64),
        inputs_of=np.array(list(map(len, spends)), np.int64),
        addresses=[output.address for output in outputs],
        values=np.array([output.value for output in outputs], np.uint64),
        spendable=np.array([output.spendable for output in outputs], np.bool_),
        extra=extra_of(outputs, returns, witnessed),
        datums=[datum for digest, datum in witnessed.items() if digest not in named],
        part=part,
    )


def amounts(values: Sequence[int | None], none: int) -> Numbers:
    """Return numbers with `none` in place of missing ones, and of those that are too large for a record."""
    most = _MOST_AMOUNT[none]
    return np.array([none if value is None or not -most <= value <= most else value for value in values], np.int64)


def _flags(txs: list[Tx]) -> Bytes:
    found = bytearray()
    for tx in txs:
        flags = TxFlag.COINBASE if tx.coinbase else 0
        if not tx.valid:
            flags |= TxFlag.INVALID | (TxFlag.COLLATERAL_RETURN if tx.collateral_return is not None else 0)
        found.append(flags)
    return np.frombuffer(bytes(found), np.uint8)


def _made(tx: Tx) -> Made:
    """Return the outputs that a transaction counts: of one that failed none but the collateral return can be."""
    if tx.valid:
        return tx.outputs, None
    outputs = [msgspec.structs.replace(output, spendable=False) for output in tx.outputs]
    if tx.collateral_return is None:
        return outputs, None
    return [*outputs, tx.collateral_return], len(outputs)


# --- bytes -----------------------------------------------------------------------------------------------------------

_ADDRESS, _VALUE = np.frombuffer(b"\xa7address\xc4", np.uint8), np.frombuffer(b"\xa5value", np.uint8)
_UNSPENDABLE = np.frombuffer(b"\xa9spendable\xc2", np.uint8)
_INTEGER = np.full(256, -1, np.int64)  # bytes behind the first one of a MessagePack integer
_INTEGER[:0x80], _INTEGER[0xCC], _INTEGER[0xCD], _INTEGER[0xCE], _INTEGER[0xCF] = 0, 1, 2, 4, 8


def _lists(raws: list[msgspec.Raw]) -> tuple[bytes, Bytes, Numbers, Numbers, Numbers, Numbers]:
    """Return MessagePack arrays joined, as an array too, where each begins and ends, its header's length and count."""
    joined = b"".join(raws)
    ends = np.cumsum(np.fromiter(map(len, raws), np.int64, len(raws)))
    starts = np.concatenate(([0], ends[:-1]))
    array = np.frombuffer(joined + bytes(2), np.uint8)  # so that a header of three bytes can be read anywhere
    head = array[starts]
    long = head == 0xDC
    counts = np.where(long, array[starts + 1].astype(np.int64) << 8 | array[starts + 2], head & 0x0F)
    counts[~long & (head & 0xF0 != 0x90)] = -1
    return joined, array[:-2], starts, ends, np.where(long, 3, 1), counts


def _inputs(raws: list[msgspec.Raw]) -> tuple[Numbers, Words, Numbers] | None:
    """Return how many inputs there are of each transaction, what they spend from, and the index there."""
    _, array, starts, ends, header, counts = _lists(raws)
    padded = np.concatenate((array, np.zeros(64, np.uint8)))
    at = np.flatnonzero((array == 0x92) & (padded[1 : len(array) + 1] == 0xC4) & (padded[2 : len(array) + 2] == 0x20))
    size = _INTEGER[padded[at + 35]]
    at, size = _apart(at, at + 36 + size, size)
    if np.any(size < 0) or not _follow(at, at + 36 + size, starts, ends, header, counts):
        return None
    ids = padded[(at + 3)[:, None] + np.arange(32)].view("<u8")
    index = _integers(padded, at + 35, size)
    if np.any(index > _MOST_INDEX):  # which is refused, and the general decoder names the place
        return None
    return counts, ids, index.astype(np.int64)


def _apart(at: Numbers, end: Numbers, *others: Numbers) -> tuple[Numbers, ...]:
    """Leave out what begins inside the one before it: bytes of a digest or an address that look like a beginning."""
    apart = np.concatenate(([True], at[1:] >= end[:-1])) if len(at) else np.ones(0, np.bool_)
    return tuple(each[apart] for each in (at, *others))


def _outputs(raws: list[msgspec.Raw]) -> tuple[Numbers, list[bytes], Words, Flags] | None:
    """Return how many outputs there are of each transaction, and their addresses, values and flags.

    What has the form of an output's beginning is taken for one, and then each has to end where the next begins.
    """
    joined, array, starts, ends, header, counts = _lists(raws)
    if len(array) < 20:
        return (counts, [], np.empty(0, np.uint64), np.empty(0, np.bool_)) if np.all(counts == 0) else None
    padded = np.concatenate((array, np.zeros(300, np.uint8)))
    at = np.flatnonzero((array[:-1] & 0xFE == 0x82) & (array[1:] == 0xA7))
    at = at[_reads(padded, at + 1, _ADDRESS)]
    length = padded[at + 10].astype(np.int64)
    value = at + 11 + length
    if np.any(value + 16 > len(padded)) or not np.all(_reads(padded, value, _VALUE)):
        return None
    size = _INTEGER[padded[value + 6]]
    end = value + 7 + size
    spendable = padded[at] == 0x82
    if not spendable.all():
        if not np.all(_reads(padded, end[~spendable], _UNSPENDABLE)):
            return None
        end = end + np.where(spendable, 0, len(_UNSPENDABLE))
    if np.any(size < 0) or not _follow(at, end, starts, ends, header, counts):
        return None
    addresses = [joined[a:b] for a, b in zip((at + 11).tolist(), value.tolist(), strict=True)]
    return counts, addresses, _integers(padded, value + 6, size), spendable


def _reads(array: Bytes, at: Numbers, what: Bytes) -> Flags:
    """Return the positions of these bytes."""
    found = np.ones(len(at), np.bool_)
    for offset, byte in enumerate(what.tolist()):
        found &= array[at + offset] == byte
    return found


def _follow(at: Numbers, end: Numbers, starts: Numbers, ends: Numbers, header: Numbers, counts: Numbers) -> bool:
    """Return whether each element begins where the one before it ends, and each list has as many as it announces."""
    if int(counts.sum()) != len(at) or np.any(counts < 0):
        return False
    filled = counts > 0
    last = np.cumsum(counts)[filled] - 1
    first = last - counts[filled] + 1
    expected = np.concatenate(([0], end[:-1]))
    expected[first] = (starts + header)[filled]
    return bool(
        np.all(at == expected) and np.all(end[last] == ends[filled]) and np.all((starts + header == ends) | filled)
    )


def _integers(array: Bytes, at: Numbers, size: Numbers) -> Words:
    """Return MessagePack integers."""
    values = array[at].astype(np.uint64)
    for length in (1, 2, 4, 8):
        some = np.flatnonzero(size == length)
        total = np.zeros(len(some), np.uint64)
        for offset in range(length):
            total = total << np.uint64(8) | array[at[some] + 1 + offset]
        values[some] = total
    return values
