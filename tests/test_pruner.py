"""The pruner on real stores: what starts a cycle, what it does in which order, and what it leaves when it is cut."""

from __future__ import annotations

import os
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any

import anyio
import anyio.lowlevel
import msgspec
import pytest
from chains import at, back_to, block, output, tx, txid
from daemons import Message, home
from patience import until
from pruning import PRESERVATION, RETENTION, UNMINED, Daemon, Idle, LocalStore, live, open_local_store, pay, terms_of
from stores import draft
from structlog.testing import capture_logs

from config.checks import problems, unmined_retention
from config.settings import Config, Transactions
from config.settings import Pruner as Subscription
from daemon.pruning import terms
from handlers import new_records, states
from handlers.events import BlockApplied, BlockPersisted, NodeState, TxSubmitted
from handlers.prune_report import PrunerJob
from handlers.prune_request import Node, Request, Requests, Trigger, World, held_back
from handlers.pruner import Pruner
from handlers.spending import Mined
from handlers.transactions import TxView
from storage.blobs import Files
from storage.damage import damage
from storage.history.layout import OUTPUT, TX, UNDO
from storage.jobs import Job
from storage.pool_layout import Body
from storage.pool_rows import PoolRows
from storage.windows import Windows


def blocks(count: int, after: BlockApplied | None = None) -> list[BlockApplied]:
    chain: list[BlockApplied] = []
    for n in range(count):
        parent = chain[-1] if chain else after
        chain.append(block(parent, pay(f"{parent and parent.height} {n}", coinbase=True)))
    return chain


def create_due(local: LocalStore) -> None:
    local.create(pay("spent"), 1, mined=1)
    local.create(pay("spender", at("spent")), 3, mined=3)


@pytest.mark.parametrize(
    ("trigger", "worlds", "queued"),
    [
        pytest.param("auto", [World(60)], [(60, "applied")], id="auto, no persister"),
        pytest.param("auto", [World(60), World(61, 40)], [(60, "applied"), (40, "persisted")], id="auto, a persister"),
        pytest.param("auto", [World(100, n) for n in (7, 7, 6)], [(7, "persisted")] * 3, id="the latest height"),
        pytest.param("applied", [World(60, 40)], [(60, "applied")], id="applied"),
        pytest.param("applied", [World(90), World(60)], [(90, "applied"), (60, "applied")], id="a rollback"),
        pytest.param("persisted", [World(60), World(60, 70)], [None, (60, "persisted")], id="above the tip"),
    ],
)
def test_what_requests_a_cycle(trigger: Trigger, worlds: list[World], queued: list[tuple[int, str] | None]) -> None:
    requests, found = Requests(trigger), list[tuple[int, str] | None]()
    for world in worlds:
        requests.observe(world)
        found.append(requests.queued and requests.queued[:2])
    assert found == queued


def test_heights_that_are_passed_are_counted_and_done_ones_are_not_requested_again() -> None:
    requests = Requests("auto", done=4)
    for persisted in (5, 7):
        requests.observe(World(100, persisted))
    assert requests.queued == Request(7, "persisted", 2), "5 was never run for, and 6 was never heard of"
    requests.finished(7)
    for persisted in (6, 7):
        requests.observe(World(100, persisted))
        assert requests.queued is None
    requests.observe(World(100, 8))
    assert (requests.queued, requests.passed) == (Request(8, "persisted", 0), 2)


@pytest.mark.parametrize(
    ("world", "why"),
    [
        (World(tip=111), None),
        (World(tip=111, node=Node("running", 111, 111)), None),
        (World(tip=111, node=Node("stopped", 111, 111)), "stopped"),
        (World(tip=111, node=Node("reorganising", 111, 111)), "reorganising"),
        (World(tip=111, node=Node("catching_up", 200, 111)), "catching_up"),
        (World(tip=111, node=Node("running", 105, 111)), "node_behind"),
        (World(tip=111, node=Node("running", 100, 100)), None),  # it said so a while ago, and was with us
        (World(tip=115, node=Node("running", 111, 115)), None),  # it has the block that is asked for
        (World(tip=111, network_height=117), "catching_up"),
        (World(tip=111, network_height=116), None),
    ],
)
def test_what_holds_a_cycle_back(world: World, why: str | None) -> None:
    assert held_back(world, 111, UNMINED) == why


