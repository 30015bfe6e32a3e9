"""`utxod status`: prints the state once, or repeatedly."""

from __future__ import annotations

import sys
import time
from contextlib import suppress
from datetime import UTC, datetime
from pathlib import Path

import click

from config.settings import Config
from daemon.child import answer_of_child
from daemon.commands.common import (
    FAILED,
    config_option,
    json_option,
    pipe_may_close,
    show,
    socket_option,
    store_errors,
)
from daemon.commands.report import Report, counted, plain, screen
from daemon.commands.status import failed, read_report


@click.command()
@config_option
@socket_option
@json_option("One JSON object: the store's fields, and `daemon`, `rates`, `handlers`; with --watch one a line.")
@click.option("--watch", is_flag=True, help="Repeat: redraw the screen on a terminal, print lines elsewhere.")
@click.option(
    "--every", type=click.FloatRange(min=0.1), default=2.0, show_default=True, help="Seconds between two updates."
)
@click.pass_context
def status(context: click.Context, socket: Path | None, as_json: bool, watch: bool, every: float) -> None:
    """Show the state of the daemon and of its store on one screen.

    The command queries the daemon's socket and reads the store. Without a daemon it shows the state of the store. It
    exits with 0 if the daemon runs and none of its parts is away, silent or failed, otherwise with 1. With --watch it
    runs until it is interrupted.
    """
    config, path = context.obj.config, context.obj.socket(socket)
    if watch:
        with store_errors(), pipe_may_close(), suppress(KeyboardInterrupt):
            _watch(config, path, every, as_json=as_json)
        return
    context.obj.continue_in_child()
    with store_errors():
        report = read_report(config, path)
    if as_json:
        click.echo(plain(report))
    else:
        show(*screen(report))
    if failed(report):
        sys.exit(FAILED)


def _watch(config: Config, path: Path, every_s: float, *, as_json: bool) -> None:
    """Show a report again and again."""
    if as_json or not sys.stdout.isatty():
        while True:
            click.echo(_render(config, path, "json" if as_json else "line"))
            sys.stdout.flush()
            time.sleep(every_s)
    from rich.console import Console
    from rich.live import Live
    from rich.text import Text

    with Live(console=Console(), screen=True, auto_refresh=False) as live:
        while True:
            live.update(Text.from_ansi(_render(config, path, "screen").decode()), refresh=True)
            time.sleep(every_s)


def _render(config: Config, path: Path, form: str) -> bytes:
    """Return a report as bytes. A child reads the store: a damaged one may end it."""
    return answer_of_child(lambda: _written(read_report(config, path), form))


def _written(report: Report, form: str) -> bytes:
    if form == "json":
        return plain(report)
    if form == "line":
        return _line(report).encode()
    from rich.console import Console

    console = Console(highlight=False, markup=False, emoji=False)
    with console.capture() as captured:
        console.print(f"{datetime.now(UTC):%Y-%m-%d %H:%M:%S} UTC", "", *screen(report), sep="\n")
    return captured.get().encode()


def _line(report: Report) -> str:
    """Return the report as one line."""
    store, daemon = report.store, report.daemon
    parts = [f"{datetime.now(UTC).isoformat(timespec='seconds')}"]
    parts.append("running" if daemon.running else f"no daemon: {daemon.problem}")
    if store is not None:
        parts.append("the origin" if store.tip is None else f"height {store.tip.height:,}")
        parts.append(f"{store.unspent:,} unspent")
    if daemon.running:
        parts.append("lag unknown" if daemon.lag_blocks is None else f"{counted(daemon.lag_blocks, 'block')} behind")
    if report.rates is not None:
        parts.append(f"{report.rates.blocks_per_s:,} blocks/s")
    parts += [f"{handler.name} {handler.state}" for handler in report.handlers if handler.state not in _WELL]
    return ", ".join(parts)


_WELL = {"ok", "off", "busy"}
