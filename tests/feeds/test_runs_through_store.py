"""Every run of real blocks, applied to a real store, is after each block what another decoder computed.

What the store holds is read back from its tables: the outputs that a block created by their place, those that it spent
by its undo record. At checkpoints and after rollbacks the whole set is read. A commit is of one block with the one kind
of undo records, of several with the other.
"""

import hashlib
import json
from collections.abc import Callable, Container, Iterable, Iterator
from contextlib import contextmanager
from pathlib import Path
from random import Random
from typing import Any

import pytest
from bitcoin_runs import RUNS, open_run
from msgspec import structs
from real_data import names, need, rows
from storage.utxo import TABLES, UtxoStore
from storage.verify import verify

from feeds.cardano.chunks import read_chain
from feeds.cardano.eras import NETWORKS as CARDANO
from feeds.cardano.genesis import read_genesis
from handlers.chain import Chain
from handlers.events import BlockApplied, Rollback, RollbackPoint, Tx
from storage import keys
from storage.disk import Disk, Txn
from storage.rows import SPENT, Body, body_of, unpack
from storage.windows import Windows

Stretch = list[tuple[BlockApplied, dict[str, Any]]]  # blocks, each with the figures that are expected after it
KINDS = pytest.mark.parametrize(
    ("self_contained", "at_once"), [(False, 1), (True, 7)], ids=["compact", "self-contained"]
)
CARDANO_RUNS = names("cardano/*-*")


@contextmanager
def opened(folder: Path, family: str, windows: Windows) -> Iterator[Chain]:
    wanted = ["address_hash", "payment_credential"] if family == "cardano" else ["address_hash"]
    with Disk(folder / "lmdb", TABLES, map_size=64 << 20, durable=False) as disk:
        store = UtxoStore(disk)
        store.open(f"{family}/test", wanted)
        yield Chain(store, windows, 500)


class Reader:
    """What a store says of its live set, as the figures that are expected."""

    def __init__(self, chain: Chain) -> None:
        self.chain = chain
        self.acc = 0

    def begin(self) -> None:
        """Count the whole set."""
        self.acc = sum(number(line) for line in self.whole())

    def follow(self, ordinal: int) -> None:
        """Count what one block did, as its rows and its undo record say."""
        store = self.chain.store
        with store.disk.read() as txn:
            own = keys.u32(ordinal)
            for place, row in store.scan(txn, store.output, own):
                self.acc += number(line(store, txn, place, row))
            undo = store.undo_at(txn, ordinal)
            assert undo is not None
            places = [undo.spent[at : at + 12] for at in range(0, len(undo.spent), 12)]
            for place, row in store.rows(txn, places).items():
                assert row[0] == SPENT
                self.acc -= number(line(store, txn, place, row))

    def see(self, stretch: Stretch) -> None:
        """Apply some blocks in one commit, and compare what each of them did."""
        for block, _ in stretch:
            self.chain.apply(block, None)
        self.chain.commit()
        first = self.chain.state.tip - len(stretch) + 1
        for ordinal, (block, expected) in enumerate(stretch, first):
            self.follow(ordinal)
            assert self.figures()["acc"] == expected["acc"], f"after block {block.height}"
        assert self.figures() == stretch[-1][1], f"after block {stretch[-1][0].height}"

    def whole(self, *, addresses: bool = False) -> list[str]:
        """Return a line for each live output, with its address or without."""
        store = self.chain.store
        with store.disk.read() as txn:
            live = [(place, row) for place, row in store.scan(txn, store.output) if row[0] != SPENT]
            return [line(store, txn, place, row, addresses=addresses) for place, row in live]

    def assert_checkpoint(self, expected: dict[str, Any]) -> None:
        """Compare the whole set, value by value and address by address."""
        for name in {"digest", "core_digest"} & set(expected):
            assert digest(self.whole()) == expected[name], expected
        for name in {"digest_addr", "digest_script"} & set(expected):
            assert digest(self.whole(addresses=True)) == expected[name], expected

    def figures(self) -> dict[str, Any]:
        return {"utxo_count": self.chain.view.unspent, "acc": f"{self.acc % 2**256:064x}"}


def line(store: UtxoStore, txn: Txn, place: bytes, row: bytes, *, addresses: bool = False) -> str:
    body = unpack(Body, body_of(row), "an output")
    address = f":{body.address.hex()}" if addresses else ""
    return f"{store.txid_at(txn, place).hex()}:{keys.number(place[8:])}:{body.value}{address}\n"


def digest(lines: list[str]) -> str:
    return hashlib.sha256("".join(sorted(lines)).encode()).hexdigest()


