"""The recovery service in the daemon: its tables, its sources of finality, and the destination of its results.

It never delays the chain: what it reads from the store are short turns on the writer's
thread. While its database is unavailable the daemon continues, and missed facts are read from the change log.
"""

from __future__ import annotations

import socket
from collections.abc import Awaitable, Callable, Sequence
from functools import partial
from itertools import count
from typing import Any, TypeVar

import anyio
import structlog
from anyio import CancelScope, CapacityLimiter, to_thread

from config.settings import Config, Recovery
from daemon.final_statuses import FinalStatusReporter
from daemon.hub import Hub
from daemon.store import store_id
from feeds.bitcoin.access import Login, NodeAway, NodeError, RpcError, read_url
from feeds.bitcoin.jsonrpc import Node
from handlers.causes import Submitted
from handlers.events import BlockCommitted, RolledBack, TxStatusChanged
from handlers.recovery.chores import heal, withdraw_discarded
from handlers.recovery.finality import ChainFinality, Finality, Source, SourceAway
from handlers.recovery.following import Follower
from handlers.recovery.manager import Manager
from handlers.recovery.outcome import Handler
from handlers.recovery.own import InTurn
from handlers.recovery.records import Mined, Pending, Records, State, Unknown
from handlers.recovery.survey import survey
from handlers.transactions import TxView
from handlers.utxo import Turns
from storage.errors import PackageMissing
from storage.recovery.rows import StoreAway
from storage.recovery.tables import Storage

T = TypeVar("T")
log = structlog.get_logger("recovery")

_LEAVE_S = 2.0  # for the last statuses to be written to the database at shutdown
_AWAY_S = 5.0  # between two attempts to reach the database
_ATTEMPTS_A_SECOND = 400  # checks of transactions that only wait: with more of them, each is checked less often
_LONGEST_PATIENCE_S = 600.0
_FAR_BEHIND = 1  # blocks: if farther behind, it proves nothing that a transaction is unknown here
_HEAL_S = 600.0  # between two searches for half-made transactions
_WALK_S = 3600.0  # between two searches of all transactions for locks without a record
_LONGEST_ANSWER = 64 << 20  # bytes of a node's
_RPC_PORT = 8332
_NO_SUCH_TRANSACTION = -5  # of Bitcoin's RPC


def enabled(config: Config) -> bool:
    """Return whether this daemon runs the recovery service."""
    return config.recovery.enabled and config.transactions.enabled and config.utxo.enabled


def open_storage(config: Config, *, readonly: bool = False, reporter: str | None = None) -> Storage:
    """Return the recovery tables as they are configured, not connected yet. For `reporter` see `Storage`.

    Raises:
        PackageMissing: the driver of PostgreSQL is not installed.
    """
    settings = config.recovery
    if settings.store == "postgresql":
        try:
            from storage.recovery.postgres import PostgresStorage  # its driver takes a tenth of the time to start
        except ModuleNotFoundError as error:
            raise PackageMissing('recovery.store = "postgresql"', "asyncpg", "postgres") from error

        assert settings.dsn is not None  # checked with the configuration
        lease_s, lock = settings.lease_duration, settings.advisory_lock_id
        return PostgresStorage(settings.dsn, lease_s=lease_s, lock=lock, readonly=readonly, reporter=reporter)
    from storage.recovery.sqlite import SqliteStorage  # while it is imported, no client could connect

    return SqliteStorage(config.data_dir / "recovery.db", readonly=readonly, reporter=reporter)


def _name_of_log(config: Config) -> str:
    """Return a name for the change log: in tables that are stored next to it, a copy of both keeps the same name."""
    if config.recovery.store == "sqlite":
        return "here"
    return f"{config.recovery.instance_id or socket.gethostname()}/{store_id(config)}"


class NodeFinality:
    """A node of Bitcoin's family. It finds mined transactions of others only with its own index (`txindex=1`)."""

    def __init__(self, node: Node) -> None:
        self.name, self._node = f"node {node.name}", node

    async def _call(self, method: str, *parameters: object) -> dict[str, Any]:
        """Return a result; an empty one if the node does not have the transaction."""
        try:
            result = await self._node.call(method, *parameters)
        except RpcError as error:
            if error.code == _NO_SUCH_TRANSACTION:
                return {}
            raise
        except (NodeAway, NodeError) as error:
            raise SourceAway(str(error)) from error
        return result if isinstance(result, dict) else {}

    async def state_of(self, txid: bytes) -> State:
        """See `Finality`. A transaction in a block that is not of the best chain is not mined yet again."""
        found = await self._call("getrawtransaction", txid.hex(), True)
        if "blockhash" not in found:
            return Pending() if found else Unknown()
        header = await self._call("getblockheader", found["blockhash"])
        depth = int(header.get("confirmations", -1))
        return Mined(int(header["height"]), depth) if depth > 0 else Pending()

    async def caught_up(self) -> bool:
        """See `Finality`."""
        info = await self._call("getblockchaininfo")
        synced = "blocks" in info and info["blocks"] == info.get("headers")
        return synced and not info.get("initialblockdownload", False)


