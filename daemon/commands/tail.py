"""`utxod tail`: prints facts as they are committed, from the daemon's socket or from its log."""

from __future__ import annotations

import json
import os
import sys
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from pathlib import Path
from typing import IO, Any

import click

from daemon.client import Line, Received
from daemon.commands.common import FAILED, WRONG_USE, Exit
from handlers import wire
from handlers.events import Ack, Error, Fact, Hello, Subscribe, Welcome

FACTS = tuple(kind.__name__ for kind in Fact.__args__)
_RETRY_S = 0.5
_POLL_S = 0.2
_LAST_BYTES = 1 << 20  # read from the end of a log, for its last lines
_COLOURS = {
    "BlockCommitted": "green",
    "blocks_committed": "green",
    "RolledBack": "yellow",
    "rolled_back": "yellow",
    "missing_inputs": "yellow",
    "error": "red",
    "warning": "yellow",
}
_LEADING = ("event", "type", "timestamp", "level")  # these begin the line


def notice(line: str) -> None:
    """Print a remark about the connection; it is not part of the output."""
    click.secho(line, err=True, dim=True)


class Printer:
    """Prints what was requested, one line each."""

    def __init__(self, events: Sequence[str], *, as_json: bool) -> None:
        self.events = events
        self._as_json = as_json

    def wants_line(self, line: str) -> bool:
        """Return whether a line of the log is to be shown; one without an event only when everything is."""
        return not self.events or (_object(line) or {}).get("event") in self.events

    def fact(self, fact: Fact) -> None:
        """Print a fact from the daemon."""
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
    rest = " ".join(f"{key}={_value(value)}" for key, value in fields.items() if key not in _LEADING)
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


def follow_daemon(path: Path, printer: Printer, first: int | None = None) -> None:
    """Print facts without end, reconnecting when needed; with `first`, from that sequence on.

    Raises:
        Exit: facts from `first` on are no longer kept, or it is in the future.
    """
    unknown = [name for name in printer.events if name not in FACTS]
    if unknown:
        raise Exit(f"--event: {unknown[0]!r} is none of {', '.join(FACTS)}", WRONG_USE)
    place = _Place(first)
    for received in _received(path, list(printer.events or FACTS), place):
        match received:
            case Welcome(tip=tip):
                at = "the origin" if tip is None else f"height {tip.height}"
                notice(f"following {path}, the tip is at {at}")
                place.welcomed(received.newest_sequence)
            case Error(code="gone" | "unknown_sequence") as error:
                if place.next == first:  # which the user has named
                    raise Exit(f"--from: {error.message}", FAILED)
                notice(f"facts are missing here: {error.message}")
                place.resume(error.detail.get("oldest"))
            case Error() as error:
                notice(f"the daemon reports {error.code}: {error.message}")
            case Ack():
                pass
            case fact:
                printer.fact(fact)
                place.saw(fact.sequence)


class _Place:
    """Where to resume after the daemon was away: behind the last fact that was received."""

    def __init__(self, first: int | None) -> None:
        self.next = first
        self.lost = False  # the daemon refused to resume there: subscribe again

    def saw(self, sequence: int) -> None:
        """Continue behind a fact."""
        self.next = sequence + 1

    def welcomed(self, newest: int | None) -> None:
        """Note where the daemon begins to send facts, unless the place to resume is known."""
        if self.next is None and newest is not None:
            self.next = newest + 1

    def resume(self, oldest: object) -> None:
        """Resume with the oldest fact that is kept, or with future ones: another store has other sequences."""
        self.next, self.lost = oldest if isinstance(oldest, int) else None, True


def _received(path: Path, events: Any, place: _Place) -> Iterator[Received]:
    """Yield what the daemon sends, without end; print a remark when it is away."""
    away = False
    while True:
        try:
            with Line(path) as line:
                place.lost = False
                subscription = Subscribe(events=events, from_sequence=place.next)
                line.send(subscription, Hello(client="utxod-tail/1"))  # in this order: nothing is missed after its tip
                while not place.lost:
                    received = line.receive()
                    away = False
                    yield received
        except OSError as error:
            if not away:
                notice(f"no connection to the daemon: {path}: {error.strerror or error}; waiting for it")
            away = True
        time.sleep(_RETRY_S)


# --- its log -----------------------------------------------------------------------------------------------------


def follow_log(source: str, count: int, printer: Printer) -> None:
    """Show the last lines of a log, and new ones as they are written; standard input is read to its end."""
    if source == "-":
        lines: Iterable[str] = (line.rstrip("\n") for line in sys.stdin)
    else:
        lines = _log_lines(Path(source), count, printer.wants_line)
    for line in lines:
        if printer.wants_line(line):
            printer.log_line(line)


def _log_lines(path: Path, count: int, wanted: Callable[[str], bool]) -> Iterator[str]:
    """Yield the requested last lines, and then all added lines, through rotations, without end."""
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
                notice(f"{path} was rotated or cut; following it from its beginning")
                yield from map(_text, (rest + file.read()).splitlines())  # lines that were added meanwhile
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
