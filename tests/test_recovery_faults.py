"""Whole daemons that share the recovery tables, killed, paused, cut off: every transaction ends once, as it has to."""

from __future__ import annotations

import ast
import asyncio
import os
import signal
import sqlite3
import time
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import AsyncExitStack, asynccontextmanager, closing
from functools import partial
from pathlib import Path
from typing import Any, TypeVar

import pytest
from anyio import to_thread
from patience import patience
from proxy import Proxy
from recovering import Lab, read, until
from recovery_scenario import Scenario, WatchedDaemon, watched_daemon

from storage.recovery.rows import Recovering
from storage.recovery.tables import Storage

pytestmark = pytest.mark.anyio
T = TypeVar("T")
ROWS = int(os.environ.get("UTXOD_RECOVERY_ROWS", "2000"))
LEASE_S, SCAN_S = 2.0, 0.3
SLACK_S = 10.0  # for an idle machine
ENDS_S = 120.0
DELAY_S = 0.005  # to the database, one way: so there is time to do something to a daemon at work
SOON = {
    "ttl": "2s",
    "scan_interval": f"{SCAN_S}s",
    "lease_duration": f"{LEASE_S}s",
    "batch_size": max(ROWS // 1000, 2),
    "worker_count": 2,
    "not_found_grace_period": "2s",
}


def thread(work: Callable[..., T], *values: Any) -> Any:
    """Do something that waits, while the proxies go on."""
    return to_thread.run_sync(work, *values)


class Watch:
    """Reads the rows, and remembers the longest time in which some were due and no instance claimed any."""

    def __init__(self, lab: Lab) -> None:
        self.longest_s, self.final, self.claims, self._lab = 0.0, 0, 0, lab
        self.slack_s = SLACK_S
        self._due = (
            "SELECT sum(CASE WHEN status <> 'pending' THEN 1 ELSE 0 END), sum(generation), "
            f"sum(CASE WHEN next_attempt_at < {lab.now()} THEN 1 ELSE 0 END) FROM {{t}}"
        )

    async def keep(self) -> None:
        before, moved = (-1, -1), time.monotonic()
        while self.final < ROWS:
            ((final, generations, due),) = await self._lab.sql(self._due)
            if (final, generations) != before or not due:
                before, moved = (final, generations), time.monotonic()
            self.final, self.claims = final or 0, generations or 0
            self.longest_s = max(self.longest_s, time.monotonic() - moved)
            self.slack_s = max(self.slack_s, patience(SLACK_S))
            await asyncio.sleep(0.1)

    async def progresses(self) -> None:
        """Wait until a good many more rows were looked into."""
        goal = self.claims + ROWS // 20
        await until(lambda: self.claims >= goal, ENDS_S)


async def ended_once(storage: Storage, scenario: Scenario, daemons: list[WatchedDaemon]) -> int:
    """Check that every row ended as it has to, by the last claim or a listener; return how many the scan ended."""
    wrong, seen, scanned, after = list[Recovering](), 0, 0, None
    while page := await storage.rows(None, 1000, after=after):
        after, seen = page[-1].place, seen + len(page)
        for row in page:
            history = (await read(storage, row.id)).history
            ends = [look for look in history if look.outcome in ("valid", "invalid")]
            if row.status == "orphan":
                ends = [look for look in history[-1:] if look.outcome == "notfound"]
            by_scan = bool(ends) and ends == history[-1:] and ends[0].generation == row.generation
            by_listener = not ends and all(look.generation < row.generation for look in history)
            if row.status != scenario.right(row.id) or not (by_scan or by_listener) or row.owner or row.reopened:
                wrong.append(row)
            scanned += by_scan
    assert wrong == []
    assert seen == ROWS
    reported = sum((each.reported for each in daemons), start=type(daemons[0].reported)())
    assert set(reported.values()) == {1}
    assert all(status == scenario.right(bytes.fromhex(txid)) for txid, status in reported)
    return scanned


@pytest.fixture
def shared(own_database: str, tmp_path: Path) -> Lab:
    """Return the tables where daemons look for them."""
    lab = Lab("postgresql", tmp_path, own_database)
    lab.table = "recovery_tx"
    return lab


class Cluster:
    """Three daemons on one database, each with a chain and a way to the database of its own."""

    def __init__(self, lab: Lab, daemons: list[WatchedDaemon], ways: list[Proxy]) -> None:
        self.lab, self.daemons = lab, daemons
        self.ways = dict(zip(daemons, ways, strict=True))

    async def rows_of(self, pid: int) -> list[bytes]:
        """Return the rows that a process holds."""
        return [row[0] for row in await self.lab.sql(f"SELECT txid FROM {{t}} WHERE owner LIKE '%/{pid}/%'")]

    async def leader(self) -> WatchedDaemon:
        """Wait until a daemon holds rows."""
        found = list[WatchedDaemon]()

        async def holds() -> bool:
            found[:] = [each for each in self.daemons if each.daemon.alive() and await self.rows_of(each.pid)]
            return bool(found)

        await until(holds, ENDS_S)
        return found[0]

    async def taken_over(self, owner: int, only: bytes | None = None) -> None:
        """Wait until a process holds no row, or not that one."""

        async def taken() -> bool:
            await self.lab.pass_time(3600, f"owner LIKE '%/{owner}/%' AND lease_until < now()")
            held = await self.rows_of(owner)
            return not held if only is None else only not in held

        await until(taken, LEASE_S + SCAN_S + patience(SLACK_S))


async def test_three_daemons_killed_paused_and_cut_off(shared: Lab, tmp_path: Path) -> None:
    """Their clocks are two hours apart from one to the next, too."""
    scenario = Scenario(ROWS)
    third = len(scenario.removed) // 3 + 1  # what falls due between two faults: so each finds the leader at work
    first, second, last = (scenario.removed[at : at + third] for at in range(0, len(scenario.removed), third))
    async with AsyncExitStack() as stack:
        storage = await stack.enter_async_context(shared.storage())
        ways = [await stack.enter_async_context(Proxy(shared.uri, DELAY_S)) for _ in range(3)]
        daemons = []
        for n, way in enumerate(ways):
            wish = SOON | {"store": "postgresql", "dsn": way.uri}
            daemons.append(stack.enter_context(watched_daemon(tmp_path / f"{n}", scenario, wish, (n - 1) * 7200.0)))
        cluster = Cluster(shared, daemons, ways)
        for each in daemons:
            await thread(each.start)
            await thread(each.feed, scenario.before)
            await thread(each.submit)
        for each in daemons:
            await until(partial(thread, each.swept), ENDS_S)
        await storage.add(first + scenario.unknown, 0.0, 60.0)
        watch = Watch(shared)
        watching = asyncio.ensure_future(watch.keep())
        await watch.progresses()

        killed = await cluster.leader()
        pid = killed.pid
        await thread(killed.kill)
        await cluster.taken_over(pid)
        await watch.progresses()

        # A result of the leader at that time is on its way and will arrive late.
        alive = [each for each in daemons if each is not killed]
        for each in alive:
            cluster.ways[each].cut_before(lambda sent: b"confirmed" in sent and any(txid in sent for txid in second))
        await storage.add(second, 0.0, 60.0)
        await until(lambda: any(cluster.ways[each].is_cut for each in alive), ENDS_S)
        paused, successor = sorted(alive, key=lambda each: not cluster.ways[each].is_cut)
        paused.send(signal.SIGSTOP)
        late = next(
            txid for txid in await cluster.rows_of(paused.pid) if txid in second and txid in cluster.ways[paused].kept
        )
        stale = (await read(storage, late)).generation
        cluster.ways[successor].deliver()
        cluster.ways[successor].cut_before(lambda sent: late in sent)
        half = (scenario.before + len(scenario.blocks)) // 2
        await thread(successor.feed, half)  # the paused one gets it when it is resumed
        await cluster.taken_over(paused.pid, late)
        await until(lambda: cluster.ways[successor].is_cut, ENDS_S)  # it is held, and not written yet
        cluster.ways[paused].deliver()
        paused.send(signal.SIGCONT)
        await until(lambda: {"leadership_lost", "result_too_late"} <= set(paused.daemon.events()), ENDS_S)
        assert stale not in [look.generation for look in (await read(storage, late)).history]
        cluster.ways[successor].deliver()

        await storage.add(last, 0.0, 60.0)
        away = await cluster.leader()
        cluster.ways[away].cut()
        await cluster.taken_over(away.pid)
        await thread(away.feed, len(scenario.blocks))  # the chain continues, and its facts cannot be written
        assert await cluster.leader() is not away
        cluster.ways[away].mend()
        await thread(killed.start)  # with a chain from before all that
        for each in daemons:
            await thread(each.feed, len(scenario.blocks))

        await asyncio.wait_for(watching, ENDS_S)
        for each in daemons:
            await thread(each.end)
        scanned = await ended_once(storage, scenario, daemons)
        assert len(scenario.unknown) < scanned < ROWS
        assert watch.longest_s < LEASE_S + SCAN_S + watch.slack_s


@asynccontextmanager
async def nothing_written(lab: Lab, way: Proxy) -> AsyncIterator[None]:
    """Keep everybody from writing rows: another process has the file, or nothing gets to the database."""
    if lab.kind == "postgresql":
        way.cut()
        yield
        way.mend()
        return
    with closing(sqlite3.connect(lab.path, isolation_level=None)) as other:
        other.execute("BEGIN IMMEDIATE")
        yield


@pytest.mark.parametrize("kind", ["sqlite", "postgresql"])
async def test_a_kill_between_the_two_stores_loses_nothing(kind: str, shared: Lab, tmp_path: Path) -> None:
    """What is acknowledged is in the transaction store, and by kill -9 nowhere else: its row is made at the start."""
    scenario, folder = Scenario(60), tmp_path / "one"
    lab = shared if kind == "postgresql" else Lab("sqlite", folder / "data", "")
    submitted = {each["tx"]["txid"] for each in scenario.submissions}
    async with Proxy(shared.uri) as way:
        wish = SOON | ({"store": "postgresql", "dsn": way.uri} if kind == "postgresql" else {}) | {"ttl": "1h"}
        with watched_daemon(folder, scenario, wish) as one:

            async def rows() -> dict[bytes, str]:
                return {bytes(txid): status for txid, status in await lab.sql("SELECT txid, status FROM {t}")}

            async def killed_in_the_gap(work: Callable[..., None], *values: Any) -> None:
                async with nothing_written(lab, way):
                    await thread(work, *values)
                    await thread(one.kill)

            await thread(one.start)
            await thread(one.feed, scenario.before)
            await until(partial(thread, one.swept), ENDS_S)
            await killed_in_the_gap(one.submit)
            assert await rows() == {}
            await thread(one.start)
            await until_so(rows, dict.fromkeys(submitted, "pending"))
            await thread(one.feed, scenario.before)
            await killed_in_the_gap(one.feed, len(scenario.blocks))
            assert await rows() == dict.fromkeys(submitted, "pending")
            await thread(one.start)
            await until_so(rows, {txid: scenario.right(txid) for txid in submitted})
            await thread(one.end)
            assert set(one.reported.values()) == {1}
            assert {bytes.fromhex(txid) for txid, _ in one.reported} == submitted


async def until_so(rows: Callable[[], Awaitable[dict[bytes, str]]], wanted: dict[bytes, str]) -> None:
    async def so() -> bool:
        return await rows() == wanted

    await until(so, ENDS_S)


def test_no_code_of_ours_reads_the_wall_clock_where_instances_share_rows() -> None:
    """What tells the time is the database; SQLite's file has one machine, whose clock it is."""
    root = Path(__file__).parent.parent
    paths = [*(root / "handlers" / "recovery").glob("*.py"), *(root / "storage" / "recovery").glob("postgres*.py")]
    assert len(paths) >= 8
    for path in paths:
        for node in ast.walk(ast.parse(path.read_text())):
            if isinstance(node, ast.ImportFrom) and node.module == "time":
                assert [alias.name for alias in node.names] == ["monotonic"], path
            assert not (isinstance(node, ast.Import) and any(alias.name == "time" for alias in node.names)), path
            assert not (isinstance(node, ast.Attribute) and node.attr in ("now", "utcnow", "today")), path
