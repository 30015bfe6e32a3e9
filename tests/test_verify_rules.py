"""`utxod verify` knows every rule of a store: each is broken by hand, with right checksums, and it says which one."""

from __future__ import annotations

import re
import shutil
from collections.abc import Callable, Iterator, Sequence
from functools import partial
from pathlib import Path
from random import Random
from typing import Any

import msgspec
import numpy as np
import pytest
from chains import LEAVES, TABLES, Options, feed, open_chain, random_chain, random_genesis
from corruption import U32, UNDO_KEY, Hand, harm, liveliest, longest, opened, rewriting

import storage.history.filters
import storage.history.history
import storage.history.merging
import storage.history.mmr
import storage.history.mmr_nodes
import storage.history.runs
import storage.history.store
import storage.history.values
import storage.history.view
from storage.disk import META, Db, Txn
from storage.errors import Damaged
from storage.history import runs
from storage.history.history import History
from storage.history.layout import (
    BLOCK,
    DATUMS,
    FILTER,
    HEAD_BYTES,
    OUTPUT,
    OUTPUT_RECORD,
    RUN,
    STATE,
    TX,
    UNDO,
    Block,
    Extra,
    State,
    count_of,
    seal,
    seal_row,
    stored_state,
    to_extra,
)
from storage.history.layout import TABLES as CHAIN_TABLES
from storage.history.mmr import BIT_NODE, NODE
from storage.history.mmr import TABLES as MMR_TABLES
from storage.history.output_keys import RULES
from storage.history.runs import Manifest
from storage.history.verify import verify
from storage.precheck import precheck

OPTIONS = Options(indexes=tuple(RULES), rollback_window=8, prune_depth=8, may_prune=True, map_size=1 << 24)
KEYS = [Random(n).getrandbits(64) | 1 for n in range(4)]
KINDS = ("classic", "mmr")


