"""What the chain answers where no story goes: refusals by name, what it offers to a feeder, and turns without news."""

from __future__ import annotations

from pathlib import Path
from time import monotonic

import msgspec
import pytest
from chains import (
    at,
    back_to,
    block,
    dump,
    everything,
    failed,
    feed,
    found,
    genesis,
    live,
    open_chain,
    output,
    prune_all,
    refused,
    script,
    tx,
    txid,
    wallet,
)
from messages import Line, Listener, follow, json_line, message, take

import storage.history.history
from handlers.events import (
    BlockCommitted,
    BlockPersisted,
    GenesisOutput,
    GenesisOutputs,
    NodeState,
    Output,
    Rollback,
    RollbackPoint,
)
from handlers.points import recent
from handlers.utxo import Turns
from storage.errors import Damaged
from storage.history.history import U32, UNDO_KEY
from storage.history.layout import STATE, UNDO, seal_row
from storage.history.output_keys import address_key
from storage.rows import Body

BLOCKS = [block(None, tx("t1", output("ann")))]
while len(BLOCKS) < 40:
    BLOCKS.append(block(BLOCKS[-1]))


# --- genesis ---------------------------------------------------------------------------------------------------------


def test_a_genesis_is_seeded_once(tmp_path: Path) -> None:
    with open_chain(tmp_path) as chain:
        assert chain.seed(genesis(ann=1))
        before = dump(chain.store)
        assert not chain.seed(genesis(ann=1))
        refused("fork", lambda: chain.seed(genesis(ann=2)))
        feed(chain, BLOCKS[0])
        assert not chain.seed(genesis(ann=1)), "the very same is a duplicate at any time"
        chain.rollback(back_to("origin"))
        assert dump(chain.store) == before


def test_a_genesis_needs_an_empty_store(tmp_path: Path) -> None:
    with open_chain(tmp_path) as chain:
        assert chain.apply(BLOCKS[0], None)
        why = refused("fork", lambda: chain.seed(genesis(ann=1)))
        assert why.detail["tip"] == BLOCKS[0].point
        assert chain.view.tip == BLOCKS[0].point, "what waited before it is committed"
        chain.rollback(back_to("origin"))
        assert chain.seed(genesis(ann=1)), "empty again"


def test_a_genesis_output_listed_twice_is_malformed(tmp_path: Path) -> None:
    one = GenesisOutput(txid("one"), 3, output("ann"))
    for last in (one, GenesisOutput(txid("one"), 3, Output(b"\x6a", 0, spendable=False))):
        event = GenesisOutputs(outputs=[one, GenesisOutput(txid("two"), 3, output("ann")), last])
        with open_chain(tmp_path) as chain:
            before = dump(chain.store)
            assert "$.outputs[2]" in refused("malformed", lambda: chain.seed(event)).message  # noqa: B023
            assert dump(chain.store) == before


def test_unspendable_genesis_outputs_are_not_stored(tmp_path: Path) -> None:
    event = GenesisOutputs(
        outputs=[
            GenesisOutput(txid("burnt"), 0, Output(b"\x6a", 0, spendable=False)),
            GenesisOutput(txid("kept"), 0, output("ann", 5)),
        ]
    )
    with open_chain(tmp_path) as chain:
        assert chain.seed(event)
        assert list(live(chain.store)) == [at("kept")]
        assert [tx.txid for tx in dump(chain.store)["transactions"]] == [txid("kept")]
        assert chain.view.unspent == 1


# --- blocks ----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("kind", ["classic", "mmr"])
def test_an_unspendable_collateral_return_is_not_stored(tmp_path: Path, kind: str) -> None:
    """It takes an index, as every output that nobody can spend; whoever names it is missing it."""
    first = block(None, tx("funds", output("ann", 5)))
    bad = failed("bad", output("bob"), collateral=[at("funds")], back=output("ann", 4, spendable=False))
    second = block(first, bad)
    third = block(second, tx("late", output("cid"), spends=[at("bad", 1)]))
    with open_chain(tmp_path, store=kind) as chain:
        feed(chain, first)
        before = dump(chain.store)
        feed(chain, second)
        assert live(chain.store) == {}
        assert chain.view.unspent == 0
        assert found(chain.store, "address_hash", address_key(wallet("ann"))) == []
        feed(chain, third)
        assert live(chain.store) == {at("late"): (wallet("cid"), 1)}
        assert chain.take_missing() == [(third.point, [at("bad", 1)])]
        told = [(fact.created, fact.spent) for fact in chain.take_facts() if isinstance(fact, BlockCommitted)]
        assert told == [(1, 0), (0, 1), (1, 0)]
        assert chain.rollback(back_to(first))
        assert dump(chain.store) == before


