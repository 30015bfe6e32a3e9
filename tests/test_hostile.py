"""Whatever a client sends, other clients and the state are not touched: an honest feeder goes on through all of it."""

from __future__ import annotations

import json
import resource
import socket
import struct
from collections.abc import Iterator
from contextlib import ExitStack, suppress
from pathlib import Path
from random import Random
from threading import Event, Thread
from time import monotonic, sleep
from typing import Any

import msgspec
import pytest
from daemons import PATIENCE_S, Client, Daemon, Encoding, Message, encoded, running
from hypothesis import example, given, settings
from hypothesis import strategies as st
from patience import patience
from scenarios import at, block, chain, digest, expected, output, tx

MIB = 1 << 20
LONGEST = 8 * MIB
TABLES: dict[str, Any] = {
    "socket": {"max_frame_bytes": LONGEST},
    "batch": {"max_bytes": "1MiB", "max_delay_ms": 20},
    "utxo": {"rollback_window": 20, "prune_depth": 10},
}
CODES = {"malformed", "unknown_type", "too_large", "gap", "fork", "unknown_point", "beyond_rollback_floor"}
CODES |= {"feeder_busy", "unavailable"}
CODES |= {"UTXO_ERROR", "TX_EXISTS", "TX_NOT_FOUND", "PROCESSING"}
CODES |= {"UTXO_NOT_FOUND", "UTXO_NOT_FROZEN", "ALREADY_FROZEN", "SPENT"}
FACTS = {"BlockCommitted", "RolledBack", "Pruned", "TxStatusChanged"}


class Honest(Thread):
    """Feeds one block after the other, and notes how long each acknowledgement took."""

    def __init__(self, server: Daemon) -> None:
        super().__init__(daemon=True)
        self._server = server
        self.blocks: list[Message] = []
        self.slowest_s = 0.0
        self.memory = 0
        self.failure: BaseException | None = None
        self._enough = Event()

    def run(self) -> None:
        try:
            with self._server.client("frames") as client:
                while not self._enough.is_set():
                    self._feed(client)
        except Exception as failure:  # noqa: BLE001 - told by whoever waits for it
            self.failure = failure

    def _feed(self, client: Client) -> None:
        size = 2500 if len(self.blocks) % 5 == 0 else 5  # a long one now and then
        sent = chain(1, self.blocks[-1] if self.blocks else None, outputs=size)[0]
        began = monotonic()
        answer = client.ask(sent)
        self.slowest_s = max(self.slowest_s, monotonic() - began)
        assert answer.get("status") == "applied", answer
        self.blocks.append(sent)
        self.memory = max(self.memory, self._server.memory())
        sleep(0.002)

    def advance(self, blocks: int) -> None:
        """Wait until so many more are acknowledged."""
        goal, until = len(self.blocks) + blocks, monotonic() + PATIENCE_S
        while len(self.blocks) < goal:
            assert self.failure is None, self.failure
            assert monotonic() < until, "the honest feeder is held up"
            sleep(0.005)

    def stop(self) -> None:
        self._enough.set()
        self.join(PATIENCE_S)
        assert not self.is_alive(), "the honest feeder is held up"
        assert self.failure is None, self.failure


@pytest.fixture
def besieged(tmp_path: Path) -> Iterator[tuple[Daemon, Honest]]:
    """Give a daemon that is fed honestly; see at the end that nothing was touched."""
    with running(tmp_path, **TABLES) as daemon:
        honest = Honest(daemon)
        honest.start()
        try:
            honest.advance(10)
            before = daemon.memory()
            yield daemon, honest
            honest.advance(10)
        finally:
            honest.stop()
        assert honest.slowest_s < patience(5)
        assert honest.memory - before < 40 * MIB, f"{honest.memory - before:,} bytes more"
        assert daemon.export() == expected(honest.blocks)
        daemon.assert_sound()


def refused(answers: list[Message]) -> None:
    """Check that answers, if there are any, are errors of the contract."""
    for answer in answers:
        assert answer["type"] == "Error" and answer["code"] in CODES, answer


