"""Every list, sum and output that a query finds is what the model has, after any history of the chain."""

from __future__ import annotations

from collections.abc import Iterator
from hashlib import sha256
from pathlib import Path
from random import Random
from typing import Any, NamedTuple

import cbor2
import msgspec
import pytest
from chains import (
    ADDRESSES,
    INDEXES,
    Options,
    address,
    back_to,
    block,
    credential,
    feed,
    open_chain,
    output,
    prune_all,
    query_of,
    random_chain,
    random_genesis,
    tx,
    wallet,
)
from mmr_reference import leaf
from model import Coin, Model, made
from stores import small_values

import storage.history.store
from handlers.chain import Chain
from handlers.cursors import BadCursor
from handlers.events import OutPoint
from handlers.query import CursorGone, NoIndex, Order, Query, Snapshot
from handlers.walk import HIGHEST, PLACE
from storage.history.layout import State
from storage.history.stored_index import StoredIndex

POLICIES = [credential(f"policy {n}") for n in range(4)]
ORDERS: tuple[Order, ...] = ("asc", "desc")
OLD = ("address_hash", "payment_credential", "stake_credential", "policy")  # what the model finds outputs by
Held = tuple[OutPoint, Coin]


def keys() -> list[tuple[str, bytes]]:
    named = [credential(name) for name in ("ann", "bob", "cid", "script", "pool", "nobody")]
    return [
        *(("address_hash", address) for address in (*ADDRESSES, wallet("nobody"))),
        *(("payment_credential", key) for key in named),
        *(("stake_credential", key) for key in named),
        *(("policy", key) for key in POLICIES),
    ]


class Expected:
    def __init__(self, model: Model) -> None:
        self.model, self.coins = model, model.stored.coins
        self.found = {index: model.found(index) for index in OLD}

    def listed(self, index: str, key: bytes, order: Order, asset: bytes | None) -> list[Held]:
        held = [(point, self.coins[point]) for point in self.found[index].get(key, [])]
        if asset is not None:
            held = [each for each in held if any(p + name == asset for p, name, _ in each[1].output.assets)]
        return held if order == "asc" else held[::-1]

    def leaf(self, held: Held) -> Any:
        return cbor2.loads(leaf(*held, self.model.moments[held[1].place[0]]))


def lists(shot: Snapshot, known: Expected, rng: Random, *, numbered: bool = True) -> int:
    """Compare every list, by cursor, by page number and of an asset, and its sum; return how many outputs they had."""
    assets, seen = [policy + bytes(length) for policy in POLICIES for length in range(3)], 0
    for index, key in keys():
        where = shot.by_address(key) if index == "address_hash" else shot.listed(index, key)
        for order in ORDERS:
            for asset in (None, *rng.sample(assets, 2)):
                wanted, count, cursor = known.listed(index, key, order, asset), rng.choice((2, 7, 1000)), None
                seen += len(wanted)
                while True:
                    walk = shot.walk(where, order, cursor, asset)
                    for _ in walk.search(0, count):
                        pass
                    places, cursor = walk.take(count)
                    some, wanted = wanted[:count], wanted[count:]
                    assert cbor2.loads(shot.cbor(places)) == [known.leaf(each) for each in some]
                    assert shot.json(places) == msgspec.json.encode(shot.utxos(places))
                    assert (cursor is None) == (not wanted)
                    if cursor is None:
                        break
            if numbered:
                wanted, count, page = known.listed(index, key, order, None), rng.choice((1, 2, 7)), rng.randrange(1, 5)
                found = shot.page(where, count, order, page, None)
                end = page * count
                assert [(bytes.fromhex(utxo.tx_hash), utxo.output_index) for utxo in found.utxos] == [
                    point for point, _ in wanted[end - count : end]
                ]
                assert (found.next_cursor is None) == (len(wanted) <= end)
        *_, total = shot.balance(where)
        wanted = known.listed(index, key, "asc", None)
        sums: dict[tuple[bytes, bytes], int] = {}
        for _, coin in wanted:
            for policy, name, quantity in coin.output.assets:
                sums[policy, name] = sums.get((policy, name), 0) + quantity
        value = sum(coin.output.value for _, coin in wanted)
        assert (total.count, total.value, total.assets) == (len(wanted), value, sums)
    return seen


