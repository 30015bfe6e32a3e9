"""Any sequence of blocks, deep rollbacks, rivals and restarts leaves each row with the status that its chain gives."""

from __future__ import annotations

import asyncio
import json
import shutil
import tempfile
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager, suppress
from pathlib import Path
from random import Random
from time import monotonic
from typing import Any, cast

import asyncpg  # type: ignore[import-untyped]
import pytest
from anyio import CancelScope, CapacityLimiter, to_thread
from daemons import Message, as_hex
from messages import Listener as Sender
from messages import json_line, take
from scenarios import at, back_to, block, digest, output, tx
from stores import ALL_TABLES

import handlers.recovery.following
from config.kinds import Secret
from config.settings import Config, Recovery, Transactions
from config.store import Storage, Utxo
from daemon.bus import Bus
from daemon.hub import Hub
from daemon.recovery import open_storage, recover_along
from daemon.store import folder, open_chain
from handlers.events import Welcome
from handlers.recovery.records import Conflicting, Mined, Pending, Records
from handlers.utxo import Turns
from storage.disk import Disk
from storage.recovery.rows import Recovering, StoreAway
from storage.recovery.tables import Storage as Tables

CONFIRMATIONS, COINS, SETTLED_S = 3, 4, 30.0
TO_MEET = {
    *("coinbase rolled back", "confirmed rolled back", "rolled back to the origin", "coinbase spent", "block again"),
    *("rival won", "rolled back while down", "mined while down", "row reopened", "shallow"),
    *("row pending", "row confirmed", "row deleted"),
}
EXAMPLES = {"sqlite": 10, "postgresql": 2}  # and those that are given


def random_scenario(random: Random) -> list[Any]:
    """Return random steps. Each coin has two rivals, 2n and 2n + 1."""
    steps: list[Callable[[], Any]] = [
        lambda: ("submit", random.randrange(2 * COINS)),
        lambda: ("block", frozenset(random.sample(range(2 * COINS), random.randrange(5))), random.random() < 0.5),
        lambda: ("block", frozenset[int](), random.random() < 0.5),
        lambda: ("rollback", random.randint(1, 5)),
        lambda: (random.choice(["again", "settle", "down", "up"]),),
    ]
    return [random.choice(steps)() for _ in range(random.randint(10, 40))]


