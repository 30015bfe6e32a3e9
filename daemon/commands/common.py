"""Code that commands share: the configuration, one-line errors, and printing."""

from __future__ import annotations

import os
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import IO, TYPE_CHECKING, Any, TypeVar

import click

from config.load import ConfigError, load
from config.settings import Config, socket_path
from storage.errors import Damaged, PackageMissing, StoreError, WrongFormat

if TYPE_CHECKING:
    from rich.console import RenderableType

    from daemon.child import Place

FAILED, WRONG_USE, DAMAGED, CONTRADICTED = 1, 2, 3, 4
AFTER_VERIFY = "keep a copy of it, then restore a backup or synchronise again"
_WIDE = 100_000  # columns where there is no terminal: lines stay whole

_C = TypeVar("_C", bound=Callable[..., Any])


class Context:
    """What every command may need; the configuration is read on first use."""

    def __init__(self, path: Path | None, *, own_process: bool = False) -> None:
        self.path = path
        self._own_process = own_process
        self._config: Config | None = None

    def with_config(self, path: Path | None) -> Context:
        """Return the same for another configuration file."""
        return Context(path, own_process=self._own_process)

    @property
    def config(self) -> Config:
        """Return the configuration, or end with what is wrong with it."""
        if self._config is None:
            try:
                self._config = load(self.path, os.environ)
            except ConfigError as error:
                raise Exit(str(error), WRONG_USE) from error
        return self._config

    def socket(self, chosen: Path | None) -> Path:
        """Return the daemon's socket: the chosen one, else the configured."""
        return chosen or socket_path(self.config, os.environ)

    def continue_in_child(self, place: Place | None = None, copies: Path | None = None) -> None:
        """Return in a child process, which a damaged store may end, if this process is the command's own.

        Copies of the store in the folder `copies` are removed when the child ends, for any reason.
        """
        from daemon.child import continue_in_child
        from storage.copies import remove_stale

        if not self._own_process:
            return
        try:
            continue_in_child(place)
        finally:  # in both processes: copies of a killed verify, and of the child
            if copies is not None:
                remove_stale(copies)


class Exit(click.ClickException):
    """The end of a command: one line, and the exit code."""

    def __init__(self, message: str, code: int) -> None:
        super().__init__(message)
        self.code = code

    def show(self, file: IO[Any] | None = None) -> None:
        """Print the message and end with our exit code."""
        super().show(file)
        sys.exit(self.code)


@contextmanager
def store_errors() -> Iterator[None]:
    """Turn what is wrong with a store into one line and the right exit code."""
    import lmdb  # not every command opens a store

    from storage.damage import damage

    try:
        yield
    except Damaged as error:
        raise Exit(f"{error}: {error.advice}", DAMAGED) from error
    except WrongFormat as error:
        raise Exit(str(error), DAMAGED) from error
    except PackageMissing as error:
        raise Exit(str(error), WRONG_USE) from error
    except StoreError as error:
        raise Exit(str(error), FAILED) from error
    except OSError as error:
        place = "" if error.filename is None else f"{error.filename}: "
        raise Exit(f"{place}{error.strerror or error}", FAILED) from error
    except Exception as error:
        if (found := damage(error)) is not None:
            raise Exit(f"{found}: {found.advice}", DAMAGED) from error
        if isinstance(error, lmdb.Error) and error.code > 0:  # the system's
            raise Exit(str(error), FAILED) from error
        raise


@contextmanager
def pipe_may_close() -> Iterator[None]:
    """End silently when the reader of standard output has closed it."""
    try:
        yield
        sys.stdout.flush()
    except BrokenPipeError:
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        sys.exit(FAILED)


class Group(click.Group):
    """A group of commands. Its help has their summaries whole, and a misspelt command gets the nearest name."""

    def resolve_command(
        self, ctx: click.Context, args: list[str]
    ) -> tuple[str | None, click.Command | None, list[str]]:
        """Return the named command, and the arguments that follow."""
        name = args[0]
        if not ctx.resilient_parsing and not name.startswith("-") and self.get_command(ctx, name) is None:
            from difflib import get_close_matches

            near = get_close_matches(name, self.list_commands(ctx), 1)
            ctx.fail(f"No such command {name!r}." + (f" Did you mean {near[0]!r}?" if near else ""))
        return super().resolve_command(ctx, args)

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        """Write a line, or several, for each command."""
        commands = ((name, self.get_command(ctx, name)) for name in self.list_commands(ctx))
        rows = [(name, found.get_short_help_str(_WIDE)) for name, found in commands if found and not found.hidden]
        with formatter.section("Commands"):
            formatter.write_dl(rows)


Group.group_class = Group  # of the groups in it


def _with_config(context: click.Context, _: click.Parameter, path: Path | None) -> None:
    if path is not None:
        context.obj = (context.obj or Context(None)).with_config(path)


config_option = click.option(
    "--config",
    type=click.Path(path_type=Path),
    callback=_with_config,
    expose_value=False,
    help="TOML file; by default $UTXOD_CONFIG, then /etc/utxod/utxod.toml, then built-in defaults.",
)
socket_option = click.option(
    "--socket", type=click.Path(path_type=Path), help="The daemon's socket; by default the configured one."
)


def json_option(text: str) -> Callable[[_C], _C]:
    """Add `--json` to a command; `text` describes its output."""
    return click.option("--json", "as_json", is_flag=True, help=text)


def show(*things: RenderableType) -> None:
    """Print to the terminal in its width and colours, to anything else in whole plain lines."""
    from rich.console import Console

    terminal = sys.stdout.isatty()
    console = Console(width=None if terminal else _WIDE, highlight=False, markup=False, emoji=False)
    with console.capture() as captured:
        for thing in things:
            console.print(thing, soft_wrap=isinstance(thing, str))  # a line can be copied whole
    click.echo("\n".join(line.rstrip() for line in captured.get().splitlines()), color=terminal)
