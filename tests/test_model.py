"""Random scenarios of blocks, reorganisations, restarts and pruning leave the store as a model of plain dicts."""

from __future__ import annotations

import shutil
import sys
import tempfile
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from pathlib import Path
from random import Random
from typing import Any, Unpack

import msgspec
import pytest
from chains import (
    INDEXES,
    LEAVES,
    Branches,
    Options,
    at,
    back_to,
    block,
    chained,
    digest,
    dump,
    feed,
    found,
    live,
    open_chain,
    output,
    phrases,
    prune_all,
    random_block,
    random_chain,
    random_genesis,
    refused,
    tx,
    unspent,
)
from hypothesis import given, seed, settings
from hypothesis import strategies as st
from hypothesis.stateful import (
    RuleBasedStateMachine,
    initialize,
    invariant,
    precondition,
    rule,
    run_state_machine_as_test,
)
from model import Coin, Model, Moment
from stores import small_values

from handlers.chain import Chain
from handlers.events import BlockApplied, BlockCommitted, BlockPersisted, Pruned, Rollback, RollbackPoint, RolledBack
from storage.history.output_keys import address_key
from storage.history.verify import verify
from storage.rows import Body

SEEDS = st.integers(0, 2**32 - 1)
WINDOWS = st.integers(0, 6)
SMALL_MAP = 1 << 16
MET = Branches()


