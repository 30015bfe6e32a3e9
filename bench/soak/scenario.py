"""A generated chain with forks, rollbacks and submissions, and the set of unspent outputs after each prefix of it."""

from __future__ import annotations

from hashlib import blake2b
from random import Random

import msgspec
from msgspec import Struct

from bench.sample import Coins, Sample
from handlers.events import BlockApplied, Inbound, Rollback, RollbackPoint, Tx, TxSubmitted

_SLOTS = 20
_DEEPEST = 20  # blocks of a branch that is given up; every kind of store can roll back so far


class Step(Struct, frozen=True):
    """One message, and the chain once it is carried out: the tip's hash and a digest of the live set."""

    message: Inbound
    tip: bytes | None
    digest: bytes


class Scenario:
    """Messages in the order in which a feeder sends them, and what each leads to; the same for the same seed."""

    def __init__(self, seed: int, blocks: int, *, txs: int = 6, submissions: bool = True) -> None:
        self.steps: list[Step] = []
        self._random, self._sample = Random(seed), Sample(seed, txs)
        self._submissions = submissions
        self._add(self._sample.genesis(), None)
        forks = 0
        while self._sample.height < blocks:
            if self._sample.height > 2 and self._random.random() < 0.15:
                forks += 1
                self._fork(f"fork {forks}")
            self._block()

    def __len__(self) -> int:
        """Return the number of messages."""
        return len(self.steps)

    def numbered(self, n: int) -> Inbound:
        """Return message `n` with its number as `seq`."""
        return msgspec.structs.replace(self.steps[n].message, seq=n)

    def places(self, tip: bytes | None, first: int, last: int) -> list[int]:
        """Return the numbers of carried out messages, from `first` to `last`, that lead to a tip."""
        return [n for n in range(first, last + 1) if (self.steps[n - 1].tip if n else None) == tip]

    def digest(self, done: int) -> bytes:
        """Return the digest of the live set after a number of messages."""
        return self.steps[done - 1].digest if done else digest_of([])

    def _fork(self, branch: str) -> None:
        """Follow a branch for a while, then give it up."""
        sample = self._sample
        coins, tip, height = dict(sample.coins), sample.tip, sample.height
        deepest = _DEEPEST if self._random.random() < 0.2 else 4
        for _ in range(self._random.randint(1, deepest)):
            self._block(branch)
        sample.coins, sample.tip, sample.height = coins, tip, height
        self._add(Rollback(to=RollbackPoint(slot=height * _SLOTS, hash=tip)), tip)

    def _block(self, branch: str = "") -> None:
        sample, before = self._sample, self._sample.tip if self._sample.height else None
        coins = dict(sample.coins)
        block = sample.block(branch)
        if self._submissions and self._random.random() < 0.3:
            digest = digest_of(lines_of(coins))
            for tx in self._some(block):
                self.steps.append(Step(TxSubmitted(tx=tx), before, digest))
        self._add(block, sample.tip)

    def _some(self, block: BlockApplied) -> list[Tx]:
        """Return transactions of a block that can be submitted before the block, some with their bytes."""
        here = {tx.txid for tx in block.txs}
        fit = [tx for tx in block.txs if tx.valid and not here.intersection(txid for txid, _ in tx.inputs)]
        chosen = self._random.sample(fit, min(len(fit), self._random.randint(1, 3)))
        return [
            msgspec.structs.replace(tx, raw=self._random.randbytes(self._random.randint(1, 300)) if n % 2 else None)
            for n, tx in enumerate(chosen)
        ]

    def _add(self, message: Inbound, tip: bytes | None) -> None:
        self.steps.append(Step(message, tip, digest_of(lines_of(self._sample.coins))))


def lines_of(coins: Coins) -> list[str]:
    """Return a live set as `utxod export` writes it."""
    return [f"{txid.hex()},{index},{paid.value},{paid.address.hex()}" for (txid, index), paid in coins.items()]


def digest_of(lines: list[str]) -> bytes:
    """Return a digest of a live set in any order."""
    return blake2b("\n".join(sorted(lines)).encode(), digest_size=16).digest()