def checkpoints(name: str) -> dict[str, dict[str, Any]]:
    """Return the full digests that are expected of a run, by the hash of the block that they are after."""
    folder = need("expected")
    if (epochs := folder / f"{name}.epochs.json").exists():
        return {row["last_hash"]: row for row in json.loads(epochs.read_text())["epochs"]}
    summary = folder / f"{name}.summary.json"
    rows = json.loads(summary.read_text())["checkpoints"] if summary.exists() else []
    return {row["hash"]: row for row in rows}


def number(text: str) -> int:
    return int.from_bytes(hashlib.sha256(text.encode()).digest(), "big")


def stretches(
    blocks: Iterable[BlockApplied],
    wanted: Iterable[dict[str, Any]],
    figures: Callable[[dict[str, Any]], dict[str, Any]],
    length: int,
    ends: Container[str],
) -> Iterator[Stretch]:
    """Yield so many blocks at a time, with what is expected after each; those that `ends` names are a last one."""
    stretch: Stretch = []
    for block, expected in zip(blocks, wanted, strict=True):
        stretch.append((block, figures(expected)))
        if len(stretch) == length or block.hash.hex() in ends or any(not tx.valid for tx in block.txs):
            yield stretch
            stretch = []
    if stretch:
        yield stretch


def apply_all(chain: Chain, run: Iterable[Stretch], marks: dict[str, dict[str, Any]]) -> Reader:
    """Apply a run, a commit for each stretch; look at what every block did, and at the whole set at `marks`.

    Now and then, and with every block in which a transaction failed, take a random number of blocks back, look at the
    whole set, and bring them again.
    """
    random, reader, done = Random(7), Reader(chain), Stretch()
    reader.begin()
    rollbacks = 0
    for stretch in run:
        reader.see(stretch)
        done += stretch
        del done[:-60]
        last = done[-1][0]
        failed = any(not tx.valid for tx in last.txs)
        if (not rollbacks and len(done) > 2) or ((failed or random.random() < 0.002 * len(stretch)) and len(done) > 1):
            rollbacks += 1
            back = random.randrange(1, len(done))
            chain.rollback(Rollback(to=RollbackPoint(hash=done[-1 - back][0].hash)))
            reader.begin()
            assert reader.figures() == done[-1 - back][1], f"after {back} blocks were taken back from {last.height}"
            reader.see(done[-back:])
        if (mark := marks.pop(last.hash.hex(), None)) is not None:
            reader.assert_checkpoint(mark)
    assert rollbacks and not marks
    return reader


def plain_figures(row: dict[str, Any]) -> dict[str, Any]:
    return {name: row[name] for name in ("utxo_count", "acc")}


@pytest.mark.parametrize("run", CARDANO_RUNS)
@KINDS
def test_cardano_run(run: str, self_contained: bool, at_once: int, tmp_path: Path) -> None:
    folder = need(run)
    expected = need(f"expected/{run.replace('/', '-')}.blocks.jsonl.xz")
    network = CARDANO[Path(run).name.split("-")[0]]
    genesis = read_genesis([folder / "genesis.json"]).outputs if (folder / "genesis.json").exists() else None
    windows = Windows(80, 100)
    with opened(tmp_path, "cardano", windows) as chain:
        if genesis is not None:
            chain.seed(genesis)
        born = genesis.outputs if genesis else ()
        blocks = read_chain(folder, network, genesis=born)
        marks = checkpoints(run.replace("/", "-"))
        apply_all(chain, stretches(blocks, rows(expected), plain_figures, at_once, set(marks)), marks)
        while chain.due_for_pruning():
            chain.prune()
        assert verify(chain.store, windows) == []


@pytest.mark.parametrize("run", RUNS)
@pytest.mark.parametrize("keep", [False, True], ids=["core", "utxo"])
@KINDS
def test_bitcoin_run(run: str, keep: bool, self_contained: bool, at_once: int, tmp_path: Path) -> None:
    source, name, expected = open_run(run, mark_unspendable=not keep)
    wanted = {"digest", "digest_script"} if keep else {"core_digest"}
    marks = {at: {each: row[each] for each in wanted} for at, row in checkpoints(Path(name).name).items()}

    def figures(row: dict[str, Any]) -> dict[str, Any]:
        return plain_figures(row if keep else row["core"])

    with source, opened(tmp_path, "bitcoin", Windows(80, 100)) as chain:
        blocks = every_output(source.blocks()) if keep else source.blocks()
        apply_all(chain, stretches(blocks, expected, figures, at_once, set(marks)), marks)
        assert verify(chain.store, chain.windows) == []


def every_output(blocks: Iterable[BlockApplied]) -> Iterator[BlockApplied]:
    """Yield blocks whose every output is kept, also the first coinbase's and those that nobody can spend."""
    for block in blocks:
        yield structs.replace(block, txs=[_kept(tx) for tx in block.txs])


def _kept(tx: Tx) -> Tx:
    return structs.replace(tx, outputs=[structs.replace(output, spendable=True) for output in tx.outputs])
