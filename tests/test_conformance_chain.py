"""The conformance cases of the chain's state, one test each, named after the case.

The cases are prose (`conformance/chain.json`). Where they speak of something that is arranged differently here, the
docstring says what stands in its place.
"""

from __future__ import annotations

import json
import os
import re
import signal
import subprocess
import sys
import time
from collections.abc import Awaitable, Callable
from contextlib import ExitStack
from hashlib import blake2b
from pathlib import Path

import anyio
import anyio.lowlevel
import lmdb
import pytest
from chains import (
    CODEC,
    address,
    at,
    back_to,
    block,
    boundary,
    byron,
    credential,
    dump,
    everything,
    failed,
    feed,
    found,
    genesis,
    live,
    open_chain,
    output,
    outputs,
    prune_all,
    refused,
    rows,
    tx,
    txid,
    wallet,
)
from faults import Fault, broken, failing
from messages import Line, Listener, follow, json_line, message, take
from pruning import RETENTION, UNMINED, Daemon, open_house
from pruning import live as live_beside
from stores import small_values

from daemon.app import decline
from feeds.cardano.genesis import read_genesis
from handlers.chain import Chain
from handlers.events import BlockApplied, OutPoint, Point, Rollback, RollbackPoint
from handlers.prune_cycle import Terms
from handlers.query import Query
from handlers.records import Spend
from handlers.utxo import Turns
from storage import keys
from storage.errors import Damaged, StoreBusy
from storage.history.history import UNDO_KEY
from storage.history.layout import OUTPUT, UNDO
from storage.history.output_keys import address_key
from storage.history.values import KEY
from storage.rows import BlockRow
from storage.windows import Windows

HERE = Path(__file__).parent
CASES = json.loads((HERE / "conformance" / "chain.json").read_text())
AREAS = {"apply", "genesis", "rollback", "prune", "recovery", "events"}
ANSWERABLE = {"UTXO-073", "UTXO-074", "UTXO-075", "UTXO-076", "UTXO-085", "UTXO-086"}  # by the indexes alone

# Not here: `era` (the redeem addresses that vanish) and `ogmios` are the feed's, which sends plain blocks. `filter`,
# `mmr`, `address` and what is left of `query` and `balance` belong to rooms of their own: storage filters, the
# authenticated store, address text, and HTTP.
ELSEWHERE = {"era", "ogmios", "filter", "mmr", "address", "query", "balance"}

A, B, C, R = wallet("A"), wallet("B"), wallet("C"), wallet("R")


def at_address(chain: Chain, where: bytes) -> list[OutPoint]:
    """Return what is live at an address, by its index."""
    return found(chain.store, "address_hash", address_key(where))


def undo_of(chain: Chain, ordinal: int) -> list[OutPoint]:
    """Return what the undo log of a block names."""
    return [point for point, _, _ in dump(chain.store)["undo"][ordinal]]


def effects_of(chain: Chain, ordinal: int) -> tuple[list[OutPoint], list[OutPoint]]:
    """Return what a block created, and what it spent."""
    with Query(chain.store, CODEC, "cardano").snapshot() as shot:
        did = shot.effects(ordinal)
        assert did is not None
        created, spent = ([(each.txid, each.index) for each in some] for some in (did.created(), did.spent()))
        return created, spent


def spends(chain: Chain) -> dict[OutPoint, OutPoint]:
    """Return every spent output that is kept, with its spender's id and input index."""
    answers = dump(chain.store)
    inputs = {point: number for log in answers["undo"].values() for point, _, number in log}
    kept = answers["outputs"].items()
    return {point: (output.spender, inputs[point]) for point, output in kept if output.spender is not None}


def floor_slot(chain: Chain) -> int | None:
    return None if chain.view.floor is None else chain.view.floor.slot


# --- apply ---------------------------------------------------------------------------------------------------------


def test_utxo_002_a_spent_output_keeps_its_body_and_its_spender(tmp_path: Path) -> None:
    first = block(None, tx("tx1", output(A, 100, datum_hash=bytes(32))))
    with open_chain(tmp_path) as chain:
        feed(chain, first)
        before = outputs(chain.store)[at("tx1")]
        feed(chain, second := block(first, tx("tx2", spends=[at("tx1")])))
        assert at_address(chain, A) == []
        assert live(chain.store) == {}
        assert outputs(chain.store)[at("tx1")].body == before.body
        assert spends(chain) == {at("tx1"): (txid("tx2"), 0)}
        with Query(chain.store, CODEC, "cardano").snapshot() as shot:
            entry = shot.find_entry(*at("tx1"))
            assert entry is not None
            assert entry.spend == Spend(txid("tx2"), BlockRow(2, second.point.slot, second.hash))


def test_utxo_003_created_and_spent_in_one_block_is_never_live(tmp_path: Path) -> None:
    with open_chain(tmp_path) as chain:
        feed(chain, block(None, tx("tx1", output(A, 1000)), tx("tx2", spends=[at("tx1")])))
        assert live(chain.store) == {}
        assert at_address(chain, A) == []
        assert effects_of(chain, 1) == ([at("tx1")], [at("tx1")])


def test_utxo_005_a_failed_transaction_leaves_its_collateral_return_alone(tmp_path: Path) -> None:
    first = block(None, tx("O", output(C, 2000)))
    bad = failed("bad", output(B, 999), collateral=[at("O")], back=output(R, 1500))
    with open_chain(tmp_path) as chain:
        feed(chain, first, block(first, bad))
        assert at_address(chain, C) == []
        assert at_address(chain, R) == [at("bad", 1)]
        assert live(chain.store) == {at("bad", 1): (R, 1500)}
        assert outputs(chain.store)[at("bad", 1)].body.is_collateral_return


