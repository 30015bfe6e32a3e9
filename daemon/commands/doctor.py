"""`utxod doctor`: checks for common problems, and gives advice."""

from __future__ import annotations

import sys
from pathlib import Path

import click
import msgspec

from daemon.commands.common import FAILED, config_option, json_option, socket_option
from daemon.doctor import examine

_COLOURS = {"ok": "green", "warning": "yellow", "wrong": "red"}


@click.command()
@config_option
@socket_option
@click.option("--node", help="URL of a node to check: http://user:password@host:port, or ws://host:port of Ogmios.")
@json_option("One JSON array of {check, state, detail, advice}.")
@click.pass_context
def doctor(context: click.Context, socket: Path | None, node: str | None, as_json: bool) -> None:
    """Check clock, disk, limits, permissions, store, socket, node and versions.

    Each check prints its result, and what to do if there is a problem. Run it as the daemon's user. Exits 0 if no
    check has an error (warnings do not count), else 1.
    """
    config, path = context.obj.config, context.obj.socket(socket)
    findings = []
    for found in examine(config, path, node):
        findings.append(found)
        if not as_json:
            click.echo(f"{click.style(f'{found.state:<8}', fg=_COLOURS[found.state])} {found.check:<12} {found.detail}")
            if found.state != "ok" and found.advice:
                click.echo(f"{'':<22}-> {found.advice}")
    if as_json:
        click.echo(msgspec.json.encode(findings))
    if any(found.state == "wrong" for found in findings):
        sys.exit(FAILED)
