"""The wiring: the tasks of the daemon, the facts that they receive, and the order of the shutdown.

Shutdown proceeds from source to sink: the listener closes, connections stop reading, the inbox is drained, the last
commit is made, its answers go out, and then the store closes.
"""

from __future__ import annotations

import asyncio
import gc
import os
from collections.abc import Sequence
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
from daemon.crash import recorded
from daemon.diagnostics import dump
from daemon.heap import Heap, give_back, keep_heap_small
from daemon.http.supervisor import Supervisor
from daemon.hub import Hub
from daemon.inbox import Inbox
from daemon.listener import Connections, admins, keep_listening, most_clients, open_listener
from daemon.metrics import daemon_metrics_file, encode, folder, keep_updated
from daemon.notify import Notifier
from daemon.pruning import evict_along, prune_along
from daemon.readers import ReaderWatch
from daemon.recovery import enabled, open_storage, recover_along
from daemon.reload import Reloader
from daemon.signals import receiver, wait_for_stop
from daemon.sink import lines_dropped, write_out
from daemon.start import announce, check_store
from daemon.store import open_chain, open_disk, store_id
from daemon.worker_process import children, keep_running
from handlers.consumer import Limits, follow_chain
from handlers.delivery import done, refuse, send
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
from handlers.utxo import Turns
from handlers.wakeup import Wakeup
from storage.blobs import BlobFailed, Blobs
from storage.errors import StoreFull
from storage.history.store import HistoryStore

log = structlog.get_logger("daemon")

_SHOWN_CLIENTS = 20
_MEMORY_EVERY_S = 10.0
_LAST_TURN_S = 5.0  # for the operation that the writer's thread is running when `shutdown_timeout` is over


def run(config: Config, config_file: Path | None) -> bool:
    """Run the daemon until a signal stops it; return whether everything that it had received was applied.

    `config_file` is the one named on the command line: SIGHUP reads the configuration again.

    Raises:
        ConfigError: a handler that the configuration names does not exist.
    """
    own = load(config.recovery.handlers) if enabled(config) else []
    if enabled(config) and config.recovery.store == "postgresql":
        open_storage(config)  # connects to nothing: a driver that is missing is reported before anything begins
    keep_heap_small()
    announce(config, config_file, config.http.workers)
    if config.utxo.enabled:
        check_store(config)
    return anyio.run(serve, config, config_file, own, backend_options={"use_uvloop": True})


async def serve(config: Config, config_file: Path | None, own: Sequence[Handler] = ()) -> bool:
    """Open the store, the handlers and the listener, and close them in reverse order."""
    most, notifier = most_clients(), Notifier(os.environ)
    with receiver() as signals, ExitStack() as stores:
        turns = _open_turns(config, stores)
        bus = Bus(turns.chain.changes.take) if turns else Bus()
        file = stores.enter_context(daemon_metrics_file(folder(config)))
        inbox = bus.inbox(*_consumed(turns), capacity=config.batch.max_bytes)
        hub = make_hub(config, bus, inbox)
        _keep_collector_off(whole=turns is not None)
        async with anyio.create_task_group() as consumers:
            writer = CapacityLimiter(1)
            limits = Limits(config.batch.max_bytes, config.batch.max_delay_ms / 1000)
            if turns:
                hub.view = turns.chain.view
                hub.subscribers.open(turns.chain.changes, writer)
                heap = Heap()
                bus.follow(lambda facts: heap.committed([*map(type, facts)].count(BlockCommitted)))
                consumers.start_soon(follow_chain, inbox, turns, limits, hub.publish, writer)
            else:
                consumers.start_soon(decline, inbox)
            connections = Connections(hub, consumers, most)
            stores.enter_context(keep_updated(file, lambda: _numbers(hub, connections)))
            async with anyio.create_task_group() as services:
                path = socket_path(config, os.environ)
                listener = await open_listener(path, os.environ)
                services.start_soon(keep_listening, listener, path, os.environ, connections)
                services.start_soon(_give_memory_back)
                services.start_soon(_report, notifier, bus.wakeup(BlockCommitted, RolledBack), hub)
                if notifier.watchdog_s:
                    services.start_soon(_watch, notifier, notifier.watchdog_s / 2, turns, writer)
                if turns and turns.chain.tx_blocks:
                    services.start_soon(_try_blobs, turns.chain.tx_blocks.transactions.blobs)
                    services.start_soon(evict_along, config, turns, turns.chain.tx_blocks, hub, writer)
                if turns:
                    services.start_soon(_prepare_and_watch, config, turns.chain.store, hub, writer)
                if turns and config.pruner.enabled:
                    services.start_soon(prune_along, config, turns, hub, writer)
                if turns and enabled(config):
                    services.start_soon(recover_along, config, turns, hub, writer, own)
                supervisor = Supervisor(config, config.http.workers)
                if config.http.workers:
                    services.start_soon(supervisor.serve)
                services.start_soon(hub.expire)
                for name in children(config) if turns else ():
                    services.start_soon(keep_running, name, config)

                def apply(new: Config, changed: list[str]) -> None:
                    hub.admins = admins(new.socket.admin_uids)
                    limits.max_delay_s = new.batch.max_delay_ms / 1000
                    supervisor.reload(new, changed)

                reloader = Reloader(config, config_file, apply)
                log.info("listening", socket=str(path), **_place(hub))
                services.start_soon(notifier.deliver, "READY=1")
                number = await wait_for_stop(
                    signals, lambda: _dump(hub, connections), lambda: services.start_soon(_reload, notifier, reloader)
                )
                log.info("stopping", signal=number.name)
                notifier.send("STOPPING=1")
                late = asyncio.get_running_loop().call_later(
                    config.shutdown_timeout, _give_up, config.shutdown_timeout, hub, connections, consumers
                )
                hub.close()
                services.cancel_scope.cancel()
            for connection in connections.open:
                connection.stop_reading()
            bus.close()
            inbox.close()
        late.cancel()
        log.info("stopped", **_place(hub))
        return not consumers.cancel_scope.cancel_called


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
    """Return the messages that the UTXO handler takes: blocks and, if enabled, those of the transaction store."""
    if turns is None:
        return ()
    return (*ChainMessage.__args__, *(TxMessage.__args__ if turns.chain.tx_blocks else ()))


