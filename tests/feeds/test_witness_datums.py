"""Datums among the witnesses of transactions: read in their original bytes, and found in real blocks."""

from __future__ import annotations

from collections.abc import Iterator
from hashlib import blake2b

import pytest
from cbor2 import CBORTag, dumps, loads
from ogmios_messages import Parts
from real_data import found, need
from test_cardano_made_blocks import body, decode, header, only_tx, wrong
from test_cardano_single_blocks import FILES

from feeds.cardano.block import decode_block
from feeds.cardano.chunks import read_chain
from feeds.cardano.eras import ALONZO, BABBAGE, MAINNET, PREVIEW
from feeds.cardano.errors import CutShort
from handlers.columns import columns
from storage.history.layout import to_extra

DATUMS = {  # of a run: how many datums, hashes of them, outputs created with theirs, and other datums of a block
    "cardano/preview-babbage-52558": (10, 14, 13, 2),
    "cardano/preview-genesis-run": (281, 680, 620, 272),
}
SIGNATURES = [[bytes(32), bytes(64)]]
ODD = bytes.fromhex("d8799f1800ff")  # indefinite, and a zero that takes two bytes
UNIT = bytes.fromhex("d87980")


def raw_block(witnesses: bytes, era: int = BABBAGE) -> bytes:
    parts = [dumps(header(1, 10, bytes(32), era)), dumps([body()]), b"\x81" + witnesses, b"\xa0", b"\x80"]
    return b"\x82" + dumps(era) + b"\x85" + b"".join(parts)


def datums_of(witnesses: bytes, era: int = BABBAGE) -> list[bytes]:
    (tx,) = decode(raw_block(witnesses, era)).txs
    assert tx.size == len(dumps(body())) + len(witnesses) + 2
    return tx.datums


@pytest.mark.parametrize(
    "datums",
    [
        *(b"\x82" + ODD + UNIT, b"\x9f" + ODD + UNIT + b"\xff", b"\xd9\x01\x02\x82" + ODD + UNIT),
        *(b"\xd9\x01\x02\x9f" + ODD + UNIT + b"\xff", b"\x83" + ODD + UNIT + ODD, b"\x98\x02" + ODD + UNIT),
    ],
    ids=["array", "indefinite", "set", "indefinite set", "twice", "long head"],
)
@pytest.mark.parametrize(
    ("front", "back"),
    [
        (b"\xa1\x04", b""),
        (b"\xbf\x04", b"\xff"),
        (b"\xa1\x18\x04", b""),
        (b"\xa3\x00" + dumps(SIGNATURES) + b"\x04", b"\x05\x80"),
        (b"\xa2\x18\x1e\x9f\xff\x04", b""),
    ],
    ids=["alone", "indefinite map", "long key", "between others", "behind an unknown key"],
)
def test_datums_keep_their_bytes(datums: bytes, front: bytes, back: bytes) -> None:
    assert datums_of(front + datums + back) == [ODD, UNIT]


def test_any_data_is_one_datum() -> None:
    data = [CBORTag(121, []), {1: [2**70, -1]}, b"x" * 64, [[[]]], 2**64 - 1]
    assert only_tx((body(), {4: data}, None)).datums == [dumps(each) for each in data]


@pytest.mark.parametrize(
    ("witnesses", "what"),
    [
        (b"\x80", "not a map"),
        (b"\xa1\x04\x01", "not an array"),
        (b"\xa1\x04\xd8\x79\x80", "tag 258 of a set is missing"),
        (b"\xa1\x04\xa0", "not an array"),
        (b"\xa2\x60\x04\x04\x80", "not a number"),
        (b"\xa1\x04\x81\xff", "no item begins with 0xff"),
    ],
)
def test_malformed_witnesses_are_refused(witnesses: bytes, what: str) -> None:
    message = wrong(raw_block(witnesses))
    assert what in message and "byte " in message


@pytest.mark.parametrize("datums", [b"\x81" + ODD, b"\x9f" + ODD + b"\xff", b"\xd9\x01\x02\x81\x58\x40" + bytes(64)])
def test_a_block_that_ends_in_a_datum_is_cut_short(datums: bytes) -> None:
    raw = raw_block(b"\xa1\x04" + datums)
    for end in range(len(raw) - len(datums) - 3, len(raw)):
        with pytest.raises(CutShort):
            decode_block(raw[:end], MAINNET)


def witness_sets(raw: bytes) -> Iterator[bytes]:
    """Yield the witness sets of a block as cbor2 decodes them."""
    block = Parts(raw)
    block.enter(2)
    if loads(next(block)) < ALONZO:
        return
    block.enter(5)
    next(block)
    next(block)
    yield from block.items()


def known_to_others(witnesses: bytes) -> set[bytes]:
    found = set[bytes]()
    for key, raw in Parts(witnesses).entries():
        if key == 4:
            found.update(Parts(raw.removeprefix(b"\xd9\x01\x02")).items())
    return found


def test_datums_of_single_blocks() -> None:
    seen = named = 0
    for file in FILES:
        raw = need(file).read_bytes()
        block, _ = decode_block(raw, MAINNET)
        for tx, witnesses in zip(block.txs, witness_sets(raw), strict=False):
            assert set(tx.datums) == known_to_others(witnesses) and len(set(tx.datums)) == len(tx.datums)
            seen += len(tx.datums)
        for extra in map(to_extra, columns(block).extra.values()):
            if extra.datum is not None:
                assert blake2b(extra.datum, digest_size=32).digest() == extra.datum_hash
                named += 1
    assert seen >= 30 and named >= 12


@pytest.mark.parametrize("run", found(DATUMS))
def test_datums_of_preview(run: str) -> None:
    distinct, hashes, given, left = set[bytes](), 0, 0, 0
    for block in read_chain(need(run), PREVIEW):
        for tx in block.txs:
            distinct.update(tx.datums)
            hashes += sum(output.datum_hash is not None for output in tx.outputs) if tx.valid else 0
        made = columns(block)
        given += sum(to_extra(raw).datum is not None for raw in made.extra.values())
        left += len(made.datums)
    assert (len(distinct), hashes, given, left) == DATUMS[run]
