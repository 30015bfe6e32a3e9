"""The conformance cases of the chain's state (`conformance/chain.json`), by their numbers."""

from __future__ import annotations

import json
import re
from collections.abc import Awaitable, Callable, Sequence
from contextlib import ExitStack
from hashlib import blake2b
from pathlib import Path
from typing import NamedTuple

import anyio
import anyio.lowlevel
import lmdb
import pytest
from chains import (
    CODEC,
    at,
    back_to,
    block,
    boundary,
    byron,
    chained,
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
from messages import Listener, ListInbox, follow, json_line, message, take
from pruning import Daemon, open_local_store, terms_of
from pruning import live as run_pruner
from stores import small_values

from daemon.app import decline
from feeds.cardano.genesis import read_genesis
from handlers.chain import Chain
from handlers.events import BlockApplied, OutPoint, Rollback, RollbackPoint, Tx
from handlers.query import Query
from handlers.utxo import Turns
from storage.errors import Damaged
from storage.history.history import UNDO_KEY
from storage.history.layout import OUTPUT, UNDO
from storage.history.output_keys import address_key
from storage.history.values import KEY
from storage.windows import Windows

HERE = Path(__file__).parent
CASES = json.loads((HERE / "conformance" / "chain.json").read_text())
AREAS = {"apply", "genesis", "rollback", "prune", "recovery", "events"}
# `era` and `ogmios` belong to feeds, the others to filters, the MMR store, address text and HTTP.
ELSEWHERE = {"era", "ogmios", "filter", "mmr", "address", "query", "balance"}
COVERED = {  # by tests of other files
    16: "test_chain_messages.py::test_blocks_that_do_not_extend_the_tip",
    17: "test_chain_messages.py::test_blocks_that_do_not_extend_the_tip",
    18: "test_faults.py::test_a_fault_at_any_write_changes_nothing",
    **dict.fromkeys((30, 35, 36), "test_chain_messages.py::test_rollback"),
    44: "test_chain.py::test_an_unknown_hash_is_refused_with_the_nearest_block",
    **dict.fromkeys(
        (54, 60), "feeds/test_bitcoin_rpc_daemon.py::test_a_feed_up_to_a_height_continues_after_a_reorganisation"
    ),
    56: "test_chain_messages.py::test_blocks_that_do_not_extend_the_tip",
    61: "test_kill.py::test_a_kill_in_all_work_of_the_store",
    62: "test_backup.py::test_a_restored_store_is_the_same_and_feeding_continues",
    63: "test_chain.py::test_answers_come_in_the_order_of_the_messages",
}

A, B, C, R = map(wallet, "ABCR")


def listed(chain: Chain, where: bytes) -> list[OutPoint]:
    return found(chain.store, "address_hash", address_key(where))


# --- apply ---------------------------------------------------------------------------------------------------------


class Case(NamedTuple):
    """Blocks by their transactions; what is unspent after them, and what is spent by which input."""

    blocks: Sequence[Sequence[Tx]]
    live: dict[OutPoint, tuple[bytes, int]]
    spent: dict[OutPoint, tuple[str, int]]
    missing: Sequence[OutPoint] = ()


O_AT_C, FUNDS = tx("O", output(C, 2000)), tx("funds", output(A, 1), output(A, 2), output(A, 3))
ONE = tx("tx1", output(A, 100, datum_hash=bytes(32)))
APPLIED = {
    2: Case([[ONE], [tx("tx2", spends=[at("tx1")])]], {}, {at("tx1"): ("tx2", 0)}),
    3: Case([[ONE, tx("tx2", spends=[at("tx1")])]], {}, {at("tx1"): ("tx2", 0)}),
    5: Case(
        [[O_AT_C], [failed("bad", output(B, 999), collateral=[at("O")], back=output(R, 1500))]],
        {at("bad", 1): (R, 1500)},
        {at("O"): ("bad", 0)},
    ),
    7: Case(
        [[FUNDS, O_AT_C], [failed("bad", collateral=[at("funds", 2), at("O")], back=output(R, 11))]],
        {at("funds", 0): (A, 1), at("funds", 1): (A, 2), at("bad"): (R, 11)},
        {at("funds", 2): ("bad", 0), at("O"): ("bad", 1)},
    ),
    8: Case(
        [[FUNDS], [failed("bad", collateral=[at("funds", 2)], spends=[at("funds", 0), at("funds", 1)])]],
        {at("funds", 0): (A, 1), at("funds", 1): (A, 2)},
        {at("funds", 2): ("bad", 0)},
    ),
    9: Case(
        [[O_AT_C], [tx("good", output(A, 1), output(B, 2), collateral=[at("O")], collateral_return=output(R, 4))]],
        {at("O"): (C, 2000), at("good", 0): (A, 1), at("good", 1): (B, 2)},
        {},
    ),
    11: Case(
        [
            [O_AT_C],
            [
                failed("T", output(A), output(A), collateral=[at("O")], back=output(R, 8)),
                tx("later", output(B, 7), spends=[at("T", 2)]),
            ],
        ],
        {at("later"): (B, 7)},
        {at("O"): ("T", 0), at("T", 2): ("later", 0)},
    ),
    13: Case([[tx("tx", output(A, 1), spends=[at("x")])]], {at("tx"): (A, 1)}, {}, [at("x")]),
    14: Case(
        [[FUNDS], [tx("spend", output(B, 4), output(C, 2), spends=[at("funds", n) for n in range(3)])]],
        {at("spend", 0): (B, 4), at("spend", 1): (C, 2)},
        {at("funds", n): ("spend", n) for n in range(3)},
    ),
    15: Case([[ONE], [tx("twice", spends=[at("tx1"), at("tx1")])]], {}, {at("tx1"): ("twice", 0)}),
    19: Case([[]], {}, {}),
    21: Case([[ONE]], {at("tx1"): (A, 100)}, {}),
    22: Case(
        [[O_AT_C], [tx("tx", output(byron("x"), 1), output(byron("y"), 2), spends=[at("O")])]],
        {at("tx", 0): (byron("x"), 1), at("tx", 1): (byron("y"), 2)},
        {at("O"): ("tx", 0)},
    ),
    32: Case([[], [O_AT_C, tx("spend", spends=[at("O")])]], {}, {at("O"): ("spend", 0)}),
}


@pytest.mark.parametrize("number", APPLIED)
def test_blocks_are_applied_and_rolled_back(number: int, tmp_path: Path) -> None:
    case, before, blocks = APPLIED[number], list[object](), chained(*APPLIED[number].blocks)
    place = {tx.txid: n for n, each in enumerate(blocks, 1) for tx in each.txs}
    with open_chain(tmp_path) as chain:
        for each in blocks:
            before.append(dump(chain.store))
            feed(chain, each)
        answers, owners = dump(chain.store), {owner for owner, _ in case.live.values()}
        assert list(live(chain.store).items()) == list(case.live.items())
        for where in {A, B, C, R, *owners}:
            assert listed(chain, where) == [point for point, (owner, _) in case.live.items() if owner == where]
        assert answers["payment_credential"].keys() == {owner[1:] for owner in owners if len(owner) == 29}
        assert [missing for _, missing in chain.take_missing()] == ([case.missing] if case.missing else [])
        assert chain.take_facts()[-1].missing_inputs == len(case.missing)  # type: ignore[union-attr]
        assert {point: n for log in answers["undo"].values() for point, _, n in log} == {
            point: n for point, (_, n) in case.spent.items()
        }
        with Query(chain.store, CODEC, "cardano").snapshot() as shot:
            for point, (name, _) in case.spent.items():
                entry = shot.find_entry(*point)
                assert entry is not None and entry.spend is not None
                assert (entry.spend.txid, entry.spend.block.height) == (txid(name), place[txid(name)])
            did = shot.effects(len(blocks))
            assert did is not None
            points = [[(each.txid, each.index) for each in some] for some in (did.created(), did.spent())]
            assert points[0] == [point for point in [*case.spent, *case.live] if place[point[0]] == len(blocks)]
            assert points[1] == [point for point, (by, _) in case.spent.items() if place[txid(by)] == len(blocks)]
        for n in reversed(range(len(blocks))):
            chain.rollback(back_to(blocks[n - 1] if n else "origin"))
            assert dump(chain.store) == before[n]


def test_utxo_020_a_boundary_block_moves_the_tip_and_nothing_else(tmp_path: Path) -> None:
    (first,) = chained([tx("tx1", output(A, 1))])
    ebb = boundary(first)
    third = block(ebb, tx("tx2", output(B, 1), spends=[at("tx1")]), slot=ebb.slot)
    with open_chain(tmp_path) as chain:
        feed(chain, first)
        before = dump(chain.store)
        feed(chain, ebb)
        after = dump(chain.store)
        assert (chain.tip, after["outputs"], after["undo"][2]) == (ebb.point, before["outputs"], [])
        assert ebb.point.height == 1
        feed(chain, third)
        chain.rollback(back_to(first))
        assert dump(chain.store) == before


# --- genesis -------------------------------------------------------------------------------------------------------


def test_utxo_023_initial_funds_are_found_by_their_address(tmp_path: Path) -> None:
    file = tmp_path / "shelley.json"
    file.write_text(json.dumps({"initialFunds": {A.hex(): 7}, "systemStart": "2020-01-01T00:00:00Z", "slotLength": 1}))
    with open_chain(tmp_path / "store") as chain:
        assert chain.seed(read_genesis([file]).outputs)
        first = (blake2b(A, digest_size=32).digest(), 0)
        assert live(chain.store) == {first: (A, 7)}
        assert listed(chain, A) == [first]


def test_utxo_025_genesis_outputs_survive_a_rollback_to_the_origin(tmp_path: Path) -> None:
    blocks = chained([tx("tx1", output(B, 4), spends=[at("genesis A")])], [tx("tx2", spends=[at("tx1")])], [])
    with open_chain(tmp_path) as chain:
        chain.seed(genesis(A=5, B=6))
        before = dump(chain.store)
        feed(chain, *blocks)
        assert list(live(chain.store)) == [at("genesis B")]
        chain.rollback(back_to("origin"))
        assert live(chain.store) == {at("genesis A"): (A, 5), at("genesis B"): (B, 6)}
        assert dump(chain.store) == before


# --- rollback ------------------------------------------------------------------------------------------------------


def test_utxo_037_the_floor_is_the_window_not_the_oldest_record(tmp_path: Path) -> None:
    blocks = chained(*([] for _ in range(11)))
    with open_chain(tmp_path, prune_depth=4, rollback_window=4) as chain:
        feed(chain, *blocks)
        assert len(dump(chain.store)["undo"]) == 11
        assert chain.view.floor == blocks[6].point
        why = refused("beyond_rollback_floor", lambda: chain.rollback(back_to(blocks[6].point.slot - 1)))
        assert why.detail["floor"] == blocks[6].point
        assert chain.tip == blocks[-1].point


def test_utxo_039_without_undo_records_the_floor_is_the_tip(tmp_path: Path) -> None:
    with open_chain(tmp_path) as chain:
        for each in chained([], []):
            feed(chain, each, network_height=9999)
        assert (dump(chain.store)["undo"], chain.view.floor) == ({}, each.point)


@pytest.mark.parametrize("again", [False, True], ids=["while it is open", "opened again"])
def test_utxo_040_a_missing_body_stops_the_rollback_by_name(tmp_path: Path, again: bool) -> None:
    blocks = chained([tx("kept", output(B))], [tx("O", output(A))], [tx("spend", spends=[at("kept"), at("O")])])
    with ExitStack() as stack:
        chain = stack.enter_context(open_chain(tmp_path))
        for each in blocks:
            feed(chain, each)
        chain.store.disk.write(lambda txn: txn.delete(KEY.pack(1), db=chain.store.disk.tables[OUTPUT]))
        before = everything(chain.store)
        if again:
            stack.close()
            chain = stack.enter_context(open_chain(tmp_path))
        with pytest.raises(Damaged, match=f"(?s)^(?=.*{txid('O').hex()}#0)(?=.*block 3)"):
            chain.rollback(back_to(blocks[1]))
        assert (everything(chain.store), chain.tip) == (before, blocks[2].point)


def test_utxo_041_spent_bodies_are_kept_while_undo_logs_name_them(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Undo logs have no bodies, so the table of outputs keeps them."""
    small_values(monkeypatch)
    dead = [tx(name, *[output(B, n) for n in range(60)]) for name in ("older", "newer")]
    bury = tx("bury", spends=[at(name, n) for name in ("older", "newer") for n in range(60)])
    blocks = chained(
        [dead[0], tx("O", output(A, 7, inline_datum=b"datum")), dead[1], tx("live", output(C))],
        *([bury], *[[]] * 8),
        *([tx("spend", output(B), spends=[at("O")])], *[[]] * 3),
    )
    with open_chain(tmp_path, prune_depth=0, rollback_window=4) as chain:
        feed(chain, *blocks[:10])
        written = sum(map(len, rows(chain.store, OUTPUT).values()))
        prune_all(chain)
        before = dump(chain.store)
        feed(chain, *blocks[10:])
        prune_all(chain)
        chain.maintain(20)
        assert sum(map(len, rows(chain.store, OUTPUT).values())) < written / 10, "the other bodies were deleted"
        chain.rollback(back_to(blocks[9]))
        after = dump(chain.store)
        assert after["state"][2] == 9
        assert all(after[answer] == before[answer] for answer in set(before) - {"state", "undo"})
        assert outputs(chain.store)[at("O")].body.inline_datum == b"datum"


def test_utxo_042_a_corrupt_undo_log_is_an_error_and_nothing_else(tmp_path: Path) -> None:
    first, second, third = chained([tx("O", output(A), output(A))], [tx("spend", spends=[at("O")])], [])
    with open_chain(tmp_path) as chain:
        feed(chain, first, second, third)
        undo, key = chain.store.disk.tables[UNDO], UNDO_KEY.pack(2, 0)
        log = rows(chain.store, UNDO)[key]
        for corrupt in (b"", b"\x97\xc4", log[:-1], log[:8] + b"\x01" + log[9:]):
            chain.store.disk.write(lambda txn, corrupt=corrupt: txn.put(key, corrupt, db=undo))  # type: ignore[misc]
            before = everything(chain.store)
            with pytest.raises(Damaged, match="undo log of block 2"):
                chain.rollback(back_to(first))
            assert everything(chain.store) == before
            assert chain.view.floor is None


def test_utxo_045_a_rollback_below_what_was_pruned_is_refused(tmp_path: Path) -> None:
    blocks = chained([tx("t0", output(A))], *([tx(f"t{n}", output(A), spends=[at(f"t{n - 1}")])] for n in range(1, 9)))
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


@pytest.mark.parametrize(
    ("number", "height", "windows", "kept_at", "deleted_at"), [(47, 5, (3, 3), [8], 9), (48, 15, (3, 10), [20, 25], 26)]
)
def test_windows_are_counted_in_blocks(
    number: int, height: int, windows: tuple[int, int], kept_at: list[int], deleted_at: int, tmp_path: Path
) -> None:
    blocks = chained(
        [tx("O", output(A))], *([tx("spend", spends=[at("O")])] * (n == height) for n in range(2, deleted_at + 1))
    )
    with open_chain(tmp_path, prune_depth=windows[0], rollback_window=windows[1]) as chain:
        for tip in [*kept_at, deleted_at]:
            feed(chain, *blocks[chain.view.blocks : tip])
            prune_all(chain)
            assert (at("O") in outputs(chain.store)) == (tip in kept_at)


def hundreds_spent(blocks: int, each: int) -> list[BlockApplied]:
    funds = tx("funds", *[output(A, n) for n in range(blocks * each)])
    spends = ([tx(f"spend {n}", spends=[at("funds", n * each + k) for k in range(each)])] for n in range(blocks))
    return chained([funds], *spends, [])


def test_utxo_049_pruning_continues_step_by_step_after_a_restart(tmp_path: Path) -> None:
    """A step takes whole undo logs until it has reached the batch size."""
    with open_chain(tmp_path, prune_depth=0, rollback_window=0) as chain:
        feed(chain, *hundreds_spent(12, 100))
    deleted = []
    for _ in range(4):
        with open_chain(tmp_path, prune_depth=0, rollback_window=0, prune_batch_size=500, may_prune=True) as chain:
            deleted.append(chain.prune().spent_outputs)
    assert deleted == [500, 500, 200, 0]


def test_utxo_050_a_block_does_not_wait_for_pruning(tmp_path: Path) -> None:
    blocks = hundreds_spent(20, 5)
    new = block(blocks[-1], seq=4)

    async def scenario(daemon: Daemon, idle: Callable[[], Awaitable[None]]) -> None:
        while not stores.published:
            await anyio.lowlevel.checkpoint()
        before = len(stores.published)
        await daemon.receive(new)
        tips = [committed.view.tip for committed in stores.published]
        assert tips.index(new.point) - before <= 2, "at most a step before each of the block's own two turns"
        await idle()
        assert len(stores.published) > 10
        assert daemon.sender.statuses() == [(4, "applied")]

    with open_local_store(tmp_path, terms_of(10), windows=Windows(0, 0)) as stores:
        stores.chain.may_prune = False
        feed(stores.chain, *blocks)
        stores.chain.may_prune = True
        run_pruner(stores, scenario, at_once=True)
        assert len(outputs(stores.utxo)) == 0


def test_utxo_051_blocks_of_another_fork_are_pruned_too(tmp_path: Path) -> None:
    blocks = chained([tx("t0", output(A))], *([tx(f"t{n}", output(A), spends=[at(f"t{n - 1}")])] for n in range(1, 60)))
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


def test_utxo_052_053_no_live_output_is_ever_pruned(tmp_path: Path) -> None:
    one, other = (output(to, inline_datum=b"the datum", script_ref=b"the script") for to in (A, B))
    blocks = chained(
        [tx("old", one, other)],
        *([tx(f"t{n}", output(C, n), spends=[at(f"t{n - 1}") if n > 1 else at("old", 1)])] for n in range(1, 30)),
    )
    with open_chain(tmp_path, prune_depth=0, rollback_window=0) as chain:
        chain.seed(genesis(A=5))
        for each in blocks:
            feed(chain, each)
            prune_all(chain)
        assert live(chain.store) == {at("genesis A"): (A, 5), at("old"): (A, 1), at("t29"): (C, 29)}
        assert listed(chain, A) == [at("genesis A"), at("old")]
        left = outputs(chain.store)[at("old")].body
        assert (left.inline_datum, left.script_ref) == (b"the datum", b"the script")


# --- recovery: the feeder learns where we are, rolls back to what both know, and sends the rest --------------------


def test_utxo_055_a_chain_that_is_ahead_is_caught_up_with_before_pruning(tmp_path: Path) -> None:
    blocks = chained([tx("O", output(A))], [tx("spend", spends=[at("O")])], [])
    with open_chain(tmp_path, prune_depth=0, rollback_window=0) as chain:
        feed(chain, blocks[0])
    with open_chain(tmp_path, prune_depth=0, rollback_window=0) as chain:
        assert chain.view.tip == blocks[0].point
        published = follow(chain, ListInbox([message(each, Listener()) for each in blocks[1:]]), pruning=True)
        facts = [type(fact).__name__ for committed in published for fact in committed.facts]
        assert facts[:2] == ["BlockCommitted"] * 2
        assert chain.tip == blocks[2].point


def test_utxo_057_058_a_block_that_cannot_be_read_is_refused_by_name(tmp_path: Path) -> None:
    """Any text is accepted as an era."""
    sender = Listener()
    plain: dict[str, object] = {"type": "BlockApplied", "height": 1, "hash": "aa" * 32}
    with open_chain(tmp_path) as chain:
        turns = Turns(chain, pruning=False)
        wrong: list[dict[str, object]] = [{"txs": [{"txid": "bb"}]}, {"era": 2**32}]
        for number, fields in enumerate(wrong):
            take(turns, json_line(json.dumps(plain | fields | {"seq": number}), sender))
        assert chain.tip is None and "$.txs[0].txid" in sender.received[0].message  # type: ignore[union-attr]
        take(turns, json_line(json.dumps(plain | {"era": str(2**32), "seq": 2}), sender))
        assert sender.statuses() == [(0, "malformed"), (1, "malformed"), (2, "applied")]


# --- events --------------------------------------------------------------------------------------------------------


def test_utxo_064_a_writer_that_fails_ends_the_consumer(tmp_path: Path) -> None:
    """No block is acknowledged, and no further one is taken."""
    first, sender = block(None, seq=1), Listener()
    with open_chain(tmp_path) as chain:
        line = ListInbox([message(first, sender)], [message(block(first, seq=2), sender)])
        with failing(chain.store.disk, Fault(1, broken())), pytest.raises(lmdb.Error, match="Bad file descriptor"):
            follow(chain, line)
        assert (sender.received, len(line.batches), dump(chain.store)["blocks"]) == ([], 1, {})


def test_utxo_067_a_daemon_without_the_store_declines(tmp_path: Path) -> None:
    sender = Listener()
    anyio.run(decline, ListInbox([message(block(None, seq=1), sender)]))  # type: ignore[arg-type]
    assert sender.statuses() == [(1, "unavailable")]


def test_every_case_has_its_test() -> None:
    here = {*APPLIED, 47, 48, *COVERED}
    here |= {int(n) for name in globals() if name.startswith("test_utxo") for n in re.findall(r"(?<=_)\d{3}", name)}
    wanted = {int(case["id"].removeprefix("UTXO-")) for case in CASES if case["area"] in AREAS}
    assert here == wanted
    assert {case["area"] for case in CASES} == AREAS | ELSEWHERE
    for file, name in (covered.split("::") for covered in COVERED.values()):
        assert f"\ndef {name}(" in (HERE / file).read_text(), name
