"""The recovery service on its real stores: heartbeats, wake-ups, outages, races, and who is asked for finality."""

from __future__ import annotations

import asyncio
import re
import subprocess
import sys
from functools import partial
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import anyio
import msgspec
import pytest
from bitcoin_rpc_chain import FakeNode, Fault
from bitcoin_rpc_server import LOGIN, serving
from daemons import PATIENCE_S, ROOT, environment
from hypothesis import given
from hypothesis import strategies as st
from recovering import (
    HOUR,
    Lab,
    Shaky,
    Stub,
    becomes,
    capture_logs,
    manage,
    managing,
    most,
    old,
    quick,
    read,
    tx,
    until,
    wake,
)

from daemon.recovery import NodeFinality
from feeds.bitcoin.access import Address, Login, RpcError
from feeds.bitcoin.jsonrpc import Node
from handlers.recovery import finality
from handlers.recovery.finality import ChainFinality, Source, SourceAway
from handlers.recovery.outcome import Busy, Invalid, NotFound, Outcome, Permanent, Transient, Valid
from handlers.recovery.own import InTurn
from handlers.recovery.records import CONFLICTING, Conflicting, Mined, Pending, State, Unknown
from handlers.recovery.rules import pause, settle
from storage.errors import StoreError
from storage.recovery.rows import Claim, StoreAway
from storage.recovery.tables import Storage

pytestmark = pytest.mark.anyio


class Fixed:
    """A source of finality with one state for all transactions; it is away while that is None."""

    def __init__(self, state: State | None = None, name: str = "source", *, ready: bool = True) -> None:
        self.name, self.state, self.ready, self.requests = name, state, ready, 0

    async def state_of(self, txid: bytes) -> State:
        self.requests += 1
        await asyncio.sleep(0)
        if self.state is None:
            raise SourceAway(f"{self.name} is down")
        return self.state

    async def caught_up(self) -> bool:
        return self.ready


HELD = Unknown(held=True)


# --- the service -------------------------------------------------------------------------------------------------


async def test_claims_whose_answer_was_lost_are_found_again(on_sqlite: Storage) -> None:
    await old(on_sqlite, 1)
    shaky = Shaky(on_sqlite)
    shaky.mute.add("claim")
    async with managing(shaky, Stub()) as manager:
        await until(lambda: manager.numbers.errors)
        shaky.mute.clear()
        await until(becomes(on_sqlite, tx(1), "confirmed"), 5.0)
    assert (await read(on_sqlite, tx(1))).generation == 1


async def test_no_more_is_claimed_than_can_be_written(on_sqlite: Storage) -> None:
    await old(on_sqlite, *range(300))
    shaky = Shaky(on_sqlite)
    go = shaky.before["settle"] = asyncio.Event()
    async with managing(shaky, Stub(), batch_size=20) as manager:
        await until(lambda: manager.numbers.claims >= 60)
        await asyncio.sleep(0.3)
        assert manager.numbers.claims <= 80
        go.set()
        await until(lambda: manager.numbers.settled["confirmed"] == 300)


async def test_waking_does_not_wait_for_the_scan(lab: Lab) -> None:
    async with lab.storage() as storage, lab.storage() as other:
        ringer = storage if lab.kind == "sqlite" else other
        await storage.add([tx(1)], HOUR)
        async with managing(storage, Stub(), scan_interval=30.0) as manager:
            await until(lambda: manager.numbers.leader)
            await wake(ringer, [tx(1)])
            await until(becomes(storage, tx(1), "confirmed"), 5.0)


async def test_the_server_ends_the_session_of_a_silent_leader(pg_lab: Lab) -> None:
    async with pg_lab.storage(lease_s=1.0) as one, pg_lab.storage(lease_s=1.0) as two:
        silent, other = await one.session(lambda: None), await two.session(lambda: None)
        assert await silent.lead()
        for _ in range(20):
            await asyncio.sleep(0.1)
            if await other.lead():
                break
        assert await other.lead()
        with pytest.raises(StoreAway):
            await silent.lead()
        await other.close()


