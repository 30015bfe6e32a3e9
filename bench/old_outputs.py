"""An initial set of outputs for a measurement: any number of outputs, generated from a seed, not kept in memory."""

from __future__ import annotations

import os
import shutil
from collections.abc import Iterable, Iterator
from functools import lru_cache
from hashlib import blake2b
from itertools import islice
from pathlib import Path
from random import Random
from typing import Literal

import click
import msgspec

from bench import raw
from bench.daemon import Client, running
from feeds.bitcoin.block import double_sha256
from handlers import wire
from handlers.events import BlockApplied, OutPoint, Output, Tx

Spending = Literal["uniform", "recent"]
FAR = 10_000_000  # a height of the network that leaves every block here far below its tip
_PER_TX = 2
_TXS = 10_000  # in a block
_FRESH = 0.6  # of the outputs have an address of their own
_REUSED = 50_000  # addresses that share the rest
_RECENT = 60_000  # outputs among which the next one is taken, where recent ones are spent
_MARK = "old.json"


class OldSet(msgspec.Struct, frozen=True):
    """A number of outputs, two in each transaction; `busy` per cent of them belong to one address."""

    outputs: int
    seed: int = 1
    busy: int = 0

    @property
    def name(self) -> str:
        """Return a name that no other set has."""
        return f"old-{self.outputs}-{self.seed}-{self.busy}"

    @property
    def height(self) -> int:
        """Return the height of the last block."""
        return -(-self.outputs // (_PER_TX * _TXS))

    @property
    def tip(self) -> bytes:
        """Return the hash of the last block."""
        return self._hash(self.height)

    def blocks(self) -> Iterator[BlockApplied]:
        """Yield large blocks that create the set, and nothing else."""
        txs = -(-self.outputs // _PER_TX)
        for height in range(1, self.height + 1):
            numbers = range((height - 1) * _TXS, min(height * _TXS, txs))
            before = self._hash(height - 1) if height > 1 else None
            made = [self._tx(number) for number in numbers]
            yield BlockApplied(seq=height, height=height, hash=self._hash(height), prev_hash=before, txs=made)

    def order(self, spending: Spending) -> Iterator[OutPoint]:
        """Yield every outpoint once, in the order of being spent: from anywhere, or beginning with recent ones.

        Raises:
            ClickException: there are no more.
        """
        random = Random(self.seed)
        yield from map(self._outpoint, (self._uniform if spending == "uniform" else self._recent)(random))
        raise click.ClickException(f"the measured blocks spend more than the {self.outputs} outputs of the old set")

    def _uniform(self, random: Random) -> Iterator[int]:
        """Shuffle all numbers, but store only those that moved."""
        moved = dict[int, int]()
        for last in range(self.outputs - 1, -1, -1):
            at = random.randint(0, last)
            yield moved.pop(at, at)
            if at < last:
                moved[at] = moved.pop(last, last)

    def _recent(self, random: Random) -> Iterator[int]:
        older = iter(range(self.outputs - 1, -1, -1))
        newest = list(islice(older, _RECENT))
        while newest:
            at = random.randrange(len(newest))
            newest[at], taken = newest[-1], newest[at]
            newest.pop()
            newest += islice(older, 1)
            yield taken

    def _outpoint(self, number: int) -> OutPoint:
        return self._tx(number // _PER_TX).txid, number % _PER_TX

    def _tx(self, number: int) -> Tx:
        digest = blake2b(b"%d %d" % (self.seed, number), digest_size=64).digest()
        count = min(_PER_TX, self.outputs - number * _PER_TX)
        outputs = [self._output(digest[n * 32 : n * 32 + 32]) for n in range(count)]
        return Tx(double_sha256(raw.transaction([], outputs, number)), [], outputs)

    def _output(self, digest: bytes) -> Output:
        chance, value = int.from_bytes(digest[20:24], "big") / 2**32, int.from_bytes(digest[24:29], "big")
        busy = self.busy / 100
        if chance < busy:
            return Output(address(b"busy"), value)
        return Output(paid_to((chance - busy) / (1 - busy), digest[:20]), value)

    def _hash(self, height: int) -> bytes:
        return blake2b(b"%d block %d" % (self.seed, height), digest_size=32).digest()


def paid_to(chance: float, own: bytes) -> bytes:
    """Return an address of its own, or one of those that are used repeatedly, a few of them by far the most."""
    if chance < _FRESH:
        return b"\x00\x14" + own
    return address(b"%d" % int(_REUSED ** ((chance - _FRESH) / (1 - _FRESH))))


@lru_cache(_REUSED + 1)
def address(name: bytes) -> bytes:
    """Return the address of a name."""
    return b"\x00\x14" + blake2b(name, digest_size=20).digest()


def onto(
    old: OldSet, blocks: Iterable[BlockApplied], spending: Spending, share: float, warm: int
) -> Iterator[BlockApplied]:
    """Put a chain on top of an old set: after `warm` blocks a share of its inputs spends old outputs instead.

    The inputs are chosen by chance, so the others keep the mixture of the chain.
    """
    random, spent, before = Random(old.seed), old.order(spending), old.tip
    for number, block in enumerate(blocks):
        txs = block.txs
        if number >= warm:
            txs = [
                msgspec.structs.replace(
                    tx, inputs=[next(spent) if random.random() < share else each for each in tx.inputs]
                )
                for tx in txs
            ]
        yield msgspec.structs.replace(block, height=old.height + block.height, slot=None, prev_hash=before, txs=txs)
        before = block.hash


# --- its store ---------------------------------------------------------------------------------------------------


def kept(old: OldSet, folder: Path) -> Path:
    """Return a folder that a daemon has filled with the old set; it is filled now if there is none.

    Raises:
        ClickException: there is something else in it.
    """
    mark = folder / _MARK
    if mark.exists():
        found = msgspec.json.decode(mark.read_bytes(), type=OldSet)
        if found != old:
            raise click.ClickException(f"{folder} holds another old set ({found}): name another folder")
        return folder
    if folder.exists():
        raise click.ClickException(f"{folder} is there and holds no old set: name another folder")
    loading = folder.with_name(folder.name + ".loading")
    shutil.rmtree(loading, ignore_errors=True)
    with running(loading) as daemon:
        client = Client(daemon.folder / "utxod.sock")
        client.greet(FAR)
        client.stream(wire.encode(block, "frames") for block in old.blocks())
        client.close()
    (loading / _MARK).write_bytes(msgspec.json.encode(old))
    loading.rename(folder)
    return folder


def copied(store: Path, folder: Path) -> None:
    """Copy what a daemon has kept, and wait until the copy is on disk: else the first commit would."""
    shutil.copytree(store, folder, ignore=shutil.ignore_patterns(_MARK, "log", "*.sock"))
    os.sync()
