"""`utxod verify` checks every rule of a store: each is broken by hand, with right checksums, and a finding names it."""

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
from mmr_reference import small_nodes
from stores import fixed_keys, small_values

from storage import mmr
from storage.disk import META, Db, Txn
from storage.errors import Damaged
from storage.history import runs
from storage.history.history import History
from storage.history.layout import (
    BLOCK,
    DATUMS,
    FILTER,
    HEAD_BYTES,
    LIVE,
    OUTPUT,
    OUTPUT_RECORD,
    RUN,
    STATE,
    TX,
    UNDO,
    Block,
    Extra,
    Records,
    State,
    count_of,
    seal,
    stored_state,
    to_extra,
)
from storage.history.layout import TABLES as CHAIN_TABLES
from storage.history.mmr import BIT_NODE, NODE, THIN_AT
from storage.history.mmr import TABLES as MMR_TABLES
from storage.history.output_keys import RULES
from storage.history.runs import Manifest
from storage.history.verify import verify
from storage.precheck import precheck
from storage.rows import seal_bytes, seal_row

OPTIONS = Options(indexes=tuple(RULES), rollback_window=8, prune_depth=8, may_prune=True, map_size=1 << 24)
KEYS = [Random(3176 + n).getrandbits(64) | 1 for n in range(4)]
KINDS = ("classic", "mmr")


@pytest.fixture(scope="module", autouse=True)
def small() -> Iterator[None]:
    with pytest.MonkeyPatch.context() as patch:
        small_values(patch, value_bytes=600, merged=0, least_merged=5, counted=4, undo_entries=3, values_read=2)
        small_nodes(patch)
        fixed_keys(patch, KEYS)
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
Case = tuple[str, Damage]  # what is found, and the damage
WIDE = 69  # a block above the floor with four transactions
EMPTY = b"\x90"  # an array of nothing


def spends(which: int, act: Callable[[Records], Records]) -> Damage:
    """Return what changes the spends of an undo log: the first one, the last one, or one with several (1)."""

    def damage(hand: Hand) -> None:
        key, found = hand.long_undo() if which == 1 else hand.spends()[which]
        hand.replace(UNDO, key, act(found))

    return damage


def spend(which: int, field: str, value: Callable[[Hand], int]) -> Damage:
    """Return what changes a field of an undo log's first spend."""

    def damage(hand: Hand) -> None:
        key, found = hand.spends()[which]
        found[field][0] = value(hand)
        hand.replace(UNDO, key, found)

    return damage


def entry(kind: str, number: Callable[[Hand], int], act: Callable[[Records, int, Hand], Records | None]) -> Damage:
    """Return what changes the value of a run with the entry of a number."""

    def damage(hand: Hand) -> None:
        key, found, at = hand.where(kind, number(hand))
        changed = act(found, at, hand)
        hand.put_entries(key, found if changed is None else changed)
        if changed is not None:
            hand.recount(kind, runs.KEY.unpack(key)[0], len(changed) - len(found))

    return damage


def set_field(field: str, change: Callable[[int, Hand], int]) -> Callable[[Records, int, Hand], None]:
    def act(entries: Records, at: int, hand: Hand) -> None:
        entries[field][at] = change(int(entries[field][at]), hand)

    return act


def undo_rows(hand: Hand, wanted: Callable[[int, int], bool]) -> list[tuple[bytes, bytes]]:
    return [row for row in hand.rows(UNDO) if wanted(*UNDO_KEY.unpack(row[0]))]


def datums(hand: Hand) -> tuple[bytes, bytes]:
    """Return the last undo log's row of datums."""
    return undo_rows(hand, lambda _, part: part >= DATUMS)[-1]


def all_but_datums_left_out(hand: Hand) -> None:
    block = datums(hand)[0][:4]
    for key, _ in undo_rows(hand, lambda number, part: U32.pack(number) == block and part < DATUMS):
        hand.delete(UNDO, key)