@pytest.fixture(scope="module", autouse=True)
def small() -> Iterator[None]:
    """Make values, merges and filters small, so that a short story has many of them."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(storage.history.runs, "VALUE_BYTES", 80)
        patch.setattr(storage.history.values, "VALUE_BYTES", 600)
        patch.setattr(storage.history.merging, "FANOUT", 3)
        patch.setattr(storage.history.history, "MERGED", 0)
        patch.setattr(storage.history.merging, "_REWRITTEN", 1)
        patch.setattr(storage.history.history, "LEAST_MERGED", 5)
        patch.setattr(storage.history.history, "_COUNTED", 4)
        patch.setattr(storage.history.history, "UNDO_ENTRIES", 3)
        patch.setattr(storage.history.filters, "PART", 2)
        for module in (storage.history.mmr_nodes, storage.history.mmr):
            patch.setattr(module, "NODES", 7)
            patch.setattr(module, "BIT_NODES", 2)
        patch.setattr(storage.history.store, "new_state", lambda: State(KEYS))
        patch.setattr(storage.history.view, "_VALUES", 2)
        yield


@pytest.fixture(scope="module")
def whole(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    """Return sound stores with genesis outputs, several runs, merges in progress, and more than their window."""
    folders = {kind: tmp_path_factory.mktemp(kind) for kind in KINDS}
    for kind, folder in folders.items():
        random, options = Random(49), OPTIONS.copy()
        options["store"] = kind
        with open_chain(folder, **options) as chain:
            chain.seed(random_genesis(random))
            for each in random_chain(random, 70, repeats=False):
                feed(chain, each)
        with opened(folder) as disk, disk.read() as txn:
            hand = Hand(txn, disk.tables)
            assert 0 < hand.state.floor < hand.state.tip
            for index in ("txid", "address_hash", "spender"):
                assert len(hand.manifest(index).runs) > 1
            assert longest(hand.manifest("address_hash")).entries
            assert rewriting(hand.manifest("address_hash"))
            assert hand.manifest("address_hash").count.values
            assert kind == "classic" or (len(hand.rows(NODE)) > 2 and hand.rows(BIT_NODE))
        precheck(folder, TABLES)
    return folders


@pytest.fixture
def copy(whole: dict[str, Path], tmp_path: Path, request: pytest.FixtureRequest) -> Path:
    """Return a copy of one of them, to damage."""
    shutil.copytree(whole[getattr(request, "param", "classic")], tmp_path / "copy")
    return tmp_path / "copy"


def findings(folder: Path, *, quick: bool = True) -> list[str]:
    with opened(folder) as disk:
        return verify(disk, quick=quick, leaves=LEAVES)


# --- one rule after the other ----------------------------------------------------------------------------------------

Damage = Callable[[Hand], object]
CASES: dict[str, tuple[Damage, str]] = {}


def says(finding: str) -> Callable[[Damage], Damage]:
    def add(damage: Damage) -> Damage:
        CASES[damage.__name__] = (damage, finding)
        return damage

    return add


def change_manifest(kind: str, act: Callable[[Manifest], object]) -> Damage:
    def damage(hand: Hand) -> None:
        manifest = hand.manifest(kind)
        act(manifest)
        hand.put_manifest(kind, manifest)

    return damage


STATES: dict[str, tuple[Callable[[State], dict[str, Any]], str]] = {
    "tip": (lambda state: {"tip": state.tip + 1}, "the last block is 70, the tip is 71"),
    "unspent": (lambda state: {"unspent": state.unspent + 1}, "the blocks leave .* the counter says"),
    "a floor too high": (lambda state: {"floor": state.floor + 1}, "there is an undo log of block 62"),
    "a floor too low": (lambda state: {"floor": state.floor - 1}, "block 61 (has no undo log|has .* records of)"),
    "a floor above the tip": (lambda state: {"floor": state.tip + 1}, "the rollback floor is 71, the tip is 70"),
    "next number": (lambda state: {"next_number": state.next_number + 1}, "the last block ends at number"),
    "keys": (lambda state: {"keys": [key ^ 2 for key in state.keys]}, "index txid misses transaction"),
    "three keys": (lambda state: {"keys": state.keys[1:]}, "the state has no four keys"),
    "no room": (lambda state: {"next_number": 1 << 63}, "the state counts"),
    "runs": (lambda _: {"next_run": 1}, "above the last one, 1"),
}
for name, (fields, finding) in STATES.items():
    CASES[f"state: {name}"] = (lambda hand, fields=fields: hand.change_state(**fields(hand.state)), finding)  # type: ignore[misc]


def put_on_one_level(listed: Sequence[runs.Run | runs.Merge]) -> None:
    for each in listed:
        each.level = 1


RUNS: dict[str, tuple[str, Callable[[Manifest], object], str]] = {
    "listed twice": ("asset", lambda m: m.runs.append(m.runs[-1]), r"run \d+ is listed for asset and for asset"),
    "overlapping": ("asset", lambda m: setattr(m.runs[0], "high", m.runs[1].low + 1), "of asset has the range"),
    "beyond the end": ("asset", lambda m: setattr(m.runs[-1], "high", 1 << 40), "of asset has the range"),
    "fewer entries": (
        "asset",
        lambda m: m.runs.insert(0, msgspec.structs.replace(one := m.runs.pop(0), entries=one.entries - 1, lived=0)),
        "entries, its list says",
    ),
    "more living entries than entries": (
        "asset",
        lambda m: setattr(m.runs[0], "lived", m.runs[0].entries + 1),
        r"run \d+ of asset counts \d+ living entries of",
    ),
    "fewer living entries": (
        "address_hash",
        lambda m: setattr(m.runs[-1], "lived", 0),
        r"run \d+ of address_hash has \d+ living entries, its list says at most 0",
    ),
    "less room": ("txid", lambda m: setattr(m.runs[0], "room", 0), r"run \d+ of txid counts \d+ entries of 0"),
    "a low bound too high": ("asset", lambda m: setattr(m.runs[0], "low", m.runs[0].high - 1), "has number"),
    "a high bound too low": (
        "address_hash",
        lambda m: setattr(m.runs[-1], "high", m.runs[-1].low + 1),
        "index address_hash misses output",
    ),
    "forgotten": ("asset", lambda m: m.runs.pop(), r"there are values of run \d+, which no index has"),
    "forgotten with a filter": ("txid", lambda m: m.runs.pop(), r"there is a filter of run \d+"),
    "a merge of strangers": (
        "address_hash",
        lambda m: longest(m).inputs.append(9999),
        "the merge of address_hash reads runs",
    ),
    "a merge with other room": (
        "address_hash",
        lambda m: setattr(longest(m), "room", longest(m).room - 1),
        r"the merge of address_hash has room for \d+ entries, \d+ of its runs live",
    ),
    "a merge with more entries than room": (
        "address_hash",
        lambda m: setattr(longest(m), "entries", longest(m).room + 1),
        r"the merge of address_hash counts \d+ entries of",
    ),
    "a rewrite of a run that lives": (
        "address_hash",
        lambda m: setattr(rewriting(m), "lived", rewriting(m).entries),
        r"the merge of address_hash rewrites run \d+, of which no entry has died",
    ),
    "a rewrite on another level": (
        "address_hash",
        lambda m: setattr(rewriting(m), "level", 7),
        "the merge of address_hash reads runs of other levels",
    ),
    "two merges on one level": (
        "address_hash",
        lambda m: put_on_one_level([*m.runs, *m.merges]),
        "several merges of address_hash are under way at one level",
    ),
    "a count of another run": (
        "address_hash",
        lambda m: setattr(m.count, "low", m.count.low + 1),
        r"the count of address_hash is at number \d+, its run \d+ begins with",
    ),
    "a count of no run": (
        "address_hash",
        lambda m: setattr(m.count, "run", 0),
        r"the count of address_hash has \d+ in \d+ values of run 0",
    ),
    "a count that goes backwards": (
        "address_hash",
        lambda m: setattr(m.count, "values", -1),
        "the count of address_hash has .* in -1 values",
    ),
    "a count behind the end": (
        "address_hash",
        lambda m: setattr(m.count, "values", 99),
        r"the count of address_hash has read 99 values of run \d+, which has",
    ),
    "a count that says more": (
        "address_hash",
        lambda m: setattr(m.count, "lived", 99),
        r"the count of address_hash has 99 in \d+ values of run \d+, where",
    ),
    "a count that says less": (
        "address_hash",
        lambda m: setattr(m, "count", runs.Count(liveliest(m).id, liveliest(m).low, 1, 0)),
        r"the count of address_hash has 0 in 1 values of run \d+, where [1-9]",
    ),
    "a merge that counts less": (
        "address_hash",
        lambda m: setattr(longest(m), "entries", longest(m).entries - 1),
        "entries, its list says",
    ),
    "a merge that is back": ("address_hash", lambda m: setattr(longest(m), "prefix", 0), "which it has not reached"),
    "a merge that is ahead": (
        "address_hash",
        lambda m: setattr(longest(m), "prefix", (1 << 64) - 1),
        "the merge of address_hash has written other entries",
    ),
}
for name, (kind, act, finding) in RUNS.items():
    CASES[f"runs: {name}"] = (change_manifest(kind, act), finding)

WIDE = 69  # a block above the floor with four transactions


def less(block: Block) -> dict[str, Any]:
    return {"created": block.created - 1, "spent": block.spent - 1}


BLOCKS: dict[str, tuple[int, Callable[[Block], dict[str, Any]], str]] = {
    "hash": (50, lambda _: {"hash": bytes(32)}, "index block misses block 50"),
    "first": (50, lambda block: {"first": block.first + 1}, "block 50 begins with number"),
    "numbers": (50, lambda block: {"numbers": block.numbers + 1}, "block 51 begins with number"),
    "too many": (50, lambda block: {"txs": 999}, "block 50 has 999 transactions and"),
    "txs": (WIDE, lambda block: {"txs": block.txs - 1}, "has 3 transactions, there are records of 4"),
    "failed": (70, lambda block: {"failed": not block.failed}, "block 70 records wrongly whether"),
    "spent by an old one": (9, lambda block: {"spent": block.spent + 1}, "the blocks leave"),
    "created": (WIDE, less, "created .* outputs, there are records of"),
    "spent": (WIDE, less, "spent .* outputs, its undo log has"),
    "a short hash": (50, lambda _: {"hash": bytes(31)}, "block 50 has a hash of 31 bytes"),
}
for name, (ordinal, changed, finding) in BLOCKS.items():
    CASES[f"block: {name}"] = (
        lambda hand, n=ordinal, changed=changed: hand.change_block(n, **changed(hand.block(n))),  # type: ignore[misc]
        finding,
    )


CASES |= {
    "a_block_is_gone": (lambda hand: hand.delete(BLOCK, U32.pack(50)), "block 50 has no row"),
    "no_genesis": (lambda hand: hand.delete(META, b"genesis"), "block 0 without a digest"),
    "a_strange_row": (
        lambda hand: hand.put(META, b"what", b"1"),
        "utxo_meta has a row b'what', which nothing has written",
    ),
    "an_index_that_nobody_knows": (lambda hand: hand.put(META, b"indexes", b"address_hush"), "the list of indexes is"),
    "the_change_log_is_shorter": (
        lambda hand: hand.delete("change_log", hand.rows("change_log")[-1][0]),
        "the change log ends at block",
    ),
    "a_bit_of_a_dead_output": (lambda hand: hand.flip(hand.dead(), hand.live()[0]), "is unspent, but has no record"),
    "a_bit_less": (lambda hand: hand.flip(hand.live()[0]), r"\d+ outputs are unspent, the counter says"),
    "a_bit_above_all": (lambda hand: hand.flip(hand.state.next_number), "at or above number"),
    "a_chunk_above_all": (lambda hand: hand.flip(99_999), "at or above number"),
    "a_recent_transaction_is_gone": (
        lambda hand: hand.change(TX, hand.stored.tx_of(hand.state.next_number - 1).number, None),
        "has no record, and may be rolled back",
    ),
    "an_old_transaction_is_gone": (
        lambda hand: hand.change(TX, hand.stored.tx_of(hand.live()[0]).number, None),
        "is of a transaction that has no record",
    ),
    "a_transaction_of_another_block": (
        lambda hand: hand.change(TX, 0, lambda tx: tx.__setitem__("block", 3)),
        "is in block 0, not in 3",
    ),
    "a_transaction_with_more_outputs": (
        lambda hand: hand.change(TX, 0, lambda tx: tx.__setitem__("counts", 999 << 3)),
        "does not follow the one that ends at",
    ),
    "a_transaction_beyond_its_block": (
        lambda hand: hand.change(TX, 0, lambda tx: tx.__setitem__("counts", 999 << 3)),
        "has outputs beyond its block 0",
    ),
    "a_return_of_what_did_not_fail": (
        lambda hand: hand.change(TX, 0, lambda tx: tx.__setitem__("counts", tx["counts"] | 2)),
        "has a collateral return, but did not fail",
    ),
    "a_transaction_with_another_id": (
        lambda hand: hand.change(TX, 0, lambda tx: tx["id"].__setitem__((0, 3), 5)),
        "index txid misses transaction 0 ",
    ),
    "a_live_output_is_gone": (lambda hand: hand.change(OUTPUT, hand.live()[0], None), "is unspent, but has no record"),
    "a_spent_output_is_gone": (
        lambda hand: hand.change(OUTPUT, int(hand.spends()[0][1]["number"][0]), None),
        "may be unspent again, but has no record",
    ),
    "another_address": (
        lambda hand: hand.change_body(hand.live()[0], lambda address, extra: (address[:-1] + b"?", extra)),
        "index address_hash misses output",
    ),
    "an_extra_of_garbage": (
        lambda hand: hand.change_body(hand.live()[0], lambda address, _: (address, b"\x93\xc1")),
        "cannot be read",
    ),
    "datums_of_garbage": (
        lambda hand: hand.put(UNDO, _datums(hand)[0], seal(1, b"\xc1")),
        "of the undo log of block .* cannot be read",
    ),
    "an_undo_log_too_much": (
        lambda hand: hand.put(UNDO, UNDO_KEY.pack(71, 0), seal(0)),
        "there is an undo log of block 71",
    ),
    "a_spender_is_not_found": (
        lambda hand: hand.drop_entry("spender", hand.manifest("spender").runs[-1].high - 1 and _recent_spender(hand)),
        "index spender misses transaction",
    ),
    "a_transaction_is_not_found": (
        lambda hand: hand.drop_entry("txid", hand.stored.tx_of(hand.live()[-1]).number),
        "index txid misses transaction",
    ),
    "a_value_of_a_run_is_gone": (
        lambda hand: hand.delete(RUN, next(hand.entries("stake_credential"))[0]),
        "entries, its list says",
    ),
    "a_part_of_a_filter_is_gone": (
        lambda hand: hand.delete(FILTER, UNDO_KEY.pack(hand.manifest("txid").runs[0].id, 0)),
        "part 0 of the filter of run",
    ),
    "a_part_of_a_filter_is_short": (
        lambda hand: hand.put(FILTER, UNDO_KEY.pack(hand.manifest("txid").runs[0].id, 0), seal(0)),
        "part 0 of the filter of run",
    ),
    "a_filter_of_nobody": (
        lambda hand: hand.put(FILTER, UNDO_KEY.pack(9999, 0), seal(1, bytes(8))),
        "there is a filter of run 9999",
    ),
}


@says("the last block is 71, the tip is 70")
def a_block_above_the_tip(hand: Hand) -> None:
    block = hand.block(70)
    hand.put(
        BLOCK, U32.pack(71), seal_row(msgspec.structs.replace(block, first=block.first + block.numbers, numbers=0))
    )


@says("the merge of address_hash reads runs of other levels")
def a_merge_of_several_levels(hand: Hand) -> None:
    manifest = hand.manifest("address_hash")
    assert manifest.merges
    for run in manifest.runs:
        run.level += run.id == longest(manifest).inputs[0]
    hand.put_manifest("address_hash", manifest)


@says("is a collateral return, or should be")
def a_return_of_nobody(hand: Hand) -> None:
    extra = msgspec.msgpack.encode(Extra(is_collateral_return=True))
    hand.change_body(hand.live()[0], lambda address, _: (address, extra))


@says(r"block \d+ created \d+ outputs, there are records of")
def an_output_too_much(hand: Hand) -> None:
    kept = {int(n) for _, records, _ in hand.records(OUTPUT) for n in records["number"]}
    for key, records, heap in reversed(list(hand.records(OUTPUT))):
        extra = int(records["number"][-1]) + 1
        if extra < hand.state.next_number and extra not in kept:
            more = np.array([(extra, 0, 0, 0)], OUTPUT_RECORD)
            return hand.replace(OUTPUT, key, np.concatenate((records, more)), heap)
    raise AssertionError("every number has an output")


@says(r"block \d+ has no undo log")
def an_undo_log_is_gone(hand: Hand) -> None:
    ordinal = UNDO_KEY.unpack(hand.rows(UNDO)[-1][0])[0]
    for key, _ in hand.rows(UNDO):
        if UNDO_KEY.unpack(key)[0] == ordinal:
            hand.delete(UNDO, key)


@says("part 0 of the undo log of block")
def a_part_of_an_undo_log_is_gone(hand: Hand) -> None:
    later = next(key for key, _ in hand.rows(UNDO) if UNDO_KEY.unpack(key)[1] > 0)
    hand.delete(UNDO, UNDO_KEY.pack(UNDO_KEY.unpack(later)[0], 0))


def _datums(hand: Hand) -> tuple[bytes, bytes]:
    """Return the last undo log's row of datums."""
    return [row for row in hand.rows(UNDO) if UNDO_KEY.unpack(row[0])[1] >= DATUMS][-1]


