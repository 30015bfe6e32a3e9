"""Runs of the indexes: merges, filters, runs that are rewritten or counted, searches."""

from __future__ import annotations

import tracemalloc
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from copy import deepcopy
from itertools import pairwise
from pathlib import Path
from random import Random
from typing import Any

import numpy as np
import pytest
from chains import ADDRESSES, Options, at, back_to, block, feed, open_chain, output, tx, txid
from stores import fixed_keys, small_values
from test_history_batches import answers

import storage.history.merging
import storage.history.runs
import storage.history.values
from handlers.chain import Chain
from handlers.events import BlockApplied, OutPoint
from storage.disk import META, Disk, Txn
from storage.history.bits import Bits
from storage.history.layout import HEAD_BYTES, TABLES, TX, TX_RECORD, TXID_ENTRY, Numbers, Records, Words
from storage.history.merging import count_runs
from storage.history.runs import Index, Manifest, Run
from storage.history.stored import Stored
from storage.history.values import Values
from storage.history.verify import verify

OPTIONS = Options(rollback_window=4, prune_depth=4, may_prune=True, map_size=1 << 24)
KEYS = [Random(n).getrandbits(64) | 1 for n in range(4)]


def chain_of(length: int, width: int) -> Sequence[BlockApplied]:
    blocks: list[BlockApplied] = []
    for n in range(length):
        paid = [tx(f"{n} {k}", output("ann"), spends=[at(f"{n - 1} {k}")] if n else []) for k in range(width)]
        blocks.append(block(blocks[-1] if blocks else None, *paid))
    return blocks


