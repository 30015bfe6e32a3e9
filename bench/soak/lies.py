"""Well-formed messages with false content: an inconsistent chain, arbitrary claims and rollbacks.

The rules of the set of unspent outputs hold whatever is claimed, a restart finds the same state, and a rollback of
everything that the window holds succeeds.
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from random import Random

import msgspec

from bench.soak.target import Broken, Met, Target, any_kind
from handlers.events import (
    Ack,
    BlockApplied,
    BlockPersisted,
    Error,
    Inbound,
    NodeState,
    OutPoint,
    Output,
    OutputReassigned,
    OutputsFrozen,
    OutputsUnfrozen,
    Rollback,
    RollbackPoint,
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

_MESSAGES = 400
_ODD = (0, 1, 7, (1 << 31) - 1, (1 << 32) - 1, 1 << 32, (1 << 63) - 1, (1 << 64) - 1)


class Liar:
    """Makes messages about few transactions and outputs, so that lies meet each other."""

    def __init__(self, random: Random) -> None:
        self._random = random
        self._txids = [random.randbytes(32) for _ in range(25)]
        self.chain: list[BlockApplied] = []
        self._ways: list[tuple[int, Callable[[], Inbound]]] = [
            (30, self._block),
            (25, lambda: TxSubmitted(tx=self._submitted(), locked=random.random() < 0.2)),
            (5, lambda: TxSubmitted(tx=self._submitted(), on_spent="record")),
            (6, self._rollback),
            (
                5,
                lambda: TxMined(
                    txids=self._some(), block_id=self._odd(), height=self._odd(), unset=random.random() < 0.4
                ),
            ),
            (5, lambda: TxConflicting(txids=self._some(), value=random.random() < 0.6)),
            (4, lambda: WinnersDecided(txids=self._some())),
            (4, lambda: OutputsFrozen(outpoints=self._points(2))),
            (3, lambda: OutputsUnfrozen(outpoints=self._points(2))),
            (3, lambda: OutputReassigned(outpoint=self._points(1)[0], address=random.randbytes(29))),
            (3, lambda: TxLocked(txids=self._some())),
            (3, lambda: TxUnlocked(txids=self._some())),
            (4, lambda: TxWithdrawn(txids=self._some(), reason="evicted")),
            (3, lambda: TxPreserved(txids=self._some(), until=self._odd())),
            (4, lambda: BlockPersisted(height=self._odd())),
            (3, lambda: NodeState(state=random.choice(("running", "catching_up", "stopped")), height=self._odd())),
        ]

    def message(self) -> Inbound:
        """Return the next message."""
        weights = [weight for weight, _ in self._ways]
        return self._random.choices(self._ways, weights)[0][1]()

    def answered(self, message: Inbound, answer: Ack | Error) -> None:
        """Follow what was carried out."""
        if isinstance(answer, Error):
            return
        match message:
            case BlockApplied() if answer.status == "applied":
                self.chain.append(message)
            case Rollback(to="origin"):
                self.chain.clear()
            case Rollback(to=RollbackPoint(hash=to)):
                while self.chain and self.chain[-1].hash != to:
                    self.chain.pop()

    def _block(self) -> BlockApplied:
        random = self._random
        tip = self.chain[-1] if self.chain and random.random() < 0.95 else None
        height = tip.height + 1 if tip else random.choice((1, 1, self._odd()))
        txs = [self._tx() for _ in range(random.randint(0, 4))]
        before = tip.hash if tip else None
        slot = min(height * 20, max(_ODD))
        return BlockApplied(height=height, slot=slot, hash=random.randbytes(32), prev_hash=before, txs=txs)

    def _tx(self) -> Tx:
        """Return any transaction: its id may be used, its inputs spent, missing, or of itself."""
        random = self._random
        outputs = [self._output() for _ in range(random.randint(0, 3))]
        txid, inputs = random.choice(self._txids), self._points(random.randint(0, 3))
        detailed = txid[0] % 2 == 1
        return Tx(
            txid=txid,
            inputs=inputs,
            outputs=outputs,
            valid=random.random() < 0.75,
            collateral=self._points(random.randint(0, 2)),
            collateral_return=self._output() if random.random() < 0.3 else None,
            coinbase=random.random() < 0.1,
            raw=random.randbytes(20) if random.random() < 0.3 else None,
            version=txid[1] if detailed else None,
            previous=[(n, b"script") if n else None for n, _ in enumerate(inputs)] if detailed else None,
        )

    def _submitted(self) -> Tx:
        """Return a transaction to be submitted: often one that may be accepted, of which blocks and others then lie."""
        random, tx = self._random, self._tx()
        if random.random() < 0.5:
            return tx
        txid = random.randbytes(32)
        self._txids[random.randrange(len(self._txids))] = txid
        made = [(paid.txid, n) for block in self.chain[-2:] for paid in block.txs for n in range(len(paid.outputs))]
        return msgspec.structs.replace(tx, txid=txid, inputs=random.sample(made, min(len(made), 1)), previous=None)

    def _output(self) -> Output:
        random = self._random
        return Output(b"\x61" + random.randbytes(28), random.getrandbits(40), spendable=random.random() < 0.9)

    def _rollback(self) -> Rollback:
        random = self._random
        if not self.chain or random.random() < 0.2:
            return Rollback(to=random.choice(("origin", RollbackPoint(hash=random.randbytes(32)))))
        to = self.chain[max(0, len(self.chain) - 1 - random.randint(0, 8))]
        return Rollback(to=RollbackPoint(slot=to.point.slot, hash=to.hash, height=to.height))

    def _some(self) -> list[bytes]:
        return self._random.choices(self._txids, k=self._random.randint(1, 3))

    def _points(self, count: int) -> list[OutPoint]:
        return [(self._random.choice(self._txids), self._random.randint(0, 3)) for _ in range(count)]

    def _odd(self) -> int:
        near = len(self.chain) + self._random.randint(-3, 3)
        return self._random.choice((max(near, 0), max(near, 0), max(near, 0), self._random.choice(_ODD)))


def live(chain: list[BlockApplied]) -> list[str]:
    """Return what is unspent after a chain, whatever it claims.

    Missing inputs are skipped. A transaction with a used id replaces all outputs of the earlier one.
    """
    coins: dict[OutPoint, Output] = {}
    for block in chain:
        for tx in block.txs:
            for point in tx.inputs if tx.valid else tx.collateral:
                coins.pop(point, None)
            made = dict(enumerate(tx.outputs)) if tx.valid else {}
            if not tx.valid and tx.collateral_return is not None:
                made = {len(tx.outputs): tx.collateral_return}
            for point in [point for point in coins if point[0] == tx.txid]:
                del coins[point]
            coins |= {(tx.txid, n): paid for n, paid in made.items() if paid.spendable}
    return [f"{txid.hex()},{n},{paid.value},{paid.address.hex()}" for (txid, n), paid in coins.items()]


def round(folder: Path, seed: int) -> Met:
    """Send contradictory messages to one daemon; return what was met."""
    random, met = Random(seed), Met()
    liar = Liar(random)
    with Target(folder, any_kind(random)) as target:
        target.start()
        link = target.link()
        for n in range(_MESSAGES):
            message = liar.message()
            answer = link.request(msgspec.structs.replace(message, seq=n))
            if not isinstance(answer, Ack | Error):
                raise Broken(f"{message} was answered {answer}")
            liar.answered(message, answer)
            met[f"{type(message).__name__} {answer.status if isinstance(answer, Ack) else answer.code}"] += 1
            if random.random() < 0.01:
                link.socket.close()
                target.kill()
                target.start()
                _compare(target, liar)
                link = target.link()
                met["restarts"] += 1
        link.socket.close()  # another feeder comes
        _check(target, liar, met)
        _roll_everything_back(target, liar, met)
        target.stop()
    met["lies"] += _MESSAGES
    met["rounds of lies"] += 1
    return met


def _compare(target: Target, liar: Liar) -> None:
    """Compare the live set with the rule."""
    found, right = target.live_set(), sorted(live(liar.chain))
    if found != right:
        odd = f"{sorted(set(found) - set(right))} should not be there, {sorted(set(right) - set(found))} should"
        raise Broken(f"the live set is not what the blocks say: {odd}")


def _check(target: Target, liar: Liar, met: Met) -> None:
    """Compare the live set with the rule, and walk the store."""
    _compare(target, liar)
    target.verify(records_may_differ=True)
    met["walks after lies"] += 1


def _roll_everything_back(target: Target, liar: Liar, met: Met) -> None:
    """Roll back block after block as far as the window goes, and compare again."""
    with target.link() as link:
        while len(liar.chain) > 1:
            to = liar.chain[-2]
            message = Rollback(seq=1, to=RollbackPoint(slot=to.point.slot, hash=to.hash, height=to.height))
            answer = link.request(message)
            if isinstance(answer, Error) and answer.code == "beyond_rollback_floor":
                break
            if not isinstance(answer, Ack):
                raise Broken(f"a rollback of an applied block was answered {answer}")
            liar.answered(message, answer)
            met["blocks of lies rolled back"] += 1
    _check(target, liar, met)
