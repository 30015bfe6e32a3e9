"""The stores of all shards together are the store of the whole chain: outputs, indexes, undo logs and positions."""

from __future__ import annotations

import shutil
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from pathlib import Path
from random import Random
from typing import Any, TypeVar

import pytest
from chains import (
    INDEXES,
    LEAVES,
    TABLES,
    Branches,
    at,
    block,
    dump,
    feed,
    index_keys,
    open_chain,
    output,
    prune_all,
    random_block,
    random_genesis,
    refused,
    tx,
    txid,
)
from model import Model

from feeds.errors import FeedError
from feeds.split import parts
from formats.shards import Shard, number_of
from handlers import columns, wire
from handlers.chain import Chain
from handlers.events import BlockApplied, GenesisOutputs, Inbound, OutPoint, Rollback, RollbackPoint, Tx
from handlers.refusal import Refused
from storage.disk import Disk
from storage.errors import StoreError, WrongFormat
from storage.history.layout import to_extra, to_tx
from storage.history.narrow import narrow
from storage.history.shard import chain_of
from storage.history.store import HistoryStore
from storage.history.verify import verify
from storage.pool import TABLES as TX_TABLES

T = TypeVar("T", bound=Inbound)

CHAIN = "cardano/mainnet"


def split(event: Inbound, count: int) -> list[bytes]:
    return parts(wire.encode(event, "frames")[wire.LENGTH.size :], count)


def decoded(raw: bytes, kind: type[T]) -> T:
    found = columns.decode(raw, "frames")
    assert isinstance(found, kind)
    return found


def carry_out(chain: Chain, raw: bytes) -> None:
    match event := columns.decode(raw, "frames"):
        case BlockApplied():
            assert chain.apply(event, None)
        case Rollback():
            chain.rollback(event)
        case GenesisOutputs():
            chain.seed(event)


@contextmanager
def shards(folder: Path, count: int, **options: Any) -> Iterator[list[Chain]]:
    with ExitStack() as stores:
        yield [
            stores.enter_context(open_chain(folder / f"{n}", chain=chain_of(CHAIN, f"{n}/{count}"), **options))
            for n in range(1, count + 1)
        ]


def positions(store: HistoryStore) -> dict[bytes, tuple[int, int | None]]:
    """Return the block of each transaction that is stored, and its position there."""
    with store.disk.read() as txn:
        records = [to_tx(each) for part, _ in store.stored(txn).txs.span(0, 1 << 40) for each in part]
    return {each.txid: (each.block, each.place) for each in records}


def datums(store: HistoryStore) -> dict[OutPoint, bytes | None]:
    """Return the datums of the hashes in unspent outputs, where they are known."""
    with store.disk.read() as txn:
        stored = store.stored(txn)
        homes = stored.homes([n for n in range(stored.state.next_number) if stored.live.is_set(n)])
        extras = {n: to_extra(each.extra) for n in homes if (each := stored.body(n)) and each.extra}
        return {(homes[n].txid, homes[n].output): extra.datum for n, extra in extras.items()}


def assert_joined(single: Chain, made: Sequence[Chain], model: Model) -> None:
    """Compare the stores of all shards with the store of the whole chain."""
    whole, each = dump(single.store), [dump(chain.store) for chain in made]
    assert sum(one["state"][1] for one in each) == whole["state"][1] == len(model.now.coins)
    assert {one["state"][0] for one in each} == {whole["state"][0]}
    outputs = dict[OutPoint, Any]()
    for chain, one in zip(made, each, strict=True):
        assert all(Shard.parse(str(chain.store.shard)).has(point[0]) for point in one["outputs"])
        outputs |= one["outputs"]
    assert outputs == whole["outputs"]
    assert {point: datum for chain in made for point, datum in datums(chain.store).items()} == datums(single.store)
    for ordinal, found in whole["blocks"].items():
        there = [one["blocks"][ordinal] for one in each]
        assert {(block.height, block.slot, block.hash) for block in there} == {(found.height, found.slot, found.hash)}
        assert sum(block.txs for block in there) == found.txs
        assert sum(block.created for block in there) == found.created
        assert sum(block.spent for block in there) == found.spent
    for ordinal, log in whole["undo"].items():
        joined = [(point, place) for one in each for point, _, place in one["undo"][ordinal]]
        assert sorted(joined) == sorted((point, place) for point, _, place in log)
    place_of = {point: coin.place for point, coin in model.now.coins.items()}
    for chain in made:
        known = positions(chain.store)
        for point in model.now.coins:
            if number_of(point[0], len(made)) == Shard.parse(str(chain.store.shard)).number:
                assert known[point[0]] == place_of[point][:2]
    for index in INDEXES:
        keys = {key for body in whole["outputs"].values() for key in index_keys(index, body.body)}
        for key in keys:
            merged = [point for one in each for point in one[index].get(key, [])]
            assert sorted(merged, key=place_of.__getitem__) == whole[index].get(key, [])