def test_a_cycle_runs_its_phases_in_order(tmp_path: Path) -> None:
    with open_local_store(tmp_path) as local:
        local.create(pay("old", outs=2), 1, mined=1)
        local.create(pay("waits", at("old")), 2)  # unmined for long: its parent is preserved
        create_due(local)
        local.create(pay("kept"), 1, mined=1)
        local.create(pay("child of kept", at("kept")), 3, mined=3)
        local.write(lambda view: states.preserve(view, txid("kept"), 12))
        job = local.run_cycle(13)
        assert job.state == "done"
        assert list(job.seconds) == ["preserve", "expire", "transactions", "blobs"]
        assert job.counts == {
            "old_unmined": 1,
            "parents_preserved": 1,
            "preservations_ended": 1,
            "transactions_deleted": 1,
            "records_deleted": 1,
        }
        assert local.deleted == [txid("spent")]
        old, kept = local.record("old"), local.record("kept")
        assert old and old.preserve_until == 13 + PRESERVATION
        assert kept and (kept.preserve_until, kept.delete_at) == (None, 13 + RETENTION), "the normal rule decides"
        assert local.run_cycle(13 + RETENTION).counts["transactions_deleted"] == 1
        assert local.record("kept") is None
        assert [job.height for job in local.journal()] == [23, 13], "the latest first"


