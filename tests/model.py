"""The UTXO store as plain dicts, a stack of states: the rules written a second time, without the program's code."""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from hashlib import blake2b, sha256
from typing import NamedTuple

from handlers.events import BlockApplied, GenesisOutputs, OutPoint, Output, Point, Tx

Place = tuple[int, int, int]  # ordinal of the block, number of the transaction, index of the output


class Coin(NamedTuple):
    place: Place
    output: Output
    collateral_return: bool = False


@dataclass(frozen=True)
class Moment:
    """The set after a block, and what is published of that block."""

    coins: dict[OutPoint, Coin] = field(default_factory=dict)
    block: BlockApplied | None = None
    created: int = 0
    spent: int = 0
    missing: tuple[OutPoint, ...] = ()
    repeats: bool = False  # a transaction of the block has the id of an earlier one

    @property
    def point(self) -> Point | None:
        if self.block is None:
            return None
        slot = self.block.height if self.block.slot is None else self.block.slot
        return Point(self.block.height, slot, self.block.hash)


def after(before: Moment, ordinal: int, block: BlockApplied) -> Moment:
    """Return the set after `block`: its transactions one by one, each sees what those before it left."""
    coins, created, spent, missing = dict(before.coins), 0, 0, list[OutPoint]()
    for number, tx in enumerate(block.txs):
        for point in dict.fromkeys(tx.inputs if tx.valid else tx.collateral):
            if coins.pop(point, None):
                spent += 1
            else:
                missing.append(point)
        for point in [point for point in coins if point[0] == tx.txid]:
            del coins[point]  # the same id again: what the earlier one left is gone
            spent += 1
        for index, coin in made(tx, ordinal, number):
            coins[tx.txid, index] = coin
            created += 1
    return Moment(coins, block, created, spent, tuple(missing))


def made(tx: Tx, ordinal: int, number: int) -> list[tuple[int, Coin]]:
    if tx.valid:
        kept = [(index, output) for index, output in enumerate(tx.outputs) if output.spendable]
        return [(index, Coin((ordinal, number, index), output)) for index, output in kept]
    if tx.collateral_return is None or not tx.collateral_return.spendable:
        return []
    index = len(tx.outputs)
    return [(index, Coin((ordinal, number, index), tx.collateral_return, collateral_return=True))]


def index_keys(index: str, output: Output) -> list[bytes]:
    """Return the keys that a person would look an output up under; for addresses the address itself."""
    address = output.address
    kind = address[0] >> 4
    match index:
        case "address_hash":
            return [address]
        case "payment_credential":
            return [address[1:29]] if kind <= 7 and len(address) >= 29 else []
        case "stake_credential":
            return [address[29:57]] if kind <= 3 and len(address) >= 57 else []
        case "policy":
            return sorted({policy for policy, _, _ in output.assets})
        case "asset":
            return sorted({sha256(policy + name).digest() for policy, name, _ in output.assets})
        case "datum":
            inline = output.inline_datum
            given = output.datum_hash or (None if inline is None else blake2b(inline, digest_size=32).digest())
            return [] if given is None else [given]
        case "script":  # a chain gives it
            return [] if output.script_ref_hash is None else [output.script_ref_hash]
        case _:
            raise ValueError(index)


class Model:
    """The chain as a stack: `moments[0]` is the origin with the genesis, `moments[n]` the state after the n-th block.

    The first `committed` blocks are durable. The store need not roll back what lies at or below `floor`; how much it
    has forgotten already is its own affair, but never more than that.
    """

    def __init__(self, prune_depth: int = 10, rollback_window: int = 10, *, elides: bool = True) -> None:
        self.prune_depth, self.rollback_window = prune_depth, rollback_window
        self.elides = elides  # with an MMR undo logs are kept however far below the network's tip it is
        self.moments = [Moment()]
        self.genesis: GenesisOutputs | None = None
        self.committed = 0
        self.floor = 0
        self.deep = elides  # all that waits lies far below the network's tip
        self.persisted: int | None = None  # with what waits
        self.persisted_stored: int | None = None

    @property
    def now(self) -> Moment:
        """Return the state with what waits."""
        return self.moments[-1]

    @property
    def stored(self) -> Moment:
        """Return the state that is durable."""
        return self.moments[self.committed]

    @property
    def reach(self) -> int:
        return max(self.prune_depth, self.rollback_window)

    def used(self) -> list[bytes]:
        seeded = {txid for txid, _ in self.moments[0].coins}
        return sorted(seeded) + [tx.txid for moment in self.moments if moment.block for tx in moment.block.txs]

    def seed(self, genesis: GenesisOutputs) -> None:
        self.genesis = genesis
        kept = [each for each in genesis.outputs if each.output.spendable]
        txids = list(dict.fromkeys(each.txid for each in kept))
        coins = {(each.txid, each.index): Coin((0, txids.index(each.txid), each.index), each.output) for each in kept}
        self.moments = [replace(self.moments[0], coins=coins)]

    def apply(self, block: BlockApplied, network_height: int | None = None) -> None:
        self.deep &= network_height is not None and network_height - block.height > self.reach
        txids = [tx.txid for tx in block.txs]
        repeats = len(set(txids)) < len(txids) or not set(txids).isdisjoint(self.used())
        self.moments.append(replace(after(self.now, len(self.moments), block), repeats=repeats))

    def commit(self, *, prunes: bool = False) -> None:
        """Make durable what waits; far below the network's tip there is no way back from it."""
        if self.deep and self.committed < len(self.moments) - 1:
            self.floor = len(self.moments) - 1
        self.committed, self.deep = len(self.moments) - 1, self.elides
        self.persisted_stored = self.persisted
        if prunes:
            self.prune()

    def prune(self) -> None:
        self.floor = max(self.floor, self.committed - self.reach - 1)

    def crash(self) -> None:
        del self.moments[self.committed + 1 :]
        self.deep = self.elides
        self.persisted = self.persisted_stored

    def lowest(self) -> int:
        """Return the lowest ordinal that can be rolled back to, once all that may be forgotten is."""
        return min(self.committed, max(self.floor, self.committed - self.rollback_window))

    def rollback(self, ordinal: int) -> None:
        del self.moments[ordinal + 1 :]
        self.committed = ordinal
        if self.persisted is not None:
            self.persisted = None if self.now.block is None else min(self.persisted, self.now.block.height)
        self.persisted_stored = self.persisted

    def last_upto(self, slot: int) -> int:
        """Return the last block at or before a slot; 0 when there is none."""
        return max(n for n, moment in enumerate(self.moments) if moment.point is None or moment.point.slot <= slot)

    def found(self, index: str) -> dict[bytes, list[OutPoint]]:
        found: dict[bytes, list[OutPoint]] = {}
        for point, coin in sorted(self.stored.coins.items(), key=lambda each: each[1].place):
            for key in index_keys(index, coin.output):
                found.setdefault(key, []).append(point)
        return found
