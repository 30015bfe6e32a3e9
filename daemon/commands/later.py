"""Groups of commands that are imported only when they are asked for, so that the daemon starts sooner."""

from __future__ import annotations

from importlib import import_module

import click

from daemon.commands.common import FAILED, Exit


class MainGroup(click.Group):
    """Imports commands that are groups of their own only when they are asked for, so that the daemon starts sooner."""

    LATER = ("query", "recovery", "send")

    def list_commands(self, ctx: click.Context) -> list[str]:
        """Return the names of all commands."""
        return sorted([*super().list_commands(ctx), *self.LATER])

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        """Return a command: one of these is in the module of its name."""
        if cmd_name not in self.LATER:
            return super().get_command(ctx, cmd_name)
        command: click.Command = getattr(import_module(f"daemon.commands.{cmd_name}"), cmd_name)
        return command


class BenchGroup(click.Group):
    """Imports a measurement only when it is asked for: they need packages that the daemon does not."""

    NAMES = ("apply", "feed", "http", "large", "mmr", "prune", "recovery", "soak", "steady", "transactions")

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
            raise Exit(f"{error.name} is not installed: it is of the dependency group `bench`", FAILED) from error
        return command


class FeedsGroup(click.Group):
    """Imports the feeds only when one is asked for."""

    def list_commands(self, ctx: click.Context) -> list[str]:
        """Return the names of the feeds."""
        return _feeds().list_commands(ctx)

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        """Return one."""
        return _feeds().get_command(ctx, cmd_name)


def _feeds() -> click.Group:
    from feeds.commands import feed as feeds

    return feeds
