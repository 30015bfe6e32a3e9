"""Outputs that hold an asset are found among many without reading the others, where it or its policy is indexed."""

from __future__ import annotations

from pathlib import Path
from random import Random

import pytest
from chains import CODEC, at, block, feed, open_chain, output, tx

from handlers.chain import Chain
from handlers.query import NoIndex, Order, Query, Snapshot
from storage.history.bits import StoredBits
from storage.history.layout import Flags, Found, Numbers
from storage.indexes import NAMES as INDEXES

POLICIES = [bytes((n,)) * 28 for n in range(4)]
NAMES = [b"", b"a", b"b"]


def listed(shot: Snapshot, key: str | bytes, order: Order, asset: bytes, count: int) -> list[int]:
    """Return the values of what an address or a policy lists, page by page."""
    where = shot.listed("policy", key) if isinstance(key, bytes) else shot.by_address(output(key).address)
    found, cursor = list[int](), None
    while True:
        walk = shot.walk(where, order, cursor, asset)
        for _ in walk.search(0, count):
            pass
        places, cursor = walk.take(count)
        found += [utxo.lovelace_amount for utxo in shot.utxos(places)]
        if cursor is None:
            return found


def fill(chain: Chain, rng: Random) -> None:
    """Feed outputs at few addresses, with assets of policies that are frequent, rare, usual and absent."""
    parent = None
    for number in range(30):
        outputs = [
            output(
                rng.choice(("ann", "ann", "bob", f"early {number // 10}")),
                number * 100 + n,
                assets=[(p, rng.choice(NAMES), 1) for p in POLICIES if rng.random() < (0.5, 0.03, 0.9, 0.0)[p[0]]],
            )
            for n in range(rng.randrange(60))
        ]
        parent = block(parent, tx(f"{number}", *outputs))
        feed(chain, parent)


@pytest.mark.parametrize("without", [set(), {"asset"}], ids=["by asset", "by policy"])
@pytest.mark.parametrize("order", ["asc", "desc"])
def test_the_index_finds_what_a_search_finds(tmp_path: Path, order: Order, without: set[str]) -> None:
    with open_chain(tmp_path, indexes=[name for name in INDEXES if name not in without]) as chain:
        fill(chain, Random(order))
        query, met = Query(chain.store, CODEC, "cardano"), 0
        assets = [policy + name for policy in POLICIES for name in NAMES]
        keys: list[str | bytes] = ["ann", "bob", "early 0", "early 2", "nobody", *POLICIES]
        questions = [(key, asset, count) for key in keys for asset in assets for count in (1, 7, 1000)]
        with query.snapshot() as shot:
            by_index = [listed(shot, key, order, asset, count) for key, asset, count in questions]
            for (key, asset, count), found in zip(questions, by_index, strict=True):
                where = shot.listed("policy", key) if isinstance(key, bytes) else shot.by_address(output(key).address)
                everything = shot.walk(where, order, None).next(10_000)
                wanted = [
                    utxo.lovelace_amount
                    for utxo in shot.utxos(everything)
                    if asset.hex() in {amount.unit for amount in utxo.amounts}
                ]
                assert found == wanted, (key, asset, count)
                met += bool(wanted)
        assert met > 60


@pytest.mark.parametrize(("many", "few"), [("ann", POLICIES[1]), (POLICIES[2], "bob")])
def test_only_what_both_list_is_read(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, many: str | bytes, few: str | bytes
) -> None:
    address, policy = (many, few) if isinstance(many, str) else (few, many)
    assert isinstance(address, str) and isinstance(policy, bytes)
    held = [(policy, b"a", 1)]
    large = [output(address, n) if many == address else output("others", n, assets=held) for n in range(10_000)]
    common = [output(address, 20_000 + n, assets=held) for n in range(3)]
    outputs = [*large[:5_000], common[0], *large[5_000:], *common[1:]]
    with open_chain(tmp_path) as chain:
        feed(chain, block(None, tx("a", *outputs)))
        with Query(chain.store, CODEC, "cardano").snapshot() as shot:
            read, bodies = list[int](), shot.stored.bodies

            def counted(numbers: Numbers) -> dict[int, Found]:
                read.append(len(numbers))
                return bodies(numbers)

            monkeypatch.setattr(shot.stored, "bodies", counted)
            assert listed(shot, address, "asc", policy + b"a", 100) == [20_000, 20_001, 20_002]
            assert 3 <= sum(read) <= 6