def a_datum_left_out(hand: Hand) -> None:
    key = datums(hand)[0]
    hand.put(UNDO, key, seal(2, msgspec.msgpack.encode((UNDO_KEY.unpack(key)[0], [b"d"]))))


def a_run_of_no_index(hand: Hand) -> None:
    _, entries = next(hand.entries("address_hash"))
    hand.put(RUN, runs.KEY.pack(9999, *entries[0].tolist()), seal(len(entries), entries.tobytes()))


def change_extra(change: Callable[[Extra], Extra]) -> Damage:
    """Return what changes the other fields of an unspent output."""
    encoded = msgspec.msgpack.encode
    return lambda h: h.change_body(h.live()[0], lambda address, raw: (address, encoded(change(to_extra(raw)))))


def move_datums(hand: Hand, key: Callable[[int], bytes]) -> None:
    old, value = datums(hand)
    hand.delete(UNDO, old)
    hand.put(UNDO, key(UNDO_KEY.unpack(old)[0]), value)


def first_live_tx(hand: Hand) -> int:
    return hand.stored.tx_of(hand.live()[0]).number


def last_number(hand: Hand, kind: str) -> int:
    return max(int(entries["number"].max()) for _, entries in hand.entries(kind))


def inside_a_tx(hand: Hand) -> int:
    """Return a live output that is not the first one of its transaction."""
    return next(n for n in hand.live() if hand.stored.tx_of(n).number != n)


def in_state(fields: Callable[[State], dict[str, Any]]) -> Damage:
    return lambda h: h.change_state(**fields(h.state))


def in_block(ordinal: int, fields: Callable[[Block], dict[str, Any]]) -> Damage:
    return lambda h: h.change_block(ordinal, **fields(h.block(ordinal)))


def change_manifest(kind: str, act: Callable[[Manifest], object]) -> Damage:
    def damage(hand: Hand) -> None:
        manifest = hand.manifest(kind)
        act(manifest)
        hand.put_manifest(kind, manifest)

    return damage


def an_empty_block_too_many(hand: Hand) -> None:
    last = hand.block(70)
    hand.put(BLOCK, U32.pack(71), seal_row(msgspec.structs.replace(last, first=last.first + last.numbers, numbers=0)))


def less(b: Block) -> dict[str, Any]:
    return {"created": b.created - 1, "spent": b.spent - 1}


def one_entry_less(manifest: Manifest) -> None:
    first = manifest.runs[0]
    manifest.runs[0] = msgspec.structs.replace(first, entries=first.entries - 1, lived=0)


def none_counted(manifest: Manifest) -> None:
    run = liveliest(manifest)
    manifest.count = runs.Count(run.id, run.low, 1, 0)


def put_on_one_level(listed: Sequence[runs.Run | runs.Merge]) -> None:
    for each in listed:
        each.level = 1


def resealed(raw: bytes) -> bytes:
    return seal_row(msgspec.Raw(raw))  # type: ignore[arg-type]


def with_fields(count: int) -> Damage:
    """Return what leaves the state its first fields alone."""
    return lambda h: h.put(META, STATE, resealed(msgspec.msgpack.encode(msgspec.structs.astuple(h.state)[:count])))


def change_first(table: str, act: Callable[[bytes], bytes], which: int = 0) -> Damage:
    """Return what changes the first row of a table, or another one."""

    def damage(hand: Hand) -> None:
        key, value = hand.rows(table)[which]
        hand.put(table, key, act(value))

    return damage


def put_first(table: str, key: bytes) -> Damage:
    return lambda h: h.put(table, key, h.rows(table)[0][1])


def drop_last(table: str) -> Damage:
    return lambda h: h.delete(table, h.rows(table)[-1][0])


def node(number: Callable[[Hand], int], *, removed: bool) -> Damage:
    """Return what removes a node of the MMR, or puts another hash in its place, with the right checksum."""
    return lambda h: h.change_node(number(h), None if removed else lambda found: found.__setitem__(0, found[0] ^ 1))


