"""A history gives the answers of a classic store that was told the same chain, byte for byte, whatever became of it."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from hashlib import sha256
from pathlib import Path
from random import Random
from typing import Any

import msgspec
import pytest
from chains import (
    ADDRESSES,
    CODEC,
    Options,
    back_to,
    block,
    credential,
    feed,
    open_chain,
    output,
    prune_all,
    random_chain,
    random_genesis,
    tx,
    wallet,
)
from daemons import ROOT
from houses import small_values

import storage.history.store
from handlers.chain import Chain
from handlers.changes import Changes
from handlers.deltas import Form, InCbor, InJson, NoDelta, find
from handlers.events import BlockApplied
from handlers.query import BadCursor, CursorGone, NoIndex, Order, Query, Snapshot
from handlers.snapshot import Snapshot
from handlers.walk import PLACE
from storage.history.layout import State
from storage.history.stored_index import StoredIndex
from storage.indexes import TABLES
from storage.windows import Windows

POLICIES = [credential(f"policy {n}") for n in range(4)]
ORDERS: tuple[Order, ...] = ("asc", "desc")


def keys() -> list[tuple[str, bytes]]:
    """Return what outputs can be asked for by; addresses are the bytes themselves."""
    named = [credential(name) for name in ("ann", "bob", "cid", "script", "pool", "nobody")]
    return [
        *(("address_hash", address) for address in (*ADDRESSES, wallet("nobody"))),
        *(("payment_credential", key) for key in named),
        *(("stake_credential", key) for key in named),
        *(("policy", key) for key in POLICIES),
    ]


@contextmanager
def both(folder: Path, **options: Any) -> Iterator[tuple[Chain, Chain]]:
    with ExitStack() as stack:
        yield (
            stack.enter_context(open_chain(folder / "classic", **options)),
            stack.enter_context(open_chain(folder / "history", **options)),
        )


def asking(chain: Chain) -> Query:
    return Query(chain.store, CODEC, "cardano", 1 << 20)


def lists(shot: Snapshot, rng: Random, *, numbered: bool = True) -> Iterator[Any]:
    """Yield every list: by cursor, by page number, as JSON, CBOR and objects, of an asset, and its sum."""
    assets = [policy + bytes(length) for policy in POLICIES for length in range(3)]
    for index, key in keys():
        where = shot.by_address(key) if index == "address_hash" else shot.listed(index, key)
        for order in ORDERS:
            for asset in (None, *rng.sample(assets, 2)):
                count, cursor = rng.choice((2, 7, 1000)), None
                while True:
                    walk = shot.walk(where, order, cursor, asset)
                    for _ in walk.look(0, count):
                        pass
                    places, cursor = walk.take(count)
                    yield index, key, order, asset, shot.json(places), shot.cbor(places), cursor is None
                    yield shot.utxos(places)
                    if cursor is None:
                        break
            page = rng.randrange(1, 5) if numbered else 1
            found = shot.page(where, count := rng.choice((1, 2, 7, 1000)), order, page, None)
            yield index, key, order, count, page, found.utxos, found.next_cursor is None
        yield [msgspec.structs.astuple(total) for total in shot.balance(where)][-1]


def single(shot: Snapshot, told: list[BlockApplied]) -> Iterator[Any]:
    """Yield every output that was ever named, as an object and as a record."""
    for each in told:
        for made in each.txs:
            yield shot.of_transaction(made.txid)
            for index in range(len(made.outputs) + 2):
                entry = shot.find_entry(made.txid, index)
                yield made.txid, index, shot.find(made.txid, index), entry and shot.query.records.record(entry)


def done(shot: Snapshot, windows: Windows, told: list[BlockApplied]) -> Iterator[Any]:
    """Yield what blocks did, block by block, and since a point; below the floor they say so."""
    repeats = len({tx.txid for each in told for tx in each.txs}) < sum(len(each.txs) for each in told)
    for each in told:
        for named in (each.hash, each.height):
            for form in (InJson(shot), InCbor(shot)):
                made: Form[Any] = form
                try:
                    delta = find(shot, windows, named, made)
                except NoDelta as none:
                    yield none.code if isinstance(named, int) else "none"  # a history knows older hashes
                    continue
                for _ in delta.read():
                    pass
                if repeats:  # where what is replaced stands depends on the batch in a classic store
                    delta.spent.sort(key=repr)
                yield delta.size, delta.whole()
    changes, first = Changes(shot), shot.point(windows.floor(shot.state))
    if first is None:
        changes.since_origin()
    else:
        changes.since_block(first.height, first.hash)
    found, cursor = changes.page(7)
    while cursor is not None:
        changes.go_on(cursor)
        more, cursor = changes.page(7)
        found += more
    yield sorted(found, key=repr) if repeats else found


def compare(chains: tuple[Chain, Chain], told: list[BlockApplied], seed: int, *, numbered: bool = True) -> int:
    """Compare every answer; return how many there were."""
    classic, history = map(asking, chains)
    assert chains[0].state.tip == chains[1].state.tip == len(told)
    count = 0
    with classic.snapshot() as one, history.snapshot() as other:
        assert one.tip() == other.tip()
        assert one.state.unspent == other.state.unspent
        windows = chains[0].windows
        for mine, theirs in (
            (lists(one, Random(seed), numbered=numbered), lists(other, Random(seed), numbered=numbered)),
            (single(one, told), single(other, told)),
            (done(one, windows, told), done(other, windows, told)),
        ):
            for here, there in zip(mine, theirs, strict=True):
                assert here == there
                count += 1
    return count


@pytest.fixture(params=["large values", "small values"])
def sizes(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    if request.param == "small values":
        small_values(monkeypatch)


WINDOWS: list[Options] = [
    {"prune_depth": 9, "rollback_window": 9},
    {"prune_depth": 3, "rollback_window": 9},
    {"prune_depth": 20, "rollback_window": 4},
]


def names_what_it_replaces(block: BlockApplied) -> bool:
    """Return whether a block spends from a transaction whose id it uses again later.

    NOTE: a classic store takes such an input for one of the later transaction's outputs, and so for missing; a history
    spends what was there. No sound chain has such a block.
    """
    ids = [made.txid for made in block.txs]
    named = ((n, txid) for n, made in enumerate(block.txs) for txid, _ in (*made.inputs, *made.collateral))
    return any(txid in ids[n:] for n, txid in named)


@pytest.mark.parametrize(("seed", "windows"), [*enumerate([*WINDOWS, WINDOWS[0]])])
@pytest.mark.usefixtures("sizes")
def test_answers_are_those_of_a_classic_store(tmp_path: Path, seed: int, windows: Options) -> None:
    """Blocks come one by one and in batches, are taken back, and are pruned; transaction ids come again."""
    rng, told, counted, returns = Random(seed), list[BlockApplied](), 0, 0
    with both(tmp_path, **windows) as chains:
        genesis = random_genesis(rng)
        for chain in chains:
            chain.seed(genesis)
        while returns < 2 or len(told) < 15:
            more = random_chain(rng, rng.randrange(1, 6), after=told, repeats=bool(seed))
            if any(map(names_what_it_replaces, more)):
                continue
            for chain in chains:
                feed(chain, *more)
            told += more
            if rng.random() < 0.4:
                for chain in chains:
                    prune_all(chain)
            counted += compare(chains, told, rng.randrange(100))
            floor = max(chain.windows.floor(chain.state) for chain in chains)
            if rng.random() < 0.4 and max(floor, 1) < len(told):
                kept = rng.randrange(max(floor, 1), len(told))
                for chain in chains:
                    chain.rollback(back_to(told[kept - 1]))
                told, returns = told[:kept], returns + 1
                counted += compare(chains, told, rng.randrange(100))
    assert counted > 1000 and returns


@pytest.mark.usefixtures("sizes")
def test_answers_after_blocks_far_below_the_tip(tmp_path: Path) -> None:
    """What was born and died in a batch left nothing; then blocks come as they do at the tip."""
    rng = Random(5)
    told = random_chain(rng, 40, repeats=False)
    with both(tmp_path, prune_depth=5, rollback_window=5) as chains:
        at = 0
        while at < 30:
            count = rng.randrange(1, 8)
            for chain in chains:
                feed(chain, *told[at : at + count], network_height=1000)
            at += count
            assert compare(chains, told[:at], at) > 100
        for chain in chains:
            feed(chain, *told[at:])
        assert compare(chains, told, 1) > 100


def test_keys_that_share_a_prefix_are_told_apart(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Here all keys do: every index lists every output, and each is verified by what it holds."""
    monkeypatch.setattr(storage.history.store, "new_state", lambda: State([0, 0, 0, 0]))
    small_values(monkeypatch)
    told = random_chain(Random(3), 14)
    with both(tmp_path) as chains:
        for chain in chains:
            feed(chain, *told[:9])
            feed(chain, *told[9:])
        assert compare(chains, told, 3, numbered=False) > 500


