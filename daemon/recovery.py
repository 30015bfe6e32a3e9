"""The recovery service's place in the daemon: its tables, who knows what became of a transaction, and who hears of it.

It stands beside what follows the chain and never in its way: what it reads there are short turns on the writer's
thread. While its database is away the daemon goes on, and a survey makes up for what was not written.
"""

from __future__ import annotations

import asyncio
import socket
from collections.abc import Callable
from functools import partial
from typing import TypeVar

import anyio
import structlog
from anyio import CancelScope, CapacityLimiter, to_thread

from config.settings import Config
from daemon.connection import Hall
from daemon.store import store_id
from daemon.telling import Teller
from feeds.bitcoin.access import Login, NodeAway, NodeError, RpcError, read_url
from feeds.bitcoin.jsonrpc import Node
from handlers.recovery.finality import Breaker, FinalityHandler, Mined, NodeFinality, SourceAway, State
from handlers.recovery.listener import Listener
from handlers.recovery.manager import Manager
from handlers.recovery.numbers import Numbers
from handlers.recovery.records import Records
from handlers.recovery.settling import Change
from handlers.recovery.survey import Survey
from handlers.utxo import Turns
from storage.errors import StoreError
from storage.recovery.rows import Storage, StoreAway
from storage.recovery.sqlite import SqliteStorage

T = TypeVar("T")
log = structlog.get_logger("recovery")

_LEAVE_S = 2.0  # for the database to hear what was told, when we are asked to stop
_AWAY_S = 5.0  # between two attempts to reach the database
_LOOKS_A_SECOND = 400  # at transactions that only wait: with more of them, each is looked at more seldom
_LONGEST_PATIENCE_S = 600.0
_FAR_BEHIND = 1  # blocks: less, and not to be known here says something
_LONGEST_ANSWER = 64 << 20  # bytes of a node's
_RPC_PORT = 8332


def enabled(config: Config) -> bool:
    """Return whether this daemon looks after pending transactions."""
    return config.recovery.enabled and config.transactions.enabled and config.utxo.enabled


def open_storage(config: Config, *, readonly: bool = False, teller: str | None = None) -> Storage:
    """Return the recovery tables as they are configured; nothing is connected yet. For `teller` see `Storage`."""
    wish = config.recovery
    if wish.store == "postgresql":
        from storage.recovery.postgres import PostgresStorage  # its driver takes a tenth of the time to start

        assert wish.dsn is not None  # checked with the configuration
        lease_s, lock = wish.lease_duration, wish.advisory_lock_id
        return PostgresStorage(wish.dsn, lease_s=lease_s, lock=lock, readonly=readonly, teller=teller)
    return SqliteStorage(config.data_dir / "recovery.db", readonly=readonly, teller=teller)


def _name_of_log(config: Config) -> str:
    """Return a name for our change log: in tables that are beside it, it has the same name in a copy of both."""
    if config.recovery.store == "sqlite":
        return "here"
    return f"{config.recovery.instance_id or socket.gethostname()}/{store_id(config)}"


class ChainFinality:
    """The daemon's own stores as a source. What is asked while the writer is busy shares one turn."""

    name = "chain"

    def __init__(
        self,
        records: Records,
        turn: Callable[[Callable[[], list[State]]], asyncio.Future[list[State]]],
        listener: Listener,
        caught_up: Callable[[], bool],
        confirmations: int,
    ) -> None:
        """Take the stores, the way to the writer's thread, and whether the chain is at the network's tip."""
        self._records, self._turn, self._listener, self._caught_up = records, turn, listener, caught_up
        self._confirmations = confirmations
        self._asked: dict[bytes, None] = {}
        self._answer: asyncio.Future[tuple[dict[bytes, State], int]] | None = None

    async def state_of(self, txid: bytes) -> State:
        """See `Finality`."""
        self._asked[txid] = None
        if self._answer is None:
            self._answer = asyncio.ensure_future(self._look())
        states, moves = await asyncio.shield(self._answer)
        state = states[txid]
        current = moves == self._listener.moves  # else the block may be rolled back by now
        if isinstance(state, Mined) and state.depth < self._confirmations and current:  # a deep one the caller confirms
            self._listener.track(txid, state.height)
        return state

    async def _look(self) -> tuple[dict[bytes, State], int]:
        await asyncio.sleep(0)  # whoever asks in this round of the loop comes along
        asked, self._asked, self._answer = list(self._asked), {}, None
        moves = self._listener.moves
        try:
            return dict(zip(asked, await self._turn(partial(self._records.states, asked)), strict=True)), moves
        except StoreError as error:
            raise SourceAway(str(error)) from error

    async def caught_up(self) -> bool:
        """See `Finality`."""
        return self._caught_up()


