"""The wiring, on one page: what runs, who hears what, and how everything ends.

Leaving is a wave from source to sink: the door shuts, connections stop reading, the inbox is read empty, the last
commit is made, its answers go out, and then the store closes.
"""

from __future__ import annotations

import gc
import os
import signal
from collections.abc import AsyncIterator
from contextlib import ExitStack, suppress
from pathlib import Path

import anyio
import structlog
from anyio import CapacityLimiter, to_thread

from config.settings import Config, socket_path
from daemon import PROTOCOL, VERSION
from daemon.bus import Bell, Bus, Inbox
from daemon.connection import Connection, Hall
from daemon.door import admins, admit, open_door
from daemon.http.master import keep_serving
from daemon.metrics import daemon_sheet, encode, folder, keep_shown
from daemon.notify import Notifier
from daemon.pruning import prune_along
from daemon.recovery import enabled, recover_along
from daemon.store import open_disk, open_lives, open_utxo, store_id, windows
from handlers.chain import Chain
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
from handlers.refusal import Refused
from handlers.utxo import Committed, Limits, Turns, follow_chain
from storage.blobs import BlobFailed, Blobs
from storage.errors import StoreFull

log = structlog.get_logger("daemon")

_GRACE_S = 60.0  # for what was received before we were asked to leave


def run(config: Config, config_file: Path | None) -> None:
    """Run the daemon until it is asked to leave; workers read the same configuration anew."""
    anyio.run(serve, config, config_file, backend_options={"use_uvloop": True})


async def serve(config: Config, config_file: Path | None) -> None:
    """Open the store, the handlers and the door, and close them in the opposite order."""
    notifier, bus = Notifier(os.environ), Bus()
    with anyio.open_signal_receiver(signal.SIGTERM, signal.SIGINT) as signals, ExitStack() as stores:
        turns = _open_turns(config, stores)
        sheet = stores.enter_context(daemon_sheet(folder(config)))
        kinds = _consumed(turns)
        inbox = bus.inbox(*kinds, capacity=config.batch.max_bytes, most=config.batch.max_bytes)
        hall = Hall(
            bus,
            inbox,
            _welcome(config),
            admins(config.socket.admin_uids),
            config.socket.max_frame_bytes,
            config.http.ready_grace,
        )
        _quieten_collector()
        async with anyio.create_task_group() as house:
            writer, committed = CapacityLimiter(1), Bell()
            if turns:
                hall.view = turns.chain.view
                house.start_soon(_follow, config, inbox, turns, hall, writer, committed)
            else:
                house.start_soon(decline, inbox)
            inside: set[Connection] = set()
            stores.enter_context(keep_shown(sheet, lambda: _numbers(hall, inside)))
            async with anyio.create_task_group() as doors:
                path = socket_path(config, os.environ)
                doors.start_soon(admit, await open_door(path, os.environ), hall, house, inside)
                doors.start_soon(_report, notifier, bus.bell(BlockCommitted, RolledBack), hall)
                if notifier.watchdog_s:
                    doors.start_soon(_watch, notifier, notifier.watchdog_s / 2, turns, writer)
                if turns and turns.chain.lives:
                    doors.start_soon(_try_blobs, turns.chain.lives.transactions.blobs)
                if turns and config.pruner.enabled:
                    doors.start_soon(prune_along, config, turns, hall, committed, writer)
                if turns and enabled(config):
                    doors.start_soon(recover_along, config, turns, hall, writer)
                if config.http.workers:
                    doors.start_soon(keep_serving, config, config_file, config.http.workers)
                log.info("listening", socket=str(path), **_place(hall))
                notifier.say("READY=1")
                await _asked_to_leave(signals)
                doors.cancel_scope.cancel()
            notifier.say("STOPPING=1")
            house.cancel_scope.deadline = anyio.current_time() + _GRACE_S
            for connection in inside:
                connection.stop_reading()
            bus.close()
            inbox.close()
        log.info("stopped", **_place(hall))


def _open_turns(config: Config, stores: ExitStack) -> Turns | None:
    if not config.utxo.enabled:
        return None
    disk = stores.enter_context(open_disk(config))
    store = open_utxo(disk, config)
    chain = Chain(store, windows(config), config.utxo.prune_batch_size, open_lives(store, config))
    if chain.lives:
        chain.lives.wake(chain.height)
    return Turns(chain, config.pruner.enabled)


def _consumed(turns: Turns | None) -> tuple[type[Message], ...]:
    """Return what the UTXO handler takes: blocks, and the life of transactions if that is kept."""
    if turns is None:
        return ()
    return (*ChainMessage.__args__, *(TxMessage.__args__ if turns.chain.lives else ()))


async def _follow(config: Config, inbox: Inbox, turns: Turns, hall: Hall, writer: CapacityLimiter, bell: Bell) -> None:
    limits = Limits(config.batch.max_bytes, config.batch.max_delay_ms / 1000)

    def publish(committed: Committed) -> None:
        hall.view = committed.view
        hall.numbers.committed(committed)
        hall.bus.publish(committed.facts)
        bell.ring()

    await follow_chain(inbox, turns, limits, publish, writer)


async def decline(inbox: Inbox) -> None:
    """Answer for the consumers that are not enabled."""
    disabled = Refused("unavailable", "the UTXO store is not enabled in this daemon (utxo.enabled)")
    while batch := await inbox.take():
        inbox.done(batch)
        for delivery in batch:
            refused = delivery.refused or disabled
            for answer in refuse(delivery, delivery.seq(), refused):
                answer.send()


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


def _quieten_collector() -> None:
    """Keep the garbage collector off the hot path: what lives now lives on, and turns collect now and then."""
    gc.collect()
    gc.freeze()
    gc.disable()


async def _asked_to_leave(signals: AsyncIterator[signal.Signals]) -> None:
    async for number in signals:
        log.info("stopping", signal=signal.Signals(number).name)
        return


async def _report(notifier: Notifier, moved: Bell, hall: Hall) -> None:
    """Keep systemd's status line in step with the tip."""
    while True:
        if hall.view.tip is not None:
            notifier.say(f"STATUS=height {hall.view.tip.height}, {hall.view.unspent} unspent outputs")
        await moved.heard()
        await anyio.sleep(1)


def _numbers(hall: Hall, inside: set[Connection]) -> bytes:
    """Return what is counted and what is at hand, for whoever answers `/metrics`."""
    numbers = hall.numbers
    numbers.network_height, numbers.map_size = hall.known_network_height(), hall.view.map_size
    numbers.feeder_away_s = hall.feeder_away_s()
    numbers.inbox_messages, numbers.inbox_bytes = len(hall.inbox), hall.inbox.reserved
    numbers.connections = len(inside)
    return encode(numbers)


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
