"""Instances as real processes: killed, paused past their lease, cut off. Every transaction ends once, as it has to."""

from __future__ import annotations

import ast
import asyncio
import os
import signal
import sys
import time
from collections import Counter
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager
from pathlib import Path
from urllib.parse import parse_qs, urlsplit

import msgspec
import pytest
from anyio import to_thread
from recovering import Lab, tx, until
from recovery_instance import Order, right

from storage.recovery.rows import Storage

pytestmark = pytest.mark.anyio
HERE = Path(__file__).parent
ROWS = int(os.environ.get("UTXOD_RECOVERY_ROWS", "1500"))  # 10000 for the whole thing
LEASE_S, SCAN_S = 2.0, 0.3
SLACK_S = 10.0  # for this machine, which has other things to do
ENDS_S = 60.0


class Proxy:
    """A way to the database on loopback that can be cut: nothing passes any more, and nobody is told."""

    def __init__(self, path: str) -> None:
        self._path = path
        self._open = asyncio.Event()
        self._open.set()
        self._ways: list[asyncio.StreamWriter] = []

    async def __aenter__(self) -> Proxy:
        self._server = await asyncio.start_server(self._serve, "127.0.0.1", 0)
        self.uri = (
            f"postgresql://postgres@127.0.0.1:{self._server.sockets[0].getsockname()[1]}/postgres?sslmode=disable"
        )
        return self

    async def __aexit__(self, *_: object) -> None:
        self._server.close()
        self._open.set()
        self._hang_up()
        await asyncio.sleep(0.1)

    def cut(self) -> None:
        self._open.clear()

    def mend(self) -> None:
        self._hang_up()
        self._open.set()

    def _hang_up(self) -> None:
        while self._ways:
            self._ways.pop().transport.abort()

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self._ways.append(writer)
        await self._open.wait()
        there_reader, there_writer = await asyncio.open_unix_connection(self._path)
        self._ways.append(there_writer)
        await asyncio.gather(self._pump(reader, there_writer), self._pump(there_reader, writer))

    async def _pump(self, source: asyncio.StreamReader, sink: asyncio.StreamWriter) -> None:
        try:
            while data := await source.read(1 << 16):
                await self._open.wait()
                sink.write(data)
                await sink.drain()
        except OSError:
            pass
        finally:
            sink.close()


class Instance:
    """One process of the service."""

    def __init__(self, process: asyncio.subprocess.Process, proxy: Proxy | None) -> None:
        self.process, self.proxy = process, proxy

    @property
    def pid(self) -> int:
        return self.process.pid

    def send(self, sign: signal.Signals) -> None:
        self.process.send_signal(sign)

    async def numbers(self) -> dict[str, int]:
        """Ask it to leave, and return what it has done."""
        self.send(signal.SIGTERM)
        out, _ = await asyncio.wait_for(self.process.communicate(), 30)
        assert self.process.returncode == 0
        found: dict[str, int] = msgspec.json.decode(out.decode().rpartition("numbers ")[2])
        return found


@asynccontextmanager
async def instance(order: Order, proxy: Proxy | None = None) -> AsyncIterator[Instance]:
    script, said = str(HERE / "recovery_instance.py"), Path(f"{order.journal}.log").open("a")  # noqa: SIM115, ASYNC230
    path = os.pathsep.join([str(HERE.parent), str(HERE)])
    process = await asyncio.create_subprocess_exec(
        sys.executable,
        script,
        msgspec.json.encode(order).decode(),
        env=os.environ | {"PYTHONPATH": path},
        stdout=asyncio.subprocess.PIPE,
        stderr=said,
    )
    try:
        yield Instance(process, proxy)
    finally:
        if process.returncode is None:
            process.kill()
            await process.communicate()
        said.close()


class Watch:
    """Looks at the rows from beside, and remembers the longest time in which none ended."""

    def __init__(self, storage: Storage, rows: int) -> None:
        self.longest_s, self._storage, self._rows = 0.0, storage, rows
        self.final = 0

    async def keep(self) -> None:
        moved = time.monotonic()
        while self.final < self._rows:
            counts = (await self._storage.counts()).by_status
            final = sum(counts.values()) - counts["pending"]
            if final != self.final:
                self.final, moved = final, time.monotonic()
            self.longest_s = max(self.longest_s, time.monotonic() - moved)
            await asyncio.sleep(0.05)

    async def more(self, rows: int) -> None:
        """Wait until so many more rows have ended."""
        goal = min(self.final + rows, self._rows)
        await until(lambda: self.final >= goal, ENDS_S)


async def ended_once(lab: Lab, storage: Storage, journal: Path) -> None:
    """Check that every row ended as it has to, by the last claim that anybody had, and was told of at most once."""
    lines = await to_thread.run_sync(lambda: journal.read_text().splitlines())
    told = Counter(line.split()[0] for line in lines)
    assert set(told.values()) == {1}
    wrong, seen, after = [], 0, None
    while page := await storage.rows(None, 1000, after=after):
        after, seen = page[-1].place, seen + len(page)
        for row in page:
            ends = [attempt for attempt in row.history if attempt.outcome != "transient"]
            if row.status != right(row.txid) or len(ends) != 1 or ends[0].generation != row.generation:
                wrong.append(row)
            if row.owner is not None or row.reopened or ends[0] != row.history[-1]:
                wrong.append(row)
    assert wrong == []
    assert seen == ROWS
    assert set(lines) <= {f"{tx(n).hex()} {right(tx(n))}" for n in range(ROWS)}


