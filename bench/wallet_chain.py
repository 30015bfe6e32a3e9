"""The chain of `utxod bench wallets`, in Bitcoin's serialization.

It has ordinary payments, scripts with a history of a known length, the addresses of a wallet, and a last block that
pays to many scripts at once.
"""

from __future__ import annotations

from hashlib import sha256
from itertools import islice
from pathlib import Path
from random import Random

import msgspec
from msgspec import Struct
from msgspec.structs import replace

from bench import raw
from feeds.bitcoin.block import decode_block, double_sha256
from feeds.bitcoin.networks import REGTEST
from handlers import wire
from handlers.events import OutPoint, Output

ENTRIES = 10  # in the history of each watched script
_COINS = 5_000  # that the first block creates
_VALUE = 50_000_000_000
PAID, _FEE = 50_000, 500
_FRESH = 0.6  # share of other outputs whose script occurs nowhere else
_KEPT = 0.6  # share of the outputs of the wallet that are not spent
_MORE_INPUTS = 0.25  # how likely a transaction has one more input than it needs
_MEAN_AGE = 3_000  # of the coins that are spent, in coins
_GENESIS = bytes.fromhex(
    "01000000" + "00" * 32 + "3ba3edfd7a7b12b27ac72c3e67768f617fc81bc3888a51323a9fb8aa4b1e5e4adae5494dffff7f2002000000"
    "0101000000010000000000000000000000000000000000000000000000000000000000000000ffffffff4d04ffff001d0104455468652054"
    "696d65732030332f4a616e2f32303039204368616e63656c6c6f72206f6e206272696e6b206f66207365636f6e64206261696c6f757420666f"
    "722062616e6b73ffffffff0100f2052a01000000434104678afdb0fe5548271967f1a67130b7105cd6a828e03909a67962e0ea1f61deb649f6"
    "bc3f4cef38c4f35504e51ec112de5c384df7ba0b8d578a4c702b6bf11d5fac00000000"
)


class Plan(Struct, frozen=True):
    """How large the chain is."""

    blocks: int
    txs: int
    watched: int  # scripts with `ENTRIES` transactions each; the last block pays to every one of them
    wallet: tuple[bytes, ...]  # scripts that are paid twice each
    last_txs: int


def watched(number: int) -> bytes:
    """Return a script that has a history of a known length."""
    return b"\0\x14" + sha256(b"watched %d" % number).digest()[:20]


class Mined(Struct, frozen=True, array_like=True):
    """A block, and its transactions."""

    raw: bytes
    txs: list[bytes]


class Made(Struct, frozen=True):
    """The blocks from the genesis block on. The last one is the one that sessions are notified of."""

    blocks: list[Mined]

    @property
    def height(self) -> int:
        """Return the height of the block before the last one."""
        return len(self.blocks) - 2

    @property
    def transactions(self) -> int:
        """Return the number of transactions up to this height."""
        return sum(len(block.txs) for block in self.blocks[:-1])

    def frames(self) -> list[bytes]:
        """Return the blocks as a feeder sends them."""
        events = (decode_block(each.raw, height, REGTEST) for height, each in enumerate(self.blocks))
        return [wire.encode(replace(event, seq=seq), "frames") for seq, event in enumerate(events, 1)]

    def write(self, path: Path) -> None:
        """Write the blocks for the stand-in node."""
        path.write_bytes(msgspec.msgpack.encode(self.blocks))


def read(path: Path) -> list[Mined]:
    """Return the blocks that `write` wrote."""
    return msgspec.msgpack.decode(path.read_bytes(), type=list[Mined])


def make(plan: Plan) -> Made:
    """Return the chain of a plan; it is always the same."""
    maker = _Maker(plan)
    blocks = [Mined(_GENESIS, [_GENESIS[81:]]), maker.block([])]
    blocks += [maker.block([maker.payment() for _ in range(plan.txs)]) for _ in range(plan.blocks)]
    everyone = [watched(n) for n in range(plan.watched)]
    blocks.append(maker.block([maker.pay(everyone[n :: plan.last_txs]) for n in range(plan.last_txs)]))
    return Made(blocks)


class _Maker:
    def __init__(self, plan: Plan) -> None:
        self._random = Random(1)
        self._tip, self._height = double_sha256(_GENESIS[:80]), 0
        self._coins: list[tuple[OutPoint, int]] = []
        self._numbers = 0
        self._wallet = frozenset(plan.wallet)
        rounds = [[watched(n) for n in range(plan.watched)] for _ in range(ENTRIES)]
        rounds += [list(plan.wallet), list(plan.wallet)]
        for each in rounds:
            self._random.shuffle(each)
        due = [script for each in rounds for script in each]
        self._each = -(-len(due) // (plan.blocks * plan.txs))
        self._due = iter(due)

    def payment(self) -> bytes:
        """Return a transaction that pays to the next scripts that are due, and to others."""
        paid = dict.fromkeys(islice(self._due, self._each))
        others = [self._script() for _ in range(self._random.choice((1, 1, 2)))]
        return self.pay([*paid], others)

    def _script(self) -> bytes:
        self._numbers += 1
        busy = self._random.random() > _FRESH
        name = b"busy %d" % min(self._random.paretovariate(0.5), 1e6) if busy else b"fresh %d" % self._numbers
        return b"\0\x14" + sha256(name).digest()[:20]

    def pay(self, paid: list[bytes], others: list[bytes] | None = None) -> bytes:
        """Return a transaction that pays `PAID` to some scripts, and the rest in equal parts to others."""
        others = others or [self._script()]
        spent, missing = list[OutPoint](), PAID * len(paid) + _FEE + len(others)
        while missing > 0 or self._random.random() < _MORE_INPUTS:
            outpoint, value = self._coin()
            spent.append(outpoint)
            missing -= value
        rest = len(others) - missing
        outputs = [Output(script, PAID) for script in paid] + [Output(each, rest // len(others)) for each in others]
        made = raw.transaction(spent, outputs, 0)
        kept = {n for n, script in enumerate(paid) if script not in self._wallet or self._random.random() < _KEPT}
        self._offer(made, [(n, output) for n, output in enumerate(outputs) if n not in kept])
        return made

    def _coin(self) -> tuple[OutPoint, int]:
        """Take a coin, a recent one more often than an old one."""
        back = min(int(self._random.expovariate(1 / _MEAN_AGE)), len(self._coins) - 1)
        place = len(self._coins) - 1 - back
        self._coins[place], self._coins[-1] = self._coins[-1], self._coins[place]
        return self._coins.pop()

    def _offer(self, made: bytes, outputs: list[tuple[int, Output]]) -> None:
        txid = double_sha256(made)
        self._coins += [((txid, n), output.value) for n, output in outputs]

    def block(self, payments: list[bytes]) -> Mined:
        """Return the next block; the first one creates the coins of all others."""
        self._height += 1
        reward = [Output(self._script(), _VALUE) for _ in range(_COINS if self._height == 1 else 1)]
        coinbase = raw.transaction([], reward, self._height)
        if self._height == 1:
            self._offer(coinbase, list(enumerate(reward)))
        raws = [coinbase, *payments]
        content, self._tip = raw.block(self._tip, self._height, raws, [double_sha256(each) for each in raws])
        return Mined(content, raws)
