"""The benchmark harness measures what it says. No test depends on how long anything takes."""

from __future__ import annotations

import json
import os
import struct
import subprocess
from collections.abc import Iterator
from itertools import count, islice
from pathlib import Path
from time import monotonic
from typing import Any

import msgpack  # type: ignore[import-untyped]
import pytest
from daemons import ROOT, running, statuses, utxod
from scenarios import chain as plain_chain

from bench.old_outputs import OldSet, onto
from bench.peers import with_old
from bench.rounds import Ratio, in_turns, lines
from bench.steady import Payments, Row, slopes
from bench.wallet_chain import PAID, read
from bench.wallets import wallet_scripts
from bench.workload import Chain, read_blocks, sample_chain
from feeds.bitcoin.block import _read_transaction, _size, decode_block, double_sha256, merkle_root
from feeds.bitcoin.networks import REGTEST
from handlers import wire
from handlers.events import BlockApplied, OutPoint, Tx

PEERS = ROOT.parent / "shared" / "bench"
SMALL = ("--blocks", "12", "--txs", "20")


def run(*words: str | Path) -> subprocess.CompletedProcess[bytes]:
    return utxod("bench", *words)


def bench(*words: str | Path) -> list[dict[str, Any]]:
    done = run(*words, "--json")
    assert done.returncode == 0, done.stderr.decode()
    return [json.loads(line) for line in done.stdout.splitlines()]


def made(blocks: Iterator[BlockApplied]) -> list[OutPoint]:
    return [(tx.txid, index) for block in blocks for tx in block.txs for index in range(len(tx.outputs))]


def test_an_old_set_is_a_chain_that_its_seed_decides() -> None:
    old = OldSet(45_001)
    blocks = list(old.blocks())
    assert [block.height for block in blocks] == [1, 2, 3] and old.height == 3
    assert [block.prev_hash for block in blocks] == [None, blocks[0].hash, blocks[1].hash] and old.tip == blocks[2].hash
    assert len(set(made(iter(blocks)))) == 45_001
    assert next(old.blocks()) == blocks[0]
    assert next(OldSet(45_001, seed=2).blocks()).txs != blocks[0].txs


def test_a_busy_address_has_its_share() -> None:
    paid = [output.address for block in OldSet(20_000, busy=10).blocks() for tx in block.txs for output in tx.outputs]
    most = max(paid.count(address) for address in paid[:50])
    assert 1_800 < most < 2_200
    assert 10_000 < len(set(paid)) < 15_000, "more than half of the outputs have an address of their own"


def test_old_outputs_are_spent_once_from_anywhere_or_beginning_with_recent_ones() -> None:
    old = OldSet(90_001)
    places = {outpoint: number for number, outpoint in enumerate(made(old.blocks()))}
    uniform = [places[outpoint] for outpoint in islice(old.order("uniform"), 3_000)]
    recent = [places[outpoint] for outpoint in islice(old.order("recent"), 20_000)]
    assert (len(set(uniform)), len(set(recent))) == (3_000, 20_000)
    assert 40_000 < sum(uniform) / 3_000 < 50_000 and min(uniform) < 1_000 and max(uniform) > 89_000
    assert all(place >= 90_001 - 60_000 - turn for turn, place in enumerate(recent)), "one of the 60,000 latest left"
    assert sum(recent[:3_000]) / 3_000 < 61_000 and min(recent) < 30_000
    few = OldSet(101)
    for spending in ("uniform", "recent"):
        spent = list(islice(few.order(spending), 101))
        assert sorted(spent) == sorted(made(few.blocks()))


def test_a_share_of_the_inputs_spends_old_outputs_and_the_others_stay() -> None:
    source, old = sample_chain(12, 50), OldSet(5_000)
    upper = source.on(old, "uniform", 0.5)
    assert upper.warm == source.warm and [block.height for block in upper.blocks] == [*range(2, 17)]
    assert upper.blocks[0].prev_hash == old.tip
    assert upper.blocks[:3] == list(onto(old, source.blocks[:3], "uniform", 0.5, 3)), "warm blocks are not changed"
    existing, replaced, stayed = set(made(old.blocks())), 0, 0
    for before, after in zip(source.blocks, upper.blocks, strict=True):
        for was, now in zip(before.txs, after.txs, strict=True):
            for one, other in zip(was.inputs, now.inputs, strict=True):
                replaced, stayed = replaced + (other in existing), stayed + (other == one)
    assert replaced + stayed == sum(len(tx.inputs) for block in source.blocks for tx in block.txs)
    measured = sum(len(tx.inputs) for block in source.blocks[3:] for tx in block.txs)
    assert 0.4 * measured < replaced < 0.6 * measured


