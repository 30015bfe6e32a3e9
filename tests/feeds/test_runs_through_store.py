"""Every run of real blocks, applied to a real store, is after each block what another decoder computed.

What the store holds is read back from its tables: the outputs that a block created by their place, those that it spent
by its undo record. At checkpoints and after rollbacks the whole set is read.
"""

import hashlib
import json
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from pathlib import Path
from random import Random
from typing import Any

import pytest
from bitcoin_runs import RUNS, open_run
from msgspec import structs
from real_data import names, need, rows

from feeds.cardano.chunks import read_chain
from feeds.cardano.eras import NETWORKS as CARDANO
from feeds.cardano.genesis import read_genesis
from handlers.chain import Chain
from handlers.events import BlockApplied, Rollback, RollbackPoint, Tx
from storage import keys
from storage.disk import Disk, Txn
from storage.prune import Windows
from storage.rows import SPENT, Body, body_of, unpack
from storage.utxo import TABLES, UtxoStore
from storage.verify import verify

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

    def whole(self) -> list[str]:
        """Return a line for each live output."""
        store = self.chain.store
        with store.disk.read() as txn:
            live = [(place, row) for place, row in store.scan(txn, store.output) if row[0] != SPENT]
            return [line(store, txn, place, row) for place, row in live]

    def figures(self) -> dict[str, Any]:
        return {"utxo_count": self.chain.view.unspent, "acc": f"{self.acc % 2**256:064x}"}


def line(store: UtxoStore, txn: Txn, place: bytes, row: bytes) -> str:
    value = unpack(Body, body_of(row), "an output").value
    return f"{store.txid_at(txn, place).hex()}:{keys.number(place[8:])}:{value}\n"


def number(text: str) -> int:
    return int.from_bytes(hashlib.sha256(text.encode()).digest(), "big")


def apply_all(
    chain: Chain,
    blocks: Iterable[BlockApplied],
    wanted: Iterable[dict[str, Any]],
    figures: Callable[[dict[str, Any]], dict[str, Any]],
) -> Reader:
    """Apply a run block by block; now and then take a random number of blocks back, look, and bring them again."""
    random, reader, done = Random(7), Reader(chain), list[tuple[BlockApplied, dict[str, Any]]]()
    reader.begin()
    rollbacks = 0
    for block, expected in zip(blocks, wanted, strict=True):
        chain.apply(block, None)
        chain.commit()
        reader.follow(chain.state.tip)
        assert reader.figures() == figures(expected), f"after block {block.height}"
        done.append((block, figures(expected)))
        del done[:-60]
        if len(done) == 3 or (random.random() < 0.002 and len(done) > 1):
            rollbacks += 1
            back = random.randrange(1, len(done))
            chain.rollback(Rollback(to=RollbackPoint(hash=done[-1 - back][0].hash)))
            reader.begin()
            assert reader.figures() == done[-1 - back][1], (
                f"after {back} blocks were taken back to {block.height - back}"
            )
            for again, _ in done[-back:]:
                chain.apply(again, None)
            chain.commit()
            reader.begin()
            assert reader.figures() == done[-1][1], f"after block {block.height} was brought again"
    assert rollbacks
    return reader


def plain_figures(row: dict[str, Any]) -> dict[str, Any]:
    return {name: row[name] for name in ("utxo_count", "acc")}


@pytest.mark.parametrize("run", CARDANO_RUNS)
@pytest.mark.parametrize("self_contained", [False, True], ids=["compact", "self-contained"])
def test_cardano_run(run: str, self_contained: bool, tmp_path: Path) -> None:
    folder = need(run)
    expected = need(f"expected/{run.replace('/', '-')}.blocks.jsonl.xz")
    network = CARDANO[Path(run).name.split("-")[0]]
    genesis = read_genesis([folder / "genesis.json"]).outputs if (folder / "genesis.json").exists() else None
    windows = Windows(80, 100, self_contained)
    with opened(tmp_path, "cardano", windows) as chain:
        if genesis is not None:
            chain.seed(genesis)
        born = genesis.outputs if genesis else ()
        blocks = read_chain(folder, network, genesis=born)
        reader = apply_all(chain, blocks, rows(expected), plain_figures)
        while chain.due_for_pruning():
            chain.prune()
        plain = "".join(sorted(reader.whole()))
        assert verify(chain.store, windows) == []
    epochs = need("expected") / f"{run.replace('/', '-')}.epochs.json"
    if epochs.exists():
        last = json.loads(epochs.read_text())["epochs"][-1]
        assert hashlib.sha256(plain.encode()).hexdigest() == last["digest"]


@pytest.mark.parametrize("run", RUNS)
@pytest.mark.parametrize("keep", [False, True], ids=["core", "utxo"])
def test_bitcoin_run(run: str, keep: bool, tmp_path: Path) -> None:
    source, _, expected = open_run(run, mark_unspendable=not keep)

    def figures(row: dict[str, Any]) -> dict[str, Any]:
        return plain_figures(row if keep else row["core"])

    with source, opened(tmp_path, "bitcoin", Windows(80, 100, False)) as chain:
        apply_all(chain, every_output(source.blocks()) if keep else source.blocks(), expected, figures)
        assert verify(chain.store, chain.windows) == []


def every_output(blocks: Iterable[BlockApplied]) -> Iterator[BlockApplied]:
    """Yield blocks whose every output is kept, also the first coinbase's and those that nobody can spend."""
    for block in blocks:
        yield structs.replace(block, txs=[_kept(tx) for tx in block.txs])


def _kept(tx: Tx) -> Tx:
    return structs.replace(tx, outputs=[structs.replace(output, spendable=True) for output in tx.outputs])