def test_values_with_few_records_are_joined(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr("storage.history.values.VALUE_BYTES", 4 * TX_RECORD.itemsize + HEAD_BYTES)
    records, live = np.zeros(40, TX_RECORD), Bits()
    records["number"] = np.arange(40)
    live.set(np.arange(0, 40, 4))
    with Disk(tmp_path, TABLES, map_size=1 << 24, durable=False) as disk:
        values = Values(disk.tables[TX], TX_RECORD, heap=False)
        disk.write(lambda txn: values.append(txn, records))
        assert len(values.firsts) == 10

        def thin(txn: Txn) -> list[int]:
            return [values.thin(txn, 40, 40, live, lambda some: live.has(some["number"])) for _ in range(6)]

        assert sum(disk.write(thin)) == 27  # three of each but of the last value, which may go on
        assert len(values.firsts) < 10
        with disk.read() as txn:
            kept = np.arange(0, 40, 4)
            assert len(values.missing(txn, kept)) == 0


def test_values_over_a_wide_range_of_numbers_are_thinned_in_little_memory(tmp_path: Path) -> None:
    chain = 40_000_000  # numbers: as many bits are 5 MB
    records, live = np.zeros(4_000, TX_RECORD), Bits()
    records["number"] = np.arange(4_000) * (chain // 4_000)
    live.set(records["number"][::4])
    with Disk(tmp_path, TABLES, map_size=1 << 24, durable=False) as disk:
        values = Values(disk.tables[TX], TX_RECORD, heap=False)
        disk.write(lambda txn: values.append(txn, records))
        tracemalloc.start()
        dropped = disk.write(lambda txn: values.thin(txn, chain, 40, live, lambda some: live.has(some["number"])))
        peak = tracemalloc.get_traced_memory()[1]
        tracemalloc.stop()
    assert 2_000 < dropped <= 3_000  # those of the last value may stay
    assert peak < 2 << 20


def test_bits_of_a_range_are_counted() -> None:
    live, random = Bits(), np.random.default_rng(5)
    live.set(np.unique(random.integers(0, 5_000, 2_000)))
    for low, high in np.sort(random.integers(0, 9_000, (200, 2))).tolist():
        assert live.count_within(low, high) == int(live.within(low, high).sum())


def test_a_merge_that_keeps_little_leaves_a_whole_filter(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    small_values(monkeypatch, run_bytes=200, merged=0, least_merged=200)
    with open_chain(tmp_path, rollback_window=1, prune_depth=1, may_prune=True) as chain:
        for each in chain_of(30, 40):
            feed(chain, each)
        with chain.store.disk.read() as txn:
            stored = Stored(txn, chain.store.disk.tables)
            assert any(run.entries < run.room / 4 for run in stored.index("txid").runs)
            for k in range(200):
                assert stored.find_tx(txid(f"unknown {k}")) is None
                assert k >= 40 or stored.find_tx(txid(f"29 {k}")) is not None


def test_a_new_run_has_a_whole_filter(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr("storage.history.filters.PART", 1)
    monkeypatch.setattr("storage.history.filters._BITS", 640)  # for each entry, so that entries are far apart
    with open_chain(tmp_path, rollback_window=9, prune_depth=9) as chain:
        feed(chain, block(None, *[tx(f"0 {k}", output("ann")) for k in range(3)]))
        with chain.store.disk.read() as txn:
            stored = Stored(txn, chain.store.disk.tables)
            for k in range(200):
                assert stored.find_tx(txid(f"unknown {k}")) is None


@pytest.fixture
def small(monkeypatch: pytest.MonkeyPatch) -> None:
    rewritten: int = storage.history.merging._REWRITTEN
    small_values(monkeypatch, merged=0, least_merged=24, values_read=2, rewritten=rewritten)
    fixed_keys(monkeypatch, KEYS)


def steady(
    length: int, seed: int = 1, after: Sequence[BlockApplied] = (), width: int = 5, live: int = 60
) -> list[BlockApplied]:
    """Return blocks that make a set and then keep its size: each spends as many outputs as it makes, of any age."""
    random, blocks, coins = Random(seed), list(after), dict[OutPoint, None]()
    for each in after:
        for one in each.txs:
            coins |= {(one.txid, index): None for index in range(len(one.outputs))}
            for spent in one.inputs:
                del coins[spent]
    for n in range(len(after), len(after) + length):
        txs = []
        for k in range(width):
            old = list(coins)
            spends = [random.choice(old)] if len(old) > live else []
            for spent in spends:
                del coins[spent]
            name = f"{seed} {n} {k}"
            txs.append(tx(name, *[output(random.choice(ADDRESSES)) for _ in range(1 if spends else 3)], spends=spends))
        for k, one in enumerate(txs):
            coins |= {at(f"{seed} {n} {k}", index): None for index in range(len(one.outputs))}
        blocks.append(block(blocks[-1] if blocks else None, *txs))
    return blocks[len(after) :]


def lists(chain: Chain) -> dict[str, Manifest]:
    return {kind: deepcopy(index.manifest) for kind, index in chain.history.index.items()}


def rewritten(listed: Manifest) -> dict[int, Run]:
    """Return the runs that are being rewritten, by the runs that they become."""
    runs = {run.id: run for run in listed.runs}
    return {merge.id: runs[merge.inputs[0]] for merge in listed.merges if len(merge.inputs) == 1}


def size(chain: Chain, kind: str) -> int:
    return sum(run.entries for run in lists(chain)[kind].runs)


def is_sound(chain: Chain) -> None:
    assert verify(chain.store.disk, quick=True) == []


def applied(folder: Path, blocks: Sequence[BlockApplied]) -> Iterator[Chain]:
    with open_chain(folder, **OPTIONS) as chain:
        for each in blocks:
            feed(chain, each)
            yield chain


@pytest.mark.usefixtures("small")
def test_a_run_with_half_of_its_entries_obsolete_is_rewritten(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    blocks, expected, sizes = steady(100), list[object](), dict[str, int]()
    monkeypatch.setattr("storage.history.history._COUNTED", 0)  # so nothing is rewritten
    for n, chain in enumerate(applied(tmp_path / "without", blocks)):
        assert not any(rewritten(listed) for listed in lists(chain).values())
        expected += [answers(chain, blocks)] if n % 20 == 9 else []
        sizes = {kind: size(chain, kind) for kind in ("txid", "address_hash")}
    monkeypatch.setattr("storage.history.history._COUNTED", 4)
    going, done = dict[int, Run](), Counter[str]()
    for n, chain in enumerate(applied(tmp_path / "with", blocks)):
        is_sound(chain)
        if n % 20 == 9:
            assert answers(chain, blocks) == expected.pop(0)
        for kind, listed in lists(chain).items():
            runs = {run.id: run for run in listed.runs}
            for run in runs.values():
                if (old := going.get(run.id)) is not None:
                    assert (run.low, run.high, run.level) == (old.low, old.high, old.level)
                    assert run.entries <= run.room == old.lived <= old.entries / 2
                    assert old.id not in runs
                    done[kind] += 1
                    del going[run.id]
            going |= rewritten(listed)
            assert len({merge.level for merge in listed.merges}) == len(listed.merges)
    assert expected == []
    assert min(done["txid"], done["address_hash"]) > 1, done
    for kind, before in sizes.items():
        assert size(chain, kind) < 0.8 * before


@pytest.mark.usefixtures("small")
def test_a_killed_store_continues_where_it_was(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr("storage.history.merging._REWRITTEN", 1)
    blocks, met = steady(60), Counter[str]()
    whole = [lists(chain) for chain in applied(tmp_path / "whole", blocks)]
    before = dict[str, Manifest]()
    for each, expected in zip(blocks, whole, strict=True):
        with open_chain(tmp_path / "killed", **OPTIONS) as chain:
            with chain.store.disk.read() as txn:
                chain.history.complete(txn)
            assert before in ({}, lists(chain))
            feed(chain, each)
            is_sound(chain)
            before = lists(chain)
            assert before == expected
    for earlier, later in pairwise(whole):
        for kind, listed in later.items():
            read = {merge.id: (merge.prefix, merge.number) for merge in earlier[kind].merges if len(merge.inputs) == 1}
            met["a rewrite went on"] += any(read.get(merge.id, (0, 0)) > (0, 0) for merge in listed.merges)
            count = earlier[kind].count
            met["a count went on"] += count.run == listed.count.run and 0 < count.values < listed.count.values
    assert min(met["a rewrite went on"], met["a count went on"]) > 5, met


@pytest.mark.usefixtures("small")
def test_a_rollback_into_a_run_that_is_being_rewritten(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr("storage.history.merging._REWRITTEN", 1)
    blocks, met, n = steady(20), Counter[str](), 0
    random = Random(5)
    with open_chain(tmp_path / "back", **OPTIONS) as chain:
        for each in blocks:
            feed(chain, each)
        while len(blocks) < 55:
            before, target = lists(chain), blocks[-4 - 1]
            chain.rollback(back_to(target))
            is_sound(chain)
            blocks = blocks[:-4]
            for kind, listed in lists(chain).items():
                highs = {run.id: run.high for run in before[kind].runs}
                cut = {run.id for run in listed.runs if run.high < highs[run.id]}
                assert rewritten(listed).keys() == rewritten(before[kind]).keys()
                inside = [merge for merge in listed.merges if len(merge.inputs) == 1 and merge.inputs[0] in cut]
                met["in a rewrite that has begun"] += any(merge.entries for merge in inside)
                met["in a count"] += listed.count.run in cut and listed.count.values > 0
            n += 1
            for each in steady(5, seed=n, after=blocks):
                monkeypatch.setattr("storage.history.history.LEAST_MERGED", random.choice((5, 1000)))
                monkeypatch.setattr("storage.history.history._COUNTED", random.choice((5, 50)))
                feed(chain, each)
                blocks.append(each)
                is_sound(chain)
        found = answers(chain, blocks)
        assert verify(chain.store.disk) == []
    monkeypatch.setattr("storage.history.history._COUNTED", 0)
    with open_chain(tmp_path / "straight", **OPTIONS) as chain:
        for each in blocks:
            feed(chain, each)
        assert answers(chain, blocks) == found
    assert min(met.values()) > 2, met


@pytest.mark.usefixtures("small")
def test_runs_take_turns_in_being_counted(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr("storage.history.history._COUNTED", 0)
    with open_chain(tmp_path, **OPTIONS) as chain:
        for each in steady(40):
            feed(chain, each)
        index = chain.history.index["txid"]
        free = [run for run in index.manifest.runs if run.id not in index.manifest.inputs()]
        for run in free:
            run.high -= 3  # as after a rollback
        sizes = {run.id: len(index.fences[run.id].prefixes) for run in free}
        with chain.store.disk.read() as txn:
            expected = {}
            for run in free:
                numbers = index.values(txn, run.id, np.arange(sizes[run.id]))["number"]
                expected[run.id] = int((numbers[numbers < run.high] % 2).sum())
            for _ in range(2):
                turns, read = list[int](), 0
                while not turns or index.manifest.count.low >= 0:
                    done = count_runs(index, txn, 3, lambda entries: entries["number"] % 2 == 1)
                    assert done <= 3
                    turns.append(index.manifest.count.run)
                    read += done
                assert read == sum(sizes.values()) > 3 * len(sizes)
                assert [run for run in dict.fromkeys(turns) if run] == [run.id for run in free if run.id in turns]
                assert {run.id: run.lived for run in free} == expected


def even(random: Random, count: int) -> list[int]:
    return [random.getrandbits(64) for _ in range(count)]


def uneven(random: Random, count: int) -> list[int]:
    """Return prefixes that stand close together, with wide gaps between them, and many of them twice."""
    near = [random.choice((0, 1 << 40, 1 << 63)) + int(random.expovariate(1e-4)) for _ in range(count)]
    return near + random.choices(near, k=count // 2) + [(1 << 64) - 1]


@pytest.mark.parametrize(("margin", "held"), [(0, 0), (64, 0), (64, 1_000), (64, 50_000)])
@pytest.mark.parametrize("prefixes", [even, uneven])
def test_a_search_reads_only_what_is_near(
    monkeypatch: pytest.MonkeyPatch,
    tmp_path: Path,
    prefixes: Callable[[Random, int], list[int]],
    margin: int,
    held: int,
) -> None:
    monkeypatch.setattr("storage.history.runs._MARGIN", margin)
    monkeypatch.setattr("storage.history.runs._MOST_HELD", held)
    read, near, random = Counter[str](), Index._near, Random(margin)

    def counted(index: Index, txn: Txn, run: int, which: Numbers, *others: Any) -> tuple[Records, Words]:
        found = near(index, txn, run, which, *others)
        read.update(read=len(found[0]), there=len(index.values(txn, run, which)))
        return found

    monkeypatch.setattr(Index, "_near", counted)
    with Disk(tmp_path, (META, *TABLES), map_size=1 << 24) as disk:
        index, number, there = Index(disk.tables, "txid", iter(range(1, 9)).__next__), 0, dict[int, list[int]]()
        with disk.env.begin(write=True) as txn:
            for size in (1, 700, 5_000, 12_000):
                entries = np.zeros(size, TXID_ENTRY)
                entries["prefix"] = np.array(random.sample(prefixes(random, size), size), np.uint64)
                entries["number"] = np.arange(number, number + size)
                index.add(txn, entries, number, number + size)
                for prefix, each in zip(entries["prefix"].tolist(), entries["number"].tolist(), strict=True):
                    there.setdefault(prefix, []).append(each)
                number += size
        with disk.read() as txn:
            for wish in (3, 0, 1, 40, 2_000):
                wanted = sorted(
                    [*random.sample(sorted(there), wish), *random.sample(even(random, 9), 9), 0, (1 << 64) - 1]
                )
                places, found = index.find(txn, np.array(wanted, np.uint64))
                got = sorted(
                    (wanted[place], each) for place, each in zip(places.tolist(), found["number"].tolist(), strict=True)
                )
                assert got == sorted((prefix, each) for prefix in wanted for each in there.get(prefix, ()))
                if wish == 3 and prefixes is even and margin and not held:
                    assert 0 < read["read"] < read["there"] / 2
    assert (read["read"] == 0) is (held == 50_000)
