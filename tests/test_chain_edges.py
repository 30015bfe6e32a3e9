"""Edges of the chain: an index too high, ids that come again, heights that fall, a rollback right after a start."""

from __future__ import annotations

from pathlib import Path

import msgspec
import pytest
from chains import at, back_to, block, dump, feed, live, open_chain, output, tx
from messages import Line, Listener, follow, message

import storage.history.recent

BLOCKS = [block(None, tx("0", output("ann")))]  # each one spends what the one before it has paid
for n in range(1, 6):
    BLOCKS.append(block(BLOCKS[-1], tx(f"{n}", output("ann"), spends=[at(f"{n - 1}")])))


def test_a_block_whose_height_falls_is_no_deeper_than_the_highest(tmp_path: Path) -> None:
    high, low = msgspec.structs.replace(BLOCKS[0], height=10), msgspec.structs.replace(BLOCKS[1], height=3)
    with open_chain(tmp_path, prune_depth=3, rollback_window=2) as chain:
        for each in (high, low):
            follow(chain, Line([message(each, Listener(12))]))
        assert list(dump(chain.store)["undo"]) == [1, 2]


@pytest.mark.parametrize("at_once", [True, False])
def test_an_index_behind_the_last_output_spends_nothing(at_once: bool, tmp_path: Path) -> None:
    """Neither the first output of the transaction that comes next, in a batch and in the store."""
    first = block(None, tx("a", output("ann")), tx("b", output("bob")))
    second = block(first, tx("c", spends=[at("a", 1), at("b", 1)]))
    with open_chain(tmp_path) as chain:
        for blocks in [(first, second)] if at_once else [(first,), (second,)]:
            feed(chain, *blocks)
        assert set(live(chain.store)) == {at("a"), at("b")}
        assert [missing for _, missing in chain.take_missing()] == [[at("a", 1), at("b", 1)]]


def test_what_an_earlier_block_spent_is_not_spent_again(tmp_path: Path) -> None:
    first = block(None, tx("a", output("ann"), output("bob")))
    second = block(first, tx("b", spends=[at("a")]))
    with open_chain(tmp_path) as chain:
        for each in (first, second, block(second, tx("c", spends=[at("a")]))):
            feed(chain, each)
        assert (set(live(chain.store)), chain.view.unspent) == ({at("a", 1)}, 1)
        assert [missing for _, missing in chain.take_missing()] == [[at("a")]]


def test_a_transaction_comes_again_after_a_rollback(tmp_path: Path) -> None:
    """What an index says of it, in a run that the rollback has cut, is not taken for an earlier one of its id."""
    first = block(None, *(tx(f"a{n}", output("ann")) for n in range(4)))
    second, other = block(first, tx("b", output("bob"))), block(first, tx("c", output("cid")))
    with open_chain(tmp_path) as chain:
        feed(chain, first, second)
        assert chain.rollback(back_to(first))
        feed(chain, other)
        feed(chain, block(other, tx("b", output("bob"))))
        assert set(live(chain.store)) == {*(at(f"a{n}") for n in range(4)), at("b"), at("c")}


def test_a_rollback_before_all_undo_logs_were_read(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """After a restart they are read some at a time: not those of blocks that were taken back meanwhile."""
    monkeypatch.setattr(storage.history.recent, "_LOADED", 1)
    with open_chain(tmp_path) as chain:
        feed(chain, *BLOCKS[:5])
    with open_chain(tmp_path) as chain:
        assert chain.rollback(back_to(BLOCKS[1]))
        for _ in range(6):
            chain.maintain(1)
        feed(chain, *BLOCKS[2:5])
