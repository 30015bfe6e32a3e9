"""Final statuses in the change log: each once, whenever the daemon was killed."""

from __future__ import annotations

import sqlite3
from collections import Counter
from collections.abc import Iterator
from contextlib import closing
from functools import partial
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any, cast

import pytest
from anyio import CapacityLimiter
from daemons import Daemon, running, statuses
from patience import until
from recovering import Lab, Shaky, tx
from scenarios import at, block, digest, output
from scenarios import tx as made

from daemon.final_statuses import FinalStatusReporter
from handlers.change_log import ChangeLog, read
from handlers.events import TxStatusChanged
from storage.change_log import TABLES
from storage.disk import Disk
from storage.recovery import sql
from storage.recovery.rows import FINAL, Settlement, StoreAway
from storage.recovery.sqlite import worded
from storage.recovery.tables import Storage

ME = "me"
EVENTS = ["BlockCommitted", "RolledBack", "Pruned", "TxStatusChanged"]


class Life:
    """One life of a reporter, on tables and a log that outlive it."""

    def __init__(self, storage: Storage, disk: Disk) -> None:
        self.storage, self.changes = storage, ChangeLog(disk)
        self.received = list[TxStatusChanged]()
        self.reporter = FinalStatusReporter(storage, self.changes, self.publish, CapacityLimiter(1), lambda: 7)

    def publish(self) -> None:
        self.received += cast("list[TxStatusChanged]", self.changes.take())

    async def conclude(self, status: Any, *numbers: int) -> None:
        await self.storage.conclude(map(tx, numbers), status, "")

    async def tell_all(self) -> None:
        while await self.reporter.report():
            pass

    def logged(self) -> list[tuple[bytes, str]]:
        facts = read(self.changes.fetch(1, 1000), 1) if self.changes.newest() else []
        return [(fact.txid, fact.status) for fact in facts if isinstance(fact, TxStatusChanged)]


@pytest.fixture
def disk(tmp_path: Path) -> Iterator[Disk]:
    with Disk(tmp_path / "log", TABLES, map_size=1 << 24, durable=False) as disk:
        yield disk


pytestmark = pytest.mark.anyio


async def test_a_final_row_is_marked_until_it_is_published(lab: Lab) -> None:
    async with (
        lab.storage(reporter=ME) as storage,
        lab.storage(reporter="another") as other,
        lab.storage() as unnamed,
    ):
        await storage.add(map(tx, range(9)), 0.0, 60.0)
        claims = {claim.txid: claim for claim in await storage.claim("A", 30.0, 4)}
        settled = [Settlement(claim, status, "valid") for claim, status in zip(claims.values(), FINAL, strict=True)]
        await storage.settle(settled[:2])
        await other.settle(settled[2:3])
        await storage.settle([Settlement(settled[3].claim, "pending", "busy")])
        free = [tx(n) for n in range(9) if tx(n) not in claims]
        await storage.conclude(free[:2], "deleted", "")
        await unnamed.conclude(free[2:3], "deleted", "")
        mine = {each.claim.txid: each.status for each in settled[:2]} | dict.fromkeys(free[:2], "deleted")
        assert dict(await storage.unpublished(100)) == mine
        assert await other.unpublished(100) == [(settled[2].claim.txid, "orphan")]
        assert await unnamed.unpublished(100) == []
        assert len(await storage.unpublished(3)) == 3
        await storage.reopen([free[0]], "", FINAL)  # and so it is not final any more
        del mine[free[0]]
        assert dict(await storage.unpublished(100)) == mine
        assert await storage.mark_published([(free[1], "confirmed"), (settled[2].claim.txid, "orphan")]) == set()
        assert await storage.mark_published(await storage.unpublished(100)) == set(mine)
        assert await storage.unpublished(100) == []


async def test_a_kill_between_the_tables_and_the_log_loses_no_fact(lab: Lab, disk: Disk) -> None:
    async with lab.storage(reporter=ME) as storage:
        await storage.add(map(tx, range(6)), 30.0)
        first = Life(storage, disk)
        await first.conclude("confirmed", 1)
        await first.tell_all()
        await first.conclude("deleted", 2, 3)  # and here it dies
        assert first.logged() == [(tx(1), "confirmed")]
        second = Life(storage, disk)
        await second.tell_all()
        assert second.logged() == [(tx(1), "confirmed"), (tx(2), "deleted"), (tx(3), "deleted")]
        assert [fact.height for fact in second.received] == [7, 7]
        third = Life(storage, disk)
        await third.tell_all()
        assert third.logged() == second.logged() and third.received == []