@pytest.mark.parametrize("without", [{"policy"}, {"policy", "asset"}])
def test_without_the_index_they_are_searched(tmp_path: Path, without: set[str]) -> None:
    with open_chain(tmp_path, indexes=[name for name in INDEXES if name not in without]) as chain:
        fill(chain, Random(1))
        with Query(chain.store, CODEC, "cardano").snapshot() as shot:
            found = listed(shot, "ann", "asc", POLICIES[0] + b"a", 10)
            everything = shot.utxos(shot.walk(shot.by_address(output("ann").address), "asc", None).next(10_000))
            with pytest.raises(NoIndex, match="policy"):
                listed(shot, POLICIES[1], "asc", POLICIES[1], 10)
    unit = (POLICIES[0] + b"a").hex()
    assert found == [utxo.lovelace_amount for utxo in everything if unit in {amount.unit for amount in utxo.amounts}]
    assert found == sorted(found) and len(found) > 1


@pytest.mark.parametrize("order", ["asc", "desc"])
@pytest.mark.parametrize("spent", ["most of them, anywhere", "a stretch", "every second one"])
def test_pages_by_number_count_unspent_outputs_of_a_long_list(tmp_path: Path, order: Order, spent: str) -> None:
    rng, parent = Random(spent), None
    with open_chain(tmp_path) as chain:
        for number in range(20):
            created = [output("ann", number * 1000 + n) for n in range(1000)]
            parent = block(parent, tx(f"{number}", *created), tx(f"other {number}", output("bob", 0)))
            feed(chain, parent)
        points = [at(f"{number}", n) for number in range(20) for n in range(1000)]
        removed = {
            "most of them, anywhere": set(rng.sample(points, 18_000)),
            "a stretch": set(points[1500:18_500]),
            "every second one": set(points[::2]),
        }[spent]
        spends = sorted(removed)
        feed(chain, block(parent, *(tx(f"spend {n}", spends=spends[n : n + 500]) for n in range(0, len(spends), 500))))
        left = [value for value, point in enumerate(points) if point not in removed]
        if order == "desc":
            left.reverse()
        with Query(chain.store, CODEC, "cardano").snapshot() as shot:
            where = shot.by_address(output("ann").address)
            for page in (1, 2, 9, len(left) // 50, len(left) // 25, len(left) // 25 + 1):
                found = [utxo.lovelace_amount for utxo in shot.page(where, 25, order, page, None).utxos]
                assert found == left[(page - 1) * 25 : page * 25], page
            everything = shot.walk(where, order, None).next(30_000)
            assert [utxo.lovelace_amount for utxo in shot.utxos(everything)] == left


def test_a_long_list_is_examined_many_values_at_a_time(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """50,000 entries, all but 2,000 of them dead, are compared with the bits in a few calls."""
    parent, sizes, has = None, list[int](), StoredBits.has

    def counted(bits: StoredBits, numbers: Numbers) -> Flags:
        sizes.append(len(numbers))
        return has(bits, numbers)

    with open_chain(tmp_path) as chain:
        for number in range(5):
            parent = block(parent, tx(f"{number}", *([output("ann")] * 10_000)))
            feed(chain, parent)
        spends = [at(f"{number}", n) for number in range(5) for n in range(10_000) if n % 25]
        feed(chain, block(parent, *(tx(f"spend {n}", spends=spends[n : n + 960]) for n in range(0, len(spends), 960))))
        monkeypatch.setattr(StoredBits, "has", counted)
        with Query(chain.store, CODEC, "cardano").snapshot() as shot:
            page = shot.page(shot.by_address(output("ann").address), 25, "asc", 70, None)
    assert len(page.utxos) == 25
    assert sum(sizes) > 43_000
    assert len(sizes) < 60, sizes