def test_any_block_begins_an_empty_store(tmp_path: Path) -> None:
    with open_chain(tmp_path) as chain:
        feed(chain, block(None, height=700_000, slot=90_000_000, prev_hash=b"\x01" * 32))
        assert chain.view.blocks == 1
        assert chain.view.tip is not None
        assert chain.view.tip.height == 700_000


def test_without_a_previous_hash_the_height_decides(tmp_path: Path) -> None:
    with open_chain(tmp_path) as chain:
        feed(chain, BLOCKS[0])
        assert chain.apply(msgspec.structs.replace(BLOCKS[1], prev_hash=None), None)
        same = msgspec.structs.replace(BLOCKS[2], prev_hash=None, height=BLOCKS[1].height)
        refused("fork", lambda: chain.apply(same, None))


def test_with_a_previous_hash_the_height_does_not(tmp_path: Path) -> None:
    """Boundary blocks repeat a height, and the chain goes on from there."""
    with open_chain(tmp_path) as chain:
        feed(chain, BLOCKS[0], block(BLOCKS[0], height=BLOCKS[0].height))
        assert (chain.view.blocks, chain.view.tip and chain.view.tip.height) == (2, 1)


def test_a_transaction_that_spends_an_earlier_one_of_its_own_id(tmp_path: Path) -> None:
    """It spends before it creates, so the earlier output is spent, and its own is live."""
    again = tx("same", output("bob", 2), spends=[at("same")], coinbase=True)
    first = block(None, tx("same", output("ann", 1), coinbase=True))
    with open_chain(tmp_path) as chain:
        feed(chain, first, block(first, again))
        assert live(chain.store) == {at("same"): (output("bob").address, 2)}


@pytest.mark.parametrize("length", [1, 255, 256, 0xFFFF, 0x10000])
def test_an_address_of_any_length_is_found(length: int, tmp_path: Path) -> None:
    """A locking script may be as long as its block."""
    where = bytes(n % 251 for n in range(length))
    first = block(None, tx("O", Output(where, 1), Output(where[:-1] + b"\xff", 2)))
    with open_chain(tmp_path, indexes=["address_hash"]) as chain:
        feed(chain, first)
        assert found(chain.store, "address_hash", address_key(where)) == [at("O")]
        feed(chain, block(first, tx("spend", spends=[at("O")])))
        assert found(chain.store, "address_hash", address_key(where)) == []
        assert chain.view.unspent == 1


def test_a_large_transaction_keeps_its_order(tmp_path: Path) -> None:
    """Also beyond the numbers that are looked up and not packed."""
    count = (1 << 14) + 3
    funds = block(None, tx("funds", *[Output(script("eve"), n) for n in range(count)]))
    spend = tx("spend", spends=[at("funds", n) for n in (0, count - 1, (1 << 14) - 1, 1 << 14)])
    with open_chain(tmp_path, indexes=["address_hash"]) as chain:
        feed(chain, funds)
        assert [value for _, value in live(chain.store).values()] == list(range(count))
        feed(chain, block(funds, spend))
        assert chain.view.unspent == count - 4
        assert len(live(chain.store)) == count - 4
        chain.rollback(back_to(funds))
        assert [value for _, value in live(chain.store).values()] == list(range(count))


# --- points ----------------------------------------------------------------------------------------------------------


def test_a_point_needs_something_to_go_by(tmp_path: Path) -> None:
    with open_chain(tmp_path) as chain:
        feed(chain, BLOCKS[0])
        assert "$.to" in refused("malformed", lambda: chain.rollback(Rollback(to=RollbackPoint()))).message


