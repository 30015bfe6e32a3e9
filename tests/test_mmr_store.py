"""The MMR of a store: leaves, values of nodes, removed nodes, what proofs need."""

from __future__ import annotations

from pathlib import Path
from random import Random

import msgspec
import numpy as np
import pytest
from chains import (
    LEAVES,
    Branches,
    Options,
    at,
    back_to,
    block,
    feed,
    open_chain,
    output,
    prune_all,
    random_output,
    rows,
    tx,
)
from daemons import write_config
from mmr_reference import nodes_of, proof_of, prover, roots_of, small_nodes, wrong

from config.load import load
from daemon import offline
from handlers.addresses import Family, codec
from handlers.chain import Chain
from handlers.events import BlockApplied, Output, Pruned
from handlers.leaves import LeafWriter
from handlers.proofs import NoProof, check
from handlers.records import Entry, RecordWriter
from handlers.rendering import OutputRenderer
from storage import mmr
from storage.disk import Txn
from storage.errors import Damaged
from storage.history.layout import Extra, words
from storage.history.mmr import NODE, Born
from storage.history.mmr_arrays import in_bytes
from storage.history.mmr_nodes import Value, pack, unpack
from storage.history.verify import verify
from storage.mmr import U64
from storage.rows import BlockRow, Body

OtherFields = tuple[list[tuple[bytes, bytes, int]], bytes | None, bytes | None, bytes | None, bytes | None]


@pytest.mark.parametrize("few", [2, 1 << 30], ids=["leaves of one length together", "one by one"])
@pytest.mark.parametrize(("family", "network"), [("cardano", "mainnet"), ("bitcoin", "regtest")])
def test_leaves_are_the_records_that_clients_are_given(
    monkeypatch: pytest.MonkeyPatch, family: Family, network: str, few: int
) -> None:
    monkeypatch.setattr("handlers.leaves._FEW", few)
    renderer, rng = OutputRenderer(codec(family, network), family), Random(5)
    writer, row = RecordWriter(renderer), BlockRow(70_000, 1 << 33, bytes(range(32)), None, 5)
    values = [limit + n for limit in (0, 24, 1 << 8, 1 << 16, 1 << 32, (1 << 64) - 2) for n in (-1, 0, 1)][1:]
    lengths = (0, 1, 23, 24, 129, 255, 256, 4000)
    outputs = [random_output(rng, Branches()) for _ in range(300)]
    outputs += [Output(bytes([n & 255]) * rng.choice(lengths), rng.choice(values)) for n in range(400)]
    bodies = [Body(o.address, o.value, *others(o), is_collateral_return=n % 7 == 0) for n, o in enumerate(outputs)]
    indexes = [rng.choice((0, 1, 22, 23, 24, 255, 256, 70_000)) if n % 3 else 1 for n in range(len(bodies))]
    positions = np.arange(len(bodies)) * 1_000_003
    txids = [rng.randbytes(32) for _ in bodies]
    extra = {
        n: msgspec.msgpack.encode(Extra(*others(body), is_collateral_return=body.is_collateral_return))
        for n, body in enumerate(bodies)
        if body.is_collateral_return or others(body) != others(Output(b"", 0))
    }
    born = Born(
        in_bytes(positions),
        words(b"".join(txids)),
        np.array(indexes),
        [body.address for body in bodies],
        np.array([body.value for body in bodies], np.uint64),
        extra,
    )
    for n, found in enumerate(LeafWriter(renderer).leaves(row, born)):
        entry = Entry(txids[n], indexes[n], bodies[n], row)
        assert found == int(positions[n]).to_bytes(8, "big") + writer.pair(entry)


def others(of: Output | Body) -> OtherFields:
    return of.assets, of.datum_hash, of.inline_datum, of.script_ref, of.script_ref_hash


