"""`utxod recovery …`: reads and changes pending transactions in the recovery tables, with or without a daemon."""

from __future__ import annotations

import asyncio
import sys
from collections.abc import Awaitable, Callable
from typing import TYPE_CHECKING, TypeVar

import click
import msgspec

from daemon.commands.common import (
    FAILED,
    Exit,
    Group,
    config_option,
    json_option,
    pipe_may_close,
    show,
    store_errors,
)

if TYPE_CHECKING:
    from config.settings import Config
    from storage.recovery.rows import Recovering, Status
    from storage.recovery.tables import Storage

T = TypeVar("T")
_STATUSES = click.Choice(["pending", "confirmed", "deleted", "orphan", "dead"])
_PAGE = 1000


def _txid(_: click.Context, __: click.Parameter, given: tuple[str, ...] | str) -> list[bytes]:
    found = []
    for text in (given,) if isinstance(given, str) else given:
        try:
            found.append(bytes.fromhex(text))
        except ValueError:
            found.append(b"")
        if len(found[-1]) != 32:
            raise click.BadParameter(f"{text!r} is not a transaction id: expected 64 hex digits")
    return found


_txids = click.argument("txids", metavar="TXID...", nargs=-1, required=True, callback=_txid)


@click.group(cls=Group)
@config_option
def recovery() -> None:
    """Inspect pending transactions, and decide about those that need a decision.

    Works with a running daemon, which notices changes at its next scan, or without one.
    """


def _with(config: Config, work: Callable[[Storage], Awaitable[T]], *, readonly: bool) -> T:
    """Do something with the open tables."""
    from daemon.recovery import open_storage

    async def main() -> T:
        storage = open_storage(config, readonly=readonly)
        await storage.open()
        try:
            return await work(storage)
        finally:
            await storage.close()

    with store_errors():
        return asyncio.run(main())


@recovery.command("list")
@config_option
@click.option("--status", type=_STATUSES, help="Only these.")
@click.option("--count", type=click.IntRange(1, 1_000_000), default=100, show_default=True, help="How many.")
@click.option("--order", type=click.Choice(["asc", "desc"]), default="asc", show_default=True, help="By submission.")
@json_option("Print JSON objects as in the HTTP API, one per line.")
@click.pass_context
def list_rows(context: click.Context, status: Status | None, count: int, order: str, as_json: bool) -> None:
    """List transactions by their submission."""
    from daemon.commands.recovery_report import table

    async def work(storage: Storage) -> list[Recovering]:
        found: list[Recovering] = []
        while len(found) < count:
            most, after = min(_PAGE, count - len(found)), found[-1].place if found else None
            more = await storage.rows(status, most, after=after, newest_first=order == "desc")
            if not more:
                break
            found += more
        return found

    found = _with(context.obj.config, work, readonly=True)
    with pipe_may_close():
        if as_json:
            for row in found:
                click.echo(msgspec.json.encode(row))
        else:
            show(table(found) if found else "there are none")


@recovery.command("show")
@config_option
@click.argument("txid", callback=_txid)
@json_option("Print the same JSON object as the HTTP API.")
@click.pass_context
def show_row(context: click.Context, txid: list[bytes], as_json: bool) -> None:
    """Show one transaction, and every attempt to determine its status."""
    from daemon.commands.recovery_report import whole

    row = _with(context.obj.config, lambda storage: storage.row(txid[0]), readonly=True)
    if row is None:
        raise Exit(
            f"transaction {txid[0].hex()} is not in the list: it was never submitted here, or was removed after "
            f"it became final",
            FAILED,
        )
    if as_json:
        click.echo(msgspec.json.encode(row))
    else:
        show(*whole(row))


def _report_each(requested: list[bytes], changed: set[bytes], what: str, why_not: str) -> None:
    """Report for each transaction whether it was changed; fail when none was."""
    for txid in requested:
        click.echo(f"{txid.hex()} {what if txid in changed else why_not}")
    if not changed:
        sys.exit(FAILED)


@recovery.command()
@config_option
@_txids
@click.pass_context
def replay(context: click.Context, txids: list[bytes]) -> None:
    """Make dead and orphan transactions pending again, with fresh counters."""
    changed = _with(context.obj.config, lambda storage: storage.replay(txids), readonly=False)
    _report_each(txids, changed, "pending again", "is neither dead nor an orphan")


@recovery.command()
@config_option
@_txids
@click.option("--reason", default="discarded by an operator", show_default=True, help="Message to store in the row.")
@click.pass_context
def discard(context: click.Context, txids: list[bytes], reason: str) -> None:
    """Mark pending, dead or orphan transactions as deleted.

    The daemon removes them and their descendants from its pool, and releases their claims.
    """
    if context.obj.config.cluster.stream is not None:
        raise Exit("this daemon is a replica, and discarding would change it alone: send TxWithdrawn", FAILED)
    changed = _with(context.obj.config, lambda storage: storage.discard(txids, reason), readonly=False)
    _report_each(txids, changed, "deleted", "is already final, or not known")


@recovery.command()
@config_option
@_txids
@click.option("--reason", default="reopened by an operator", show_default=True, help="Message to store in the row.")
@click.pass_context
def reopen(context: click.Context, txids: list[bytes], reason: str) -> None:
    """Make transactions of any final status pending again: their status is determined from scratch."""
    changed = _with(context.obj.config, lambda storage: storage.reopen(txids, reason), readonly=False)
    _report_each(txids, changed, "pending again", "is already pending, or not known")


@recovery.command()
@config_option
@json_option("Print a JSON object: `by_status`, `oldest_pending_s`, and `daemon` if one runs.")
@click.pass_context
def status(context: click.Context, as_json: bool) -> None:
    """Count transactions by status, and show the state of the daemon's service."""
    from daemon.commands.recovery_report import counted
    from daemon.metrics import daemon_numbers, folder

    counts = _with(context.obj.config, lambda storage: storage.counts(), readonly=True)
    numbers = daemon_numbers(folder(context.obj.config))
    service = None if numbers is None else numbers.recovery
    if as_json:
        plain = {"by_status": counts.by_status, "oldest_pending_s": counts.oldest_pending_s, "daemon": service}
        click.echo(msgspec.json.encode(plain))
    else:
        show(*counted(counts, service))
