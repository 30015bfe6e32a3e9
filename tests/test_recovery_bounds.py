"""The recovery tables stay bounded whatever one client sends."""

from __future__ import annotations

import json
from pathlib import Path
from time import sleep
from typing import Any, cast

import pytest
from daemons import Daemon, Message, running, statuses
from patience import until
from recovering import Lab, quick, tx
from scenarios import at, block, output
from scenarios import tx as made
from test_recovery_daemon import output_of

import handlers.recovery.chores
from handlers.recovery.chores import forget
from handlers.recovery.records import Pending, State, Unknown, Waiting
from handlers.recovery.survey import survey
from storage.recovery.rows import FINAL
from storage.recovery.tables import Storage

PENDING, KEPT = 20, 10
SOON = {"ttl": "1h", "scan_interval": "100ms", "max_final_count": KEPT}


@pytest.fixture(params=["sqlite", "postgresql"])
def store(request: pytest.FixtureRequest) -> dict[str, Any]:
    if request.param == "sqlite":
        return {}
    return {"store": "postgresql", "dsn": request.getfixturevalue("own_database")}


def submitted(name: object, *spends: list[Any]) -> Message:
    return {"type": "TxSubmitted", "tx": made(name, output(name), spends=spends)}


def by_status(daemon: Daemon) -> dict[str, int]:
    found: dict[str, int] = json.loads(output_of(daemon, "status", "--json"))["by_status"]
    return found


def comes_to(daemon: Daemon, **most: int) -> None:
    """Wait until there are at most so many rows of each status, and none of any other."""
    until(lambda: by_status(daemon), lambda found: all(n <= most.get(status, 0) for status, n in found.items()))


def test_floods_of_submissions_and_of_double_spends_leave_few_rows(folder: Path, store: dict[str, Any]) -> None:
    """No feeder reports the height of the network, so no submission becomes an orphan."""
    with running(folder, transactions={"max_pending_count": PENDING}, recovery=SOON | store) as daemon:
        with daemon.client("frames") as client:
            first = block(None, made("funds", *(output(f"f{n}") for n in range(PENDING))))
            client.feed([first, *(submitted(n, at("funds", n)) for n in range(PENDING))])
            until(lambda: "recovery_started" in daemon.events())  # its tables exist
            until(lambda: by_status(daemon)["pending"] == PENDING)
            wins = (made(f"wins {n}", output("bob"), spends=[at("funds", n)]) for n in range(PENDING))
            assert statuses(client.feed([block(first, *wins)])) == ["applied"]
            until(lambda: by_status(daemon)["deleted"] >= KEPT)
            for part in range(5):  # over several turns at the log
                answers = client.feed(submitted(f"{part} {n}") for n in range(400))
                assert set(statuses(answers)) == {"accepted"}
        comes_to(daemon, pending=PENDING, deleted=KEPT)
        sleep(0.5)
        assert by_status(daemon)["pending"] == PENDING
        assert daemon.term() == 0
        daemon.assert_sound()


# --- one by one ------------------------------------------------------------------------------------------------------


@pytest.mark.anyio
async def test_final_rows_leave_by_age_and_by_number(storage: Storage, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(handlers.recovery.chores, "_FORGOTTEN", 7)
    wish = quick(retention=3600.0, unresolved_retention=7200.0, max_final_count=20)
    for first, age_s in ((0, 0.0), (100, 5400.0), (200, 9000.0)):
        for n, status in enumerate(FINAL):
            txids = [tx(first + 20 * n + each) for each in range(10)]
            await storage.add(txids, 30.0, age_s)
            await storage.conclude(txids, status, "")
    await storage.add([tx(999)], 30.0, 9000.0)
    assert await forget(storage, wish, await storage.counts())
    counts = (await storage.counts()).by_status
    assert sum(counts[status] for status in FINAL) == 20 and counts["pending"] == 1
    assert counts["orphan"] + counts["dead"] == 20  # which were submitted after the others
    assert await forget(storage, quick(max_final_count=0), await storage.counts())
    assert sum((await storage.counts()).by_status.values()) == 21


@pytest.mark.anyio
async def test_a_survey_keeps_some_rows_of_unknown_transactions(lab: Lab) -> None:
    class NoRecords:
        def waiting(self, _: Any) -> tuple[list[Waiting], None]:
            return [(tx(0), "whole")], None

        def states(self, txids: list[bytes]) -> list[State]:
            return [Pending() if txid == tx(0) else Unknown() for txid in txids]

    async def turn(work: Any) -> Any:
        return work()

    async with lab.storage(reporter="me") as storage:
        await storage.add([tx(n) for n in range(1, 30)], 30.0)
        few = quick(max_final_count=5)
        await survey(storage, cast("Any", NoRecords()), "ours", cast("Any", turn), few, decides=False)
        assert (await storage.counts()).by_status["orphan"] == 24
        assert {row.id for row in await storage.rows("pending", 99)} == {tx(n) for n in range(6)}
        assert {status for _, status in await storage.unpublished(99)} == {"orphan"}
