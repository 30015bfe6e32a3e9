"""A history's bytes on disk. If one of these fails, the format changed: raise `FORMAT` and write docs/format.md."""

from __future__ import annotations

import secrets
import zlib
from hashlib import sha256
from pathlib import Path

import msgspec
import pytest
from chains import at, block, dump, feed, open_chain, output, tx, wallet

from handlers.events import BlockApplied
from storage.history.layout import OUTPUT_RECORD, SPEND, TX_RECORD, TXID_ENTRY, seal_row
from storage.history.runs import Count, Manifest, Merge, Run

KEYS = [3, 5, 7, 11]


@pytest.fixture
def tables(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> dict[str, dict[bytes, bytes]]:
    keys = iter(KEYS)
    monkeypatch.setattr(secrets, "randbits", lambda _: next(keys))
    with open_chain(tmp_path, store="history", indexes=["address_hash"]) as opened:
        for each in chain():
            feed(opened, each)
        return dump(opened.store)


def chain() -> tuple[BlockApplied, BlockApplied]:
    first = block(None, tx("pay", output("ann", 5), output(b"", 0, spendable=False), fee=9, size=300, coinbase=True))
    return first, block(first, tx("spend", output("bob", 4, datum_hash=bytes(32)), spends=[at("pay")]), time=7)


def crc(raw: bytes) -> bytes:
    return zlib.crc32(raw).to_bytes(4, "little")


def value(count: int, raw: bytes) -> bytes:
    body = count.to_bytes(4, "little") + raw
    return crc(body) + body


def prefix(digest: bytes) -> int:
    words = [int.from_bytes(digest[n : n + 8], "little") for n in range(0, 32, 8)]
    x = sum(w * k for w, k in zip(words, KEYS, strict=True)) % (1 << 64)
    x ^= x >> 32
    x = x * 0x9E3779B97F4A7C15 % (1 << 64)
    return x ^ x >> 29


def little(number: int, size: int) -> bytes:
    return number.to_bytes(size, "little", signed=number < 0)


def test_sizes_of_records() -> None:
    assert (TX_RECORD.itemsize, OUTPUT_RECORD.itemsize, SPEND.itemsize, TXID_ENTRY.itemsize) == (64, 24, 16, 24)


def test_a_transaction(tables: dict[str, dict[bytes, bytes]]) -> None:
    key, spend = (0).to_bytes(8, "big"), (2).to_bytes(8, "big")
    first = little(0, 8) + at("pay")[0] + little(9, 8) + little(2 << 3 | 4, 4) + little(1, 4) + little(300, 4)
    second = little(2, 8) + at("spend")[0] + little(-(1 << 63), 8) + little(1 << 3, 4) + little(2, 4) + b"\xff" * 8
    assert tables["history_tx"] == {key: value(1, first + b"\xff" * 4), spend: value(1, second)}


def test_an_output(tables: dict[str, dict[bytes, bytes]]) -> None:
    ann, bob = wallet("ann"), wallet("bob")
    extra = b"\x96\x90\xc4\x20" + bytes(32) + b"\xc0\xc0\xc0\xc2"
    head = little(2, 8) + little(4, 8) + little(len(bob), 4) + little(len(bob) + len(extra), 4)
    assert tables["history_output"] == {
        (0).to_bytes(8, "big"): value(1, little(0, 8) + little(5, 8) + little(len(ann), 4) * 2 + ann),
        (2).to_bytes(8, "big"): value(1, head + bob + extra),
    }


def test_the_unspent_bits(tables: dict[str, dict[bytes, bytes]]) -> None:
    bits = bytes([0b100]) + bytes(127)
    assert tables["history_live"] == {bytes(4): bits + crc(bits)}


def test_an_undo_log(tables: dict[str, dict[bytes, bytes]]) -> None:
    one, two = (1).to_bytes(4, "big") + bytes(4), (2).to_bytes(4, "big") + bytes(4)
    assert tables["history_undo"] == {one: value(0, b""), two: value(1, bytes(16))}


def test_runs(tables: dict[str, dict[bytes, bytes]]) -> None:
    txid, found = at("spend")[0], tables["history_run"]
    entry = little(prefix(txid), 8) + little(2, 8) + txid[24:28] + little(1, 4)
    address = little(prefix(sha256(wallet("bob")).digest()), 8) + little(2, 8)
    spender = little(0, 8) + little(2, 8)
    assert {raw[8:] for raw in found.values()} >= {entry, address, spender}
    for key, raw in found.items():
        assert raw[8:24] == key[4:12][::-1] + key[12:20][::-1]
        assert raw == value(1, raw[8:])


def test_a_filter(tables: dict[str, dict[bytes, bytes]]) -> None:
    key = prefix(at("pay")[0])
    word = sum({1 << (key >> shift & 63) for shift in (0, 6, 12, 18)})
    assert value(1, little(word, 8)) in tables["history_filter"].values()


def test_a_block(tables: dict[str, dict[bytes, bytes]]) -> None:
    row, (_, second) = tables["history_block"][(2).to_bytes(4, "big")], chain()
    assert row[:-4] == b"\x9f\x02\x28\xc4\x20" + second.hash + b"\x07\xc0\x02\x01\x01\x01\x01\xc2\xc0\xc0\xc0\xc0"
    assert row[-4:] == crc(row[:-4])


def test_the_meta_rows(tables: dict[str, dict[bytes, bytes]]) -> None:
    meta = tables["utxo_meta"]
    assert meta[b"format"] == b"\0\0\0\2"
    assert meta[b"state"][:-4] == b"\x97\x94\x03\x05\x07\x0b\x02\x01\x00\x03\xc0\x07"
    first, second = b"\x97\x01\x00\x02\x00\x01\x01\x01", b"\x97\x04\x02\x03\x00\x01\x01\x01"
    assert meta[b"runs:txid"][:-4] == b"\x94\x92" + first + second + b"\x90\x90\x94\x00\xff\x00\x00"
    assert set(meta) == {b"format", b"chain", b"indexes", b"state"} | {
        f"runs:{kind}".encode() for kind in ("txid", "block", "spender", "address_hash")
    }


def test_a_list_of_runs() -> None:
    listed = Manifest([Run(3, 0, 9, 1, 5, 6, 2)], [Merge([3], 4, 1, 2, 7, 8, 1)], [2], Count(3, 0, 4, 1))
    run, merge, count = (
        b"\x97\x03\0\x09\x01\x05\x06\x02",
        b"\x97\x91\x03\x04\x01\x02\x07\x08\x01",
        b"\x94\x03\0\x04\x01",
    )
    raw = b"\x94\x91" + run + b"\x91" + merge + b"\x91\x02" + count
    assert seal_row(listed) == raw + crc(raw)


def test_a_list_of_runs_that_was_written_before_living_entries_were_counted() -> None:
    raw = b"\x93\x91\x96\x03\0\x09\x01\x05\x06\x90\x90"
    listed = msgspec.msgpack.decode(raw, type=Manifest)
    assert (listed.runs, listed.count) == ([Run(3, 0, 9, 1, 5, 6, 5)], Count())