class Fate(NamedTuple):
    coin: Coin
    spender: bytes | None = None
    ordinal: int = 0


def fates(model: Model) -> dict[OutPoint, Fate]:
    found = {point: Fate(coin) for point, coin in model.moments[0].coins.items()}
    for ordinal, moment in enumerate(model.moments[1 : model.committed + 1], start=1):
        assert moment.block is not None
        for number, each in enumerate(moment.block.txs):
            for point in each.inputs if each.valid else each.collateral:
                if point in found and found[point].spender is None:
                    found[point] = Fate(found[point].coin, each.txid, ordinal)
            found = {point: fate for point, fate in found.items() if point[0] != each.txid}
            found |= {(each.txid, index): Fate(coin) for index, coin in made(each, ordinal, number)}
    return found


def single(shot: Snapshot, known: Expected) -> int:
    """Compare every output that was ever created; return how many spent ones are still answered for."""
    model, spent, by_tx = known.model, 0, dict[bytes, int]()
    for point, (coin, spender, ordinal) in fates(model).items():
        entry, utxo = shot.find_entry(*point), shot.find(*point)
        if spender is not None and ordinal <= shot.state.floor:
            assert entry is None and utxo is None
            continue
        assert entry is not None and utxo is not None
        record, by_tx[point[0]] = cbor2.loads(shot.query.records.record(entry)), by_tx.get(point[0], 0) + 1
        if spender is None:
            assert record == known.leaf((point, coin))[1] and utxo.spent_tx_hash is msgspec.UNSET
        else:
            at, by = model.moments[ordinal].point, model.moments[ordinal].block
            assert at is not None and by is not None and utxo.spent_tx_hash == spender.hex()
            assert (utxo.spent_block_time, utxo.spent_epoch) == (by.time, by.epoch)
            assert record[6] == known.leaf((point, coin))[1]
            assert (record[0], record[2], record[3]) == (spender, at.height, at.hash)
            spent += 1
    for txid in model.used():
        assert len(shot.of_transaction(txid)) == by_tx.get(txid, 0)
        assert shot.find(txid, 1000) is None
    return spent


def compare(query: Query, model: Model, seed: int, *, numbered: bool = True) -> tuple[int, int]:
    with query.snapshot() as shot:
        assert shot.state.tip == model.committed
        assert (shot.tip(), shot.state.unspent) == (model.stored.point, len(model.stored.coins))
        known = Expected(model)
        return lists(shot, known, Random(seed), numbered=numbered), single(shot, known)


