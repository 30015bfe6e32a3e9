"""`utxod tail`: a real process that follows a real daemon, or a log."""

from __future__ import annotations

import json
import os
import re
import signal
import socket
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from queue import Empty, Queue
from threading import Thread
from typing import IO

import pytest
from daemons import PATIENCE_S, piped, running, utxod
from scenarios import back_to, chain, point

from handlers.events import Error
from handlers.wire import encode

LINE = re.compile(r"\d{4}-\d\d-\d\d \d\d:\d\d:\d\d (\w+) +(.*)")


class Tail:
    """A process whose lines can be waited for."""

    def __init__(self, process: subprocess.Popen[bytes]) -> None:
        self.process = process
        self._readers = list[Thread]()
        self.out, self.err = self._lines(process.stdout), self._lines(process.stderr)

    def _lines(self, stream: IO[bytes] | None) -> Queue[str]:
        lines = Queue[str]()

        def read() -> None:
            assert stream is not None
            for line in stream:
                lines.put(line.decode().rstrip("\n"))

        self._readers.append(Thread(target=read))
        self._readers[-1].start()
        return lines

    def end(self) -> None:
        """Kill it, and read its remaining output: its pipes are closed after that."""
        self.process.kill()
        for each in self._readers:
            each.join()

    def line(self) -> str:
        return self.out.get(timeout=PATIENCE_S)

    def notice(self, word: str) -> str:
        """Return the next line of standard error, which has to have a word in it."""
        line = self.err.get(timeout=PATIENCE_S)
        assert word in line, line
        return line

    def silent(self) -> bool:
        try:
            self.out.get(timeout=0.3)
        except Empty:
            return True
        return False


@contextmanager
def tail(*arguments: str | Path) -> Iterator[Tail]:
    with piped("tail", *arguments) as process:
        following = Tail(process)
        try:
            yield following
        finally:
            following.end()


def readable(line: str) -> tuple[str, str]:
    """Return what happened and everything else."""
    found = LINE.fullmatch(line)
    assert found, line
    return found[1], found[2]


def test_tail_prints_events(folder: Path) -> None:
    blocks, short = chain(8), {"rollback_window": 3, "prune_depth": 3}
    alone = {"enabled": False}  # each transaction would have its own facts
    with running(folder, utxo=short, transactions=alone) as daemon, daemon.client() as client:
        client.ask(blocks[0])
        with tail("--socket", daemon.socket) as plain, tail("--socket", daemon.socket, "--json") as exact:
            for each in (plain, exact):
                assert "the tip is at height 1" in each.notice(f"following {daemon.socket}")
            client.ask(blocks[1])
            name, rest = readable(plain.line())
            tip = point(blocks[1])
            assert name == "BlockCommitted"
            assert rest == f"height=2 slot=40 hash={tip['hash']} txs=1 created=1 spent=1 missing_inputs=0 sequence=2"
            counts = {"txs": 1, "created": 1, "spent": 1, "missing_inputs": 0, "sequence": 2}
            assert json.loads(exact.line()) == {"type": "BlockCommitted"} | tip | counts
            client.ask(back_to(blocks[0]))
            here, there = (f"{at['height']}/{at['slot']}/{at['hash']}" for at in (tip, point(blocks[0])))
            assert readable(plain.line()) == ("RolledBack", f"from={here} to={there} blocks=1 sequence=3")
            assert json.loads(exact.line())["to"] == point(blocks[0])
            client.ask(back_to("origin"))
            assert " to=origin " in readable(plain.line())[1]
            client.feed(blocks)
            names = [readable(plain.line())[0] for _ in range(9)]
            assert names.count("BlockCommitted") == 8 and "Pruned" in names


def test_tail_continues_after_a_restart(folder: Path) -> None:
    blocks, quiet = chain(9), {"enabled": False}  # each transaction would have its own facts

    def sequence(line: str) -> int:
        return int(json.loads(line)["sequence"])

    with running(folder, transactions=quiet, store={"log_retention": {"count": 6}}) as daemon:
        for each in blocks[:4]:
            with daemon.client() as client:
                client.ask(each)
        wanted = ("--socket", daemon.socket, "--json")
        with tail(*wanted) as following, tail(*wanted, "--from", "2") as earlier:
            following.notice("the tip is at height 4")
            assert [sequence(earlier.line()) for _ in range(3)] == [2, 3, 4]
            daemon.kill()
            following.notice("no connection to the daemon")
            daemon.start()
            with daemon.client() as client:
                client.feed(blocks[4:6])
            for one in (following, earlier):
                assert [sequence(one.line()) for _ in range(2)] == [5, 6]
            daemon.kill()
            while not following.err.get(timeout=PATIENCE_S).endswith("waiting for it"):
                pass
            os.kill(following.process.pid, signal.SIGSTOP)
            daemon.start()
            for each in blocks[6:9]:
                with daemon.client() as client:
                    client.ask(each)
            os.kill(following.process.pid, signal.SIGCONT)
            assert [sequence(following.line()) for _ in range(3)] == [7, 8, 9]
        old = utxod("tail", *wanted, "--from", "1")
        assert old.returncode == 1 and b"--from: the facts from sequence 1 on are no longer kept" in old.stderr
        future = utxod("tail", *wanted, "--from", "99")
        assert future.returncode == 1 and b"is in the future" in future.stderr