def test_utxo_007_collateral_is_spent_by_the_failed_transaction(tmp_path: Path) -> None:
    funds = block(None, tx("dddd", *[output(A, n + 1) for n in range(5)]), tx("eeee", output(A, 9)))
    bad = failed("bad", collateral=[at("dddd", 4), at("eeee")], back=output(R, 11))
    with open_chain(tmp_path) as chain:
        feed(chain, funds, block(funds, bad))
        assert spends(chain) == {at("dddd", 4): (txid("bad"), 0), at("eeee"): (txid("bad"), 1)}
        assert live(chain.store)[at("bad")] == (R, 11)


def test_utxo_008_the_inputs_of_a_failed_transaction_stay_live(tmp_path: Path) -> None:
    funds = block(None, tx("funds", output(A, 1), output(A, 2), output(C, 3)))
    bad = failed("bad", collateral=[at("funds", 2)], spends=[at("funds", 0), at("funds", 1)])
    with open_chain(tmp_path) as chain:
        feed(chain, funds, block(funds, bad))
        assert live(chain.store) == {at("funds", 0): (A, 1), at("funds", 1): (A, 2)}


def test_utxo_009_the_collateral_of_a_valid_transaction_stays_live(tmp_path: Path) -> None:
    funds = block(None, tx("c1", output(C, 5)))
    good = tx("good", output(A, 1), output(B, 2), collateral=[at("c1")], collateral_return=output(R, 4))
    with open_chain(tmp_path) as chain:
        feed(chain, funds, block(funds, good))
        assert live(chain.store) == {at("c1"): (C, 5), at("good", 0): (A, 1), at("good", 1): (B, 2)}


def test_utxo_011_a_collateral_return_can_be_spent_in_its_own_block(tmp_path: Path) -> None:
    funds = block(None, tx("c1", output(C, 9)))
    bad = failed("T", output(A), output(A), collateral=[at("c1")], back=output(R, 8))
    later = block(funds, bad, tx("later", output(B, 7), spends=[at("T", 2)]))
    with open_chain(tmp_path) as chain:
        feed(chain, funds)
        before = dump(chain.store)
        feed(chain, later)
        assert live(chain.store) == {at("later"): (B, 7)}
        chain.rollback(back_to(funds))
        assert live(chain.store) == {at("c1"): (C, 9)}
        assert dump(chain.store) == before


def test_utxo_013_a_missing_input_is_counted_and_skipped(tmp_path: Path) -> None:
    strange = block(None, tx("tx", output(A, 1), spends=[at("x")]))
    with open_chain(tmp_path) as chain:
        feed(chain, strange)
        assert live(chain.store) == {at("tx"): (A, 1)}
        assert [fact.missing_inputs for fact in chain.take_facts()] == [1]  # type: ignore[union-attr]
        assert chain.take_missing() == [(strange.point, [at("x")])]
        assert undo_of(chain, 1) == []


def test_utxo_014_every_spent_output_names_its_spender(tmp_path: Path) -> None:
    funds = block(None, tx("funds", output(A, 1), output(A, 2), output(A, 3)))
    spend = tx("spend", output(B, 4), output(C, 2), spends=[at("funds", n) for n in range(3)])
    with open_chain(tmp_path) as chain:
        feed(chain, funds, block(funds, spend))
        assert spends(chain) == {at("funds", n): (txid("spend"), n) for n in range(3)}
        assert list(live(chain.store).items()) == [(at("spend", 0), (B, 4)), (at("spend", 1), (C, 2))]


def test_utxo_015_an_input_listed_twice_is_spent_once(tmp_path: Path) -> None:
    funds = block(None, tx("funds", output(A, 1)))
    with open_chain(tmp_path) as chain:
        feed(chain, funds, block(funds, tx("twice", spends=[at("funds"), at("funds")])))
        assert undo_of(chain, 2) == [at("funds")]
        *_, fact = chain.take_facts()
        assert (fact.spent, fact.missing_inputs) == (1, 0)  # type: ignore[union-attr]


def test_utxo_016_a_block_delivered_again_changes_nothing(tmp_path: Path) -> None:
    first = block(None, tx("tx1", output(A, 1)))
    second = block(first, tx("tx2", output(B, 1), spends=[at("tx1")]))
    with open_chain(tmp_path) as chain:
        sender = Listener()
        turns = Turns(chain, pruning=False)
        take(turns, message(first, sender), message(second, sender))
        before = dump(chain.store)
        take(turns, message(block(None, tx("tx1", output(A, 1)), seq=7), sender))
        assert sender.said() == [(7, "duplicate")]
        assert dump(chain.store) == before


def test_utxo_017_another_block_of_the_same_height_is_refused(tmp_path: Path) -> None:
    chain_of_ten = [block(None)]
    while len(chain_of_ten) < 10:
        chain_of_ten.append(block(chain_of_ten[-1]))
    other = block(chain_of_ten[-2], tx("other", output(A)))
    with open_chain(tmp_path) as chain:
        feed(chain, *chain_of_ten)
        before = dump(chain.store)
        why = refused("fork", lambda: chain.apply(other, None))
        assert why.detail["tip"] == chain_of_ten[-1].point
        chain.commit()
        assert dump(chain.store) == before