def test_an_unknown_hash_is_refused_with_what_is_near(tmp_path: Path) -> None:
    """By slot or by height; without either nothing can be said."""
    with open_chain(tmp_path) as chain:
        feed(chain, *BLOCKS[:5])

        def nearest(**place: int) -> object:
            to = Rollback(to=RollbackPoint(hash=bytes(32), **place))
            why = refused("unknown_point", lambda: chain.rollback(to))
            assert why.detail["tip"] == BLOCKS[4].point
            return why.detail["nearest"]

        assert nearest() is None
        assert nearest(slot=BLOCKS[3].point.slot - 1) == BLOCKS[2].point
        assert nearest(slot=BLOCKS[3].point.slot) == BLOCKS[2].point, "ours at this slot is on another fork"
        assert nearest(height=3) == BLOCKS[1].point
        assert nearest(slot=0) is None
        assert nearest(slot=10**9) == BLOCKS[4].point


def test_a_block_below_the_floor_is_known_and_not_gone_back_to(tmp_path: Path) -> None:
    """By its hash alone too; it is there again when it is delivered again."""
    with open_chain(tmp_path, prune_depth=2, rollback_window=2) as chain:
        feed(chain, *BLOCKS[:10])
        prune_all(chain)
        old = BLOCKS[3]
        for place in (
            RollbackPoint(hash=old.hash),
            RollbackPoint(hash=old.hash, slot=old.slot),
            RollbackPoint(hash=bytes(32), slot=old.slot),
            RollbackPoint(hash=bytes(32), height=old.height),
        ):
            why = refused("beyond_rollback_floor", lambda: chain.rollback(Rollback(to=place)))  # noqa: B023
            assert why.detail["floor"] == BLOCKS[7].point
        assert not chain.apply(old, None), "it is a duplicate"


@pytest.mark.parametrize(
    ("tip", "floor", "offered"),
    [
        (0, 0, []),
        (1, 0, [1]),
        (2, 0, [2, 1]),
        (10, 0, [10, 9, 8, 6, 2, 1]),
        (10, 4, [10, 9, 8, 6, 4]),
        (10, 10, [10]),
        (100, 37, [100, 99, 98, 96, 92, 84, 68, 37]),
    ],
)
def test_points_thin_out_down_to_the_floor(tip: int, floor: int, offered: list[int]) -> None:
    assert recent(tip, floor) == offered


def test_the_view_offers_points_newest_first(tmp_path: Path) -> None:
    with open_chain(tmp_path, rollback_window=30) as chain:
        feed(chain, *BLOCKS)
        assert chain.view.points == [BLOCKS[n - 1].point for n in (40, 39, 38, 36, 32, 24, 10)]
        assert chain.view.floor == BLOCKS[9].point


# --- what is forgotten -----------------------------------------------------------------------------------------------

SPENDING = [block(None, tx("0", output("ann"), output("ann")))]  # each block spends all of the one before it
for n in range(1, 14):
    spent = [at(str(n - 1), 0), at(str(n - 1), 1)]
    SPENDING.append(block(SPENDING[-1], tx(str(n), output("ann"), output("ann"), spends=spent)))


def test_the_floor_is_the_lowest_block_that_nothing_was_pruned_of(tmp_path: Path) -> None:
    """A reorganisation makes the window reach lower than it did, down to what was pruned, and not one block lower."""
    with open_chain(tmp_path, prune_depth=4, rollback_window=4, prune_batch_size=3) as chain:
        feed(chain, *SPENDING)
        chain.may_prune = True
        gone = [chain.prune().undo_records for _ in range(3)]
        assert gone == [3, 2, 2], "as many blocks as it takes for three spends"
        assert sorted(dump(chain.store)["undo"]) == list(range(8, 15))
        while chain.view.blocks > 7:
            assert chain.rollback(Rollback(to=RollbackPoint(hash=chain.view.points[-1].hash)))
        assert chain.view.tip == chain.view.floor == SPENDING[6].point
        assert live(chain.store) == {at("6", n): (output("ann").address, 1) for n in (0, 1)}
        refused("beyond_rollback_floor", lambda: chain.rollback(back_to(SPENDING[5].point.slot)))


@pytest.mark.parametrize(("before", "later"), [(8, 2), (2, 8)])
def test_other_windows_reach_as_far_as_both(tmp_path: Path, before: int, later: int) -> None:
    """A smaller window forgets what it does not need; a larger one grows from where the smaller one ended."""
    with open_chain(tmp_path, prune_depth=0, rollback_window=before) as chain:
        feed(chain, *SPENDING[:10])
        prune_all(chain)
        assert chain.view.floor == SPENDING[9 - before].point
    with open_chain(tmp_path, prune_depth=0, rollback_window=later) as chain:
        feed(chain, *SPENDING[10:12])
        prune_all(chain)
        lowest = max(9 - before - 1, 11 - later) if later < before else 9 - before - 1
        assert chain.view.floor == SPENDING[lowest].point
        chain.rollback(back_to(SPENDING[lowest]))
        assert live(chain.store) == {at(str(lowest), n): (output("ann").address, 1) for n in (0, 1)}


