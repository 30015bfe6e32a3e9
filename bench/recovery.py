"""`utxod bench recovery`: how fast claims process a backlog, and the cost of a scan when nothing is due."""

from __future__ import annotations

import asyncio
import tempfile
import time
from contextlib import ExitStack
from pathlib import Path
from typing import Literal

import anyio
import click
import uvloop

from bench.postgres import postgres
from config.kinds import Secret
from config.settings import Recovery
from handlers.recovery.manager import Manager
from handlers.recovery.outcome import Outcome, Valid
from storage.recovery.postgres import PostgresStorage
from storage.recovery.sqlite import SqliteStorage
from storage.recovery.tables import Storage

_SCANS = 200
_DUE_S = 3600.0


class AtOnce:
    """A handler that answers at once."""

    async def recover(self, txid: bytes) -> Outcome:  # noqa: ARG002 -- whatever the transaction
        """See `Handler`."""
        return Valid()


@click.command("recovery")
@click.option(
    "--store",
    type=click.Choice(["sqlite", "postgresql"]),
    multiple=True,
    help="Database of the tables; by default both.",
)
@click.option("--rows", default=250_000, show_default=True, help="Number of due transactions.")
@click.option("--batch", default=500, show_default=True, help="Value of recovery.batch_size.")
@click.option("--workers", default=8, show_default=True, help="Value of recovery.worker_count.")
def recovery(store: tuple[Literal["sqlite", "postgresql"], ...], rows: int, batch: int, workers: int) -> None:
    """Measure the recovery service on its real stores, with a handler that answers at once."""
    for name in store or ("sqlite", "postgresql"):
        with ExitStack() as stack:
            dsn = Secret(stack.enter_context(postgres())) if name == "postgresql" else None
            settings = Recovery(store=name, dsn=dsn, batch_size=batch, worker_count=workers)
            uvloop.run(_measure(name, _storage(settings, stack), rows, settings))


def _storage(settings: Recovery, stack: ExitStack) -> Storage:
    if settings.dsn is not None:
        return PostgresStorage(settings.dsn, lease_s=settings.lease_duration)
    return SqliteStorage(Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="utxod-bench-"))) / "recovery.db")


async def _measure(name: str, storage: Storage, rows: int, settings: Recovery) -> None:
    await storage.open()
    try:
        began = time.perf_counter()
        for first in range(0, rows, 10_000):
            numbers = range(first, min(first + 10_000, rows))
            await storage.add([n.to_bytes(32) for n in numbers], settings.ttl, age_s=_DUE_S)
        _show(name, "rows added", rows, time.perf_counter() - began)
        await _drain(name, storage, rows, settings)
        await storage.add([(1 << 200).to_bytes(32)], ttl_s=_DUE_S)
        began = time.perf_counter()
        for _ in range(_SCANS):
            assert await storage.claim("probe", settings.lease_duration, settings.batch_size) == []
        took = time.perf_counter() - began
        click.echo(f"{name}: a scan with nothing due next to {rows:,} final rows: {took / _SCANS * 1e3:.2f} ms")
    finally:
        await storage.close()


async def _drain(name: str, storage: Storage, rows: int, settings: Recovery) -> None:
    done = asyncio.Event()

    def changed() -> None:
        if manager.numbers.settled["confirmed"] == rows:
            done.set()

    manager = Manager(storage, AtOnce(), settings, changed=changed, dice=lambda low, _: low)
    began = time.perf_counter()
    async with anyio.create_task_group() as group:
        group.start_soon(manager.run, group)
        await done.wait()
        took = time.perf_counter() - began
        await manager.stop()
    assert (await storage.counts()).by_status["confirmed"] == rows
    _show(name, "due rows claimed, handled and settled", rows, took)


def _show(name: str, what: str, rows: int, took: float) -> None:
    click.echo(f"{name}: {rows:,} {what}: {rows / took:,.0f}/s ({took:.2f} s)")