def test_utxo_018_a_failure_while_a_block_is_made_leaves_nothing_of_it(tmp_path: Path) -> None:
    """The failure passes through the consumer: nothing is acknowledged. `test_faults.py` does this at every write."""
    first = block(None, tx("tx1", output(A, 1)))
    second = block(first, tx("tx2", output(B, 1), spends=[at("tx1")]), seq=1)
    with open_chain(tmp_path) as chain:
        feed(chain, first)
        before, sender = dump(chain.store), Listener()
        with failing(chain.store.disk, Fault(5, broken())), pytest.raises(lmdb.Error, match="Bad file descriptor"):
            follow(chain, Line([message(second, sender)]))
        assert sender.heard == []
        assert dump(chain.store) == before


def test_utxo_019_a_block_without_transactions_has_a_point_and_an_undo_record(tmp_path: Path) -> None:
    with open_chain(tmp_path) as chain:
        feed(chain, block(None, slot=100, hash=b"\xaa" * 32))
        assert chain.view.tip == Point(1, 100, b"\xaa" * 32)
        assert effects_of(chain, 1) == ([], [])
        assert undo_of(chain, 1) == []


def test_utxo_020_a_boundary_block_moves_the_tip_and_nothing_else(tmp_path: Path) -> None:
    first = block(None, tx("tx1", output(A, 1)))
    ebb = boundary(first)
    third = block(ebb, tx("tx2", output(B, 1), spends=[at("tx1")]), slot=ebb.slot)
    with open_chain(tmp_path) as chain:
        feed(chain, first)
        before = dump(chain.store)
        feed(chain, ebb)
        assert chain.tip == Point(1, ebb.point.slot, ebb.hash)
        assert live(chain.store) == {at("tx1"): (A, 1)}
        assert dump(chain.store)["blocks"][1] == before["blocks"][1]
        assert (effects_of(chain, 2), undo_of(chain, 2)) == (([], []), [])
        feed(chain, third)
        assert chain.tip == third.point
        chain.rollback(back_to(first))
        assert dump(chain.store) == before


def test_utxo_021_an_output_enters_and_leaves_both_indexes(tmp_path: Path) -> None:
    first = block(None, tx("tx1", output(address(6, "A"), 1)))
    with open_chain(tmp_path) as chain:
        feed(chain, first)
        assert at_address(chain, address(6, "A")) == [at("tx1")]
        assert found(chain.store, "payment_credential", credential("A")) == [at("tx1")]
        feed(chain, block(first, tx("tx2", spends=[at("tx1")])))
        assert at_address(chain, address(6, "A")) == []
        assert found(chain.store, "payment_credential", credential("A")) == []


def test_utxo_022_a_byron_address_has_no_credential(tmp_path: Path) -> None:
    """Base58 text is read where text comes in; here an address is its bytes."""
    first = block(None, tx("funds", output(A, 3)))
    with open_chain(tmp_path) as chain:
        feed(chain, first, block(first, tx("tx", output(byron("x"), 1), output(byron("y"), 2), spends=[at("funds")])))
        assert live(chain.store) == {at("tx", 0): (byron("x"), 1), at("tx", 1): (byron("y"), 2)}
        assert at_address(chain, byron("x")) == [at("tx", 0)]
        assert at_address(chain, byron("y")) == [at("tx", 1)]
        assert dump(chain.store)["payment_credential"] == {}


# --- genesis -------------------------------------------------------------------------------------------------------


def test_utxo_023_initial_funds_are_found_by_their_address(tmp_path: Path) -> None:
    """The feed names the output; the store keeps it and finds it by the address's bytes."""
    file = tmp_path / "shelley.json"
    file.write_text(json.dumps({"initialFunds": {A.hex(): 7}, "systemStart": "2020-01-01T00:00:00Z", "slotLength": 1}))
    with open_chain(tmp_path / "store") as chain:
        assert chain.seed(read_genesis([file]).outputs)
        first = (blake2b(A, digest_size=32).digest(), 0)
        assert live(chain.store) == {first: (A, 7)}
        assert at_address(chain, A) == [first]


def test_utxo_025_genesis_outputs_survive_a_rollback_to_the_origin(tmp_path: Path) -> None:
    first = block(None, tx("tx1", output(B, 4), spends=[at("genesis A")]))
    second = block(first, tx("tx2", output(C, 4), spends=[at("tx1")]))
    with open_chain(tmp_path) as chain:
        chain.seed(genesis(A=5, B=6))
        before = dump(chain.store)
        feed(chain, first, second, block(second))
        assert at("genesis A") not in live(chain.store)
        chain.rollback(back_to("origin"))
        assert live(chain.store) == {at("genesis A"): (A, 5), at("genesis B"): (B, 6)}
        assert dump(chain.store) == before


# --- rollback ------------------------------------------------------------------------------------------------------


def test_utxo_030_a_rollback_to_a_slot_brings_a_spent_output_back(tmp_path: Path) -> None:
    first = block(None, tx("O", output(A, 100)), slot=100)
    second = block(first, tx("spend", spends=[at("O")]), slot=200)
    with open_chain(tmp_path) as chain:
        feed(chain, first, second)
        assert chain.rollback(back_to(199))
        assert at_address(chain, A) == [at("O")]
        assert live(chain.store) == {at("O"): (A, 100)}
        assert chain.view.tip == Point(1, 100, first.hash)


def test_utxo_032_what_a_block_created_and_spent_itself_does_not_come_back(tmp_path: Path) -> None:
    first = block(None, slot=100)
    second = block(first, tx("O", output(A)), tx("spend", spends=[at("O")]), slot=300)
    with open_chain(tmp_path) as chain:
        feed(chain, first)
        before = dump(chain.store)
        feed(chain, second)
        chain.rollback(back_to(299))
        assert outputs(chain.store) == {}
        assert at_address(chain, A) == []
        assert dump(chain.store) == before