def spill(client: Client, data: bytes) -> list[Message]:
    """Send bytes, hang up on our side, and return what is answered until the other side does too."""
    with suppress(BrokenPipeError, ConnectionResetError):
        client.raw(data)
        client.socket.shutdown(socket.SHUT_WR)
    return client.rest()


# --- noise ---------------------------------------------------------------------------------------------------------


def test_random_bytes(besieged: tuple[Daemon, Honest]) -> None:
    daemon, honest = besieged

    @settings(max_examples=150)
    @given(
        st.binary(min_size=1, max_size=300), st.sampled_from([b"", b"{", b"\0\0\0\x20", b'{"type":', b"\0\0\1\0\x82"])
    )
    def send(noise: bytes, head: bytes) -> None:
        data = head + noise
        with daemon.client("json" if data[:1] == b"{" else "frames") as client:
            refused(spill(client, data))

    send()
    random = Random(4)
    for size in (10_000, 300_000, 2_000_000):
        for head in (b"{", b"", struct.pack(">I", size)):
            with daemon.client("json" if head == b"{" else "frames") as client:
                refused(spill(client, head + random.randbytes(size) + b"\n"))
    honest.advance(5)


def test_frames_that_are_cut_off(besieged: tuple[Daemon, Honest]) -> None:
    """A message of which a part is missing is none, and nothing of it is carried out."""
    daemon, _ = besieged
    whole = encoded({"type": "BlockPersisted", "height": 999, "seq": 1}, "frames")
    for length in range(len(whole)):
        with daemon.client("frames") as client:
            assert spill(client, whole[:length]) == []
    line = encoded({"type": "BlockPersisted", "height": 999, "seq": 1}, "json")
    for length in range(1, len(line) - 1, 5):
        with daemon.client("json") as client:
            assert spill(client, line[:length]) == []
    with daemon.client() as client:
        assert client.hello()["persisted_height"] is None


def test_lengths_that_are_lies(besieged: tuple[Daemon, Honest]) -> None:
    daemon, _ = besieged
    for length in (LONGEST + 1, 2**31, 2**32 - 1):
        with daemon.client("frames") as client:
            client.raw(struct.pack(">I", length) + b"x" * 1000)
            answer = client.receive()
            refused([answer] if answer else [])
            assert answer is not None and answer["code"] == "malformed"
            assert client.receive() is None
    head = msgspec.msgpack.encode({"type": "BlockPersisted", "height": 1})
    for tail in (b"\xdd", b"\xdf", b"\xc6", b"\xdb", b"\xc9"):  # inside the message: four billion of something
        for name in (b"\xa3txs", b"\xa6height", b"\xa1x"):
            body = bytes((head[0] + 1,)) + head[1:] + name + tail + b"\xff" * 4
            with daemon.client("frames") as client:
                answers = spill(client, struct.pack(">I", len(body)) + body)
                assert [answer["code"] for answer in answers] == ["malformed"]


def test_hundred_long_messages_that_never_end(besieged: tuple[Daemon, Honest]) -> None:
    """They announce eight megabytes each and stop in the middle: the honest feeder does not wait for their patience."""
    daemon, honest = besieged
    with ExitStack() as stack:
        for n in range(100):
            client = stack.enter_context(daemon.client("frames" if n % 2 else "json"))
            client.socket.setblocking(False)
            head = struct.pack(">I", LONGEST) if n % 2 else b'{"type":"'
            with suppress(BlockingIOError, ConnectionError):
                client.raw(head + b"x" * (90_000 + n * 1000))
        honest.advance(30)


