"""Random chains and mempools as messages: sound ones, and ones that lie wherever a message can."""

from __future__ import annotations

from collections.abc import Iterator
from random import Random

import msgspec
from chains import Branches, back_to, block, output
from model import Model, made

from handlers.events import (
    BlockApplied,
    Inbound,
    OutPoint,
    Output,
    OutputReassigned,
    OutputsFrozen,
    OutputsUnfrozen,
    Rollback,
    Tx,
    TxConflicting,
    TxLocked,
    TxMined,
    TxPreserved,
    TxSubmitted,
    TxUnlocked,
    TxWithdrawn,
    WinnersDecided,
)

WINDOW = 6  # blocks
LARGE = 3  # outputs; more make a transaction large
INLINE = 1024  # bytes; more become a blob
RETENTION, UNMINED, PRESERVATION, MATURITY = 3, 2, 10, 2
DATA = Output(b"\x6a", 0, spendable=False)


class World:
    """What there is to tell, and what should be unspent."""

    def __init__(self, random: Random, branches: Branches, *, lies: bool) -> None:
        self.random, self.branches, self.lies = random, branches, lies
        self.model = Model(WINDOW, WINDOW, elides=False)
        self.txs: dict[bytes, Tx] = {}  # by id, as it was told last
        self.submitted: list[bytes] = []
        self.elsewhere: set[bytes] = set()  # reported as mined in a block of another chain

    def often(self, share: float) -> bool:
        return self.random.random() < share

    # --- outputs and transactions --------------------------------------------------------------------------------

    def known(self) -> bytes:
        """Return the id of a transaction, often one of the latest."""
        ids = list(self.txs)
        return self.random.choice(ids[-8:] if ids[8:] and self.often(0.7) else ids or [self.random.randbytes(32)])

    def outpoint(self) -> OutPoint:
        """Return an output: mostly an unspent or unmined one, sometimes one that was removed or never existed."""
        kind, coins = self.random.random(), list(self.model.now.coins)
        if kind < 0.55 and coins:
            return self.random.choice(coins[-12:])
        if kind < 0.97 and self.txs:
            txid = self.known()
            return txid, self.random.randrange(len(self.txs[txid].outputs) + 1)
        return self.random.randbytes(32), self.random.randrange(2)

    def outpoints(self, most: int) -> list[OutPoint]:
        points = [self.outpoint() for _ in range(self.random.randrange(most + 1))]
        return points + points[: self.often(0.05)]

    def sample(self, live: list[OutPoint], most: int) -> list[OutPoint]:
        return self.random.sample(live, min(len(live), self.random.randrange(most + 1)))

    def outputs(self) -> list[Output]:
        count = self.random.choice((1, 1, 1, 2, 2, 3, 5, 8))
        made = [DATA if self.often(0.08) else output("x", self.random.randrange(1, 99)) for _ in range(count)]
        if self.lies:
            made[0] = msgspec.structs.replace(made[0], spendable=not self.often(0.1))
        return made

    def raw(self) -> bytes | None:
        return self.random.choice((None, None, b"raw", bytes(INLINE + 1)))

    def new(self, txid: bytes, inputs: list[OutPoint], *, coinbase: bool = False) -> Tx:
        fee = self.random.choice((None, 3))
        return Tx(txid, inputs, self.outputs(), coinbase=coinbase, raw=self.raw(), fee=fee)

    # --- what a block has ----------------------------------------------------------------------------------------

    def honest(self, live: list[OutPoint], taken: set[bytes]) -> Tx:
        """Return a transaction for a block of a sound chain, where `live` can be spent and ids are `taken`."""
        waiting = [self.txs[txid] for txid in self.submitted if txid not in taken]
        ready = [tx for tx in waiting if set(tx.inputs) <= set(live)]
        if ready and self.often(0.6):
            self.branches.meet("a submission mined")
            chosen = msgspec.structs.replace(self.random.choice(ready), valid=True, collateral=[])
        else:
            coinbase = self.often(0.1)
            chosen = self.new(self.random.randbytes(32), [] if coinbase else self.sample(live, 3), coinbase=coinbase)
        fails = self.often(0.25) and not chosen.coinbase and chosen.txid not in self.elsewhere
        return self.failed(chosen, self.sample(live, 2)) if fails else chosen

    def failed(self, tx: Tx, collateral: list[OutPoint]) -> Tx:
        """Return a transaction as one that fails phase 2."""
        self.branches.meet("a failed transaction")
        self.branches.meet("a failed submission", tx.txid in self.submitted)
        back = output("back", spendable=not self.often(0.1)) if self.often(0.6) else None
        self.branches.meet("an unspendable collateral return", back is not None and not back.spendable)
        return msgspec.structs.replace(tx, valid=False, collateral=collateral, collateral_return=back)

    def altered(self, tx: Tx) -> Tx:
        """Return a transaction of the same id with another content."""
        match self.random.randrange(4):
            case 0:
                return msgspec.structs.replace(tx, inputs=self.outpoints(3))
            case 1:
                return msgspec.structs.replace(tx, inputs=tx.inputs[::-1][: self.random.randrange(3)])
            case 2:
                return msgspec.structs.replace(tx, outputs=self.outputs() if self.often(0.8) else [], raw=self.raw())
            case _:
                return msgspec.structs.replace(tx, inputs=self.outpoints(2), outputs=self.outputs())

    def lie(self) -> Tx:
        """Return a transaction for a block of a chain that lies."""
        kind = self.random.random()
        if kind < 0.35 and self.submitted:
            made = self.txs[self.random.choice(self.submitted[-8:])]
            self.branches.meet("a submission mined")
            if self.often(0.35):
                self.branches.meet("a submission mined with another content")
                made = self.altered(made)
        elif kind < 0.47 and self.txs:
            made = self.txs[self.known()]
            made = self.altered(made) if self.often(0.5) else made
        else:
            made = self.new(self.random.randbytes(32), self.outpoints(3), coinbase=self.often(0.1))
        self.branches.meet("an id again", made.txid in self.model.used())
        if self.often(0.2) and not made.coinbase:
            return self.failed(made, self.outpoints(2))
        return msgspec.structs.replace(made, valid=True)

    # --- messages ------------------------------------------------------------------------------------------------

    def block(self) -> BlockApplied:
        """Return the next block."""
        live, taken, txs = list(self.model.now.coins), set(self.model.used()), list[Tx]()
        for number in range(self.random.randrange(4)):
            tx = self.lie() if self.lies else self.honest(live, taken)
            spent = set(tx.inputs if tx.valid else tx.collateral)
            live = [point for point in live if point not in spent]
            live += [(tx.txid, index) for index, _ in made(tx, 0, number)]
            self.branches.meet("an id again in its own block", tx.txid in {other.txid for other in txs})
            self.branches.meet("a spent collateral return", any(self._is_return(point) for point in spent))
            taken.add(tx.txid)
            txs.append(tx)
            self.txs[tx.txid] = tx
        new = block(self.model.now.block, *txs, salt=str(self.random.random()))
        self.model.apply(new)
        self.branches.meet("a missing input", self.model.now.missing)
        return new

    def _is_return(self, point: OutPoint) -> bool:
        tx = self.txs.get(point[0])
        return tx is not None and not tx.valid and tx.collateral_return is not None and point[1] == len(tx.outputs)

    def submit(self) -> TxSubmitted:
        """Return a submission, which may have to be refused."""
        again = self.lies and self.often(0.1)
        tx = self.new(self.known() if again else self.random.randbytes(32), self.outpoints(3))
        self.branches.meet("a large submission", len(tx.outputs) > LARGE)
        if not again or tx.txid not in self.model.used():
            self.submitted.append(tx.txid)
            self.txs[tx.txid] = tx
        return TxSubmitted(tx=tx, locked=self.often(0.1), on_spent="record" if self.often(0.2) else "refuse")

    def depth(self) -> int:
        """Return how many blocks can be rolled back."""
        self.model.commit(prunes=True)
        return len(self.model.moments) - 1 - self.model.lowest()

    def rollback(self) -> Rollback:
        """Return the way back to a block that is retained, often the lowest."""
        lowest, tip = len(self.model.moments) - 1 - self.depth(), len(self.model.moments) - 1
        target = lowest if self.often(0.3) else self.random.randint(lowest, tip)
        self.branches.meet("a rollback to the floor", target == lowest < tip)
        self.branches.meet("several blocks rolled back", tip - target > 1)
        place = self.model.moments[target].block
        self.model.rollback(target)
        return back_to(place or "origin")

    def order(self) -> Inbound:
        """Return an operator's message, or one about a block of another chain."""
        ids, point = [self.known() for _ in range(self.random.choice((1, 1, 2)))], self.outpoint()
        height = len(self.model.moments)
        block_id = self.random.randrange(height + 2) if self.lies else 1000 + height
        elsewhere = ids if self.lies else [txid for txid in ids if txid not in self.txs or self.txs[txid].valid]
        self.elsewhere.update(elsewhere)
        return self.random.choice(
            (
                TxConflicting(txids=ids),
                TxConflicting(txids=ids[:1], value=False),
                WinnersDecided(txids=ids),
                TxLocked(txids=ids),
                TxUnlocked(txids=ids),
                TxWithdrawn(txids=ids[:1], reason="evicted"),
                OutputsFrozen(outpoints=[point]),
                OutputsFrozen(outpoints=[point, self.outpoint()]),
                OutputsUnfrozen(outpoints=[point]),
                OutputReassigned(outpoint=point, address=b"heir"),
                TxPreserved(txids=ids, until=height + 5),
                TxMined(txids=elsewhere, block_id=block_id, height=height),
                TxMined(txids=elsewhere, block_id=1000, height=height, longest=False),
                TxMined(txids=elsewhere, block_id=block_id, height=height, unset=True),
                TxMined(txids=elsewhere[:1], block_id=1000, height=height, unset=True),
            )
        )

    def some(self) -> Iterator[Inbound]:
        """Yield messages that may go into one batch; they are durable after it."""
        for _ in range(self.random.choice((1, 1, 2, 3, 5))):
            kind = self.random.random()
            if kind < 0.42:
                yield self.block()
            elif kind < 0.72:
                yield self.submit()
            elif kind < 0.86:
                yield self.order()
            else:
                yield self.rollback()
        self.model.commit(prunes=True)