def raw_blocks(data: bytes) -> Iterator[bytes]:
    while data:
        (length,) = struct.unpack_from("<I", data)
        yield data[4 : 4 + length]
        data = data[4 + length :]


def raw_transactions(block: bytes) -> Iterator[tuple[bytes, Tx]]:
    """Yield transactions with their ids; our decoder refuses the many coinbases of an old set."""
    length, at = _size(block, 80)
    for _ in range(length):
        digest, inputs, outputs, _, _, at = _read_transaction(block, at, True)
        coinbase = inputs == [(bytes(32), 0xFFFFFFFF)]
        yield digest, Tx(digest[::-1], [] if coinbase else inputs, outputs)
    assert at == len(block)


def payments(txs: int, live: int, blocks: int) -> Chain:
    chain = Payments(txs, live, seed=1)
    frames = [*chain.fill(), *(chain.block() for _ in range(blocks))]
    events = [wire.decode(frame[wire.LENGTH.size :], "frames") for frame in frames]
    return Chain("payments", [event for event in events if isinstance(event, BlockApplied)], len(frames) - blocks)


def test_a_chain_for_peers_is_the_same_in_both_notations(tmp_path: Path) -> None:
    old, source = OldSet(20_003), payments(10, 100, blocks=12)
    first = bytes(80) + b"\0"
    folder = tmp_path / "chain"
    folder.mkdir()
    (folder / "chain.bin").write_bytes(struct.pack("<I", len(first)) + first)
    (folder / "chain.mp").write_bytes(msgpack.packb({"height": 0, "hash": bytes(32), "prev": bytes(32), "txs": []}))
    target = with_old(folder, old, source.on(old, "uniform", 0.3))
    raws = list(raw_blocks((target / "chain.bin").read_bytes()))
    events = list(read_blocks(target))
    assert raws[0] == first and len(raws) == len(events)
    before, numbers, spent_old = double_sha256(first[:80]), count(), 0
    places = dict[OutPoint, int](), dict[OutPoint, int]()
    for raw, event in zip(raws[1:], events[1:], strict=True):
        txs = list(raw_transactions(raw))
        assert raw[4:68] == before + merkle_root([txid for txid, _ in txs])
        before = double_sha256(raw[:80])
        for ours, (their_txid, theirs) in zip(event.txs, txs, strict=True):
            spends = [places[1].pop((txid[::-1], index)) for txid, index in theirs.inputs]
            assert spends == [places[0].pop(outpoint) for outpoint in ours.inputs], "both spend the same, and once"
            assert ours.outputs == theirs.outputs
            spent_old += sum(place < old.outputs for place in spends)
            for index in range(len(ours.outputs)):
                place = next(numbers)
                places[0][ours.txid, index] = places[1][their_txid, index] = place
    meta = json.loads((target / "meta.json").read_text())
    assert spent_old > 0.2 * meta["ins"]
    assert meta["full_from"] == 1 + old.height + source.warm and meta["blocks"] == len(raws)
    measured = source.blocks[source.warm :]
    assert meta["ins"] == meta["outs"] == sum(len(tx.inputs) for block in measured for tx in block.txs)
    assert meta["txs"] - meta["full_from"] == 12 * 10, "as the peers count"


