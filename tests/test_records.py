"""Leaves are written many at once; each is the canonical CBOR of what a client is given for the same output."""

from __future__ import annotations

from hashlib import blake2b
from random import Random

import cbor2
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


def same(made: Output, index: int = 0, block: BlockRow = BLOCK, *, collateral_return: bool = False) -> None:
    tx = Tx(txid("a"), outputs=[made])
    if collateral_return:
        tx = Tx(txid("a"), valid=False, collateral_return=made)
    (leaf,) = leaves(tx, index, block, LEAVES)
    assert leaf == answered(CODEC, Entry(txid("a"), index, body_of(made, collateral_return=collateral_return), block))
    assert leaf.startswith(outpoint(txid("a"), index))
    assert cbor2.loads(leaf)[0] == [txid("a"), index]


@pytest.mark.parametrize("address", range(len(ADDRESSES)))
def test_every_kind_of_address(address: int) -> None:
    same(output(ADDRESSES[address], 5))
    same(output(ADDRESSES[address], 5), collateral_return=True)


def test_everything_together() -> None:
    same(output(ADDRESSES[3], 2**64 - 1, **RICH), 2**32 - 1, collateral_return=True)


@pytest.mark.parametrize("number", EDGES)
def test_numbers_of_every_length(number: int) -> None:
    same(output("ann", number))
    same(output("ann", 1, assets=[(bytes(28), b"n", max(number, 1))]))
    same(output("ann"), min(number, 2**32 - 1))
    same(output("ann"), block=BlockRow(min(number, 2**32 - 1), number, bytes(32), number, min(number, 2**32 - 1)))


def test_what_is_absent_has_no_key() -> None:
    same(output("ann"), block=BlockRow(0, 0, bytes(32)))
    same(output("ann"), block=BlockRow(0, 0, bytes(32), time=-1))


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
