"""Messages of a stream: each takes effect once, at its place, which is stored in the same commit."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
from chains import back_to, block, open_chain, output, tx
from faults import Fault, failing
from local_daemon import LocalDaemon, local_daemon
from messages import Listener, message, take
from msgspec.structs import replace

from handlers.creation import acquire
from handlers.delivery import Delivery
from handlers.events import BlockApplied, BlockPersisted, Inbound, Rollback, TxSubmitted
from handlers.replication import Logged
from handlers.transactions import TxView
from handlers.utxo import Turns
from storage.log_place import LogPlace, read_log_place

ONE = block(None, tx("O", output("ann")), seq=1)
TWO = block(ONE, seq=2)


def logged(event: Inbound, sequence: int, sender: Listener, stream: str = "S@1") -> Delivery:
    place = Logged(stream=stream, sequence=sequence, at=1000 + sequence)
    return Delivery(message(event, sender).raw, "frames", sender, logged=place)


def place(turns: Turns) -> LogPlace | None:
    """Return the place that is on disk."""
    store = turns.chain.store
    with store.disk.read() as txn:
        return read_log_place(txn, store.meta)


def test_a_message_that_comes_twice_has_one_effect(tmp_path: Path) -> None:
    with open_chain(tmp_path) as chain:
        turns, sender = Turns(chain, pruning=False), Listener()
        back = type(back_to("origin"))(to="origin", seq=3)
        take(turns, logged(ONE, 5, sender), logged(TWO, 6, sender), logged(back, 9, sender))
        assert place(turns) == LogPlace("S@1", 9)
        take(turns, *[logged(event, n, sender) for event, n in ((ONE, 5), (TWO, 6), (back, 9))])
        assert [status for _, status in sender.statuses()] == ["applied", "applied", "rolled_back"] + 3 * ["duplicate"]
        assert chain.tip is None
    with open_chain(tmp_path) as chain:  # by a new process
        turns, sender = Turns(chain, pruning=False), Listener()
        take(turns, logged(ONE, 5, sender), logged(ONE, 10, sender))
        assert sender.statuses() == [(1, "duplicate"), (1, "applied")]
        take(turns, logged(ONE, 1, sender, "S@2"))  # the same number of another stream
        assert (sender.statuses()[-1], place(turns)) == ((1, "duplicate"), LogPlace("S@2", 1))


def test_a_place_is_stored_for_what_every_replica_refuses(tmp_path: Path) -> None:
    with open_chain(tmp_path) as chain:
        turns, sender = Turns(chain, pruning=False), Listener()
        take(turns, logged(ONE, 1, sender), logged(BlockPersisted(height=7, seq=2), 2, sender))
        assert (sender.statuses()[-1], place(turns)) == ((2, "gap"), LogPlace("S@1", 2))


def test_nothing_is_applied_behind_a_message_that_failed(tmp_path: Path) -> None:
    with open_chain(tmp_path) as chain:
        turns, sender = Turns(chain, pruning=False), Listener()
        with failing(chain.store.disk, Fault(4)):
            take(turns, logged(ONE, 1, sender))
        assert (sender.statuses(), place(turns)) == ([(1, "store_full")], None)
        other = BlockApplied(height=ONE.height, hash=bytes(32), seq=2)
        take(turns, logged(other, 2, sender), logged(replace(other, seq=3), 3, sender))
        assert sender.statuses()[1:] == [(2, "unavailable"), (3, "unavailable")]
        assert all(getattr(answer, "retryable", False) for answer in sender.received)
        take(turns, logged(ONE, 1, sender), logged(TWO, 2, sender))
        assert sender.statuses()[3:] == [(1, "applied"), (2, "applied")]
        assert place(turns) == LogPlace("S@1", 2)


def test_a_block_of_another_chain_stops_the_replica(tmp_path: Path) -> None:
    with open_chain(tmp_path) as chain:
        turns, sender = Turns(chain, pruning=False), Listener()
        take(turns, logged(ONE, 1, sender), logged(block(None, salt="other", seq=2), 2, sender), logged(TWO, 3, sender))
        assert sender.statuses() == [(1, "applied"), (2, "fork"), (2, "unavailable")]
        assert place(turns) == LogPlace("S@1", 1)


def test_a_rollback_behind_a_block_that_failed_is_not_carried_out(tmp_path: Path) -> None:
    with open_chain(tmp_path) as chain:
        turns, sender, back = Turns(chain, pruning=False), Listener(), Rollback(to="origin", seq=3)
        take(turns, logged(ONE, 1, sender))
        with failing(chain.store.disk, Fault(4)):
            take(turns, logged(TWO, 2, sender), logged(back, 3, sender))
        assert sender.statuses()[1:] == [(2, "store_full"), (3, "unavailable")]
        assert (chain.tip, place(turns)) == (ONE.point, LogPlace("S@1", 1))
        take(turns, logged(TWO, 2, sender), logged(back, 3, sender))
        assert sender.statuses()[3:] == [(2, "applied"), (3, "rolled_back")]


# --- large submissions -----------------------------------------------------------------------------------------------


COIN = tx("O", output("ann"), output("bob"))
FIRST = block(None, COIN, seq=1)
SECOND = block(FIRST, seq=2)
LARGE = TxSubmitted(tx=tx("L", *(output(f"l{n}") for n in range(7)), spends=[(COIN.txid, 0)]), seq=5)


@pytest.fixture
def replica(tmp_path: Path) -> Iterator[LocalDaemon]:
    tables = {"cluster": {"stream": "nats://127.0.0.1:1"}, "transactions": {"batch_size": 2, "max_inline_bytes": 100}}
    with local_daemon(tmp_path, **tables) as made:
        made.carry_out([logged(FIRST, 1, Listener())])
        yield made


def reached(daemon: LocalDaemon) -> int | None:
    found = daemon.chain.view.log_place
    return None if found is None else found.sequence


def test_a_large_submission_that_every_replica_refuses_is_not_sent_again(replica: LocalDaemon) -> None:
    sender = Listener()
    without_outputs = tx("W", spends=[(COIN.txid, 0)], raw=bytes(200))
    replica.carry_out([logged(TxSubmitted(tx=without_outputs, seq=4), 2, sender), logged(LARGE, 3, sender)])
    assert sender.statuses() == [(4, "PROCESSING"), (5, "accepted")]
    assert reached(replica) == 3


def test_a_large_submission_behind_a_block_that_failed_is_not_created(replica: LocalDaemon) -> None:
    sender = Listener()
    messages = [logged(SECOND, 2, sender), logged(LARGE, 3, sender)]
    with failing(replica.chain.store.disk, Fault(4)):
        replica.carry_out(messages)
    assert sender.statuses() == [(2, "store_full"), (5, "store_full")]
    assert (sender.settled_count, reached(replica)) == (2, 1)
    with replica.chain.store.disk.read() as txn:
        assert replica.store.record(txn, LARGE.tx.txid) is None
    assert not replica.tx_blocks.transactions.on_their_way
    replica.carry_out(messages)
    assert sender.statuses()[2:] == [(2, "applied"), (5, "accepted")]


def test_a_creation_that_was_killed_is_carried_out_whatever_the_process_id(replica: LocalDaemon) -> None:
    def lock(view: TxView) -> None:
        acquire(view, LARGE.tx.txid, bytes(16), 4, 1e11)

    replica.chain.write_alone(lock)
    replica.restart()
    sender = Listener()
    replica.carry_out([logged(LARGE, 2, sender)])
    assert sender.statuses() == [(5, "accepted")]