def live_leaf(h: Hand) -> int:
    """Return the position of a live leaf whose sibling is a leaf too."""
    return next(at for n in h.live() if mmr.family(at := mmr.size_of(n))[0] == at + 1)


def parent(h: Hand) -> int:
    return mmr.family(live_leaf(h))[0]


def peak(h: Hand) -> int:
    return mmr.peaks(mmr.size_of(h.state.next_number))[0]


def dead_sibling(h: Hand) -> int:
    """Return the position of a dead leaf that the proof of a live one needs."""
    live = set(h.live())
    pairs = ((n, n ^ 1) for n in live if n ^ 1 not in live and n < h.stored.reachable - 1)
    return mmr.size_of(next(dead for _, dead in pairs))


RUNS: dict[str, list[tuple[str, Callable[[Manifest], object]]]] = {
    "asset": [
        (r"run \d+ is listed for asset and for asset", lambda m: m.runs.append(m.runs[-1])),
        ("of asset has the range", lambda m: setattr(m.runs[0], "high", m.runs[1].low + 1)),
        ("of asset has the range", lambda m: setattr(m.runs[-1], "high", 1 << 40)),
        ("entries, but its list", one_entry_less),
        (r"of asset counts \d+ live entries, but", lambda m: setattr(m.runs[0], "lived", m.runs[0].entries + 1)),
        ("has an entry of number", lambda m: setattr(m.runs[0], "low", m.runs[0].high - 1)),
        (r"run \d+ has values, but no index", lambda m: m.runs.pop()),
    ],
    "address_hash": [
        (r"address_hash has \d+ live entries, but its list", lambda m: setattr(m.runs[-1], "lived", 0)),
        ("address_hash has no entry for out", lambda m: setattr(m.runs[-1], "high", m.runs[-1].low + 1)),
        ("the merge of address_hash reads runs", lambda m: longest(m).inputs.append(9999)),
        (
            r"merge of address_hash has space for \d+ entries",
            lambda m: setattr(longest(m), "room", longest(m).room - 1),
        ),
        (
            r"merge of address_hash counts \d+ entries, but",
            lambda m: setattr(longest(m), "entries", longest(m).room + 1),
        ),
        (r"rewrites run \d+, which has no dead entry", lambda m: setattr(rewriting(m), "lived", rewriting(m).entries)),
        (r"of address_hash on level \d+ reads runs of levels \[7", lambda m: setattr(rewriting(m), "level", 7)),
        ("several merges of address_hash are in progress at one", lambda m: put_on_one_level([*m.runs, *m.merges])),
        (r"count of address_hash begins at number \d+, but", lambda m: setattr(m.count, "low", m.count.low + 1)),
        (r"count of address_hash has \d+ .* \d+ values of run 0", lambda m: setattr(m.count, "run", 0)),
        ("the count of address_hash has .* in -1 values", lambda m: setattr(m.count, "values", -1)),
        (r"count of address_hash has read 99 values of run \d+", lambda m: setattr(m.count, "values", 99)),
        (r"the count of address_hash has 99 .* values of run \d+, where", lambda m: setattr(m.count, "lived", 99)),
        (r"the count of address_hash has 0 live .* of run \d+, where [1-9]", none_counted),
        ("entries, but its list", lambda m: setattr(longest(m), "entries", longest(m).entries - 1)),
        ("which it has not reached", lambda m: setattr(longest(m), "prefix", 0)),
        ("the merge of address_hash has written entries that", lambda m: setattr(longest(m), "prefix", (1 << 64) - 1)),
    ],
    "txid": [
        (r"of txid counts \d+ entries of at most 0", lambda m: setattr(m.runs[0], "room", 0)),
        (r"run \d+ has a filter, but", lambda m: m.runs.pop()),
    ],
}
MMR_AT_START: list[Case] = []
CASES: list[Case] = [
    ("the blocks leave .* but the state", in_state(lambda s: {"unspent": s.unspent + 1})),
    ("txid has no entry for transac", in_state(lambda s: {"keys": [key ^ 2 for key in s.keys]})),
    ("the keys for prefixes in", in_state(lambda s: {"keys": s.keys[1:]})),
    ("block has no entry for block 50", in_block(50, lambda _: {"hash": bytes(32)})),
    ("block 50 begins with number", in_block(50, lambda b: {"first": b.first + 1})),
    ("block 51 begins with number", in_block(50, lambda b: {"numbers": b.numbers + 1})),
    ("block 50 has 999 transactions and", in_block(50, lambda _: {"txs": 999})),
    ("has 3 transactions, but records of 4", in_block(WIDE, lambda b: {"txs": b.txs - 1})),
    ("block 70 is .*a failed transact", in_block(70, lambda b: {"failed": not b.failed})),
    ("the blocks leave", in_block(9, lambda b: {"spent": b.spent + 1})),
    ("created .* outputs, but has records of", in_block(WIDE, less)),
    ("spent .* outputs, but its undo log", in_block(WIDE, less)),
    ("block 50 has a hash of 31 bytes", in_block(50, lambda _: {"hash": bytes(31)})),
    *((finding, change_manifest(kind, act)) for kind, acts in RUNS.items() for finding, act in acts),
    ("block 50 has no row", lambda h: h.delete(BLOCK, U32.pack(50))),
    ("genesis outputs is miss", lambda h: h.delete(META, b"genesis")),
    ("list of indexes has an", lambda h: h.put(META, b"indexes", seal_bytes(b"address_hush"))),
    ("the change log ends at block", lambda h: h.delete("change_log", h.rows("change_log")[-1][0])),
    ("is unspent, but has no record", lambda h: h.flip(h.dead(), h.live()[0])),
    (r"\d+ outputs are unspent, but the state", lambda h: h.flip(h.live()[0])),
    ("or above the next", lambda h: h.flip(h.state.next_number)),
    ("or above the next", lambda h: h.flip(99999)),
    (
        "no record, but its block can still",
        lambda h: h.change(TX, h.stored.tx_of(h.state.next_number - 1).number, None),
    ),
    ("transaction of output .* has no record", lambda h: h.change(TX, h.stored.tx_of(h.live()[0]).number, None)),
    ("is in block 0, not in 3", lambda h: h.change(TX, 0, lambda tx: tx.__setitem__("block", 3))),
    ("does not follow the one that ends at", lambda h: h.change(TX, 0, lambda tx: tx.__setitem__("counts", 999 << 3))),
    ("has outputs beyond the end", lambda h: h.change(TX, 0, lambda tx: tx.__setitem__("counts", 999 << 3))),
    ("but is not marked as", lambda h: h.change(TX, 0, lambda tx: tx.__setitem__("counts", tx["counts"] | 2))),
    ("txid has no entry for transaction 0 ", lambda h: h.change(TX, 0, lambda tx: tx["id"].__setitem__((0, 3), 5))),
    ("is unspent, but has no record", lambda h: h.change(OUTPUT, h.live()[0], None)),
    ("may be unspent again, but has no record", lambda h: h.change(OUTPUT, int(h.spends()[0][1]["number"][0]), None)),
    (
        "address_hash has no entry for out",
        lambda h: h.change_body(h.live()[0], lambda address, extra: (address[:-1] + b"?", extra)),
    ),
    ("cannot be read", lambda h: h.change_body(h.live()[0], lambda address, _: (address, b"\x93\xc1"))),
    ("of the undo log of block .* cannot be read", lambda h: h.put(UNDO, datums(h)[0], seal(1, b"\xc1"))),
    ("spender has no entry for transac", lambda h: h.drop_entry("spender", last_number(h, "spender"))),
    ("txid has no entry for transac", lambda h: h.drop_entry("txid", h.stored.tx_of(h.live()[-1]).number)),
    ("entries, but its list", lambda h: h.delete(RUN, next(h.entries("stake_credential"))[0])),
    ("part 0 of the filter of run", lambda h: h.delete(FILTER, UNDO_KEY.pack(h.manifest("txid").runs[0].id, 0))),
    ("part 0 of the filter of run", lambda h: h.put(FILTER, UNDO_KEY.pack(h.manifest("txid").runs[0].id, 0), seal(0))),
    ("run 9999 has a filter, but", lambda h: h.put(FILTER, UNDO_KEY.pack(9999, 0), seal(1, bytes(8)))),
    (r"block \d+ spent \d+ outputs, but its undo log", spends(1, lambda found: found[1:])),
    ("the spends are not in order", spends(1, lambda found: found[::-1])),
    ("was spent, but is unspent", spend(0, "number", lambda h: h.live()[0])),
    ("was spent twice", spend(-1, "number", lambda h: int(h.spends()[0][1]["number"][0]))),
    ("which is not in this block", spend(-1, "spender", lambda _: 5000)),
    ("before it was created", spend(0, "number", lambda h: h.state.next_number - 1)),
    (
        "has a wrong entry for",
        entry("address_hash", lambda h: h.live()[0], set_field("prefix", lambda prefix, _: prefix + 1)),
    ),
    ("txid has no entry for transac", entry("txid", first_live_tx, set_field("check", lambda check, _: check ^ 1))),
    (
        "where outputs of another",
        entry(
            "txid", lambda h: h.stored.tx_of(inside_a_tx(h)).number, set_field("number", lambda _, h: inside_a_tx(h))
        ),
    ),
    (
        "its entries are not in order",
        entry("address_hash", lambda h: h.live()[0], lambda entries, at, _: np.insert(entries, at, entries[at])),
    ),
    ("block 70 has no undo log", lambda h: [h.delete(UNDO, key) for key, _ in undo_rows(h, lambda b, _: b == 70)]),
    (
        "part 0 of the undo log of block",
        lambda h: h.delete(UNDO, undo_rows(h, lambda _, part: 0 < part < DATUMS)[0][0][:4] + bytes(4)),
    ),
    (
        r"part 2147483648 of the undo log of block \d+ was written for block",
        lambda h: move_datums(h, lambda _: UNDO_KEY.pack(70, DATUMS)),
    ),
    ("next part is 2147483649", lambda h: move_datums(h, lambda b: UNDO_KEY.pack(b, DATUMS + 1))),
    ("part 0 of the undo log of block .* is missing; the next part is 2147483648", all_but_datums_left_out),
    ("has 1 datums, not 2", a_datum_left_out),
    (
        "has a datum that does not match its",
        change_extra(lambda extra: msgspec.structs.replace(extra, datum=b"another")),
    ),
    ("but its transaction did not fail", change_extra(lambda _: Extra(is_collateral_return=True))),
    (
        r"the filter of run \d+ excludes entry [0-9a-f]{16}",
        change_first(FILTER, lambda raw: seal((n := count_of(raw)), bytes(8 * n))),
    ),
    ("run 9999 has values, but no index lists it", a_run_of_no_index),
    ("the list of runs of address_hash cannot be read", lambda h: h.put(META, b"runs:address_hash", resealed(EMPTY))),
    ("0 outputs are unspent, but the state", lambda h: [h.delete(LIVE, key) for key, _ in h.rows(LIVE)]),
]
MMR: list[Case] = [  # of a store with one
    (r"the leaf of output \d+ is not the hash of its record", node(live_leaf, removed=False)),
    (r"node \d+ of the mountain range is not the hash of its", node(parent, removed=False)),
    *(
        (r"node \d+ of the mountain range is missing, but", node(which, removed=True))
        for which in (live_leaf, parent, peak, dead_sibling)
    ),
    (r"node \d+ of the mountain range is missing, but", lambda h: h.delete(NODE, h.rows(NODE)[1][0])),
    ("nodes, expe", change_first(NODE, lambda raw: seal(count_of(raw) - 1, raw[8:-32]), -1)),
    ("has a wrong length", change_first(NODE, lambda raw: seal(count_of(raw), raw[8:-16]))),
    ("a value for the nodes from 100 on", lambda h: h.put(NODE, (100).to_bytes(8, "big"), seal(1, bytes(32)))),
    ("the nodes over the unspent bits from node 0", change_first(BIT_NODE, lambda raw: seal(1, bytes(32)))),
    ("has 2 nodes, expected 1", change_first(BIT_NODE, lambda raw: seal(2, raw[8:] * 2))),
    ("the kind of the store is b'mmx'", lambda h: h.put(META, b"store", seal_bytes(b"mmx"))),
    ("next node to examine for deletion has 7 bytes", lambda h: h.put(META, THIN_AT, seal_bytes(bytes(7)))),
]
AT_START: list[Case] = [  # also found before a service opens the store
    ("the last block is 70, but the tip is", in_state(lambda s: {"tip": s.tip + 1})),
    ("block 62 has an undo log, but", in_state(lambda s: {"floor": s.floor + 1})),
    ("block 61 (has no undo log|has .* records of)", in_state(lambda s: {"floor": s.floor - 1})),
    ("the rollback floor, 71, is not between", in_state(lambda s: {"floor": s.tip + 1})),
    ("the last block ends at number", in_state(lambda s: {"next_number": s.next_number + 1})),
    ("the state counts", in_state(lambda _: {"next_number": 1 << 63})),
    ("and the last run, 1$", in_state(lambda _: {"next_run": 1})),
    *(("the state cannot be read: it has", with_fields(left)) for left in range(1, len(State.__struct_fields__))),
    ("utxo_meta has an unknown row, b'what'", lambda h: h.put(META, b"what", b"1")),
    ("block 71 has an undo log, but", lambda h: h.put(UNDO, UNDO_KEY.pack(71, 0), seal(0))),
    ("block 70 spent .* outputs, but its undo log has 2", spends(-1, lambda found: found[1:])),
    ("the last block is 71, but the tip is", an_empty_block_too_many),
    ("block 70 cannot be read", lambda h: h.put(BLOCK, U32.pack(70), resealed(EMPTY))),
    ("the state does not have the checksum", lambda h: h.put(META, STATE, EMPTY)),
    ("the state cannot be read", lambda h: h.put(META, STATE, resealed(EMPTY))),
    ("the state cannot be read", lambda h: h.put(META, STATE, resealed(b"\x80"))),
]


