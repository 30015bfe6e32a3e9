"""The prototype of the history: a story of blocks and rollbacks has one answer, however it is batched and merged."""

from __future__ import annotations

import random
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from hashlib import blake2b
from pathlib import Path

import msgspec
import pytest

import bench.history.history
import bench.history.pieces
import bench.history.runs
from bench.history.chain import HistoryChain
from bench.history.columns import RawBlock, columns, read
from bench.history.history import TABLES
from handlers import wire
from handlers.change_log import ChangeLog
from handlers.events import BlockApplied, Output, Rollback, RollbackPoint, Tx
from storage.disk import Disk

WINDOW = 12
FAR = 60  # blocks that are applied far below the tip


def digest(*parts: object) -> bytes:
    return blake2b(repr(parts).encode(), digest_size=32).digest()


class Model:
    """What a chain comes to, told with dicts; one state for each block, so that it can go back."""

    def __init__(self) -> None:
        self.blocks: list[BlockApplied] = []
        self.states: list[dict[tuple[bytes, int], Output]] = [{}]
        self.spends: list[list[tuple[bytes, int]]] = []

    def apply(self, block: BlockApplied) -> int:
        live, missing, spends = dict(self.states[-1]), 0, list[tuple[bytes, int]]()
        for tx in block.txs:
            mine = set[tuple[bytes, int]]()
            for point in tx.inputs if tx.valid else tx.collateral:
                if live.pop(point, None) is not None:
                    spends.append(point)
                    mine.add(point)
                elif point not in mine:
                    missing += 1
            for index, output in enumerate(tx.outputs if tx.valid else ()):
                if output.spendable:
                    live[tx.txid, index] = output
            if not tx.valid and tx.collateral_return:
                live[tx.txid, len(tx.outputs)] = tx.collateral_return
        self.blocks.append(block)
        self.states.append(live)
        self.spends.append(spends)
        return missing

    def back(self, count: int) -> None:
        del self.blocks[-count:], self.states[-count:], self.spends[-count:]


def make(rng: random.Random, model: Model, met: Counter[str]) -> BlockApplied:
    """Return a block of whatever may be in one: spends of old, new and own outputs, missing ones, repeated ones."""
    height = len(model.blocks) + 1
    previous = model.blocks[-1].hash if model.blocks else None
    live, txs, own = list(model.states[-1]), list[Tx](), list[tuple[bytes, int]]()
    spent = [point for spends in model.spends[-WINDOW:] for point in spends]
    for n in range(rng.randrange(6)):
        txid, inputs = digest("tx", height, n, rng.random()), list[tuple[bytes, int]]()
        for _ in range(rng.randrange(4)):
            kind, there = rng.choice(("live", "own", "lost", "spent", "index")), live or own
            if kind == "live" and live:
                inputs.append(live.pop(rng.randrange(len(live))))
            elif kind == "own" and own:
                inputs.append(rng.choice(own))
            elif kind == "lost":
                inputs.append((digest("lost", rng.random()), 0))
            elif kind == "spent" and spent:
                inputs.append(rng.choice(spent))
            elif kind == "index" and there:
                inputs.append((rng.choice(there)[0], 200))
            else:
                continue
            met[kind] += 1
            if rng.random() < 0.1:
                inputs.append(inputs[-1])
                met["twice"] += 1
        outputs = [
            Output(b"address %d" % rng.randrange(5), rng.choice((0, 5, 300, 70_000, 1 << 40)))
            if rng.random() < 0.9
            else Output(b"j" * rng.randrange(1, 200), 0, spendable=False)
            for _ in range(rng.choice((0, 1, 2, 3, 20)))
        ]
        if rng.random() < 0.1:
            back = Output(b"address 0", 7) if rng.random() < 0.7 else None
            txs.append(Tx(txid, [], outputs, valid=False, collateral=inputs, collateral_return=back))
            own += [(txid, len(outputs))] if back else []
            met["failed"] += 1
            continue
        own += [(txid, index) for index, output in enumerate(outputs) if output.spendable]
        txs.append(Tx(txid=txid, inputs=inputs, outputs=outputs))
    return BlockApplied(height=height, hash=digest("block", height, rng.random()), prev_hash=previous, txs=txs)


@contextmanager
def opened(folder: Path) -> Iterator[HistoryChain]:
    with Disk(folder, TABLES, map_size=1 << 24, durable=False) as disk:
        yield HistoryChain(disk, WINDOW, ChangeLog(disk))