def test_apply_on_an_old_set(tmp_path: Path) -> None:
    kept = tmp_path / "kept"
    words = ("--old", "20001", "--old-share", "40", "--old-store", kept, "--work", tmp_path / "work")
    found = bench("apply", *SMALL, *words)
    systems = [line for line in found if "system" in line]
    assert len(systems) == 4
    upper = sample_chain(12, 20).on(OldSet(20_001), "uniform", 0.4)
    live = set(made(OldSet(20_001).blocks()))
    for block in upper.blocks:
        for tx in block.txs:
            live -= {*(tx.inputs if tx.valid else tx.collateral)}
            live |= {(tx.txid, n) for n in range(len(tx.outputs))} if tx.valid else {(tx.txid, len(tx.outputs))}
    assert {line["unspent"] for line in systems if "no old set" not in line["system"]} == {len(live)}
    assert all(line["unspent"] < 2_000 for line in systems if "no old set" in line["system"])
    figures = {"block_p50_ms", "block_p99_ms", "block_longest_ms", "diskstats_mb_per_block", "proc_io_mb_per_block"}
    figures |= {"store_mb", "free_mb", "peak_memory_mb", "peak_rss_mb", "start_ms", "txs_per_s"}
    assert all(figures <= line.keys() for line in systems if line["system"] == "utxod at the tip")
    assert all(line["store_mb"] > line["free_mb"] > 0 for line in systems)
    assert [line["ratio"] for line in found if "ratio" in line] == ["transactions/s, old set next to none"]

    marked = (kept / "lmdb" / "data.mdb").stat().st_mtime_ns
    again = ("apply", "--blocks", "12", "--txs", "2", *words)
    bench(*again, "--spend-old", "recent")
    assert (kept / "lmdb" / "data.mdb").stat().st_mtime_ns == marked
    done = run(*again, "--seed", "2")
    assert done.returncode == 1 and b"holds another old set" in done.stderr
    (kept / "lmdb" / "data.mdb").write_bytes(bytes(8192))
    done = run(*again)
    assert done.returncode == 1 and b"does not start" in done.stderr and b"this is not a store" in done.stderr


def test_an_old_set_that_is_too_small_is_refused(tmp_path: Path) -> None:
    done = run("apply", *SMALL, "--old", "10", "--old-share", "100", "--work", tmp_path)
    assert done.returncode == 1 and b"spend more than the 10 outputs of the old set" in done.stderr
    (tmp_path / "other").mkdir()
    done = run("apply", *SMALL, "--old", "10", "--old-share", "1", "--old-store", tmp_path / "other")
    assert done.returncode == 1 and b"holds no old set" in done.stderr
    assert run("apply", "--old-store", tmp_path / "x").returncode == 2
    assert run("apply", "--peer", "sqlite").returncode == 2


if PEERS.is_dir():  # the other systems are no part of the repository

    def test_peers_have_the_same_old_set_and_one_that_cannot_be_installed_is_named(tmp_path: Path) -> None:
        words = ("apply", *SMALL, "--old", "2001", "--work", tmp_path, "--peers", PEERS)
        (tmp_path / "electrumx").touch()  # where its environment would be made
        found = bench(*words, "--peer", "sqlite", "--peer", "electrumx")
        unspent = {line["system"]: line["unspent"] for line in found if "unspent" in line}
        assert unspent["SQLite"] == unspent["utxod at the tip"] + 1, "the first block of the chain has one more"
        assert all(set(line) == {"system", "not_measured"} for line in found if "ElectrumX" in line.get("system", ""))
        reason = next(line["not_measured"] for line in found if line.get("system") == "ElectrumX, live")
        assert reason.startswith("e-x, plyvel, msgpack cannot be installed")


def test_systems_take_turns_and_ratios_are_of_the_same_round() -> None:
    reported, rates = list[str](), iter([10, 5, 30, 10, 60, 40])

    def system(name: str) -> dict[str, Any]:
        reported.append(name)
        return {"rate": next(rates)}

    found = in_turns({"a": lambda: system("a"), "b": lambda: system("b")}, 3)
    assert reported == ["a", "b"] * 3
    ratios = [Ratio("a by b", "a", "b", "rate"), Ratio("none", "a", "c", "rate")]
    last = json.loads([*lines("x", *found, ratios)][-1])
    assert last == {"ratio": "a by b", "median": 2.0, "least": 1.5, "most": 3.0}


def test_steady_payments_keep_the_size_of_the_set() -> None:
    chain = payments(10, 205, blocks=40)
    live = set[OutPoint]()
    for block in chain.blocks:
        for tx in block.txs:
            assert live.issuperset(tx.inputs) and len(tx.inputs) in (0, len(tx.outputs))
            live -= {*tx.inputs}
            live |= {(tx.txid, n) for n in range(len(tx.outputs))}
    assert len(live) == 205
    assert chain.blocks == payments(10, 205, blocks=40).blocks