def an_output_too_many(hand: Hand) -> None:
    kept = {int(n) for _, records, _ in hand.records(OUTPUT) for n in records["number"]}
    for key, records, heap in reversed(list(hand.records(OUTPUT))):
        extra = int(records["number"][-1]) + 1
        if extra < hand.state.next_number and extra not in kept:
            more = np.array([(extra, 0, 0, 0)], OUTPUT_RECORD)
            return hand.replace(OUTPUT, key, np.concatenate((records, more)), heap)
    raise AssertionError("every number has an output")


def entries_out_of_order(hand: Hand) -> None:
    key, entries = next((key, entries) for key, entries in hand.entries("address_hash") if len(entries) > 2)
    hand.put(RUN, key, seal(len(entries), entries[[0, 2, 1, *range(3, len(entries))]].tobytes()))


def a_value_under_another_key(hand: Hand) -> None:
    key, entries = next(hand.entries("address_hash"))
    hand.delete(RUN, key)
    run, prefix, number = runs.KEY.unpack(key)
    hand.put(RUN, runs.KEY.pack(run, prefix - 1, number), seal(len(entries), entries.tobytes()))


def a_merge_has_lost_an_entry(hand: Hand) -> None:
    merge = longest(hand.manifest("address_hash"))
    for key, entries in hand.entries("address_hash", merge.id):
        for at in np.flatnonzero(hand.stored.revivable(entries["number"]))[:1]:
            hand.put_entries(key, np.delete(entries, at))
            return hand.recount("address_hash", merge.id, -1)
    raise AssertionError("the merge has not begun")