async def recover_along(config: Config, turns: Turns, hall: Hall, writer: CapacityLimiter) -> None:
    """Look after pending transactions, until cancelled."""
    lives = turns.chain.lives
    assert lives is not None
    wish, records = config.recovery, Records(lives.transactions)

    def turn(work: Callable[[], T]) -> asyncio.Future[T]:
        # A task of its own: whoever waits may be cancelled, but the next turn must not begin before this one ends.
        return asyncio.shield(asyncio.ensure_future(to_thread.run_sync(work, limiter=writer)))

    def changed(found: list[Change]) -> None:
        teller.tell((each.txid, each.status) for each in found)

    def tip() -> int:
        return hall.view.tip.height if hall.view.tip else 0

    def caught_up(behind: int = _FAR_BEHIND) -> bool:
        node, network = turns.node, hall.network_height
        if (node is not None and node.state != "running") or (node is None and network is None):
            return False
        return network is None or network - tip() <= behind

    storage, numbers = open_storage(config, teller=_name_of_log(config)), Numbers()
    teller = Teller(storage, turns.chain.changes, hall, writer, tip)
    listener = Listener(wish.ttl, wish.confirmations, changed, numbers)
    alone = wish.store == "sqlite" and wish.node_url is None  # nobody else can have confirmed a row
    sources = [Breaker(ChainFinality(records, turn, listener, caught_up, wish.confirmations)), *_node(config)]
    handler = FinalityHandler(sources, wish.confirmations, patience=lambda: _patience(manager))
    survey = Survey(
        storage,
        records,
        listener,
        turn,
        partial(turns.chain.write_alone, quietly=True),
        tip,
        lambda fact: hall.bus.publish([fact]),
        wish,
        decides=lambda: alone or caught_up(0),
        logged=turns.chain.changes.tell,
    )

    async def circuits() -> None:
        numbers.circuits = {source.name: source.circuit for source in sources}

    manager = Manager(
        storage,
        handler,
        wish,
        available=handler.available,
        changed=changed,
        chores=[circuits, survey],
        numbers=numbers,
    )
    hall.numbers.recovery = numbers
    for kind in ("TxStatusChanged", "BlockCommitted", "RolledBack"):
        hall.bus.listen(kind, listener.hear)
    try:
        await _opened(storage)
        await teller.tell_what_was_left()
        async with anyio.create_task_group() as both:
            both.start_soon(listener.write_along, storage)
            both.start_soon(_managed, manager)
            both.start_soon(teller.go_on)
    finally:
        with CancelScope(shield=True):
            try:
                with anyio.move_on_after(_LEAVE_S):  # what is not marked as told by then, the next start looks up
                    await teller.finish()
            finally:
                await storage.close()


def _patience(manager: Manager) -> float:
    """Return how long what waits is left alone: its commits are heard anyway, a look is for what was missed."""
    return min(manager.numbers.backlog["pending"] / _LOOKS_A_SECOND, _LONGEST_PATIENCE_S)


def _node(config: Config) -> list[Breaker]:
    """Return the node that is asked too, if there is one."""
    wish = config.recovery
    if wish.node_url is None:
        return []
    address, in_url = read_url(wish.node_url, _RPC_PORT)
    node = Node(address, Login(in_url, wish.node_cookie), longest=_LONGEST_ANSWER)
    return [Breaker(NodeFinality(node, refused=RpcError, away=(NodeAway, NodeError)))]


async def _opened(storage: Storage) -> None:
    """Wait for the database; the chain does not."""
    told = False
    while True:
        try:
            with CancelScope(shield=True):  # half open, it would leave a thread behind that keeps the process
                await storage.open()
        except StoreAway as error:
            if not told:
                log.error("recovery_store_away", error=str(error))
            told = True
            await anyio.sleep(_AWAY_S)
        else:
            return


async def _managed(manager: Manager) -> None:
    """Run the service in a task of its own: it leaves in its own time, however often we are cancelled."""
    running = asyncio.ensure_future(manager.run())
    try:
        await asyncio.wait({running})
    finally:
        running.cancel()
        with CancelScope(shield=True):
            await asyncio.wait({running})
    if not running.cancelled():
        running.result()