def test_a_store_of_several_chunks_and_values(tmp_path: Path) -> None:
    with open_chain(tmp_path, store="mmr") as chain:
        first = block(None, *(tx(f"fund {n}", *(output("ann") for _ in range(500))) for n in range(5)))
        feed(chain, first)
        before = roots_of(chain), nodes_of(chain)
        assert [len(value) for value in before[1][0].values()] == [8 + 509 * 32] * 9 + [8 + (4995 - 9 * 509) * 32]
        spends = [at("fund 0", 7), at("fund 4", 60)]
        feed(chain, block(first, tx("spend", *(output("bob") for _ in range(600)), spends=spends)))
        assert wrong(chain) == []
        assert roots_of(chain).leaves == 3100
        with prover(chain) as prove:
            for point, unspent in ((at("fund 0", 7), False), (at("fund 4", 61), True), (at("spend", 599), True)):
                proof = prove(point)
                check(proof)
                assert proof.unspent == unspent
        assert chain.rollback(back_to(first))
        assert (roots_of(chain), nodes_of(chain)) == before
        assert wrong(chain) == []


def test_a_rollback_over_a_lost_node_changes_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The peaks are read from the value at the cut, so that value must be complete."""
    small_nodes(monkeypatch)
    blocks = list[BlockApplied]()
    for n in range(6):
        blocks.append(block(blocks[-1] if blocks else None, tx(f"pay {n}", output("ann"), output("bob"))))
    with open_chain(tmp_path, store="mmr") as chain:
        feed(chain, *blocks)
        disk, key = chain.store.disk, U64.pack(7)

        def damage(txn: Txn) -> None:
            found = unpack(txn.get(key, b"", db=disk.tables[NODE]), 7)
            there = np.arange(len(found.there)) != 1
            txn.put(key, pack(Value(there, found.hashes[there])), db=disk.tables[NODE])

        disk.write(damage)
        before = {name: rows(chain.store, name) for name in disk.tables}
        with pytest.raises(Damaged, match="some of the 3 nodes from 7 on are missing"):
            chain.rollback(back_to(blocks[2]))
        assert {name: rows(chain.store, name) for name in disk.tables} == before


def test_nodes_of_blocks_that_may_be_rolled_back_are_needed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    small_nodes(monkeypatch)
    with open_chain(tmp_path, store="mmr") as chain:
        feed(chain, block(None, tx("nothing", *(output("ann", 0, spendable=False) for _ in range(4)))))
        disk, key = chain.store.disk, U64.pack(0)
        found = unpack(rows(chain.store, NODE)[key], 0)
        disk.write(lambda txn: txn.put(key, pack(Value(np.arange(7) > 0, found.hashes[1:])), db=disk.tables[NODE]))
        assert wrong(chain) == ["node 0 of the mountain range is missing, but proofs need it"]


def test_a_proof_does_not_change_when_its_neighbour_is_removed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """This is case UTXO-105: the first leaves of four are removed, and the proof of the last one stays the same."""
    small_nodes(monkeypatch, nodes=3)
    with open_chain(tmp_path, store="mmr", prune_depth=0, rollback_window=0) as chain:
        first = block(None, tx("four", *(output("ann", n) for n in range(4))))
        second = block(first, tx("spend", spends=[at("four", 0), at("four", 1), at("four", 2)]))
        feed(chain, first, second)
        before = proof_of(chain, at("four", 3))
        feed(chain, third := block(second), block(third))
        prune_all(chain)
        chain.maintain(10)
        with chain.store.disk.read() as txn:
            assert chain.store.mmr is not None
            nodes = chain.store.mmr.nodes(txn)
            assert [position for position in range(7) if nodes.find(position) is None] == [0, 1]
        after = proof_of(chain, at("four", 3))
        assert (after.path, after.root, after.data) == (before.path, before.root, before.data)
        for spent in range(3):
            with pytest.raises(NoProof):
                proof_of(chain, at("four", spent))


def test_proofs_of_before_a_rolled_back_block_hold_again(tmp_path: Path) -> None:
    """This is case UTXO-106: a block appends five leaves, spends two older ones and is rolled back."""
    with open_chain(tmp_path, store="mmr") as chain:
        first = block(None, tx("old", *(output("ann", n) for n in range(7))))
        feed(chain, first)
        before = {n: proof_of(chain, at("old", n)) for n in range(7)}
        news = tx("new", *(output("bob") for _ in range(5)), spends=[at("old", 2), at("old", 6)])
        feed(chain, block(first, news))
        moved = {n: proof_of(chain, at("old", n)) for n in range(7)}
        assert [n for n, proof in moved.items() if not proof.unspent] == [2, 6]
        for n, proof in moved.items():
            check(proof)
            assert proof.root != before[n].root
            assert proof.size == mmr.size_of(12)
        assert chain.rollback(back_to(first))
        assert {n: proof_of(chain, at("old", n)) for n in range(7)} == before


def test_large_dead_trees_are_removed_over_restarts(tmp_path: Path) -> None:
    options = Options(store="mmr", prune_depth=0, rollback_window=0, may_prune=True)
    with open_chain(tmp_path, **options) as chain:
        last = feed_many(chain, 6)
        before, values = roots_of(chain), len(nodes_of(chain)[0])
    for _ in range(12):
        with open_chain(tmp_path, **options) as chain:
            last = block(last)
            feed(chain, last)
            assert wrong(chain) == []
    with open_chain(tmp_path, **options) as chain:
        after = roots_of(chain)
        assert (after.output_root, after.bitmap_root) == (before.output_root, before.bitmap_root)
        left = nodes_of(chain)[0]
        assert sum(map(len, left.values())) < 32 * (2 * 1001 + 509)  # what lives, and a value that is not whole
        assert len(left) <= values // 2
        with prover(chain) as prove:
            check(prove(at("fund 6", 3)))
            with pytest.raises(NoProof):
                prove(at("fund 0", 3))


def test_nodes_removed_in_the_commit_that_wrote_them_leave_sound_pages(tmp_path: Path) -> None:
    with open_chain(tmp_path, store="mmr", prune_depth=0, rollback_window=0, may_prune=True) as chain:
        first = block(None, tx("many", *(output("ann") for _ in range(600))))
        second = block(first, tx("spend", output("bob"), spends=[at("many", n) for n in range(600)]))
        feed(chain, first, second, block(second))
        assert [fact.mmr_nodes > 400 for fact in chain.take_facts() if isinstance(fact, Pruned)] == [True]
        assert verify(chain.store.disk, leaves=LEAVES) == []


def test_prune_removes_every_node(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    small_nodes(monkeypatch, nodes=3)
    windows = Options(store="mmr", rollback_window=0, prune_depth=0)
    utxo = {name: value for name, value in windows.items() if name != "store"}
    config = load(write_config(tmp_path, {"utxo": {"store": "mmr"} | utxo}), {})
    with open_chain(tmp_path / "data" / "lmdb", **windows) as chain:
        last = feed_many(chain, 8)
        feed(chain, block(last))
    reported = offline.prune(config)
    with open_chain(tmp_path / "data" / "lmdb", **windows) as chain:
        kept = sum(int(unpack(raw, 0).there.sum()) for raw in nodes_of(chain)[0].values())
        assert kept < 100, reported
        assert chain.maintain(10_000).mmr_nodes == 0
        assert wrong(chain) == []


def feed_many(chain: Chain, dead: int) -> BlockApplied:
    """Feed a chain of 4,000 outputs, and of the spends of 500 for each that is dead."""
    first = block(None, *(tx(f"fund {n}", *(output("ann") for _ in range(500))) for n in range(8)))
    spends = [at(f"fund {n}", each) for n in range(dead) for each in range(500)]
    last = block(first, tx("spend", output("bob"), spends=spends))
    feed(chain, first)
    feed(chain, last)
    return last