def agree(chain: HistoryChain, model: Model, met: Counter[str]) -> None:
    history = chain.history
    with chain.store.disk.read() as txn:
        names = dict[int, tuple[bytes, int]]()
        live, wanted = model.states[-1], [txid for block in model.blocks for txid in (tx.txid for tx in block.txs)]
        prefixes = history.prefixes(bench.history.columns.words(b"".join(wanted)))
        first, count = history.find_txs(txn, bench.history.columns.words(b"".join(wanted)), prefixes)
        for txid, at, outputs in zip(wanted, first.tolist(), count.tolist(), strict=True):
            names |= {at + index: (txid, index) for index in range(outputs) if at >= 0}
        found = {names[number]: body for number, body in history.all(txn).items()}
        assert found == {point: (output.value, output.address) for point, output in live.items()}
        assert history.state.unspent == len(live)
        for address in {output.address for output in live.values()}:
            here = [names[number] for number in history.at_address(txn, address)]
            assert here == [point for point, output in live.items() if output.address == address]
        floor = max(history.state.floor, 0)
        for ordinal in range(floor + 1, len(model.blocks) + 1):
            numbers = history.undo(txn, ordinal)["number"].tolist()
            assert [names.get(number) for number in numbers] == model.spends[ordinal - 1]
            for number, point in zip(numbers, model.spends[ordinal - 1], strict=True):
                spender = history.spender_of(txn, number)
                assert spender is not None and spender[0] == ordinal
                tx = model.blocks[ordinal - 1].txs[spender[1]]
                assert point in (tx.inputs if tx.valid else tx.collateral)
                met["spender"] += 1
        runs = [run for index in history.index.values() for run in index.manifest.runs]
        met["levels"] = max(met["levels"], *(run.level for run in runs), 0)
        met["merge under way"] += any(index.manifest.merge is not None for index in history.index.values())


def tell(folder: Path, seed: int, batch: int, met: Counter[str]) -> list[tuple[int, bytes]]:
    """Tell one story, committed every so many blocks; return which numbers live in the end, with their bodies."""
    rng, dice, model = random.Random(seed), random.Random(batch), Model()
    for _ in range(40):
        far = 10**6 if len(model.blocks) < FAR else None
        with opened(folder) as chain:
            for _ in range(dice.randrange(1, 4)):
                for _ in range(rng.randrange(1, 8)):
                    block = make(rng, model, met)
                    missing = model.apply(block)
                    assert chain.apply(block, far)
                    met["far"] += far is not None
                    met["missing"] += missing
                    if dice.randrange(batch) == 0:
                        chain.commit()
                chain.commit()
                if rng.random() < 0.4 and len(model.blocks) > WINDOW + 2 and far is None:
                    depth = rng.randrange(1, WINDOW)
                    if len(model.blocks) - depth < chain.history.state.floor:
                        continue
                    model.back(depth)
                    assert chain.rollback(Rollback(to=RollbackPoint(hash=model.blocks[-1].hash)))
                    met["rollback"] += 1
                agree(chain, model, met)
            met["reopened"] += 1
    return []


@pytest.mark.parametrize("batch", [1, 5])
@pytest.mark.parametrize("seed", range(3))
def test_a_story_has_one_answer(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, seed: int, batch: int) -> None:
    monkeypatch.setattr(bench.history.runs, "PER_VALUE", 8)
    monkeypatch.setattr(bench.history.runs, "_FANOUT", 3)
    monkeypatch.setattr(bench.history.history, "MERGED", 12)
    monkeypatch.setattr(bench.history.pieces, "BYTES", 400)
    met = Counter[str]()
    tell(tmp_path, seed, batch, met)
    for what in (
        "live",
        "own",
        "lost",
        "spent",
        "index",
        "twice",
        "missing",
        "failed",
        "far",
        "rollback",
        "reopened",
        "spender",
    ):
        assert met[what] > 5, met
    assert met["levels"] >= 2 and met["merge under way"] > 3, met


def test_columns_of_bytes_are_those_of_objects() -> None:
    rng, model, met = random.Random(1), Model(), Counter[str]()
    for _ in range(60):
        block = make(rng, model, met)
        model.apply(block)
        raw = read(wire.encode(block, "frames")[4:])
        if not block.txs or not all(tx.valid for tx in block.txs):
            assert raw is None
            continue
        assert isinstance(raw, RawBlock)
        fast, plain = columns(raw), columns(block)
        for name in ("txids", "outputs_of", "previous", "index", "inputs_of", "values", "spendable"):
            assert getattr(fast, name).tolist() == getattr(plain, name).tolist(), name
        assert fast.addresses == plain.addresses


def test_bytes_that_only_look_like_an_output_are_read_the_general_way() -> None:
    inside = b"\x82\xa7address\xc4\x01a\xa5value\x01"
    block = BlockApplied(
        height=1, hash=bytes(32), txs=[Tx(txid=bytes(32), outputs=[Output(b"x" + inside, 1), Output(inside, 2)])]
    )
    raw = read(wire.encode(block, "frames")[4:])
    assert raw is None or columns(raw).addresses == [b"x" + inside, inside]


@pytest.mark.parametrize("cut", range(1, 120, 7))
def test_a_damaged_frame_is_left_to_the_decoder(cut: int) -> None:
    tx = Tx(txid=bytes(32), inputs=[(bytes(32), 1)], outputs=[Output(b"a", 1)])
    block = BlockApplied(height=1, hash=bytes(32), txs=[tx])
    frame = bytearray(wire.encode(block, "frames")[4:])
    frame[-cut] ^= 0xFF
    if (raw := read(frame)) is not None:
        whole = msgspec.msgpack.decode(bytes(frame), type=BlockApplied)
        fast, plain = columns(raw), columns(whole)
        assert (fast.addresses, fast.values.tolist()) == (plain.addresses, plain.values.tolist())
        assert (fast.previous.tolist(), fast.index.tolist()) == (plain.previous.tolist(), plain.index.tolist())