@says(r"part 2147483648 of the undo log of block \d+ was written for block")
def datums_of_another_block(hand: Hand) -> None:
    key, value = _datums(hand)
    hand.delete(UNDO, key)
    hand.put(UNDO, UNDO_KEY.pack(70, DATUMS), value)
    assert key[:4] != U32.pack(70)


@says(r"the next one is 2147483649")
def the_first_datums_are_gone(hand: Hand) -> None:
    key, value = _datums(hand)
    hand.delete(UNDO, key)
    hand.put(UNDO, UNDO_KEY.pack(UNDO_KEY.unpack(key)[0], DATUMS + 1), value)


@says("part 0 of the undo log of block .* is missing, the next one is 2147483648")
def datums_without_spends(hand: Hand) -> None:
    ordinal = UNDO_KEY.unpack(_datums(hand)[0])[0]
    for key, _ in hand.rows(UNDO):
        if UNDO_KEY.unpack(key)[0] == ordinal and UNDO_KEY.unpack(key)[1] < DATUMS:
            hand.delete(UNDO, key)


@says("has 1 datums, not 2")
def fewer_datums_than_counted(hand: Hand) -> None:
    key, _ = _datums(hand)
    hand.put(UNDO, key, seal(2, msgspec.msgpack.encode((UNDO_KEY.unpack(key)[0], [b"d"]))))