def test_a_repeated_id_does_not_lead_back_to_what_is_pruned(tmp_path: Path) -> None:
    """The earlier transaction was spent and forgotten; once the later one is taken back, the id leads nowhere."""
    first = block(None, tx("coinbase", output("ann"), coinbase=True))
    blocks = [first, block(first, tx("spend", output("bob"), spends=[at("coinbase")]))]
    blocks += [third := block(blocks[1]), block(third)]
    again = block(blocks[3], tx("coinbase", output("ann"), coinbase=True))
    with open_chain(tmp_path, prune_depth=3, rollback_window=3) as chain:
        feed(chain, *blocks)
        feed(chain, again, block(again))
        prune_all(chain)
        assert live(chain.store) == {
            at("spend"): (output("bob").address, 1),
            at("coinbase"): (output("ann").address, 1),
        }
        chain.rollback(back_to(blocks[3]))
        assert [tx.txid for tx in dump(chain.store)["transactions"]] == [txid("spend")]
        with chain.store.disk.read() as txn:
            assert chain.store.stored(txn).find_tx(txid("coinbase")) is None
        feed(chain, again)
        assert live(chain.store) == {
            at("spend"): (output("bob").address, 1),
            at("coinbase"): (output("ann").address, 1),
        }


# --- turns -----------------------------------------------------------------------------------------------------------


def test_persisted_heights_only_rise(tmp_path: Path) -> None:
    sender = Listener()
    with open_chain(tmp_path) as chain:
        feed(chain, *BLOCKS)
        for height in (2, 1, 2, 3):
            take(Turns(chain), message(BlockPersisted(height=height, seq=height), sender))
        assert sender.said() == [(2, "accepted"), (1, "duplicate"), (2, "duplicate"), (3, "accepted")]
        assert chain.view.persisted_height == 3
    with open_chain(tmp_path) as chain:
        assert chain.view.persisted_height == 3


def test_nothing_is_written_without_news(tmp_path: Path) -> None:
    with open_chain(tmp_path) as chain:
        feed(chain, BLOCKS[0])
        last = chain.store.disk.env.info()["last_txnid"]
        chain.commit()
        assert chain.store.disk.env.info()["last_txnid"] == last
        before = dump(chain.store)
        chain.touch()
        assert chain.store.disk.env.info()["last_txnid"] == last + 1, "a turn at the disk is one"
        assert dump(chain.store) == before


def test_nothing_is_pruned_while_the_node_is_not_settled(tmp_path: Path) -> None:
    sender = Listener()
    with open_chain(tmp_path, prune_depth=0, rollback_window=0) as chain:
        turns = Turns(chain)
        for state in ("catching_up", "reorganising", "stopped"):
            take(turns, message(NodeState(state=state, height=1), sender))
            take(turns, *[message(each, sender) for each in BLOCKS[:10]])
            assert not chain.due_for_pruning()
        assert len(dump(chain.store)["undo"]) == 10
        take(turns, message(NodeState(state="running", height=10), sender))
        assert chain.due_for_pruning()
        take(Turns(chain, pruning=False), message(NodeState(state="running", height=10), sender))
        assert not chain.due_for_pruning(), "the configuration says no"


def test_answers_come_in_the_order_of_the_messages(tmp_path: Path) -> None:
    """What is refused keeps its place among what is done, across the commits that a rollback makes."""
    sender = Listener()
    numbered = [msgspec.structs.replace(each, seq=n) for n, each in enumerate(BLOCKS[:4])]
    with open_chain(tmp_path) as chain:
        committed = take(
            Turns(chain),
            message(numbered[0], sender),
            message(numbered[2], sender),
            json_line('{"type": "Nonsense", "seq": 7}', sender),
            json_line("{", sender),
            message(numbered[1], sender),
            message(numbered[1], sender),
            message(Rollback(to=RollbackPoint(hash=BLOCKS[0].hash), seq=8), sender),
            message(BLOCKS[1], sender),
            message(Rollback(to="origin", seq=9), sender),
        )
        assert sender.said() == [
            (0, "applied"),
            (2, "gap"),
            (7, "unknown_type"),
            (None, "malformed"),
            (1, "applied"),
            (1, "duplicate"),
            (8, "rolled_back"),
            (9, "rolled_back"),
        ]
        kinds = [type(fact).__name__ for fact in committed.facts]
        assert kinds == ["BlockCommitted", "BlockCommitted", "RolledBack", "BlockCommitted", "RolledBack"]
        assert committed.view.tip is None


