"""The manual page utxod(1), generated from the help of the command line: `python -m daemon.manual`."""

from __future__ import annotations

import re
import sys
from collections.abc import Iterator

import click

from daemon import VERSION
from daemon.cli import main
from daemon.commands.lazy import BenchGroup

_EXIT_CODES = {
    0: "Done.",
    1: "Failed: the last line on standard error has the reason.",
    2: "The configuration or the arguments are wrong.",
    3: "The store is damaged, or of another format, kind, chain or set of indexes.",
    4: "utxod verify: the store is sound, but transaction records contradict the chain.",
}
_FILES = {
    "/etc/utxod/utxod.toml": "The configuration; utxod config show prints all of it with comments.",
    "/etc/utxod/feeds/NAME.conf": "Arguments of the feed of the service utxod-feed@NAME.",
    "/var/lib/utxod": "The store of the service.",
    "/run/utxod/utxod.sock": "The socket of the service.",
}


def page() -> str:
    """Return the page as roff for man(7)."""
    return "\n".join(_lines()) + "\n"


def _lines() -> Iterator[str]:
    yield f'.TH UTXOD 1 "" "utxod {_text(VERSION)}" "User Commands"'
    yield from (".SH NAME", f"utxod \\- {_text('the UTXO state daemon')}")
    yield from (".SH SYNOPSIS", ".B utxod", _text("[OPTIONS] COMMAND [ARGS]..."))
    yield from (".SH DESCRIPTION", *_help(main), *_options(main, click.Context(main, info_name="utxod")))
    yield ".SH COMMANDS"
    yield from _commands(main, click.Context(main, info_name="utxod"))
    yield ".SH EXIT STATUS"
    for code, meaning in _EXIT_CODES.items():
        yield from (".TP", f".B {code}", _text(meaning))
    yield ".SH FILES"
    for path, meaning in _FILES.items():
        yield from (".TP", f".I {_text(path)}", _text(meaning))


def _commands(group: click.Group, context: click.Context) -> Iterator[str]:
    for name in group.list_commands(context):
        command = group.get_command(context, name)
        if command is None or command.hidden:
            continue
        inner = click.Context(command, info_name=name, parent=context)
        usage = " ".join(command.collect_usage_pieces(inner))
        yield from (f".SS {_text(inner.command_path)} {_text(usage)}", *_help(command), *_options(command, inner))
        if isinstance(command, BenchGroup):  # their options are known only where their packages are installed
            yield from (".PP", _text(f"Measurements: {', '.join(command.list_commands(inner))}."))
        elif isinstance(command, click.Group):
            yield from _commands(command, inner)


def _help(command: click.Command) -> Iterator[str]:
    """Yield the help; click marks a paragraph whose lines are to stay with a line of `\\b`."""
    for paragraph in re.split(r"\n{2,}", (command.help or "").strip()):
        lines = paragraph.splitlines()
        if lines and lines[0].strip() == "\b":
            yield from (".PP", ".nf", *(_text(line) for line in lines[1:]), ".fi")
        elif lines:
            yield from (".PP", _text(" ".join(line.strip() for line in lines)))


def _options(command: click.Command, context: click.Context) -> Iterator[str]:
    for parameter in command.params:
        if isinstance(parameter, click.Option) and (record := parameter.get_help_record(context)):
            declared, meaning = record
            yield from (".TP", f".B {_text(declared)}", _text(meaning))


def _text(plain: str) -> str:
    """Return text as roff takes it: nothing in it is a request or an escape."""
    escaped = plain.replace("\\", "\\e").replace("-", "\\-")
    return "\\&" + escaped if escaped.startswith((".", "'")) else escaped


if __name__ == "__main__":
    sys.stdout.write(page())