class Scenario(RuleBasedStateMachine):
    store = "classic"

    def __init__(self) -> None:
        super().__init__()
        self.folder = Path(tempfile.mkdtemp(prefix="utxod-model-"))
        self.open = ExitStack()
        self.patch = pytest.MonkeyPatch()

    @initialize(
        seed=SEEDS,
        prune_depth=WINDOWS,
        rollback_window=WINDOWS,
        prune_batch_size=st.sampled_from((1, 2, 5, 1000, 1000)),
        may_prune=st.booleans(),
        indexes=st.sampled_from((INDEXES, INDEXES, INDEXES[:2], ())),
        map_size=st.sampled_from((SMALL_MAP, 1 << 30)),
        seeded=st.booleans(),
    )
    def begin(self, seed: int, seeded: bool, **options: Any) -> None:
        self.options = Options(store=self.store, **options)  # type: ignore[typeddict-item]
        prune_depth, rollback_window = options["prune_depth"], options["rollback_window"]
        self.exact = options["prune_batch_size"] == 1000  # a step prunes all there is
        self.model = Model(prune_depth, rollback_window, elides=not self.store.endswith("mmr"))
        self.elided = 0  # the lowest floor that there can be
        self.verified = -1  # the last commit that was verified
        self.chain = self.open.enter_context(open_chain(self.folder, **self.options))
        MET.meet("steps that do not prune everything", not self.exact)
        if seeded:
            genesis = random_genesis(Random(seed))
            self.model.seed(genesis)
            assert self.chain.seed(genesis)
            assert not self.chain.seed(genesis)
            MET.meet("a genesis")

    def teardown(self) -> None:
        try:
            if hasattr(self, "chain") and sys.exc_info()[0] is None:
                self.prune_everything()
        finally:
            self.open.close()
            self.patch.undo()
            shutil.rmtree(self.folder)

    @rule(seed=SEEDS, blocks=st.integers(1, 4), ahead=st.sampled_from((None, 0, 1000)))
    def grow(self, seed: int, blocks: int, ahead: int | None, *, each: bool = False) -> None:
        """Apply blocks, which wait for the next commit unless there is one for each."""
        rng = Random(seed)
        for _ in range(blocks):
            parent, now = self.model.now.block, self.model.now
            new = random_block(rng, parent, list(now.coins), self.model.used(), MET)
            height = None if ahead is None else new.height + ahead
            assert self.chain.apply(new, height)
            self.model.apply(new, height)
            if each:
                self.commit()

    @rule(seed=SEEDS, blocks=st.integers(1, 8))
    def grow_at_the_tip(self, seed: int, blocks: int) -> None:
        self.grow(seed, blocks, 0, each=True)

    @rule(seed=SEEDS, blocks=st.integers(1, 8))
    def grow_in_a_batch(self, seed: int, blocks: int) -> None:
        self.commit()
        self.grow(seed, blocks, None)
        self.commit()

    @rule(seed=SEEDS, blocks=st.integers(1, 8), each=st.booleans())
    def grow_far_below(self, seed: int, blocks: int, each: bool) -> None:
        self.commit()
        self.grow(seed, blocks, 1000, each=each)
        self.commit()

    @rule()
    def commit(self) -> None:
        model, elided = self.model, self.model.deep
        waiting = model.moments[model.committed + 1 :]
        view = self.chain.view
        self.chain.commit()
        model.commit(prunes=self.chain.may_prune and self.chain.view is not view)  # no commit, no pruning
        MET.meet("several blocks in a commit", len(waiting) > 1)
        if elided and waiting:
            self.elided = model.committed
            MET.meet("blocks far below the network's tip")
        missing = {moment.point: list(moment.missing) for moment in waiting if moment.missing and not moment.repeats}
        odd = [moment.point for moment in waiting if moment.repeats]
        assert {point: each for point, each in self.chain.take_missing() if point not in odd} == missing
        self.published([committed(moment) for moment in waiting])

    def published(self, expected: Sequence[BlockCommitted | RolledBack]) -> None:
        """Of a block that uses a transaction id again, what it spent and missed is counted without the earlier one."""
        repeating = {moment.point and moment.point.hash for moment in self.model.moments if moment.repeats}
        facts = [msgspec.structs.replace(fact, sequence=0) for fact in self.chain.take_facts()]
        others = [fact for fact in facts if not isinstance(fact, Pruned)]
        for fact, wanted in zip(others, expected, strict=True):
            counts = {}
            if isinstance(fact, BlockCommitted) and fact.hash in repeating:
                counts = {"spent": fact.spent, "missing_inputs": fact.missing_inputs}
            assert msgspec.structs.replace(wanted, **counts) == fact
        for pruned in facts:
            if isinstance(pruned, Pruned):
                MET.meet("spent outputs were pruned", pruned.spent_outputs)
                MET.meet("transactions were pruned", pruned.transactions)
                MET.meet("undo records were pruned", pruned.undo_records)
                MET.meet("nodes of an MMR were removed", pruned.mmr_nodes)

    @rule()
    def prune(self) -> None:
        self.commit()
        removed = self.chain.prune()
        if self.chain.may_prune:
            self.model.prune()
        else:
            assert not removed
        self.published([])

    @rule(may=st.booleans())
    def permit_pruning(self, may: bool) -> None:
        self.chain.may_prune = self.options["may_prune"] = may

    @rule(share=st.integers(0, 8), by=st.sampled_from(("height", "hash")), uncommitted=st.booleans())
    def persist(self, share: int, by: str, uncommitted: bool) -> None:
        ordinal = round(share / 8 * (len(self.model.moments) - 1))
        one = self.model.moments[ordinal].block
        if one is None:
            return
        MET.meet("a block that waits is persisted", ordinal > self.model.committed)
        MET.meet("a block below the floor is persisted", ordinal < self.floor())
        event = BlockPersisted(height=one.height, hash=one.hash if by == "hash" else None)
        news = self.model.persisted is None or one.height > self.model.persisted
        assert self.chain.persisted(event) == news
        if news:
            self.model.persisted = one.height
        if not uncommitted:
            self.commit()

    @rule(seed=SEEDS, by=st.sampled_from(("height", "hash")))
    def persist_in_a_batch(self, seed: int, by: str) -> None:
        self.grow(seed, 2, None)
        self.persist(8, by, uncommitted=True)

    @rule(share=st.integers(0, 4), what=st.sampled_from(("above", "another hash", "another block's hash")))
    def persist_another(self, share: int, what: str) -> None:
        moments, tip, state = self.model.moments, self.chain.tip, self.chain.state
        one = moments[round(share / 4 * (len(moments) - 1))].block
        if what == "above" or tip is None or one is None:
            above = BlockPersisted(height=(tip.height if tip else -1) + 1 + share, hash=digest("x") if share else None)
            why = refused("gap", lambda: self.chain.persisted(above))
            assert (why.retryable, why.detail) == (True, {"tip": tip})
        else:
            name = digest("unknown") if what == "another hash" else self.model.now.block.hash  # type: ignore[union-attr]
            if what == "another block's hash" and one.height == tip.height:
                return
            event = BlockPersisted(height=one.height, hash=name)
            assert refused("unknown_point", lambda: self.chain.persisted(event)).detail == {"tip": tip}
        assert self.chain.state == state
        MET.meet(f"a refusal: persisted, {what}")

    @rule()
    def restart(self) -> None:
        MET.meet("a restart")
        MET.meet("a restart in a batch", self.model.committed < len(self.model.moments) - 1)
        self.model.crash()
        self.open.close()
        self.chain = self.open.enter_context(open_chain(self.folder, **self.options))

    @rule(prune_depth=WINDOWS, rollback_window=WINDOWS)
    def change_windows(self, prune_depth: int, rollback_window: int) -> None:
        self.commit()
        self.options |= {"prune_depth": prune_depth, "rollback_window": rollback_window}
        self.model.prune_depth, self.model.rollback_window = prune_depth, rollback_window
        self.restart()
        MET.meet("other windows")

    @precondition(lambda self: self.options["indexes"])
    @rule()
    def drop_an_index(self) -> None:
        self.commit()
        self.options["indexes"] = self.options["indexes"][:-1]
        self.restart()
        MET.meet("an index switched off")

    @rule(
        share=st.integers(0, 4),
        by=st.sampled_from(("hash", "slot", "height", "origin")),
        seed=SEEDS,
        blocks=st.integers(0, 5),
    )
    def reorganise(self, share: int, by: str, seed: int, blocks: int) -> None:
        self.go_back(share / 4, by)
        self.grow(seed, blocks, None, each=True)

    def go_back(self, share: float, by: str) -> None:
        self.commit()
        model, moments = self.model, self.model.moments
        floor = self.floor()
        target = floor + round(share * (model.committed - floor))
        point = moments[target].point
        match by:
            case "slot" if point:
                to = back_to(point.slot)
                target = model.last_upto(point.slot)
            case "height" if point:
                to = Rollback(to=RollbackPoint(height=point.height))
                target = max(n for n, each in enumerate(moments) if each.block and each.block.height <= point.height)
            case "hash" if point:
                to = Rollback(to=RollbackPoint(hash=point.hash))
            case _ if floor == 0:
                target, to, by = 0, back_to("origin"), "origin"
            case _:
                return
        before, blocks = model.stored.point, model.committed - target
        assert self.chain.rollback(to) == (blocks > 0)
        model.rollback(target)
        if blocks:
            assert before is not None
            self.published([RolledBack(from_=before, to=model.stored.point or "origin", blocks=blocks)])
            MET.meet(f"a reorganisation by {by}")
            MET.meet("a reorganisation down to the floor", target == floor)
        else:
            MET.meet("a rollback to the tip")

    @rule(share=st.integers(0, 4), renumbered=st.booleans())
    def deliver_again(self, share: int, renumbered: bool) -> None:
        model, tip = self.model, self.chain.tip
        ordinal = round(share / 4 * (len(model.moments) - 2)) + 1
        if tip is None:
            return
        old = model.moments[ordinal].block
        assert old is not None
        if renumbered:
            old = msgspec.structs.replace(old, height=tip.height + 1, prev_hash=None)
        waits = self.chain.batch.ordinals.copy()
        assert not self.chain.apply(old, None)
        assert self.chain.batch.ordinals == waits
        assert self.chain.tip == tip
        MET.meet("a duplicate that waits" if ordinal > model.committed else "a duplicate")
        MET.meet("a duplicate below the floor", ordinal < self.floor())

    @rule(
        what=st.sampled_from(("fork", "gap", "gap by height", "unknown_point", "origin", "slot", "hash")),
        deeper=st.integers(1, 3),
    )
    def refuse(self, what: str, deeper: int) -> None:
        self.commit()
        before, view = self.last_commit(), self.chain.view
        tip, floor = self.model.now.block, self.floor()
        if tip is None:
            return
        match what:
            case "fork" | "gap" | "gap by height":
                self.refuse_a_block(tip, what, deeper)
            case "unknown_point":
                refused(what, lambda: self.chain.rollback(Rollback(to=RollbackPoint(hash=digest("nowhere")))))
                MET.meet(f"a refusal: {what}")
            case _ if floor:
                self.refuse_below_the_floor(max(floor - deeper, 0), floor, what)
        self.chain.commit()
        assert (self.last_commit(), self.chain.view, self.chain.tip) == (before, view, view.tip)

    def refuse_a_block(self, tip: BlockApplied, what: str, above: int) -> None:
        height = tip.height + above if what == "gap" else tip.height + above + 1 if what == "gap by height" else 1
        parent = None if what == "gap by height" else digest("unknown")
        unrelated = block(tip, prev_hash=parent, height=height, salt="unrelated")
        why = refused(what.split()[0], lambda: self.chain.apply(unrelated, None))
        assert why.detail["tip"] == self.chain.tip
        MET.meet(f"a refusal: {what}")

    def refuse_below_the_floor(self, target: int, floor: int, by: str) -> None:
        model = self.model
        point, lowest = model.moments[target].point, model.moments[floor].point
        assert lowest is not None
        if point is None or by == "origin":
            to = back_to("origin")
        elif by == "slot" and model.last_upto(point.slot) < floor:
            to = back_to(point.slot)
        elif by == "hash" and point.slot < lowest.slot:
            to = Rollback(to=RollbackPoint(hash=point.hash, slot=point.slot))
        else:
            return
        assert refused("beyond_rollback_floor", lambda: self.chain.rollback(to)).detail["floor"] == lowest
        MET.meet(f"a refusal: beyond the floor by {by}")

    def last_commit(self) -> int:
        return int(self.chain.store.disk.env.info()["last_txnid"])

    def floor(self) -> int:
        points = [moment.point for moment in self.model.moments[: self.model.committed + 1]]
        return points.index(self.chain.view.floor)

    @invariant()
    def equals_the_model(self) -> None:
        model, chain, view = self.model, self.chain, self.chain.view
        assert chain.tip == model.now.point
        assert (view.tip, view.blocks) == (model.stored.point, model.committed)
        assert view.unspent == len(model.stored.coins)
        assert view.persisted_height == model.persisted_stored
        self.floor_is_right()
        if self.verified == self.last_commit():
            return
        self.verified = self.last_commit()
        assert unspent(chain.store) == {point: body(coin) for point, coin in model.stored.coins.items()}
        for index in INDEXES:
            for key, points in model.found(index).items() if index in self.options["indexes"] else ():
                assert found(chain.store, index, address_key(key) if index == "address_hash" else key) == points, index
        assert verify(chain.store.disk, quick=True, leaves=LEAVES) == []

    def floor_is_right(self) -> None:
        """Every point within the window can be rolled back to, and some of them are offered to feeders."""
        model, floor = self.model, self.floor()
        if self.exact:
            assert floor == model.lowest()
        assert max(self.elided, model.committed - model.rollback_window) <= floor <= model.lowest()
        points = [moment.point for moment in model.moments]
        offered = [points.index(point) for point in self.chain.view.points]
        assert offered == sorted(offered, reverse=True)
        assert set(offered) <= set(range(max(floor, 1), model.committed + 1))
        assert set(offered) >= {model.committed, max(floor, 1)} - {0} or model.committed == 0

    def prune_everything(self) -> None:
        self.commit()
        self.open.close()
        self.options |= {"prune_depth": 0, "rollback_window": 0}
        self.chain = self.open.enter_context(open_chain(self.folder, **self.options))
        model = self.model
        floor = block(model.now.block)
        feed(self.chain, floor, block(floor))
        prune_all(self.chain)
        answers, coins = dump(self.chain.store), model.now.coins
        assert answers["outputs"].keys() == coins.keys()
        assert {tx.txid for tx in answers["transactions"]} == {txid for txid, _ in coins}
        assert list(answers["undo"]) == [model.committed + 2]


