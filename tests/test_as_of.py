"""Answers as of an earlier block are those that the store gave while it was the tip."""

from __future__ import annotations

from pathlib import Path
from random import Random
from types import SimpleNamespace
from typing import Any

import anyio
import msgspec
import pytest
from chains import (
    ADDRESSES,
    INDEXES,
    Options,
    back_to,
    credential,
    feed,
    open_chain,
    prune_all,
    query_of,
    random_chain,
    random_genesis,
)

from daemon.http.kupo.matches import MatchesRoute
from daemon.turns import Turns
from handlers.addresses import codec
from handlers.as_of import AS_OF, NotAsOf
from handlers.matches import Matches, Wanted
from handlers.query import NoIndex, Query, Snapshot
from handlers.touched import touching
from handlers.walk import Order
from storage.history.output_keys import address_key

ORDERS: tuple[Order, ...] = ("asc", "desc")
KEYS = [("payment_credential", credential(name)) for name in ("ann", "bob", "cid")]
WINDOWS: Options = {"indexes": (*INDEXES, "history"), "prune_depth": 50, "rollback_window": 50}


def picture(shot: Snapshot, txids: list[bytes]) -> dict[str, Any]:
    tip = shot.tip()
    seen: dict[str, Any] = {"tip": tip, "unspent": shot.state.unspent, "blocks": shot.state.tip}
    for key in [*(("address_hash", address_key(each)) for each in ADDRESSES), *KEYS]:
        for order in ORDERS:
            walk = shot.walk(key, order, None)
            seen[f"{key} {order}"] = shot.json(walk.take(1000)[0])
        *_, total = shot.balance(key)
        seen[f"{key} sum"] = msgspec.json.encode((total.value, total.count, sorted(map(str, total.assets.items()))))
        for unspent in (True, False):
            matches = Matches(shot, Wanted(lists=(key,), unspent=unspent))
            seen[f"{key} matches {unspent}"] = [row for rows in matches.rows(matches.numbers()) for row in rows]
    for txid in txids:
        seen[txid.hex()] = [shot.find(txid, index) for index in range(3)]
    for owner in ADDRESSES:
        for order in ORDERS:
            found = touching(shot, owner, 1000, order, 1, None)
            seen[f"{owner!r} history {order}"] = found.transactions
    return seen


def pictured(query: Query, txids: list[bytes], block_hash: bytes | None = None) -> dict[str, Any]:
    before = AS_OF.set(block_hash)
    try:
        with query.snapshot() as shot:
            return picture(shot, txids)
    finally:
        AS_OF.reset(before)


@pytest.mark.parametrize("seed", range(2))
def test_answers_are_those_of_the_time_when_the_block_was_the_tip(tmp_path: Path, seed: int) -> None:
    rng = Random(seed)
    with open_chain(tmp_path, **WINDOWS) as chain:
        chain.seed(random_genesis(rng))
        blocks = random_chain(rng, 11)
        feed(chain, *blocks)
        chain.commit()
        query, txids = query_of(chain), [tx.txid for each in blocks for tx in each.txs]
        differ = 0
        earlier = {each.hash: pictured(query, txids, each.hash) for each in blocks}
        again = {each.hash: pictured(query, txids, each.hash) for each in rng.sample(blocks, len(blocks))}
        assert earlier == again
        for after, each in zip(blocks[:0:-1], blocks[-2::-1], strict=True):
            chain.rollback(back_to(each))
            chain.commit()
            assert pictured(query, txids) == earlier[each.hash], each.height
            differ += earlier[each.hash] != earlier[after.hash]
        assert differ > 6


def matches_of(route: MatchesRoute, name: str, block_hash: bytes | None = None) -> bytes:
    """Return an answer of Kupo's API."""
    before, bodies = AS_OF.set(block_hash), list[bytes]()
    scope = {"type": "http", "query_string": b"unspent", "headers": []}

    async def send(message: Any) -> None:
        bodies.append(message.get("body", b""))

    try:
        anyio.run(route.answer, scope, send, f"{credential(name).hex()}/*", lambda *_: ([], False))
    finally:
        AS_OF.reset(before)
    return b"".join(bodies)


def test_cached_matches_are_those_of_the_block_and_need_their_index(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    rng = Random(1)
    with open_chain(tmp_path, **WINDOWS) as chain:
        chain.seed(random_genesis(rng))
        *blocks, last = random_chain(rng, 12)
        feed(chain, *blocks)
        chain.commit()
        query = query_of(chain)
        site: Any = SimpleNamespace(query=query, codec=codec("cardano", "mainnet"), turns=Turns())
        route, names, differ = MatchesRoute(site), ("ann", "bob", "cid"), 0
        for each in blocks[::-1]:
            for name in names:
                now = matches_of(route, name)
                earlier = matches_of(route, name, each.hash)
                assert earlier == matches_of(MatchesRoute(site), name, each.hash), (name, each.height)
                differ += now != earlier
        assert differ > 6
        feed(chain, last)
        chain.commit()
        monkeypatch.setattr(query.store, "kept_indexes", lambda _: [])
        for name in names:
            with pytest.raises(NoIndex):
                matches_of(route, name)


def test_blocks_that_are_unknown_or_below_the_floor_are_refused(tmp_path: Path) -> None:
    with open_chain(tmp_path, indexes=(*INDEXES, "history"), prune_depth=3, rollback_window=3) as chain:
        blocks = random_chain(Random(1), 9)
        feed(chain, *blocks)
        prune_all(chain)
        query = query_of(chain)
        for named, code in ((b"\1" * 32, "as_of_unknown"), (blocks[2].hash, "as_of_gone")):
            with pytest.raises(NotAsOf) as refused:
                pictured(query, [], named)
            assert refused.value.code == code
        assert pictured(query, [], blocks[-2].hash)["blocks"] == 8
