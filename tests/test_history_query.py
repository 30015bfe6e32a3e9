"""A history gives the answers of a classic store that was told the same chain, byte for byte, whatever became of it."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
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
    credential,
    feed,
    open_chain,
    prune_all,
    random_chain,
    random_genesis,
    wallet,
)

import storage.history.filters
import storage.history.history
import storage.history.runs
import storage.history.values
from handlers.chain import Chain
from handlers.changes import Changes
from handlers.deltas import Form, InCbor, InJson, NoDelta, find
from handlers.events import BlockApplied
from handlers.query import Order, Query, Snapshot
from storage.prune import Windows

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
            stack.enter_context(open_chain(folder / "history", **options, store="history")),
        )


def asking(chain: Chain) -> Query:
    return Query(chain.store, CODEC, "cardano", 1 << 20)


def lists(shot: Snapshot, rng: Random) -> Iterator[Any]:
    """Yield every list: by cursor, by page number, as JSON, CBOR and objects, of an asset, and its sum."""
    assets = [policy + bytes(length) for policy in POLICIES for length in range(3)]
    for index, key in keys():
        where = shot.by_address(key) if index == "address_hash" else shot.listed(index, key)
        for order in ORDERS:
            for asset in (None, *rng.sample(assets, 3)):
                count, cursor = rng.choice((1, 2, 7, 1000)), None
                while True:
                    walk = shot.walk(where, order, cursor, asset)
                    for _ in walk.look(0, count):
                        pass
                    places, cursor = walk.take(count)
                    yield index, key, order, asset, shot.json(places), shot.cbor(places), cursor is None
                    yield shot.utxos(places)
                    if cursor is None:
                        break
            page = rng.randrange(1, 5)
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


def compare(chains: tuple[Chain, Chain], told: list[BlockApplied], seed: int) -> int:
    """Compare every answer; return how many there were."""
    classic, history = map(asking, chains)
    assert chains[0].state.tip == chains[1].state.tip == len(told)
    count = 0
    with classic.snapshot() as one, history.snapshot() as other:
        assert one.tip() == other.tip()
        assert one.state.unspent == other.state.unspent
        windows = chains[0].windows
        for mine, theirs in (
            (lists(one, Random(seed)), lists(other, Random(seed))),
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
        make_small(monkeypatch)


def make_small(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let short stories have many values, runs and merges."""
    monkeypatch.setattr(storage.history.runs, "VALUE_BYTES", 200)
    monkeypatch.setattr(storage.history.values, "VALUE_BYTES", 300)
    monkeypatch.setattr(storage.history.runs, "FANOUT", 3)
    monkeypatch.setattr(storage.history.history, "MERGED", 12)
    monkeypatch.setattr(storage.history.filters, "_PART", 2)


WINDOWS: list[Options] = [
    {"prune_depth": 9, "rollback_window": 9},
    {"prune_depth": 3, "rollback_window": 9},
    {"prune_depth": 20, "rollback_window": 4},
]


@pytest.mark.parametrize("windows", WINDOWS)
@pytest.mark.parametrize("seed", range(3))
@pytest.mark.usefixtures("sizes")
def test_answers_are_those_of_a_classic_store(tmp_path: Path, seed: int, windows: Options) -> None:
    """Blocks come one by one and in batches, are taken back, and are pruned; transaction ids come again."""
    rng, told, counted, returns = Random(seed), list[BlockApplied](), 0, 0
    with both(tmp_path, **windows) as chains:
        genesis = random_genesis(rng)
        for chain in chains:
            chain.seed(genesis)
        for _ in range(12):
            more = random_chain(rng, rng.randrange(1, 6), after=told, repeats=bool(seed))
            for chain in chains:
                feed(chain, *more)
            told += more
            counted += compare(chains, told, rng.randrange(100))
            if rng.random() < 0.4:
                for chain in chains:
                    prune_all(chain)
                counted += compare(chains, told, rng.randrange(100))
            floor = max(chain.windows.floor(chain.state) for chain in chains)
            if rng.random() < 0.4 and floor < len(told):
                kept = rng.randrange(max(floor, 1), len(told))
                for chain in chains:
                    chain.rollback(back_to(told[kept - 1]))
                told, returns = told[:kept], returns + 1
                counted += compare(chains, told, rng.randrange(100))
    assert counted > 1000 and returns


@pytest.mark.parametrize("seed", range(2))
@pytest.mark.usefixtures("sizes")
def test_answers_after_blocks_far_below_the_tip(tmp_path: Path, seed: int) -> None:
    """What was born and died in a batch left nothing; then blocks come as they do at the tip."""
    rng = Random(seed)
    told = random_chain(rng, 40, repeats=False)
    with both(tmp_path, prune_depth=5, rollback_window=5) as chains:
        at = 0
        while at < 30:
            count = rng.randrange(1, 8)
            for chain in chains:
                feed(chain, *told[at : at + count], network_height=1000)
            at += count
            assert compare(chains, told[:at], seed) > 100
        for chain in chains:
            feed(chain, *told[at:])
        assert compare(chains, told, seed) > 100