async def test_a_kill_between_the_log_and_the_mark_publishes_nothing_twice(lab: Lab, disk: Disk) -> None:
    async with lab.storage(reporter=ME) as storage:
        await storage.add(map(tx, range(6)), 30.0)
        shaky = Shaky(storage)
        first = Life(cast("Any", shaky), disk)
        await first.conclude("deleted", 1, 2)
        shaky.broken.add("mark_published")  # and here it dies
        with pytest.raises(StoreAway):
            await first.tell_all()
        assert len(await storage.unpublished(10)) == 2
        await storage.reopen([tx(2)], "", FINAL)
        await storage.conclude([tx(2)], "confirmed", "")  # of which the log does not tell
        second = Life(storage, disk)
        await second.tell_all()
        assert second.logged() == [(tx(1), "deleted"), (tx(2), "deleted"), (tx(2), "confirmed")]
        assert await storage.unpublished(10) == []


async def test_tables_of_the_first_schema_are_taken_over(sqlite_lab: Lab) -> None:
    with closing(sqlite3.connect(sqlite_lab.path)) as connection:
        for statement in map(worded, sql.MIGRATIONS[0]):
            connection.execute(statement)
        connection.execute("PRAGMA user_version = 1")
        connection.execute(
            "INSERT INTO recovery_tx (txid, status, submitted_at, created_at, updated_at) VALUES (?, 'dead', 0, 0, 0)",
            (tx(1),),
        )
        connection.commit()
    async with sqlite_lab.storage(reporter=ME) as storage:
        assert await storage.unpublished(10) == []  # it was reported by the version that wrote it
        await storage.add([tx(2)], 30.0)
        await storage.conclude([tx(2)], "deleted", "")
        assert await storage.unpublished(10) == [(tx(2), "deleted")]


# --- a real daemon ---------------------------------------------------------------------------------------------------


def final_facts(daemon: Daemon) -> Counter[tuple[str, str]]:
    """Return how often the change log has each final status, read through a subscription."""
    found, newest = Counter[tuple[str, str]](), daemon.status()["change_log"]["newest"]
    with daemon.client() as client:
        client.ask({"type": "Subscribe", "from_sequence": 1, "events": EVENTS})
        fact = None
        while fact is None or fact["sequence"] < newest:
            fact = client.receive()
            assert fact is not None
            if fact["type"] == "TxStatusChanged" and fact["status"] in FINAL:
                found[fact["txid"], fact["status"]] += 1
    return found


def is_final(daemon: Daemon, name: str) -> bool:
    """Return whether the tables, which are written before the log, have a final status of a transaction."""
    with closing(sqlite3.connect(daemon.folder / "data" / "recovery.db", timeout=10)) as connection:
        if connection.execute("SELECT 1 FROM sqlite_master WHERE name = 'recovery_tx'").fetchone() is None:
            return False
        wanted = "SELECT 1 FROM recovery_tx WHERE txid = ? AND status <> 'pending'"
        return connection.execute(wanted, (digest("tx", name),)).fetchone() is not None


def test_kills_right_after_the_tables_were_written() -> None:
    """Four transactions become final, and each time the daemon is killed at once: the log has each of them once."""
    soon = {"ttl": "1h", "scan_interval": "200ms", "confirmations": 1}
    with TemporaryDirectory(prefix="utxod-") as folder, running(Path(folder), recovery=soon) as daemon:
        tip = block(None, made("funds", *(output("ann", n) for n in range(4))))
        with daemon.client() as client:
            assert statuses(client.feed([tip])) == ["applied"]
        for n in range(4):
            pay = made(f"pay {n}", output("bob"), spends=[at("funds", n)])
            with daemon.client() as client:
                client.feed([{"type": "TxSubmitted", "tx": pay}])
                tip = block(tip, pay)
                assert statuses(client.feed([tip])) == ["applied"]
                until(partial(is_final, daemon, f"pay {n}"), pause_s=0.002)
            daemon.kill()
            daemon.start()
        expected = Counter({(digest("tx", f"pay {n}").hex(), "confirmed"): 1 for n in range(4)})
        assert until(partial(final_facts, daemon), lambda found: found >= expected, pause_s=0.1) == expected
        assert "recovery_told_late" in daemon.log_text()
        assert daemon.term() == 0
        daemon.assert_sound()
