"""Every run of real blocks, applied to a real store, is after each block what another decoder computed."""

from collections.abc import Callable, Container, Iterable, Iterator
from contextlib import contextmanager
from pathlib import Path
from random import Random
from typing import Any, NamedTuple

import numpy as np
import pytest
from bitcoin_runs import RUNS, open_run
from cardano_runs import RUNS as CARDANO_RUNS
from cardano_runs import checkpoints, expected_rows, genesis_of, network_of
from chains import TABLES
from msgspec import structs
from plain_set import digest, number
from real_data import document, find, need

from feeds.cardano.chunks import read_chain
from handlers.addresses import codec
from handlers.chain import Chain
from handlers.events import BlockApplied, Rollback, RollbackPoint, Tx
from handlers.leaves import LeafWriter
from handlers.rendering import OutputRenderer
from storage.disk import Disk
from storage.history.export import Part, live_set
from storage.history.layout import Numbers
from storage.history.store import HistoryStore
from storage.history.stored import Stored
from storage.history.verify import verify
from storage.windows import Windows


class Figures(NamedTuple):
    """The number of unspent outputs, their value, and two accumulators of their lines."""

    outputs: int
    value: int
    acc: str
    acc_addr: str = ""


Stretch = list[tuple[BlockApplied, Figures]]  # blocks, each with the figures that are expected after it


class Kind(NamedTuple):
    store: str
    at_once: int
    prunes: bool


LONG = 300  # blocks; after these a commit has thirty times as many
IDLE = 100  # empty blocks in a row; those that follow, most of Preview's first year, are left out
LONGEST = "cardano/preview-genesis-run"
MMR, BATCHES = Kind("mmr", 3, True), Kind("classic", 7, False)
CARDANO = [(run, kind) for run in CARDANO_RUNS for kind in (MMR, BATCHES) if kind is MMR or run != LONGEST]


@contextmanager
def opened(folder: Path, family: Any, kind: Kind) -> Iterator[Chain]:
    wanted = ["address_hash", "payment_credential"] if family == "cardano" else ["address_hash"]
    with Disk(folder / "lmdb", TABLES, map_size=64 << 20, durable=False) as disk:
        store = HistoryStore(disk, LeafWriter(OutputRenderer(codec(family, "mainnet"), family)))
        store.open(f"{family}/test", wanted, kind.store)
        yield Chain(store, Windows(80, 100) if kind.prunes else Windows(0, 10**6), 500)


class Reader:
    """Computes the expected figures from a store's answers."""

    def __init__(self, chain: Chain) -> None:
        self.chain = chain
        self.count = self.value = self.acc = self.acc_addr = 0

    def begin(self) -> None:
        self.count = self.value = self.acc = self.acc_addr = 0
        for part in live_set(self.chain.store.disk):
            self.add(zip(plain(part), addresses(part), part.values, strict=True), 1)

    def add(self, found: Iterable[tuple[str, str, int]], sign: int) -> None:
        for line, address, value in found:
            self.count += sign
            self.value += sign * value
            self.acc += sign * number(f"{line}\n")
            self.acc_addr += sign * number(f"{line}:{address}\n")

    def see(self, stretch: Stretch) -> None:
        """Apply some blocks in one commit, and compare the effects of each."""
        for block, _ in stretch:
            self.chain.apply(block, None)
        self.chain.commit()
        tip = self.chain.state.tip
        with self.chain.store.disk.read() as txn:
            stored, done = self.chain.store.stored(txn), list[tuple[list[int], list[int]]]()
            for ordinal in range(tip - len(stretch) + 1, tip + 1):
                made, undo = stored.block(ordinal), stored.undo(ordinal)
                assert undo is not None
                created = list(range(made.first, made.first + made.numbers))
                done.append((created, [spent.number for spent in undo]))
            numbers = {number for both in done for some in both for number in some}
            kept = lines(stored, np.array(sorted(numbers), np.int64))
        for (block, expected), (created, spent) in zip(stretch, done, strict=True):
            self.add((kept[number] for number in created if number in kept), 1)
            self.add((kept[number] for number in spent), -1)
            assert self.figures(expected) == expected, f"after block {block.height}"
        assert self.chain.view.unspent == self.count

    def assert_checkpoint(self, expected: dict[str, Any]) -> None:
        parts = list(live_set(self.chain.store.disk))
        for name in {"digest", "core_digest"} & set(expected):
            assert digest(f"{line}\n" for part in parts for line in plain(part)) == expected[name], expected
        for name in {"digest_addr", "digest_script"} & set(expected):
            pairs = (pair for part in parts for pair in zip(plain(part), addresses(part), strict=True))
            assert digest(f"{line}:{address}\n" for line, address in pairs) == expected[name], expected

    def figures(self, expected: Figures) -> Figures:
        acc, acc_addr = f"{self.acc % 2**256:064x}", f"{self.acc_addr % 2**256:064x}"
        return Figures(self.count, self.value, acc, acc_addr if expected.acc_addr else "")


def lines(stored: Stored, numbers: Numbers) -> dict[int, tuple[str, str, int]]:
    bodies = stored.bodies(numbers)
    homes = stored.homes(np.array(list(bodies), np.int64))
    return {
        at: (f"{homes[at].txid.hex()}:{homes[at].output}:{body.value}", body.address.hex(), body.value)
        for at, body in bodies.items()
    }


def plain(part: Part) -> Iterator[str]:
    for tx, index, value in zip(part.of_tx, part.indexes, part.values, strict=True):
        yield f"{part.txids[64 * tx : 64 * tx + 64]}:{index}:{value}"


def addresses(part: Part) -> Iterator[str]:
    for start, middle in zip(part.starts, part.middles, strict=True):
        yield part.heap[start:middle].hex()