def assert_sound(chain: Chain) -> None:
    assert verify(chain.store.disk, leaves=LEAVES) == []


@pytest.mark.parametrize(
    ("count", "kind", "seed"), [(1, "classic", 1), (2, "mmr", 2), (3, "classic", 3), (8, "classic", 4)]
)
def test_shards_are_the_chain(tmp_path: Path, count: int, kind: str, seed: int) -> None:
    rng, branches, model = Random(seed), Branches(), Model()
    options: dict[str, Any] = {"store": kind, "rollback_window": 12}
    with open_chain(tmp_path / "single", chain=CHAIN, **options) as single, shards(tmp_path, count, **options) as made:

        def do(event: Inbound) -> None:
            carry_out(single, wire.encode(event, "frames")[wire.LENGTH.size :])
            for chain, raw in zip(made, split(event, count), strict=True):
                carry_out(chain, raw)

        genesis = random_genesis(rng)
        do(genesis)
        model.seed(genesis)
        for turn in range(40):
            if turn % 11 == 10:
                target = len(model.moments) - 1 - rng.randrange(1, 6)
                point = model.moments[target].point
                do(Rollback(to="origin" if point is None else RollbackPoint(hash=point.hash)))
                model.rollback(target)
            before = model.now.block
            following = random_block(rng, before, list(model.now.coins), model.used(), branches)
            do(following)
            model.apply(following)
            model.commit()
            if rng.random() < 0.4:
                for chain in (single, *made):
                    chain.commit()
            if turn % 20 == 19:
                for chain in (single, *made):
                    chain.commit()
                assert_joined(single, made, model)
        for chain in made:
            assert_sound(chain)
            prune_all(chain)
            assert_sound(chain)
        prune_all(single)
        assert_joined(single, made, model)
    assert branches.met.keys() >= {
        "a txid again",
        "a collateral return",
        "datums among the witnesses",
        "an in-block spend",
    }


@pytest.mark.parametrize(("kind", "history"), [("classic", False), ("mmr", False), ("classic", True)])
def test_a_shard_is_divided(tmp_path: Path, kind: str, history: bool) -> None:
    """Stores of 1/1 are divided to 1/2 and 2/2, and these to fourths: each time they continue, also backwards."""
    rng, branches, model = Random(7), Branches(), Model()
    indexes = (*INDEXES, "history") if history else INDEXES
    options: dict[str, Any] = {"store": kind, "rollback_window": 8, "prune_depth": 8, "indexes": indexes}
    paths, count = [tmp_path / "1"], 1
    with open_chain(tmp_path / "single", chain=CHAIN, **options) as single:

        def do(made: Sequence[Chain], event: Inbound) -> None:
            carry_out(single, wire.encode(event, "frames")[wire.LENGTH.size :])
            for chain, raw in zip(made, split(event, len(made)), strict=True):
                carry_out(chain, raw)

        for turn in range(3):
            with ExitStack() as stores:
                made = [
                    stores.enter_context(open_chain(path, chain=chain_of(CHAIN, f"{n}/{count}"), **options))
                    for n, path in enumerate(paths, 1)
                ]
                if turn:
                    target = len(model.moments) - 4
                    point = model.moments[target].point
                    assert point is not None
                    do(made, Rollback(to=RollbackPoint(hash=point.hash)))
                    model.rollback(target)
                    assert_joined(single, made, model)
                else:
                    genesis = random_genesis(rng)
                    do(made, genesis)
                    model.seed(genesis)
                for _ in range(25):
                    following = random_block(rng, model.now.block, list(model.now.coins), model.used(), branches)
                    do(made, following)
                    model.apply(following)
                    model.commit()
                for chain in (single, *made):
                    chain.commit()
                    prune_all(chain)
                assert_joined(single, made, model)
            halves = [
                shutil.copytree(path, tmp_path / f"{2 * count}-{n}-{path.name}") for n in (0, 1) for path in paths
            ]
            for n, half in enumerate(halves, 1):
                with Disk(half, (*TABLES, *TX_TABLES)) as disk:
                    left = narrow(disk, Shard(n, 2 * count))
                    assert left == sum(number_of(point[0], 2 * count) == n for point in model.now.coins)
                    assert verify(disk, leaves=LEAVES) == []
            paths, count = halves, 2 * count


def test_what_cannot_be_divided_is_refused(tmp_path: Path) -> None:
    for shard, named in ((None, "a whole chain"), ("2/4", "shard 2/4")):
        with open_chain(tmp_path / str(bool(shard)), chain=chain_of(CHAIN, shard)):
            pass
        why = f"this store is of {named}, and shard 3/8 is not a part of that"
        with Disk(tmp_path / str(bool(shard)), (*TABLES, *TX_TABLES)) as disk, pytest.raises(WrongFormat, match=why):
            narrow(disk, Shard(3, 8))
    with Disk(tmp_path / "True", (*TABLES, *TX_TABLES)) as disk:
        disk.write(lambda txn: txn.put(bytes(40), bytes(36), db=disk.tables["tx_claim"]))
        with pytest.raises(StoreError, match="records of transactions"):
            narrow(disk, Shard(6, 8))