@pytest.fixture(params=["large values", "small values"])
def sizes(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    if request.param == "small values":
        small_values(monkeypatch)
        monkeypatch.setattr("handlers.walk.LEAST", 2)
        kept = {"kept._TX_VALUES": 6, "kept._OUTPUT_VALUES": 6, "held._SLOTS": 16, "bits.StoredBits._KEPT": 1}
        for name, count in (kept | {"stored_index._MASKS": 20, "stored_index._PARTS": 5}).items():
            monkeypatch.setattr(f"storage.history.{name}", count)


WINDOWS: list[Options] = [
    {"prune_depth": 9, "rollback_window": 9},
    {"prune_depth": 3, "rollback_window": 9},
    {"prune_depth": 20, "rollback_window": 4},
]


@pytest.mark.parametrize(("seed", "windows"), [*enumerate(WINDOWS)])
@pytest.mark.usefixtures("sizes")
def test_answers_are_those_of_the_model(tmp_path: Path, seed: int, windows: Options) -> None:
    rng, model, listed, spent, returns = Random(seed), Model(), 0, 0, 0
    with open_chain(tmp_path, **windows) as chain:
        genesis = random_genesis(rng)
        chain.seed(genesis)
        model.seed(genesis)
        query = query_of(chain)  # what it keeps has to stay true

        def pages(shot: Snapshot) -> list[bytes]:
            walks = [shot.walk(shot.by_address(owner), order, None) for owner in ADDRESSES for order in ORDERS]
            return [shot.json(walk.take(1000)[0]) for walk in walks]

        while returns < 3 or model.committed < 22:
            with query.snapshot() as earlier:
                before = pages(earlier)
                known = [moment.block for moment in model.moments[1:] if moment.block]
                more = random_chain(rng, rng.randrange(1, 6), after=known, repeats=bool(seed))
                feed(chain, *more)
                for each in more:
                    model.apply(each)
                model.commit()
                if rng.random() < 0.4:
                    prune_all(chain)
                counts = [compare(query, model, rng.randrange(100))]
                lowest = max(chain.windows.floor(chain.state), 1)
                if rng.random() < 0.4 and lowest < model.committed:
                    kept = rng.randrange(lowest, model.committed)
                    block = model.moments[kept].block
                    assert block is not None
                    chain.rollback(back_to(block))
                    model.rollback(kept)
                    returns += 1
                    counts.append(compare(query, model, rng.randrange(100)))
                assert pages(earlier) == before
            listed, spent = listed + sum(n for n, _ in counts), spent + sum(n for _, n in counts)
    assert listed > 200 and spent > 20


@pytest.mark.usefixtures("sizes")
def test_answers_after_blocks_far_below_the_tip(tmp_path: Path) -> None:
    rng, model, total = Random(5), Model(), 0
    known = random_chain(rng, 40, repeats=False)
    with open_chain(tmp_path, prune_depth=5, rollback_window=5) as chain:
        while model.committed < 40:
            some = known[model.committed :][: rng.randrange(1, 8)]
            feed(chain, *some, network_height=1000 if model.committed < 30 else None)
            for each in some:
                model.apply(each)
            model.commit()
            listed, spent = compare(query_of(chain), model, model.committed)
            assert model.committed > 30 or spent == 0
            total += listed
    assert total > 100 and spent > 0


def test_keys_that_share_a_prefix_are_distinguished(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(storage.history.store, "new_state", lambda: State([0, 0, 0, 0]))
    small_values(monkeypatch)
    known, model = random_chain(Random(3), 14), Model()
    with open_chain(tmp_path) as chain:
        for some in (known[:9], known[9:]):
            feed(chain, *some)
            for each in some:
                model.apply(each)
        model.commit()
        listed, spent = compare(query_of(chain), model, 3, numbered=False)
        assert listed > 20 and spent > 10


@pytest.mark.usefixtures("sizes")
def test_lists_by_asset_datum_and_script(tmp_path: Path) -> None:
    known, model = random_chain(Random(9), 40), Model()
    held = [(policy, bytes(length), 1) for policy in POLICIES for length in range(3)]
    rich = [output(name, assets=held[n::step]) for step in (1, 2, 5) for n, name in enumerate(("ann", "bob", "ann"))]
    known.append(block(known[-1], tx("rich", *rich)))
    derived = output("ann", inline_datum=b"d", script_ref=bytes.fromhex("82014100"))
    with open_chain(tmp_path / "few", indexes=OLD) as one, open_chain(tmp_path / "all") as other:
        for each in known:
            feed(one, each)
            feed(other, each)
            model.apply(each)
        model.commit()
        for chain in (one, other):  # those that hold an asset are found by its policy, and by itself
            with query_of(chain).snapshot() as shot:
                assert lists(shot, Expected(model), Random(1)) > 100
            feed(chain, block(known[-1], tx("derived", derived)))
        with query_of(one).snapshot() as few, query_of(other).snapshot() as shot:
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
            assert {index for index, _ in wanted} == {*INDEXES} - {*OLD} and len(wanted) > 8


MANY = 30_000


@pytest.fixture(scope="module")
def crowd(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Chain]:
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
        self.outputs = self.parts = 0
        bodies = shot.stored.bodies

        def counted(numbers: Any) -> Any:
            self.outputs += len(numbers)
            return bodies(numbers)

        def counted_parts(function: Any) -> Any:
            def call(*args: Any) -> Any:
                self.parts += 1
                return function(*args)

            return call

        monkeypatch.setattr(shot.stored, "bodies", counted)
        for name in ("_of", "_entries_at"):
            monkeypatch.setattr(StoredIndex, name, counted_parts(getattr(StoredIndex, name)))


@pytest.mark.parametrize("order", ORDERS)
def test_a_page_reads_its_outputs_only(crowd: Chain, monkeypatch: pytest.MonkeyPatch, order: Order) -> None:
    """The first page reads one or two parts of the index; a later one by number skips the parts before it."""
    values, last = LIVE if order == "asc" else LIVE[::-1], len(LIVE) // 25
    with query_of(crowd).snapshot() as shot:
        reads = Reads(shot, monkeypatch)
        for page in (1, 2, 100, last, last + 1, last + 2, 1 << 32):
            found = shot.page(shot.by_address(wallet("ann")), 25, order, page, None)
            assert [utxo.lovelace_amount for utxo in found.utxos] == values[(page - 1) * 25 : page * 25]
            assert (found.next_cursor is None) == (page * 25 >= len(LIVE))
            assert page > 1 or (reads.outputs == 26 and reads.parts <= 2)
        assert reads.outputs <= 26 * 7 and reads.parts < 7 * MANY // 900


@pytest.mark.parametrize("order", ORDERS)
def test_a_cursor_continues_over_spent_entries(crowd: Chain, monkeypatch: pytest.MonkeyPatch, order: Order) -> None:
    values = LIVE if order == "asc" else LIVE[::-1]
    monkeypatch.setattr("handlers.walk._PARTS", 2)
    with query_of(crowd).snapshot() as shot:
        where = shot.by_address(wallet("ann"))
        middle = len(LIVE) // 2
        walk = shot.walk(where, order, None)
        for _ in walk.search(middle - 10, 5):
            pass
        places, cursor = walk.take(5)
        assert [utxo.lovelace_amount for utxo in shot.utxos(places)] == values[middle - 10 : middle - 5]
        reads = Reads(shot, monkeypatch)
        walk = shot.walk(where, order, cursor)
        turns = sum(1 for _ in walk.search(0, 25))
        places, _ = walk.take(25)
        assert [utxo.lovelace_amount for utxo in shot.utxos(places)] == values[middle - 5 : middle + 20]
        assert turns >= 3 and reads.outputs <= 26
        *_, total = shot.balance(where)
        assert (total.count, total.value) == (len(LIVE), sum(LIVE))


@pytest.mark.parametrize("order", ORDERS)
def test_spent_entries_are_scanned_once(crowd: Chain, monkeypatch: pytest.MonkeyPatch, order: Order) -> None:
    query, middle = query_of(crowd), len(LIVE) // 2

    def pages() -> list[int]:
        with query.snapshot() as shot:
            walk = shot.walk(shot.by_address(wallet("ann")), "asc", None)
            for _ in walk.search(middle - 10, 5):
                pass
            _, cursor = walk.take(5)
        with query.snapshot() as shot:
            reads = Reads(shot, monkeypatch)
            found = shot.page(shot.by_address(wallet("ann")), 25, "asc", 1, cursor)
            assert [utxo.lovelace_amount for utxo in found.utxos] == LIVE[middle - 5 : middle + 20]
            return [reads.parts, reads.outputs]

    with query.snapshot() as shot:
        shot.page(shot.by_address(wallet("ann")), 25, order, 1, None)
    assert pages()[0] > MANY // 3 // 1100
    assert pages()[0] <= 4


def test_a_cursor_above_every_output_hides_none_that_comes(tmp_path: Path) -> None:
    where = address(0, "ann", "pool")
    first = block(None, tx("a", *(output(where, n) for n in range(2000))))
    spend = block(first, tx("b", output("bob"), spends=[(first.txs[0].txid, n) for n in range(2000)]))
    with open_chain(tmp_path) as chain:
        feed(chain, first, spend)
        query = query_of(chain)
        with query.snapshot() as shot:
            listed = shot.by_address(where)
            cursor = shot.cut(PLACE.pack(HIGHEST), listed[1], "desc")
            assert shot.page(listed, 5, "desc", 1, cursor).utxos == []
        feed(chain, block(spend, tx("c", output(where, 7))))
        with query.snapshot() as shot:
            for order in ORDERS:
                assert [utxo.lovelace_amount for utxo in shot.page(listed, 5, order, 1, None).utxos] == [7]


def test_outputs_that_a_rollback_restores_are_found_again(tmp_path: Path) -> None:
    where = address(0, "ann", "pool")
    first = block(None, tx("a", *(output(where, n) for n in range(3000))))
    spend = block(first, tx("b", output(where, 9000), spends=[(first.txs[0].txid, n) for n in range(2999)]))

    def values(shot: Snapshot) -> list[int]:
        up, down = (shot.page(shot.by_address(where), 2, order, 1, None).utxos for order in ORDERS)
        *_, total = shot.balance(shot.by_address(where))
        return [utxo.lovelace_amount for utxo in (*up, *down)] + [total.count]

    with open_chain(tmp_path) as chain:
        feed(chain, first)
        query = query_of(chain)
        with query.snapshot() as older:
            feed(chain, spend)
            for _ in range(2):
                with query.snapshot() as shot:
                    assert values(shot) == [2999, 9000, 9000, 2999, 2]
            assert values(older) == [0, 1, 2999, 2998, 3000]
        feed(chain, block(spend, tx("c", *(output(where, 9001 + n) for n in range(2)))))
        with query.snapshot() as shot:
            assert values(shot) == [2999, 9000, 9002, 9001, 4]
        chain.rollback(back_to(first))
        with query.snapshot() as shot:
            assert values(shot) == [0, 1, 2999, 2998, 3000]
        feed(chain, block(first, salt="other"))
        with query.snapshot() as shot:
            assert values(shot) == [0, 1, 2999, 2998, 3000]


def test_a_cursor_of_another_list_or_branch_is_refused(tmp_path: Path) -> None:
    place, first = bytes(PLACE.size), block(None)
    second = block(first)
    with open_chain(tmp_path) as chain:
        with query_of(chain).snapshot() as shot:
            empty = shot.cut(place, b"key", "asc")
        feed(chain, first, second)
        with query_of(chain).snapshot() as shot:
            cursor = shot.cut(place, b"key", "desc")
            assert shot.read_cut(empty, b"key", "asc") == shot.read_cut(cursor, b"key", "desc") == place
            for wrong in (cursor, shot.cut(place, b"other", "asc"), shot.cut(place[1:], b"other", "desc"), "x"):
                with pytest.raises(BadCursor):
                    shot.read_cut(wrong, b"other", "desc")
        chain.rollback(back_to(first))
        for following in (None, block(first, salt="other")):
            if following is not None:
                feed(chain, following)
            with query_of(chain).snapshot() as shot, pytest.raises(CursorGone):
                shot.read_cut(cursor, b"key", "desc")
        chain.rollback(back_to(first))
        feed(chain, second)
        with query_of(chain).snapshot() as shot:
            assert shot.read_cut(cursor, b"key", "desc") == place


@pytest.mark.parametrize("order", ORDERS)
def test_a_cursor_is_exact_while_the_chain_grows(tmp_path: Path, order: Order) -> None:
    where, removed = address(0, "ann", "pool"), [3, 4, 5, 12, 14, 15]
    first = block(None, tx("a", *(output(where, n) for n in range(20))))
    spends = [(first.txs[0].txid, n) for n in removed]
    with open_chain(tmp_path) as chain:
        feed(chain, first)
        with query_of(chain).snapshot() as shot:
            page = shot.page(shot.by_address(where), 5, order, 1, None)
        feed(chain, block(first, tx("b", output(where, 99), spends=spends)))
        with query_of(chain).snapshot() as shot:
            rest = shot.page(shot.by_address(where), 50, order, 1, page.next_cursor)
    values = [[utxo.lovelace_amount for utxo in found.utxos] for found in (page, rest)]
    if order == "asc":
        assert values == [[0, 1, 2, 3, 4], [n for n in range(5, 20) if n not in removed] + [99]]
    else:
        assert values == [[19, 18, 17, 16, 15], [n for n in range(14, -1, -1) if n not in removed]]
