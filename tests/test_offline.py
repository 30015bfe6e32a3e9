"""Commands on a store without its daemon: building indexes, and pruning."""

from __future__ import annotations

import shutil
from contextlib import AbstractContextManager
from pathlib import Path
from random import Random

import lmdb
import pytest
from chains import Options, feed, open_chain, random_chain, random_genesis
from faults import Fault, broken, failing
from stores import small_values

from config.load import load
from daemon.offline import prune
from handlers.chain import Chain
from storage.disk import Disk
from storage.errors import WrongFormat
from storage.history.output_keys import RULES
from storage.history.reindex import reindex
from storage.history.runs import manifest
from storage.history.store import HistoryStore
from storage.history.stored import Stored
from storage.history.verify import verify
from storage.history.view import View
from storage.indexes import NAMES

OPTIONS = Options(rollback_window=8, prune_depth=8, may_prune=True, map_size=1 << 24)
BLOCKS = random_chain(Random(3), 46, repeats=False)
EVERY = tuple(RULES)


@pytest.fixture
def small(monkeypatch: pytest.MonkeyPatch) -> None:
    small_values(monkeypatch, value_bytes=600, reindexed_values=2, reindexed_entries=10, collected=4)


def opened(folder: Path, indexes: tuple[str, ...]) -> AbstractContextManager[Chain]:
    options = OPTIONS.copy()
    options["indexes"] = indexes
    return open_chain(folder, **options)


def fill(folder: Path, indexes: tuple[str, ...]) -> None:
    with opened(folder, indexes) as chain:
        chain.seed(random_genesis(Random(1)))
        for each in BLOCKS[:40]:
            feed(chain, each)


def entries(disk: Disk, kind: str) -> set[tuple[int, ...]]:
    with disk.read() as txn:
        stored, found = Stored(txn, disk.tables), list[tuple[int, ...]]()
        for run in stored.index(kind).runs:
            for _, some, _ in View(txn, disk.tables).run(run.id, stored.index(kind).dtype):
                found += [tuple(each) for each in some.tolist() if each[1] < run.high and stored.live.is_set(each[1])]
    assert len(found) == len(set(found))
    return set(found)


@pytest.mark.usefixtures("small")
def test_indexes_that_were_off_are_complete_afterwards(tmp_path: Path) -> None:
    fill(tmp_path, ("policy",))
    with opened(tmp_path, ("policy",)) as chain:
        before = entries(chain.store.disk, "policy")
    with pytest.raises(WrongFormat, match="address_hash"), opened(tmp_path, EVERY):
        pass
    with opened(tmp_path, ("policy",)) as chain:
        disk = chain.store.disk
        done = list[int]()
        total = reindex(HistoryStore(disk), EVERY, done.append)
        assert done == sorted(done) and done[-1] == total and len(set(done)) > 3
        assert verify(disk) == []
        with disk.read() as txn:
            stored = Stored(txn, disk.tables)
            assert stored.state.unspent == len(entries(disk, "address_hash")) <= total
            assert any(run.level > 0 for run in stored.index("address_hash").runs)
    with opened(tmp_path, EVERY) as chain:
        assert entries(chain.store.disk, "policy") == before
        for each in BLOCKS[40:]:
            feed(chain, each)
        assert verify(chain.store.disk) == []


@pytest.mark.usefixtures("small")
@pytest.mark.parametrize("kind", ["killed", "a map that is too small"])
def test_a_fault_at_any_write_of_a_reindex(kind: str, tmp_path: Path) -> None:
    fill(tmp_path / "told", EVERY)
    number, happened = 1, True
    while happened:
        folder = tmp_path / "copy"
        shutil.copytree(tmp_path / "told", folder)
        with opened(folder, EVERY) as chain:
            disk = chain.store.disk
            error = broken() if kind == "killed" else lmdb.MapFullError("mdb_put")
            with failing(disk, Fault(number, error)) as fault:
                try:
                    reindex(HistoryStore(disk), NAMES, lambda _: None)
                except lmdb.Error:
                    assert kind == "killed"
                    assert verify(disk, quick=True) == []
                    reindex(HistoryStore(disk), NAMES, lambda _: None)
            assert verify(disk, quick=True) == []
            with disk.read() as txn:
                assert sorted(chain.store.kept_indexes(txn)) == sorted(NAMES)
        shutil.rmtree(folder)
        happened, number = fault.seen >= number, number + 41
    assert number > 100


def dead(disk: Disk) -> dict[str, int]:
    with disk.read() as txn:
        stored, view = Stored(txn, disk.tables), View(txn, disk.tables)
        found = dict.fromkeys(EVERY, 0)
        for kind in EVERY:
            for run in stored.index(kind).runs:
                for _, entries, _ in view.run(run.id, stored.index(kind).dtype):
                    found[kind] += int((~stored.revivable(entries["number"])).sum())
        return found


@pytest.mark.usefixtures("small")
@pytest.mark.parametrize("merged", [1, 1000])
def test_pruning_rewrites_every_run_with_enough_obsolete_entries(
    merged: int, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setattr("daemon.offline._STEPS", 1)
    monkeypatch.setattr("storage.history.merging.FANOUT", 1000)  # so all runs are of one level
    monkeypatch.setattr("storage.history.recent._LOADED", 1)
    monkeypatch.setattr("storage.history.history._THINNED", 1000)
    monkeypatch.setattr("storage.history.history._COUNTED", 0)
    fill(tmp_path / "lmdb", EVERY)
    monkeypatch.setattr("storage.history.history._COUNTED", 5)
    monkeypatch.setattr("storage.history.history.LEAST_MERGED", merged)
    config = tmp_path / "utxod.toml"
    config.write_text(f'data_dir = "{tmp_path}"\n[utxo]\nrollback_window = 8\nprune_depth = 8\n')
    with opened(tmp_path / "lmdb", EVERY) as chain:
        before = dead(chain.store.disk)
    prune(load(config, {}))
    with opened(tmp_path / "lmdb", EVERY) as chain:
        assert verify(chain.store.disk) == []
        assert before["address_hash"] > 20 and set(dead(chain.store.disk).values()) == {0}
        with chain.store.disk.read() as txn:
            assert not any(manifest(txn, chain.store.meta, kind).merges for kind in EVERY)