async def test_an_outage_burns_no_attempts(on_sqlite: Storage, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(finality, "_BASE_S", 0.3)
    await old(on_sqlite, *range(50))
    source = Fixed(None)
    handler = Source(source, 6)
    available = lambda: handler.circuit != "open"  # noqa: E731
    async with managing(on_sqlite, handler, max_attempts=1, available=available, batch_size=10) as manager:
        await until(lambda: handler.circuit == "open")
        claims = manager.numbers.claims
        await asyncio.sleep(0.1)
        assert manager.numbers.claims <= claims + 20
        assert source.requests < 10
        rows = await on_sqlite.rows("pending", 100)
        assert len(rows) == 50
        assert {(row.attempts, row.failures) for row in rows} == {(0, 0)}
        source.state = Mined(1, 6)
        await until(lambda: manager.numbers.settled["confirmed"] == 50)
        assert handler.circuit == "closed"


async def test_a_busy_transaction_is_not_attempted_before_its_time(on_sqlite: Storage, sqlite_lab: Lab) -> None:
    """It is not attempted before its patience is over, however often the scan runs; a notification still counts."""
    await old(on_sqlite, 1, 2)
    handler = Stub(lambda txid: Busy("on its way", 100.0 if txid == tx(1) else 0.0))
    async with managing(on_sqlite, handler) as manager:
        await until(lambda: handler.requests.count(tx(2)) >= 5)  # without patience: with every scan
        row = await read(on_sqlite, tx(1))
        assert handler.requests.count(tx(1)) == 1
        assert (row.status, row.attempts, row.failures, row.last_error) == ("pending", 1, 0, "on its way")
        assert row.next_attempt_at is not None
        assert (row.next_attempt_at - row.updated_at).total_seconds() == pytest.approx(100.0, abs=0.1)
        await sqlite_lab.pass_time(101, f"next_attempt_at > {sqlite_lab.now(50)}")
        await until(lambda: handler.requests.count(tx(1)) == 2)

        async def is_settled() -> bool:  # what is held cannot be woken
            return (await read(on_sqlite, tx(1))).attempts == 2

        await until(is_settled)
        await wake(on_sqlite, [tx(1)])
        await until(lambda: handler.requests.count(tx(1)) == 3)
    assert manager.numbers.outcomes["busy"] == len(handler.requests)


async def test_a_result_whose_answer_was_lost_is_marked_as_unpublished(lab: Lab) -> None:
    """The reporter of final rows finds it; what did not land is attempted again."""
    async with lab.storage(reporter="me") as storage:
        await old(storage, 1, 2)
        shaky, reported = Shaky(storage), list[str]()
        shaky.mute.add("settle")
        async with managing(shaky, Stub(), changed=lambda: reported.append("changed")) as manager:
            await until(becomes(storage, tx(1), "confirmed"))
            await until(becomes(storage, tx(2), "confirmed"))
            assert reported == []
            assert await storage.unpublished(9) == [(tx(1), "confirmed"), (tx(2), "confirmed")]
            shaky.mute.clear()
            shaky.broken.add("settle")
            await old(storage, 3)
            await until(lambda: shaky.calls.count("settle") >= 3)
            shaky.broken.clear()
            await until(lambda: reported)
        assert reported == ["changed"]
        assert (manager.numbers.settled["confirmed"], manager.numbers.conflicts) == (1, 0)


async def test_chores_are_done_first_and_then_at_their_intervals(on_sqlite: Storage) -> None:
    done, seldom = list[int](), list[int]()

    async def chore(calls: list[int]) -> None:
        calls.append(len(handler.requests))

    handler = Stub()
    await old(on_sqlite, 1)
    async with managing(on_sqlite, handler, chores=[(0.0, partial(chore, done)), (3600.0, partial(chore, seldom))]):
        await until(lambda: len(done) >= 3)
    assert (done[0], done[-1], seldom) == (0, 1, [0])


async def test_a_bug_in_the_service_ends_all_of_it(on_sqlite: Storage) -> None:
    """Also where nobody waits in `run`: a heartbeat that went on alone would hold the rows forever."""
    await old(on_sqlite, 1)
    shaky = Shaky(on_sqlite)

    async def broken(_: Any) -> set[bytes]:
        raise LookupError("a bug")

    shaky.settle = broken  # type: ignore[attr-defined]
    with capture_logs() as logs, anyio.fail_after(10):
        async with anyio.create_task_group() as attempts:
            with pytest.raises(LookupError):
                await manage(shaky, Stub()).run(attempts)
    assert any(line["event"] == "recovery_failed" for line in logs)
    await old(on_sqlite, 2)
    with pytest.raises(LookupError):
        async with managing(shaky, Stub(), lease_duration=1.0) as manager:
            await until(lambda: manager.numbers.claims)
            await until(lambda: on_sqlite.claim("another", 30.0, 1))


async def test_run_ends_in_order_when_cancelled(on_sqlite: Storage) -> None:
    await old(on_sqlite, 1)
    handler = Stub(lambda _: asyncio.sleep(60))
    manager = manage(on_sqlite, handler)
    async with anyio.create_task_group() as attempts:
        attempts.start_soon(manager.run, attempts)
        await until(lambda: handler.requests)
        attempts.cancel_scope.cancel()
    row = await read(on_sqlite, tx(1))
    assert (row.owner, row.attempts) == (None, 0), "given back, as if never claimed"


# --- sources of finality -----------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("states", "outcome"),
    [
        ([Mined(7, 6)], Valid("mined at height 7")),
        ([HELD, Unknown()], NotFound()),
        ([Fixed(HELD, ready=False), Unknown()], Busy("is not mined yet")),
        ([HELD, Pending()], Busy("is not mined yet")),
        ([HELD, None], Transient("1 is down", counts=False)),
        ([Mined(7, 5)], Busy("mined at height 7, 5 of 6 blocks deep")),
        ([Pending()], Busy("is not mined yet")),
        ([Conflicting()], Invalid(CONFLICTING)),
        ([Unknown()], NotFound()),
        ([None], Transient("0 is down", counts=False)),
        ([None, Mined(7, 6)], Valid("mined at height 7")),
        ([None, Unknown()], Transient("0 is down", counts=False)),
        ([Unknown(), None], Transient("1 is down", counts=False)),
        ([Pending(), None], Busy("is not mined yet")),
        ([Unknown(), Pending()], Busy("is not mined yet")),
        ([Pending(), Mined(7, 6)], Valid("mined at height 7")),
        ([Mined(7, 6), Conflicting()], Valid("mined at height 7")),
        ([Conflicting(), Mined(7, 6)], Invalid(CONFLICTING)),
        ([], NotFound()),
    ],
)
async def test_the_combined_answer_of_several_sources(states: list[Any], outcome: Outcome) -> None:
    sources = [state if isinstance(state, Fixed) else Fixed(state, f"{n}") for n, state in enumerate(states)]
    handler = InTurn([Source(source, 6) for source in sources])
    assert await handler.recover(tx(1)) == outcome


