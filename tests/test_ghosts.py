"""Transactions of rolled-back blocks without rows of their own: whether they have some never changes an answer."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from contextlib import ExitStack
from functools import partial
from pathlib import Path
from random import Random

import numpy as np
import pytest
from chains import Branches, at, back_to, block, failed, feed, output, tx, txid
from hypothesis import given, settings
from hypothesis import strategies as st
from inconsistent_messages import INLINE, LARGE, MATURITY, RETENTION, WINDOW, World
from messages import Listener, ListInbox, follow, message, take
from msgspec import structs
from pruning import LocalStore, open_local_store
from stores import Looked, look

import storage.ghost_index
from handlers import claims
from handlers.audit import Audited, audit
from handlers.bodies import body
from handlers.causes import BlockRolledBack, InBlock
from handlers.events import Fact, Inbound, Tx, TxConflicting, TxStatusChanged
from handlers.spending import Rules
from storage.disk import Disk, Txn
from storage.ghost_index import BY_ID, BY_PARENT
from storage.ghost_layout import INDEX, LIVE, META, SPEND, TABLES
from storage.history.bits import set_stored
from storage.history.layout import words
from storage.pool_layout import output_hash
from storage.windows import Windows

MET = Branches()


@pytest.fixture(autouse=True)
def few(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("handlers.ghosts.LEAST", 1)
    monkeypatch.setattr("handlers.ghosts.GENERATIONS", 3)


@pytest.fixture
def small(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("storage.ghost_index._ENTRIES", 3)
    monkeypatch.setattr("storage.history.values.VALUE_BYTES", 300)


class Twin:
    """A store that receives messages; with `with_rows`, every ghost has rows as soon as it exists."""

    def __init__(self, local: LocalStore, *, with_rows: bool) -> None:
        self.local, self.with_rows = local, with_rows
        local.transactions.rules = Rules(
            batch_size=LARGE, retention=RETENTION, maturity=MATURITY, reassign_delay=3, max_inline_bytes=INLINE
        )
        self.store = local.transactions.pool
        self.repaired = 0

    def send(self, events: list[Inbound]) -> tuple[list[tuple[int | None, str]], list[Fact]]:
        sender, facts = Listener(), list[Fact]()
        for event in events:
            for committed in follow(self.local.chain, ListInbox([message(event, sender)])):
                facts += sorted((structs.replace(fact, sequence=None) for fact in committed.facts), key=repr)
                self.repaired += committed.repaired
            if self.with_rows:
                self.local.write(lambda view: [view.touch(txid) for txid in self.store.ghosts.txids(view.txn)])
                assert self.ghosts() == 0
                assert self.local.chain.tx_blocks is not None
                self.local.chain.tx_blocks.settle()
        return sender.statuses(), facts

    def ghosts(self) -> int:
        with self.local.disk.read() as txn:
            return self.store.ghosts.count(txn)

    def answers(self, names: Iterable[bytes]) -> dict[str, object]:
        found = dict[str, object]()
        with self.local.disk.read() as txn:
            view = self.local.transactions.view(txn)
            for name in names:
                held = view.get(name)
                if held is None:
                    found[name.hex()] = None
                    continue
                record = held.record
                outputs = [look(view, (name, index)) for index in range(LARGE + 2)]
                state = record.mined, record.conflicting, record.locked, record.unmined_since, record.block_ids
                children = sorted(claims.children(view, name))
                found[name.hex()] = state, record.conflicting_children, outputs, view.spends(held), children
            found["waiting"] = list(self.store.due(txn, self.store.unmined, 2**32 - 1)), self.store.unmined_count(txn)
        assert audit(self.local.transactions).findings == []
        return found


@pytest.mark.usefixtures("small")
@pytest.mark.parametrize("lies", [False, True])
@pytest.mark.parametrize("seed", range(2))
def test_rows_of_ghosts_change_no_answer(tmp_path: Path, lies: bool, seed: int) -> None:
    world, reach = World(Random(seed), MET, lies=lies), Windows(WINDOW, WINDOW)
    with ExitStack() as stack:
        both = [
            stack.enter_context(open_local_store(tmp_path / name, windows=reach, page=LARGE)) for name in ("a", "b")
        ]
        ghost, written = Twin(both[0], with_rows=False), Twin(both[1], with_rows=True)
        for turn in range(40):
            events, before = list(world.some()), ghost.ghosts()
            assert ghost.send(events) == written.send(events)
            if turn % 4 == 3:
                assert ghost.answers(world.txs) == written.answers(world.txs)
            MET.meet("ghosts made", ghost.ghosts() > before)
            MET.meet("ghosts ended", ghost.ghosts() < before)
            with ghost.local.disk.read() as txn:
                MET.meet("several generations", len(ghost.store.ghosts.generations(txn)) > 1)


def test_the_scenarios_covered_what_they_are_for() -> None:
    """This test runs after the random ones above, in the same process."""
    if not MET.met:
        pytest.skip("none of the stories was run in this process")
    wanted = {"ghosts made", "ghosts ended", "several generations", "a rollback to the floor", "an id again"}
    assert wanted <= MET.met.keys(), f"not met: {sorted(wanted - MET.met.keys())}"


PAY = output("ann", 7)
ONE = block(None, tx("coin", *[output("bob", 7)] * 6, coinbase=True), tx("other", PAY))
TWO = block(ONE, tx("a", PAY, PAY, spends=[at("coin")]), tx("b", PAY, spends=[at("a"), at("coin", 1)]))
THREE = block(TWO, tx("c", PAY, spends=[at("b"), at("a", 1)]), tx("d", PAY, spends=[at("other")]))


@pytest.fixture
def local(tmp_path: Path) -> Iterator[LocalStore]:
    with open_local_store(tmp_path, windows=Windows(20, 20)) as local:
        feed(local.chain, ONE, TWO, THREE)
        yield local


def rows(local: LocalStore) -> dict[str, int]:
    with local.disk.read() as txn:
        tables = ("tx", "tx_claim", "tx_unmined", *TABLES)
        return {name: count for name in tables if (count := txn.stat(local.disk.tables[name])["entries"])}


def reported(local: LocalStore) -> list[tuple[str, str, object]]:
    names = {txid(name): name for name in ("a", "b", "c", "d", "rival")}
    facts = [fact for fact in local.chain.changes.take() if isinstance(fact, TxStatusChanged)]
    return [(names[fact.txid], fact.status, fact.cause) for fact in facts]


def test_a_rollback_writes_no_records_and_the_same_blocks_leave_nothing(local: LocalStore) -> None:
    local.chain.changes.take()
    local.chain.rollback(back_to(ONE))
    assert {"tx", "tx_unmined"}.isdisjoint(rows(local))
    assert set(TABLES) == rows(local).keys()
    with local.disk.read() as txn:
        found = look(local.transactions.view(txn), at("c"))
    assert found == Looked("OK", output_hash(*at("c"), body(PAY))), "bodies of the blocks that stay are before it"
    assert reported(local) == [(name, "pending", BlockRolledBack()) for name in ("c", "d", "a", "b")]
    feed(local.chain, TWO, THREE)
    assert rows(local) == {}
    assert reported(local) == [(name, "mined", InBlock()) for name in ("a", "b", "c", "d")]
    assert audit(local.transactions) == Audited([], [])


def test_a_double_spend_of_a_parent_makes_its_descendants_conflicting(local: LocalStore) -> None:
    local.chain.rollback(back_to(ONE))
    feed(local.chain, block(ONE, tx("rival", PAY, spends=[at("coin")])))
    with local.disk.read() as txn:
        store = local.transactions.pool
        states = {name: local.store.record(txn, txid(name)) for name in "abcd"}
        assert {name: state and state.conflicting for name, state in states.items()} == {
            "a": True,
            "b": True,
            "c": True,
            "d": False,
        }
        assert [txid_ for _, txid_ in store.ghosts.by_height(txn, 0, 10)] == [txid("d")]


@pytest.mark.parametrize(
    "again",
    [
        tx("a", output("ann", 8), PAY, spends=[at("coin")]),
        tx("a", PAY, output("ann", 7, spendable=False), spends=[at("coin")]),
        tx("a", PAY, spends=[at("coin")]),
        tx("a", PAY, PAY, spends=[at("coin", 2)]),
        tx("a", PAY, PAY, spends=[at("coin"), at("coin", 2)]),
        failed("a", PAY, PAY, spends=[at("coin", 2)], collateral=[at("coin")]),
    ],
    ids=["another value", "an unspendable output", "fewer outputs", "another input", "more inputs", "failed"],
)
def test_another_content_in_a_block_is_noticed_with_rows_and_without(tmp_path: Path, again: Tx) -> None:
    found = []
    for with_rows in (False, True):
        with open_local_store(tmp_path / str(with_rows), windows=Windows(20, 20)) as local:
            twin = Twin(local, with_rows=with_rows)
            twin.send([ONE, TWO, THREE])
            statuses = twin.send([back_to(ONE)]), twin.send([block(ONE, again, THREE.txs[1])])
            found.append((statuses, twin.repaired, twin.answers(map(txid, "abcd"))))
    assert found[0] == found[1]


def test_a_generation_ends_with_its_last_ghost(local: LocalStore) -> None:
    local.chain.rollback(back_to(TWO))
    local.chain.rollback(back_to(ONE))
    store = local.transactions.pool
    with local.disk.read() as txn:
        assert [each.left for each in store.ghosts.generations(txn)] == [2, 2]
        assert list(store.due(txn, store.unmined, 10)) == sorted(
            (height, txid(name)) for height, name in ((2, "a"), (2, "b"), (3, "c"), (3, "d"))
        )
        assert [txid(name) in set(store.txids(txn)) for name in "abcd"] == [True] * 4
    local.write(lambda view: [view.touch(txid("c")), view.touch(txid("d"))])
    with local.disk.read() as txn:
        assert [(each.number, each.left) for each in store.ghosts.generations(txn)] == [(1, 2)]
        assert [height for height, _ in store.ghosts.by_height(txn, 0, 10)] == [2, 2]


def test_a_refused_message_does_not_change_ghosts(local: LocalStore) -> None:
    local.chain.rollback(back_to(ONE))
    before, sender = rows(local), Listener()
    names = [[txid("a"), txid("nobody")], [txid("d")]]
    take(local.turns, *(message(TxConflicting(seq=n, txids=some), sender) for n, some in enumerate(names)))
    assert sender.statuses() == [(0, "TX_NOT_FOUND"), (1, "accepted")]
    with local.disk.read() as txn:
        view = local.transactions.view(txn)
        a, d = view.pooled(txid("a")), view.pooled(txid("d"))
        assert a is not None and a.ghost is not None and not a.record.conflicting
        assert d is not None and d.ghost is None and d.record.conflicting
    assert {"tx", "tx_unmined"}.isdisjoint(before)
    assert audit(local.transactions) == Audited([], [])


@pytest.mark.usefixtures("small")
@settings(max_examples=60, deadline=None)
@given(
    stored=st.lists(st.tuples(st.integers(0, 6), st.integers(0, 4)), max_size=30),
    wanted=st.lists(st.tuples(st.integers(0, 7), st.integers(0, 5)), max_size=12),
)
def test_entries_are_found_by_prefix_and_index(
    tmp_path_factory: pytest.TempPathFactory, stored: list[tuple[int, int]], wanted: list[tuple[int, int]]
) -> None:
    with Disk(tmp_path_factory.mktemp("index"), TABLES, durable=False) as disk:
        index, part = storage.ghost_index.GhostIndex(disk.tables[INDEX]), (5, 0, BY_PARENT)
        columns = np.array(stored, np.int64).reshape(-1, 2)
        prefixes, numbers = (columns[:, 0] * 2**60).astype(np.uint64), np.arange(len(stored))
        for other in ((4, 0, BY_PARENT), (6, 0, BY_PARENT), (5, 0, BY_ID)):
            disk.write(partial(index.put, part=other, prefixes=prefixes, indexes=columns[:, 1], numbers=numbers))
        disk.write(lambda txn: index.put(txn, part, prefixes, columns[:, 1], numbers))
        requests = np.array(sorted(wanted), np.int64).reshape(-1, 2)
        with disk.read() as txn:
            entries = index.entries(txn, part)
            places, found_numbers = entries.find((requests[:, 0] * 2**60).astype(np.uint64), requests[:, 1])
            found = sorted(zip(places.tolist(), found_numbers.tolist(), strict=True))
            assert found == sorted(
                (place, n) for place, want in enumerate(sorted(wanted)) for n, key in enumerate(stored) if key == want
            )
            places, found_numbers = entries.find((requests[:, 0] * 2**60).astype(np.uint64))
            found = sorted(zip(places.tolist(), found_numbers.tolist(), strict=True))
            assert found == sorted(
                (place, n)
                for place, (want, _) in enumerate(sorted(wanted))
                for n, (prefix, _) in enumerate(stored)
                if prefix == want
            )


def _first(txn: Txn, local: LocalStore, table: str, front: bytes = b"") -> bytes:
    cursor = txn.cursor(local.disk.tables[table])
    assert cursor.set_range(front)
    key: bytes = cursor.key()
    return key


def _lose(table: str, front: bytes = b"") -> Callable[[Txn, LocalStore], object]:
    return lambda txn, local: txn.delete(_first(txn, local, table, front), db=local.disk.tables[table])


def _flip(table: str) -> Callable[[Txn, LocalStore], object]:
    def flip(txn: Txn, local: LocalStore) -> None:
        key = _first(txn, local, table)
        raw = bytearray(txn.get(key, db=local.disk.tables[table]) or b"")
        raw[-1] ^= 1
        txn.put(key, bytes(raw), db=local.disk.tables[table])

    return flip


@pytest.mark.parametrize(
    ("damage", "statuses"),
    [
        (_lose(META), "block 0 of generation 0 of the ghosts is missing"),
        (_lose(LIVE), "0 transactions are marked as ghosts, but the generations count 4"),
        (_lose(SPEND), "the spends of a ghost are missing"),
        (_lose(INDEX), "the index of its transactions has no entry for number"),
        (_lose(INDEX, bytes((0, 0, 0, 0, 1))), "the index of its spends has no entry for number"),
        *[(_flip(table), "checksum") for table in TABLES],
    ],
)
def test_damage_is_found(local: LocalStore, damage: Callable[[Txn, LocalStore], object], statuses: str) -> None:
    local.chain.rollback(back_to(ONE))
    assert audit(local.transactions) == Audited([], [])
    local.disk.write(lambda txn: damage(txn, local))
    found = audit(local.transactions).findings
    assert any(statuses in each for each in found), found


def test_a_wrong_count_is_found(local: LocalStore) -> None:
    local.chain.rollback(back_to(ONE))
    ghosts = local.transactions.pool.ghosts
    with local.disk.read() as txn:
        number = int(ghosts.find_many(txn, words(txid("a")))[0])
        assert len(ghosts.index.read(txn, ghosts.generations(txn)[0].part(BY_ID)).numbers) == 4
    local.disk.write(lambda txn: set_stored(txn, local.disk.tables[LIVE], np.array([number]), to=False))
    found = audit(local.transactions).findings
    assert "generation 0 of the ghosts has 3 ghosts, but its row counts 4" in found