def test_deep_nesting(besieged: tuple[Daemon, Honest]) -> None:
    daemon, _ = besieged
    for depth in (100, 10_000, 1_000_000):
        for opening in (b"[", b'{"a":'):
            for head in (b'{"a":', b'{"type":"Hello","a":', b'{"type":"BlockPersisted","height":', b'{"type":'):
                with daemon.client("json") as client:
                    client.raw(head + opening * depth + b"\n")
                    answer = client.receive()
                    assert answer is not None and answer["code"] in {"malformed", "too_large"}
                    assert client.hello()
        for opening in (b"\x91", b"\x81\xa1a"):
            body = b"\x82\xa4type\xaeBlockPersisted\xa6height" + opening * depth + b"\0"
            with daemon.client("frames") as client:
                answers = spill(client, struct.pack(">I", len(body)) + body)
                assert [answer["code"] for answer in answers] == ["malformed"]


@pytest.mark.parametrize("filler", [b"[],", b"{},", b"0,", b'"",', b"1e5,"])
def test_much_of_nothing(besieged: tuple[Daemon, Honest], filler: bytes) -> None:
    """Small things that cost much memory once decoded, as far as a message may be long."""
    daemon, honest = besieged
    count = MIB // len(filler)
    line = b'{"type":"NodeState","seq":1,"state":"running","height":1,"x":[' + filler * count + b"0]}\n"
    for _ in range(3):
        with daemon.client("json") as client:
            client.raw(line)
            answer = client.receive()
            assert answer is not None and answer["code"] == "malformed"
    honest.advance(3)


def test_a_line_without_an_end(besieged: tuple[Daemon, Honest]) -> None:
    daemon, honest = besieged
    with daemon.client("json") as client:
        client.raw(b"{")
        for _ in range(5):
            client.raw(b"x" * (LONGEST // 2))
            honest.advance(1)
        client.raw(b"\n")
        answer = client.receive()
        assert answer is not None and answer["code"] == "too_large"
        assert client.hello()  # and the connection goes on


# --- too many, too slow ----------------------------------------------------------------------------------------------


def test_a_thousand_idle_connections(besieged: tuple[Daemon, Honest]) -> None:
    daemon, honest = besieged
    with ExitStack() as stack:
        clients = [stack.enter_context(daemon.client("json" if n % 2 else "frames")) for n in range(1000)]
        for n, client in enumerate(clients):
            if n % 4 == 2:
                client.raw(b"\0\0\1\0")
            elif n % 4 == 3:
                client.raw(b'{"type":')
        honest.advance(10)
        for client in clients[::100]:
            assert client.hello()


@pytest.fixture(autouse=True, scope="module")
def enough_descriptors() -> Iterator[None]:
    """Let this process, and the daemons that it starts, open more than a thousand sockets."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (min(4096, hard), hard))
    yield
    resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))


def test_more_clients_than_descriptors(tmp_path: Path) -> None:
    """Those inside are served; the others are turned away and may come again."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (100, hard))
    try:
        daemon_context = running(tmp_path)
        daemon = daemon_context.__enter__()
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))
    try:
        with daemon.client() as early, ExitStack() as stack:
            early.hello()
            crowd = [stack.enter_context(daemon.client()) for _ in range(150)]
            assert [early.ask(sent)["status"] for sent in chain(3)] == ["applied"] * 3
            for client in crowd:
                with suppress(BrokenPipeError, ConnectionResetError):
                    client.send({"type": "Hello"})
            served = [client.receive(10) for client in crowd]
            assert served.count(None) > 100
            assert any(served)
        until = monotonic() + PATIENCE_S
        while True:
            with daemon.client() as late, suppress(BrokenPipeError, ConnectionResetError):
                late.send({"type": "Hello"})
                if (welcome := late.receive()) is not None:
                    break
            assert monotonic() < until
        assert welcome["tip"]["height"] == 3
    finally:
        daemon_context.__exit__(None, None, None)