@says("has a datum whose hash it does not name")
def a_datum_of_another_hash(hand: Hand) -> None:
    def change(address: bytes, raw: bytes) -> tuple[bytes, bytes]:
        return address, msgspec.msgpack.encode(msgspec.structs.replace(to_extra(raw), datum=b"another"))

    hand.change_body(hand.live()[0], change)


@says(r"block \d+ spent \d+ outputs, its undo log has")
def a_spend_is_gone(hand: Hand) -> None:
    key, spends = hand.long_undo()
    hand.replace(UNDO, key, spends[1:])


@says("block 70 spent .* outputs, its undo log has 2")
def a_spend_of_the_tip_is_gone(hand: Hand) -> None:
    key, spends = hand.spends()[-1]
    assert key[:4] == U32.pack(70)
    hand.replace(UNDO, key, spends[1:])


@says("was spent, and is unspent")
def a_live_output_is_spent(hand: Hand) -> None:
    key, spends = hand.spends()[0]
    spends["number"][0] = hand.live()[0]
    hand.replace(UNDO, key, spends)


@says("was spent twice")
def an_output_is_spent_twice(hand: Hand) -> None:
    (first, spends), (key, more) = hand.spends()[0], hand.spends()[-1]
    more["number"][0] = spends["number"][0]
    assert first != key
    hand.replace(UNDO, key, more)


