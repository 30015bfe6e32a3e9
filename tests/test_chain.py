"""The chain where random scenarios rarely go: refusals, points offered to a feeder, turns, damage, edges of indexes."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from time import monotonic

import msgspec
import pytest
from chains import (
    at,
    back_to,
    block,
    chained,
    dump,
    everything,
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
)
from messages import Listener, ListInbox, follow, json_line, message, take

import storage.history.history
import storage.history.recent
from handlers.chain import Chain
from handlers.events import GenesisOutput, GenesisOutputs, NodeState, Output, Rollback, RollbackPoint, Tx
from handlers.points import recent
from handlers.utxo import Turns
from storage.disk import Txn
from storage.errors import Damaged
from storage.history.history import U32, UNDO_KEY
from storage.history.layout import BLOCK, STATE, UNDO
from storage.history.output_keys import address_key
from storage.rows import Body, seal_row

BLOCKS = chained([tx("t1", output("ann"))], *[[]] * 39)
SPENDING = chained(  # each block spends all of the one before it
    [tx("0", output("ann"), output("ann"))],
    *([tx(f"{n}", output("ann"), output("ann"), spends=[at(f"{n - 1}", k) for k in (0, 1)])] for n in range(1, 6)),
)


def to(**place: object) -> Rollback:
    return Rollback(to=RollbackPoint(**place))  # type: ignore[arg-type]


# --- blocks ----------------------------------------------------------------------------------------------------------


def test_a_genesis_needs_an_empty_store(tmp_path: Path) -> None:
    with open_chain(tmp_path) as chain:
        assert chain.apply(BLOCKS[0], None)
        assert refused("fork", lambda: chain.seed(genesis(ann=1))).detail["tip"] == BLOCKS[0].point
        assert chain.view.tip == BLOCKS[0].point, "blocks that arrived before it are committed"
        chain.rollback(back_to("origin"))
        one, unspendable = GenesisOutput(txid("one"), 3, output("ann")), Output(b"\x6a", 0, spendable=False)
        for last in (one, GenesisOutput(txid("one"), 3, unspendable)):
            event = GenesisOutputs(outputs=[one, GenesisOutput(txid("two"), 3, output("ann")), last])
            assert "$.outputs[2]" in refused("malformed", lambda: chain.seed(event)).message  # noqa: B023
        assert chain.seed(genesis(ann=1)), "empty again"


def test_a_transaction_that_spends_an_earlier_one_of_its_own_id(tmp_path: Path) -> None:
    """A transaction spends before it creates."""
    again = tx("same", output("bob", 2), spends=[at("same")], coinbase=True)
    with open_chain(tmp_path) as chain:
        feed(chain, *chained([tx("same", output("ann", 1), coinbase=True)], [again]))
        assert live(chain.store) == {at("same"): (output("bob").address, 2)}


@pytest.mark.parametrize("length", [1, 255, 256, 0xFFFF, 0x10000])
def test_an_address_of_any_length_is_found(length: int, tmp_path: Path) -> None:
    where = bytes(n % 251 for n in range(length))
    first, second = chained(
        [tx("O", Output(where, 1), Output(where[:-1] + b"\xff", 2))], [tx("spend", spends=[at("O")])]
    )
    with open_chain(tmp_path, indexes=["address_hash"]) as chain:
        for each, expected in ((first, [at("O")]), (second, [])):
            feed(chain, each)
            assert found(chain.store, "address_hash", address_key(where)) == expected


def test_a_large_transaction_keeps_its_order(tmp_path: Path) -> None:
    count = (1 << 14) + 3
    funds = block(None, tx("funds", *[Output(script("eve"), n) for n in range(count)]))
    spend = tx("spend", spends=[at("funds", n) for n in (0, count - 1, (1 << 14) - 1, 1 << 14)])
    with open_chain(tmp_path, indexes=["address_hash"]) as chain:
        feed(chain, funds)
        assert [value for _, value in live(chain.store).values()] == list(range(count))
        feed(chain, block(funds, spend))
        assert chain.view.unspent == len(live(chain.store)) == count - 4
        chain.rollback(back_to(funds))
        assert [value for _, value in live(chain.store).values()] == list(range(count))


@pytest.mark.parametrize("at_once", [True, False])
def test_an_index_behind_the_last_output_spends_nothing(at_once: bool, tmp_path: Path) -> None:
    blocks = chained(
        [tx("a", output("ann")), tx("b", output("bob"), output("bob"))],
        [tx("c", spends=[at("a", 1), at("b", 2), at("b", 1)])],
        [tx("d", spends=[at("b", 1)])],
    )
    with open_chain(tmp_path) as chain:
        for some in [blocks] if at_once else [[each] for each in blocks]:
            feed(chain, *some)
        assert set(live(chain.store)) == {at("a"), at("b")}
        assert chain.view.unspent == 2
        assert [missing for _, missing in chain.take_missing()] == [[at("a", 1), at("b", 2)], [at("b", 1)]]


def test_a_transaction_comes_again_after_a_rollback(tmp_path: Path) -> None:
    """Its entry in the run that the rollback cut is not taken for an earlier transaction of its id."""
    first = block(None, *(tx(f"a{n}", output("ann")) for n in range(4)))
    second, other = block(first, tx("b", output("bob"))), block(first, tx("c", output("cid")))
    with open_chain(tmp_path) as chain:
        feed(chain, first, second)
        assert chain.rollback(back_to(first))
        feed(chain, other)
        feed(chain, block(other, tx("b", output("bob"))))
        assert set(live(chain.store)) == {*(at(f"a{n}") for n in range(4)), at("b"), at("c")}


def test_a_repeated_id_does_not_lead_back_to_what_is_pruned(tmp_path: Path) -> None:
    coinbase = tx("coinbase", output("ann"), coinbase=True)
    blocks = chained([coinbase], [tx("spend", output("bob"), spends=[at("coinbase")])], [], [], [coinbase], [])
    with open_chain(tmp_path, prune_depth=3, rollback_window=3) as chain:
        feed(chain, *blocks[:4])
        feed(chain, *blocks[4:])
        prune_all(chain)
        assert set(live(chain.store)) == {at("spend"), at("coinbase")}
        chain.rollback(back_to(blocks[3]))
        assert [tx.txid for tx in dump(chain.store)["transactions"]] == [txid("spend")]
        with chain.store.disk.read() as txn:
            assert chain.store.stored(txn).find_tx(txid("coinbase")) is None
        feed(chain, blocks[4])
        assert set(live(chain.store)) == {at("spend"), at("coinbase")}


# --- points ----------------------------------------------------------------------------------------------------------


def test_an_unknown_hash_is_refused_with_the_nearest_block(tmp_path: Path) -> None:
    with open_chain(tmp_path) as chain:
        feed(chain, *BLOCKS[:5])
        for place, nearest in (
            ({}, None),
            ({"slot": BLOCKS[3].point.slot - 1}, BLOCKS[2]),
            ({"slot": BLOCKS[3].point.slot}, BLOCKS[2]),  # ours at this slot is on another fork
            ({"height": 3}, BLOCKS[1]),
            ({"slot": 0}, None),
            ({"slot": 10**9}, BLOCKS[4]),
        ):
            why = refused("unknown_point", lambda: chain.rollback(to(hash=bytes(32), **place)))  # noqa: B023
            assert why.detail == {"tip": BLOCKS[4].point, "nearest": nearest and nearest.point}


def test_a_block_below_the_floor_is_a_duplicate_and_not_rolled_back_to(tmp_path: Path) -> None:
    old, unknown = BLOCKS[3], bytes(32)
    with open_chain(tmp_path, prune_depth=2, rollback_window=2) as chain:
        feed(chain, *BLOCKS[:10])
        prune_all(chain)
        for place in (
            to(hash=old.hash),
            to(hash=old.hash, slot=old.slot),
            to(hash=unknown, slot=old.slot),
            to(hash=unknown, height=old.height),
        ):
            why = refused("beyond_rollback_floor", lambda: chain.rollback(place))  # noqa: B023
            assert why.detail["floor"] == BLOCKS[7].point
        assert not chain.apply(old, None)


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


# --- turns -----------------------------------------------------------------------------------------------------------


def test_nothing_is_written_without_new_facts(tmp_path: Path) -> None:
    with open_chain(tmp_path) as chain:
        feed(chain, BLOCKS[0])
        last, before = chain.store.disk.env.info()["last_txnid"], dump(chain.store)
        chain.commit()
        assert chain.store.disk.env.info()["last_txnid"] == last
        chain.touch()  # the watchdog's write
        assert chain.store.disk.env.info()["last_txnid"] == last + 1
        assert dump(chain.store) == before


def test_nothing_is_pruned_where_the_pruner_is_switched_off(tmp_path: Path) -> None:
    with open_chain(tmp_path, prune_depth=0, rollback_window=0) as chain:
        feed(chain, *BLOCKS[:10])
        for pruning in (True, False):
            take(Turns(chain, pruning=pruning), message(NodeState(state="running", height=10), Listener()))
            assert chain.due_for_pruning() == pruning


def test_answers_come_in_the_order_of_the_messages(tmp_path: Path) -> None:
    sender, numbered = Listener(), [msgspec.structs.replace(each, seq=n) for n, each in enumerate(BLOCKS[:4])]
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
        assert sender.statuses() == [
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
    with open_chain(tmp_path) as chain:
        turns, deliveries = Turns(chain), [message(each, Listener()) for each in BLOCKS[:3]]
        assert turns.take(deliveries, monotonic(), 0.0) == deliveries[1:]
        assert turns.finish().view.blocks == 1


def test_the_network_height_of_the_sender_decides_how_deep_a_block_is(tmp_path: Path) -> None:
    with open_chain(tmp_path / "1", prune_depth=3, rollback_window=2) as chain:
        follow(chain, ListInbox([message(BLOCKS[0], Listener(4))]))
        assert list(dump(chain.store)["undo"]) == [1], "three blocks below is within the windows"
        follow(chain, ListInbox([message(BLOCKS[1], Listener(6))]))
        assert (dump(chain.store)["undo"], chain.view.floor) == ({}, BLOCKS[1].point), "four blocks below is not"
    with open_chain(tmp_path / "2", prune_depth=3, rollback_window=2) as chain:  # heights that fall
        for each, height in ((BLOCKS[0], 10), (BLOCKS[1], 3)):
            follow(chain, ListInbox([message(msgspec.structs.replace(each, height=height), Listener(12))]))
        assert list(dump(chain.store)["undo"]) == [1, 2]


def test_a_rollback_before_all_undo_logs_were_read(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Undo logs are read in parts after a restart, without those of blocks that were rolled back."""
    monkeypatch.setattr(storage.history.recent, "_LOADED", 1)
    with open_chain(tmp_path) as chain:
        feed(chain, *SPENDING[:5])
    with open_chain(tmp_path) as chain:
        assert chain.rollback(back_to(SPENDING[1]))
        for _ in range(6):
            chain.maintain(1)
        feed(chain, *SPENDING[2:5])


