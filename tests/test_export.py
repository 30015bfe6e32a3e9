"""The live set is that of one block boundary, however long its reader takes and whatever the chain does meanwhile."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
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
    outputs,
    prune_all,
    random_chain,
    random_genesis,
    read_body,
    tx,
    txid,
)
from chains import output as paid
from storage.export import Live, live_set

import storage.history.values
from handlers.chain import Chain
from handlers.events import BlockApplied
from storage import keys
from storage.errors import ChainMoved
from storage.history.export import live_set as history_set
from storage.history.stored import Stored
from storage.rows import SPENT

Step = Literal["blocks", "rollback", "deep", "elided", "again", "prune", "nothing"]
STEPS: list[Step] = ["blocks", "blocks", "blocks", "rollback", "deep", "elided", "again", "prune", "nothing"]


class Story:
    """A chain that moves while its set is read, and what of that may end the reading."""

    def __init__(self, chain: Chain, random: Random, branches: Branches) -> None:
        self.chain, self.random, self.branches = chain, random, branches
        self.told: list[BlockApplied] = []  # from the first block to the tip
        self.blocks(random.randrange(4, 16))
        self.boundary, self.before = list(self.told), live_in_order(chain)

    def blocks(self, count: int, network_height: int | None = None) -> None:
        more = random_chain(self.random, count, after=self.told)
        for each in more:
            feed(self.chain, each, network_height=network_height)
        self.told += more

    def back(self, below: bool) -> list[BlockApplied]:
        """Roll back, below the boundary or not; return the blocks that went."""
        lowest = max(self.chain.windows.floor(self.chain.state), 1 if below else len(self.boundary))
        highest = min(len(self.told), len(self.boundary)) - 1 if below else len(self.told) - 1
        if lowest > highest or len(self.boundary) > len(self.told):
            return []
        left = self.random.randint(lowest, highest)
        self.chain.rollback(back_to(self.told[left - 1]))
        gone, self.told = self.told[left:], self.told[:left]
        return gone

    def step(self) -> None:
        """Let something happen between two reads."""
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
                if gone := self.back(below=True):
                    self.branches.meet("the boundary rolled back and applied again")
                    feed(self.chain, *gone)
                    self.told += gone
            case "elided" if self.random.random() < 0.2:
                self.branches.meet("blocks far below the network's tip")
                self.blocks(2, network_height=1 << 20)
            case "prune":
                prune_all(self.chain)
            case _:
                pass

    def lost(self) -> bool:
        """Return whether the boundary's set can't be told any more."""
        return self.chain.state.floor > len(self.boundary) or self.told[: len(self.boundary)] != self.boundary


def sets(chain: Chain, rows: int) -> Iterator[list[Live]]:
    """Yield the live set of either kind of store."""
    if not isinstance(chain, Chain):
        yield from live_set(chain.store, rows)
        return
    for part in history_set(chain.store.disk, rows):
        ids = [bytes.fromhex(part.txids[64 * tx : 64 * tx + 64]) for tx in part.of_tx]
        columns = zip(ids, part.indexes, part.values, part.starts, part.middles, part.ends, strict=True)
        yield [
            (txid, index, b"%d" % value + part.heap[start:middle] + b"/" + part.heap[middle:end])
            for txid, index, value, start, middle, end in columns
        ]


def history_in_order(chain: Chain) -> list[Live]:
    found = list[Live]()
    with chain.store.disk.read() as txn:
        stored = Stored(txn, chain.store.disk.tables)
        for number in filter(stored.live.is_set, range(stored.state.next_number)):
            tx, output = stored.tx_of(number), stored.output(number)
            assert output is not None
            body = b"%d" % output.value + output.address + b"/" + output.extra
            found.append((tx.txid, number - tx.number, body))
    return found


def live_in_order(chain: Chain) -> list[Live]:
    """Return the live outputs from a walk over all rows in one snapshot."""
    if isinstance(chain, Chain):
        return history_in_order(chain)
    store = chain.store
    with store.disk.read() as txn:
        rows = [(place, row) for place, row in store.scan(txn, store.output) if row[0] != SPENT]
        return [(store.txid_at(txn, place), keys.number(place[8:]), row) for place, row in rows]


def tell(folder: Path, seed: int, branches: Branches, kinds: Sequence[str]) -> None:
    random = Random(seed)
    options: Options = {
        "rollback_window": random.choice((4, 12, 40)),
        "prune_depth": random.choice((1, 8, 40)),
        "self_contained": random.random() < 0.6,
        "store": random.choice(kinds),
        "may_prune": random.random() < 0.8,
    }
    with open_chain(folder, **options) as chain:
        if random.random() < 0.5:
            chain.seed(random_genesis(random))
        story, found = Story(chain, random, branches), list[Live]()
        try:
            for part in sets(chain, random.choice((1, 3, 10))):
                found += part
                branches.meet("an output that was spent since", _spent_since(story, part))
                story.step()
        except ChainMoved as error:
            assert story.lost(), error
            branches.meet("below the floor" if "floor" in str(error) else "rolled back")
        else:
            assert found == story.before
            branches.meet("complete")
            branches.meet("complete though the chain moved", story.told != story.boundary)


def _spent_since(story: Story, part: list[Live]) -> bool:
    if isinstance(story.chain, Chain):
        left = {each[:2] for each in history_in_order(story.chain)}
        return any((name, index) not in left for name, index, _ in part)
    now = outputs(story.chain.store)
    return any((row := now.get((name, index))) is not None and row[0] == SPENT for name, index, _ in part)


@pytest.mark.parametrize("kinds", [("classic", "mmr"), ("history",)])
def test_the_set_is_that_of_the_boundary_or_an_error(
    kinds: Sequence[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(storage.history.values, "VALUE_BYTES", 200)
    branches = Branches()
    for seed in range(150):
        try:
            tell(tmp_path / str(seed), seed, branches, kinds)
        except BaseException:
            print(f"seed {seed}")
            raise
    wanted = {
        "a rollback above the boundary",
        "a rollback below the boundary",
        "the boundary rolled back and applied again",
        "blocks far below the network's tip",
        "an output that was spent since",
        "below the floor",
        "rolled back",
        "complete",
        "complete though the chain moved",
    }
    assert wanted <= set(branches.met), branches.met


def test_a_pruned_body_is_read_from_the_undo_record(tmp_path: Path) -> None:
    first = block(None, tx("O", paid("ann", 5), paid("bob", 7)), tx("P", paid("cid", 9)))
    with open_chain(tmp_path, prune_depth=1, rollback_window=20, self_contained=True) as chain:
        feed(chain, first)
        reading = live_set(chain.store, 1)
        found = next(reading)
        feed(chain, tip := block(first, tx("Q", spends=[at("O", 1), at("P")])))
        for _ in range(4):
            feed(chain, tip := block(tip))
        prune_all(chain)
        assert [len(outputs(chain.store)[point]) for point in (at("O", 1), at("P"))] == [13, 13], "marks alone"
        for part in reading:
            found += part
    assert [(name, index, read_body(body).value) for name, index, body in found] == [
        (txid("O"), 0, 5),
        (txid("O"), 1, 7),
        (txid("P"), 0, 9),
    ]


def test_an_error_says_what_became_of_the_boundary(tmp_path: Path) -> None:
    first = block(None, tx("O", *(paid("ann", n) for n in range(5))))
    with open_chain(tmp_path, rollback_window=3, prune_depth=3) as chain:
        chain.seed(genesis(ann=1))
        feed(chain, first, second := block(first))
        reading, passed = live_set(chain.store, 2), live_set(chain.store, 2)
        next(reading)
        chain.rollback(back_to(first))
        with pytest.raises(ChainMoved, match=f"block 2 {second.hash.hex()}, at which this began, was rolled back"):
            next(reading)
        next(passed)
        tip = first
        for _ in range(9):
            feed(chain, tip := block(tip))
        prune_all(chain)
        with pytest.raises(ChainMoved, match=f"block 1 {first.hash.hex()}, .* is below the rollback floor"):
            next(passed)


def test_a_set_without_blocks(tmp_path: Path) -> None:
    with open_chain(tmp_path) as chain:
        assert list(live_set(chain.store)) == [[]]
        chain.seed(genesis(ann=1, bob=2))
        found = [part for each in live_set(chain.store, 1) for part in each]
        assert [(name, index) for name, index, _ in found] == list(live(chain.store)) and len(found) == 2
