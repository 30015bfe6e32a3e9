"""The change log: bytes, ends, retention, damage."""

from __future__ import annotations

import zlib
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, cast

import lmdb
import pytest
from chains import LEAVES, TABLES, back_to, block, feed, genesis, open_chain, tx
from faults import Fault, broken, failing, full

import handlers.change_log
import storage.change_log
from handlers.causes import (
    AnyCause,
    BlockRolledBack,
    Decided,
    DoubleSpend,
    Expired,
    InBlock,
    ParentLost,
    Submitted,
    Withdrawn,
)
from handlers.change_log import ChangeLog, FactType, Gone, NotYet, read, recent
from handlers.events import BlockCommitted, Fact, Point, Pruned, RolledBack, TxStatusChanged
from storage.change_log import ROW_BYTES, LogStore, Retention, read_row
from storage.disk import Disk
from storage.errors import Damaged, StoreFull
from storage.history.verify import verify

A, B = Point(7, 140, b"\xaa" * 32), Point(9, 180, b"\xbb" * 32)
CAUSES: list[AnyCause | None] = [
    None,
    Submitted(),
    InBlock(),
    BlockRolledBack(),
    DoubleSpend(),
    DoubleSpend(by=b"\xcc" * 32),
    ParentLost(b"\xdd" * 32),
    Decided(),
    Withdrawn("evicted"),
    Expired(),
]
EVERY: list[Fact] = [
    BlockCommitted(height=9, slot=180, hash=B.hash, txs=2, created=3, spent=1, missing_inputs=0),
    RolledBack(from_=B, to=A, blocks=2),
    RolledBack(from_=A, to="origin", blocks=7),
    Pruned(spent_outputs=1, transactions=2, undo_records=3, floor=A, mmr_nodes=4),
    Pruned(spent_outputs=1, transactions=0, undo_records=0, floor=None),
    *[TxStatusChanged(txid=b"\xee" * 32, status="pending", height=n or None, cause=c) for n, c in enumerate(CAUSES)],
]


@contextmanager
def opened(folder: Path, keep: Retention | None = None) -> Iterator[ChangeLog]:
    with Disk(folder, TABLES, map_size=64 << 20, durable=False) as disk:
        yield ChangeLog(disk, keep)


def append(log: ChangeLog, *facts: Fact) -> list[Fact]:
    def work(_: object) -> None:
        for fact in facts:
            log.record(fact)

    log.write(work)
    return log.written


def block_fact(height: int) -> BlockCommitted:
    return BlockCommitted(height=height, slot=height, hash=bytes(32), txs=0, created=0, spent=0, missing_inputs=0)


def everything(log: ChangeLog) -> list[Fact]:
    with log.store.disk.read() as txn:
        return read(log.store.rows(txn), 0)


def ends(log: ChangeLog) -> tuple[int, int]:
    with log.store.disk.read() as txn:
        return log.store.ends(txn)


# --- bytes -------------------------------------------------------------------------------------------------------