def committed(moment: Moment) -> BlockCommitted:
    assert moment.point is not None and moment.block is not None
    return BlockCommitted(
        height=moment.point.height,
        slot=moment.point.slot,
        hash=moment.point.hash,
        txs=len(moment.block.txs),
        created=moment.created,
        spent=moment.spent,
        missing_inputs=len(moment.missing),
    )


def body(coin: Coin) -> Body:
    out = coin.output
    return Body(
        out.address,
        out.value,
        out.assets,
        out.datum_hash,
        out.inline_datum,
        out.script_ref,
        out.script_ref_hash,
        coin.collateral_return,
    )


STEPS = settings(stateful_step_count=30, report_multiple_bugs=False)


@pytest.fixture(autouse=True)
def small(monkeypatch: pytest.MonkeyPatch) -> None:
    small_values(monkeypatch)


def test_random_scenarios_equal_the_model() -> None:
    search(Scenario, MET, EXPECTED, examples=30, rounds=2)


def search(machine: type[Scenario], met: Branches, expected: set[str], examples: int, rounds: int) -> None:
    """Run so many rounds of scenarios, and up to eight times as many while one of the expected branches was not met.

    Which ones are run also depends on the modules that are loaded: Hypothesis tries their constants.
    """
    for number in range(8 * rounds):
        if number >= rounds and set(met.met) >= expected:
            break
        seed(number)(machine)  # of a round: with one seed they would all be the same
        run_state_machine_as_test(machine, settings=settings(STEPS, max_examples=examples))
    assert set(met.met) >= expected, sorted(expected - set(met.met))


