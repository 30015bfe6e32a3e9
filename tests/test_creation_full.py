"""A disk that is full in the middle of a large transaction: the answer is retryable, and the retry goes on at once."""

from __future__ import annotations

from pathlib import Path

import msgspec
import pytest
from chains import output, tx
from faults import Fault, failing
from messages import Listener, ListInbox, follow, message
from pruning import LocalStore, open_local_store

from handlers.events import Tx, TxStatusChanged, TxSubmitted

PAGE, PAGES = 4, 3
LARGE = tx("large", *(output("ann") for _ in range(PAGE * PAGES)))


class Filled(Fault):
    """Every write from one on fails."""

    def write(self) -> None:
        self.seen += 1
        if self.at is not None and self.seen >= self.at:
            raise self.error


def submit(local: LocalStore, made: Tx = LARGE) -> tuple[str, list[str]]:
    sender = Listener()
    follow(local.chain, ListInbox([message(TxSubmitted(tx=made, seq=1), sender)]))
    ((_, statuses),) = sender.statuses()
    facts = local.chain.changes.take()
    return statuses, [fact.status for fact in facts if isinstance(fact, TxStatusChanged) and fact.txid == made.txid]


def whole(local: LocalStore) -> bool:
    record = local.record("large")
    return record is not None and not record.creating and record.total == PAGE * PAGES


def test_a_retry_continues_at_once_wherever_the_disk_was_full(tmp_path: Path) -> None:
    """Every write from one on fails until the answer, also the write that releases the lock."""
    met = set[str]()
    for at in range(1, 200):
        (tmp_path / str(at)).mkdir()
        with open_local_store(tmp_path / str(at), page=PAGE) as local:
            with failing(local.disk, Filled(at)) as fault:
                first, received = submit(local)
            if fault.seen < at:
                assert first == "accepted" and at > 20
                break
            kept = whole(local)
            met.add(first)
            assert first == "store_full" or kept, (at, first)
            again, heard_then = submit(local)
            assert again in ("accepted", "duplicate") and whole(local), (at, first, again)
            assert received + heard_then == ["pending"], at
            with local.disk.read() as txn:
                assert kept or local.store.lock(txn, LARGE.txid) is None
    else:
        pytest.fail("it never succeeded")
    assert met == {"store_full", "accepted"}


def test_a_retry_continues_although_the_pending_limit_is_reached(tmp_path: Path) -> None:
    with open_local_store(tmp_path, page=PAGE) as local:
        local.transactions.rules = msgspec.structs.replace(local.transactions.rules, max_pending_count=1)
        assert local.chain.tx_blocks
        local.chain.tx_blocks.evictor._most_count = 1
        with failing(local.disk, Filled(16)):
            assert submit(local)[0] == "store_full"
        record = local.record("large")
        assert record is not None and record.creating
        assert submit(local, tx("small", output("bob"))) == ("PENDING_FULL", [])  # it counts, and can't be evicted now
        assert submit(local) == ("duplicate", ["pending"])
        assert whole(local)
        assert submit(local, tx("small", output("bob"))) == ("accepted", ["pending"])
        assert local.record("large") is None
