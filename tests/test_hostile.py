"""Hostile messages disturb neither other clients nor the state; crowds and random bytes are in `tests/attack`."""

from __future__ import annotations

import socket
import struct
from collections.abc import Iterator
from contextlib import suppress
from typing import Any

import msgspec
import pytest
from daemons import Client, Daemon, Encoding, Message, encoded, running, statuses
from scenarios import back_to, block, chain, expected
from test_message_schema import INBOUND, changed

from handlers.events import Subscribe

MIB = 1 << 20
LONGEST = 8 * MIB
TABLES: dict[str, Any] = {
    "socket": {"max_frame_bytes": LONGEST},
    "batch": {"max_bytes": "1MiB", "max_delay_ms": 20},
    "utxo": {"rollback_window": 20, "prune_depth": 10},
}
CODES = {"malformed", "unknown_type", "too_large", "gap", "fork", "unknown_point", "beyond_rollback_floor"}
CODES |= {"feeder_busy", "unavailable", "UTXO_ERROR", "TX_EXISTS", "TX_NOT_FOUND", "PROCESSING"}
CODES |= {"UTXO_NOT_FOUND", "UTXO_NOT_FROZEN", "ALREADY_FROZEN", "SPENT"}
ENCODINGS: list[Encoding] = ["json", "frames"]


@pytest.fixture(scope="module")
def unfed(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Daemon]:
    """Yield a daemon without a feeder, to which every client may send everything."""
    with running(tmp_path_factory.mktemp("unfed"), **TABLES) as daemon:
        yield daemon
        daemon.assert_sound()


def spill(client: Client, data: bytes) -> list[str]:
    """Send bytes, shut down our side, and return the codes of what is answered until the daemon hangs up."""
    with suppress(BrokenPipeError, ConnectionResetError):
        client.raw(data)
        client.socket.shutdown(socket.SHUT_WR)
    return statuses(client.rest())


@pytest.mark.parametrize("encoding", ENCODINGS)
def test_a_message_that_is_cut_off_is_not_carried_out(unfed: Daemon, encoding: Encoding) -> None:
    whole = encoded({"type": "BlockPersisted", "height": 999, "seq": 1}, encoding)
    for length in range(0, len(whole) - 1, 3):
        with unfed.client(encoding) as client:
            assert spill(client, whole[:length]) == []
    with unfed.client() as client:
        assert client.hello()["persisted_height"] is None


def test_lengths_beyond_the_limit_or_the_message_are_malformed(unfed: Daemon) -> None:
    for length in (LONGEST + 1, 2**31, 2**32 - 1):
        with unfed.client("frames") as client:
            assert spill(client, struct.pack(">I", length) + b"x" * 1000) == ["malformed"]
    head = msgspec.msgpack.encode({"type": "BlockPersisted", "height": 1})
    for tail in (b"\xdd", b"\xdf", b"\xc6", b"\xdb", b"\xc9"):  # inside the message: four billion of something
        for name in (b"\xa3txs", b"\xa6height", b"\xa1x"):
            body = bytes((head[0] + 1,)) + head[1:] + name + tail + b"\xff" * 4
            with unfed.client("frames") as client:
                assert spill(client, struct.pack(">I", len(body)) + body) == ["malformed"]


def test_deep_nesting_is_malformed(unfed: Daemon) -> None:
    heads = (b'{"a":', b'{"type":"Hello","a":', b'{"type":"BlockPersisted","height":', b'{"type":')
    for depth in (100, 10_000, 1_000_000):
        with unfed.client("json") as client:
            for line in [head + opening * depth for opening in (b"[", b'{"a":') for head in heads]:
                client.raw(line + b"\n")
                answer = client.receive()
                assert answer is not None and answer["code"] in {"malformed", "too_large"}
            assert client.hello()
        for opening in (b"\x91", b"\x81\xa1a"):
            body = b"\x82\xa4type\xaeBlockPersisted\xa6height" + opening * depth + b"\0"
            with unfed.client("frames") as client:
                assert spill(client, struct.pack(">I", len(body)) + body) == ["malformed"]


def test_a_feeder_that_leaves_in_the_middle_of_a_block_can_be_followed(unfed: Daemon) -> None:
    blocks, encodings = chain(8), ENCODINGS * 4
    for encoding, sent in zip(encodings, blocks, strict=True):
        with unfed.client(encoding) as client:
            assert client.ask(sent)["status"] == "applied"
            message = encoded(block(sent), encoding)
            client.raw(message[: len(message) // 2])
    assert unfed.export() == expected(blocks)
    with unfed.client() as client:
        assert client.ask(back_to("origin"))["status"] == "rolled_back"


def encodable(message: Message, encoding: Encoding) -> bool:
    try:
        encoded(message, encoding)
    except OverflowError:  # MessagePack has no such number
        return False
    return True


@pytest.mark.parametrize("encoding", ENCODINGS)
def test_every_changed_message_has_one_answer(unfed: Daemon, encoding: Encoding) -> None:
    plain = [msgspec.to_builtins(each, builtin_types=(bytes,)) for each in INBOUND if not isinstance(each, Subscribe)]
    whole = [{name: value for name, value in each.items() if value is not None and name != "seq"} for each in plain]
    messages = [other for message in whole for other in (message, *changed(message)) if isinstance(other, dict)]
    messages = [message for message in messages if encodable(message, encoding)]
    with unfed.client(encoding) as client:
        answers = client.feed(messages)
        assert client.hello()
    assert len(messages) > 1500 and sorted(answer["seq"] for answer in answers) == [*range(1, len(messages) + 1)]
    found = {answer.get("status") or answer.get("code") or answer["type"] for answer in answers}
    assert found - {"Welcome", "applied", "accepted", "duplicate", "rolled_back", "noop"} <= CODES
    assert {"malformed", "unknown_type", "gap", "applied", "accepted", "Welcome"} <= found
    assert unfed.memory() < 200 * MIB


@pytest.mark.parametrize(
    "line",
    [
        b'{"type":"Hello","seq":' + b"9" * 10_000 + b"}",
        b'{"type":"Hello","x":' + b"9" * 10_000 + b"}",
        b'{"type":"BlockApplied","height":1e400,"hash":""}',
        b'{"type":"BlockApplied","height":NaN,"hash":""}',
        b'{"type":"BlockApplied","height":1,"hash":"' + b"\\u0031" * 63 + b'"}',
        b'{"type":"BlockApplied","height":1,"hash":"' + "１".encode() * 64 + b'"}',
        b'{"type":"Hello","client":"\\ud800"}',
        b'{"type":"\\ud800"}',
        b'{"type":"Hello","client":"\xff"}',
        b'{"type":"Hello","cli\xffent":""}',
        b'{"type":"Hello","client":"a\0b"}',
        b'{"type":"Nonsense\\u0000"}',
        b'{"type":"' + b"x" * 100_000 + b'"}',
        b'{"type":"Rollback","to":"' + b"x" * 100_000 + b'"}',
        b'{"type":"BlockPersisted","height":1,"height":-1}',
        b"{}",
        b'{"":""}',
        b"{" + b'"a":1,' * 10_000 + b'"type":"Nonsense"}',
    ],
)
def test_lines_with_odd_values_are_refused(unfed: Daemon, line: bytes) -> None:
    with unfed.client("json") as client:
        assert client.ask({"type": "NodeState", "state": "running", "height": 1})["type"] == "Ack"
        client.raw(line + b"\n")
        answer = client.receive()
        assert answer is not None and answer["code"] in {"malformed", "unknown_type"}, answer
        assert client.hello()