def stretches(
    blocks: Iterable[BlockApplied],
    wanted: Iterable[dict[str, Any]],
    figures: Callable[[dict[str, Any]], Figures],
    length: int,
    ends: Container[str],
) -> Iterator[Stretch]:
    """Yield so many blocks at a time, with what is expected after each; those that `ends` names are a last one."""
    stretch: Stretch = []
    for n, (block, expected) in enumerate(busy(zip(blocks, wanted, strict=True), ends)):
        if n == LONG:
            length *= 30
        stretch.append((block, figures(expected)))
        if len(stretch) == length or block.hash.hex() in ends or any(not tx.valid for tx in block.txs):
            yield stretch
            stretch = []
    if stretch:
        yield stretch


def busy(
    run: Iterable[tuple[BlockApplied, dict[str, Any]]], ends: Container[str]
) -> Iterator[tuple[BlockApplied, dict[str, Any]]]:
    """Leave out empty blocks after many in a row, but for those that `ends` names."""
    idle, last = 0, None
    for block, expected in run:
        idle = 0 if block.txs else idle + 1
        if idle <= IDLE or block.hash.hex() in ends:
            yield structs.replace(block, prev_hash=last or block.prev_hash), expected
            last = block.hash


def apply_all(chain: Chain, run: Iterable[Stretch], marks: dict[str, dict[str, Any]]) -> list[tuple[bytes, Figures]]:
    """Apply a run with a commit for each stretch; compare every block's effects, and the whole set at `marks`."""
    random, reader, done, seen = Random(7), Reader(chain), Stretch(), list[tuple[bytes, Figures]]()
    reader.begin()
    rollbacks = 0
    for stretch in run:
        reader.see(stretch)
        seen += [(block.hash, figures) for block, figures in stretch]
        done += stretch
        del done[:-60]
        last = done[-1][0]
        failed = any(not tx.valid for tx in last.txs)
        if (not rollbacks and len(done) > 2) or ((failed or random.random() < 0.001 * len(stretch)) and len(done) > 1):
            rollbacks += 1
            back = random.randrange(1, len(done))
            chain.rollback(Rollback(to=RollbackPoint(hash=done[-1 - back][0].hash)))
            reader.begin()
            expected = done[-1 - back][1]
            assert reader.figures(expected) == expected, f"after {back} blocks were rolled back from {last.height}"
            reader.see(done[-back:])
        if (mark := marks.pop(last.hash.hex(), None)) is not None:
            reader.assert_checkpoint(mark)
    assert rollbacks and not marks
    return seen


def finish(chain: Chain, kind: Kind, seen: list[tuple[bytes, Figures]], genesis: int) -> None:
    """Prune and verify the store, or roll everything back, half of what is left at a time."""
    if kind.prunes:
        while chain.due_for_pruning():
            chain.prune()
        assert verify(chain.store.disk, leaves=chain.store.leaves) == []
        return
    reader = Reader(chain)
    while len(seen) > 1:
        del seen[len(seen) // 2 :]
        chain.rollback(Rollback(to=RollbackPoint(hash=seen[-1][0])))
        reader.begin()
        assert reader.figures(seen[-1][1]) == seen[-1][1]
        assert chain.view.unspent == reader.count
    chain.rollback(Rollback(to="origin"))
    reader.begin()
    assert reader.count == chain.view.unspent == genesis
    assert chain.history.state.next_number == genesis
    assert verify(chain.store.disk, leaves=chain.store.leaves) == []


@pytest.mark.parametrize(("run", "kind"), CARDANO)  # the longest run once
def test_cardano_run(run: str, kind: Kind, tmp_path: Path) -> None:
    genesis, marks = genesis_of(run), checkpoints(run)

    def figures(row: dict[str, Any]) -> Figures:
        return Figures(row["utxo_count"], row["utxo_sum"], row["acc"], row["acc_addr"])

    with opened(tmp_path, "cardano", kind) as chain:
        if genesis.outputs:
            chain.seed(genesis)
        blocks = read_chain(need(run), network_of(run), genesis=genesis.outputs)
        seen = apply_all(chain, stretches(blocks, expected_rows(run), figures, kind.at_once, set(marks)), marks)
        finish(chain, kind, seen, len(genesis.outputs))


@pytest.mark.parametrize("run", RUNS)
@pytest.mark.parametrize(("kind", "keep"), [(MMR, False), (BATCHES, True)], ids=["core", "utxo"])
def test_bitcoin_run(run: str, keep: bool, kind: Kind, tmp_path: Path) -> None:
    source, name, expected = open_run(run, mark_unspendable=not keep)
    wanted = {"digest", "digest_script"} if keep else {"core_digest"}
    summary = find(f"{name}.summary.json")
    points = [] if summary is None else document(summary)["checkpoints"]
    marks = {row["hash"]: {each: row[each] for each in wanted} for row in points}

    def figures(row: dict[str, Any]) -> Figures:
        kept = row if keep else row["core"]
        return Figures(kept["utxo_count"], kept["utxo_sum"], kept["acc"], row["acc_script"] if keep else "")

    with source, opened(tmp_path, "bitcoin", kind) as chain:
        blocks = every_output(source.blocks()) if keep else source.blocks()
        seen = apply_all(chain, stretches(blocks, expected, figures, kind.at_once, set(marks)), marks)
        finish(chain, kind, seen, 0)


def every_output(blocks: Iterable[BlockApplied]) -> Iterator[BlockApplied]:
    """Yield blocks whose every output is kept, also the first coinbase's and those that nobody can spend."""
    for block in blocks:
        yield structs.replace(block, txs=[_kept(tx) for tx in block.txs])


def _kept(tx: Tx) -> Tx:
    return structs.replace(tx, outputs=[structs.replace(output, spendable=True) for output in tx.outputs])