@pytest.mark.parametrize("kind", ["Hello", "Nonsense", "NodeState"])
def test_a_client_that_sends_but_never_reads(besieged: tuple[Daemon, Honest], kind: str) -> None:
    daemon, honest = besieged
    fields = {"state": "running", "height": 1} if kind == "NodeState" else {}
    flood = encoded({"type": kind, "seq": 1} | fields, "frames") * 2000
    with daemon.client("frames") as client:
        client.socket.settimeout(0.5)
        until = monotonic() + PATIENCE_S
        while "client_too_slow" not in daemon.log_text():
            assert monotonic() < until
            with suppress(TimeoutError):
                try:
                    client.raw(flood)
                except ConnectionError:
                    break
        client.socket.settimeout(PATIENCE_S)
        honest.advance(5)
        assert client.rest()  # it may still hear what was on its way
    assert "client_too_slow" in daemon.events()


def test_a_frame_that_comes_byte_by_byte(besieged: tuple[Daemon, Honest]) -> None:
    daemon, honest = besieged
    message = encoded({"type": "BlockPersisted", "seq": 1, "height": 3}, "frames")
    with daemon.client("frames") as client:
        for byte in message:
            client.raw(bytes((byte,)))
            honest.advance(1)
        answer = client.receive()
        assert answer is not None and answer["status"] == "accepted"


def test_feeders_that_leave_in_the_middle(besieged: tuple[Daemon, Honest]) -> None:
    daemon, _ = besieged
    encodings: list[Encoding] = ["json", "frames"]
    for n in range(60):
        encoding = encodings[n % 2]
        message = encoded(block(None, *(tx(k, output(k)) for k in range(500)), branch="evil"), encoding)
        with daemon.client(encoding) as client:
            client.raw(message[: len(message) * (n % 7) // 6])  # some of them whole


def test_a_feeder_that_leaves_in_the_middle_of_a_block_can_be_followed(tmp_path: Path) -> None:
    blocks = chain(30)
    with running(tmp_path, **TABLES) as daemon:
        for n, sent in enumerate(blocks):
            encoding: Encoding = "json" if n % 2 else "frames"
            with daemon.client(encoding) as client:
                assert client.ask(sent)["status"] == "applied"
                message = encoded(block(sent), encoding)
                client.raw(message[: len(message) // 2])
        assert daemon.export() == expected(blocks)
        daemon.assert_sound()


# --- wrong types everywhere ------------------------------------------------------------------------------------------

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
    """Return a valid message with up to three of its parts exchanged, removed, or said twice."""
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


@pytest.mark.parametrize("encoding", ["json", "frames"])
def test_wrong_types_everywhere(tmp_path: Path, encoding: Encoding) -> None:
    """Each message gets one answer, the connection goes on, and what was right about them leaves a sound store."""
    seen: dict[str, int] = {}
    with running(tmp_path, **TABLES) as daemon, daemon.client(encoding) as client:

        @settings(max_examples=600)
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
        assert daemon.memory() < 200 * MIB
        daemon.assert_sound()
    assert {"malformed", "unknown_type", "TX_NOT_FOUND", "applied", "accepted", "welcome"} <= set(seen), seen


def test_wrong_types_from_a_stranger(besieged: tuple[Daemon, Honest]) -> None:
    """Beside an honest feeder nothing of it moves the chain."""
    daemon, _ = besieged
    with daemon.client("json") as client, daemon.client("frames") as other:

        @settings(max_examples=200)
        @given(mutated())
        def send(message: Message) -> None:
            for stranger in (client, other):
                stranger.send(message)
                for answer in until_answered(stranger, 77_777_777):
                    assert answer["type"] in {"Ack", "Welcome"} or answer["code"] in CODES
                    assert answer.get("status") in {None, "accepted", "duplicate"}

        send()


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
def test_lines_from_a_collection_of_horrors(shared: Daemon, line: bytes) -> None:
    with shared.client("json") as client:
        assert client.ask({"type": "Rollback", "to": "origin"})["type"] == "Ack"
        client.raw(line + b"\n")
        answer = client.receive()
        assert answer is not None and answer["code"] in {"malformed", "unknown_type"}, answer
        assert client.hello()


@pytest.fixture(scope="module")
def shared(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Daemon]:
    with running(tmp_path_factory.mktemp("shared"), **TABLES) as daemon:
        yield daemon
