"""A fault at every write, a map that is too small, a full disk: the tables are as before or as after, never between."""

from __future__ import annotations

import errno
import os
import shutil
import subprocess
import sys
from collections.abc import Callable, Sequence
from pathlib import Path
from random import Random
from typing import NamedTuple

import lmdb
import pytest
from chains import (
    LEAVES,
    TABLES,
    Options,
    at,
    back_to,
    block,
    dump,
    feed,
    genesis,
    live,
    open_chain,
    output,
    prune_all,
    random_chain,
    tx,
)
from faults import WORK, Fault, broken, failing, full, lmdb_error, watched
from messages import Listener, message, take
from mmr_reference import small_nodes
from stores import fixed_keys, small_values

import storage.disk
import storage.history.history
from handlers.chain import Chain
from handlers.events import BlockApplied
from handlers.utxo import Turns
from storage.disk import Disk
from storage.errors import Damaged, StoreFull
from storage.history.reindex import reindex
from storage.history.store import HistoryStore
from storage.history.verify import verify
from storage.indexes import NAMES
from storage.windows import Windows

MIB = 1 << 20
BLOCKS = random_chain(Random(5), 9)
FIRST, LATER = BLOCKS[:5], BLOCKS[5:]
LONGER = random_chain(Random(8), 26)
COINBASE = tx("coinbase", output("ann"), coinbase=True)
REPEATED = [*FIRST, first := block(FIRST[-1], COINBASE, salt="first"), block(first)]

Tables = dict[str, list[tuple[bytes, bytes]]]


class Step(NamedTuple):
    """A preparation, and an act that writes and can be repeated; `meets` names what of `WORK` the act does."""

    before: Callable[[Chain], object]
    act: Callable[[Chain], object]
    meets: set[str]
    options: Options = Options(store="mmr")


def fed(*blocks: BlockApplied) -> Callable[[Chain], object]:
    return lambda chain: [feed(chain, each) for each in blocks]  # type: ignore[func-returns-value]


def unmaintained(*blocks: BlockApplied) -> Callable[[Chain], object]:
    """Return a function that feeds and prunes a chain without merges, rewrites and thinning."""

    def work(chain: Chain) -> None:
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(storage.history.history.History, "maintain", lambda *_: (0, 0))
            fed(*blocks)(chain)
            prune_all(chain)

    return work


def merging(chain: Chain) -> None:
    """Feed a chain until a merge of its last blocks is in progress."""
    for each in LONGER:
        feed(chain, each)
        merges = [(index, merge) for index in chain.history.index.values() for merge in index.manifest.merges]
        tops = [run.high for index, merge in merges for run in index.manifest.runs if run.id in merge.inputs]
        if max(tops, default=0) == chain.history.state.next_number and chain.state.tip > 5:
            return
    pytest.fail("no merge was under way")