# --- what only a history lists -------------------------------------------------------------------------------------


@pytest.mark.usefixtures("sizes")
def test_lists_by_asset_datum_and_script(tmp_path: Path) -> None:
    """Each list is what a look at all live outputs finds; hashes are derived where only the whole thing was given."""
    names = ("asset", "datum", "script")
    told = random_chain(Random(9), 40)
    held = [(policy, bytes(length), 1) for policy in POLICIES for length in range(3)]
    rich = [output("ann", inline_datum=b"d", script_ref=bytes.fromhex("82014100"))]
    rich += [output(name, assets=held[n::step]) for step in (1, 2, 5) for n, name in enumerate(("ann", "bob", "ann"))]
    told.append(block(told[-1], tx("rich", *rich)))
    with (
        open_chain(tmp_path / "few") as one,
        open_chain(tmp_path / "all", indexes=[*TABLES, *names]) as other,
    ):
        for each in told:
            feed(one, each)
            feed(other, each)
        with asking(one).snapshot() as few, asking(other).snapshot() as shot:
            wanted: dict[tuple[str, bytes], set[tuple[str, int]]] = {}
            for owner in ADDRESSES:
                for utxo in few.page(few.by_address(owner), 1000, "asc", 1, None).utxos:
                    keys = [("asset", sha256(bytes.fromhex(amount.unit)).digest()) for amount in utxo.amounts[1:]]
                    hashes = {"datum": utxo.data_hash, "script": utxo.reference_script_hash}
                    keys += [(name, bytes.fromhex(text)) for name, text in hashes.items() if text]
                    for key in keys:
                        wanted.setdefault(key, set()).add((utxo.tx_hash, utxo.output_index))
            for (index, wish), points in wanted.items():
                found = shot.page(shot.listed(index, wish), 1000, "asc", 1, None).utxos
                assert {(utxo.tx_hash, utxo.output_index) for utxo in found} == points and len(found) == len(points)
                assert [utxo.block for utxo in found] == sorted(utxo.block for utxo in found)
                assert shot.page(shot.listed(index, wish), 1000, "desc", 1, None).utxos == found[::-1]
                with pytest.raises(NoIndex, match=index):
                    few.listed(index, wish)
            assert {index for index, _ in wanted} == set(names) and len(wanted) > 8
            for here, there in zip(lists(few, Random(1)), lists(shot, Random(1)), strict=True):
                assert here == there


