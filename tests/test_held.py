"""What a process keeps between queries has bounded memory; that it changes no answer is tested in `test_query`."""

from __future__ import annotations

from pathlib import Path
from random import Random

import numpy as np
import pytest
from chains import (
    block,
    credential,
    feed,
    open_chain,
    output,
    query_of,
    random_chain,
    tx,
    wallet,
)
from stores import small_values

import storage.history.held
import storage.history.stored_index
from handlers.events import BlockApplied
from handlers.query import Query
from storage.errors import Damaged
from storage.history.held import Checked, HeldValues, Value
from storage.history.layout import HEAD_BYTES, OUTPUT, OUTPUT_RECORD, is_intact, seal
from storage.history.stored_index import HeldRuns

POLICIES = [credential(f"policy {n}") for n in range(3)]


def test_held_values_use_bounded_memory() -> None:
    held, room = HeldValues(100), 100
    for first in np.random.default_rng(1).permutation(5000).tolist():
        held.keep(value_of(first * 10, 10))
        assert len(held) <= room
        found = held.find(first * 10 + 9)
        assert found is not None and found.first == first * 10 and found.place(first * 10 + 4) == 4
        assert held.find(first * 10 + 10) is None or held.find(first * 10 + 10).first == first * 10 + 10  # type: ignore[union-attr]
    often = value_of(-100, 10)
    held.keep(often)
    for first in range(50_000, 60_000, 10):
        assert held.find(-95) is often  # what is asked for again and again stays
        held.keep(value_of(first, 10))


def value_of(first: int, count: int) -> Value:
    records = np.zeros(count, OUTPUT_RECORD)
    records["number"] = np.arange(first, first + count)
    return Value(seal(count, records.tobytes()), first, OUTPUT_RECORD)


def test_a_large_value_is_not_kept() -> None:
    records = np.zeros(1, OUTPUT_RECORD)
    records["length"] = 100_000
    held = HeldValues(100)
    held.keep(Value(seal(1, records.tobytes(), bytes(100_000)), 0, OUTPUT_RECORD))
    assert len(held) == 0 and held.find(0) is None


def test_a_checksum_is_computed_once_for_each_value(monkeypatch: pytest.MonkeyPatch) -> None:
    computed = list[bytes]()

    def counted(value: bytes) -> bool:
        computed.append(value)
        return is_intact(value)

    monkeypatch.setattr("storage.history.held.is_intact", counted)
    checked, good = Checked(), seal(1, b"good")
    assert [checked.contains(good, 7) for _ in range(3)] == [True] * 3 and computed == [good]
    assert not checked.contains(good[:-1] + b"?", 8) and not checked.contains(good[:-1] + b"?", 8)
    other = seal(1, b"else")
    assert checked.contains(other, 7) and computed[-1] == other  # the same key, rewritten
    assert checked.contains(good, b"another key") and len(computed) == 5


def test_damage_is_found_by_the_first_read(tmp_path: Path) -> None:
    """A page that was read before is answered from memory; a process that reads the value first finds the damage."""
    first = block(None, tx("a", *(output("ann", n) for n in range(5))))
    with open_chain(tmp_path) as chain:
        feed(chain, first)
        warm, table = query_of(chain), chain.store.disk.tables[OUTPUT]

        def harm(txn: storage.disk.Txn) -> None:
            cursor = txn.cursor(table)
            assert cursor.last()
            value = bytearray(cursor.value())
            value[HEAD_BYTES + 8] ^= 1
            txn.put(cursor.key(), bytes(value), db=table)

        def ask(query: Query) -> bytes:
            with query.snapshot() as shot:
                return shot.json(shot.walk(shot.by_address(wallet("ann")), "asc", None).next(9))

        before = ask(warm)
        chain.store.disk.write(harm)
        assert ask(warm) == before
        with pytest.raises(Damaged, match="checksum"):
            ask(query_of(chain))


def test_held_runs_follow_the_list_of_runs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    small_values(monkeypatch)
    rng, held = Random(2), HeldRuns()
    with open_chain(tmp_path) as chain:
        story = list[BlockApplied]()
        for _ in range(20):
            feed(chain, *(more := random_chain(rng, 2, after=story)))
            story += more
            with chain.store.disk.read() as txn:
                for kind in ("txid", "address_hash"):
                    index = storage.history.stored_index.StoredIndex(txn, chain.store.disk.tables, kind, held)
                    for prefix in range(0, 1 << 64, 1 << 58):
                        assert not list(index.ascending(prefix)) and not list(index.find(prefix))
                runs = {run.id for kind, (_, listed) in held._lists.items() for run in listed.runs}
                assert set(held._runs) <= runs and len(runs) < 40