# --- damage ----------------------------------------------------------------------------------------------------------


def read_tx(chain: Chain) -> None:
    with chain.store.disk.read() as txn:
        chain.store.stored(txn).tx_of(70)


def read_state(chain: Chain) -> None:
    with chain.store.disk.read() as txn:
        chain.store.state(txn)


def all_back(chain: Chain) -> None:
    chain.rollback(back_to("origin"))


DAMAGE: dict[str, tuple[str, bytes, bytes | None, Callable[[Chain], object]]] = {
    "block 2 has no undo log": (UNDO, UNDO_KEY.pack(2, 0), None, all_back),
    "the undo log of block 3 has 1 of its 2 spends": (UNDO, UNDO_KEY.pack(3, 1), None, all_back),
    "block 2 has no row": (BLOCK, U32.pack(2), None, all_back),
    "the transaction of output 70 is missing": ("utxo_meta", b"x", b"", read_tx),
    "blocks above the tip were there already": (
        BLOCK,
        U32.pack(7),
        b"a block",
        lambda chain: feed(chain, block(SPENDING[2])),
    ),
    "the state cannot be read": ("utxo_meta", STATE, seal_row(Body(b"no", 1)), read_state),
}


@pytest.mark.parametrize("words", DAMAGE)
def test_damage_is_an_error_and_changes_nothing(words: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    table, key, value, act = DAMAGE[words]
    monkeypatch.setattr(storage.history.history, "UNDO_ENTRIES", 1 if "1 of its 2" in words else 1000)

    def damage(txn: Txn) -> None:
        db = chain.store.disk.tables[table]
        assert txn.delete(key, db=db) if value is None else txn.put(key, value, db=db)

    with open_chain(tmp_path) as chain:
        feed(chain, *SPENDING[:3])
        chain.store.disk.write(damage)
        before = everything(chain.store)
        with pytest.raises(Damaged, match=words):
            act(chain)
        assert everything(chain.store) == before
    if words.startswith("block 2 has no undo"):
        with open_chain(tmp_path, prune_depth=0, rollback_window=0) as chain:
            with pytest.raises(Damaged, match=words):
                prune_all(chain)
            assert everything(chain.store) == before


@pytest.mark.parametrize(
    "name",
    [
        lambda n: n.to_bytes(32, "big"),
        lambda n: n.to_bytes(32, "little"),
        lambda n: n.to_bytes(8, "big") * 4,
        lambda n: n.to_bytes(4, "big") * 8,
        lambda n: n.to_bytes(2, "little") * 16,
        lambda n: (n >> 6).to_bytes(8, "big") + (n & 63).to_bytes(8, "big") + bytes(16),
        lambda n: bytes(16) + (n >> 6).to_bytes(8, "big") + (n & 63).to_bytes(8, "big"),
    ],
    ids=[
        "big",
        "little",
        "big, 4 times",
        "big, 8 times",
        "little, 16 times",
        "block and place",
        "block and place last",
    ],
)
def test_ids_that_are_numbers_are_kept_apart(name: Callable[[int], bytes], tmp_path: Path) -> None:
    parent, ids = None, [name(n) for n in range(1, 3001)]
    with open_chain(tmp_path) as chain:
        for first in range(0, len(ids), 1000):
            parent = block(parent, *(Tx(each, [], [output("ann")]) for each in ids[first : first + 1000]))
            feed(chain, parent)
        assert set(live(chain.store)) == {(each, 0) for each in ids}
        feed(chain, block(parent, Tx(txid("spender"), [(each, 0) for each in ids[::2]], [])))
        assert set(live(chain.store)) == {(each, 0) for each in ids[1::2]}
