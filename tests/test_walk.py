"""Outputs that hold an asset are found among many without reading the others, where it or its policy is indexed."""

from __future__ import annotations

from pathlib import Path
from random import Random

import pytest
from chains import CODEC, block, feed, open_chain, output, tx

from handlers.chain import Chain
from handlers.query import NoIndex, Order, Query, Snapshot
from storage.history.layout import Found, Numbers
from storage.indexes import NAMES as INDEXES

POLICIES = [bytes((n,)) * 28 for n in range(4)]
NAMES = [b"", b"a", b"b"]


def listed(shot: Snapshot, key: str | bytes, order: Order, asset: bytes, count: int) -> list[int]:
    """Return the values of what an address or a policy lists, page by page."""
    where = shot.listed("policy", key) if isinstance(key, bytes) else shot.by_address(output(key).address)
    found, cursor = list[int](), None
    while True:
        walk = shot.walk(where, order, cursor, asset)
        for _ in walk.look(0, count):
            pass
        places, cursor = walk.take(count)
        found += [utxo.lovelace_amount for utxo in shot.utxos(places)]
        if cursor is None:
            return found


def told(chain: Chain, rng: Random) -> None:
    """Tell a chain of outputs to few addresses, with assets of policies that are frequent, rare, usual and absent."""
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
    """Dense and sparse lists on either side, and lists that end before the other begins."""
    with open_chain(tmp_path, indexes=[name for name in INDEXES if name not in without]) as chain:
        told(chain, Random(order))
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
    """Three outputs in common, ten thousand on one side: so many are read, not ten thousand."""
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
        told(chain, Random(1))
        with Query(chain.store, CODEC, "cardano").snapshot() as shot:
            found = listed(shot, "ann", "asc", POLICIES[0] + b"a", 10)
            everything = shot.utxos(shot.walk(shot.by_address(output("ann").address), "asc", None).next(10_000))
            with pytest.raises(NoIndex, match="policy"):
                listed(shot, POLICIES[1], "asc", POLICIES[1], 10)
    unit = (POLICIES[0] + b"a").hex()
    assert found == [utxo.lovelace_amount for utxo in everything if unit in {amount.unit for amount in utxo.amounts}]
    assert found == sorted(found) and len(found) > 1