STEPS = {
    "a block": Step(fed(*FIRST), lambda chain: feed(chain, LATER[0]), {"a merge", "leaves", "hashes of bits"}),
    "a batch": Step(fed(*FIRST), lambda chain: feed(chain, *LATER), {"a merge", "leaves", "deleted values of runs"}),
    "a batch with every index": Step(
        fed(*FIRST), lambda chain: feed(chain, *LATER), {"a merge"}, {"store": "mmr", "indexes": NAMES}
    ),
    "a batch that prunes": Step(
        fed(*FIRST),
        lambda chain: feed(chain, *LATER),
        {"a merge", "leaves", "hashes of bits", "deleted undo logs", "a rewrite of values", "removed nodes"},
        {"store": "mmr", "prune_depth": 1, "rollback_window": 1, "may_prune": True},
    ),
    "a batch far below the tip": Step(
        fed(*FIRST),
        lambda chain: feed(chain, *LATER, network_height=9999),
        {"a merge", "deleted undo logs", "a rewrite of values"},
        {"store": "classic"},
    ),
    "a transaction id again": Step(
        fed(*REPEATED), lambda chain: feed(chain, block(REPEATED[-1], COINBASE, salt="again")), {"leaves"}
    ),
    "a rollback": Step(
        lambda chain: feed(chain, *BLOCKS),
        lambda chain: chain.rollback(back_to(BLOCKS[1])),
        {"a rollback", "removed leaves", "hashes of bits", "a rewrite of values"},
    ),
    "a rollback across a merge": Step(
        merging, lambda chain: chain.rollback(back_to(LONGER[chain.state.tip - 4])), {"a rollback", "removed leaves"}
    ),
    "a step of pruning": Step(
        fed(*BLOCKS),
        lambda chain: chain.prune(),
        {"deleted undo logs", "a rewrite of values"},
        {"store": "mmr", "prune_depth": 0, "rollback_window": 0, "may_prune": True, "prune_batch_size": 5},
    ),
    "maintenance alone": Step(
        unmaintained(*LONGER[:14]),
        lambda chain: chain.maintain(20),
        {"a merge", "counted runs", "a rewrite of values", "removed nodes"},
        {"store": "mmr", "prune_depth": 1, "rollback_window": 1, "may_prune": True},
    ),
    "a genesis": Step(lambda _: None, lambda chain: chain.seed(genesis(ann=1, bob=2)), {"leaves", "hashes of bits"}),
}


def test_faults_meet_all_work_of_the_store() -> None:
    assert set[str]().union(*(step.meets for step in STEPS.values())) == set(WORK)


