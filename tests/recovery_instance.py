"""One instance of the recovery service as a process: `recovery_instance.py JSON`, until it is told to leave."""

from __future__ import annotations

import asyncio
import signal
import sys
import time
from pathlib import Path
from random import uniform

import msgspec
import structlog
from msgspec import Struct

from config.settings import Recovery
from handlers.recovery.manager import Change, Manager
from handlers.recovery.outcome import Invalid, Outcome, Permanent, Transient, Valid
from storage.recovery.postgres import PostgresStorage
from storage.recovery.rows import Status, Storage, StoreAway
from storage.recovery.sqlite import SqliteStorage


class Order(Struct):
    """What an instance is told."""

    where: str
    journal: str
    table: str = "recovery_tx"
    lease_s: float = 2.0
    scan_s: float = 0.3
    work_s: float = 0.02
    skew_s: float = 0.0


def right(txid: bytes) -> Status:
    """Return how a transaction has to end."""
    ends: dict[int, Status] = {7: "deleted", 9: "dead"}
    return ends.get(int.from_bytes(txid) % 20, "confirmed")


class Worker:
    """Takes a moment, fails now and then, and gives the right answer in the end."""

    def __init__(self, work_s: float) -> None:
        self._work_s = work_s

    async def recover(self, txid: bytes) -> Outcome:
        await asyncio.sleep(uniform(0, 2 * self._work_s))
        if uniform(0, 1) < 0.02:
            return Transient("now and then")
        match right(txid):
            case "confirmed":
                return Valid()
            case "deleted":
                return Invalid("it had to be")
            case _:
                return Permanent("somebody has to look")


async def main(order: Order) -> None:
    leave = asyncio.Event()
    for sign in (signal.SIGTERM, signal.SIGINT):
        asyncio.get_running_loop().add_signal_handler(sign, leave.set)
    knobs = Recovery(
        scan_interval=order.scan_s, lease_duration=order.lease_s, batch_size=40, retry_base=0.05, retry_cap=0.2
    )
    storage: Storage
    if "://" in order.where:
        storage = PostgresStorage(order.where, lease_s=order.lease_s, table=order.table)
    else:
        storage = SqliteStorage(Path(order.where))
    while True:
        try:
            await storage.open()
            break
        except StoreAway:
            await asyncio.sleep(0.1)
    with Path(order.journal).open("a") as journal:  # noqa: ASYNC230 -- a line now and then

        def tell(changes: list[Change]) -> None:
            journal.writelines(f"{change.txid.hex()} {change.status}\n" for change in changes)
            journal.flush()

        manager = Manager(storage, Worker(order.work_s), knobs, changed=tell)
        await manager.start()
        print("started", manager.owner, flush=True)
        await leave.wait()
        await manager.stop()
        print("numbers", msgspec.json.encode(manager.numbers).decode(), flush=True)
    await storage.close()


if __name__ == "__main__":
    told = msgspec.json.decode(sys.argv[1], type=Order)
    if told.skew_s:
        real, real_ns = time.time, time.time_ns
        time.time = lambda: real() + told.skew_s
        time.time_ns = lambda: real_ns() + int(told.skew_s * 1e9)
    structlog.configure(logger_factory=structlog.PrintLoggerFactory(sys.stderr))
    asyncio.run(main(told))
