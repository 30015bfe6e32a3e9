"""Any chain and mempool, sound or lying, is applied and rolled back: nothing raises, the UTXO set is the model's.

`tests/attack` sends such messages to a daemon.
"""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path
from random import Random

import pytest
from chains import Branches, live
from inconsistent_messages import INLINE, LARGE, MATURITY, RETENTION, UNMINED, WINDOW, World
from messages import Listener, ListInbox, follow, message
from pruning import LocalStore, open_local_store, terms_of
from stores import small_values

from daemon.offline import agree_all
from handlers import spending
from handlers.audit import Audited, audit
from handlers.causes import Expired, Withdrawn
from handlers.chain import Chain
from handlers.events import Fact, Inbound, TxConflicting, TxMined, TxStatusChanged, TxWithdrawn
from handlers.prune_request import Terms
from handlers.pruner import Pruner
from handlers.spending import Rules
from handlers.states import BY_FACT, MOVES, Move
from handlers.transactions import TxView
from handlers.tx_blocks import TxBlocks
from handlers.utxo import Turns
from storage.pool_layout import claimant
from storage.windows import Windows

TERMS = Terms(terms_of().settings, RETENTION, UNMINED)
REACH = Windows(WINDOW, WINDOW)
MET = Branches()
MOVED = set[Move]()
SOUND = {
    "a failed transaction",
    "a failed submission",
    "an unspendable collateral return",
    "a spent collateral return",
    "a submission mined",
    "a large submission",
    "a rollback to the floor",
    "several blocks rolled back",
    "a record pruned",
}
LYING = SOUND | {
    "a submission mined with another content",
    "an id again",
    "an id again in its own block",
    "a missing input",
    "a record repaired",
    "a contradiction",
}


class Scenario:
    def __init__(self, local: LocalStore, random: Random, *, lies: bool) -> None:
        self.local, self.lies = local, lies
        local.transactions.rules = Rules(
            batch_size=LARGE, retention=RETENTION, maturity=MATURITY, reassign_delay=3, max_inline_bytes=INLINE
        )
        self.world = World(random, MET, lies=lies)
        self.statuses = dict[bytes, str]()

    def run(self, steps: int) -> None:
        acts = self.some_messages, self.something_waiting, self.restart, self.prune
        for _ in range(steps):
            self.world.random.choices(acts, (8, 1, 1, 1))[0]()
            self.holds()
        while self.world.depth():
            self.send(self.world.rollback())
            self.holds()
        self.settle()

    def send(self, *events: Inbound) -> None:
        sender = Listener()
        published = follow(self.local.chain, ListInbox([message(event, sender) for event in events]), pruning=True)
        self.check_moves(self.local.changes.take())
        repaired = sum(committed.repaired for committed in published)
        MET.meet("a record repaired", repaired)
        assert self.lies or not repaired

    def some_messages(self) -> None:
        self.send(*self.world.some())

    def something_waiting(self) -> None:
        """Withdraw a transaction, let it claim again, or let a block that is not ours have it for a while."""
        waiting = [txid for txid, status in self.statuses.items() if status in {"pending", "conflicting"}]
        if not waiting:
            return
        txids, height = [self.world.random.choice(waiting)], self.local.chain.height
        if self.statuses[txids[0]] == "conflicting":
            self.send(TxConflicting(txids=txids, value=False))
            return
        if self.world.often(0.5):
            self.send(TxWithdrawn(txids=txids, reason="evicted"))
            return
        self.world.elsewhere.update(txids)
        for unset in (False, True):
            self.send(TxMined(txids=txids, block_id=5000, height=height, unset=unset))

    def restart(self) -> None:
        self.local.chain = Chain(self.local.utxo, REACH, 1000, TxBlocks(self.local.transactions, self.local.changes))
        self.tx_blocks.start()

    def prune(self) -> None:
        local, height = self.local, self.local.chain.height
        if height:
            local.turns = Turns(local.chain)
            local.pruner = Pruner(local.tables)
            local.published.clear()
            local.run_cycle(height)
            self.check_moves(local.changes.take())
            MET.meet("a record pruned", local.deleted)

    def check_moves(self, facts: Iterable[Fact]) -> None:
        """Check that each change of a status is one of the table's, and what the transactions hold after the last."""
        last = dict[bytes, Move]()
        for fact in facts:
            if isinstance(fact, TxStatusChanged):
                move = BY_FACT[fact.status, type(fact.cause)]  # type: ignore[index]
                before = self.statuses.get(fact.txid)
                assert self.lies or before in move.before, f"{before} to {fact.status} by {fact.cause}"
                self.statuses[fact.txid] = fact.status
                last[fact.txid] = move
                MOVED.add(move)
        with self.local.disk.read() as txn:
            view = self.tx_blocks.transactions.view(txn)
            for txid, move in last.items():
                if self.lies or move.claims == "kept" or (move.row == "lost" and view.chain.find(txn, txid)):
                    continue  # no fact says that a block has a transaction without a record
                holds = self.holds_inputs(view, txid)
                assert all(held == (move.claims == "held") for held in holds), (txid.hex(), move)

    def holds_inputs(self, view: TxView, txid: bytes) -> list[bool]:
        """Return of each output that a transaction spends, and that is there to be spent, whether it has it."""
        found, spender = list[bool](), view.get(txid)
        for outpoint in [] if spender is None else view.spends(spender):
            row, home = view.row(outpoint), view.chain.find(view.txn, outpoint[0])
            if row is not None and (home is None or view.chain.slot(view.txn, home, outpoint[1]) is not None):
                found.append(spending.spent(row) and claimant(row)[0] == txid)
        return found

    @property
    def tx_blocks(self) -> TxBlocks:
        tx_blocks = self.local.chain.tx_blocks
        assert tx_blocks is not None
        return tx_blocks

    def holds(self) -> None:
        coins = self.world.model.stored.coins
        assert live(self.local.utxo) == {
            point: (coin.output.address, coin.output.value) for point, coin in coins.items()
        }
        audited = audit(self.tx_blocks.transactions)
        assert (audited.findings, audited.incomplete) == ([], [])
        MET.meet("a contradiction", audited.contradictions)
        assert self.lies or audited.contradictions == []

    def settle(self) -> None:
        contradicted = audit(self.tx_blocks.transactions).contradictions
        rebuilt = agree_all(self.tx_blocks)
        assert rebuilt or not contradicted
        assert self.lies or not rebuilt
        assert audit(self.tx_blocks.transactions) == Audited([], [])
        assert agree_all(self.tx_blocks) == 0


@pytest.mark.parametrize("lies", [True, False])
def test_random_messages(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, lies: bool) -> None:
    small_values(monkeypatch)
    MET.met.clear()
    MOVED.clear()
    expected = LYING if lies else SOUND
    limits = {move for move in MOVES if move.status == "pruned" and move.cause in {Expired, Withdrawn}}
    moves = set(MOVES) - limits  # there are none here
    for seed in range(40):
        print(f"seed {seed}")
        with open_local_store(tmp_path / str(seed), TERMS, windows=REACH, page=LARGE) as local:
            Scenario(local, Random(seed), lies=lies).run(40)
        if seed > 15 and expected <= MET.met.keys() and (lies or moves <= MOVED):
            break
    assert expected <= MET.met.keys(), f"not met: {sorted(expected - MET.met.keys())}"
    assert lies or moves == MOVED, f"not met: {moves - MOVED}"