# --- long lists ----------------------------------------------------------------------------------------------------

MANY = 30_000


@pytest.fixture(scope="module")
def crowd(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Chain]:
    """An address with many outputs; every third of them is spent, and a long stretch wholly."""
    with open_chain(tmp_path_factory.mktemp("crowd"), durable=False) as chain:
        made = [block(None, tx("0", *(output("ann", n) for n in range(MANY // 3))))]
        for number in (1, 2):
            paid = (output("ann", n) for n in range(number * MANY // 3, (number + 1) * MANY // 3))
            made.append(block(made[-1], tx(f"{number}", *paid)))
        feed(chain, *made)
        dead = [n for n in range(MANY) if n % 3 == 0 or MANY // 3 <= n < MANY // 3 * 2]
        spends = [(made[n // (MANY // 3)].txs[0].txid, n % (MANY // 3)) for n in dead]
        feed(chain, block(made[-1], tx("spend", output("bob"), spends=spends)))
        yield chain


LIVE = [n for n in range(MANY) if n % 3 and not MANY // 3 <= n < MANY // 3 * 2]


class Reads:
    """How many outputs were read, and how many parts of an index were looked at."""

    def __init__(self, shot: Snapshot, monkeypatch: pytest.MonkeyPatch) -> None:
        assert isinstance(shot, Snapshot)
        self.outputs = self.parts = 0
        bodies, of = shot.stored.bodies, StoredIndex._of

        def counted(numbers: Any) -> Any:
            self.outputs += len(numbers)
            return bodies(numbers)

        def counted_part(index: StoredIndex, value: bytes, prefix: int) -> Any:
            self.parts += 1
            return of(index, value, prefix)

        monkeypatch.setattr(shot.stored, "bodies", counted)
        monkeypatch.setattr(StoredIndex, "_of", counted_part)


@pytest.mark.parametrize("order", ORDERS)
def test_the_first_page_of_a_long_list_reads_a_page(
    crowd: Chain, monkeypatch: pytest.MonkeyPatch, order: Order
) -> None:
    with asking(crowd).snapshot() as shot:
        reads = Reads(shot, monkeypatch)
        page = shot.page(shot.by_address(wallet("ann")), 25, order, 1, None)
        wanted = LIVE[:25] if order == "asc" else LIVE[:-26:-1]
        assert [utxo.lovelace_amount for utxo in page.utxos] == wanted
        assert reads.outputs == 26 and reads.parts <= 2


@pytest.mark.parametrize("order", ORDERS)
def test_a_page_by_number_passes_by_in_bulk(crowd: Chain, monkeypatch: pytest.MonkeyPatch, order: Order) -> None:
    values = LIVE if order == "asc" else LIVE[::-1]
    with asking(crowd).snapshot() as shot:
        reads = Reads(shot, monkeypatch)
        for page in (2, 100, 267, len(LIVE) // 25, len(LIVE) // 25 + 1, len(LIVE) // 25 + 2, 1 << 32):
            found = shot.page(shot.by_address(wallet("ann")), 25, order, page, None)
            wanted = values[(page - 1) * 25 : page * 25]
            assert [utxo.lovelace_amount for utxo in found.utxos] == wanted
            assert (found.next_cursor is None) == (page * 25 >= len(LIVE))
        assert reads.outputs <= 26 * 7 and reads.parts < 7 * MANY // 900


@pytest.mark.parametrize("order", ORDERS)
def test_a_cursor_goes_on_over_dead_entries(crowd: Chain, monkeypatch: pytest.MonkeyPatch, order: Order) -> None:
    """The stretch in the middle is passed over by its bits, with turns for others, and nothing of it is read."""
    values = LIVE if order == "asc" else LIVE[::-1]
    monkeypatch.setattr("handlers.history_walk._PARTS", 2)
    with asking(crowd).snapshot() as shot:
        where = shot.by_address(wallet("ann"))
        middle = len(LIVE) // 2
        walk = shot.walk(where, order, None)
        for _ in walk.look(middle - 10, 5):
            pass
        places, cursor = walk.take(5)
        assert [utxo.lovelace_amount for utxo in shot.utxos(places)] == values[middle - 10 : middle - 5]
        reads = Reads(shot, monkeypatch)
        walk = shot.walk(where, order, cursor)
        turns = sum(1 for _ in walk.look(0, 25))
        places, _ = walk.take(25)
        assert [utxo.lovelace_amount for utxo in shot.utxos(places)] == values[middle - 5 : middle + 20]
        assert turns >= 3 and reads.outputs <= 26


def test_a_sum_over_dead_entries(crowd: Chain) -> None:
    with asking(crowd).snapshot() as shot:
        *_, total = shot.balance(shot.by_address(wallet("ann")))
    assert (total.count, total.value) == (len(LIVE), sum(LIVE))


def test_lists_of_other_things_have_places_of_their_own(tmp_path: Path) -> None:
    with open_chain(tmp_path) as chain:
        feed(chain, first := block(None), block(first))
        with asking(chain).snapshot() as shot:
            cursor = shot.cut(bytes(PLACE), b"jobs", "desc")
            assert shot.read_cut(cursor, b"jobs", "desc", PLACE) == bytes(PLACE)
            with pytest.raises(BadCursor):
                shot.read_cut(cursor, b"jobs", "desc")
            chain.rollback(back_to(first))
        with asking(chain).snapshot() as shot, pytest.raises(CursorGone):
            shot.read_cut(cursor, b"jobs", "desc", PLACE)


def test_questions_to_a_classic_store_do_without_numpy() -> None:
    """Its import takes longer than most of them."""
    modules = "daemon.commands.lookup, daemon.commands.status, daemon.http.worker"
    script = f"import sys, {modules}; print('numpy' in sys.modules)"
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, cwd=ROOT, check=True)
    assert done.stdout == "False\n"
