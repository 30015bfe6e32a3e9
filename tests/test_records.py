"""A leaf is written at once, for speed; it is the canonical CBOR of what a client is given for the same output."""

from __future__ import annotations

from hashlib import blake2b

import cbor2
import pytest
from chains import ADDRESSES, CODEC, LEAVES, Branches, output, random_output, txid
from handlers.ledger import body
from hypothesis import given
from hypothesis import strategies as st

from handlers.addresses import Codec, codec
from handlers.addresses.plain import Family
from handlers.addresses.shelley import stake_address
from handlers.events import Output
from handlers.records import Entry, RecordWriter, outpoint
from handlers.scribe import Scribe
from storage.rows import BlockRow, Body, unpack

EDGES = [0, 1, 23, 24, 255, 256, 65535, 65536, 2**32 - 1, 2**32, 2**53, 2**63, 2**64 - 1]
RICH = {
    "assets": [(bytes(28), b"", 1), (b"\x01" * 28, b"name" * 8, 2**63)],
    "datum_hash": b"\xd1" * 32,
    "inline_datum": bytes(300),
    "script_ref": bytes(70_000),
    "script_ref_hash": b"\xd2" * 28,
}


def answered(chain: Codec, txid: bytes, index: int, raw: bytes, block: BlockRow) -> bytes:
    """Return an output's pair as an encoder that somebody else wrote has it, and check that a client is given it."""
    body, scribe = unpack(Body, raw, "a body"), Scribe(chain, chain.family)
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
    raw_pair: bytes = cbor2.dumps([[txid, index], there], canonical=True)
    assert RecordWriter(scribe).pair(Entry(txid, index, body, block)) == raw_pair
    return raw_pair


def same(made: Output, index: int = 0, block: BlockRow | None = None, *, collateral_return: bool = False) -> None:
    block = block or BlockRow(7, 140, b"\xb1" * 32, 1_757_500_000, 450)
    raw = body(made, collateral_return=collateral_return)
    leaf = LEAVES(block)(txid("a"), index, raw)
    assert leaf == answered(CODEC, txid("a"), index, raw, block)
    assert leaf.startswith(outpoint(txid("a"), index))
    assert cbor2.loads(leaf)[0] == [txid("a"), index]


@pytest.mark.parametrize("address", range(len(ADDRESSES)))
def test_every_kind_of_address(address: int) -> None:
    same(output(ADDRESSES[address], 5))
    same(output(ADDRESSES[address], 5), collateral_return=True)


@pytest.mark.parametrize("field", RICH)
def test_every_field_alone(field: str) -> None:
    same(output("ann", 5, **{field: RICH[field]}))


def test_everything_together() -> None:
    same(output(ADDRESSES[3], 2**64 - 1, **RICH), 2**32 - 1, collateral_return=True)


@pytest.mark.parametrize("number", EDGES)
def test_numbers_of_every_length(number: int) -> None:
    same(output("ann", number))
    same(output("ann", 1, assets=[(bytes(28), b"n", max(number, 1))]))
    same(output("ann"), min(number, 2**32 - 1))
    same(output("ann"), block=BlockRow(min(number, 2**32 - 1), number, bytes(32), number, min(number, 2**32 - 1)))


@pytest.mark.parametrize("length", [0, 1, 23, 24, 255, 256, 65535, 65536])
def test_texts_and_bytes_of_every_length(length: int) -> None:
    same(output(b"\x6a" + bytes(length)))
    same(output("ann", inline_datum=bytes(length)))


def test_what_is_absent_has_no_key() -> None:
    same(output("ann"), block=BlockRow(0, 0, bytes(32)))
    same(output("ann"), block=BlockRow(0, 0, bytes(32), time=-1))


@given(st.randoms(use_true_random=False), st.integers(0, 2**32 - 1))
def test_any_output(random: object, index: int) -> None:
    same(random_output(random, Branches()), index)  # type: ignore[arg-type]


@pytest.mark.parametrize("family", ["bitcoin", "raw"])
def test_other_families(family: Family) -> None:
    chain = codec(family, "mainnet")
    block = BlockRow(1, 1, bytes(32))
    for address in ADDRESSES:
        raw = body(output(address, 3))
        assert RecordWriter(Scribe(chain, family))(block)(txid("a"), 1, raw) == answered(
            chain, txid("a"), 1, raw, block
        )