async def test_queries_to_the_chain_while_the_writer_is_busy_share_a_turn() -> None:
    """That we hold a transaction says nothing: only a block shows that the network has it."""
    found: dict[bytes, State] = {tx(1): Mined(7, 3), tx(2): Pending(), tx(3): Unknown(), tx(4): Conflicting()}
    turns, broken = list[int](), list[StoreError]()

    def states(txids: list[bytes]) -> list[State]:
        turns.append(len(txids))
        if broken:
            raise broken[0]
        return [found[txid] for txid in txids]

    async def turn(work: Any) -> Any:
        await asyncio.sleep(0.01)
        return work()

    chain = ChainFinality(cast("Any", SimpleNamespace(states=states)), cast("Any", turn), lambda: True)
    expected = [Mined(7, 3), Unknown(held=True), Unknown(), Conflicting()]
    assert await asyncio.gather(*map(chain.state_of, found)) == expected
    assert turns == [4]
    broken.append(StoreError("the disk is away"))
    with pytest.raises(SourceAway, match="the disk is away"):
        await chain.state_of(tx(1))
    broken.clear()
    async with anyio.create_task_group() as group:
        for _ in range(3):
            group.start_soon(chain.state_of, tx(2))
        await anyio.sleep(0.005)
        group.cancel_scope.cancel()
    assert await chain.state_of(tx(1)) == Mined(7, 3)  # what was cancelled holds up nobody