def test_bytes_on_disk(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """If this fails, the format of the log changed: write docs/format.md first."""
    monkeypatch.setattr(storage.change_log, "time", lambda: 1_757_500_000.9)
    with opened(tmp_path) as log:
        append(log, EVERY[0], EVERY[1])
        append(log, EVERY[4], EVERY[10])
        with log.store.disk.read() as txn:
            rows = {key.hex(): value.hex() for key, value in txn.cursor(log.store.disk.tables["change_log"])}
    b, a, e, c = "bb" * 32, "aa" * 32, "ee" * 32, "cc" * 32
    at, block_hash, txid, by = "0000000068c15260", f"c420{b}", f"c420{e}", f"c420{c}"
    committed = f"980109ccb4{block_hash}02030100"
    rolled_back = f"94029309ccb4{block_hash}9307cc8cc420{a}02"
    pruned = "960301000000c0"
    spent_twice = f"9604{txid}a770656e64696e6705ac646f75626c655f7370656e64{by}"
    assert {key: row[8:] for key, row in rows.items()} == {
        "0000000000000001": f"{at}dc0002{committed}{rolled_back}",
        "0000000000000003": f"{at}dc0002{pruned}{spent_twice}",
    }
    for key, row in rows.items():
        assert row[:8] == f"{zlib.crc32(bytes.fromhex(key + row[8:])):08x}"


def test_every_fact_comes_back_as_it_was(tmp_path: Path) -> None:
    with opened(tmp_path) as log:
        written = append(log, *EVERY)
        assert [fact.sequence for fact in written] == list(range(1, len(EVERY) + 1))
        assert everything(log) == written == log.take() and log.take() == []
        kinds = {type(fact.cause) for fact in written if isinstance(fact, TxStatusChanged)}
        assert kinds == {type(cause) for cause in CAUSES}


def test_many_facts_of_a_commit_take_several_rows_of_bounded_size(tmp_path: Path) -> None:
    facts = [TxStatusChanged(txid=n.to_bytes(32, "big"), status="mined", height=1) for n in range(1000)]
    with opened(tmp_path) as log:
        append(log, block_fact(1))
        written = append(log, *facts)
        with log.store.disk.read() as txn:
            rows = list(log.store.rows(txn))
            assert 10 < len(rows) < 60 and max(len(raw) for _, raw in rows) <= ROW_BYTES + 15
            assert txn.stat(log.store.disk.tables["change_log"])["overflow_pages"] == 0
        assert everything(log)[1:] == written
        for sequence in (1, 2, 3, 500, 1000, 1001):
            assert [fact.sequence for fact in read(log.fetch(sequence, 9999), sequence)] == list(range(sequence, 1002))
        assert next(fact.sequence for fact in read(log.fetch(40, 1), 40)) == 40
        assert log.fetch(1002, 9) == []
        with pytest.raises(NotYet, match="sequence 1003 is in the future: the newest one is 1001"):
            log.fetch(1003, 9)
        with pytest.raises(Gone) as removed:
            log.fetch(0, 9)
        assert removed.value.oldest == 1


@pytest.mark.parametrize("at", range(0, 60, 3))
def test_a_changed_bit_is_damage(at: int, tmp_path: Path) -> None:
    with opened(tmp_path) as log:
        append(log, *EVERY[:2])
        with log.store.disk.read() as txn:
            key, raw = next(log.store.rows(txn))
    wrong = bytes((*raw[:at], raw[at] ^ 4, *raw[at + 1 :]))
    with pytest.raises(Damaged, match="0000000000000001"):
        read_row(key, wrong)
    with pytest.raises(Damaged):
        read_row(b"\0" * 7 + b"\2", raw)
    with pytest.raises(Damaged):
        read_row(key, raw[: at // 4])


# --- writes ------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("kind", [full, broken])
def test_a_write_that_fails_leaves_no_fact_and_no_gap(kind: Callable[[], lmdb.Error], tmp_path: Path) -> None:
    error: type[Exception] = StoreFull if kind is full else lmdb.Error
    with opened(tmp_path, Retention(count=2)) as log:
        append(log, block_fact(1), block_fact(2))
        append(log, block_fact(3))
        log.append_later([block_fact(77)])
        log.take()
        number = 1
        while True:
            with failing(log.store.disk, Fault(number, kind())) as fault:
                try:
                    append(log, block_fact(4), block_fact(5))
                except error:
                    assert ends(log) == (1, 3) and log.take() == log.written == [] and log.waiting
                else:
                    break
            assert fault.seen == number
            number += 1
        assert number > 3
        assert [(fact.sequence, cast(Any, fact).height) for fact in log.take()] == [(4, 4), (5, 5), (6, 77)]
        assert [fact.sequence for fact in log.written] == [4, 5] and not log.waiting


def test_a_map_that_is_full_appends_once(tmp_path: Path) -> None:
    with opened(tmp_path) as log:
        log.append_later([block_fact(9)])
        with failing(log.store.disk, Fault(1, lmdb.MapFullError("mdb_put"))):
            append(log, block_fact(1), block_fact(2))
        assert [cast(Any, fact).height for fact in everything(log)] == [1, 2, 9] and ends(log) == (1, 3)


# --- retention ---------------------------------------------------------------------------------------------------


def test_recent_facts_are_of_some_types_newest_first(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Facts of other types are skipped, up to a number of rows."""
    back = RolledBack(from_=Point(9, 90, b"\x09" * 32), to="origin", blocks=9)
    noise = [TxStatusChanged(txid=bytes([n]) * 32, status="pending", height=None, cause=None) for n in range(200)]
    types: list[FactType] = ["BlockCommitted", "RolledBack"]
    with opened(tmp_path) as log:
        pruned = append(log, Pruned(spent_outputs=1, transactions=2, undo_records=3, floor=None, mmr_nodes=4))
        reported = append(log, block_fact(1), back, block_fact(2))
        append(log, *noise)
        reported += append(log, block_fact(3))
        with log.store.disk.read() as txn:
            rows = sum(1 for _ in log.store.rows(txn))
            assert [fact for _, fact in recent(log.store, txn, types, 9)] == reported[::-1]
            assert [fact for _, fact in recent(log.store, txn, types, 2)] == reported[:1:-1]
            assert [fact for _, fact in recent(log.store, txn, ["RolledBack"], 9)] == [reported[1]]
            assert [fact for _, fact in recent(log.store, txn, ["Pruned"], 9)] == pruned
            assert {at for at, _ in recent(log.store, txn, types, 9)} == {
                log.logged_at(1),
                log.logged_at(reported[-1].sequence or 0),
            }
            monkeypatch.setattr(handlers.change_log, "_EXAMINED", rows - 2)
            assert [fact for _, fact in recent(log.store, txn, types, 9)] == reported[:2:-1]
    assert rows > 3


def test_facts_beyond_the_count_are_deleted_and_sequences_continue(tmp_path: Path) -> None:
    with opened(tmp_path, Retention(count=5)) as log:
        for height in range(1, 21):
            append(log, block_fact(height))
            assert ends(log) == (max(height - 4, 1), height)
        append(log, *(block_fact(height) for height in range(21, 24)))
        assert ends(log) == (19, 23)
    with opened(tmp_path, Retention(count=1)) as log:  # a row stays for as long as one of its facts does
        append(log)
        assert ends(log) == (19, 23)
        append(log, block_fact(24))
        assert ends(log) == (24, 24)
        append(log, block_fact(25))
        assert ends(log) == (25, 25)
        with pytest.raises(Gone) as removed:
            log.fetch(24, 1)
        assert removed.value.oldest == 25


def test_facts_beyond_the_age_are_deleted_except_the_newest(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    now = 1000.0
    monkeypatch.setattr(storage.change_log, "time", lambda: now)
    with opened(tmp_path, Retention(age_s=100)) as log:
        for seconds in (1000.0, 1050.0, 1100.0):
            now = seconds
            append(log, block_fact(1))
        assert ends(log) == (1, 3)
        now = 1151.0
        append(log, block_fact(1))
        assert ends(log) == (3, 4)
        now = 9999.0
        append(log, block_fact(1))
        assert ends(log) == (5, 5)
        now = 1000.0  # a clock that was set back does not make facts younger than those before them
        append(log, block_fact(1))
        with log.store.disk.read() as txn:
            assert [read_row(*raw).at for raw in log.store.rows(txn)] == [9999, 9999]


def test_a_commit_removes_a_bounded_number_of_rows(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(storage.change_log, "_TRIMMED", 10)
    with opened(tmp_path) as log:
        for _ in range(100):
            append(log, block_fact(1))
        log.keep = Retention(count=1)
        for commits in range(1, 9):
            append(log, block_fact(1))
            assert ends(log) == (1 + 11 * commits, 100 + commits)


# --- the chain's facts -------------------------------------------------------------------------------------------


def test_verify_checks_the_log(tmp_path: Path) -> None:
    with open_chain(tmp_path) as chain:
        chain.seed(genesis(ann=1))
        blocks = [block(None, tx("a"))]
        for n in range(5):
            blocks.append(block(blocks[-1], tx(f"{n}")))
        for each in blocks:
            feed(chain, each)
        disk = chain.store.disk

        def found() -> list[str]:
            return verify(disk, copy_to=tmp_path, leaves=LEAVES)

        assert found() == []
        with disk.read() as txn:
            rows = list(LogStore(disk).rows(txn))
        table = disk.tables["change_log"]
        disk.write(lambda txn: txn.delete(rows[2][0], db=table))
        assert found() == ["the change log has a gap: fact 4 follows fact 2"]
        disk.write(lambda txn: txn.put(rows[2][0], rows[2][1][:-1] + b"\x7f", db=table))
        assert "the checksum differs" in "".join(found())
        disk.write(lambda txn: txn.put(*rows[2], db=table))
        disk.write(lambda txn: txn.delete(rows[5][0], db=table))
        assert found() == [
            f"the change log ends at block {blocks[4].hash.hex()}, but the tip is {blocks[5].hash.hex()}"
        ]
        disk.write(lambda txn: txn.put(*rows[5], db=table))
        assert found() == []
        assert chain.rollback(back_to("origin")) and found() == []
