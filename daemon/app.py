"""The wiring, on one page: what runs, who hears what, and how everything ends.

Leaving is a wave from source to sink: the door shuts, connections stop reading, the inbox is read empty, the last
commit is made, its answers go out, and then the store closes.
"""

from __future__ import annotations

import asyncio
import gc
import os
from collections.abc import Callable, Sequence
from contextlib import ExitStack, suppress
from pathlib import Path

import anyio
import structlog
from anyio import CapacityLimiter, to_thread
from anyio.abc import TaskGroup

from config.settings import Config, socket_path
from daemon import PROTOCOL, VERSION
from daemon.bus import Bus
from daemon.commands.common import FAILED
from daemon.connection import Hall
from daemon.crash import recorded
from daemon.diagnostics import dump
from daemon.door import Guests, admins, keep_open, most_clients, open_door
from daemon.evicting import evict_along
from daemon.heap import Heap, give_back, keep_heap_small
from daemon.http.master import Keeper
from daemon.inbox import Inbox
from daemon.metrics import daemon_sheet, encode, folder, keep_shown
from daemon.notify import Notifier
from daemon.pruning import prune_along
from daemon.readers import ReaderWatch
from daemon.recovery import enabled, recover_along
from daemon.reload import Reloader
from daemon.signals import heed, receiver
from daemon.sink import lines_dropped, write_out
from daemon.start import announce, check_store
from daemon.store import open_chain, open_disk, store_id
from handlers.bell import Bell
from handlers.delivery import refuse
from handlers.events import (
    BlockCommitted,
    ChainMessage,
    ChainName,
    Message,
    RolledBack,
    TxMessage,
    Welcome,
)
from handlers.recovery.outcome import Handler
from handlers.recovery.own import load
from handlers.refusal import Refusal
from handlers.utxo import Committed, Limits, Turns, follow_chain
from storage.blobs import BlobFailed, Blobs
from storage.disk import Disk
from storage.errors import StoreFull

log = structlog.get_logger("daemon")

_SHOWN_CLIENTS = 20
_MEMORY_EVERY_S = 10.0
_LAST_TURN_S = 5.0  # for the turn at the store that is going on when the time to leave is over


def run(config: Config, config_file: Path | None) -> bool:
    """Run the daemon until it is asked to leave; return whether everything that it had received was carried out.

    `config_file` is the one named on the command line: SIGHUP reads the configuration again.

    Raises:
        ConfigError: there is no such handler as the configuration names.
    """
    own = load(config.recovery.handlers) if enabled(config) else []
    keep_heap_small()
    announce(config, config_file, config.http.workers)
    if config.utxo.enabled:
        check_store(config)
    return anyio.run(serve, config, config_file, own, backend_options={"use_uvloop": True})