async def test_a_circuit_opens_probes_and_closes(monkeypatch: pytest.MonkeyPatch) -> None:
    now = 0.0
    monkeypatch.setattr(finality, "monotonic", lambda: now)
    source = Fixed(None)
    breaker = Source(source, 6)

    async def ask() -> bool:
        return not isinstance(await breaker.recover(tx(1)), Transient)

    for n in range(5):
        assert (breaker.circuit, source.requests) == ("closed", n)
        assert not await ask()
    for longest in (1.0, 2.0, 4.0, 8.0, 16.0, 32.0, 60.0, 60.0):
        requests = source.requests
        assert str(breaker.circuit) == "open"
        assert not await ask()
        now += longest / 2 - 0.1
        assert str(breaker.circuit) == "open"
        assert source.requests == requests
        now += longest / 2 + 0.2
        assert str(breaker.circuit) == "half_open"
        assert await asyncio.gather(*(ask() for _ in range(6))) == [False] * 6
        assert source.requests == requests + 1  # one caller finds out whether it is back
    now += 61
    source.state = Pending()
    assert await ask()
    assert str(breaker.circuit) == "closed"


class Explorer:
    """What a node answers about transactions, by the calls of its RPC."""

    def __init__(self) -> None:
        self.mined: dict[str, int] = {}
        self.mempool = set[str]()
        self.tip, self.headers = 100, 100
        self.stale = set[int]()
        self.says: Fault | None = None

    def answer(self, method: str, parameters: list[Any]) -> Any:
        if self.says is not None:
            raise self.says
        match method, parameters:
            case "getrawtransaction", [txid, True]:
                if txid in self.mempool:
                    return {"txid": txid}
                if txid not in self.mined:
                    raise Fault(-5, "No such mempool or blockchain transaction. Use gettransaction for wallet ones.")
                return {"txid": txid, "blockhash": f"{self.mined[txid]:064x}"}
            case "getblockheader", [name]:
                height = int(name, 16)
                return {"height": height, "confirmations": -1 if height in self.stale else self.tip - height + 1}
            case "getblockchaininfo", []:
                return {"blocks": self.tip, "headers": self.headers, "initialblockdownload": False}
        raise Fault(-32601, f"Method not found: {method}")


async def test_a_node_over_its_rpc() -> None:
    there = Explorer()
    with serving(cast("FakeNode", there)) as server:
        node = Node(Address("127.0.0.1", server.port, "/", False), Login(LOGIN), longest=1 << 20, timeout_s=2.0)
        source = NodeFinality(node)
        try:
            assert await source.state_of(tx(1)) == Unknown()
            there.mempool.add(tx(1).hex())
            assert await source.state_of(tx(1)) == Pending()
            there.mempool.clear()
            there.mined[tx(1).hex()] = 95
            assert await source.state_of(tx(1)) == Mined(95, 6)
            assert await Source(source, 6).recover(tx(1)) == Valid("mined at height 95")
            assert await Source(source, 7).recover(tx(1)) == Busy("mined at height 95, 6 of 7 blocks deep")
            there.stale.add(95)
            assert await source.state_of(tx(1)) == Pending()
            assert await source.caught_up()
            there.headers = 105
            assert not await source.caught_up()
            assert await Source(source, 6).recover(tx(2)) == NotFound(caught_up=False)
            there.says = Fault(-28, "Loading block index")
            with pytest.raises(SourceAway):
                await source.state_of(tx(1))
            there.says = Fault(-8, "a fault of this transaction only")
            with pytest.raises(RpcError):
                await source.state_of(tx(1))
            server.stop()
            with pytest.raises(SourceAway):
                await source.caught_up()
        finally:
            node.close()


# --- rules -------------------------------------------------------------------------------------------------------


