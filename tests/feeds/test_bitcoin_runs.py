"""Every run of real blocks, decoded and applied to a plain dict, is after each block what another decoder computed."""

import hashlib
from collections import Counter
from collections.abc import Iterable
from typing import Any

import pytest
from bitcoin_chains import read_chain
from bitcoin_runs import RUNS, expected_runs, network_of, open_run
from real_data import document, find, lines, names, need, rows

from feeds.bitcoin.networks import MAINNET
from feeds.bitcoin.source import Chain, Options
from handlers.events import BlockApplied, OutPoint, Output, Point, Tx

Figures = tuple[int, int, str, str]


class PlainSet:
    """The unspent outputs as a dict, with the sums that the expected figures are made of."""

    def __init__(self) -> None:
        self.coins: dict[OutPoint, Output] = {}
        self.value = 0
        self.acc = 0
        self.acc_script = 0

    def apply(self, tx: Tx, *, only_spendable: bool) -> list[OutPoint]:
        """Spend, then create; returns the inputs that nobody had created."""
        unknown = [point for point in tx.inputs if not self._remove(point)]
        for index, output in enumerate(tx.outputs):
            if output.spendable or not only_spendable:
                self._remove((tx.txid, index))
                self.coins[tx.txid, index] = output
                self._count((tx.txid, index), output, 1)
        return unknown

    def _remove(self, point: OutPoint) -> bool:
        output = self.coins.pop(point, None)
        if output is not None:
            self._count(point, output, -1)
        return output is not None

    def _count(self, point: OutPoint, output: Output, sign: int) -> None:
        text = line(point, output)
        self.value += sign * output.value
        self.acc = (self.acc + sign * number(f"{text}\n")) % (1 << 256)
        self.acc_script = (self.acc_script + sign * number(f"{text}:{output.address.hex()}\n")) % (1 << 256)

    def figures(self) -> Figures:
        return len(self.coins), self.value, f"{self.acc:064x}", f"{self.acc_script:064x}"

    def digests(self) -> tuple[str, str]:
        plain = digest(f"{line(point, output)}\n" for point, output in self.coins.items())
        return plain, digest(f"{line(point, output)}:{output.address.hex()}\n" for point, output in self.coins.items())

    def script_digest(self) -> str:
        count, value = Counter[str](), Counter[str]()
        for output in self.coins.values():
            count[output.address.hex()] += 1
            value[output.address.hex()] += output.value
        return digest(f"{script}:{count[script]}:{value[script]}\n" for script in count)


def line(point: OutPoint, output: Output) -> str:
    return f"{point[0].hex()}:{point[1]}:{output.value}"


def number(text: str) -> int:
    return int.from_bytes(hashlib.sha256(text.encode()).digest())


def digest(texts: Iterable[str]) -> str:
    return hashlib.sha256("".join(sorted(texts)).encode()).hexdigest()


def check_fields(block: BlockApplied, row: dict[str, Any]) -> None:
    previous = block.prev_hash or bytes(32)
    assert (block.height, block.hash.hex(), previous.hex(), block.time) == tuple(
        row[name] for name in ("height", "hash", "prev_hash", "time")
    )
    assert block.point == Point(row["height"], row["height"], block.hash)
    count_bytes = 1 if len(block.txs) < 0xFD else 3
    assert row["size"] == 80 + count_bytes + sum(tx.size or 0 for tx in block.txs)
    for tx, fields in zip(block.txs, row["txs"], strict=True):
        assert tx.txid.hex() == fields["txid"]
        assert [f"{txid.hex()}:{index}" for txid, index in tx.inputs] == fields["in"]
        assert (len(tx.outputs), sum(output.value for output in tx.outputs)) == (fields["n_out"], fields["sum_out"])
        assert tx.coinbase == (tx is block.txs[0]) == (not tx.inputs)
        assert tx.fee is None


@pytest.mark.parametrize("run", RUNS)
def test_set_after_every_block(run: str) -> None:
    chain, name, expected = open_run(run)
    everything, core = PlainSet(), PlainSet()
    checkpoints = {point["height"]: point for point in summary(name).get("checkpoints", [])}
    with chain:
        for block, row in zip(chain.blocks(), expected, strict=True):
            check_fields(block, row)
            unknown = [point for tx in block.txs for point in everything.apply(tx, only_spendable=False)]
            for tx in block.txs:
                core.apply(tx, only_spendable=True)
            assert len(unknown) == len(row.get("unknown", [])), block.height
            assert everything.figures() == figures(row, "acc_script"), block.height
            assert core.figures()[:3] == figures(row["core"])[:3], block.height
            if point := checkpoints.pop(block.height, None):
                assert everything.digests() == (point["digest"], point["digest_script"])
                assert core.digests()[0] == point["core_digest"]
    assert not checkpoints
    check_end(name, everything, core)


def figures(row: dict[str, Any], script: str | None = None) -> Figures:
    return row["utxo_count"], row["utxo_sum"], row["acc"], row[script] if script else ""


def summary(name: str) -> dict[str, Any]:
    path = find(f"{name}.summary.json")
    found: dict[str, Any] = {} if path is None else document(path)
    return found


def check_end(name: str, everything: PlainSet, core: PlainSet) -> None:
    """The final figures, where the data have them besides those of the last block."""
    if final := summary(name).get("final"):
        assert everything.figures()[:3] == figures(final)[:3]
        assert everything.digests() == (final["digest"], final["digest_script"])
        assert everything.script_digest() == final["script_digest"]
    if final := summary(name).get("final_core_rules"):
        assert core.figures()[:2] == (final["utxo_count"], final["utxo_sum"])
        assert core.digests() == (final["digest"], final["digest_script"])
    if (path := find(f"{name}.utxo.csv.xz")) is not None:
        listed = (text.split(",") for text in lines(path))
        coins = {(bytes.fromhex(row[0]), int(row[1])): (int(row[2]), bytes.fromhex(row[3])) for row in listed}
        assert {point: (output.value, output.address) for point, output in everything.coins.items()} == coins


@pytest.mark.parametrize("run", names("bitcoin/*-0-*.hex.xz"))
def test_without_marks_everything_is_spendable(run: str) -> None:
    """Then a set that keeps spendable outputs only has the genesis coinbase and OP_RETURN as well."""
    coins = PlainSet()
    for block in read_chain(need(run), network_of(run), options=Options(mark_unspendable=False)):
        for tx in block.txs:
            coins.apply(tx, only_spendable=True)
    _, expected = expected_runs()[block.hash.hex()]
    assert coins.figures() == figures(expected[-1], "acc_script")


def test_the_branch_with_more_work_wins() -> None:
    """Both branches of a real reorganisation in one folder: the longer one is the chain, the other is named."""
    folder = need("bitcoin/reorg")
    loser = need("expected/bitcoin-reorg-main-0-4.blocks.jsonl.xz")
    with Chain(folder, MAINNET) as chain:
        name, expected = expected_runs()[chain.tip.hash.hex()]
        assert name == "expected/bitcoin-reorg-after-0-2-3A-4A-5A"
        assert [block.hash.hex() for block in chain.blocks()] == [row["hash"] for row in expected]
        stale = [point.hash.hex() for point in chain.stale]
    assert stale == [row["hash"] for row in rows(loser)][3:]
