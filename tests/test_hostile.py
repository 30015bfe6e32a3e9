"""Hostile messages disturb neither other clients nor the state; crowds and random bytes are in `tests/attack`."""

from __future__ import annotations

import json
import socket
import struct
from collections.abc import Iterator
from contextlib import suppress
from typing import Any

import msgspec
import pytest
from daemons import Client, Daemon, Encoding, Message, encoded, running, statuses
from hypothesis import example, given, settings
from hypothesis import strategies as st
from scenarios import at, back_to, block, chain, digest, expected, output, tx

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
FACTS = {"BlockCommitted", "RolledBack", "Pruned", "TxStatusChanged"}


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


RICH = output("ann", 5, assets=[[digest("policy", size=28), b"name", 7]], datum_hash=digest("d"), inline_datum=b"i")
VALID: list[Message] = [
    block(None, tx("a", RICH, output("bob"), fee=1, size=2, raw=b"raw")) | {"time": 9, "epoch": 8, "era": "e"},
    block(None, tx("b", spends=[at("a")], valid=False, collateral=[at("a", 1)], collateral_return=output("cid"))),
    block(None) | {"slot": None, "prev_hash": None},
    {"type": "Rollback", "to": {"slot": 20, "hash": digest("x"), "height": 1}},
    {"type": "Rollback", "to": "origin"},
    {"type": "BlockPersisted", "height": 1, "hash": digest("x")},
    {"type": "GenesisOutputs", "outputs": [{"txid": digest("g"), "index": 0, "output": RICH}]},
    {"type": "NodeState", "state": "running", "height": 1},
    {"type": "Hello", "client": "x", "network_tip": {"height": 5}},
    {"type": "Subscribe", "events": ["BlockCommitted", "Pruned"]},
    {"type": "TxSubmitted", "tx": tx("c", RICH), "locked": True},
    {"type": "TxMined", "txids": [digest("m")], "block_id": 1, "height": 2, "subtree_index": 3},
    {"type": "OutputsFrozen", "outpoints": [at("a")]},
    {"type": "OutputReassigned", "outpoint": at("a"), "address": b"\x61"},
    {"type": "TxPreserved", "txids": [digest("m")], "until": 5},
    {"type": "TxMined", "txids": [digest("tx", "a")], "block_id": 1, "height": 2, "subtree_index": 3},
    {"type": "TxPreserved", "txids": [digest("tx", "a")], "until": 5},
]
INTEGERS = st.integers(-(2**63), 2**64 - 1) | st.sampled_from([0, -1, 2**32, 2**63, -(2**63), 2**64 - 1])
SCALARS = st.none() | st.booleans() | INTEGERS | st.floats(allow_nan=False, allow_infinity=False)
LEAVES = SCALARS | st.text(max_size=8) | st.binary(max_size=40)
VALUES = st.recursive(
    LEAVES,
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=5), inner, max_size=3),
    max_leaves=8,
)


@st.composite
def mutated(draw: st.DrawFn) -> Message:
    """Return a valid message with up to three of its parts exchanged, removed, or repeated."""
    message: Message = json.loads(json.dumps(draw(st.sampled_from(VALID)), default=lambda raw: {"bytes": raw.hex()}))
    message = revived({"seq": 5} | message)
    for _ in range(draw(st.integers(1, 3))):
        place: Any = message
        while True:
            keys: list[Any] = list(place) if isinstance(place, dict) else list(range(len(place)))
            if not keys:
                break
            key = draw(st.sampled_from(keys))
            if isinstance(place[key], dict | list) and place[key] and draw(st.booleans()):
                place = place[key]
                continue
            match draw(st.sampled_from(["exchange", "exchange", "remove", "again"])):
                case "exchange":
                    place[key] = draw(VALUES)
                case "remove":
                    del place[key]
                case _ if isinstance(place, list):
                    place.append(place[key])
            break
    return message


def revived(value: Any) -> Any:
    if isinstance(value, dict):
        if list(value) == ["bytes"]:
            return bytes.fromhex(value["bytes"])
        return {name: revived(item) for name, item in value.items()}
    return [revived(item) for item in value] if isinstance(value, list) else value


def until_answered(client: Client, number: int) -> list[Message]:
    """Return the answers before that of a message which marks their end."""
    client.send({"type": "NodeState", "state": "running", "height": 1, "seq": number})
    answers: list[Message] = []
    while (answer := client.receive()) is not None:
        if answer["type"] == "Ack" and answer["seq"] == number:
            return [answer for answer in answers if answer["type"] not in FACTS]
        answers.append(answer)
    raise AssertionError(f"the connection was closed after {answers}")


@pytest.mark.parametrize("encoding", ENCODINGS)
def test_wrong_types_everywhere(unfed: Daemon, encoding: Encoding) -> None:
    """Each message gets one answer, the connection stays open, and valid messages leave a sound store."""
    seen: dict[str, int] = {}
    with unfed.client(encoding) as client:

        @settings(max_examples=250)
        @given(mutated())
        @example({"type": "BlockApplied", "height": 1, "hash": digest("x"), "time": -(2**63) - 1, "seq": 5})
        @example({"type": "BlockApplied", "height": 1, "hash": digest("x"), "epoch": -(2**64) + 1, "seq": 5})
        @example({"type": "BlockApplied", "height": 2**64 - 1, "hash": digest("x"), "slot": 2**64 - 1, "seq": 5})
        @example({"type": "BlockPersisted", "height": 2**64, "seq": 10**30})
        @example({"type": "Nonsense", "seq": 5})
        @example({"type": "Hello", "seq": 5})
        @example({"type": "BlockPersisted", "height": 1, "seq": 5})
        def send(message: Message) -> None:
            numbers = [value for value in message.values() if isinstance(value, int)]
            if encoding == "frames" and any(not -(2**63) <= number < 2**64 for number in numbers):
                return  # MessagePack has no such numbers
            client.send(message)
            answers = until_answered(client, 77_777_777)
            assert len(answers) == 1 or (not answers and message.get("seq") is None), (message, answers)
            for answer in answers:
                assert answer["type"] in {"Ack", "Welcome"} or answer["code"] in CODES, (message, answer)
                expected_seq = message.get("seq") if type(message.get("seq")) is int else None
                assert answer["seq"] == expected_seq, (message, answer)
                seen[str(answer.get("status") or answer.get("code") or "welcome")] = 1

        send()
        assert unfed.memory() < 200 * MIB
    assert {"malformed", "unknown_type", "TX_NOT_FOUND", "applied", "accepted", "welcome"} <= set(seen), seen


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