async def serve(config: Config, config_file: Path | None, own: Sequence[Handler] = ()) -> bool:
    """Open the store, the handlers and the door, and close them in the opposite order."""
    most, notifier, bus = most_clients(), Notifier(os.environ), Bus()
    with receiver() as signals, ExitStack() as stores:
        turns = _open_turns(config, stores)
        sheet = stores.enter_context(daemon_sheet(folder(config)))
        kinds = _consumed(turns)
        inbox = bus.inbox(*kinds, capacity=config.batch.max_bytes)
        hall = open_hall(config, bus, inbox)
        _keep_collector_off(whole=turns is not None)
        async with anyio.create_task_group() as house:
            writer = CapacityLimiter(1)
            limits = Limits(config.batch.max_bytes, config.batch.max_delay_ms / 1000)
            if turns:
                hall.view = turns.chain.view
                hall.audience.open(turns.chain.changes, writer)
                house.start_soon(follow_chain, inbox, turns, limits, _publisher(hall), writer)
            else:
                house.start_soon(decline, inbox)
            guests = Guests(hall, house, most)
            stores.enter_context(keep_shown(sheet, lambda: _numbers(hall, guests)))
            async with anyio.create_task_group() as doors:
                path = socket_path(config, os.environ)
                doors.start_soon(keep_open, await open_door(path, os.environ), path, os.environ, guests)
                doors.start_soon(_give_memory_back)
                doors.start_soon(_report, notifier, bus.bell(BlockCommitted, RolledBack), hall)
                if notifier.watchdog_s:
                    doors.start_soon(_watch, notifier, notifier.watchdog_s / 2, turns, writer)
                if turns and turns.chain.tx_blocks:
                    doors.start_soon(_try_blobs, turns.chain.tx_blocks.transactions.blobs)
                    doors.start_soon(evict_along, config, turns, turns.chain.tx_blocks, hall, writer)
                if turns:
                    doors.start_soon(_watch_readers, config, turns.chain.store.disk, hall, writer)
                if turns and config.pruner.enabled:
                    doors.start_soon(prune_along, config, turns, hall, writer)
                if turns and enabled(config):
                    doors.start_soon(recover_along, config, turns, hall, writer, own)
                keeper = Keeper(config, config.http.workers)
                if config.http.workers:
                    doors.start_soon(keeper.serve)

                def apply(new: Config, changed: list[str]) -> None:
                    hall.admins = admins(new.socket.admin_uids)
                    limits.max_delay_s = new.batch.max_delay_ms / 1000
                    keeper.reload(new, changed)

                reloader = Reloader(config, config_file, apply)
                log.info("listening", socket=str(path), **_place(hall))
                doors.start_soon(notifier.deliver, "READY=1")
                number = await heed(
                    signals, lambda: _dump(hall, guests), lambda: doors.start_soon(_reload, notifier, reloader)
                )
                log.info("stopping", signal=number.name)
                late = asyncio.get_running_loop().call_later(
                    config.shutdown_timeout, _give_up, config.shutdown_timeout, hall, guests, house
                )
                doors.cancel_scope.cancel()
            notifier.say("STOPPING=1")
            for connection in guests.inside:
                connection.stop_reading()
            bus.close()
            inbox.close()
        late.cancel()
        log.info("stopped", **_place(hall))
        return not house.cancel_scope.cancel_called


def _open_turns(config: Config, stores: ExitStack) -> Turns | None:
    if not config.utxo.enabled:
        return None
    disk = stores.enter_context(open_disk(config))
    stores.enter_context(recorded(disk.folder))
    chain = open_chain(disk, config)
    if chain.tx_blocks:
        chain.tx_blocks.start()
    return Turns(chain, config.pruner.enabled)


def _consumed(turns: Turns | None) -> tuple[type[Message], ...]:
    """Return what the UTXO handler takes: blocks, and the life of transactions if that is kept."""
    if turns is None:
        return ()
    return (*ChainMessage.__args__, *(TxMessage.__args__ if turns.chain.tx_blocks else ()))


async def decline(inbox: Inbox) -> None:
    """Answer for the consumers that are not enabled."""
    disabled = Refusal("unavailable", "the UTXO store is not enabled in this daemon (utxo.enabled)")
    while batch := await inbox.take():
        for delivery in batch:
            for answer in refuse(delivery, delivery.seq(), delivery.refused or disabled):
                answer.send()
            delivery.done()


def open_hall(config: Config, bus: Bus, inbox: Inbox) -> Hall:
    """Return what all connections share."""
    return Hall(bus, inbox, _welcome(config), admins(config.socket.admin_uids), config)


def _welcome(config: Config) -> Welcome:
    chain = ChainName(config.chain.family, config.chain.network)
    return Welcome(
        protocol=PROTOCOL,
        version=VERSION,
        chain=chain,
        tip=None,
        points=[],
        rollback_floor=None,
        persisted_height=None,
        store_id=store_id(config) if config.utxo.enabled else None,
    )


def _place(hall: Hall) -> dict[str, object]:
    tip = hall.view.tip
    return {"height": tip and tip.height, "slot": tip and tip.slot, "unspent": hall.view.unspent}


def _keep_collector_off(*, whole: bool) -> None:
    """Keep the garbage collector off what lives now, and with `whole` off the hot path: turns collect now and then."""
    gc.freeze()
    if whole:
        gc.disable()
    else:
        gc.enable()


