"""Messages of a stream: each takes effect once, at its place, which is stored in the same commit."""

from __future__ import annotations

from pathlib import Path

from chains import back_to, block, open_chain, output, tx
from faults import Fault, failing
from messages import Listener, message, take
from msgspec.structs import replace

from handlers.delivery import Delivery
from handlers.events import BlockApplied, BlockPersisted, Inbound
from handlers.replication import Logged
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