def test_wallets(tmp_path: Path) -> None:
    """Both servers answer the same wallet, and every session is notified."""
    folder = os.environ.get("CLIENTS_FOLDER")
    electrumx = ("--electrumx", Path(folder).expanduser() / "electrumx-1.20.2") if folder else ("--alone",)
    size = ("--blocks", "4", "--txs", "60", "--sessions", "20", "--addresses", "30")
    found = {
        line["system"]: line for line in bench("wallets", *size, "--work", tmp_path, *electrumx) if "round" in line
    }
    assert len(found) == (2 if folder else 1)
    assert {line["sessions"] for line in found.values()} == {20}
    assert len({line["scan_transactions"] for line in found.values()}) == 1
    assert {line["scan_balance"] for line in found.values()} == {PAID * kept(tmp_path)}
    rates = ("catch_up_txs_per_s", "history_first_per_s", "history_again_per_s", "scan_s", "notified_last_s")
    assert all(line[rate] > 0 for line in found.values() for rate in rates)


def kept(work: Path) -> int:
    """Return how many outputs of the wallet are unspent before the last block, from the blocks alone."""
    mine, unspent = set(wallet_scripts(30)), set[OutPoint]()
    for height, block in enumerate(read(work / "chain")[:-1]):
        for tx in decode_block(block.raw, height, REGTEST).txs:
            unspent -= set(() if tx.coinbase else tx.inputs)
            unspent |= {(tx.txid, n) for n, output in enumerate(tx.outputs) if output.address in mine}
    assert len(unspent) > 20
    return len(unspent)


def test_steady(tmp_path: Path) -> None:
    words = ("--blocks", "80", "--txs", "5", "--live", "100", "--window", "10", "--every", "10", "--no-fsync")
    began = monotonic()
    *rows, last = bench("steady", *words, "--interval-ms", "10", "--work", tmp_path)
    assert monotonic() - began >= 0.8
    assert [row["height"] for row in rows] == [*range(11, 82, 10)]
    assert all(row["file_mb"] > row["free_mb"] > 0 and row["memory_mb"] > 0 for row in rows)
    assert all(row["block_longest_ms"] >= row["block_p99_ms"] >= row["block_p50_ms"] for row in rows)
    assert last["slopes_per_blocks"] == 10_000 and "free_mb" in last and "block_p99_ms" in last


def test_slopes_are_least_squares() -> None:
    rows = [Row(height * 1000, 100 + height, 50, 10 - height, 1, 2, 3, 0) for height in range(5)]
    found = slopes(rows)
    assert found["file_mb"] == pytest.approx((10, 10 / 102)) and found["free_mb"] == pytest.approx((0, 0))
    assert found["memory_mb"] == pytest.approx((-10, -10 / 8)) and found["diskstats_mb_per_block"] == (0, 0)


def test_sizes_of_tables_and_indexes_are_those_of_the_store(tmp_path: Path) -> None:
    with running(tmp_path) as daemon, daemon.client() as client:
        assert set(statuses(client.feed(plain_chain(30)))) == {"applied"}
        lines = len(daemon.export())
        store = tmp_path / "data" / "lmdb"
        done = run("sizes", store, "--json")  # the daemon runs
    found = json.loads(done.stdout)
    tables = {table["name"]: table for table in found["tables"]}
    assert tables["history_block"]["entries"] == 30
    assert found["unspent"] == lines <= found["outputs"]
    assert sum(table["bytes"] for table in found["tables"]) <= found["file_bytes"]
    indexes = {index["name"]: index for index in found["indexes"]}
    assert found["transactions"] == indexes["index txid"]["entries"] > 0
    assert indexes["index txid"]["bytes"] >= 24 * indexes["index txid"]["entries"]
    shown = run("sizes", store).stdout.decode()
    assert "index txid" in shown and f"{found['outputs']:,} outputs" in shown


def test_sizes_of_a_folder_without_a_store_are_refused(tmp_path: Path) -> None:
    done = run("sizes", tmp_path)
    assert done.returncode == 1 and done.stderr.startswith(b"Error: ") and b"Traceback" not in done.stderr


def test_streams_are_measured() -> None:
    some = ("--servers", "1", "--rounds", "1", "--live", "2", "--kills", "1")
    found = bench("stream", *SMALL, *some)
    systems = {each["system"]: each for each in found if "system" in each}
    assert systems["publishing"]["blocks_per_s"] > 0
    assert (
        systems["replica, of a live stream"]["applied_longest_ms"]
        >= systems["replica, of a live stream"]["stored_p50_ms"]
    )
    assert systems["the leading feeder is killed"]["longest_delay_s"] > 3  # its lease has to expire
    (ratio,) = [each for each in found if "ratio" in each]
    both = [systems[name]["blocks_per_s"] for name in ("replica, from a full stream", "daemon, fed over its socket")]
    assert ratio["median"] == pytest.approx(both[0] / both[1], abs=0.01)
