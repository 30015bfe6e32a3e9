"""`utxod send`: messages from a file or standard input, one by one, and what a real daemon answers."""

from __future__ import annotations

import json
import socket
from collections.abc import Iterator
from pathlib import Path
from threading import Thread

import pytest
from daemons import Daemon, Message, encoded, piped, running, statuses, utxod
from scenarios import back_to, block, chain, tx

from daemon.examples import SEQUENCE
from handlers import wire

BLOCKS = chain(3)
STRANGE: Message = {"type": "TxUnlocked", "txids": [b"\1" * 32]}  # which is not known


@pytest.fixture
def daemon(folder: Path) -> Iterator[Daemon]:
    with running(folder, chain={"family": "cardano", "network": "preview"}) as daemon:
        yield daemon


def lines(*messages: Message) -> bytes:
    return b"".join(encoded(message, "json") for message in messages)


def sent(daemon: Daemon, raw: bytes, *options: str) -> tuple[int, list[Message], str]:
    """Send from standard input; return exit code, answers, and standard error."""
    done = daemon.run("send", *options, "-", stdin=raw)
    return done.returncode, [json.loads(line) for line in done.stdout.splitlines()], done.stderr.decode()


@pytest.mark.parametrize("encoding", ["json", "frames"])
def test_the_examples_are_sent_from_a_file(daemon: Daemon, folder: Path, encoding: wire.Encoding) -> None:
    (folder / "story").write_bytes(b"".join(wire.encode(message, encoding) for message in SEQUENCE[:-1]))
    done = daemon.run("send", folder / "story")
    received = [json.loads(line) for line in done.stdout.splitlines()]
    assert (done.returncode, done.stderr) == (0, b"")
    assert [answer["seq"] for answer in received if "seq" in answer] == [message.seq for message in SEQUENCE[:-1]]
    assert {"Welcome", "Ack", "BlockCommitted", "TxStatusChanged"} <= {answer["type"] for answer in received}


def test_messages_without_a_number_get_one(daemon: Daemon) -> None:
    code, received, text = sent(daemon, lines({"type": "Hello"}, BLOCKS[0], {"seq": 70} | BLOCKS[1], BLOCKS[2]))
    assert (code, text) == (0, "")
    assert [answer["seq"] for answer in received] == [1, 2, 70, 4]
    assert [answer.get("status") for answer in received] == [None, "applied", "applied", "applied"]


def test_send_ends_at_the_first_refused_message(daemon: Daemon) -> None:
    code, received, text = sent(daemon, lines(BLOCKS[0], STRANGE, BLOCKS[1]))
    assert (code, statuses(received), text) == (1, ["applied", "TX_NOT_FOUND"], "Error: the daemon refused 1 message\n")
    code, received, text = sent(daemon, lines(STRANGE, STRANGE, BLOCKS[1]), "--keep-going")
    assert (code, statuses(received)) == (1, ["TX_NOT_FOUND", "TX_NOT_FOUND", "applied"])
    assert text == "Error: the daemon refused 2 messages\n"
    code, received, text = sent(daemon, lines(BLOCKS[2], back_to("origin") | {"too": 1}))
    assert (code, statuses(received)) == (1, ["applied"])
    assert text == "Error: standard input: line 2: unknown field `too` - at `$.too`: did you mean `to`?\n"


def test_each_answer_is_printed_before_the_next_message_comes(daemon: Daemon) -> None:
    with piped("send", "--socket", daemon.socket, "-", UTXOD_CONFIG=str(daemon.config)) as process:
        assert process.stdin is not None and process.stdout is not None
        for message in BLOCKS:
            process.stdin.write(lines(message))
            process.stdin.flush()
            assert json.loads(process.stdout.readline())["tip"]["height"] == message["height"]
        process.stdin.close()
        assert process.wait() == 0


def test_a_long_message_and_no_daemon(daemon: Daemon) -> None:
    code, received, _ = sent(daemon, lines(block(None, *(tx(n) for n in range(20_000)))))
    assert (code, statuses(received)) == (0, ["applied"])
    assert daemon.term() == 0
    code, received, text = sent(daemon, lines(BLOCKS[0]))
    assert (code, received) == (1, [])
    assert text.startswith(f"Error: no daemon answers on {daemon.socket} (")


@pytest.mark.parametrize("hangs_up", [False, True])
def test_a_daemon_that_is_silent_or_hangs_up(folder: Path, hangs_up: bool) -> None:
    path = folder / "s"
    with socket.socket(socket.AF_UNIX) as listener:
        listener.bind(str(path))
        listener.listen()
        leaving = Thread(target=lambda: listener.accept()[0].close() if hangs_up else None)
        leaving.start()
        done = utxod("send", "--socket", path, "--wait", "0.5", "-", stdin=lines(BLOCKS[0]), cwd=folder)
        leaving.join()
    assert (done.returncode, done.stdout) == (1, b"")
    silent = f"Error: the daemon on {path} has not answered within 0.5 s\n"
    assert done.stderr.decode().startswith(f"Error: no daemon answers on {path} (" if hangs_up else silent)
