"""Golden bytes of the mountain ranges' tables, and golden roots.

If one of these fails, the format on disk or a root changed: raise `storage.history.layout.FORMAT` and write
docs/format.md first.
"""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from chains import at, block, credential, feed, open_chain, output, prune_all, rows, tx
from mmr_reference import h, roots_of, small_nodes
from test_format import big, summed, value

from handlers.chain import Chain
from handlers.events import BlockApplied
from storage.history.mmr import BIT_NODE, NODE, NOTHING, TABLES, THIN_AT
from storage.history.mmr_nodes import BIT_NODES, NODES, Value, pack, unpack

HASH = bytes(range(32))
MADE = tx("golden", output("ann", 5), output("bob", 0, spendable=False), output("bob", 7))
LEAVES = [  # [[txid, index], {address, value, is a collateral return, slot, height, hash, payment credential}]
    bytes.fromhex(
        f"82 82 5820 {MADE.txid.hex()} {index:02x} a7 00 581d 61{credential(name).hex()} 01 {amount:02x}"
        f"07f4 0814 0901 0a 5820 {HASH.hex()} 0d 581c {credential(name).hex()}"
    )
    for name, amount, index in (("ann", 5, 0), ("bob", 7, 2))
]


def test_tables_have_names() -> None:
    assert TABLES == ("history_mmr_node", "history_mmr_bit_node")
    assert (NODES, BIT_NODES, NOTHING) == (509, 62, b"\xf6")


def test_bytes_on_disk(tmp_path: Path) -> None:
    """The second of three leaves is of an unspendable output."""
    with open_chain(tmp_path, store="mmr") as chain:
        feed(chain, block(None, MADE, hash=HASH))
        left, right, last = h(0, LEAVES[0]), h(1, b"\xf6"), h(3, LEAVES[1])
        bits = h(0, b"\x05" + bytes(127))
        assert rows(chain.store, NODE) == {bytes(8): value(4, left + right + h(2, left, right) + last)}
        assert rows(chain.store, BIT_NODE) == {bytes(8): value(1, bits)}
        assert rows(chain.store, "utxo_meta")[b"store"] == summed(b"mmr")
        outputs = h(4, h(2, left, right), last)
        roots = roots_of(chain)
        assert roots == (4, 3, outputs, bits, h(4, outputs, bits))
        assert roots.root.hex() == "46e60a0a5b7daef01f590c81addd942cfc21147846fafed4a30601b94a38e98a"


def test_the_bytes_of_a_value_that_has_lost_nodes() -> None:
    there = np.array([True, False, False, True, False, True, True, False, True])
    thinned = pack(Value(there, np.frombuffer(bytes(range(160)), np.uint8).reshape(-1, 32)))
    assert thinned == value(0x8000_0009, bytes.fromhex("6901") + bytes(range(160)))
    assert unpack(thinned, 0).at(3) == bytes(range(32, 64))
    assert unpack(thinned, 0).at(4) is None


@pytest.mark.parametrize("nodes", [2, 3])
def test_bytes_of_removed_nodes(nodes: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Two dead siblings are replaced by their parent. A value without nodes has no row."""
    small_nodes(monkeypatch, nodes)
    with open_chain(tmp_path, store="mmr", prune_depth=0, rollback_window=0) as chain:
        last = feed_six(chain)
        before = rows(chain.store, NODE)
        assert list(before) == [big(first) for first in range(0, 11, nodes)]
        feed(chain, last := block(last), block(last))
        prune_all(chain)
        chain.maintain(10)
        left = {key: raw for key, raw in before.items() if key != big(0)}
        if nodes == 3:
            left[big(0)] = value(0x8000_0003, b"\x04" + before[big(0)][8 + 2 * 32 :])
        assert rows(chain.store, NODE) == left


def feed_six(chain: Chain) -> BlockApplied:
    first = block(None, tx("six", *(output("ann") for _ in range(6))))
    last = block(first, tx("spend", spends=[at("six", 0), at("six", 1)]))
    feed(chain, first)
    feed(chain, last)
    return last


def test_thinning_continues(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A turn looks at four values for each block; at the end it begins again."""
    small_nodes(monkeypatch, nodes=1)
    with open_chain(tmp_path, store="mmr", prune_depth=0, rollback_window=0) as chain:
        last = feed_six(chain)
        assert THIN_AT not in rows(chain.store, "utxo_meta")
        feed(chain, last := block(last), block(last))
        prune_all(chain)
        found = []
        for _ in range(4):
            chain.maintain(1)
            found.append(rows(chain.store, "utxo_meta")[b"mmr_thin_at"])
        assert found == [summed(big(n)) for n in (8, 0, 4, 8)]