@says("which is no transaction of this block")
def a_spender_of_another_block(hand: Hand) -> None:
    key, spends = hand.spends()[-1]
    spends["spender"][0] = 5000
    hand.replace(UNDO, key, spends)


@says("before it was created")
def a_spend_before_its_time(hand: Hand) -> None:
    key, spends = hand.spends()[0]
    spends["number"][0] = hand.state.next_number - 1
    hand.replace(UNDO, key, spends)


@says("the spends are not in order")
def spends_out_of_order(hand: Hand) -> None:
    key, spends = hand.long_undo()
    hand.replace(UNDO, key, spends[::-1])


def _recent_spender(hand: Hand) -> int:
    return max(int(n) for _, entries in hand.entries("spender") for n in entries["number"])


for name in ("address_hash", "payment_credential", "stake_credential", "policy", "asset"):

    def drop_one(hand: Hand, kind: str = name) -> None:
        for _, entries in hand.entries(kind):
            if len(entries) > 1 and (kept := hand.stored.revivable(entries["number"])).any():
                return hand.drop_entry(kind, int(entries["number"][kept][0]))
        raise AssertionError(f"{kind} finds nothing")

    CASES[f"an output is not found by {name}"] = (drop_one, f"index {name} misses output")


@says("which is not its own")
def an_entry_of_another_output(hand: Hand) -> None:
    live = hand.live()
    key, entries, at = hand.where("address_hash", live[0])
    entries["prefix"][at] += 1
    hand.put_entries(key, entries)


