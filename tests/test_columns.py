"""Blocks as columns: what is read from the bytes of a frame is what the decoder of objects says."""

from __future__ import annotations

from collections import Counter
from random import Random

import msgspec
import numpy as np
import pytest
from chains import random_chain, refused
from msgspec.structs import fields

from handlers import wire
from handlers.columns import RawBlock, columns, decode, read
from handlers.events import BlockApplied, Details, GenesisOutput, GenesisOutputs, Output, Tx
from handlers.genesis import genesis_columns
from handlers.refusal import Refused
from storage.history.batch import Columns


def frame_of(block: BlockApplied) -> bytes:
    return wire.encode(block, "frames")[wire.LENGTH.size :]


def plain(made: Columns) -> list[object]:
    parts = [getattr(made, field.name) for field in fields(made)]
    return [part.tolist() if isinstance(part, np.ndarray) else part for part in parts]


def simple(rng: Random, block: BlockApplied) -> BlockApplied:
    txs = [
        Tx(
            tx.txid,
            [(txid, rng.choice((index, 200, 70_000))) for txid, index in tx.inputs],
            [Output(o.address * rng.choice((0, 1, 3)), rng.choice((0, 127, 128, o.value))) for o in tx.outputs],
            fee=rng.choice((None, 5, 1 << 40)),
            size=rng.choice((None, 300)),
            coinbase=tx.coinbase,
            details=rng.choice((None, Details(), Details(invalid_hereafter=5, withdrawn=(1 << 64) - 1))),
        )
        for tx in block.txs
    ]
    outputs = [Output(b"\x6a", 0, spendable=False)] * rng.randrange(2) + [Output(b"a", 1)] * rng.choice((0, 20, 300))
    return msgspec.structs.replace(block, txs=[*txs, Tx(rng.randbytes(32), outputs=outputs)])


def test_columns_of_bytes_are_those_of_objects() -> None:
    rng, met = Random(1), Counter[str]()
    for block in random_chain(rng, 60):
        for each in (block, simple(rng, block)):
            raw = read(frame_of(each))
            met["fast" if raw is not None else "general"] += 1
            if raw is not None:
                assert isinstance(raw, RawBlock)
                assert plain(columns(raw)) == plain(columns(each))
                assert (raw.point, raw.time, raw.prev_hash) == (each.point, each.time, each.prev_hash)
    assert min(met["fast"], met["general"]) > 20, met


def test_bytes_that_resemble_an_output_are_read_the_general_way() -> None:
    inside = b"\x82\xa7address\xc4\x01a\xa5value\x01"
    outputs = [Output(b"x" + inside, 1), Output(inside, 2)]
    raw = read(frame_of(BlockApplied(height=1, hash=bytes(32), txs=[Tx(txid=bytes(32), outputs=outputs)])))
    assert raw is None or columns(raw).addresses == [b"x" + inside, inside]


@pytest.mark.parametrize("place", range(1, 120, 3))
@pytest.mark.parametrize("flip", [0xFF, 1, 0x80])
def test_a_changed_frame_is_read_as_by_the_decoder(place: int, flip: int) -> None:
    tx = Tx(txid=bytes(32), inputs=[(bytes(32), 1)], outputs=[Output(b"a", 1)])
    frame = bytearray(frame_of(BlockApplied(height=1, hash=bytes(32), txs=[tx])))
    frame[-place] ^= flip
    if (raw := read(frame)) is not None:
        assert plain(columns(raw)) == plain(columns(msgspec.msgpack.decode(bytes(frame), type=BlockApplied)))


@pytest.mark.parametrize("index", [(1 << 32) - 1, 1 << 32, 1 << 63, (1 << 64) - 1])
def test_an_index_that_is_too_large_is_refused(index: int) -> None:
    """Read as a signed number, the index would name an output of an earlier transaction."""
    block = BlockApplied(height=1, hash=bytes(32), txs=[Tx(bytes(32), [(bytes(32), index)], [Output(b"a", 1)])])
    frame = frame_of(block)
    if index < 1 << 32:
        made = decode(frame, "frames")
        assert isinstance(made, RawBlock) and columns(made).index.tolist() == [index]
    else:
        assert read(frame) is None
        assert "$.txs[0].inputs[0][1]" in refused("malformed", lambda: decode(frame, "frames")).message


@pytest.mark.parametrize("reported", [2, 1, 3, 0])
def test_previous_outputs_are_given_for_each_input_or_refused(reported: int) -> None:
    spends = [(bytes(32), 0), (bytes(32), 1)]
    tx = Tx(bytes(32), spends, [Output(b"a", 1)], version=2, lock_time=3, previous=[None, (5, b"s"), None][:reported])
    frame = frame_of(BlockApplied(height=1, hash=bytes(32), txs=[Tx(bytes(32), [], [Output(b"a", 1)]), tx]))
    if reported == len(spends):
        assert isinstance(read(frame), RawBlock)
    else:
        assert read(frame) is None
        assert "$.txs[1].previous" in refused("malformed", lambda: decode(frame, "frames")).message


def test_a_block_of_odd_amounts_keeps_what_fits() -> None:
    odd = [(None, None), (-5, -1), ((1 << 63) - 1, (1 << 31) - 1), (1 << 63, 1 << 31)]
    txs = [Tx(bytes([n]) * 32, fee=fee, size=size, subtree_index=size) for n, (fee, size) in enumerate(odd)]
    made = columns(BlockApplied(height=1, hash=bytes(32), txs=txs))
    assert made.fees.tolist() == [-(1 << 63), -5, (1 << 63) - 1, -(1 << 63)]
    assert made.sizes.tolist() == [-1, -1, (1 << 31) - 1, -1]


def test_a_frame_of_two_types_is_refused() -> None:
    frame = frame_of(BlockApplied(height=1, hash=bytes(32), txs=[Tx(bytes(32))]))
    one_more, other = bytes([frame[0] + 1]), b"\xa4type\xa5Hello"
    for both in (one_more + other + frame[1:], one_more + frame[1:] + other):
        with pytest.raises(Refused):
            decode(both, "frames")


@pytest.mark.parametrize("index", [1 << 20, (1 << 20) + 1])
def test_a_genesis_index_that_is_too_large_is_named(index: int) -> None:
    event = GenesisOutputs(outputs=[GenesisOutput(bytes(32), index, Output(b"a", 1))])
    if index > 1 << 20:
        with pytest.raises(ValueError, match=r"\$\.outputs\[0\].*larger than 1048576"):
            genesis_columns(event)
    else:
        assert genesis_columns(event).outputs_of.tolist() == [index + 1]


def test_genesis_indexes_that_reach_over_too_many_outputs_are_refused() -> None:
    """Every index below one that is listed takes a number, so a short message could ask for any number of them."""
    many = [GenesisOutput(bytes([n]) * 32, 1 << 20, Output(b"a", 1)) for n in range(5)]
    with pytest.raises(ValueError, match=r"\$\.outputs: the indexes reach over 5,242,885 outputs, more than 4,194,304"):
        genesis_columns(GenesisOutputs(outputs=many))