@pytest.fixture(params=STEPS)
def step(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> Step:
    small(monkeypatch)
    return STEPS[request.param]


def small(patch: pytest.MonkeyPatch) -> None:
    small_values(patch, fanout=2, merged=4, least_merged=20)
    small_nodes(patch, nodes=4)
    fixed_keys(patch, [1, 3, 5, 7])


def prepared(step: Step, chain: Chain) -> None:
    allowed, chain.may_prune = chain.may_prune, False
    step.before(chain)
    chain.may_prune = allowed


def tables(store: HistoryStore) -> Tables:
    with store.disk.read() as txn:
        found = {name: list(txn.cursor(db)) for name, db in store.disk.tables.items()}
    return {name: rows for name, rows in found.items() if rows}


def without_log(found: Tables) -> Tables:
    """Return the rows of all tables but the change log, whose rows have times."""
    return {name: rows for name, rows in found.items() if name != "change_log"}


def after(step: Step, folder: Path) -> Tables:
    with open_chain(folder, **step.options) as chain:
        prepared(step, chain)
        chain = restarted(chain)  # where it thins out next is in memory, and begins again after a fault
        with watched() as met:
            step.act(chain)
        assert step.meets <= set(+met), met
        return without_log(tables(chain.store))


def restarted(chain: Chain) -> Chain:
    store = HistoryStore(chain.store.disk, chain.store.leaves)
    with store.disk.read() as txn:
        kept = store.kept_indexes(txn)
    store.open("cardano/mainnet", kept, store.kind)
    again = Chain(store, chain.windows, chain.prune_batch_size)
    again.may_prune = chain.may_prune
    return again


@pytest.mark.parametrize(("kind", "stride"), [(full, 1), (broken, 3)])
def test_a_fault_at_any_write_changes_nothing(
    step: Step, kind: Callable[[], lmdb.Error], stride: int, tmp_path: Path
) -> None:
    """After a full disk the same process continues; after any other failure a new process does."""
    expected, error = after(step, tmp_path / "direct"), StoreFull if kind is full else lmdb.Error
    with open_chain(tmp_path / "faulty", **step.options) as chain:
        prepared(step, chain)
        before, view, facts = tables(chain.store), chain.view, len(chain.facts)
        newest = chain.changes.newest()
        assert newest == len(chain.changes.take())
        assert without_log(before) != expected
        number = 1
        while True:
            with failing(chain.store.disk, Fault(number, kind())) as fault:
                try:
                    step.act(chain)
                except error:
                    pass
                else:
                    break
            assert fault.seen == number
            assert tables(chain.store) == before, f"after a fault at write {number}"
            if kind is broken:
                chain, facts = restarted(chain), 0
            assert (chain.view, chain.tip) == (view, view.tip)
            assert len(chain.facts) == facts, "no fact is published of what did not happen"
            assert (chain.changes.newest(), chain.changes.take()) == (newest, []), "nor does the log know of it"
            number += stride
        assert number > 3, "there was something to fail"
        assert without_log(tables(chain.store)) == expected
        assert verify(chain.store.disk, leaves=LEAVES) == []
        sequences = [fact.sequence for fact in chain.changes.take()]
        assert sequences == list(range(newest + 1, chain.changes.newest() + 1))


def test_a_map_that_is_full_at_a_write_grows(step: Step, tmp_path: Path) -> None:
    """The work is repeated in a larger map, and nothing of the first attempt is left."""
    expected = after(step, tmp_path / "direct")
    with open_chain(tmp_path / "prepared", **step.options) as chain:
        prepared(step, chain)
    number, grown = 1, True
    while grown:
        folder = tmp_path / str(number)
        shutil.copytree(tmp_path / "prepared", folder)
        with open_chain(folder, **step.options) as chain:
            size = chain.store.disk.map_size()
            with failing(chain.store.disk, Fault(number, lmdb.MapFullError("mdb_put"))) as fault:
                step.act(chain)
            grown = fault.seen > number
            assert (chain.store.disk.map_size() == 2 * size) == grown
            assert without_log(tables(chain.store)) == expected
            assert chain.view.map_size == chain.store.disk.map_size()
        shutil.rmtree(folder)
        number += 3  # where it fails does not matter much: the whole work is repeated
    assert number > 3


@pytest.mark.parametrize("kind", [full, broken])
def test_a_fault_while_a_store_is_made_or_an_index_dropped(
    kind: Callable[[], lmdb.Error], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    small(monkeypatch)
    with Disk(tmp_path, TABLES, durable=False) as disk:
        store = HistoryStore(disk, LEAVES)
        faults(kind, store, lambda: store.open("cardano/mainnet", NAMES, "mmr"))
        fed(*FIRST)(Chain(store, Windows(10, 10), 1000))
        kept = dump(store)
        assert kept["address_hash"]
        faults(kind, store, lambda: HistoryStore(disk, LEAVES).open("cardano/mainnet", NAMES[1:], "mmr"))
        left = dump(store)
        assert left == {name: answers for name, answers in kept.items() if name != "address_hash"}
        assert verify(disk, leaves=LEAVES) == []


def faults(kind: Callable[[], lmdb.Error], store: HistoryStore, act: Callable[[], object]) -> None:
    before = tables(store)
    for number in range(1, 100):
        with failing(store.disk, Fault(number, kind())) as fault:
            try:
                act()
            except (StoreFull, lmdb.Error):
                assert tables(store) == before, f"after a fault at write {number}"
                continue
        assert fault.seen < number
        assert number > 3
        return
    pytest.fail("it never succeeded")


def test_a_fault_at_any_write_of_a_reindex(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A reindex takes many commits: after each the store is sound, with all indexes or none."""
    small(monkeypatch)
    sizes = {"reindexed_values": 2, "reindexed_entries": 10, "reindexed_blocks": 2, "collected": 10}
    small_values(monkeypatch, fanout=2, merged=4, least_merged=20, **sizes)
    with open_chain(tmp_path, store="mmr") as chain:
        fed(*FIRST)(chain)
        expected = dump(chain.store)
    others = {name: answers for name, answers in expected.items() if name not in NAMES}
    with Disk(tmp_path, TABLES, durable=False) as disk:
        store, done, number, happened = HistoryStore(disk, LEAVES), set[str](), 1, True
        while happened:
            with failing(disk, Fault(number)) as fault, watched() as met:
                try:
                    reindex(store, NAMES, lambda _: None)
                except StoreFull:
                    assert dump(store) in (others, expected)
                    assert verify(disk, quick=True, leaves=LEAVES) == []
                else:
                    assert dump(store) == expected
                    assert verify(disk, leaves=LEAVES) == []
            done |= set(+met)
            happened, number = fault.seen >= number, number + 1
        assert number > 50
        assert {"a merge", "deleted values of runs"} <= done


def test_a_full_disk_refuses_the_whole_batch(tmp_path: Path) -> None:
    one, two = block(None, tx("O", output("ann")), seq=1), block(None, salt="unrelated", seq=3)
    next_one = block(one, seq=2)
    with open_chain(tmp_path) as chain:
        turns, sender = Turns(chain, pruning=False), Listener()
        before = dump(chain.store)
        with failing(chain.store.disk, Fault(4)):
            take(turns, *[message(each, sender) for each in (one, next_one, two)])
        assert sender.statuses() == [(1, "store_full"), (2, "store_full"), (3, "fork")]
        assert all(answer.retryable == (answer.code == "store_full") for answer in sender.received)  # type: ignore[union-attr]
        assert (dump(chain.store), chain.tip, chain.take_facts()) == (before, None, [])
        sender.received.clear()
        take(turns, *[message(each, sender) for each in (one, next_one)])
        assert sender.statuses() == [(1, "applied"), (2, "applied")]
        assert live(chain.store) == {at("O"): (output("ann").address, 1)}


def test_a_full_disk_refuses_a_rollback_and_what_waits_before_it(tmp_path: Path) -> None:
    first = block(None, tx("O", output("ann")))
    second = block(first, seq=1)
    with open_chain(tmp_path) as chain:
        feed(chain, first)
        turns, sender = Turns(chain, pruning=False), Listener()
        before = dump(chain.store)
        with failing(chain.store.disk, Fault(1)):
            take(turns, message(second, sender))
        assert sender.statuses() == [(1, "store_full")]
        sender.received.clear()
        to_origin = type(back_to("origin"))(to="origin", seq=2)
        with failing(chain.store.disk, Fault(1)):
            take(turns, message(to_origin, sender))
        assert sender.statuses() == [(2, "store_full")]
        assert dump(chain.store) == before
        take(turns, message(second, sender), message(to_origin, sender))
        assert sender.statuses()[1:] == [(1, "applied"), (2, "rolled_back")]


def test_a_full_disk_stops_pruning_until_the_next_block(tmp_path: Path) -> None:
    """Deleting needs new pages too. Undo logs are kept until there is space."""
    with open_chain(tmp_path, prune_depth=0, rollback_window=0) as chain:
        feed(chain, *BLOCKS)
        turns = Turns(chain)
        turns.finish()
        before = dump(chain.store)
        assert chain.due_for_pruning()
        with failing(chain.store.disk, Fault(1)):
            assert (done := turns.prune()) and done.facts == []
        assert not chain.due_for_pruning()
        assert dump(chain.store) == before
        take(turns, message(block(BLOCKS[-1]), Listener()))
        assert chain.may_prune
        assert dump(chain.store) != before


def test_a_write_error_on_a_disk_with_space_is_not_a_full_disk(tmp_path: Path) -> None:
    """LMDB reports EIO for both a partial write and a broken disk: the size of the file decides."""
    with open_chain(tmp_path) as chain:
        feed(chain, *FIRST)
        size = (tmp_path / "data.mdb").stat().st_size
        fault = Fault(1, lmdb_error(errno.EIO, "Input/output error"))
        with failing(chain.store.disk, fault), pytest.raises(lmdb.Error, match="Input/output error"):
            feed(chain, LATER[0])
        assert (tmp_path / "data.mdb").stat().st_size == size
        again = restarted(chain)
        feed(again, LATER[0])
        assert again.tip == LATER[0].point


def test_a_damaged_page_is_damage(tmp_path: Path) -> None:
    with open_chain(tmp_path) as chain:
        for kind in (lmdb.CorruptedError, lmdb.PageNotFoundError):
            error = kind("mdb_put")
            vars(error).update(code=-30796, reason="MDB_CORRUPTED")
            with failing(chain.store.disk, Fault(1, error)), pytest.raises(Damaged):
                chain.seed(genesis(ann=1))


# --- the map -------------------------------------------------------------------------------------------------------


def long_chain(length: int) -> Sequence[BlockApplied]:
    blocks: list[BlockApplied] = []
    for n in range(length):
        paid = [output(f"{n} {k}", k, inline_datum=bytes(2500)) for k in range(50)]
        spent = [at(f"t{n - 1}", k) for k in range(0, 50, 2)] if n else []
        blocks.append(block(blocks[-1] if blocks else None, tx(f"t{n}", *paid, spends=spent)))
    return blocks


LONG = long_chain(40)


def test_a_map_grows_ahead_of_need(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Small commits never hit the end of the map, because they would have to be repeated."""
    causes = []
    grow = storage.disk.Disk._grow

    def watched(disk: storage.disk.Disk, cause: lmdb.MapFullError | None) -> None:
        causes.append(cause)
        grow(disk, cause)

    monkeypatch.setattr(storage.disk.Disk, "_grow", watched)
    with open_chain(tmp_path, map_size=MIB) as chain:
        for each in LONG[:25]:
            feed(chain, each)
        assert len(causes) >= 2
        assert set(causes) == {None}


def test_the_largest_map_is_a_full_disk(tmp_path: Path) -> None:
    with open_chain(tmp_path, map_size=MIB, max_map_size=2 * MIB) as chain:
        height = 0
        with pytest.raises(StoreFull, match="max_map_size"):
            for each in LONG:
                feed(chain, each)
                height = each.height
        before = dump(chain.store)
        assert 3 < height < 30
        assert (chain.tip, chain.view.tip) == (LONG[height - 1].point, LONG[height - 1].point)
        with pytest.raises(StoreFull):
            feed(chain, *LONG[height:])
        assert dump(chain.store) == before
    with open_chain(tmp_path, map_size=MIB, max_map_size=64 * MIB) as chain:
        assert dump(chain.store) == before
        feed(chain, *LONG[height:])
        with open_chain(tmp_path / "big") as big:
            feed(big, *LONG[:height])
            feed(big, *LONG[height:])
            assert dump(chain.store) == dump(big.store)


# --- a real full disk ----------------------------------------------------------------------------------------------

FILLING = """
import resource, sys
from pathlib import Path
import lmdb
from chains import dump, feed, open_chain
from storage.errors import StoreFull
from test_faults import LONG

with open_chain(Path(sys.argv[1]), durable=True) as chain:
    resource.setrlimit(resource.RLIMIT_FSIZE, (int(sys.argv[2]), resource.RLIM_INFINITY))
    before, left = dump(chain.store), list(LONG)
    try:
        while left:
            feed(chain, left[0])
            before = dump(chain.store)
            left.pop(0)
        sys.exit("the disk was never full")
    except StoreFull as full:
        cause = full.__cause__
        assert isinstance(cause, lmdb.Error)
        print(cause.code)
    assert dump(chain.store) == before
    assert chain.tip == chain.view.tip
    resource.setrlimit(resource.RLIMIT_FSIZE, (resource.RLIM_INFINITY, resource.RLIM_INFINITY))
    feed(chain, *left)
"""


@pytest.mark.parametrize("limit", [900_000, 1 << 20])
def test_a_file_that_may_not_grow_is_a_full_disk(limit: int, tmp_path: Path) -> None:
    """LMDB reports the kernel's error for a refused write, and EIO for a partial one."""
    path = os.pathsep.join([str(Path(__file__).parent), str(Path(storage.disk.__file__).parents[1])])
    child = subprocess.run(
        [sys.executable, "-W", "error", "-c", FILLING, str(tmp_path), str(limit)],
        env=os.environ | {"PYTHONPATH": path},
        capture_output=True,
        text=True,
        timeout=60,
    )
    assert child.returncode == 0, child.stderr
    assert int(child.stdout) in {errno.EFBIG, errno.EIO}
    with open_chain(tmp_path) as chain, open_chain(tmp_path / "direct") as direct:
        feed(direct, *LONG)
        assert dump(chain.store) == dump(direct.store)