@says("index txid misses transaction")
def an_entry_with_another_check(hand: Hand) -> None:
    key, entries, at = hand.where("txid", hand.stored.tx_of(hand.live()[0]).number)
    entries["check"][at] ^= 1
    hand.put_entries(key, entries)


@says("where outputs of another transaction are")
def an_entry_that_leads_astray(hand: Hand) -> None:
    number = next(n for n in hand.live() if hand.stored.tx_of(n).number != n)
    key, entries, at = hand.where("txid", hand.stored.tx_of(number).number)
    entries["number"][at] = number
    hand.put_entries(key, entries)


@says("its entries are not in order")
def entries_out_of_order(hand: Hand) -> None:
    key, entries = next((key, entries) for key, entries in hand.entries("address_hash") if len(entries) > 2)
    hand.put(RUN, key, seal(len(entries), entries[[0, 2, 1, *range(3, len(entries))]].tobytes()))


@says("its entries are not in order")
def an_entry_twice(hand: Hand) -> None:
    key, entries, at = hand.where("address_hash", hand.live()[0])
    hand.put_entries(key, np.insert(entries, at, entries[at]))
    hand.recount("address_hash", runs.KEY.unpack(key)[0], 1)


@says("begins with another entry")
def a_value_under_another_key(hand: Hand) -> None:
    key, entries = next(hand.entries("address_hash"))
    hand.delete(RUN, key)
    run, prefix, number = runs.KEY.unpack(key)
    hand.put(RUN, runs.KEY.pack(run, prefix - 1, number), seal(len(entries), entries.tobytes()))


@says("the merge of address_hash has written other entries")
def a_merge_has_lost_an_entry(hand: Hand) -> None:
    merge = longest(hand.manifest("address_hash"))

    for key, entries in hand.entries("address_hash", merge.id):
        for at in range(len(entries)):
            if hand.stored.revivable(entries["number"][at : at + 1])[0]:
                hand.put_entries(key, np.delete(entries, at))
                return hand.recount("address_hash", merge.id, -1)
    raise AssertionError("the merge has not begun")


@says(r"there are values of run 9999, which no index has")
def a_run_of_nobody(hand: Hand) -> None:
    _, entries = next(hand.entries("address_hash"))
    prefix, number = entries[0].tolist()
    hand.put(RUN, runs.KEY.pack(9999, prefix, number), seal(len(entries), entries.tobytes()))


@says(r"the filter of run \d+ does not let entry [0-9a-f]{16} pass")
def an_empty_filter(hand: Hand) -> None:
    key, value = hand.rows(FILTER)[0]
    hand.put(FILTER, key, seal(count_of(value), bytes(8 * count_of(value))))


