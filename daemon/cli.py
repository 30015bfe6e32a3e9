"""The command line: `utxod …`.

Exit codes: 0 done, 1 failed, 2 wrong use, 3 the store is damaged or of another format.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import IO, Any

import click

from config.load import ConfigError, load
from config.settings import Config, socket_path
from config.show import render
from daemon import VERSION
from daemon.logs import configure
from feeds.commands import feed as feed_commands
from storage.errors import Damaged, StoreError, WrongFormat

FAILED, WRONG_USE, DAMAGED = 1, 2, 3


class Context:
    """What every command may need; the configuration is read when it is asked for."""

    def __init__(self, path: Path | None) -> None:
        self.path = path
        self._config: Config | None = None

    @property
    def config(self) -> Config:
        """Return the configuration, or end with what is wrong with it."""
        if self._config is None:
            try:
                self._config = load(self.path, os.environ)
            except ConfigError as error:
                raise _Exit(str(error), WRONG_USE) from error
        return self._config


class _Exit(click.ClickException):
    def __init__(self, message: str, code: int) -> None:
        super().__init__(message)
        self.code = code

    def show(self, file: IO[Any] | None = None) -> None:
        """Print the message and end with our own code."""
        super().show(file)
        sys.exit(self.code)


@contextmanager
def stores_speak() -> Iterator[None]:
    """Turn what is wrong with a store into one line and the right exit code."""
    try:
        yield
    except (Damaged, WrongFormat) as error:
        raise _Exit(str(error), DAMAGED) from error
    except StoreError as error:
        raise _Exit(str(error), FAILED) from error


@click.group(context_settings={"help_option_names": ["-h", "--help"]})
@click.option("--config", "path", type=click.Path(path_type=Path), help="TOML file; else $UTXOD_CONFIG.")
@click.version_option(VERSION, prog_name="utxod")
@click.pass_context
def main(context: click.Context, path: Path | None) -> None:
    """Keep the set of unspent outputs beside a chain node."""
    context.obj = Context(path)


def _with_config(context: click.Context, _: click.Parameter, path: Path | None) -> None:
    if path is not None:
        context.obj = Context(path)


config_option = click.option(
    "--config",
    type=click.Path(path_type=Path),
    callback=_with_config,
    expose_value=False,
    help="TOML file; else $UTXOD_CONFIG, else /etc/utxod/utxod.toml, else defaults.",
)


@main.command()
@config_option
@click.pass_context
def run(context: click.Context) -> None:
    """Run the daemon until SIGTERM."""
    from daemon.app import run as run_daemon

    config = context.obj.config
    configure(config.log)
    with stores_speak():
        try:
            with _one_failure():
                run_daemon(config, context.obj.path)
        except OSError as error:
            place = error.filename or socket_path(config, os.environ)
            raise _Exit(f"{place}: {error.strerror or error}", FAILED) from error


class _Bench(click.Group):
    """Imports the measurements only when they are asked for: they need packages that the daemon does not."""

    def list_commands(self, _: click.Context) -> list[str]:
        """Return the names of the measurements."""
        return ["apply"]

    def get_command(self, _: click.Context, cmd_name: str) -> click.Command | None:
        """Return one."""
        if cmd_name != "apply":
            return None
        try:
            from bench.apply import apply
        except ImportError as error:
            raise _Exit(f"{error.name} is not installed: it is of the dependency group `bench`", FAILED) from error
        return apply


@contextmanager
def _one_failure() -> Iterator[None]:
    """Unwrap the failure that ended the daemon, if it is one alone."""
    try:
        yield
    except BaseExceptionGroup as group:
        error: BaseException = group
        while isinstance(error, BaseExceptionGroup) and len(error.exceptions) == 1:
            error = error.exceptions[0]
        raise error from group


@main.group()
@click.option("--socket", type=click.Path(path_type=Path), help="The daemon's socket; else the configured one.")
@config_option
@click.pass_context
def feed(context: click.Context, socket: Path | None) -> None:
    """Turn a chain into events and send them to the daemon."""
    context.obj = socket or socket_path(context.obj.config, os.environ)


for command in feed_commands.commands.values():
    feed.add_command(command)


@main.command()
@config_option
@click.option("--json", "as_json", is_flag=True, help="One JSON object.")
@click.pass_context
def status(context: click.Context, as_json: bool) -> None:
    """Say where the store is; works beside a running daemon."""
    from daemon.inspect import status as look

    with stores_speak():
        click.echo(look(context.obj.config, as_json=as_json))


@main.command()
@config_option
@click.option("--quick", is_flag=True, help="Do not try the undo records on a copy of the store.")
@click.pass_context
def verify(context: click.Context, quick: bool) -> None:
    """Walk every table by its own rules; exit 3 and say what is wrong, if something is."""
    from daemon.inspect import verify as walk

    with stores_speak():
        findings = walk(context.obj.config, quick=quick)
    for finding in findings:
        click.echo(finding, err=True)
    if findings:
        sys.exit(DAMAGED)
    click.echo("sound")


@main.command()
@config_option
@click.option("--format", "form", type=click.Choice(["csv", "jsonl"]), default="csv", show_default=True)
@click.pass_context
def export(context: click.Context, form: str) -> None:
    """Write the live set in chain order; csv lines are txid,index,value,hex address."""
    from daemon.inspect import export as write

    with stores_speak():
        try:
            for chunk in write(context.obj.config, form):
                sys.stdout.buffer.write(chunk)
            sys.stdout.buffer.flush()
        except BrokenPipeError:  # the reader has seen enough
            os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
            sys.exit(FAILED)


@main.command()
@config_option
@click.pass_context
def prune(context: click.Context) -> None:
    """Prune everything that is due, while no daemon runs."""
    from daemon.offline import prune as prune_all

    configure(context.obj.config.log)
    with stores_speak():
        click.echo(prune_all(context.obj.config))


@main.command()
@config_option
@click.pass_context
def reindex(context: click.Context) -> None:
    """Build the configured indexes anew, while no daemon runs."""
    from daemon.offline import reindex as build

    configure(context.obj.config.log)
    with stores_speak():
        click.echo(build(context.obj.config))


@main.command()
@config_option
@click.option("--workers", type=click.IntRange(1, 1024), help="Processes; else http.workers.")
@click.option("--descriptor", type=int, hidden=True)
@click.pass_context
def serve(context: click.Context, workers: int | None, descriptor: int | None) -> None:
    """Answer questions over HTTP, beside a running daemon or without one."""
    config = context.obj.config
    with stores_speak():
        if descriptor is not None:
            from daemon.http.worker import work

            work(config, descriptor)
            return
        from daemon.http.master import serve_alone

        configure(config.log)
        serve_alone(config, context.obj.path, workers or max(config.http.workers, 1))


@main.group(cls=_Bench)
def bench() -> None:
    """Measure, beside peers in the same run (needs the packages of the bench group)."""


@main.group("config")
def config_group() -> None:
    """Show or check the configuration."""


@config_group.command()
@config_option
@click.pass_context
def show(context: click.Context) -> None:
    """Print the whole effective configuration as commented TOML."""
    click.echo(render(context.obj.config), nl=False)


@config_group.command()
@config_option
@click.pass_context
def check(context: click.Context) -> None:
    """Say everything that is wrong with the configuration; exit 2 if something is."""
    _ = context.obj.config
    click.echo("the configuration is sound")


if __name__ == "__main__":
    main()