def test_parents_are_found_without_reading_bytes(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A step reads hundreds of pending transactions, which may have a mebibyte each."""

    def never(*_: object) -> Body:
        raise AssertionError("a body was read whole")

    with open_local_store(tmp_path) as local:
        for n in range(3):
            local.create(pay(f"old {n}"), 1, mined=1)
            local.create(pay(f"waits {n}", at(f"old {n}"), raw=bytes(10_000)), 2)
        monkeypatch.setattr(PoolRows, "body", never)
        assert local.run_cycle(13).counts["parents_preserved"] == 3


def test_a_cycle_that_has_nothing_to_do_writes_nothing_and_is_counted(tmp_path: Path) -> None:
    with open_local_store(tmp_path) as local:
        local.create(pay("new"), 20, mined=20)
        before = local.disk.env.info()["last_txnid"]
        assert local.run_cycle(20).counts == {}
        assert local.disk.env.info()["last_txnid"] == before
        assert local.journal() == []
        assert local.pruner.numbers.cycles == {"done": 0, "nothing_to_do": 1, "failed": 0}
        assert local.pruner.requests.done == 20


def test_the_journal_omits_cycles_without_effect(tmp_path: Path) -> None:
    with open_local_store(tmp_path) as local:
        local.create(pay("waits", at("elsewhere")), 2)  # looked at by each cycle; it has no parent to preserve
        local.create(pay("parent"), 1, mined=1)
        local.create(pay("child", at("parent")), 3, mined=3)
        looked = local.run_cycle(12)
        assert (looked.counts, local.journal()) == ({"old_unmined": 1}, [])
        local.corrupt(txid("child"))
        assert local.run_cycle(13).skipped == {"unreadable_child": 1}
        local.disk.write(lambda txn: txn.delete(txid("child"), db=local.transactions.pool.tx))
        local.run_cycle(14)
        local.run_cycle(15)
        assert [(job.number, job.height, job.state) for job in local.journal()] == [(2, 14, "done"), (1, 13, "done")]
        assert local.pruner.numbers.cycles == {"done": 2, "nothing_to_do": 2, "failed": 0}


def test_preserving_never_shortens(tmp_path: Path) -> None:
    with open_local_store(tmp_path) as local:
        local.create(pay("old"), 1, mined=1)
        local.create(pay("waits", at("old")), 2)
        local.write(lambda view: states.preserve(view, txid("old"), 1_000_000))
        local.run_cycle(20)
        assert (old := local.record("old")) and old.preserve_until == 1_000_000


@pytest.mark.parametrize("crowd", [0, 20])
def test_a_large_transaction_waits_for_its_unmined_child(tmp_path: Path, crowd: int) -> None:
    def make(view: TxView) -> None:
        large = pay("large", outs=7)
        record = draft(local.transactions.rules, large, 1, mined=[Mined(1, 1)])
        for number in range(record.pages + 1):
            new_records.put_page(view, large, record, number)

    def delete() -> Any:
        return local.disk.write(lambda txn: local.deletion.delete_due(txn, 118, None))

    def forgive(view: TxView) -> None:
        for number in range(4):
            page = view.rows.page(txid("large"), number)
            assert page is not None
            page.deleted_children.append(txid("child"))
            view.rows.put_page(txid("large"), number, page)

    with open_local_store(tmp_path, page=2) as local:
        local.write(make)
        local.create(pay("child", *[at("large", n) for n in range(7)]), 108, mined=108)
        for n in range(crowd):
            local.create(pay(f"other {n}"), 117)
        large = local.record("large")
        assert large is not None and large.delete_at == 108 + RETENTION
        local.write(lambda view: states.set_mined(view, txid("child"), Mined(108, 108), unset=True))
        assert delete().skipped == {txid("large"): "unmined_child"}
        local.corrupt(txid("child"))
        assert delete().skipped == {txid("large"): "unreadable_child"}
        local.write(forgive)
        assert [place.txid for place, _ in delete().with_blobs] == [txid("large")]


@pytest.mark.parametrize("corrupted", ["record", "parent", "child", "index"])
def test_an_unreadable_record_is_skipped(tmp_path: Path, corrupted: str) -> None:
    with open_local_store(tmp_path, terms_of(chunk_size=2)) as local:
        for n in range(7):
            local.create(pay(f"parent {n}"), 1, mined=1)
            local.create(pay(f"child {n}", at(f"parent {n}")), 2, mined=2)
            local.create(pay(f"grandchild {n}", at(f"child {n}")), 3, mined=3)
        victim = {"parent": "parent 3", "child": "grandchild 3"}.get(corrupted, "child 3")
        match corrupted:
            case "index":
                local.disk.write(
                    lambda txn: txn.put(b"\0\0\0\x05", txid("nobody"), db=local.transactions.pool.delete_at)
                )
            case _:
                local.corrupt(txid(victim))
        with capture_logs() as logs:
            job = local.run_cycle(3 + RETENTION)
        assert job.state == "done"
        removed = job.counts["transactions_deleted"]
        problems = job.counts.get("errors", 0) + sum(job.skipped.values())
        assert (removed, problems) == {"record": (12, 2), "parent": (12, 2), "index": (14, 1)}.get(corrupted, (13, 1))
        if corrupted != "child":
            assert any(line["event"] == "records_skipped" and line["log_level"] == "error" for line in logs)


def test_orphan_blobs_are_swept_and_no_others(tmp_path: Path) -> None:
    with open_local_store(tmp_path) as local:
        blobs = Files(tmp_path / "blobs")
        local.create(pay("known", at("x"), raw=bytes(2000)), 1)
        local.transactions.on_their_way.add(txid("coming"))
        names = {name: f"{txid(name).hex()}.tx" for name in ("known", "coming", "young", "old", "older")}
        for name, file in names.items():
            blobs.put(file, b"bytes")
            if name != "young":
                os.utime(tmp_path / "blobs" / file[:2] / file, (0, 0))
        assert local.run_cycle(1).counts["orphans_deleted"] == 2
        assert {name for name, _ in blobs.names()} == {names["known"], names["coming"], names["young"]}
        assert "blobs" not in local.run_cycle(2).seconds, "once an hour is enough"


def test_a_block_at_the_tip_starts_a_cycle(tmp_path: Path) -> None:
    async def story(daemon: Daemon, idle: Idle) -> None:
        chain = blocks(3)
        await daemon.receive(*chain)
        first = pay("first", at("None 0"), raw=b"raw")
        await daemon.receive(TxSubmitted(tx=first))
        chain.append(block(chain[-1], first, pay("second", (first.txid, 0))))
        await daemon.receive(chain[-1])
        await idle()
        assert local.record("first") is not None
        chain += blocks(RETENTION, chain[-1])
        await daemon.receive(*chain[4:])
        await idle()
        assert local.record("first") is None
        assert txid("first") in local.deleted
        latest = local.journal()[0]
        assert (latest.state, latest.height, latest.trigger) == ("done", 4 + RETENTION, "applied")
        assert latest.passed_heights == RETENTION - 1
        timed = [work for committed in local.published for work, _ in committed.timings if work == "cleanup"]
        assert timed == ["cleanup"], "one turn has deleted"

    with open_local_store(tmp_path) as local:
        live(local, story)


def test_the_node_holds_a_cycle_back_and_the_job_has_the_reason(tmp_path: Path) -> None:
    async def story(daemon: Daemon, idle: Idle) -> None:
        chain = blocks(30)
        await daemon.receive(*chain[:20], NodeState(state="reorganising", height=20))
        await idle()
        assert [(job.state, job.reason) for job in local.journal()] == [("queued", "reorganising")]
        await daemon.receive(*chain[20:25])
        await idle()
        assert [(job.state, job.height) for job in local.journal()] == [("queued", 20)], "told once"
        assert not any(job.counts for job in local.journal())
        await daemon.receive(NodeState(state="running", height=25))
        await idle()
        assert [(job.number, job.state, job.height) for job in local.journal()] == [(1, "done", 25)]
        daemon.sender.network_height = 100
        await daemon.receive(*chain[25:29])
        await idle()
        assert (local.journal()[0].state, local.journal()[0].reason) == ("queued", "catching_up")
        assert not local.chain.due_for_pruning(), "the chain's own tables need no cycle, only the window"
        daemon.sender.network_height = 30
        await daemon.receive(chain[29])
        await idle()
        assert len(local.journal()) == 1, "there was nothing to do any more"
        assert local.pruner.numbers.held_back == {"reorganising": 2, "catching_up": 1}

    with open_local_store(tmp_path) as local:
        create_due(local)
        live(local, story)


def test_a_failed_cycle_is_retried(tmp_path: Path) -> None:
    whole: list[bytes] = []

    async def story(daemon: Daemon, idle: Idle) -> None:
        chain = blocks(15)
        await daemon.receive(*chain[:13])
        await idle()
        failed = local.journal()[0]
        assert (failed.state, failed.phase, failed.height) == ("failed", "preserve", 13)
        assert "the record of" in (failed.error or "")
        assert local.record("spent") is not None, "nothing is deleted before parents are safe"
        assert local.pruner.requests.done == 0
        local.corrupt(txid("waits"), whole[0])
        daemon.wakeup.notify()
        await idle()
        assert [(job.state, job.height) for job in local.journal()[:2]] == [("done", 13), ("failed", 13)]
        assert local.record("spent") is None
        daemon.wakeup.notify()
        await idle()
        assert len(local.journal()) == 2, "a height that is done is dropped"
        assert local.pruner.numbers.cycles == {"done": 1, "nothing_to_do": 0, "failed": 1}

    with open_local_store(tmp_path) as local:
        create_due(local)
        local.create(pay("waits"), 2)
        local.disk.write(lambda txn: whole.append(txn.get(txid("waits"), b"", db=local.transactions.pool.tx)))
        local.corrupt(txid("waits"))
        live(local, story)


def test_a_cycle_that_takes_too_long_leaves_the_rest(tmp_path: Path) -> None:
    async def story(daemon: Daemon, idle: Idle) -> None:
        chain = blocks(14)
        await daemon.receive(*chain[:13])
        await idle()
        assert "pruner.job_timeout" in (local.journal()[0].error or "")
        local.tables.terms = terms_of()
        daemon.wakeup.notify()
        await idle()
        assert local.journal()[0].state == "done"

    with open_local_store(tmp_path, terms_of(job_timeout=0.0)) as local:
        create_due(local)
        live(local, story)


@pytest.mark.parametrize("every_s", [0.0, 1e-9, 30.0])
def test_a_long_cycle_reports_its_progress(tmp_path: Path, every_s: float) -> None:
    async def story(daemon: Daemon, idle: Idle) -> None:
        await daemon.receive(*blocks(13))
        await idle()
        assert local.journal()[0].state == "done"

    often = terms_of(1, progress_log_interval=every_s)
    with capture_logs() as logs, open_local_store(tmp_path, often) as local:
        for n in range(5):
            local.create(pay(f"spent {n}"), 1, mined=1)
            local.create(pay(f"spender {n}", at(f"spent {n}")), 2, mined=2)
        live(local, story)
    reported = [line for line in logs if line["event"] == "pruning"]
    if every_s in {0.0, 30.0}:
        assert reported == []
        return
    far = [line["transactions_deleted"] for line in reported if "transactions_deleted" in line]
    assert far == sorted(far) and set(far) >= {1, 2, 3, 4, 5}
    assert {line["height"] for line in reported} == {13} and "transactions" in {line["phase"] for line in reported}


@pytest.mark.parametrize("what", ["rollback", "node"])
def test_a_rollback_or_a_reorganising_node_stops_a_cycle(tmp_path: Path, what: str) -> None:
    terms = terms_of(1)

    async def story(daemon: Daemon, idle: Idle) -> None:
        chain = blocks(14)
        await daemon.receive(*chain[:13])
        while not local.deleted:
            await anyio.lowlevel.checkpoint()
        await daemon.receive(back_to(chain[11]) if what == "rollback" else NodeState(state="reorganising", height=13))
        await idle()
        cut = next(job for job in local.journal() if job.state == "failed")
        assert cut.height == 13
        assert (cut.error or "").startswith("blocks were rolled back" if what == "rollback" else "held back meanwhile")
        await daemon.receive(*chain[12:], NodeState(state="running", height=14))
        await idle()
        assert local.pruner.requests.done == 14
        assert len(local.deleted) == 50

    with open_local_store(tmp_path, terms) as local:
        for n in range(50):
            local.create(pay(f"spent {n}"), 1, mined=1)
            local.create(pay(f"spender {n}", at(f"spent {n}")), 2, mined=2)
        live(local, story)


def test_a_silent_persister_blocks_deletion_and_is_logged(tmp_path: Path) -> None:
    def story_of(events: list[str]) -> Callable[[Daemon, Idle], Awaitable[None]]:
        async def story(daemon: Daemon, idle: Idle) -> None:
            chain = blocks(30)
            await daemon.receive(chain[0], BlockPersisted(height=1))
            with capture_logs() as logs:
                await daemon.receive(*chain[1:])
                await idle()
            events.extend(line["event"] for line in logs)

        return story

    events: list[str] = []
    with open_local_store(tmp_path / "auto") as local:
        create_due(local)
        live(local, story_of(events))
        assert "persister_silent" in events
        assert local.pruner.numbers.persister_lag == 29
        assert local.record("spent") is not None, "the persister must still write it"
    with open_local_store(tmp_path / "applied", terms_of(trigger="applied")) as local:
        create_due(local)
        live(local, story_of([]))
        assert local.record("spent") is None, "the way out"


def test_a_daemon_that_stops_records_it_in_the_journal(tmp_path: Path) -> None:
    with open_local_store(tmp_path, terms_of(max_job_history=3)) as local:
        job = Job(1, 5, "applied", "running", 1.0, phase="transactions")
        local.disk.write(lambda txn: local.jobs.put(txn, job, 3))
        local.pruner.begin()
        assert [(job.state, "interrupted" in (job.error or "")) for job in local.journal()] == [("failed", True)]
        for height in range(16, 22):
            local.create(pay(f"spent {height}"), 1, mined=1)
            local.create(pay(f"spender {height}", at(f"spent {height}")), 3, mined=height - RETENTION)
            local.run_cycle(height)
        assert [(job.number, job.height) for job in local.journal()] == [(7, 21), (6, 20), (5, 19)], "bounded"
        with local.disk.read() as txn:
            assert [job.number for job in local.jobs.latest(txn, before=6)] == [5]
        local.pruner.begin()
        assert local.pruner.requests.done == 21, "a restart does not begin again"


def test_a_job_that_waits_continues_after_a_restart(tmp_path: Path) -> None:
    with open_local_store(tmp_path) as local:
        local.pruner.hold(Request(13, "applied"), "stopped")
        local.pruner = Pruner(local.tables)
        local.pruner.begin()
        assert [(job.number, job.state, job.reason) for job in local.journal()] == [(1, "queued", "stopped")]
        create_due(local)
        local.run_cycle(14)
        assert [(job.number, job.state, job.height) for job in local.journal()] == [(1, "done", 14)]
        local.pruner.hold(Request(15, "applied"), "stopped")
        local.run_cycle(15)
        assert [job.number for job in local.journal()] == [1], "it waited for nothing"


def test_damage_in_the_chains_own_tables_ends_the_daemon(tmp_path: Path) -> None:
    async def story(daemon: Daemon, idle: Idle) -> None:
        chain = blocks(2)
        chain.append(block(chain[-1], tx("spender", output("a"), spends=[at("None 0")])))
        chain += blocks(9, chain[-1])
        local.chain.may_prune = False
        await daemon.receive(*chain)
        await idle()
        undo = local.disk.tables[UNDO]
        local.disk.write(lambda txn: txn.put(next(iter(txn.cursor(undo)))[0], b"\x92", db=undo))
        await daemon.receive(*blocks(4, chain[-1]))
        await idle()

    with open_local_store(tmp_path) as local, pytest.raises(BaseExceptionGroup) as ended:
        live(local, story)
    (error,) = ended.value.exceptions
    assert damage(error), "the daemon stops for good, and says why"


def test_freed_pages_are_reused(tmp_path: Path) -> None:
    terms = terms_of(max_job_history=10)
    with open_local_store(tmp_path, terms, windows=Windows(5, 5)) as local:
        sizes, entries, tip = [], [], None
        for cycle in range(14):
            for _ in range(5):
                height = (tip.height if tip else 0) + 1
                named = [f"{height} {n}" for n in range(60)]
                spends = [at(f"{height - 1} {n}") if height > 1 else at(f"nothing {n}") for n in range(60)]
                raw = bytes(300)
                made = [pay(name, spend, raw=raw) for name, spend in zip(named, spends, strict=True)]
                tip = block(tip, *made)
                local.chain.apply(tip, None)
                local.chain.commit()
            assert tip is not None
            local.run_cycle(tip.height)
            if cycle >= 9:  # random keys: a table finds its size slowly
                sizes.append(local.disk.used())
                with local.disk.read() as txn:
                    tables = {name: local.disk.tables[name] for name in ("tx", "tx_delete_at", TX, OUTPUT, UNDO)}
                    entries.append({name: txn.stat(table)["entries"] for name, table in tables.items()})
        assert len(local.deleted) > 60 * 5 * 9
        assert all(each == entries[0] for each in entries), "the state is steady"
        assert max(sizes) < min(sizes) * 1.1, f"the file grew: {sizes}"


@pytest.mark.parametrize(
    ("pruner", "retention", "names"),
    [
        (Subscription(), 288, []),
        (Subscription(), 1, []),  # half of it, rounded down, is always less
        (Subscription(), 144, []),
        (Subscription(unmined_retention=144), 144, ["pruner.unmined_retention"]),
        (Subscription(unmined_retention=288), 288, ["pruner.unmined_retention"]),
        (Subscription(parent_preservation_blocks=288), 288, ["pruner.parent_preservation_blocks"]),
        (Subscription(), 1440, ["pruner.parent_preservation_blocks"]),
        (Subscription(), 0, []),  # then nothing is deleted at all
        (Subscription(unmined_retention=900, enabled=False), 288, []),
    ],
)
def test_contradictory_windows_are_reported(pruner: Subscription, retention: int, names: list[str]) -> None:
    config = Config(pruner=pruner, transactions=Transactions(block_height_retention=retention))
    found = problems(config)
    assert [problem.names[0] for problem in found] == names
    for problem in found:
        assert problem.names[1] == "transactions.block_height_retention"
        assert str(retention) in problem.what


@pytest.mark.parametrize(("chosen", "retention", "found"), [(None, 288, 144), (None, 7, 3), (None, 0, 0), (5, 288, 5)])
def test_parents_are_preserved_after_half_the_retention(chosen: int | None, retention: int, found: int) -> None:
    transactions = Transactions(block_height_retention=retention)
    config = Config(pruner=Subscription(unmined_retention=chosen), transactions=transactions)
    assert unmined_retention(config) == terms(config).unmined_retention == found


def test_the_commands_and_the_journal(tmp_path: Path) -> None:
    tables: Message = {
        "utxo": {"prune_depth": 2, "rollback_window": 2},
        "transactions": {"block_height_retention": 3},
        "pruner": {"unmined_retention": 1, "parent_preservation_blocks": 9},
    }
    with home(tmp_path, **tables) as daemon:
        missing = daemon.run("prune", "status")
        assert (missing.returncode, missing.stdout) == (1, b"")
        daemon.start()
        with daemon.client("frames") as client, daemon.client("frames") as listener:
            listener.ask({"type": "Hello"})
            listener.send({"type": "Subscribe", "events": ["TxStatusChanged"]})
            client.hello()
            chain = blocks(1)
            chain.append(block(chain[-1], pay("kept", at("None 0"), raw=b"raw")))  # its bytes make a record
            chain.append(block(chain[-1], pay("spender", at("kept"))))
            chain += blocks(3, chain[-1])
            plain = [msgspec.to_builtins(each, builtin_types=(bytes,)) for each in chain]
            client.feed([{name: part for name, part in each.items() if part is not None} for each in plain])
            until(lambda: b" done " in daemon.run("prune", "status").stdout)
            pruned = listener.receive()
            assert pruned is not None
            assert (pruned["type"], pruned["status"], pruned["txid"]) == (
                "TxStatusChanged",
                "pruned",
                txid("kept").hex(),
            )
            busy = daemon.run("prune", "now")
            assert (busy.returncode, busy.stdout) == (1, b"")
            assert b"another process has this store" in busy.stderr
        assert daemon.term() == 0
        assert daemon.run("prune").stdout.startswith(b"pruned 0 spent outputs")
        lines = daemon.run("prune", "status", "--json").stdout.splitlines()
        [job] = [msgspec.json.decode(line, type=PrunerJob) for line in lines]  # by hand there was nothing to do
        assert (job.number, job.height, job.state, job.counts["transactions_deleted"]) == (1, 6, "done", 1)
        assert job.duration_seconds is not None