def test_tail_prints_selected_events(folder: Path) -> None:
    blocks = chain(3)
    wanted = ("--event", "RolledBack", "--event", "Pruned")
    with running(folder) as daemon, daemon.client() as client, tail("--socket", daemon.socket, *wanted) as some:
        some.notice("the tip is at the origin")
        client.feed([*blocks, back_to(blocks[0])])
        assert readable(some.line())[0] == "RolledBack"
        client.feed(blocks[1:])
        assert some.silent()


def test_tail_waits_for_the_daemon(folder: Path) -> None:
    blocks = chain(3)
    with tail("--socket", folder / "utxod.sock") as waiting:
        waiting.notice("no connection to the daemon")
        with pytest.raises(Empty):  # it tries again meanwhile, and says so once
            waiting.err.get(timeout=0.8)
        with running(folder) as daemon:
            waiting.notice("following")
            for n, end in enumerate((daemon.kill, daemon.term)):
                with daemon.client() as client:
                    client.ask(blocks[n])
                assert f"height={n + 1} " in waiting.line()
                end()
                waiting.notice("no connection to the daemon")  # once, however long it takes
                daemon.start()
                assert f"the tip is at height {n + 1}" in waiting.notice("following")
            with daemon.client() as client:
                client.ask(blocks[2])
            assert "height=3 " in waiting.line()
            assert waiting.err.empty()


def test_tail_reports_why_it_was_disconnected(folder: Path) -> None:
    with socket.socket(socket.AF_UNIX) as listener:
        listener.bind(str(folder / "listener"))
        listener.listen()
        with tail("--socket", folder / "listener") as cut:
            for _ in range(2):
                with listener.accept()[0] as link:
                    while b"Hello" not in link.recv(1 << 16):
                        pass
                    link.sendall(encode(Error(seq=None, code="too_slow", message="4 bytes were not read"), "frames"))
                cut.notice("too_slow: 4 bytes were not read")
                cut.notice("no connection to the daemon")


def test_wrong_options_are_refused(tmp_path: Path) -> None:
    done = utxod("tail", "--event", "BlockComitted")
    assert (done.returncode, done.stdout) == (2, b"")
    assert done.stderr.startswith(b"Error: --event: 'BlockComitted' is none of BlockCommitted, ")
    done = utxod("tail", "--log", str(tmp_path / "nothing"))
    assert done.returncode == 2 and b"does not exist" in done.stderr


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_tail_ends_on_a_signal(folder: Path, number: signal.Signals) -> None:
    with running(folder) as daemon, tail("--socket", daemon.socket) as ended:
        ended.notice("following")
        ended.process.send_signal(number)
        assert ended.process.wait(PATIENCE_S) == (0 if number == signal.SIGINT else -signal.SIGTERM)
        assert ended.err.empty() and ended.out.empty()


def log_line(event: str, height: int, **more: object) -> str:
    fields = {"height": height, "event": event, "level": "info", "timestamp": "2026-11-18T12:44:01.123456Z"} | more
    return json.dumps(fields) + "\n"


def test_tail_follows_a_log_through_rotations(tmp_path: Path) -> None:
    log = tmp_path / "log"
    log.write_text("".join(log_line("blocks_committed", n) for n in range(50)) + '{"event":"half')
    with tail("--log", log, "--lines", "2") as follower, log.open("a") as file:
        for n in (48, 49):
            line = follower.line()
            assert line == f"2026-11-18 12:44:01 blocks_committed height={n}"
        assert follower.silent()
        file.write(' a line","reason":"two words","nothing":null,"list":[1,2]}\nno JSON at all\n')
        file.flush()
        assert follower.line().endswith('half a line      reason="two words" nothing=- list=[1,2]')
        assert follower.line() == "no JSON at all"
        log.rename(tmp_path / "log.1")
        file.write(log_line("late", 1))
        file.flush()
        assert "late" in follower.line()
        log.write_text("".join(log_line("rotated", n) for n in range(60)))  # longer than the one before
        follower.notice("rotated or cut")
        assert [f"height={n}" in follower.line() for n in range(60)] == [True] * 60
        log.write_text("")
        follower.notice("rotated or cut")
        with log.open("a") as again:
            again.write(log_line("cut", 3))
        assert "cut" in follower.line()


def test_tail_of_a_log_can_be_filtered(tmp_path: Path) -> None:
    log = tmp_path / "log"
    lines = [log_line("rolled_back" if n % 10 == 0 else "blocks_committed", n) for n in range(50)]
    log.write_text("".join(lines) + "words\n")
    with tail("--log", log, "--event", "rolled_back", "--lines", "3", "--json") as some, log.open("a") as file:
        assert [json.loads(some.line())["height"] for _ in range(3)] == [20, 30, 40]
        file.write("words\n" + log_line("blocks_committed", 50) + log_line("rolled_back", 51))
        file.flush()
        assert some.line() + "\n" == log_line("rolled_back", 51)
        assert some.silent()


def test_tail_reads_a_log_from_standard_input() -> None:
    done = utxod("tail", "--log", "-", stdin=(log_line("listening", 7) + "words\n").encode())
    assert (done.returncode, done.stderr) == (0, b"")
    assert done.stdout.decode() == "2026-11-18 12:44:01 listening        height=7\nwords\n"