def not_found_by(kind: str) -> Damage:
    def damage(hand: Hand) -> None:
        for _, entries in hand.entries(kind):
            if len(entries) > 1 and (kept := hand.stored.revivable(entries["number"])).any():
                return hand.drop_entry(kind, int(entries["number"][kept][0]))
        raise AssertionError(f"{kind} finds nothing")

    return damage


CASES += [
    (r"block \d+ created \d+ outputs, but has records of", an_output_too_many),
    ("its entries are not in order", entries_out_of_order),
    ("first entry of .* is another", a_value_under_another_key),
    ("the merge of address_hash has written entries that", a_merge_has_lost_an_entry),
    *(
        (f"index {kind} has no entry for output", not_found_by(kind))
        for kind in ("address_hash", "payment_credential", "stake_credential", "policy", "asset")
    ),
]
for table in (*CHAIN_TABLES, *MMR_TABLES):
    mine = MMR_AT_START if table in MMR_TABLES else AT_START
    mine.append(("checksum", change_first(table, lambda raw: raw[:-5] + bytes([raw[-5] ^ 1]) + raw[-4:], -1)))
    mine.append(("checksum", change_first(table, lambda raw: raw[:3])))
    (MMR if table in MMR_TABLES else CASES).append((f"{table} has a key of 3 bytes", put_first(table, b"\0\0\1")))