async def recover_along(
    config: Config, turns: Turns, hub: Hub, writer: CapacityLimiter, own: Sequence[Handler] = ()
) -> None:
    """Run the recovery service, until cancelled; `own` handlers are called before the daemon's."""
    tx_blocks = turns.chain.tx_blocks
    assert tx_blocks is not None
    settings, records, changes = config.recovery, Records(tx_blocks.transactions), turns.chain.changes
    store = store_id(config)

    async def turn(work: Callable[[], T]) -> T:
        return await to_thread.run_sync(work, limiter=writer)

    def tip() -> int:
        return hub.view.tip.height if hub.view.tip else 0

    def caught_up(behind: int = _FAR_BEHIND) -> bool:
        node, network = turns.node, hub.network_height
        if (node is not None and node.state != "running") or (node is None and network is None):
            return False
        return network is None or network - tip() <= behind

    def patience() -> float:
        """Return how long waiting rows are left alone: commits wake them anyway, an attempt is for missed facts."""
        return min(manager.numbers.backlog["pending"] / _ATTEMPTS_A_SECOND, _LONGEST_PATIENCE_S)

    def write(step: Callable[[TxView], T]) -> Awaitable[T]:
        return turn(partial(turns.chain.write_alone, step))

    def became_whole(txid: bytes) -> None:
        changes.record(TxStatusChanged(txid=txid, status="pending", height=tip(), cause=Submitted()))

    async def circuits() -> None:
        manager.numbers.circuits = {source.name: source.circuit for source in sources}

    storage = open_storage(config, reporter=_name_of_log(config))
    reporter = FinalStatusReporter(storage, changes, hub.bus.publish, writer, tip)
    finalities: list[Finality] = [ChainFinality(records, turn, caught_up), *_node(settings)]
    sources = [Source(finality, settings.confirmations, patience) for finality in finalities]
    alone = settings.store == "sqlite" and settings.node_url is None  # no other instance can have confirmed a row
    follower = Follower(
        storage,
        changes,
        store,
        turn,
        partial(survey, storage, records, store, turn, settings),
        settings,
        wait_for_facts=hub.bus.wakeup(TxStatusChanged, BlockCommitted, RolledBack).wait,
        decides=lambda: alone or caught_up(0),
        tip=tip,
        wrote=reporter.notify,
    )
    manager = Manager(
        storage,
        InTurn([*own, *sources]),
        settings,
        available=lambda: bool(own) or any(source.circuit != "open" for source in sources),
        changed=reporter.notify,
        chores=[
            (0.0, circuits),
            (_HEAL_S, partial(heal, records, turn, records.incomplete, write, became_whole, hub.bus.publish)),
            (_WALK_S, partial(heal, records, turn, records.locked, write, became_whole, hub.bus.publish)),
            (0.0, partial(withdraw_discarded, storage, store, write, tx_blocks, hub.bus.publish)),
        ],
    )
    hub.numbers.recovery = manager.numbers
    async with anyio.create_task_group() as attempts:  # it outlives the tables: a handler may ignore its cancellation
        try:
            await follower.begin()
            await _opened(storage)
            async with anyio.create_task_group() as group:
                group.start_soon(follower.follow)
                group.start_soon(reporter.run, settings.scan_interval)
                await manager.run(attempts)
        finally:
            with CancelScope(shield=True):
                try:
                    with anyio.move_on_after(_LEAVE_S):  # the next start checks rows that are still marked by then
                        await reporter.finish()
                finally:
                    await storage.close()


def _node(settings: Recovery) -> list[NodeFinality]:
    """Return the upstream node, if one is configured."""
    if settings.node_url is None:
        return []
    address, in_url = read_url(settings.node_url, _RPC_PORT)
    return [NodeFinality(Node(address, Login(in_url, settings.node_cookie), longest=_LONGEST_ANSWER))]


async def _opened(storage: Storage) -> None:
    """Wait for the database; the chain does not."""
    for attempt in count():
        try:
            await storage.open()
            break
        except StoreAway as error:
            if attempt == 0:
                log.error("recovery_store_away", error=str(error))
            await anyio.sleep(_AWAY_S)
