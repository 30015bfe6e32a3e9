"""The live set is that of one block boundary, however long its reader takes and whatever the chain does meanwhile."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from random import Random
from typing import Literal

import pytest
from chains import (
    Branches,
    Options,
    at,
    back_to,
    block,
    feed,
    genesis,
    live,
    open_chain,
    phrases,
    prune_all,
    random_chain,
    random_genesis,
    rows,
    tx,
)
from chains import output as paid

import storage.history.values
from handlers.chain import Chain
from handlers.events import BlockApplied
from storage.errors import ChainMoved
from storage.history.export import live_set
from storage.history.layout import OUTPUT

Step = Literal["blocks", "rollback", "deep", "elided", "again", "prune", "nothing"]
STEPS: list[Step] = ["blocks", "blocks", "blocks", "rollback", "deep", "elided", "again", "prune", "nothing"]


class Scenario:
    """A chain that changes while its set is read."""

    def __init__(self, chain: Chain, random: Random, branches: Branches) -> None:
        self.chain, self.random, self.branches = chain, random, branches
        self.chain_now: list[BlockApplied] = []  # from the first block to the tip
        self.blocks(random.randrange(4, 16))
        self.boundary, self.before = list(self.chain_now), live_in_order(chain)

    def blocks(self, count: int, network_height: int | None = None) -> None:
        more = random_chain(self.random, count, after=self.chain_now)
        for each in more:
            feed(self.chain, each, network_height=network_height)
        self.chain_now += more

    def back(self, below: bool) -> list[BlockApplied]:
        """Roll back to a block above or below the boundary; return the removed blocks."""
        lowest = max(self.chain.windows.floor(self.chain.state), 1 if below else len(self.boundary))
        highest = min(len(self.chain_now), len(self.boundary)) - 1 if below else len(self.chain_now) - 1
        if lowest > highest or len(self.boundary) > len(self.chain_now):
            return []
        left = self.random.randint(lowest, highest)
        self.chain.rollback(back_to(self.chain_now[left - 1]))
        removed, self.chain_now = self.chain_now[left:], self.chain_now[:left]
        return removed

    def step(self) -> None:
        step = self.random.choice(STEPS)
        match step:
            case "blocks":
                self.blocks(self.random.randrange(1, 4))
            case "rollback":
                self.branches.meet("a rollback above the boundary", self.back(below=False))
            case "deep" if self.random.random() < 0.2:
                self.branches.meet("a rollback below the boundary", self.back(below=True))
                self.blocks(self.random.randrange(6))
            case "again":
                if removed := self.back(below=True):
                    self.branches.meet("the boundary rolled back and applied again")
                    feed(self.chain, *removed)
                    self.chain_now += removed
            case "elided" if self.random.random() < 0.2:
                self.branches.meet("blocks far below the network's tip")
                self.blocks(2, network_height=1 << 20)
            case "prune":
                prune_all(self.chain)
            case _:
                pass

    def lost(self) -> bool:
        return self.chain.state.floor > len(self.boundary) or self.chain_now[: len(self.boundary)] != self.boundary


Live = tuple[bytes, int, bytes]  # txid, index, and all that is kept of the output


def sets(chain: Chain, values: int) -> Iterator[list[Live]]:
    for part in live_set(chain.store.disk, values):
        ids = [bytes.fromhex(part.txids[64 * tx : 64 * tx + 64]) for tx in part.of_tx]
        columns = zip(ids, part.indexes, part.values, part.starts, part.middles, part.ends, strict=True)
        yield [
            (txid, index, b"%d" % value + part.heap[start:middle] + b"/" + part.heap[middle:end])
            for txid, index, value, start, middle, end in columns
        ]


def live_in_order(chain: Chain) -> list[Live]:
    found = list[Live]()
    with chain.store.disk.read() as txn:
        stored = chain.store.stored(txn)
        for number in filter(stored.live.is_set, range(stored.state.next_number)):
            tx, output = stored.tx_of(number), stored.output(number)
            assert output is not None
            body = b"%d" % output.value + output.address + b"/" + output.extra
            found.append((tx.txid, number - tx.number, body))
    return found


def run_scenario(folder: Path, seed: int, branches: Branches) -> None:
    random = Random(seed)
    options: Options = {
        "rollback_window": random.choice((4, 12, 40)),
        "prune_depth": random.choice((1, 8, 40)),
        "store": random.choice(("classic", "mmr")),
        "may_prune": random.random() < 0.8,
    }
    with open_chain(folder, **options) as chain:
        if random.random() < 0.5:
            chain.seed(random_genesis(random))
        scenario, found = Scenario(chain, random, branches), list[Live]()
        try:
            for part in sets(chain, random.choice((1, 3, 10))):
                found += part
                branches.meet("an output that was spent since", _spent_since(scenario, part))
                scenario.step()
        except ChainMoved as error:
            assert scenario.lost(), error
            branches.meet("below the floor" if "floor" in str(error) else "rolled back")
        else:
            assert found == scenario.before
            branches.meet("complete")
            branches.meet("complete though the chain moved", scenario.chain_now != scenario.boundary)


def _spent_since(scenario: Scenario, part: list[Live]) -> bool:
    left = {each[:2] for each in live_in_order(scenario.chain)}
    return any((name, index) not in left for name, index, _ in part)


def test_the_set_is_that_of_the_boundary_or_an_error(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(storage.history.values, "VALUE_BYTES", 200)
    branches = Branches()
    for seed in range(40):
        try:
            run_scenario(tmp_path / str(seed), seed, branches)
        except BaseException:
            print(f"seed {seed}")
            raise
    wanted = phrases(
        "a rollback above the boundary; a rollback below the boundary; the boundary rolled back and applied again; "
        "blocks far below the network's tip; an output that was spent since; below the floor; rolled back; complete; "
        "complete though the chain moved"
    )
    assert wanted <= set(branches.met), branches.met


def test_outputs_spent_meanwhile_are_read_after_values_were_rewritten(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A spent output is kept for as long as its spend may be rolled back."""
    monkeypatch.setattr(storage.history.values, "VALUE_BYTES", 300)
    first = block(None, tx("O", *(paid("ann", n) for n in range(40))), tx("P", paid("cid", 9)))
    second = block(first, tx("Q", spends=[at("O", n) for n in range(36)]))
    with open_chain(tmp_path, prune_depth=1, rollback_window=4, may_prune=True) as chain:
        feed(chain, first)
        feed(chain, tip := second)
        for _ in range(4):
            feed(chain, tip := block(tip))
        before, values = live_in_order(chain), len(rows(chain.store, OUTPUT))
        reading = sets(chain, 1)
        found = next(reading)
        feed(chain, tip := block(tip, tx("R", spends=[at("O", 39), at("P")])))
        for _ in range(3):
            feed(chain, tip := block(tip))
        assert len(rows(chain.store, OUTPUT)) < values, "nothing was rewritten"
        for part in reading:
            found += part
    assert found == before and [each[:2] for each in found][-2:] == [at("O", 39), at("P")]


def test_an_error_names_the_boundary(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(storage.history.values, "VALUE_BYTES", 100)
    first = block(None, tx("O", *(paid("ann", n) for n in range(5))))
    with open_chain(tmp_path, rollback_window=3, prune_depth=3) as chain:
        chain.seed(genesis(ann=1))
        feed(chain, first, second := block(first))
        reading, passed = live_set(chain.store.disk, 1), live_set(chain.store.disk, 1)
        next(reading)
        chain.rollback(back_to(first))
        with pytest.raises(ChainMoved, match=f"block 2 {second.hash.hex()}, at which this began, was rolled back"):
            next(reading)
        next(passed)
        tip = first
        for _ in range(9):
            feed(chain, tip := block(tip))
        prune_all(chain)
        with pytest.raises(ChainMoved, match=f"block 1 {first.hash.hex()}, .* is now below the rollback floor"):
            next(passed)


def test_a_set_without_blocks(tmp_path: Path) -> None:
    with open_chain(tmp_path) as chain:
        assert list(sets(chain, 1)) == [[]]
        chain.seed(genesis(ann=1, bob=2))
        found = [part for each in sets(chain, 1) for part in each]
        assert [(name, index) for name, index, _ in found] == list(live(chain.store)) and len(found) == 2
