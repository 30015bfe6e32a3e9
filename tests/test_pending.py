"""Limits of pending submissions: what goes, in which order, and that the counters are what the rows say."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from random import Random
from time import time
from typing import Any

import pytest
from chains import Branches, at, back_to, block, output, txid
from messages import Listener, message, take
from stores import ALL_TABLES, open_store, open_transactions

from daemon.pruning import evict_aged
from handlers import eviction, new_records
from handlers.audit import audit
from handlers.chain import Chain
from handlers.events import (
    Ack,
    BlockApplied,
    Error,
    Inbound,
    OutPoint,
    OutputReassigned,
    OutputsFrozen,
    OutputsUnfrozen,
    Tx,
    TxStatusChanged,
    TxSubmitted,
    TxWithdrawn,
)
from handlers.new_records import size_of
from handlers.spending import Rules
from handlers.transactions import Transactions, TxView
from handlers.tx_blocks import TxBlocks
from handlers.utxo import Turns
from storage.blobs import Files
from storage.disk import GIB, Disk
from storage.pending import Totals
from storage.windows import Windows

RETENTION = 100
MET = Branches()


def pay(name: str, *spends: OutPoint, outs: int = 2, **parts: Any) -> Tx:
    return Tx(txid(name), list(spends), [output(f"{name} {n}") for n in range(outs)], **parts)


class Pool:
    def __init__(self, disk: Disk, folder: Path, rules: Rules) -> None:
        self.utxo = open_store(disk, indexes=["address_hash"])
        real = open_transactions(self.utxo, rules, Files(folder / "blobs"))
        self.store = real.pool
        self.tx_blocks = TxBlocks(real)
        self.chain = Chain(self.utxo, Windows(10, 10), 10, self.tx_blocks)
        self.tx_blocks.start()
        self.turns, self.sender = Turns(self.chain), Listener()
        self.evicted: list[bytes] = []  # since the last look

    def send(self, *events: Inbound) -> list[Ack | Error]:
        numbered = [message(_numbered(event, n), self.sender) for n, event in enumerate(events)]
        committed = take(self.turns, *numbered)
        removed = [fact for fact in committed.facts if isinstance(fact, TxStatusChanged) and fact.status == "pruned"]
        self.evicted += [fact.txid for fact in removed]
        received, self.sender.received = self.sender.received, []
        return received

    def submit(self, *txs: Tx, **parts: Any) -> list[Ack | Error]:
        return self.send(*(TxSubmitted(tx=tx, **parts) for tx in txs))

    def pending(self) -> list[bytes]:
        with self.utxo.disk.read() as txn:
            names = [name for _, name in self.store.pending.ordered(txn)]
            records = self.store.records(txn, names)
            weight = sum(record.weight for record in records.values())
            assert self.store.pending.totals(txn) == Totals(len(names), weight)
            assert [records[name].submission for name in names] == [n for n, _ in self.store.pending.ordered(txn)]
        return names

    def known(self, name: bytes) -> bool:
        with self.utxo.disk.read() as txn:
            return self.store.record(txn, name) is not None

    def assert_sound(self) -> None:
        assert audit(self.tx_blocks.transactions).findings == []


def _numbered(event: Any, seq: int) -> Any:
    return type(event)(**{name: getattr(event, name) for name in event.__struct_fields__} | {"seq": seq})


@contextmanager
def open_pool(folder: Path, *, map_size: int = GIB, **rules: Any) -> Iterator[Pool]:
    with Disk(folder / "lmdb", ALL_TABLES, map_size=map_size, durable=False, on_grow=_grown) as disk:
        yield Pool(disk, folder, Rules(retention=RETENTION, maturity=0, **rules))


def _grown(size: int) -> None:
    MET.meet("a commit was done again in a larger map", size)


def accepted(answers: list[Ack | Error], *evicted: int) -> None:
    assert all(isinstance(answer, Ack) and answer.status == "accepted" for answer in answers), answers
    assert [answer.evicted for answer in answers if isinstance(answer, Ack)] == list(evicted)


def refused(answer: Ack | Error, code: str) -> dict[str, object]:
    assert isinstance(answer, Error) and answer.code == code, answer
    assert answer.retryable == (code == "PENDING_FULL")
    return answer.detail


def ids(*names: str) -> list[bytes]:
    return [txid(name) for name in names]


def test_previous_outputs_count_for_the_size() -> None:
    spends = [(txid("p"), 0), (txid("p"), 1)]
    reported = pay("a", *spends, previous=[(1, bytes(5000)), None])
    assert 5000 <= size_of(reported) - size_of(pay("a", *spends)) < 5100


def test_submissions_are_evicted_for_their_bytes(tmp_path: Path) -> None:
    one, two = pay("one", raw=bytes(1000)), pay("two", raw=bytes(3000))
    with open_pool(tmp_path, max_pending_bytes=size_of(one) + size_of(two)) as pool:
        accepted(pool.submit(one, two), 0, 0)
        accepted(pool.submit(pay("three", raw=bytes(10))), 1)
        assert pool.pending() == ids("two", "three")
        accepted(pool.submit(pay("four", raw=bytes(3000))), 1)
        detail = refused(pool.submit(pay("five", raw=bytes(10_000)))[0], "too_large")
        assert detail == {"bytes": size_of(pay("five", raw=bytes(10_000))), "max_pending_bytes": 5_280}
        assert pool.pending() == ids("three", "four")
        pool.assert_sound()


def test_a_refused_or_known_submission_evicts_none(tmp_path: Path) -> None:
    with open_pool(tmp_path, max_pending_count=2, max_pending_bytes=5000) as pool:
        pool.send(block(None, pay("p")))
        accepted(pool.submit(pay("a", at("p")), pay("b")), 0, 0)
        wrong = [pay("c", at("p")), pay("d", at("nowhere")), pay("e", at("a", 7)), Tx(txid("f"))]
        codes = [answer.code for answer in pool.submit(*wrong) if isinstance(answer, Error)]
        assert codes == ["UTXO_ERROR", "UTXO_ERROR", "UTXO_ERROR", "PROCESSING"]
        again = pool.submit(pay("a", at("p")), pay("p"))
        assert [answer.status for answer in again if isinstance(answer, Ack)] == ["duplicate", "duplicate"]
        refused(pool.submit(pay("g", raw=bytes(5000)))[0], "too_large")
        assert (pool.pending(), pool.evicted) == (ids("a", "b"), [])


@pytest.mark.parametrize("how", ["frozen", "reassigned"])
def test_an_operators_mark_is_not_lost(tmp_path: Path, how: str) -> None:
    """A transaction that is evicted and submitted again loses its marks, so what has a mark is not evicted."""
    with open_pool(tmp_path, max_pending_count=3) as pool:
        accepted(pool.submit(pay("a"), pay("marked", at("a")), pay("b")), 0, 0, 0)
        pool.send(OutputsFrozen(outpoints=[at("marked")]))
        if how == "reassigned":
            pool.send(OutputReassigned(outpoint=at("marked"), address=b"heir"))
        accepted(pool.submit(pay("c")), 1)
        accepted(pool.submit(pay("d")), 1)
        assert set(pool.pending()) == {*ids("a", "marked", "d")}
        assert refused(pool.submit(pay("e", at("d")))[0], "PENDING_FULL")["evicted"] == 0
        assert set(pool.pending()) == {*ids("a", "marked", "d")}
        if how == "frozen":
            pool.send(OutputsUnfrozen(outpoints=[at("marked")]))
            answer = pool.submit(pay("f", at("d")))[0]
            assert isinstance(answer, Ack) and answer.evicted >= 1
        pool.assert_sound()


@pytest.mark.parametrize("shape", ["chain", "fan", "tree"])
def test_a_large_package_is_evicted_step_by_step(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, shape: str) -> None:
    monkeypatch.setattr(eviction, "_ROWS", 60)
    size, down = 72, 0
    with open_pool(tmp_path, max_pending_count=size + 1) as pool:
        parents: dict[str, Callable[[int], tuple[int, int]]] = {
            "chain": lambda n: (n - 1, 0),
            "fan": lambda n: (0, n - 1),
            "tree": lambda n: ((n - 1) // 2, (n - 1) % 2),
        }
        accepted(pool.submit(pay("0", outs=size)), 0)
        for n in range(1, size):
            parent, index = parents[shape](n)
            accepted(pool.submit(pay(str(n), at(str(parent), index))), 0)
        accepted(pool.submit(pay("last")), 0)
        removed, tries = 0, 0
        while pool.known(txid("0")):
            answer, tries = pool.submit(pay(f"new {tries}"))[0], tries + 1
            if isinstance(answer, Error):
                refused(answer, "PENDING_FULL")
                down += 1
            evicted = len(pool.evicted) - removed
            assert evicted < 40 and tries < 3 * size
            removed += evicted
            if evicted:
                pool.assert_sound()
        assert removed >= size > 40
        assert down > 0 or shape != "chain"  # steps that only go down
        assert {*pool.evicted} >= {*ids(*map(str, range(size)))}


@pytest.mark.parametrize("again", [False, True], ids=["a child", "the same again"])
def test_what_comes_between_two_steps_is_seen(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, again: bool) -> None:
    """Before the next step an output may be spent by a new child, also after the transaction came again."""
    monkeypatch.setattr(eviction, "_ROWS", 5)
    with open_pool(tmp_path, max_pending_age_s=100.0, batch_size=10) as pool:
        old, real = pay("old", outs=30), pool.tx_blocks.transactions

        def make(view: TxView) -> None:
            record = new_records.draft(real.rules, old, 0, at=1)
            for number in range(record.pages + 1):
                new_records.put_page(view, old, record, number, creating=True)
            new_records.finish(view, old.txid)

        monkeypatch.setattr(Transactions, "now", lambda _: int((time() - 200) * 1000))
        pool.chain.write_alone(make)
        children = [pay(f"child {n}", at("old", n)) for n in range(0, 30, 5)]
        accepted(pool.submit(*children), *[0] * len(children))
        assert evict_aged(pool.chain, pool.tx_blocks) is not None and pool.known(old.txid)
        left = [child for child in children if pool.known(child.txid)]
        assert 0 < len(left) < len(children)
        if again:
            accepted(pool.send(TxWithdrawn(txids=[old.txid], reason="evicted")), 0)
            pool.chain.write_alone(make)
        accepted(pool.submit(pay("late", at("old", 1))), 0)
        while evict_aged(pool.chain, pool.tx_blocks) is not None:
            assert pool.known(old.txid) or not pool.known(txid("late"))
        assert pool.pending() == []


def test_a_package_that_a_step_has_begun_is_spared_for_what_builds_on_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(eviction, "_ROWS", 10)
    with open_pool(tmp_path, max_pending_count=8) as pool:
        children = [pay(f"child {n}", at("root", n)) for n in range(7)]
        accepted(pool.submit(pay("root", outs=20), *children), *[0] * 8)
        assert isinstance(pool.submit(pay("new"))[0], Ack)
        left = len(pool.pending())
        assert 2 < left < 8 and pool.known(txid("root"))
        accepted(pool.submit(*(pay(f"more {n}") for n in range(left, 8))), *[0] * (8 - left))
        answer = pool.submit(pay("late", at("root", 19)))[0]
        assert isinstance(answer, Ack) and answer.evicted and {*ids("root", "late")} <= {*pool.pending()}
        pool.assert_sound()


COUNT = 8


class Scenario:
    """The pool and a model of plain lists, told the same."""

    def __init__(self, pool: Pool, random: Random) -> None:
        self.pool, self.random = pool, random
        self.inputs: dict[str, list[OutPoint]] = {}
        self.pending: list[str] = []  # in the order of submission
        self.loose: set[str] = set()  # waits again after a rollback
        self.conflicting: set[str] = set()
        self.claims: dict[OutPoint, str] = {}
        self.frozen: set[OutPoint] = set()
        self.blocks: list[tuple[BlockApplied, list[str]]] = []

    def unmined(self) -> set[str]:
        return {*self.pending} | self.loose

    def free(self) -> list[OutPoint]:
        mined = [name for _, names in self.blocks for name in names]
        usable = [*mined, *(name for name in self.unmined() if name not in self.conflicting)]
        outputs = [at(name, n) for name in sorted(usable) for n in range(2)]
        frozen = {outpoint[0] for outpoint in self.frozen}
        return [each for each in outputs if each not in self.claims and each[0] not in frozen]

    def name_of(self, outpoint: OutPoint) -> str:
        return next(name for name in self.inputs if txid(name) == outpoint[0])

    def ancestors(self, inputs: list[OutPoint]) -> set[str]:
        found: set[str] = set()
        for outpoint in inputs:
            name = self.name_of(outpoint)
            if name in self.unmined() and name not in found:
                found |= {name} | self.ancestors(self.inputs[name])
        return found

    def package(self, name: str) -> set[str]:
        found = {name}
        for other in self.unmined():
            if other != name and any(outpoint[0] == txid(name) for outpoint in self.inputs[other]):
                found |= self.package(other)
        return found

    def make_room(self, inputs: list[OutPoint]) -> int | None:
        """Evict as the limits say; return how many went, None when there is no room."""
        removed, passed = 0, self.ancestors(inputs)
        while len(self.pending) >= COUNT:
            victim = next((name for name in self.pending if name not in passed), None)
            if victim is None:
                return None
            package = self.package(victim)
            if any(outpoint[0] == txid(name) for name in package for outpoint in self.frozen):
                self.pending.remove(victim)
                self.pending.append(victim)
                passed.add(victim)
                MET.meet("a frozen output keeps a package")
                continue
            MET.meet("a package of several", len(package) > 1)
            MET.meet("a conflicting transaction is evicted", package & self.conflicting)
            for name in package:
                self.forget(name)
            removed += len(package)
        return removed

    def forget(self, name: str) -> None:
        self.pending = [other for other in self.pending if other != name]
        self.conflicting.discard(name)
        self.claims = {outpoint: by for outpoint, by in self.claims.items() if by != name}

    def submit(self) -> None:
        name, free = f"{len(self.inputs)}", self.free()
        inputs = self.random.sample(free, min(len(free), self.random.randrange(3)))
        self.inputs[name] = inputs
        before = len(self.pool.evicted)
        removed = self.make_room(inputs)
        answer = self.pool.submit(pay(name, *inputs))[0]
        if removed is None:
            assert refused(answer, "PENDING_FULL")["count"] == COUNT
            MET.meet("no room")
            return
        assert isinstance(answer, Ack) and (answer.status, answer.evicted) == ("accepted", removed), answer
        assert len(self.pool.evicted) - before == removed
        MET.meet("evicted", removed)
        self.pending.append(name)
        self.claims |= dict.fromkeys(inputs, name)

    def grow(self) -> None:
        """Apply a block of some that wait, and maybe one that takes an output from another."""
        waiting = [name for name in [*sorted(self.loose), *self.pending] if name not in self.conflicting]
        chosen: list[str] = []
        for name in sorted(waiting, key=int):
            ready = all(
                self.name_of(each) in chosen or self.name_of(each) not in self.unmined() for each in self.inputs[name]
            )
            if ready and self.random.random() < 0.4:
                chosen.append(name)
        taken = {outpoint for name in chosen for outpoint in self.inputs[name]}
        mined = {name for _, names in self.blocks for name in names}
        rivals = [
            each
            for each, by in self.claims.items()
            if by in waiting and self.name_of(each) in mined and each not in taken
        ]
        if rivals and self.random.random() < 0.5:
            self.inputs[rival := f"{len(self.inputs)}"] = [self.random.choice(sorted(rivals))]
            chosen.append(rival)
        parent = self.blocks[-1][0] if self.blocks else None
        new = block(parent, *(pay(name, *self.inputs[name]) for name in chosen), salt=str(self.random.random()))
        self.pool.send(new)
        self.blocks.append((new, chosen))
        for name in chosen:
            for outpoint in self.inputs[name]:
                loser = self.claims.pop(outpoint, name)
                if loser != name:
                    MET.meet("a double spend is decided")
                    self.lose(loser)
            self.loose.discard(name)
            self.pending = [other for other in self.pending if other != name]
        self.claims |= {outpoint: name for name in chosen for outpoint in self.inputs[name]}
        MET.meet("pending transactions are mined", chosen)

    def lose(self, name: str) -> None:
        package = self.package(name)
        self.conflicting |= package
        self.claims = {outpoint: by for outpoint, by in self.claims.items() if by not in package}

    def back(self) -> None:
        if len(self.blocks) < 2:
            return
        _, names = self.blocks.pop()
        self.loose |= {*names}
        self.pool.send(back_to(self.blocks[-1][0]))
        MET.meet("a rollback", names)

    def freeze(self) -> None:
        """Freeze an output of what stands alone: how much of a package goes before a frozen one is met is not told."""
        if self.frozen:
            self.pool.send(OutputsUnfrozen(outpoints=sorted(self.frozen)))
            self.frozen.clear()
            return
        alone = [
            name for name in self.pending if self.package(name) == {name} and not self.ancestors(self.inputs[name])
        ]
        free = [each for each in self.free() if self.name_of(each) in alone]
        if free:
            self.frozen = {self.random.choice(free)}
            self.pool.send(OutputsFrozen(outpoints=sorted(self.frozen)))

    def check(self) -> None:
        assert self.pool.pending() == ids(*self.pending)
        unmined = {txid(name) for name in self.unmined()}
        with self.pool.utxo.disk.read() as txn:
            store = self.pool.tx_blocks.pool
            waiting = {name for _, name in store.due(txn, store.unmined, 2**32 - 1)}
        assert waiting == unmined


def run_scenario(folder: Path, seed: int) -> None:
    random = Random(seed)
    options: dict[str, Any] = {"max_pending_count": COUNT, "map_size": 1 << 16 if seed % 2 else GIB}
    with ExitStack() as stack:
        pool = stack.enter_context(open_pool(folder, **options))
        story = Scenario(pool, random)
        rules = [*[story.submit] * 4, story.grow, story.back, *[story.freeze] * 3]
        for _ in range(80):
            random.choice(rules)()
            story.check()
            assert pool.tx_blocks.evictor.numbers.evicted == {"limit": len(pool.evicted), "age": 0}
            if random.random() < 0.05:
                pool.assert_sound()
                stack.close()
                story.pool = pool = stack.enter_context(open_pool(folder, **options))
                MET.meet("a restart")
        pool.assert_sound()


def test_random_scenarios_equal_the_model(tmp_path: Path) -> None:
    MET.met.clear()
    for seed in range(16):
        print(f"seed {seed}")
        run_scenario(tmp_path / str(seed), seed)
    assert {
        "a commit was done again in a larger map",
        "a conflicting transaction is evicted",
        "a double spend is decided",
        "a frozen output keeps a package",
        "a package of several",
        "a restart",
        "a rollback",
        "evicted",
        "no room",
        "pending transactions are mined",
    } <= set(MET.met), MET.met
