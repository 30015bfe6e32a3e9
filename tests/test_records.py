"""Leaves are written many at once; each is the canonical CBOR of what a client is given for the same output."""

from __future__ import annotations

from hashlib import blake2b
from random import Random

import cbor2
import msgspec
import numpy as np
import pytest
from chains import ADDRESSES, CODEC, LEAVES, Branches, output, random_output, txid
from hypothesis import given
from hypothesis import strategies as st

from handlers.addresses import Codec, codec
from handlers.addresses.plain import Family
from handlers.addresses.shelley import stake_address
from handlers.columns import columns
from handlers.events import BlockApplied, Output, Tx
from handlers.leaves import LeafWriter
from handlers.records import Entry, RecordWriter, outpoint
from handlers.rendering import OutputRenderer
from storage.history.mmr import Born
from storage.rows import BlockRow, Body

EDGES = [0, 1, 23, 24, 255, 256, 65535, 65536, 2**32 - 1, 2**32, 2**53, 2**63, 2**64 - 1]
RICH = {
    "assets": [(bytes(28), b"", 1), (b"\x01" * 28, b"name" * 8, 2**63)],
    "datum_hash": b"\xd1" * 32,
    "inline_datum": bytes(300),
    "script_ref": bytes(70_000),
    "script_ref_hash": b"\xd2" * 28,
}


BLOCK = BlockRow(7, 140, b"\xb1" * 32, 1_757_500_000, 450)


def answered(chain: Codec, entry: Entry) -> bytes:
    """Return an output's pair as an independent encoder has it, and check that a client is given it."""
    body, block = entry.body, entry.block
    owner, datum = chain.credentials(body.address), body.inline_datum
    record = {
        0: body.address,
        1: body.value,
        2: [list(asset) for asset in body.assets] or None,
        3: blake2b(datum, digest_size=32).digest() if datum is not None and not body.datum_hash else body.datum_hash,
        4: datum,
        5: body.script_ref,
        6: body.script_ref_hash,
        7: body.is_collateral_return,
        8: block.slot,
        9: block.height,
        10: block.hash,
        11: block.epoch,
        12: block.time,
        13: owner.payment,
        14: owner.stake,
        15: None if owner.stake is None else stake_address(body.address),
    }
    there = {key: value for key, value in record.items() if value is not None}
    pair: bytes = cbor2.dumps([[entry.txid, entry.index], there], canonical=True)
    assert RecordWriter(OutputRenderer(chain, chain.family)).pair(entry) == pair
    return pair


def leaves(tx: Tx, first: int, block: BlockRow, writer: LeafWriter) -> list[bytes]:
    """Return the leaves of a transaction's outputs, whose indexes begin with `first`."""
    made = columns(BlockApplied(height=block.height, hash=block.hash, txs=[tx]))
    count = len(made.addresses)
    txids, indexes = np.repeat(made.txids, count, axis=0), np.arange(first, first + count)
    positions = np.arange(8 * count, dtype=np.uint8).reshape(-1, 8)
    born = Born(positions, txids, indexes, made.addresses, made.values, made.extra)
    raws = writer.leaves(block, born)
    assert [raw[:8] for raw in raws] == [row.tobytes() for row in positions]
    return [raw[8:] for raw in raws]


def body_of(made: Output, *, collateral_return: bool = False) -> Body:
    others = (made.datum_hash, made.inline_datum, made.script_ref, made.script_ref_hash)
    return Body(made.address, made.value, made.assets, *others, collateral_return)


NONE = BlockRow(0, 0, bytes(32))
EACH: list[tuple[Output, int, BlockRow]] = [
    *((output(address, 5), 0, BLOCK) for address in ADDRESSES),
    (output(ADDRESSES[3], 2**64 - 1, **RICH), 2**32 - 1, BLOCK),
    *((output("ann"), 0, block) for block in (NONE, msgspec.structs.replace(NONE, time=-1))),
    *((output("ann", number), min(number, 2**32 - 1), BLOCK) for number in EDGES),
    *((output("ann", 1, assets=[(bytes(28), b"n", max(number, 1))]), 0, BLOCK) for number in EDGES),
    *((output("ann"), 0, BlockRow(min(n, 2**32 - 1), n, bytes(32), n, min(n, 2**32 - 1))) for n in EDGES),
]


@pytest.mark.parametrize("collateral_return", [False, True])
@pytest.mark.parametrize(("made", "index", "block"), EACH, ids=range(len(EACH)))
def test_a_leaf_of_every_form(made: Output, index: int, block: BlockRow, collateral_return: bool) -> None:
    """Every kind of address, numbers of every length, and fields that are absent."""
    returned = Tx(txid("a"), valid=False, collateral_return=made)
    (leaf,) = leaves(returned if collateral_return else Tx(txid("a"), outputs=[made]), index, block, LEAVES)
    assert leaf == answered(CODEC, Entry(txid("a"), index, body_of(made, collateral_return=collateral_return), block))
    assert leaf.startswith(outpoint(txid("a"), index))
    assert cbor2.loads(leaf)[0] == [txid("a"), index]


@given(st.randoms(use_true_random=False), st.integers(0, 30), st.integers(0, 2**32 - 31))
def test_any_outputs_at_once(random: Random, count: int, first: int) -> None:
    made = [random_output(random, Branches()) for _ in range(count)]
    wanted = [answered(CODEC, Entry(txid("a"), index, body_of(each), BLOCK)) for index, each in enumerate(made, first)]
    assert leaves(Tx(txid("a"), outputs=made), first, BLOCK, LEAVES) == wanted


@pytest.mark.parametrize("family", ["bitcoin", "raw"])
def test_other_families(family: Family) -> None:
    chain, block = codec(family, "mainnet"), BlockRow(1, 1, bytes(32))
    made = [output(address, 3) for address in ADDRESSES]
    wanted = [answered(chain, Entry(txid("a"), index, body_of(each), block)) for index, each in enumerate(made)]
    assert leaves(Tx(txid("a"), outputs=made), 0, block, LeafWriter(OutputRenderer(chain, family))) == wanted