@given(times=st.integers(0, 10_000), base=st.floats(0.001, 100), cap=st.floats(0.001, 10_000), roll=st.floats(0, 1))
def test_pauses_double_up_to_the_cap_with_full_jitter(times: int, base: float, cap: float, roll: float) -> None:
    longest = pause(times, base, cap, most)
    assert longest == min(cap, base * 2.0 ** min(times, 30))
    assert pause(times, base, cap, lambda low, high: low + roll * (high - low)) == pytest.approx(roll * longest)
    assert longest <= pause(times + 1, base, cap, most)


CLAIM = Claim(tx(1), "A", 1, attempts=9, failures=0, not_found=2, age_s=100.0, not_found_for_s=100.0)
STILL_UNKNOWN = {"status": "pending", "failed": False, "not_found": True, "attempt": True}
MANY = {"attempts": 10**6, "failures": 10**6}


@pytest.mark.parametrize(
    ("claim", "settings", "outcome", "expected"),
    [
        ({}, {}, Valid("why"), {"status": "confirmed", "message": "why"}),
        ({}, {}, Invalid("why"), {"status": "deleted", "message": "why"}),
        ({}, {}, Permanent("why"), {"status": "dead", "error": "why"}),
        ({}, {}, NotFound(), {"status": "orphan"}),
        ({"age_s": 99.0}, {}, NotFound(), STILL_UNKNOWN),
        ({"not_found_for_s": 99.0}, {}, NotFound(), STILL_UNKNOWN),
        ({"not_found": 1}, {}, NotFound(), STILL_UNKNOWN),
        ({}, {"not_found_grace_period": 0.0}, NotFound(), STILL_UNKNOWN),
        (MANY, {"max_attempts": 1}, NotFound(caught_up=False), {"status": "pending", "failed": False}),
        (MANY | {"not_found": 0}, {"max_attempts": 1}, NotFound(), STILL_UNKNOWN),
        (MANY, {"max_attempts": 1}, Transient("x", counts=False), {"status": "pending", "failed": False}),
        ({"failures": 1}, {"max_attempts": 3}, Transient("x"), {"status": "pending", "failed": True}),
        ({"failures": 2}, {"max_attempts": 3}, Transient("x"), {"status": "dead"}),
        ({"attempts": 0}, {}, Busy("x", 25.0), {"status": "pending", "failed": False, "delay_s": 27.0}),
        ({"attempts": 3}, {}, Busy("x", 25.0), {"delay_s": 41.0}),
        (MANY, {"max_attempts": 1}, Busy("x", 25.0), {"status": "pending", "failed": False, "delay_s": 85.0}),
    ],
)
def test_what_an_outcome_does_to_a_row(
    claim: dict[str, Any], settings: dict[str, Any], outcome: Outcome, expected: dict[str, Any]
) -> None:
    defaults = {"not_found_grace_period": 99.0, "not_found_attempts": 3, "scan_interval": 2.0, "retry_cap": 100.0}
    settled = settle(msgspec.structs.replace(CLAIM, **claim), outcome, quick(**defaults | settings), most)
    assert {name: getattr(settled, name) for name in expected} == expected


# --- the document ------------------------------------------------------------------------------------------------


def test_the_example_in_the_document_runs_to_its_end(tmp_path: Path) -> None:
    """As a program of its own, with every warning an error: nothing is left open, and the process ends."""
    text = (ROOT / "docs" / "recovery.md").read_text()
    (code,) = re.findall(r"```python\n(.*?)```", text, re.DOTALL)
    program = tmp_path / "example.py"
    program.write_text(code)
    command = [sys.executable, "-X", "dev", "-W", "error", str(program)]
    done = subprocess.run(command, env=environment(), capture_output=True, timeout=PATIENCE_S, check=False)
    assert done.returncode == 0, done.stderr.decode()
    (promised,) = re.findall(r"# (\{.*\})", code)
    printed = done.stdout.decode().splitlines()
    assert promised in printed
    assert "Traceback" not in done.stdout.decode() + done.stderr.decode()
