"""Any chain and mempool, sound or lying, is applied and rolled back: nothing raises, the UTXO set is the model's."""

from __future__ import annotations

import shutil
import tempfile
from collections.abc import Iterable
from contextlib import ExitStack
from pathlib import Path
from random import Random

import msgspec
import pytest
from chains import Branches, live
from daemons import Daemon, Message, running, statuses
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, rule, run_state_machine_as_test
from inconsistent_messages import INLINE, LARGE, MATURITY, PRESERVATION, RETENTION, UNMINED, WINDOW, World
from messages import Line, Listener, follow, message
from pruning import open_local_store, terms_of
from stores import small_values

from config.load import load
from daemon.inspect import copy_place, verify
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

SEEDS = st.integers(0, 2**32 - 1)
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


class Scenario(RuleBasedStateMachine):
    """One store and one world that lies."""

    lies = True

    def __init__(self) -> None:
        super().__init__()
        self.folder = Path(tempfile.mkdtemp(prefix="utxod-lies-"))
        self.open = ExitStack()
        local = open_local_store(self.folder, TERMS, windows=REACH, page=LARGE)
        self.local = self.open.enter_context(local)
        self.local.transactions.rules = Rules(
            batch_size=LARGE, retention=RETENTION, maturity=MATURITY, reassign_delay=3, max_inline_bytes=INLINE
        )
        self.world = World(Random(0), MET, lies=self.lies)
        self.statuses = dict[bytes, str]()

    @initialize(seed=SEEDS)
    def begin(self, seed: int) -> None:
        self.world.random = Random(seed)

    def teardown(self) -> None:
        try:
            self.go_back()
            self.settle()
        finally:
            self.open.close()
            shutil.rmtree(self.folder)

    # --- what can happen -----------------------------------------------------------------------------------------

    def tell(self, *events: Inbound) -> None:
        """Let messages come in one batch."""
        sender = Listener()
        published = follow(self.local.chain, Line([message(event, sender) for event in events]), pruning=True)
        self.check_moves(fact for committed in published for fact in committed.facts)
        repaired = sum(committed.repaired for committed in published)
        MET.meet("a record repaired", repaired)
        assert self.lies or not repaired

    @rule()
    def some_messages(self) -> None:
        self.tell(*self.world.some())

    @rule()
    def something_waiting(self) -> None:
        """Withdraw a transaction, let it claim again, or let a block that is not ours have it for a while."""
        waiting = [txid for txid, status in self.statuses.items() if status in {"pending", "conflicting"}]
        if not waiting:
            return
        txids, height = [self.world.random.choice(waiting)], self.local.chain.height
        if self.statuses[txids[0]] == "conflicting":
            self.tell(TxConflicting(txids=txids, value=False))
            return
        if self.world.often(0.5):
            self.tell(TxWithdrawn(txids=txids, reason="evicted"))
            return
        self.world.elsewhere.update(txids)
        for unset in (False, True):
            self.tell(TxMined(txids=txids, block_id=5000, height=height, unset=unset))

    @rule()
    def restart(self) -> None:
        self.local.chain = Chain(self.local.utxo, REACH, 1000, TxBlocks(self.local.transactions))
        self.tx_blocks.start()

    @rule()
    def prune(self) -> None:
        local, height = self.local, self.local.chain.height
        if height:
            local.turns = Turns(local.chain)
            local.pruner = Pruner(local.tables)
            local.published.clear()
            local.run_cycle(height)
            self.check_moves(fact for committed in local.published for fact in committed.facts)
            MET.meet("a record pruned", local.deleted)

    def go_back(self) -> None:
        """Roll back all that can be rolled back."""
        while self.world.depth():
            self.tell(self.world.rollback())
            self.holds()

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
                holds = [] if move.claims == "kept" or self.lies else self.holds_inputs(view, txid)
                assert all(held == (move.claims == "held") for held in holds), (txid.hex(), move)

    def holds_inputs(self, view: TxView, txid: bytes) -> list[bool]:
        """Return of each output that a transaction spends, and that is there to be spent, whether it has it."""
        found, spender = list[bool](), view.get(txid)
        for outpoint in [] if spender is None else view.spends(spender):
            row, home = view.row(outpoint), view.chain.find(view.txn, outpoint[0])
            if row is not None and (home is None or view.chain.slot(view.txn, home, outpoint[1]) is not None):
                found.append(spending.spent(row) and claimant(row)[0] == txid)
        return found

    # --- what always holds ---------------------------------------------------------------------------------------

    @property
    def tx_blocks(self) -> TxBlocks:
        tx_blocks = self.local.chain.tx_blocks
        assert tx_blocks is not None
        return tx_blocks

    @invariant()
    def holds(self) -> None:
        """The UTXO set is right, and no row of the records contradicts another."""
        coins = self.world.model.stored.coins
        assert live(self.local.utxo) == {
            point: (coin.output.address, coin.output.value) for point, coin in coins.items()
        }
        audited = audit(self.tx_blocks.transactions)
        assert (audited.findings, audited.incomplete) == ([], [])
        MET.meet("a contradiction", audited.contradictions)
        assert self.lies or audited.contradictions == []

    def settle(self) -> None:
        """Let the records be rebuilt; then nothing contradicts the chain, and nothing is left to be done."""
        contradicted = audit(self.tx_blocks.transactions).contradictions
        rebuilt = agree_all(self.tx_blocks)
        assert rebuilt or not contradicted
        assert self.lies or not rebuilt
        assert audit(self.tx_blocks.transactions) == Audited([], [])
        assert agree_all(self.tx_blocks) == 0


