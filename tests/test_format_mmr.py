"""Golden bytes of what an MMR store keeps beside the set.

If this fails, the format on disk changed, or a root did: raise `storage.utxo.FORMAT` and write `docs/format.md` first.
"""

from __future__ import annotations

from hashlib import blake2b
from pathlib import Path

from chains import block, feed, open_chain, prune_all
from storage.mmr_store import TABLES
from test_format import BLOCKS, EMBEDDED, GENESIS, GOLDEN, KEY, PLAIN, in_hex, tell

NODES = {  # positions of five leaves: the genesis output, 1/0/0, 1/0/2, 2/0/0, 2/1/1
    0: "59f3118a93a03c5ea68758db365cbe1e321ff7b0919761ddb6eabd826b46b8c3",
    1: "fac466a173b8f45b76f68d3f19a5a7a5ba019ed09338599f2e755da18b0e5cf0",
    2: "a52cc2fd71cae9c001503e91c92cfe5d39c6cdb88643d75433cd925395a9d085",
    3: "0e02c85be8fd1e5b68e5e840f305e77c36b849b3a4fb6ab5d101f48ffdb77466",
    4: "15b114c0de327b925bf89a1e1c8b1c9a20e4d76ee839c3f9a84c3d9f91b761e0",
    5: "420848edeb48176051ef366c7ecf6442cd3043610629f4995a55b29ff61c3eb9",
    6: "5a891224595f7373d2d9c7ef9e0e4dc303e59ae80e906304c1cb1ae8f792b771",
    7: "39dfe6a348667859776614491526d94cd18228bb24ac10079bf175144c17163d",
}
BITS = "28" + "00" * 127  # leaves 2 and 4 are unspent
MMR = {
    "utxo_mmr_nodes": {f"{position:016x}": node for position, node in NODES.items()},
    "utxo_mmr_bits": {"00" * 8: BITS},
    "utxo_mmr_bit_nodes": {"00" * 8: "2691d56923df89e5739d0ad99b1ce8c5c5cf5de58824ce9092dcca7a0bc59424"},
    "utxo_mmr_tx": {  # first leaf; then runs where the outputs are not 0, 1, 2, ...: from which index, how many before
        "0000000000000000": f"{0:016x} 00000007 00000000",
        "0000000100000000": f"{1:016x} 00000000 00000000 00000002 00000001",  # 1 is unspendable
        "0000000200000000": f"{3:016x}",
        "0000000200000001": f"{4:016x} 00000001 00000000",  # a collateral return
    },
    "utxo_mmr_dead": {},
}
LEAF_0 = (  # [[txid, 7], {address, value, is a collateral return, slot, height, hash, payment credential}]
    f"82 82 5820{GENESIS} 07 a7 00 581d{PLAIN} 01 1903e8 07f4 0800 0900 0a 5820{'00' * 32} 0d 581c{KEY}"
)


def plain(rows: dict[str, str]) -> dict[str, str]:
    return {key: value.replace(" ", "") for key, value in rows.items()}


def h(number: int, data: bytes) -> bytes:
    return blake2b(number.to_bytes(8, "big") + data, digest_size=32).digest()


def test_bytes_on_disk(tmp_path: Path) -> None:
    """The tables of the set are those of a classic store, but for the undo records and two rows of `utxo_meta`."""
    with open_chain(tmp_path, store="mmr") as chain:
        tell(chain)
        tables = in_hex(chain)
    for table in TABLES:
        assert tables[table] == plain(MMR[table]), table
    more = {b"store".hex(): b"mmr".hex(), b"leaves".hex(): f"{5:016x}"}
    assert tables["utxo_meta"] == plain(GOLDEN["utxo_meta"]) | more
    undos = plain(GOLDEN["utxo_block_delta"])  # with one field more: how many leaves there were before
    assert tables["utxo_block_delta"] == {
        "00000001": "98" + undos["00000001"][2:] + "01",
        "00000002": "98" + undos["00000002"][2:] + "03",
    }
    same = set(GOLDEN) - {"utxo_meta", "utxo_block_delta"}
    assert {name: tables[name] for name in same} == {name: plain(GOLDEN[name]) for name in same}


def test_bytes_of_undo_with_bodies(tmp_path: Path) -> None:
    with open_chain(tmp_path, store="mmr", self_contained=True) as chain:
        tell(chain)
        assert in_hex(chain)["utxo_block_delta"]["00000002"] == "98" + plain(EMBEDDED)["00000002"][2:] + "03"


def test_the_hashes_are_of_what_is_said(tmp_path: Path) -> None:
    """A leaf of its record, a parent of its children, the root of the peaks, all with their positions in front."""
    node = {position: bytes.fromhex(raw) for position, raw in NODES.items()}
    with open_chain(tmp_path, store="mmr") as chain:
        assert h(0, bytes.fromhex(LEAF_0)) == node[0]
        assert h(2, node[0] + node[1]) == node[2] and h(6, node[2] + node[5]) == node[6]
        tell(chain)
        assert chain.store.mmr is not None
        with chain.store.disk.read() as txn:
            roots = chain.store.mmr.roots(txn)
    bits = h(0, bytes.fromhex(BITS))
    assert bits.hex() == MMR["utxo_mmr_bit_nodes"]["00" * 8]
    outputs = h(8, node[6] + node[7])
    assert roots == (8, 5, outputs, bits, h(8, outputs + bits))


def test_bytes_of_what_was_let_go(tmp_path: Path) -> None:
    """Of two dead siblings their parent is left, with a mark behind its hash; so is a dead leaf beside a live one."""
    with open_chain(tmp_path, store="mmr", prune_depth=0, rollback_window=0) as chain:
        tell(chain)
        feed(chain, third := block(BLOCKS[-1], hash=b"\xb3" * 32))
        feed(chain, block(third, hash=b"\xb4" * 32))
        chain.may_prune = True
        chain.prune("outputs", "undo")
        waiting = in_hex(chain)
        assert waiting["utxo_mmr_dead"] == {"00" * 8: f"{0:016x}{1:016x}{3:016x}"}
        assert waiting["utxo_mmr_nodes"] == MMR["utxo_mmr_nodes"]
        prune_all(chain)
        left = in_hex(chain)
    nodes = {position: node + ("01" if position in (2, 4) else "") for position, node in NODES.items() if position > 1}
    assert left["utxo_mmr_nodes"] == {f"{position:016x}": node for position, node in nodes.items()}
    assert left["utxo_mmr_dead"] == {}
    kept = ("0000000100000000", "0000000200000001")
    assert left["utxo_mmr_tx"] == {key: plain(MMR["utxo_mmr_tx"])[key] for key in kept}
