"""Damages copies of a store at random and runs commands on each: random_damage.py FOLDER SEED COUNT COMMAND...

FOLDER has `utxod.toml` and a sound store. A program of its own, which starts no thread, because it forks: modules are
imported once. On each copy the first command runs and one of the others; each prints a line of JSON.
"""

from __future__ import annotations

import json
import os
import shutil
import signal
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from random import Random
from tempfile import TemporaryDirectory
from time import monotonic, sleep
from typing import Any

import lmdb
from patience import patience

from daemon import app, inspect, offline  # noqa: F401 - what commands import late is there before they are forked
from daemon.cli import main
from daemon.commands import lookup, report, status  # noqa: F401
from daemon.commands.common import Context
from daemon.sink import write_out

PAGE = 4096
PATIENCE_S = patience(60)
Damage = Callable[[Random, bytearray], None]


# --- damage ----------------------------------------------------------------------------------------------------------


def _page(random: Random, raw: bytearray, first: int = 0) -> slice:
    """Return a page, often one that is in use: those at the end of the file often are."""
    number = random.randrange(first, len(raw) // PAGE)
    return slice(number * PAGE, (number + 1) * PAGE)


def _flip(random: Random, raw: bytearray, place: slice) -> None:
    raw[random.randrange(place.start, place.stop)] ^= 1 << random.randrange(8)


def bit(random: Random, raw: bytearray) -> None:
    _flip(random, raw, _page(random, raw))


def header_bit(random: Random, raw: bytearray) -> None:
    page = _page(random, raw)
    _flip(random, raw, slice(page.start, page.start + 64))


def meta_bit(random: Random, raw: bytearray) -> None:
    at = random.randrange(2) * PAGE
    _flip(random, raw, slice(at, at + 152))


def garbage_bytes(random: Random, raw: bytearray) -> None:
    at = random.randrange(len(raw) - 32)
    raw[at : at + 32] = random.randbytes(32)


def garbage_page(random: Random, raw: bytearray) -> None:
    raw[_page(random, raw)] = random.randbytes(PAGE)


def garbage_meta(random: Random, raw: bytearray) -> None:
    at = random.randrange(2) * PAGE
    raw[at : at + PAGE] = random.randbytes(PAGE)


def zero_page(random: Random, raw: bytearray) -> None:
    raw[_page(random, raw)] = bytes(PAGE)


def zero_run(random: Random, raw: bytearray) -> None:
    begin = _page(random, raw, 2).start
    end = min(begin + 50 * PAGE, len(raw))
    raw[begin:end] = bytes(end - begin)


def ones_page(random: Random, raw: bytearray) -> None:
    raw[_page(random, raw)] = b"\xff" * PAGE


def swapped_pages(random: Random, raw: bytearray) -> None:
    one, other = _page(random, raw), _page(random, raw)
    raw[one], raw[other] = raw[other], raw[one]


def copied_page(random: Random, raw: bytearray) -> None:
    raw[_page(random, raw)] = raw[_page(random, raw)]


def truncated(random: Random, raw: bytearray) -> None:
    del raw[random.randrange(len(raw)) :]


PAGES: tuple[Damage, ...] = (garbage_page, zero_page, zero_run, ones_page, swapped_pages, copied_page)
DAMAGES = (bit, bit, header_bit, header_bit, meta_bit, garbage_bytes, garbage_meta, truncated, *PAGES)


# --- commands --------------------------------------------------------------------------------------------------------


def _run(arguments: list[str]) -> int:
    try:
        main(arguments, obj=Context(None, own_process=True))
    except SystemExit as end:
        return end.code if isinstance(end.code, int) else 0
    return 0


@contextmanager
def started(arguments: list[str], output: Path) -> Iterator[int]:
    """Run a command in a separate process; yield its id. Afterwards it has ended, with all processes it started."""
    output.unlink(missing_ok=True)
    pid = os.fork()
    if pid == 0:
        code = 99
        try:
            os.setsid()
            with output.open("wb") as reported:
                os.dup2(reported.fileno(), 1)
                os.dup2(reported.fileno(), 2)
            code = _run(arguments)
        except BaseException:  # noqa: BLE001 - what the interpreter would do, in a process that must not go on
            sys.excepthook(*sys.exc_info())
        finally:
            sys.stdout.flush()
            sys.stderr.flush()
            write_out()
            os._exit(code)
    try:
        yield pid
    finally:
        with suppress(ProcessLookupError):
            os.killpg(pid, signal.SIGKILL)


def ended(pid: int, until: Callable[[], bool] = lambda: False) -> int | None:
    """Wait for the end of a process, or for something to be true; return the exit code, or None before the end."""
    give_up = monotonic() + PATIENCE_S
    while not until():
        found, state = os.waitpid(pid, os.WNOHANG)
        if found:
            return os.waitstatus_to_exitcode(state)
        assert monotonic() < give_up, "it does not end"
        sleep(0.0005)
    return None


def run(arguments: list[str], output: Path) -> int | None:
    with started(arguments, output) as pid:
        return ended(pid)


def run_daemon(arguments: list[str], output: Path) -> int | None:
    with started(arguments, output) as pid:
        code = ended(pid, until=lambda: output.exists() and b'"listening"' in output.read_bytes())
        if code is not None:
            return code
        os.kill(pid, signal.SIGTERM)
        return ended(pid)


# --- what came of it -------------------------------------------------------------------------------------------------


def rows(store: Path) -> dict[str, list[tuple[bytes, bytes]]]:
    with lmdb.open(str(store), max_dbs=64, readonly=True, lock=False) as env:
        with env.begin() as txn:
            names = [bytes(key) for key, _ in txn.cursor()]
        tables = {name: env.open_db(name, create=False) for name in names}
        with env.begin() as txn:
            return {name.decode(): list(txn.cursor(db)) for name, db in tables.items()}


def changed(before: dict[str, list[tuple[bytes, bytes]]], store: Path) -> list[str]:
    now = rows(store)
    return sorted(name for name in {*before, *now} if before.get(name) != now.get(name))


class Trial:
    def __init__(self, base: Path, place: Path) -> None:
        self.place, self.output = place, place / "output"
        self.store, self.config, self.set = place / "data" / "lmdb", place / "utxod.toml", b""
        self.sound = (base / "data" / "lmdb" / "data.mdb").read_bytes()
        self.rows = rows(base / "data" / "lmdb")
        self.config.write_text((base / "utxod.toml").read_text().replace(str(base), str(place)))

        self.one(self.sound, ["export"])
        self.set = self.output.read_bytes()

    def put(self, raw: bytes) -> None:
        shutil.rmtree(self.place / "data", ignore_errors=True)
        self.store.mkdir(parents=True)
        (self.store / "data.mdb").write_bytes(raw)

    def one(self, raw: bytes, command: list[str]) -> dict[str, Any]:
        self.put(raw)
        arguments = [command[0], "--config", str(self.config), *command[1:]]
        code = (run_daemon if command == ["run"] else run)(arguments, self.output)
        reported = self.output.read_text(errors="replace")
        found: dict[str, Any] = {"command": command[0], "code": code, "said": reported[-3000:]}
        if command == ["verify"] and code == 0:
            found["changed"] = changed(self.rows, self.store)
        if command == ["export"] and code == 0:
            found["another_set"] = self.output.read_bytes() != self.set
        return found


def cases(base: Path, seed: int, count: int, commands: list[list[str]]) -> Iterator[dict[str, Any]]:
    random = Random(seed)
    with TemporaryDirectory(prefix="utxod-", dir="/dev/shm" if os.access("/dev/shm", os.W_OK) else None) as place:
        trial = Trial(base, Path(place))
        for number in range(count):
            raw, damage = bytearray(trial.sound), DAMAGES[number % len(DAMAGES)]
            damage(random, raw)
            for command in (commands[0], *random.sample(commands[1:], min(len(commands) - 1, 1))):
                yield {"case": number, "damage": damage.__name__} | trial.one(bytes(raw), command)


if __name__ == "__main__":
    folder, seed, count, *commands = sys.argv[1:]
    for found in cases(Path(folder), int(seed), int(count), [command.split() for command in commands]):
        print(json.dumps(found))
