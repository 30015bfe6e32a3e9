"""What a process keeps between queries never changes an answer, and has bounded memory."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path
from random import Random

import numpy as np
import pytest
from chains import (
    ADDRESSES,
    CODEC,
    INDEXES,
    back_to,
    block,
    credential,
    feed,
    open_chain,
    output,
    prune_all,
    random_chain,
    random_genesis,
    tx,
    wallet,
)
from stores import small_values

import storage.history.bits
import storage.history.held
import storage.history.kept
import storage.history.stored_index
from handlers.chain import Chain
from handlers.events import BlockApplied, OutPoint
from handlers.query import Query, Snapshot
from storage.errors import Damaged
from storage.history.held import Checked, HeldValues, Value
from storage.history.layout import HEAD_BYTES, OUTPUT, OUTPUT_RECORD, is_intact, seal
from storage.history.stored_index import HeldRuns

POLICIES = [credential(f"policy {n}") for n in range(3)]


@pytest.fixture
def small(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let values be small, and let there be room for a few of them."""
    small_values(monkeypatch)
    monkeypatch.setattr(storage.history.kept, "_TX_VALUES", 6)
    monkeypatch.setattr(storage.history.kept, "_OUTPUT_VALUES", 6)
    monkeypatch.setattr(storage.history.stored_index, "_TELLTALES", 20)
    monkeypatch.setattr(storage.history.stored_index, "_PARTS", 5)
    monkeypatch.setattr(storage.history.held, "_SLOTS", 16)
    monkeypatch.setattr(storage.history.bits.StoredBits, "_KEPT", 1)


def asking(chain: Chain) -> Query:
    return Query(chain.store, CODEC, "cardano", 20_000)


def answers(shot: Snapshot, points: list[OutPoint], blocks: list[BlockApplied]) -> Iterator[object]:
    """Yield everything that can be asked for."""
    yield shot.state.tip, shot.state.unspent
    lists = [("address_hash", shot.by_address(address)[1]) for address in ADDRESSES]
    for where in (*lists, *(("policy", policy) for policy in POLICIES)):
        for order in ("asc", "desc"):
            walk = shot.walk(where, order, None)
            while places := walk.next(7):
                yield where, order, shot.json(places), shot.cbor(places)
            first = shot.page(where, 3, order, 1, None)
            if first.next_cursor is not None:
                yield first, shot.page(where, 3, order, 1, first.next_cursor), shot.page(where, 3, order, 2, None)
        yield where, list(shot.balance(where))[-1]
    for point in points:
        yield point, shot.find(*point)
    for each in blocks:
        ordinal = shot.ordinal_of(each.hash)
        yield each.hash, ordinal
        effects = None if ordinal is None else shot.effects(ordinal)
        if effects is not None:
            yield list(effects.created()), list(effects.spent()), list(effects.failed())


@pytest.mark.usefixtures("small")
def test_a_process_that_asks_for_the_first_time_gets_the_same_answers(tmp_path: Path) -> None:
    """After blocks, rollbacks, merges and rewrites; and the answers of a snapshot of an earlier block stay the same."""
    met = Counter[str]()
    for seed in range(3):
        rng = Random(seed)
        with open_chain(
            tmp_path / str(seed), indexes=INDEXES, rollback_window=6, prune_depth=0, may_prune=True
        ) as chain:
            warm, blocks, points = asking(chain), list[BlockApplied](), list[OutPoint]()
            chain.seed(random_genesis(rng))
            for _ in range(12):
                with ExitStack() as earlier:
                    before = earlier.enter_context(warm.snapshot())
                    known, durable = list(points), list(blocks)
                    expected = list(answers(before, known, durable)) if rng.random() < 0.7 else None
                    if len(blocks) > 8 and rng.random() < 0.5:
                        blocks = blocks[: -rng.randrange(1, 5)]
                        chain.rollback(back_to(blocks[-1]))
                        met["a rollback"] += 1
                    for more in random_chain(rng, rng.randrange(1, 8), after=blocks):
                        feed(chain, more)
                        blocks.append(more)
                        points += [(each.txid, n) for each in more.txs for n in range(len(each.outputs))]
                    if rng.random() < 0.3:
                        prune_all(chain)
                        met["pruned"] += 1
                    with warm.snapshot() as now, asking(chain).snapshot() as fresh:
                        assert list(answers(now, points, blocks)) == list(answers(fresh, points, blocks))
                        met["rewritten"] += any(run.level for run in fresh.stored.index("txid").runs)
                    if expected is not None:
                        assert list(answers(before, known, durable)) == expected
                        met["an earlier block"] += 1
    assert len(met) == 4 and all(count > 5 for count in met.values()), met


def test_held_values_have_bounded_room() -> None:
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


def test_a_checksum_is_computed_once_and_never_taken_for_another(monkeypatch: pytest.MonkeyPatch) -> None:
    computed = list[bytes]()

    def counted(value: bytes) -> bool:
        computed.append(value)
        return is_intact(value)

    monkeypatch.setattr("storage.history.held.is_intact", counted)
    checked, good = Checked(), seal(1, b"good")
    assert [checked.knows(good, 7) for _ in range(3)] == [True] * 3 and computed == [good]
    assert not checked.knows(good[:-1] + b"?", 8) and not checked.knows(good[:-1] + b"?", 8)
    other = seal(1, b"else")
    assert checked.knows(other, 7) and computed[-1] == other  # the same key, rewritten
    assert checked.knows(good, b"another key") and len(computed) == 5


def test_damage_is_found_by_the_first_read(tmp_path: Path) -> None:
    """A page that was read before is answered from memory; a process that reads the value first finds the damage."""
    first = block(None, tx("a", *(output("ann", n) for n in range(5))))
    with open_chain(tmp_path) as chain:
        feed(chain, first)
        warm, table = asking(chain), chain.store.disk.tables[OUTPUT]

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
            ask(asking(chain))


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