def test_a_turn_ends_in_time(tmp_path: Path) -> None:
    """At least one message is carried out; the others wait for the next turn."""
    sender = Listener()
    with open_chain(tmp_path) as chain:
        turns = Turns(chain)
        deliveries = [message(each, sender) for each in BLOCKS[:3]]
        assert turns.take(deliveries, monotonic(), 0.0) == deliveries[1:]
        assert turns.finish().view.blocks == 1


def test_the_network_height_of_the_sender_decides_how_deep_a_block_lies(tmp_path: Path) -> None:
    with open_chain(tmp_path, prune_depth=3, rollback_window=2) as chain:
        follow(chain, Line([message(BLOCKS[0], Listener(4))]))
        assert list(dump(chain.store)["undo"]) == [1], "three blocks below is within the windows"
        follow(chain, Line([message(BLOCKS[1], Listener(6))]))
        assert dump(chain.store)["undo"] == {}, "four blocks below is not"
        assert chain.view.floor == BLOCKS[1].point


# --- damage ----------------------------------------------------------------------------------------------------------


def test_a_missing_undo_log_is_damage(tmp_path: Path) -> None:
    """It stops the way back, and pruning, before anything has changed."""
    with open_chain(tmp_path) as chain:
        store = chain.store
        feed(chain, *SPENDING[:4])
        store.disk.write(lambda txn: txn.delete(UNDO_KEY.pack(2, 0), db=store.disk.tables[UNDO]))
        before = everything(store)
        with pytest.raises(Damaged, match="block 2 has no undo log"):
            chain.rollback(back_to("origin"))
        assert everything(store) == before
    with open_chain(tmp_path, prune_depth=0, rollback_window=0) as chain:
        with pytest.raises(Damaged, match="block 2 has no undo log"):
            prune_all(chain)
        assert everything(chain.store) == before


def test_an_undo_log_that_is_not_whole_is_damage(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(storage.history.history, "UNDO_ENTRIES", 1)
    with open_chain(tmp_path) as chain:
        store = chain.store
        feed(chain, *SPENDING[:3])
        store.disk.write(lambda txn: txn.delete(UNDO_KEY.pack(3, 1), db=store.disk.tables[UNDO]))
        before = everything(store)
        with pytest.raises(Damaged, match="the undo log of block 3 has 1 of its 2 spends"):
            chain.rollback(back_to(SPENDING[1]))
        assert everything(store) == before


def test_a_missing_block_or_transaction_is_damage(tmp_path: Path) -> None:
    with open_chain(tmp_path) as chain:
        store = chain.store
        feed(chain, *BLOCKS[:3])
        store.disk.write(lambda txn: txn.delete(U32.pack(2), db=store.block))
        before = everything(store)
        with pytest.raises(Damaged, match="block 2 has no row"):
            chain.rollback(back_to("origin"))
        assert everything(store) == before
        with store.disk.read() as txn, pytest.raises(Damaged, match="the transaction of output 70 is not there"):
            store.stored(txn).tx_of(70)


def test_blocks_above_the_tip_are_damage(tmp_path: Path) -> None:
    with open_chain(tmp_path) as chain:
        store = chain.store
        feed(chain, BLOCKS[0])
        store.disk.write(lambda txn: txn.put(U32.pack(7), b"a block", db=store.block))
        before = everything(store)
        with pytest.raises(Damaged, match="blocks above the tip were there already"):
            feed(chain, BLOCKS[1])
        assert everything(store) == before


def test_a_state_of_another_shape_is_damage(tmp_path: Path) -> None:
    with open_chain(tmp_path) as chain:
        store = chain.store
        store.disk.write(lambda txn: txn.put(STATE, seal_row(Body(b"no", 1)), db=store.meta))
        with store.disk.read() as txn, pytest.raises(Damaged, match="the state cannot be read"):
            store.state(txn)