def test_utxo_035_a_rollback_to_the_tip_is_no_change(tmp_path: Path) -> None:
    tip = block(None, tx("O", output(A)))
    sender = Listener()
    with open_chain(tmp_path) as chain:
        feed(chain, tip)
        before = dump(chain.store)
        to = RollbackPoint(slot=tip.slot, hash=tip.hash)
        take(Turns(chain, pruning=False), message(Rollback(to=to, seq=1), sender))
        assert sender.said() == [(1, "noop")]
        assert dump(chain.store) == before


def test_utxo_036_outputs_after_the_slot_are_gone(tmp_path: Path) -> None:
    blocks: list[BlockApplied] = []
    for slot in (2000, 3000, 4000, 5000):
        blocks.append(block(blocks[-1] if blocks else None, tx(f"at {slot}", output(A, slot)), slot=slot))
    with open_chain(tmp_path) as chain:
        feed(chain, *blocks)
        chain.rollback(back_to(3000))
        assert at_address(chain, A) == [at("at 2000"), at("at 3000")]


def test_utxo_037_the_floor_is_the_window_not_the_oldest_record(tmp_path: Path) -> None:
    blocks: list[BlockApplied] = []
    for slot in range(10, 21):
        blocks.append(block(blocks[-1] if blocks else None, slot=slot))
    with open_chain(tmp_path, prune_depth=4, rollback_window=4) as chain:
        feed(chain, *blocks)
        assert len(dump(chain.store)["undo"]) == 11
        assert floor_slot(chain) == 16
        why = refused("beyond_rollback_floor", lambda: chain.rollback(back_to(15)))
        assert why.detail["floor"] == blocks[6].point
        assert chain.tip == Point(11, 20, blocks[-1].hash)


def test_utxo_039_without_undo_records_the_floor_is_the_tip(tmp_path: Path) -> None:
    with open_chain(tmp_path) as chain:
        feed(chain, block(None, slot=100), network_height=9999)
        feed(chain, block(block(None, slot=100), slot=250), network_height=9999)
        assert dump(chain.store)["undo"] == {}
        assert floor_slot(chain) == 250


@pytest.mark.parametrize("again", [False, True], ids=["while it is open", "opened again"])
def test_utxo_040_a_missing_body_stops_the_rollback_by_name(tmp_path: Path, again: bool) -> None:
    """An undo log names outputs; what they hold is looked for before anything changes."""
    first = block(None, tx("kept", output(B)))
    second = block(first, tx("O", output(A)))
    third = block(second, tx("spend", output(C), spends=[at("kept"), at("O")]))
    with ExitStack() as stack:
        chain = stack.enter_context(open_chain(tmp_path))
        for each in (first, second, third):
            feed(chain, each)
        chain.store.disk.write(lambda txn: txn.delete(KEY.pack(1), db=chain.store.disk.tables[OUTPUT]))
        before = everything(chain.store)
        if again:
            stack.close()
            chain = stack.enter_context(open_chain(tmp_path))
        with pytest.raises(Damaged) as why:
            chain.rollback(back_to(second))
        assert f"{txid('O').hex()}#0" in str(why.value)
        assert "block 3" in str(why.value)
        assert everything(chain.store) == before
        assert chain.tip == third.point


