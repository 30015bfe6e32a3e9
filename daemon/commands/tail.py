"""`utxod tail`: what the daemon commits, as it happens, from its socket or from its log."""

from __future__ import annotations

import json
import os
import sys
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from pathlib import Path
from typing import IO, Any

import click

from daemon.client import Heard, Line
from daemon.commands.common import WRONG_USE, Exit
from handlers import wire
from handlers.events import Ack, Error, Fact, Hello, Subscribe, Welcome

FACTS = tuple(kind.__name__ for kind in Fact.__args__)
_RETRY_S = 0.5
_POLL_S = 0.2
_LAST_BYTES = 1 << 20  # of a log, to look for its last lines
_COLOURS = {
    "BlockCommitted": "green",
    "blocks_committed": "green",
    "RolledBack": "yellow",
    "rolled_back": "yellow",
    "missing_inputs": "yellow",
    "error": "red",
    "warning": "yellow",
}
_SAID_BEFORE = ("event", "type", "timestamp", "level")  # these begin the line


def tell(line: str) -> None:
    """Say how the following goes; not part of what is followed."""
    click.secho(line, err=True, dim=True)


class Printer:
    """Prints what was asked for, one line each."""

    def __init__(self, events: Sequence[str], *, as_json: bool) -> None:
        self.events = events
        self._as_json = as_json

    def wants_line(self, line: str) -> bool:
        """Return whether a line of the log is to be shown; one without an event only when everything is."""
        return not self.events or (_object(line) or {}).get("event") in self.events

    def fact(self, fact: Fact) -> None:
        """Show what the daemon said just now."""
        if self._as_json:
            click.echo(wire.encode(fact, "json").rstrip(b"\n"))
        else:
            click.echo(_readable(time.strftime("%Y-%m-%d %H:%M:%S"), wire.plain(fact)))

    def log_line(self, line: str) -> None:
        """Show a line of the log; one that is no JSON object as it is."""
        fields = _object(line)
        if fields is None or self._as_json:
            click.echo(line)
        else:
            click.echo(_readable(str(fields.get("timestamp", ""))[:19].replace("T", " "), fields))


def _readable(when: str, fields: dict[str, Any]) -> str:
    """Return a line for a person: when, what, and everything else."""
    name = str(fields.get("event") or fields.get("type") or "?")
    colour = _COLOURS.get(name) or _COLOURS.get(str(fields.get("level")))
    rest = " ".join(f"{key}={_value(value)}" for key, value in fields.items() if key not in _SAID_BEFORE)
    return f"{when} {click.style(f'{name:<16}', fg=colour)} {rest}"


def _value(value: Any) -> str:
    match value:
        case None:
            return "-"
        case {"height": height, "slot": slot, "hash": block}:
            return f"{height}/{slot}/{block}"
        case str() if " " in value or not value:
            return json.dumps(value, ensure_ascii=False)
        case str() | int() | float():
            return str(value)
        case _:
            return json.dumps(value, ensure_ascii=False, separators=(",", ":"))


def _object(line: str) -> dict[str, Any] | None:
    try:
        found = json.loads(line)
    except ValueError:
        return None
    return found if isinstance(found, dict) else None


# --- the daemon --------------------------------------------------------------------------------------------------


def follow_daemon(path: Path, printer: Printer) -> None:
    """Show facts for ever, over as many connections as it takes."""
    unknown = [name for name in printer.events if name not in FACTS]
    if unknown:
        raise Exit(f"--event: {unknown[0]!r} is none of {', '.join(FACTS)}", WRONG_USE)
    for heard in _heard(path, list(printer.events or FACTS)):
        match heard:
            case Welcome(tip=tip):
                place = "the origin" if tip is None else f"height {tip.height}"
                tell(f"following {path}, the tip is at {place}")
            case Error() as error:
                tell(f"the daemon says {error.code}: {error.message}")
            case Ack():
                pass
            case fact:
                printer.fact(fact)


def _heard(path: Path, events: Any) -> Iterator[Heard]:
    """Yield what the daemon says, for ever; say when it is away."""
    away = False
    while True:
        try:
            with Line(path) as line:
                line.send(Subscribe(events=events), Hello(client="utxod-tail/1"))  # so nothing is missed after its tip
                while True:
                    heard = line.receive()
                    away = False
                    yield heard
        except OSError as error:
            if not away:
                tell(f"the daemon is away: {path}: {error.strerror or error}; waiting for it")
            away = True
        time.sleep(_RETRY_S)


# --- its log -----------------------------------------------------------------------------------------------------


def follow_log(source: str, count: int, printer: Printer) -> None:
    """Show the last lines of a log, and those to come; standard input is read to its end."""
    if source == "-":
        lines: Iterable[str] = (line.rstrip("\n") for line in sys.stdin)
    else:
        lines = _log_lines(Path(source), count, printer.wants_line)
    for line in lines:
        if printer.wants_line(line):
            printer.log_line(line)


def _log_lines(path: Path, count: int, wanted: Callable[[str], bool]) -> Iterator[str]:
    """Yield the last lines that are wanted, and for ever all that are added, through rotations."""
    file: IO[bytes] = path.open("rb")
    try:
        size = file.seek(0, os.SEEK_END)
        file.seek(max(size - _LAST_BYTES, 0))
        if size > _LAST_BYTES:
            file.readline()  # the rest of one
        *whole, rest = file.read().split(b"\n")
        last = [line for line in map(_text, whole) if wanted(line)]
        yield from last[len(last) - min(count, len(last)) :]
        while True:
            *whole, rest = (rest + file.read(_LAST_BYTES)).split(b"\n")
            yield from map(_text, whole)
            if whole:
                continue
            time.sleep(_POLL_S)
            if (successor := _successor(path, file)) is not None:
                tell(f"{path} was rotated or cut; following it from its beginning")
                yield from map(_text, (rest + file.read()).splitlines())  # what was added meanwhile
                file.close()
                file, rest = successor, b""
    finally:
        file.close()


def _successor(path: Path, file: IO[bytes]) -> IO[bytes] | None:
    """Return what has the name by now, opened, if that is another file, or this one has become shorter."""
    try:
        found = path.open("rb")
    except FileNotFoundError:  # it will come
        return None
    then, now = os.fstat(file.fileno()), os.fstat(found.fileno())
    if now.st_ino == then.st_ino and now.st_size >= file.tell():
        found.close()
        return None
    return found


def _text(raw: bytes) -> str:
    return raw.decode(errors="replace")
