"""Leaves, checks and bytes of a history's mountain ranges.

If golden bytes have to change, raise `FORMAT` and write docs/format.md first.
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from random import Random
from zlib import crc32

import cbor2
import msgspec
import numpy as np
import pytest
from chains import HISTORY_LEAVES, block, credential, dump, feed, open_chain, output, random_output, tx
from test_history_mmr import roots_of, small_values, wrong
from test_mmr_model import h
from test_model import MET

from handlers.addresses import Family, codec
from handlers.events import Output
from handlers.leaves import LeafWriter
from handlers.records import Entry, RecordWriter
from handlers.scribe import Scribe
from storage.disk import Txn
from storage.history.layout import LIVE, Extra, count_of, seal, words
from storage.history.mmr import BIT_NODE, NODE, TABLES, THIN_AT, Born
from storage.history.mmr_arrays import in_bytes
from storage.history.mmr_nodes import Value, pack, unpack
from storage.history.verify import verify
from storage.mmr import U64
from storage.rows import BlockRow, Body


@pytest.mark.parametrize(("family", "network"), [("cardano", "mainnet"), ("bitcoin", "regtest")])
def test_leaves_are_the_records_that_clients_are_given(family: Family, network: str) -> None:
    """Written many at once they have the bytes of one by one, behind the position."""
    scribe, rng = Scribe(codec(family, network), family), Random(5)
    writer = RecordWriter(scribe)
    row = BlockRow(70_000, 1 << 33, bytes(range(32)), None, 5)
    outputs = [random_output(rng, MET) for _ in range(300)]
    outputs += [Output(address, 1 << n) for n, address in enumerate([bytes(129), bytes(4000), b""])]
    bodies = [Body(o.address, o.value, *beside(o), is_collateral_return=n % 7 == 0) for n, o in enumerate(outputs)]
    positions = np.arange(len(bodies)) * 1_000_003
    txids = [rng.randbytes(32) for _ in bodies]
    extra = {
        n: msgspec.msgpack.encode(Extra(*beside(body), is_collateral_return=body.is_collateral_return))
        for n, body in enumerate(bodies)
        if body.is_collateral_return or beside(body) != beside(Output(b"", 0))
    }
    assert 10 < len(extra) < 250
    born = Born(
        in_bytes(positions),
        words(b"".join(txids)),
        positions % 70_000,
        [body.address for body in bodies],
        [body.value for body in bodies],
        extra,
    )
    for n, found in enumerate(LeafWriter(scribe).leaves(row, born)):
        index = int(positions[n]) % 70_000
        assert found == int(positions[n]).to_bytes(8, "big") + writer.pair(Entry(txids[n], index, bodies[n], row))


def beside(of: Output | Body) -> Beside:
    return of.assets, of.datum_hash, of.inline_datum, of.script_ref, of.script_ref_hash


Beside = tuple[list[tuple[bytes, bytes, int]], bytes | None, bytes | None, bytes | None, bytes | None]


Break = Callable[[bytes], bytes]


@pytest.mark.parametrize(
    ("table", "change", "expected"),
    [
        (NODE, lambda raw: raw[:-1] + b"\0", "checksum"),
        (NODE, lambda raw: seal(count_of(raw), bytes(32) + raw[40:]), "is not the hash of its"),
        (NODE, lambda raw: seal(count_of(raw) - 1, raw[8:-32]), "nodes, of 34 in all"),
        (
            NODE,
            lambda raw: pack(unpack(raw, 0)._replace(there=np.arange(7) > 0, hashes=unpack(raw, 0).hashes[1:])),
            "need",
        ),
        (NODE, lambda raw: b"", "proofs need it"),
        (BIT_NODE, lambda raw: seal(1, bytes(32)), "not the hashes of what is below them"),
        (BIT_NODE, lambda raw: b"", "not the hashes of what is below them"),
        (LIVE, lambda raw: b"", "not the hashes of what is below them"),
    ],
)
def test_verify_finds_what_is_wrong(tmp_path: Path, table: str, change: Break, expected: str) -> None:
    with small_values(), open_chain(tmp_path, store="mmr") as chain:
        first = block(None, tx("some", *(output("ann") for _ in range(18))))
        feed(chain, first)
        assert wrong(chain) == []
        disk = chain.store.disk

        def damage(txn: Txn) -> None:
            key, raw = next(iter(txn.cursor(disk.tables[table])))
            if changed := change(raw):
                txn.put(key, changed, db=disk.tables[table])
            else:
                txn.delete(key, db=disk.tables[table])

        disk.write(damage)
        found = wrong(chain)
        assert any(expected in each for each in found), found
        assert verify(disk, quick=True, leaves=HISTORY_LEAVES) != []


@pytest.mark.parametrize(("name", "value"), [(b"store", b"mmx"), (THIN_AT, b"1234567")])
def test_verify_finds_what_is_wrong_in_the_meta_table(tmp_path: Path, name: bytes, value: bytes) -> None:
    with open_chain(tmp_path, store="mmr") as chain:
        feed(chain, block(None, tx("some", output("ann"))))
        disk = chain.store.disk
        assert verify(disk, leaves=HISTORY_LEAVES) == []
        disk.write(lambda txn: txn.put(name, value, db=disk.tables["utxo_meta"]))
        assert len(verify(disk, quick=True, leaves=HISTORY_LEAVES)) == 1


def test_verify_finds_what_is_behind_the_end(tmp_path: Path) -> None:
    with small_values(), open_chain(tmp_path, store="mmr") as chain:
        feed(chain, block(None, tx("some", output("ann"))))
        for name in TABLES:
            chain.store.disk.write(
                lambda txn, name=name: txn.put(U64.pack(14), seal(1, bytes(32)), db=chain.store.disk.tables[name])  # type: ignore[misc]
            )
            assert any(f"{name} has a value for the nodes from 14 on" in each for each in wrong(chain))


# --- golden bytes: if one of these has to change, raise FORMAT and write docs/format.md first ----------------------


GOLDEN = [("ann", 5), ("bob", 7)]


def test_bytes_on_disk(tmp_path: Path) -> None:
    """Three leaves, the second for an output that nobody can spend; hashes are of what docs/format.md says."""
    with open_chain(tmp_path, store="mmr", prune_depth=0, rollback_window=0) as chain:
        made = tx("golden", output("ann", 5), output("bob", 0, spendable=False), output("bob", 7))
        feed(chain, block(None, made, hash=b"\xb1" * 32))
        birth = {7: False, 8: 20, 9: 1, 10: b"\xb1" * 32}
        people = [{0: b"\x61" + credential(name), 1: value, 13: credential(name)} for name, value in GOLDEN]
        leaves = [[[made.txid, 2 * n], each | birth] for n, each in enumerate(people)]
        first, third = (cbor2.dumps(each, canonical=True) for each in leaves)
        said = [first, b"\xf6", third]
        left, right, last = h(0, said[0]), h(1, said[1]), h(3, said[2])
        nodes = left + right + h(2, left, right) + last
        bits = h(0, b"\x05" + bytes(127))
        tables = dump(chain.store)
        assert tables[NODE] == {bytes(8): crc32(b"\x04\0\0\0" + nodes).to_bytes(4, "little") + b"\x04\0\0\0" + nodes}
        assert tables[BIT_NODE] == {bytes(8): crc32(b"\x01\0\0\0" + bits).to_bytes(4, "little") + b"\x01\0\0\0" + bits}
        assert tables["utxo_meta"][b"store"] == b"mmr"
        assert roots_of(chain)[2:4] == (h(4, h(2, left, right), last), bits)
    there = np.array([True, False, False, True, False, True, True, False, True])
    thinned = pack(Value(there, np.frombuffer(bytes(range(160)), np.uint8).reshape(-1, 32)))
    body = bytes.fromhex("09000080 6901") + bytes(range(160))
    assert thinned == crc32(body).to_bytes(4, "little") + body
    assert unpack(thinned, 0).at(3) == bytes(range(32, 64)) and unpack(thinned, 0).at(4) is None