def test_utxo_041_spent_bodies_stay_for_as_long_as_undo_logs_name_them(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """No undo log has bodies: whatever else is thinned out around them, they stay in the store within its range."""
    small_values(monkeypatch)
    dead = [tx(name, *[output(B, n) for n in range(60)]) for name in ("older", "newer")]
    blocks = [block(None, dead[0], tx("O", output(A, 7, inline_datum=b"datum")), dead[1], tx("live", output(C)))]
    blocks.append(block(blocks[-1], tx("bury", spends=[at(name, n) for name in ("older", "newer") for n in range(60)])))
    while len(blocks) < 10:
        blocks.append(block(blocks[-1]))
    blocks.append(block(blocks[-1], tx("spend", output(B), spends=[at("O")])))
    while len(blocks) < 14:
        blocks.append(block(blocks[-1]))
    with open_chain(tmp_path, prune_depth=0, rollback_window=4) as chain:
        feed(chain, *blocks[:10])
        written = sum(map(len, rows(chain.store, OUTPUT).values()))
        prune_all(chain)
        before = dump(chain.store)
        feed(chain, *blocks[10:])
        prune_all(chain)
        chain.maintain(20)
        assert sum(map(len, rows(chain.store, OUTPUT).values())) < written / 10, "the other bodies went"
        chain.rollback(back_to(blocks[9]))
        after = dump(chain.store)
        assert after["state"][2] == 9
        for answer in set(before) - {"state", "undo"}:
            assert after[answer] == before[answer]
        assert outputs(chain.store)[at("O")].body.inline_datum == b"datum"


def test_utxo_042_a_corrupt_undo_log_is_an_error_and_nothing_else(tmp_path: Path) -> None:
    """The floor is kept in the state row, so that asking for it reads no undo log."""
    first = block(None, tx("O", output(A), output(A)))
    second = block(first, tx("spend", spends=[at("O")]))
    with open_chain(tmp_path) as chain:
        feed(chain, first, second, block(second))
        undo, key = chain.store.disk.tables[UNDO], UNDO_KEY.pack(2, 0)
        log = rows(chain.store, UNDO)[key]
        for corrupt in (b"", b"\x97\xc4", log[:-1], log[:8] + b"\x01" + log[9:]):
            chain.store.disk.write(lambda txn, corrupt=corrupt: txn.put(key, corrupt, db=undo))  # type: ignore[misc]
            before = everything(chain.store)
            with pytest.raises(Damaged, match="undo log of block 2"):
                chain.rollback(back_to(first))
            assert everything(chain.store) == before
            assert floor_slot(chain) is None


def test_utxo_044_a_point_with_another_hash_is_refused_with_the_nearest_ancestor(tmp_path: Path) -> None:
    first = block(None, slot=100)
    second = block(first, slot=200)
    with open_chain(tmp_path) as chain:
        feed(chain, first, second, block(second, slot=300))
        before = dump(chain.store)
        elsewhere = Rollback(to=RollbackPoint(slot=200, hash=b"\xbb" * 32))
        why = refused("unknown_point", lambda: chain.rollback(elsewhere))
        assert why.detail["nearest"] == first.point
        assert dump(chain.store) == before


def test_utxo_045_a_rollback_below_what_was_pruned_is_refused(tmp_path: Path) -> None:
    blocks = [block(None, tx("t0", output(A)))]
    for n in range(1, 9):
        blocks.append(block(blocks[-1], tx(f"t{n}", output(A), spends=[at(f"t{n - 1}")])))
    with open_chain(tmp_path, prune_depth=3, rollback_window=3) as chain:
        for each in blocks:
            feed(chain, each)
        prune_all(chain)
        before = dump(chain.store)
        for each in blocks[:5]:
            to = Rollback(to=RollbackPoint(slot=each.slot, hash=each.hash))
            refused("beyond_rollback_floor", lambda to=to: chain.rollback(to))  # type: ignore[misc]
        assert dump(chain.store) == before
        chain.rollback(back_to(blocks[5]))
        assert live(chain.store) == {at("t5"): (A, 1)}
        refused("beyond_rollback_floor", lambda: chain.rollback(back_to(blocks[3])))


# --- prune ---------------------------------------------------------------------------------------------------------


def spend_at_height(height: int, until: int) -> list[BlockApplied]:
    """Return blocks up to height `until`, twenty slots apart; the one at `height` spends what the first created."""
    blocks = [block(None, tx("O", output(A)))]
    while len(blocks) < until:
        spend = [tx("spend", spends=[at("O")])] if len(blocks) + 1 == height else []
        blocks.append(block(blocks[-1], *spend))
    return blocks


def test_utxo_047_windows_are_counted_in_blocks(tmp_path: Path) -> None:
    blocks = spend_at_height(5, 9)
    with open_chain(tmp_path, prune_depth=3, rollback_window=3) as chain:
        feed(chain, *blocks[:8])
        prune_all(chain)
        assert at("O") in outputs(chain.store)
        feed(chain, blocks[8])
        prune_all(chain)
        assert at("O") not in outputs(chain.store)


def test_utxo_048_the_rollback_window_keeps_spent_bodies_too(tmp_path: Path) -> None:
    blocks = spend_at_height(15, 26)
    with open_chain(tmp_path, prune_depth=3, rollback_window=10) as chain:
        feed(chain, *blocks[:20])
        prune_all(chain)
        assert at("O") in outputs(chain.store)
        feed(chain, *blocks[20:25])
        prune_all(chain)
        assert at("O") in outputs(chain.store)
        feed(chain, blocks[25])
        prune_all(chain)
        assert at("O") not in outputs(chain.store)


def test_utxo_049_pruning_goes_on_step_by_step_after_a_restart(tmp_path: Path) -> None:
    """A step takes whole undo logs, until so many spends went with them."""
    blocks = [block(None, tx("funds", *[output(A, n) for n in range(1200)]))]
    for n in range(12):
        blocks.append(block(blocks[-1], tx(f"spend {n}", spends=[at("funds", n * 100 + k) for k in range(100)])))
    blocks.append(block(blocks[-1]))
    with open_chain(tmp_path, prune_depth=0, rollback_window=0) as chain:
        feed(chain, *blocks)
    gone = []
    for _ in range(4):
        with open_chain(tmp_path, prune_depth=0, rollback_window=0, prune_batch_size=500, may_prune=True) as chain:
            gone.append(chain.prune().spent_outputs)
    assert gone == [500, 500, 200, 0]


def test_utxo_050_a_block_does_not_wait_for_pruning(tmp_path: Path) -> None:
    """Pruning goes one bounded step after the other, and a block passes between two of them."""
    blocks = [block(None, tx("funds", *[output(A, n) for n in range(100)]))]
    for n in range(20):
        blocks.append(block(blocks[-1], tx(f"spend {n}", spends=[at("funds", n * 5 + k) for k in range(5)])))
    blocks.append(block(blocks[-1]))
    new = block(blocks[-1], seq=4)

    async def story(daemon: Daemon, idle: Callable[[], Awaitable[None]]) -> None:
        while not house.published:
            await anyio.lowlevel.checkpoint()
        before = len(house.published)
        await daemon.hear(new)
        tips = [committed.view.tip for committed in house.published]
        assert tips.index(new.point) - before <= 2, "at most a step before each of the block's own two turns"
        await idle()
        assert len(house.published) > 10
        assert daemon.sender.said() == [(4, "applied")]

    terms = Terms(retention=RETENTION, unmined_retention=UNMINED, batch_size=10)
    with open_house(tmp_path, terms, windows=Windows(0, 0)) as house:
        house.chain.may_prune = False
        feed(house.chain, *blocks)
        house.chain.may_prune = True
        live_beside(house, story, at_once=True)
        assert len(outputs(house.utxo)) == 0


def test_utxo_051_blocks_of_another_fork_are_pruned_too(tmp_path: Path) -> None:
    """What was pruned can't be rolled back over; new blocks are pruned as those were whose place they take."""
    blocks = [block(None, tx("t0", output(A)))]
    for n in range(1, 60):
        blocks.append(block(blocks[-1], tx(f"t{n}", output(A), spends=[at(f"t{n - 1}")])))
    other = blocks[:45]
    for n in range(45, 80):
        spent = at(f"t{n - 1}" if n == 45 else f"u{n - 1}")
        other.append(block(other[-1], tx(f"u{n}", output(B), spends=[spent])))
    with (
        open_chain(tmp_path / "a", prune_depth=1, rollback_window=20) as chain,
        open_chain(tmp_path / "b", prune_depth=1, rollback_window=20) as direct,
    ):
        feed(chain, *blocks)
        prune_all(chain)
        assert chain.state.floor == 39
        chain.rollback(back_to(blocks[44]))
        feed(chain, *other[45:])
        prune_all(chain)
        assert sorted(dump(chain.store)["undo"]) == list(range(60, 81))
        feed(direct, *other)
        prune_all(direct)
        assert dump(chain.store) == dump(direct.store)


def test_utxo_052_no_live_output_is_ever_pruned(tmp_path: Path) -> None:
    blocks = [block(None, tx("old", output(A), output(B, 2)))]
    for n in range(1, 30):
        spent = [at(f"t{n - 1}")] if n > 1 else [at("old", 1)]
        blocks.append(block(blocks[-1], tx(f"t{n}", output(C, n), spends=spent)))
    with open_chain(tmp_path, prune_depth=0, rollback_window=0) as chain:
        chain.seed(genesis(A=5))
        for each in blocks:
            feed(chain, each)
            prune_all(chain)
        assert live(chain.store) == {at("genesis A"): (A, 5), at("old"): (A, 1), at("t29"): (C, 29)}
        assert at_address(chain, A) == [at("genesis A"), at("old")]


def test_utxo_053_a_shared_datum_and_script_stay_with_the_output_that_is_left(tmp_path: Path) -> None:
    """Each output keeps its own bodies, so that none can be pruned from under another."""
    one, other = (output(to, inline_datum=b"the datum", script_ref=b"the script") for to in (A, B))
    funds = block(None, tx("one", one), tx("other", other))
    spend = block(funds, tx("spend", spends=[at("one")]))
    with open_chain(tmp_path, prune_depth=0, rollback_window=0) as chain:
        feed(chain, funds, spend, block(spend))
        prune_all(chain)
        kept = outputs(chain.store)
        assert list(kept) == [at("other")]
        left = kept[at("other")].body
        assert (left.inline_datum, left.script_ref) == (b"the datum", b"the script")


# --- recovery: the feeder learns where we are, goes back to what both know, and sends the rest ---------------------


def test_utxo_054_a_chain_that_is_behind_rolls_the_store_back(tmp_path: Path) -> None:
    """The feeder finds its tip among our points and rolls back to it."""
    first = block(None, tx("O", output(A, 50)), slot=100)
    with open_chain(tmp_path) as chain:
        feed(chain, first, block(first, tx("spend", spends=[at("O")])))
    with open_chain(tmp_path) as chain:
        assert first.point in chain.view.points
        chain.rollback(back_to(first))
        assert live(chain.store) == {at("O"): (A, 50)}


def test_utxo_055_a_chain_that_is_ahead_is_caught_up_with_before_pruning(tmp_path: Path) -> None:
    """The feeder sends what follows our tip; nothing is pruned while messages wait."""
    blocks = spend_at_height(2, 3)
    with open_chain(tmp_path, prune_depth=0, rollback_window=0) as chain:
        feed(chain, blocks[0])
    with open_chain(tmp_path, prune_depth=0, rollback_window=0) as chain:
        assert chain.view.tip == blocks[0].point
        sender = Listener()
        published = follow(chain, Line([message(each, sender) for each in blocks[1:]]), pruning=True)
        assert [type(fact).__name__ for committed in published for fact in committed.facts][:2] == [
            "BlockCommitted"
        ] * 2
        assert chain.tip == blocks[2].point


def test_utxo_056_a_missing_block_leaves_no_hole(tmp_path: Path) -> None:
    """The block after the hole is refused as a gap that names both ends."""
    first = block(None)
    third = block(block(first), seq=3)
    with open_chain(tmp_path) as chain:
        feed(chain, first)
        before, sender = dump(chain.store), Listener()
        take(Turns(chain, pruning=False), message(third, sender))
        assert sender.said() == [(3, "gap")]
        assert "block 3" in sender.heard[0].message  # type: ignore[union-attr]
        assert "tip 1" in sender.heard[0].message  # type: ignore[union-attr]
        assert dump(chain.store) == before


def test_utxo_057_a_block_that_cannot_be_read_is_refused_by_name(tmp_path: Path) -> None:
    """What can't be decoded from a node is the feed's to report; what can't be here is refused with its place."""
    sender = Listener()
    with open_chain(tmp_path) as chain:
        before = dump(chain.store)
        bad = {"type": "BlockApplied", "seq": 5, "height": 1, "hash": "aa" * 32, "txs": [{"txid": "bb"}]}
        take(Turns(chain, pruning=False), json_line(json.dumps(bad), sender))
        assert sender.said() == [(5, "malformed")]
        assert "$.txs[0].txid" in sender.heard[0].message  # type: ignore[union-attr]
        assert dump(chain.store) == before


def test_utxo_058_an_era_is_never_interpreted(tmp_path: Path) -> None:
    """Which era a block is of is the feed's to know. Here it is a text that decides nothing; no number is read."""
    fields = {"type": "BlockApplied", "seq": 1, "height": 1, "hash": "aa" * 32, "era": 2**32}
    sender = Listener()
    with open_chain(tmp_path) as chain:
        turns = Turns(chain, pruning=False)
        take(turns, json_line(json.dumps(fields), sender))
        assert chain.tip is None
        take(turns, json_line(json.dumps(fields | {"era": str(2**32)}), sender))
        assert sender.said() == [(1, "malformed"), (1, "applied")]


def test_utxo_060_another_fork_of_the_same_height_is_found_out_and_replayed(tmp_path: Path) -> None:
    """The block that follows the other tip is a fork; our points lead the feeder to the ancestor, and from there on."""
    common = block(None, tx("O", output(A, 1)))
    ours = block(common, tx("mine", output(B, 1), spends=[at("O")]))
    theirs = block(common, tx("yours", output(C, 1), spends=[at("O")]))
    with open_chain(tmp_path) as chain:
        feed(chain, common, ours)
    with open_chain(tmp_path) as chain:
        refused("fork", lambda: chain.apply(theirs, None))
        ancestor = next(point for point in chain.view.points if point in (theirs.point, common.point))
        assert ancestor == common.point
        chain.rollback(Rollback(to=RollbackPoint(slot=ancestor.slot, hash=ancestor.hash)))
        feed(chain, theirs)
        assert chain.tip == theirs.point
        assert live(chain.store) == {at("yours"): (C, 1)}


ENDLESS = """
import sys
from pathlib import Path
from chains import block, feed, open_chain, output, tx, at
with open_chain(Path(sys.argv[1]), durable=True, prune_depth=2, rollback_window=4, may_prune=True) as chain:
    parent, n = None, 0
    while True:
        spends = [at(f"t{n - 1}", k) for k in range(20)]
        parent = block(parent, tx(f"t{n}", *[output("A", k) for k in range(30)], spends=spends))
        feed(chain, parent)
        n += 1
        if n % 5 == 0:
            print(n, flush=True)
"""


def test_utxo_061_killed_at_any_moment_the_store_is_at_a_block_boundary(tmp_path: Path) -> None:
    for kill_after in (0.02, 0.05, 0.09):
        folder = tmp_path / str(kill_after)
        path = os.pathsep.join([str(HERE), str(Path(keys.__file__).parents[1])])
        command = [sys.executable, "-c", ENDLESS, str(folder)]
        with subprocess.Popen(command, stdout=subprocess.PIPE, env=os.environ | {"PYTHONPATH": path}) as child:
            assert child.stdout is not None
            assert child.stdout.readline() == b"5\n"
            time.sleep(kill_after)
            child.send_signal(signal.SIGKILL)
        with open_chain(folder, prune_depth=2, rollback_window=4) as chain:
            tip, height = chain.state.tip, chain.view.tip and chain.view.tip.height
            assert tip == height
            answers = dump(chain.store)
            assert max(answers["blocks"]) == max(answers["undo"]) == tip
            assert answers["blocks"][tip].hash == chain.view.tip.hash  # type: ignore[union-attr]
            created, kept = 30 * tip, 20 * (tip - 1)
            assert chain.view.unspent == len(live(chain.store)) == created - kept
            chain.rollback(Rollback(to=RollbackPoint(hash=chain.view.points[1].hash)))
            assert chain.view.unspent == len(live(chain.store))


def test_utxo_062_a_snapshot_is_restored_while_nobody_writes(tmp_path: Path) -> None:
    """A running daemon holds its store alone, so nothing is restored under it; the copy goes on from its own tip."""
    first = block(None, tx("O", output(A)))
    second = block(first, tx("spend", output(B), spends=[at("O")]))
    with open_chain(tmp_path / "store") as chain:
        feed(chain, first)
        (tmp_path / "copy").mkdir()
        chain.store.disk.env.copy(str(tmp_path / "copy"), compact=True)
        feed(chain, second)
        with pytest.raises(StoreBusy), open_chain(tmp_path / "store"):
            pass
        after = dump(chain.store)
    with open_chain(tmp_path / "copy") as restored:
        assert restored.view.tip == first.point
        feed(restored, second)
        assert dump(restored.store) == after


# --- events --------------------------------------------------------------------------------------------------------


def test_utxo_063_messages_are_carried_out_in_order(tmp_path: Path) -> None:
    first = block(None, tx("O", output(A)), seq=1)
    second = block(first, tx("spend", spends=[at("O")]), seq=2)
    sender = Listener()
    with open_chain(tmp_path) as chain:
        line = Line([message(first, sender), message(second, sender)])
        follow(chain, line)
        assert chain.view.tip == Point(2, second.point.slot, second.hash)
        assert live(chain.store) == {}
        assert sender.said() == [(1, "applied"), (2, "applied")]
        assert sender.settled_count == 2


def test_utxo_064_a_writer_that_fails_ends_the_consumer(tmp_path: Path) -> None:
    """The failure leaves the consumer, and with it the daemon; nobody hears that a block was applied."""
    first, sender = block(None, seq=1), Listener()
    with open_chain(tmp_path) as chain:
        line = Line([message(first, sender)], [message(block(first, seq=2), sender)])
        with failing(chain.store.disk, Fault(1, broken())), pytest.raises(lmdb.Error, match="Bad file descriptor"):
            follow(chain, line)
        assert sender.heard == []
        assert len(line.batches) == 1, "the second block was not even taken"
        assert dump(chain.store)["blocks"] == {}


def test_utxo_067_a_daemon_without_the_store_declines(tmp_path: Path) -> None:
    """No store is opened, and every message for it is answered; the same answer over HTTP comes with HTTP."""
    sender = Listener()
    line = Line([message(block(None, seq=1), sender)])
    anyio.run(decline, line)  # type: ignore[arg-type]
    assert sender.said() == [(1, "unavailable")]


# --- balances and finding, as far as the indexes answer ------------------------------------------------------------


def balance(chain: Chain, index: str, key: bytes) -> dict[str, int]:
    """Return what the live outputs under a key hold, by unit."""
    held: dict[str, int] = {}
    kept = outputs(chain.store)
    for point in found(chain.store, index, key):
        body = kept[point].body
        amounts = [("lovelace", body.value)]
        amounts += [(f"{policy.hex()}{name.hex()}", quantity) for policy, name, quantity in body.assets]
        for unit, quantity in amounts:
            held[unit] = held.get(unit, 0) + quantity
    return held


def test_utxo_073_the_balance_of_a_stake_credential_follows_a_rollback(tmp_path: Path) -> None:
    first = block(None, tx("O", output(address(0, "A", "s"), 1000)), slot=100)
    with open_chain(tmp_path) as chain:
        feed(chain, first)
        assert balance(chain, "stake_credential", credential("s")) == {"lovelace": 1000}
        feed(chain, block(first, tx("spend", spends=[at("O")]), slot=200))
        assert balance(chain, "stake_credential", credential("s")) == {}
        chain.rollback(back_to(199))
        assert balance(chain, "stake_credential", credential("s")) == {"lovelace": 1000}


def test_utxo_074_change_counts_for_the_stake_credential(tmp_path: Path) -> None:
    first = block(None, tx("O", output(address(0, "A", "s"), 1000)), slot=100)
    change = tx("spend", output(address(0, "B", "s"), 400), spends=[at("O")])
    with open_chain(tmp_path) as chain:
        feed(chain, first, block(first, change, slot=200))
        assert balance(chain, "stake_credential", credential("s")) == {"lovelace": 400}
        chain.rollback(back_to(199))
        assert balance(chain, "stake_credential", credential("s")) == {"lovelace": 1000}
        assert found(chain.store, "stake_credential", credential("s")) == [at("O")]


def test_utxo_075_a_balance_is_of_live_outputs_only(tmp_path: Path) -> None:
    x, y = credential("policy x"), credential("policy y")
    funds = block(
        None,
        tx("one", output(A, 10, assets=[(x, b"", 5), (y, b"gold", 7)])),
        tx("two", output(A, 20, assets=[(x, b"", 1)])),
        tx("three", output(A, 30, assets=[(y, b"gold", 2)])),
    )
    spend = tx("spend", spends=[at("one"), at("three")])
    with open_chain(tmp_path) as chain:
        feed(chain, funds)
        everything = {"lovelace": 60, x.hex(): 6, y.hex() + b"gold".hex(): 9}
        assert balance(chain, "address_hash", address_key(A)) == everything
        assert found(chain.store, "policy", y) == [at("one"), at("three")]
        feed(chain, block(funds, spend))
        assert balance(chain, "address_hash", address_key(A)) == {"lovelace": 20, x.hex(): 1}
        assert found(chain.store, "policy", y) == []


def test_utxo_076_outputs_are_found_in_the_order_of_the_chain(tmp_path: Path) -> None:
    """By slot, and within a slot by the place in the block: not by the ids, which would mean sorting them all."""
    blocks: list[BlockApplied] = []
    for n in range(24):
        names_of = [f"t{n}"] if n != 12 else ["t12", "another"]
        blocks.append(block(blocks[-1] if blocks else None, *[tx(name, output(A, n)) for name in names_of]))
    with open_chain(tmp_path) as chain:
        feed(chain, *blocks)
        expected = [at(f"t{n}") for n in range(13)] + [at("another")] + [at(f"t{n}") for n in range(13, 24)]
        assert at_address(chain, A) == expected
        assert len(expected) == 25


def kupo_fixture(chain: Chain) -> None:
    """Addresses #0 (type 6), #1 (type 7), #2 (type 2), #3 (type 0) and Byron; c1 is a script's credential."""
    addresses = [
        address(6, "c0"),
        address(7, "c1"),
        address(2, "c0", "c1"),
        address(0, "c2", "c0"),
        byron("c0"),
    ]
    feed(chain, block(None, *[tx(f"#{n}", output(each)) for n, each in enumerate(addresses)]))


def test_utxo_085_a_payment_credential_finds_every_kind_of_address_with_it(tmp_path: Path) -> None:
    with open_chain(tmp_path) as chain:
        kupo_fixture(chain)
        assert found(chain.store, "payment_credential", credential("c0")) == [at("#0"), at("#2")]


def test_utxo_086_a_stake_credential_finds_delegating_addresses_only(tmp_path: Path) -> None:
    with open_chain(tmp_path) as chain:
        kupo_fixture(chain)
        assert found(chain.store, "stake_credential", credential("c0")) == [at("#3")]


# --- all of them ---------------------------------------------------------------------------------------------------


def test_every_case_has_its_test() -> None:
    here = {f"UTXO-{found[1]}" for name in globals() if (found := re.match(r"test_utxo_(\d{3})_\w+", name))}
    assert here == {case["id"] for case in CASES if case["area"] in AREAS} | ANSWERABLE
    assert {case["area"] for case in CASES} == AREAS | ELSEWHERE