def test_the_rule_divides_each_shard_into_two() -> None:
    for name in range(50):
        number = number_of(txid(str(name)), 8)
        assert number_of(txid(str(name)), 16) in {number, number + 8}
        assert Shard(number, 8).has(txid(str(name)))
    assert Shard.parse("11/16").is_part_of(Shard.parse("3/8"))
    assert not Shard.parse("4/16").is_part_of(Shard.parse("3/8")) and not Shard.parse("3/8").is_part_of(Shard(3, 16))
    for text in ("0/8", "9/8", "3/08", "3", "1/1025", "a/b", ""):
        with pytest.raises(ValueError, match="expected NUMBER/COUNT"):
            Shard.parse(text)


def test_a_store_keeps_its_shard(tmp_path: Path) -> None:
    with open_chain(tmp_path, chain=chain_of(CHAIN, "2/4")) as chain:
        assert chain.store.shard == "2/4"
    for other in (None, "1/4", "2/8"):
        with (
            pytest.raises(WrongFormat, match="this store is for cardano/mainnet, shard 2/4, but"),
            open_chain(tmp_path, chain=chain_of(CHAIN, other)),
        ):
            pass


def test_parts_of_other_shards_are_refused(tmp_path: Path) -> None:
    first = block(None, tx("a", output("ann"), coinbase=True))
    genesis = GenesisOutputs(outputs=[])
    part_of = {n: decoded(split(first, 4)[n - 1], BlockApplied) for n in (1, 2)}
    part_of_genesis = decoded(split(genesis, 2)[0], GenesisOutputs)
    with open_chain(tmp_path / "whole") as chain:
        assert "the part of shard 1/4" in refused("wrong_shard", lambda: feed(chain, part_of[1])).message
        refused("wrong_shard", lambda: chain.seed(part_of_genesis))
    with open_chain(tmp_path / "2", chain=chain_of(CHAIN, "2/4")) as chain:
        assert "block 1" in refused("wrong_shard", lambda: feed(chain, first)).message
        refused("wrong_shard", lambda: feed(chain, part_of[1]))
        refused("wrong_shard", lambda: chain.seed(genesis))
        feed(chain, part_of[2])
    with pytest.raises(FeedError, match="block 1 is a part already, of shard 2/4"):
        split(part_of[2], 2)


def test_positions_are_checked() -> None:
    last = tx("b", place=9)
    first = block(None, tx("a", output("ann"), place=3, spends=[at("x")], input_places=[1]), last, shard="1/1")
    assert isinstance(columns.decode(wire.encode(first, "frames")[4:], "frames"), columns.RawBlock)
    for changed, where in (
        ({"place": None}, r"\$\.txs\[0\]\.place"),
        ({"place": 9}, r"\$\.txs\[1\]\.place"),
        ({"input_places": [1, 2]}, r"\$\.txs\[0\]\.input_places"),
    ):
        fields: dict[str, Any] = {"place": 3} | changed
        wrong = block(None, Tx(txid("a"), [at("x")], [output("ann")], **fields), last, shard="1/1")
        with pytest.raises(Refused, match=where):
            columns.decode(wire.encode(wrong, "frames")[4:], "frames")


def test_verify_compares_positions(tmp_path: Path) -> None:
    one = block(None, tx("a", output("ann"), place=3), tx("b", output("bob"), place=4), shard="1/1")
    with open_chain(tmp_path, chain=chain_of(CHAIN, "1/1")) as chain:
        feed(chain, one)
        assert_sound(chain)
        store = chain.store

        def damage(txn: Any) -> None:
            records = store.history.tx._get(txn, 0)[0].copy()
            records["place"] = 7
            store.history.tx._rewrite(txn, 0, 1, records, b"", records["number"] >= 0)

        store.disk.write(damage)
        assert verify(store.disk) == [
            "the transaction at number 1 has position 7 in block 1, not after the one before it"
        ]


def test_inputs_keep_their_positions(tmp_path: Path) -> None:
    names = [str(n) for n in range(8)]
    first = block(None, *(tx(name, output("ann", n)) for n, name in enumerate(names)))
    second = block(first, tx("all", output("bob"), spends=[at(name) for name in names], fee=5))
    with shards(tmp_path, 4) as made:
        for n, chain in enumerate(made):
            for event in (first, second):
                carry_out(chain, split(event, 4)[n])
            chain.commit()
            found = dump(chain.store)["undo"][2]
            assert [(point, place) for point, _, place in found] == [
                (at(name), place) for place, name in enumerate(names) if number_of(txid(name), 4) == n + 1
            ]
            fees = [each.fee for each in dump(chain.store)["transactions"] if each.txid == txid("all")]
            assert fees == [5 if number_of(txid("all"), 4) == n + 1 else None] * len(fees)