class SoundStory(Scenario):
    """The same of a chain that does not lie."""

    lies = False


@pytest.fixture
def small(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let values, merges and filters be small, so that a short story has many of them."""
    small_values(monkeypatch)


@pytest.mark.usefixtures("small")
@pytest.mark.parametrize("kind", [Scenario, SoundStory])
def test_any_sequence_of_messages(kind: type[Scenario]) -> None:
    run_state_machine_as_test(kind, settings=settings(max_examples=15, stateful_step_count=25))


@pytest.mark.usefixtures("small")
@pytest.mark.parametrize("kind", [Scenario, SoundStory])
def test_long_stories(kind: type[Scenario]) -> None:
    """The random stories prove what they met."""
    MET.met.clear()
    MOVED.clear()
    expected = LYING if kind.lies else SOUND
    limits = {move for move in MOVES if move.status == "pruned" and move.cause in {Expired, Withdrawn}}
    moves = set(MOVES) - limits  # there are none here
    for seed in range(40):
        story, random = kind(), Random(seed)
        try:
            story.begin(seed)
            for _ in range(40):
                acts = story.some_messages, story.something_waiting, story.restart, story.prune
                random.choices(acts, (8, 1, 1, 1))[0]()
                story.holds()
        except BaseException as failure:
            failure.add_note(f"seed {seed}")
            raise
        finally:
            story.teardown()
        if seed > 10 and expected <= MET.met.keys() and (kind.lies or moves <= MOVED):
            break
    assert expected <= MET.met.keys(), f"not met: {sorted(expected - MET.met.keys())}"
    assert kind.lies or moves == MOVED, f"not met: {moves - MOVED}"


# --- through the socket ----------------------------------------------------------------------------------------------

TABLES: Message = {
    "utxo": {"prune_depth": WINDOW, "rollback_window": WINDOW},
    "transactions": {
        "batch_size": LARGE,
        "max_inline_bytes": f"{INLINE}B",
        "block_height_retention": RETENTION,
        "coinbase_maturity": MATURITY,
    },
    "pruner": {"unmined_retention": UNMINED, "parent_preservation_blocks": PRESERVATION},
}


def plain(event: Inbound) -> Message:
    """Return a message as a stranger would write it."""
    reported: Message = msgspec.to_builtins(event, builtin_types=(bytes,))
    return {name: value for name, value in reported.items() if value is not None}


def test_contradictory_messages_never_end_the_daemon(tmp_path: Path) -> None:
    """Killed and started again in between; the set is the model's, and the records can be settled."""
    world = World(Random(1), MET, lies=True)
    with running(tmp_path, **TABLES) as daemon:
        for _ in range(2):
            with daemon.client("frames") as client:
                reported = [plain(event) for _ in range(25) for event in world.some()]
                reported += [plain(world.rollback()) for _ in range(2)]
                world.model.commit(prunes=True)
                chain = [n for n, event in enumerate(reported) if event["type"] in {"BlockApplied", "Rollback"}]
                printed = statuses(client.feed(reported))
                assert {printed[n] for n in chain} <= {"applied", "rolled_back", "noop"}
            daemon.kill()
            daemon.start()
            check(daemon, world)
        assert daemon.term() == 0
        assert daemon.run("reindex", "--records").returncode == 0
        daemon.assert_sound()


def check(daemon: Daemon, world: World) -> None:
    config = load(daemon.config, {})
    found = verify(config, copy_place(config, None))
    assert found.findings == []
    coins = world.model.stored.coins.items()
    lines = {f"{txid.hex()},{index},{coin.output.value},{coin.output.address.hex()}" for (txid, index), coin in coins}
    assert set(daemon.export()) == lines