for table in (*CHAIN_TABLES, *MMR_TABLES):

    def flip_a_byte(hand: Hand, table: str = table) -> None:
        key, value = hand.rows(table)[-1]
        hand.put(table, key, value[:-5] + bytes([value[-5] ^ 1]) + value[-4:])

    def cut_off(hand: Hand, table: str = table) -> None:
        key, value = hand.rows(table)[0]
        hand.put(table, key, value[:3])

    def a_short_key(hand: Hand, table: str = table) -> None:
        hand.put(table, b"\0\0\1", hand.rows(table)[0][1])

    CASES[f"a byte of {table}"] = (flip_a_byte, "checksum")
    CASES[f"a short value of {table}"] = (cut_off, "checksum")
    CASES[f"a short key of {table}"] = (a_short_key, f"{table} has a key of 3 bytes")


def wrong_length(table: str, finding: str, count: int) -> None:
    def damage(hand: Hand) -> None:
        key, value = hand.rows(table)[0]
        hand.put(table, key, seal(count, value[HEAD_BYTES:]))

    CASES[f"{table} says that it has {count} records"] = (damage, finding)


for counted, finding in (
    (TX, "for 999 records"),
    (OUTPUT, "for 999 records"),
    (UNDO, "for 999 spends"),
    (RUN, "for 999 entries"),
    (FILTER, "for 999 words"),
    (NODE, "another length than it says"),
    (BIT_NODE, "another length than it says"),
):
    wrong_length(counted, finding, 999)

for table in MMR_TABLES:

    def no_last_value(hand: Hand, table: str = table) -> None:
        hand.delete(table, hand.rows(table)[-1][0])

    def a_value_too_many(hand: Hand, table: str = table) -> None:
        hand.put(table, (7 << 20).to_bytes(8, "big"), hand.rows(table)[0][1])

    CASES[f"the last value of {table} is gone"] = (no_last_value, "proofs need it|not the hashes of what is below")
    CASES[f"a value of {table} too many"] = (a_value_too_many, f"{table} has a value for the nodes from 7340032 on")

# --- rows of MessagePack with a right checksum ------------------------------------------------------------------------

EMPTY = b"\x90"  # an array of nothing


def resealed(raw: bytes) -> bytes:
    return seal_row(msgspec.Raw(raw))  # type: ignore[arg-type]


def fewer_fields(count: int) -> Damage:
    def damage(hand: Hand) -> None:
        fields = msgspec.structs.astuple(hand.state)
        hand.put(META, STATE, resealed(msgspec.msgpack.encode(fields[:-count])))

    return damage


CASES["state: one byte"] = (lambda hand: hand.put(META, STATE, EMPTY), "the state does not have the checksum")
CASES["state: nothing"] = (lambda hand: hand.put(META, STATE, resealed(EMPTY)), "the state cannot be read")
CASES["state: a map"] = (lambda hand: hand.put(META, STATE, resealed(b"\x80")), "the state cannot be read")
for left_out in range(1, len(State.__struct_fields__)):
    CASES[f"state: without its last fields, {left_out}"] = (fewer_fields(left_out), "the state cannot be read: it has")
CASES["a list of runs of nothing"] = (
    lambda hand: hand.put(META, b"runs:address_hash", resealed(EMPTY)),
    "the list of runs of address_hash cannot be read",
)
CASES["a block of nothing"] = (lambda hand: hand.put(BLOCK, U32.pack(70), resealed(EMPTY)), "block 70 cannot be read")


@pytest.mark.parametrize(
    ("copy", "case"),
    [("mmr" if "mmr" in case else "classic", case) for case in CASES],
    indirect=["copy"],
    ids=[case.replace(" ", "_") for case in CASES],
)
def test_each_rule_is_named(case: str, copy: Path) -> None:
    damage, finding = CASES[case]
    harm(copy, damage)
    found = findings(copy)
    assert any(re.search(finding, each) for each in found), found
    assert not [each for each in found if "can't be read to the end" in each], found


@pytest.mark.parametrize("copy", KINDS, indirect=True)
def test_a_sound_store_is_called_so(copy: Path) -> None:
    assert findings(copy) == findings(copy, quick=False) == []


def one_bit_less(history: History) -> None:
    number = next(n for n in range(history.state.next_number) if history.live.has(np.array([n]))[0])
    history.live.clear(np.array([number]))
    history.state.unspent -= 1


def no_block_above(history: History) -> None:
    history.index["block"].cut(history.state.tip)


