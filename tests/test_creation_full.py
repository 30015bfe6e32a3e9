"""A disk that is full in the middle of a large transaction: the answer is retryable, and the retry goes on at once."""

from __future__ import annotations

from pathlib import Path

import msgspec
import pytest
from chains import output, tx
from faults import Fault, failing
from messages import Line, Listener, follow, message
from pruning import House, open_house

from handlers.events import Tx, TxStatusChanged, TxSubmitted

PAGE, PAGES = 4, 3
LARGE = tx("large", *(output("ann") for _ in range(PAGE * PAGES)))


class Filled(Fault):
    """From one write on all of them fail."""

    def write(self) -> None:
        self.seen += 1
        if self.at is not None and self.seen >= self.at:
            raise self.error


def submit(house: House, made: Tx = LARGE) -> tuple[str, list[str]]:
    """Return the answer to a submission, and what others heard of it."""
    sender = Listener()
    follow(house.chain, Line([message(TxSubmitted(tx=made, seq=1), sender)]))
    ((_, said),) = sender.said()
    facts = house.chain.changes.take()
    return said, [fact.status for fact in facts if isinstance(fact, TxStatusChanged) and fact.txid == made.txid]


def whole(house: House) -> bool:
    record = house.record("large")
    return record is not None and not record.creating and record.total == PAGE * PAGES


def test_a_retry_goes_on_at_once_wherever_the_disk_was_full(tmp_path: Path) -> None:
    """At every write, from then on until the answer: also what gives the lock back fails."""
    met = set[str]()
    for at in range(1, 200):
        (tmp_path / str(at)).mkdir()
        with open_house(tmp_path / str(at), page=PAGE) as house:
            with failing(house.disk, Filled(at)) as fault:
                first, heard = submit(house)
            if fault.seen < at:
                assert first == "accepted" and at > 20
                break
            kept = whole(house)
            met.add(first)
            assert first == "store_full" or kept, (at, first)
            again, heard_then = submit(house)
            assert again in ("accepted", "duplicate") and whole(house), (at, first, again)
            assert heard + heard_then == ["pending"], at
            with house.disk.read() as txn:
                assert kept or house.store.lock(txn, LARGE.txid) is None
    else:
        pytest.fail("it never succeeded")
    assert met == {"store_full", "accepted"}


def test_a_retry_goes_on_though_the_limit_of_what_may_wait_is_reached(tmp_path: Path) -> None:
    with open_house(tmp_path, page=PAGE) as house:
        wish = msgspec.structs.replace(house.transactions.rules, max_pending_count=1)
        house.transactions.rules = wish
        assert house.chain.tx_blocks
        house.chain.tx_blocks.evictor._rules = wish
        with failing(house.disk, Filled(16)):
            assert submit(house)[0] == "store_full"
        record = house.record("large")
        assert record is not None and record.creating
        assert submit(house, tx("small", output("bob"))) == ("PENDING_FULL", [])  # it counts, and can't be evicted now
        assert submit(house) == ("duplicate", ["pending"])
        assert whole(house)
        assert submit(house, tx("small", output("bob"))) == ("accepted", ["pending"])
        assert house.record("large") is None