async def holder(lab: Lab) -> int:
    """Return the process that holds claims at the moment."""
    owner = "SELECT owner FROM {t} WHERE owner IS NOT NULL ORDER BY lease_until DESC LIMIT 1"
    found = await lab.sql(owner)
    return int(found[0][0].split("/")[1]) if found else 0


async def test_three_instances_killed_paused_and_cut_off(pg_lab: Lab, tmp_path: Path) -> None:
    """Their clocks are two hours apart from one to the next, too."""
    journal, path = tmp_path / "journal", f"{parse_qs(urlsplit(pg_lab.uri).query)['host'][0]}/.s.PGSQL.5432"
    async with AsyncExitStack() as stack:
        storage = await stack.enter_async_context(pg_lab.storage())
        await storage.add([tx(n) for n in range(ROWS)], 0.0, 60.0)
        living: dict[int, Instance] = {}
        for n in range(3):
            proxy = await stack.enter_async_context(Proxy(path))
            order = Order(
                proxy.uri, str(journal), pg_lab.table, LEASE_S, SCAN_S, skew_s=(n - 1) * 7200.0, work_s=4 * 10.0 / ROWS
            )
            started = await stack.enter_async_context(instance(order, proxy))
            living[started.pid] = started
        watch = Watch(storage, ROWS)
        watching = asyncio.ensure_future(watch.keep())
        share = ROWS // 6

        async def leader() -> Instance:
            found = 0

            async def leads() -> bool:
                nonlocal found
                found = await holder(pg_lab)
                return found in living

            await until(leads, ENDS_S)
            return living[found]

        await watch.more(share)
        killed = await leader()
        killed.send(signal.SIGKILL)
        await killed.process.wait()
        del living[killed.pid]
        await watch.more(share)

        paused = await leader()
        paused.send(signal.SIGSTOP)
        del living[paused.pid]
        await watch.more(share)  # somebody else took over
        assert (await leader()).pid != paused.pid
        his = f"owner LIKE '%/{paused.pid}/%'"

        async def taken_over() -> bool:  # at once, though others have waited longer
            await pg_lab.pass_time(3600, f"{his} AND lease_until < now()")
            return not await pg_lab.sql(f"SELECT 1 FROM {{t}} WHERE {his}")

        await until(taken_over, LEASE_S + SCAN_S + SLACK_S)
        paused.send(signal.SIGCONT)
        living[paused.pid] = paused
        await watch.more(share)

        away = await leader()
        assert away.proxy is not None
        away.proxy.cut()
        del living[away.pid]
        await watch.more(share)
        assert (await leader()).pid != away.pid
        away.proxy.mend()
        living[away.pid] = away

        await asyncio.wait_for(watching, ENDS_S)
        numbers = [await each.numbers() for each in living.values()]
        await ended_once(pg_lab, storage, journal)
        assert sum(each["leadership_losses"] for each in numbers) >= 2
        assert sum(each["conflicts"] + each["lease_losses"] for each in numbers) > 0  # what came too late was refused
        assert watch.longest_s < LEASE_S + SCAN_S + SLACK_S


async def test_one_instance_on_sqlite_killed_and_restarted(sqlite_lab: Lab, tmp_path: Path) -> None:
    journal = tmp_path / "journal"
    async with sqlite_lab.storage() as storage:
        await storage.add([tx(n) for n in range(ROWS)], 0.0, 60.0)
        watch = Watch(storage, ROWS)
        watching = asyncio.ensure_future(watch.keep())
        order = Order(str(sqlite_lab.path), str(journal), lease_s=1.0, scan_s=0.2, work_s=4 * 4.0 / ROWS)
        for _ in range(3):
            async with instance(order) as victim:
                await watch.more(ROWS // 6)
                victim.send(signal.SIGKILL)
                await victim.process.wait()
        async with instance(order) as last:
            await asyncio.wait_for(watching, ENDS_S)
            numbers = await last.numbers()
        await ended_once(sqlite_lab, storage, journal)
        assert numbers["conflicts"] == 0


def test_no_code_of_ours_reads_the_wall_clock_where_instances_share_rows() -> None:
    """What tells the time is the database; SQLite's file has one machine, whose clock it is."""
    root = HERE.parent
    paths = [*(root / "handlers" / "recovery").glob("*.py"), *(root / "storage" / "recovery").glob("postgres*.py")]
    assert len(paths) >= 8
    for path in paths:
        for node in ast.walk(ast.parse(path.read_text())):
            if isinstance(node, ast.ImportFrom) and node.module == "time":
                assert [alias.name for alias in node.names] == ["monotonic"], path
            assert not (isinstance(node, ast.Import) and any(alias.name == "time" for alias in node.names)), path
            assert not (isinstance(node, ast.Attribute) and node.attr in ("now", "utcnow", "today")), path