def no_output_above(history: History) -> None:
    history.index["address_hash"].cut(history.state.next_number // 2)


@pytest.mark.parametrize("copy", KINDS, indirect=True)
@pytest.mark.parametrize("wrong", [one_bit_less, no_block_above, no_output_above])
def test_blocks_are_taken_back_on_a_copy(
    copy: Path, wrong: Callable[[History], None], monkeypatch: pytest.MonkeyPatch
) -> None:
    """A rollback that goes wrong is found there, and what is wrong is said of the block that it went back to."""
    real, went = History.rollback, list[int]()

    def rollback(history: History, txn: Txn, target: int) -> None:
        real(history, txn, target)
        went.append(target)
        if target == floor:
            wrong(history)

    with opened(copy) as disk, disk.read() as txn:
        state = stored_state(txn, disk.tables[META])
        floor, tip = state.floor, state.tip
    monkeypatch.setattr(History, "rollback", rollback)
    assert findings(copy, quick=True) == [] and not went
    found = findings(copy, quick=False)
    assert found and all(each.startswith(f"after taking blocks back to {floor}: ") for each in found)
    assert went == [*range(tip - 1, floor - 1, -1)]
    assert any("other outputs are unspent" in each for each in found) == (wrong is one_bit_less), found


AT_THE_START = [
    *(
        case
        for case in CASES
        if case.startswith(("state: tip", "state: a floor", "state: n", "a byte of", "a short value", "the last value"))
        or case.startswith(("state: one", "state: a map", "state: without", "state: runs", "a value of history_mmr"))
    ),
    "a_block_above_the_tip",
    "a_strange_row",
    "an_undo_log_too_much",
    "a_spend_of_the_tip_is_gone",
    "a block of nothing",
]


@pytest.mark.parametrize(
    ("copy", "case"),
    [(kind, case) for kind in KINDS for case in AT_THE_START if kind == "mmr" or "mmr" not in case],
    indirect=["copy"],
)
def test_some_damage_is_refused_before_a_service_opens_the_store(case: str, copy: Path) -> None:
    harm(copy, CASES[case][0])
    with pytest.raises(Damaged):
        precheck(copy, TABLES)


def test_a_filter_that_lost_a_write_is_noticed_before_anything_is_written(copy: Path) -> None:
    """It would hide transactions, whose outputs nobody could spend."""

    def damage(hand: Hand) -> None:
        key, value = hand.rows(FILTER)[3]
        hand.put(FILTER, key, value[:HEAD_BYTES] + bytes(len(value) - HEAD_BYTES))

    harm(copy, damage)
    precheck(copy, TABLES)
    words = r"part \d of the filter of run \d+ does not have the checksum"
    with open_chain(copy, **OPTIONS) as chain, pytest.raises(Damaged, match=words):
        chain.maintain(1)


@pytest.mark.parametrize("copy", KINDS, indirect=True)
def test_no_byte_of_a_value_changes_unseen(copy: Path) -> None:
    """Whichever byte of whichever value, or key: it is a finding, and never a traceback."""
    random, rows = Random(7), dict[tuple[str, bytes], bytes]()
    unsealed = (b"format", b"chain", b"genesis", b"indexes", b"mmr_thin_at")  # what is said once, protected by nothing
    with opened(copy) as disk:
        with disk.read() as txn:
            for table in (META, *CHAIN_TABLES, *(MMR_TABLES if NODE in disk.tables else ())):
                found = txn.cursor(disk.tables[table])
                rows |= {(table, key): value for key, value in found if key not in unsealed}
        for _ in range(300):
            table, key = random.choice([*rows])
            new, value = key, rows[table, key]
            if table == META or random.random() < 0.8:
                value = flipped(value, random)
            else:
                new = flipped(key, random)  # which may be another row's
            disk.write(partial(put, disk.tables[table], {key: None, new: value}))
            assert verify(disk, quick=True, leaves=LEAVES), (table, key, new)
            disk.write(partial(put, disk.tables[table], {new: rows.get((table, new)), key: rows[table, key]}))
        assert verify(disk, quick=True, leaves=LEAVES) == []


def flipped(raw: bytes, random: Random) -> bytes:
    at = random.randrange(len(raw))
    return raw[:at] + bytes([raw[at] ^ 1 << random.randrange(8)]) + raw[at + 1 :]


def put(table: Db, rows: dict[bytes, bytes | None], txn: Txn) -> None:
    """Put rows into a table, or delete them."""
    for key, value in rows.items():
        txn.delete(key, db=table) if value is None else txn.put(key, value, db=table)