class Node:
    """One chain with its transaction store, and the recovery service when it is up."""

    def __init__(self, disk: Disk, config: Config, met: set[str]) -> None:
        chain = open_chain(disk, config)
        assert chain.tx_blocks is not None
        self.config, self.met, self.turns, self.writer = config, met, Turns(chain, pruning=False), CapacityLimiter(1)
        self.records = Records(chain.tx_blocks.transactions)
        self.funds = block(None, tx("coins", *[output("ann")] * COINS))
        self.blocks: list[Message] = []  # after that one
        self.undone: list[Message] = []  # that a rollback took, the lowest last
        self.known = set[bytes]()
        self.made = 0
        self.service: asyncio.Task[None] | None = None
        self.hub = self._hub()

    def _hub(self) -> Hub:
        bus = Bus(self.turns.chain.changes.take)
        inbox = bus.inbox(capacity=1 << 20)
        hub = Hub(bus, inbox, cast("Welcome", None), frozenset(), self.config)
        hub.view = self.turns.chain.view
        hub.network_height = self.turns.chain.height
        return hub

    # --- the scenario -----------------------------------------------------------------------------------------------

    async def tell(self, message: Message) -> None:
        line = json_line(json.dumps(as_hex({"seq": 1} | message)), Sender())
        committed = await to_thread.run_sync(take, self.turns, line, limiter=self.writer)
        self.hub.view, self.hub.network_height = committed.view, self.turns.chain.height
        self.hub.bus.publish()

    async def do(self, op: Any) -> None:
        match op:
            case ("submit", n):
                self.known.add(digest("tx", f"pay {n}"))
                await self.tell({"type": "TxSubmitted", "tx": self._pay(n)})
            case ("block", numbers, with_coinbase):
                await self._mine(numbers, with_coinbase)
            case ("rollback", depth):
                await self._roll_back(min(depth, len(self.blocks)))
            case ("again",):
                if self.undone and self.undone[-1]["prev_hash"] == self._tip()["hash"]:
                    self.met.add("block again")
                    await self._apply(self.undone.pop())
            case ("settle",):
                if self.service is not None:
                    await self.agrees()
            case ("down",):
                await self.down()
            case ("up",):
                self.up()

    def _tip(self) -> Message:
        return self.blocks[-1] if self.blocks else self.funds

    def _pay(self, n: int) -> Message:
        return tx(f"pay {n}", output("bob"), spends=[at("coins", n // 2)])

    async def _mine(self, numbers: frozenset[int], with_coinbase: bool) -> None:
        """Apply a block of what it may have: no coin is spent twice in a chain."""
        spent = {tuple(map(str, spend)) for each in self._mined() for spend in each["inputs"]}
        txs: list[Message] = []
        if with_coinbase:
            self.made += 1
            txs.append(tx(f"coinbase {self.made}", output("miner"), coinbase=True))
        coinbases = [each["txid"] for each in self._mined() if each.get("coinbase")]
        spends = [[txid, 0] for txid in coinbases[-1:]] if len(numbers) % 2 else []
        for spend, name in ((each, f"spends {each[0].hex()}") for each in spends):
            if tuple(map(str, spend)) not in spent:
                self.met.add("coinbase spent")
                txs.append(tx(name, output("cid"), spends=[spend]))
        for n in sorted(numbers):
            pay = self._pay(n)
            if (key := tuple(map(str, pay["inputs"][0]))) not in spent:
                spent.add(key)
                txs.append(pay)
                self.met |= {"mined while down"} if self.service is None else set()
        await self._apply(block(self._tip(), *txs, branch=f"{self.made}/{len(self.undone)}/{sorted(numbers)}"))

    async def _apply(self, applied: Message) -> None:
        self.blocks.append(applied)
        await self.tell(applied)

    async def _roll_back(self, depth: int) -> None:
        if not depth:
            return
        self.undone = self.blocks[-depth:][::-1]
        del self.blocks[-depth:]
        going = [each for removed in self.undone for each in removed["txs"]]
        self.known |= {each["txid"] for each in going}
        self.met |= {"coinbase rolled back"} if any(each.get("coinbase") for each in going) else set()
        self.met |= {"confirmed rolled back"} if depth >= CONFIRMATIONS and going else set()
        self.met |= {"rolled back while down"} if going and self.service is None else set()
        self.met |= {"rolled back to the origin"} if not self.blocks else set()
        await self.tell(back_to(self._tip()))

    def _mined(self) -> list[Message]:
        return [each for applied in self.blocks for each in applied["txs"]]

    # --- the service ---------------------------------------------------------------------------------------------

    def up(self) -> None:
        if self.service is None:
            self.hub = self._hub()
            self.service, self.living = asyncio.ensure_future(self._live()), CancelScope()

    async def _live(self) -> None:
        with self.living:
            await recover_along(self.config, self.turns, self.hub, self.writer)

    async def down(self) -> None:
        """End the service, whatever it has heard and not written yet."""
        service, self.service = self.service, None
        if service is not None:
            self.living.cancel()
            await service

    async def agrees(self) -> None:
        assert self.service is not None
        right, waiting = await to_thread.run_sync(self._right, limiter=self.writer)
        give_up, wrong, rows = monotonic() + SETTLED_S, {"all": "not read"}, dict[bytes, Recovering]()
        async with self._reading() as storage:
            while wrong or not waiting <= set(rows):
                assert not self.service.done()
                assert monotonic() < give_up, f"{wrong}, without a row: {waiting - set(rows)}"
                await asyncio.sleep(0.01)
                rows = {row.id: row for row in await storage.rows(None, 1000)}
                wrong = {txid.hex(): row.status for txid, row in rows.items() if row.status != right[txid]}
        self.met |= {f"row {row.status}" for row in rows.values()}
        self.met |= {"row reopened"} if any(row.reopened for row in rows.values()) else set()

    @asynccontextmanager
    async def _reading(self) -> AsyncIterator[Tables]:
        """Open the tables that the service has made."""
        storage = open_storage(self.config, readonly=True)
        while True:
            with suppress(StoreAway):
                await storage.open()
                await storage.counts()
                break
            await storage.close()
            await asyncio.sleep(0.01)
        try:
            yield storage
        finally:
            await storage.close()

    def _right(self) -> tuple[dict[bytes, str], set[bytes]]:
        """Return the status that each known transaction should have, and which wait for a block."""
        depths = {
            each["txid"]: len(self.blocks) - n for n, applied in enumerate(self.blocks) for each in applied["txs"]
        }
        known = sorted(self.known)
        right, waiting = dict[bytes, str](), set[bytes]()
        for txid, state in zip(known, self.records.states(known), strict=True):
            assert isinstance(state, Mined) == (txid in depths)
            if txid in depths:
                right[txid] = "confirmed" if depths[txid] >= CONFIRMATIONS else "pending"
                self.met |= {"shallow"} if right[txid] == "pending" else set()
            elif isinstance(state, Conflicting):
                right[txid] = "deleted"
                self.met.add("rival won")
            elif isinstance(state, Pending):
                right[txid] = "pending"
                waiting.add(txid)
        return right, waiting


@asynccontextmanager
async def node(dsn: str | None, met: set[str]) -> AsyncIterator[Node]:
    where = Path(tempfile.mkdtemp(prefix="utxod-model-"))
    soon: dict[str, Any] = {"ttl": 0.05, "scan_interval": 0.05, "retry_base": 0.02, "retry_cap": 0.05}
    if dsn is not None:
        soon |= {"store": "postgresql", "dsn": Secret(dsn)}
    config = Config(
        data_dir=where,
        recovery=Recovery(confirmations=CONFIRMATIONS, not_found_grace_period=0.0, **soon),
        utxo=Utxo(prune_depth=50, rollback_window=50),
        transactions=Transactions(coinbase_maturity=0),
        storage=Storage(map_size=1 << 24),
    )
    try:
        with Disk(folder(config), ALL_TABLES, map_size=1 << 24, durable=False) as disk:
            made = Node(disk, config, met)
            await made.tell(made.funds)
            try:
                yield made
            finally:
                await made.down()
    finally:
        shutil.rmtree(where)


async def forget(dsn: str) -> None:
    """Remove the tables of the scenario before."""
    connection = await asyncpg.connect(dsn)
    tables = ["recovery_tx", *(f"recovery_tx_{each}" for each in ("schema", "cursor", "mined", "withdrawn"))]
    await connection.execute(f"DROP TABLE IF EXISTS {', '.join(tables)}")
    await connection.execute("DROP FUNCTION IF EXISTS recovery_tx_final")
    await connection.close()


async def lived(scenario: list[Any], dsn: str | None, met: set[str]) -> None:
    if dsn is not None:
        await forget(dsn)
    async with node(dsn, met) as one:
        one.up()
        for op in scenario:
            await one.do(op)
        one.up()
        await one.agrees()


def mined(*rest: Any, deep: bool = True) -> list[Any]:
    """Return a scenario in which a submission is mined, and confirmed if it is deep."""
    blocks = [("block", frozenset({0}), True), *[("block", frozenset(), True)] * (CONFIRMATIONS - 1 if deep else 0)]
    return [("submit", 0), *blocks, ("settle",), *rest]


BACK, AGAIN = ("rollback", CONFIRMATIONS), ("block", frozenset({0}), True)
RIVAL, NEXT = ("block", frozenset({1}), True), ("block", frozenset[int](), True)
SETTLE, DOWN, UP = ("settle",), ("down",), ("up",)
DIRECTED: list[list[Any]] = [
    mined(BACK, SETTLE, RIVAL, SETTLE, ("rollback", 1), AGAIN, SETTLE),
    mined(DOWN, BACK, UP, SETTLE, AGAIN, NEXT, NEXT),
    mined(DOWN, BACK, RIVAL, UP, SETTLE),
    mined(DOWN, BACK, AGAIN, UP, SETTLE, NEXT, NEXT),
    [("submit", 0), RIVAL, SETTLE, DOWN, ("rollback", 1), AGAIN, UP, SETTLE, NEXT, NEXT],
    [("submit", 0), RIVAL, SETTLE, DOWN, ("rollback", 1), AGAIN, ("rollback", 1), UP, SETTLE],
    mined(("block", frozenset({2}), False), ("rollback", 4), ("submit", 3), ("again",), ("again",), SETTLE, deep=False),
]


@pytest.mark.parametrize("kind", ["sqlite", "postgresql"])
def test_rows_agree_with_the_chain_after_any_sequence_of_messages(
    kind: str, request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(handlers.recovery.following, "_GATHER_S", 0.005)
    dsn = request.getfixturevalue("own_database") if kind == "postgresql" else None
    met = set[str]()

    for scenario in [*DIRECTED, *(random_scenario(Random(seed)) for seed in range(EXAMPLES[kind]))]:
        print(scenario)
        asyncio.run(lived(scenario, dsn, met))
    assert met >= TO_MEET