async def _reload(notifier: Notifier, reloader: Reloader) -> None:
    await notifier.reloading()
    await reloader()
    await notifier.deliver("READY=1")


def _dump(hall: Hall, guests: Guests) -> None:
    """Write what the daemon is doing to the log; of the clients those with most on its way."""
    clients = sorted(
        (connection.about() for connection in guests.inside), key=lambda about: about["pending"], reverse=True
    )
    inbox = {"messages": len(hall.inbox), "bytes": hall.inbox.reserved, "capacity": hall.inbox.capacity}
    dump(**_place(hall), inbox=inbox, connections=len(guests.inside), busiest=clients[:_SHOWN_CLIENTS])


def _give_up(after_s: float, hall: Hall, guests: Guests, house: TaskGroup) -> None:
    """End though something is left: it was never acknowledged, so feeders send it again."""
    left = sum(connection.about()["pending"] for connection in guests.inside)
    log.error("drain_timed_out", after_s=after_s, messages=left, bytes=hall.inbox.reserved)
    house.cancel_scope.cancel()
    asyncio.get_running_loop().call_later(_LAST_TURN_S, _end_at_once)


def _end_at_once() -> None:
    """End without a turn at the store that does not end: nothing cancels it, and killing is as good as leaving."""
    log.critical("exit_forced", reason="a turn at the store does not end")
    write_out()
    os._exit(FAILED)


async def _report(notifier: Notifier, moved: Bell, hall: Hall) -> None:
    """Keep systemd's status line in step with the tip."""
    while True:
        if hall.view.tip is not None:
            notifier.say(f"STATUS=height {hall.view.tip.height}, {hall.view.unspent} unspent outputs")
        await moved.heard()
        await anyio.sleep(1)


def _numbers(hall: Hall, guests: Guests) -> bytes:
    """Return what is counted and what is at hand, for whoever answers `/metrics`."""
    numbers = hall.numbers
    numbers.network_height, numbers.map_size = hall.known_network_height(), hall.view.map_size
    numbers.feeder_away_s = hall.feeder_away_s()
    numbers.inbox_messages, numbers.inbox_bytes = len(hall.inbox), hall.inbox.reserved
    numbers.unread_bytes, numbers.listener_failures = hall.unread.bytes, hall.bus.failures
    numbers.connections = len(guests.inside)
    numbers.log_lines_dropped = lines_dropped()
    return encode(numbers)


async def _watch_readers(config: Config, disk: Disk, hall: Hall, writer: CapacityLimiter) -> None:
    watch = ReaderWatch(disk, config.store.max_reader_age)
    while True:
        hall.numbers.readers = await to_thread.run_sync(watch.look, limiter=writer)
        await anyio.sleep(watch.every_s)


def _publisher(hall: Hall) -> Callable[[Committed], None]:
    """Return what hears of every commit."""
    heap = Heap()

    def publish(committed: Committed) -> None:
        hall.publish(committed)
        heap.committed(sum(isinstance(fact, BlockCommitted) for fact in committed.facts))

    return publish


async def _give_memory_back() -> None:
    """Keep what a catch-up took from staying with a daemon at the tip."""
    while True:
        await anyio.sleep(_MEMORY_EVERY_S)
        await to_thread.run_sync(give_back)


async def _try_blobs(blobs: Blobs) -> None:
    """Say at the start what else the first long transaction would say; the chain goes on without them."""
    try:
        await to_thread.run_sync(blobs.check, abandon_on_cancel=True)
    except BlobFailed as error:
        log.error("blob_store_unusable", error=str(error))


async def _watch(notifier: Notifier, every_s: float, turns: Turns | None, writer: CapacityLimiter) -> None:
    """Say that we live, after a turn at the disk: a live loop over a stuck disk is not life. A full one answers."""
    while True:
        if turns:
            with suppress(StoreFull):
                await to_thread.run_sync(turns.chain.touch, limiter=writer)
        notifier.say("WATCHDOG=1")
        await anyio.sleep(every_s)
