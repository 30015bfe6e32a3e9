"""Groups of commands that are imported on first use, so that the daemon starts sooner."""

from __future__ import annotations

from copy import copy
from importlib import import_module
from pathlib import Path
from typing import Any

import click

from daemon.commands.common import FAILED, Exit, Group, config_option, socket_option


class MainGroup(Group):
    """Imports most commands on first use, so that the daemon starts sooner."""

    LATER = {  # by the module that each is in
        "backup": "copies",
        "compact": "copies",
        "doctor": "doctor",
        "export": "whole",
        "gateway": "gateway",
        "init": "init",
        "migrate": "copies",
        "query": "query",
        "recovery": "recovery",
        "replica": "replica",
        "restore": "copies",
        "send": "send",
        "split": "split",
        "status": "watch",
        "verify": "whole",
        "wallets": "wallets",
    }

    def list_commands(self, ctx: click.Context) -> list[str]:
        """Return the names of all commands."""
        return sorted([*super().list_commands(ctx), *self.LATER])

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        """Return a command."""
        if cmd_name not in self.LATER:
            return super().get_command(ctx, cmd_name)
        command: click.Command = getattr(import_module(f"daemon.commands.{self.LATER[cmd_name]}"), cmd_name)
        return command


class BenchGroup(Group):
    """Imports a benchmark on first use: they need packages that the daemon does not."""

    NAMES = (
        "apply",
        "feed",
        "http",
        "large",
        "mmr",
        "prune",
        "recovery",
        "shards",
        "sizes",
        "soak",
        "steady",
        "stream",
        "transactions",
        "wallets",
    )

    def list_commands(self, _: click.Context) -> list[str]:
        """Return the names of the measurements."""
        return [*self.NAMES]

    def get_command(self, _: click.Context, cmd_name: str) -> click.Command | None:
        """Return one: the command of that name in the module of that name."""
        if cmd_name not in self.NAMES:
            return None
        try:
            command: click.Command = getattr(import_module(f"bench.{cmd_name}"), cmd_name)
        except ImportError as error:
            return _without(cmd_name, str(error.name))
        return command


def _without(name: str, package: str) -> click.Command:
    """Return a substitute for a benchmark while a package that it needs is missing: it prints what to install."""
    why = f"{package} is not installed"

    def refuse() -> None:
        raise Exit(f"{why}: pip install 'utxod[bench]'", FAILED)

    settings = {"ignore_unknown_options": True, "allow_extra_args": True}
    return click.Command(name, callback=refuse, help=f"Not available: {why}.", context_settings=settings)


class FeedsGroup(Group):
    """Imports the feeds on first use."""

    def list_commands(self, ctx: click.Context) -> list[str]:
        """Return the names of the feeds."""
        return _feeds().list_commands(ctx)

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        """Return one, which takes the daemon's socket and configuration as all commands do."""
        found = _feeds().get_command(ctx, cmd_name)
        return None if found is None else _with_daemon_options(found)


def _with_daemon_options(feed: click.Command) -> click.Command:
    """Return a feed with the options that locate the daemon; the feed itself receives the path of its socket."""
    run = feed.callback
    assert run is not None

    @click.command()
    @config_option
    @socket_option
    @click.pass_context
    def call(context: click.Context, /, socket: Path | None, **arguments: Any) -> None:
        assert context.parent is not None
        context.obj = context.obj.socket(socket or context.parent.params["socket"])
        context.invoke(run, **arguments)

    combined = copy(feed)
    combined.callback, combined.params = call.callback, [*feed.params, *call.params]
    return combined


def _feeds() -> click.Group:
    from feeds.commands import feed as feeds

    return feeds