async def decline(inbox: Inbox) -> None:
    """Refuse every message: the UTXO handler is not enabled."""
    disabled = Refusal("unavailable", "the UTXO store is not enabled in this daemon (utxo.enabled)")
    while batch := await inbox.take():
        for delivery in batch:
            send(refuse(delivery, delivery.seq(), delivery.refused or disabled))
        done(batch)


def make_hub(config: Config, bus: Bus, inbox: Inbox) -> Hub:
    """Return what all connections share."""
    return Hub(bus, inbox, _welcome(config), admins(config.socket.admin_uids), config)


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


def _place(hub: Hub) -> dict[str, object]:
    tip = hub.view.tip
    return {"height": tip and tip.height, "slot": tip and tip.slot, "unspent": hub.view.unspent}


def _keep_collector_off(*, whole: bool) -> None:
    """Exclude all current objects from garbage collection; `whole` disables automatic collection altogether."""
    gc.freeze()
    if whole:
        gc.disable()
    else:
        gc.enable()


async def _reload(notifier: Notifier, reloader: Reloader) -> None:
    await notifier.reloading()
    await reloader()
    await notifier.deliver("READY=1")


def _dump(hub: Hub, connections: Connections) -> None:
    """Write what the daemon is doing to the log, and the clients with the most messages in flight."""
    clients = sorted(
        (connection.about() for connection in connections.open), key=lambda about: about["pending"], reverse=True
    )
    inbox = {"messages": len(hub.inbox), "bytes": hub.inbox.reserved, "capacity": hub.inbox.capacity}
    dump(**_place(hub), inbox=inbox, connections=len(connections.open), busiest=clients[:_SHOWN_CLIENTS])


def _give_up(after_s: float, hub: Hub, connections: Connections, consumers: TaskGroup) -> None:
    """Stop although messages are left: they were never acknowledged, so feeders send them again."""
    left = sum(connection.about()["pending"] for connection in connections.open)
    log.error("drain_timed_out", after_s=after_s, messages=left, bytes=hub.inbox.reserved)
    consumers.cancel_scope.cancel()
    asyncio.get_running_loop().call_later(_LAST_TURN_S, _end_at_once)


def _end_at_once() -> None:
    """Exit while an operation on the store does not return: it can't be cancelled, and the store survives a kill."""
    log.critical("exit_forced", reason="an operation on the store does not return")
    write_out()
    os._exit(FAILED)


async def _report(notifier: Notifier, moved: Wakeup, hub: Hub) -> None:
    """Keep systemd's status line in step with the tip."""
    while True:
        if hub.view.tip is not None:
            notifier.send(f"STATUS=height {hub.view.tip.height}, {hub.view.unspent} unspent outputs")
        await moved.wait()
        await anyio.sleep(1)


def _numbers(hub: Hub, connections: Connections) -> bytes:
    """Return the counters and gauges of the daemon, for the processes that answer `/metrics`."""
    numbers = hub.current_numbers()
    numbers.connections = len(connections.open)
    numbers.log_lines_dropped = lines_dropped()
    return encode(numbers)


async def _prepare_and_watch(config: Config, store: HistoryStore, hub: Hub, writer: CapacityLimiter) -> None:
    await to_thread.run_sync(store.prepare, limiter=writer)  # so that the first block need not wait for it
    watch = ReaderWatch(store.disk, config.store.max_reader_age)
    while True:
        hub.numbers.readers = await to_thread.run_sync(watch.read_readers, limiter=writer)
        await anyio.sleep(watch.every_s)


async def _give_memory_back() -> None:
    """Return memory to the system that a catch-up needed and a daemon at the tip does not."""
    while True:
        await anyio.sleep(_MEMORY_EVERY_S)
        await to_thread.run_sync(give_back)


async def _try_blobs(blobs: Blobs) -> None:
    """Check the blob store at startup, so that a problem is logged early; the chain is followed without it."""
    try:
        await to_thread.run_sync(blobs.check, abandon_on_cancel=True)
    except BlobFailed as error:
        log.error("blob_store_unusable", error=str(error))


async def _watch(notifier: Notifier, every_s: float, turns: Turns | None, writer: CapacityLimiter) -> None:
    """Notify the watchdog after each write to the disk: a blocked disk is detected; a full one is no failure."""
    while True:
        if turns:
            with suppress(StoreFull):
                await to_thread.run_sync(turns.chain.touch, limiter=writer)
        notifier.send("WATCHDOG=1")
        await anyio.sleep(every_s)