EXPECTED = phrases(
    "a boundary block; a collateral return; a duplicate; a duplicate below the floor; "
    "a block below the floor is persisted; a block that waits is persisted; a duplicate that waits; "
    "a failed transaction; a genesis; a missing input; a refusal: beyond the floor by hash; "
    "a refusal: beyond the floor by origin; a refusal: beyond the floor by slot; a refusal: fork; a refusal: gap; "
    "a refusal: gap by height; a refusal: persisted, above; a refusal: persisted, another block's hash; "
    "a refusal: persisted, another hash; a refusal: unknown_point; a reorganisation by hash; "
    "a reorganisation by height; a reorganisation by origin; a reorganisation by slot; "
    "a reorganisation down to the floor; a restart; a restart in a batch; a rollback to the tip; a txid again; "
    "a txid again in its own block; an in-block spend; an index switched off; an input listed twice; "
    "an output with assets; an unspendable collateral return; an unspendable output; "
    "blocks far below the network's tip; other windows; several blocks in a commit; spent outputs were pruned; "
    "steps that do not prune everything; transactions were pruned; undo records were pruned"
)


@contextmanager
def fresh(**options: Unpack[Options]) -> Iterator[Chain]:
    with tempfile.TemporaryDirectory(prefix="utxod-") as folder, open_chain(Path(folder), **options) as chain:
        yield chain