for table in MMR_TABLES:
    MMR_AT_START.append((r"proofs need it|not the hashes of their", drop_last(table)))
    MMR_AT_START.append(
        (f"{table} has a value for the nodes from 7340032 on", put_first(table, (7 << 20).to_bytes(8, "big")))
    )
for table, finding in (
    (TX, "999 records"),
    (OUTPUT, "999 records"),
    (UNDO, "999 spends"),
    (RUN, "999 entries"),
    (FILTER, "999 words"),
):
    CASES.append((f"not the length of {finding}", change_first(table, lambda raw: seal(999, raw[HEAD_BYTES:]))))


def on_copies(**named: list[Case]) -> pytest.MarkDecorator:
    """Run a test for each of these cases, on a copy of the kind of store that each list is for."""
    each = [(kind, *case) for kind, listed in named.items() for case in listed]
    ids = [f"{kind}-{finding}" for kind, finding, _ in each]
    return pytest.mark.parametrize(("copy", "finding", "damage"), each, indirect=["copy"], ids=ids)


@on_copies(classic=CASES + AT_START, mmr=MMR + MMR_AT_START)
def test_each_rule_is_named(finding: str, damage: Damage, copy: Path) -> None:
    harm(copy, damage)
    found = findings(copy)
    assert any(re.search(finding, each) for each in found), found
    assert not [each for each in found if "cannot be read to the" in each], found


@on_copies(classic=AT_START, mmr=AT_START + MMR_AT_START)
def test_some_damage_is_refused_before_a_service_opens_the_store(finding: str, damage: Damage, copy: Path) -> None:
    harm(copy, damage)
    with pytest.raises(Damaged):
        precheck(copy, TABLES)


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
def test_undo_logs_are_tried_on_a_copy(
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
    assert found and all(each.startswith(f"after rolling blocks back to {floor}: ") for each in found)
    assert went == [*range(tip - 1, floor - 1, -1)]
    assert any("the unspent outputs differ from" in each for each in found) == (wrong is one_bit_less), found


def test_a_filter_that_lost_a_write_is_noticed_before_anything_is_written(copy: Path) -> None:
    """It would hide transactions, whose outputs would be unspendable."""

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
    random, rows = Random(7), dict[tuple[str, bytes], bytes]()
    with opened(copy) as disk:
        with disk.read() as txn:
            for table in (META, *CHAIN_TABLES, *(MMR_TABLES if NODE in disk.tables else ())):
                found = txn.cursor(disk.tables[table])
                rows |= {(table, key): value for key, value in found if key != b"format"}
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
    for key, value in rows.items():
        txn.delete(key, db=table) if value is None else txn.put(key, value, db=table)
