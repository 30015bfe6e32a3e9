"""A small generated chain as JSON Lines, always the same: payments among a few hundred addresses, and one fork."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from hashlib import blake2b
from itertools import islice
from random import Random

import click

from handlers import wire
from handlers.events import (
    BlockApplied,
    GenesisOutput,
    GenesisOutputs,
    Inbound,
    OutPoint,
    Output,
    Rollback,
    RollbackPoint,
    Tx,
)

_SLOTS = 20  # between blocks
_BEGAN = 1_700_000_000
Coins = dict[OutPoint, Output]


class Sample:
    """Makes one block after the other."""

    def __init__(self, seed: int, txs: int) -> None:
        self._random = Random(seed)
        self._txs = txs
        self._addresses = [self._address(n) for n in range(300)]
        self._policy = self._digest("policy")[:28]
        self.coins: Coins = {}
        self.height, self.tip = 0, bytes(32)

    def genesis(self) -> GenesisOutputs:
        """Return what exists before the first block."""
        outputs = [
            GenesisOutput(self._digest("genesis", n), 0, Output(self._addresses[n], 10**12 + n)) for n in range(20)
        ]
        self.coins.update({(made.txid, made.index): made.output for made in outputs})
        return GenesisOutputs(outputs=outputs)

    def block(self, branch: str = "") -> BlockApplied:
        """Return the next block; the set moves on with it."""
        self.height += 1
        name = self._digest("block", self.height, branch)
        txs = [self._pay(n, branch) for n in range(self._txs)]
        block = BlockApplied(
            height=self.height,
            slot=self.height * _SLOTS,
            hash=name,
            prev_hash=self.tip if self.height > 1 else None,
            time=_BEGAN + self.height * _SLOTS,
            epoch=self.height // 100,
            txs=txs,
        )
        self.tip = name
        return block

    def _pay(self, number: int, branch: str) -> Tx:
        """Spend one or two coins, some of this very block; now and then a transaction fails its script."""
        random, txid = self._random, self._digest("tx", self.height, number, branch)
        places = [min(int(random.expovariate(0.02)), len(self.coins) - 1) for _ in range(random.randint(1, 2))]
        spent = list(dict.fromkeys(next(islice(reversed(self.coins), n, None)) for n in places))
        value = sum(self.coins.pop(name).value for name in spent)
        if random.random() < 0.01:
            back = Output(random.choice(self._addresses), value - value // 10)
            self.coins[txid, 1] = back
            ask = Output(random.choice(self._addresses), 1_000_000)
            return Tx(txid=txid, valid=False, collateral=spent, collateral_return=back, outputs=[ask], size=300)
        parts = random.randint(1, 4)
        outputs = [self._output(value // parts) for _ in range(parts)]
        self.coins.update({(txid, n): output for n, output in enumerate(outputs)})
        return Tx(txid=txid, inputs=spent, outputs=outputs, fee=value % parts, size=250)

    def _output(self, value: int) -> Output:
        assets = [(self._policy, b"sample", self._random.randint(1, 1000))] if self._random.random() < 0.1 else []
        return Output(self._random.choice(self._addresses), value, assets)

    def _address(self, number: int) -> bytes:
        return b"\x60" + self._digest("address", number)[:28]

    @staticmethod
    def _digest(*parts: object) -> bytes:
        return blake2b("/".join(map(str, parts)).encode(), digest_size=32).digest()


def messages(blocks: int, txs: int = 20, seed: int = 1) -> Iterator[Inbound]:
    """Yield a genesis, `blocks` blocks, and two thirds of the way a fork of three that is given up again."""
    sample = Sample(seed, txs)
    yield sample.genesis()
    for height in range(1, blocks + 1):
        if height == blocks * 2 // 3:
            coins, tip = dict(sample.coins), sample.tip
            yield from [sample.block("given up") for _ in range(3)]
            sample.coins, sample.tip, sample.height = coins, tip, height - 1
            yield Rollback(to=RollbackPoint(slot=(height - 1) * _SLOTS, hash=tip))
        yield sample.block()


@click.command()
@click.option("--blocks", default=300, show_default=True, type=click.IntRange(min=6))
@click.option("--txs", default=20, show_default=True, type=click.IntRange(min=1), help="Transactions in a block.")
@click.option("--seed", default=1, show_default=True)
def main(blocks: int, txs: int, seed: int) -> None:
    """Write a generated chain to standard output, as JSON Lines."""
    for message in messages(blocks, txs, seed):
        sys.stdout.buffer.write(wire.encode(message, "json"))


if __name__ == "__main__":
    main()