def cut(rng: Random, blocks: Sequence[BlockApplied], most: int = 4) -> Iterator[Sequence[BlockApplied]]:
    while blocks:
        size = rng.randint(1, most)
        yield blocks[:size]
        blocks = blocks[size:]


@settings(max_examples=60)
@given(SEEDS, WINDOWS, WINDOWS, st.booleans())
def test_a_rollback_and_the_same_blocks_again_change_nothing(
    seed: int, prune_depth: int, rollback_window: int, prunes: bool
) -> None:
    rng = Random(seed)
    options = Options(prune_depth=prune_depth, rollback_window=rollback_window)
    length = rng.randint(1, 11)
    astray = rng.randint(0, min(rollback_window, 3))
    back = rng.randint(0, min(rollback_window - astray, length))
    chain = random_chain(rng, 12)
    fork = random_chain(rng, astray, after=chain[:length])
    with fresh(**options) as direct, fresh(**options) as wandering:
        for each in chain:
            feed(direct, each)
        for each in [*chain[:length], *fork]:
            feed(wandering, each)
        assert wandering.rollback(back_to(chain[length - back - 1] if back < length else "origin")) == bool(
            astray + back
        )
        for each in chain[length - back :]:
            feed(wandering, each)
        if prunes:
            prune_all(direct)
            prune_all(wandering)
        assert dump(wandering.store) == dump(direct.store)
        assert wandering.view == direct.view


@settings(max_examples=60)
@given(SEEDS, WINDOWS, WINDOWS)
def test_a_sync_far_below_the_tip_ends_with_the_same_answers(seed: int, prune_depth: int, rollback_window: int) -> None:
    rng = Random(seed)
    options = Options(prune_depth=prune_depth, rollback_window=rollback_window)
    some = random_chain(rng, rng.randrange(4), repeats=False)
    far = random_chain(rng, 10, after=some)
    near = random_chain(rng, max(prune_depth, rollback_window) + 2, after=some + far, repeats=False)
    with fresh(**options) as direct, fresh(**options) as elided:
        for part in cut(rng, some + far + near):
            feed(direct, *part)
        for part in cut(rng, some):
            feed(elided, *part)
        for part in cut(rng, far):
            feed(elided, *part, network_height=10_000)
        assert elided.view.floor == elided.tip
        for part in cut(rng, near):
            feed(elided, *part)
        prune_all(direct)
        prune_all(elided)
        assert dump(elided.store) == dump(direct.store)
        assert elided.view == direct.view


def test_heights_that_fall_do_not_change_the_depth(tmp_path: Path) -> None:
    """Once the tip of the network was reached, later blocks are not far below it, whatever their heights are."""
    network = 2**32 - 2
    first = block(None, height=network)
    others = [second := block(first, height=1), third := block(second, height=2), block(third, height=3)]
    with open_chain(tmp_path, prune_depth=3, rollback_window=3) as chain:
        feed(chain, first, network_height=network)
        feed(chain, *others[:2], network_height=network)
    with open_chain(tmp_path, prune_depth=3, rollback_window=3) as chain:
        feed(chain, others[2], network_height=network)
        assert chain.view.floor == first.point
        assert chain.rollback(back_to(first))


def test_an_elided_coinbase_still_replaces_an_earlier_one(tmp_path: Path) -> None:
    coinbase = tx("coinbase", output("ann"), coinbase=True)
    first, again = chained([coinbase], [coinbase, tx("spend", spends=[at("coinbase")])])
    with open_chain(tmp_path) as chain:
        feed(chain, first)
        feed(chain, again, network_height=10_000)
        assert live(chain.store) == {}
        assert chain.view.unspent == 0
