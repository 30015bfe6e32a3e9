"""Memory stays flat however many messages are refused, for any reason, and however many clients come and go."""

from __future__ import annotations

import struct
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import pytest
from daemons import Client, Daemon, Encoding, Message, as_user, encoded, only_root, running
from scenarios import at, back_to, block, chain, digest, tx

from daemon.metrics import CODES

MIB = 1 << 20
LONG = 1 << 19
LONGEST = 2 * LONG + (1 << 16)  # JSON has two characters a byte
TIMES = 36  # together 18 MiB, were they kept
MOST = 12 * MIB
PADDING: Message = {"raw": bytes(LONG)}
PADDING_OF_OUTPUT: Message = {"inline_datum": bytes(LONG)}
BLOCKS = chain(12)
TABLES: dict[str, Any] = {
    "socket": {"max_frame_bytes": LONGEST},
    "utxo": {"rollback_window": 3, "prune_depth": 3},
    "transactions": {"batch_size": 10},
}


def long_block(parent: Message | None, branch: str = "long") -> Message:
    return block(parent, tx(branch, **PADDING), branch=branch)


# Refused to a client that is not the feeder, and to the feeder.
TO_OTHERS: list[tuple[str, Message]] = [
    ("feeder_busy", long_block(None)),
    ("unknown_type", {"type": "Nonsense", "x": bytes(LONG)}),
]
PAYS = {"address": b"a", "value": 1}
KNOWN = [BLOCKS[-1]["txs"][0]["txid"], 0]
TO_THE_FEEDER: list[tuple[str, Message]] = [
    ("gap", long_block(block(BLOCKS[-1]))),
    ("gap", {"type": "BlockPersisted", "height": 1 << 40}),
    ("fork", long_block(BLOCKS[3])),
    (
        "fork",
        {"type": "GenesisOutputs", "outputs": [{"txid": digest("g"), "index": 0, "output": PAYS | PADDING_OF_OUTPUT}]},
    ),
    ("unknown_point", {"type": "Rollback", "to": {"hash": digest("nowhere")}}),
    ("unknown_point", {"type": "BlockPersisted", "height": 12, "hash": digest("nowhere")}),
    ("beyond_rollback_floor", back_to(BLOCKS[0])),
    ("malformed", {"type": "BlockApplied", "height": 13, "hash": b"short", "txs": [tx("x", **PADDING)]}),
    ("malformed", {"type": "TxSubmitted", "tx": tx("x", inptus=[], **PADDING)}),
    ("malformed", {"type": "TxSubmitted", "tx": tx("x", previous=[None], **PADDING)}),
    ("PROCESSING", {"type": "TxSubmitted", "tx": tx("x", **PADDING)}),
    ("TX_NOT_FOUND", {"type": "TxUnlocked", "txids": [digest(n) for n in range(2000)]}),
    ("UTXO_NOT_FROZEN", {"type": "OutputsUnfrozen", "outpoints": [KNOWN] * 2000}),
    ("UTXO_NOT_FROZEN", {"type": "OutputReassigned", "outpoint": KNOWN, "address": bytes(LONG)}),
    (
        "UTXO_ERROR",
        {"type": "TxSubmitted", "tx": tx("y", PAYS, spends=[at("nobody", n) for n in range(200)], **PADDING)},
    ),
    # more outputs than a page has: carried out in commits of its own
    ("UTXO_ERROR", {"type": "TxSubmitted", "tx": tx("z", *([PAYS] * 20), spends=[at("nobody")], **PADDING)}),
]


@contextmanager
def flat(daemon: Daemon) -> Iterator[None]:
    before = daemon.memory()
    yield
    grown = daemon.memory() - before
    assert grown < MOST, f"{grown:,} bytes more"


def refuse(client: Client, message: Message, code: str, times: int = TIMES) -> None:
    sent = encoded({"seq": 1} | message, client.encoding)
    for _ in range(times):
        client.raw(sent)
        answer = client.receive()
        assert answer is not None and answer.get("code") == code, answer


def refuse_all(daemon: Daemon, client: Client, refused: Sequence[tuple[str, Message]], times: int = TIMES) -> None:
    """See that none of these is kept, after each has taken for good what it takes the first time."""
    for code, message in refused:
        refuse(client, message, code, TIMES)
    for code, message in refused:
        with flat(daemon):
            refuse(client, message, code, times)


def test_what_is_refused_is_not_kept(tmp_path: Path) -> None:
    with running(tmp_path, **TABLES) as daemon, daemon.client("frames") as feeder, daemon.client("frames") as other:
        feeder.feed(BLOCKS)
        refuse_all(daemon, other, TO_OTHERS)
        refuse_all(daemon, feeder, TO_THE_FEEDER)
        with daemon.client("json") as line:
            refuse_all(daemon, line, TO_OTHERS)


def test_every_code_that_is_counted_has_its_test() -> None:
    elsewhere = {"PENDING_FULL", "not_permitted", "store_full", "too_large", "unavailable"}  # below
    cut_off = {"too_slow"}  # ends a connection: `test_outbox`
    of_subscribe = {"gone", "unknown_sequence"}  # a short message, answered at once: `test_subscribe_from`
    assert set(CODES) <= {code for code, _ in (*TO_OTHERS, *TO_THE_FEEDER)} | elsewhere | cut_off | of_subscribe


def test_submissions_without_space_are_not_kept(tmp_path: Path) -> None:
    limits = {"batch_size": 10, "max_pending_count": 1, "max_pending_bytes": 2 * LONG}
    with running(tmp_path, **TABLES | {"transactions": limits}) as daemon, daemon.client("frames") as client:
        client.feed([*BLOCKS, {"type": "TxSubmitted", "tx": tx("first", PAYS)}])
        builds_on_it = {"spends": [at("first")], **PADDING}
        refused: list[tuple[str, Message]] = [
            ("PENDING_FULL", tx("next", PAYS, **builds_on_it)),
            ("PENDING_FULL", tx("large", *([PAYS] * 20), **builds_on_it)),
            ("too_large", tx("huge", *([PAYS] * 4500), **PADDING)),
        ]
        refuse_all(daemon, client, [(code, {"type": "TxSubmitted", "tx": each}) for code, each in refused])


def test_what_a_full_store_refuses_is_not_kept(tmp_path: Path) -> None:
    full = {"map_size": "8MiB", "max_map_size": "8MiB"}
    with running(tmp_path, **TABLES | {"storage": full}) as daemon, daemon.client("frames") as client:
        client.feed(BLOCKS)
        spends, answer, count = KNOWN, {"type": "Ack"}, 0
        while answer["type"] == "Ack":
            fill = tx(f"fill {count}", PAYS, spends=[spends], **PADDING)
            answer, spends, count = client.ask({"type": "TxSubmitted", "tx": fill}), at(f"fill {count}"), count + 1
        assert answer["code"] == "store_full"
        refused = [{"type": "TxSubmitted", "tx": fill}, block(BLOCKS[-1], tx("wide", PAYS | PADDING_OF_OUTPUT))]
        refuse_all(daemon, client, [("store_full", message) for message in refused], TIMES // 2)


@only_root
def test_what_is_not_permitted_is_not_kept() -> None:
    message = {"type": "OutputsFrozen", "outpoints": [at(n) for n in range(4000)]}
    with TemporaryDirectory() as name, running(Path(name), **TABLES) as daemon:
        Path(name).chmod(0o750)
        with as_user(65534):
            stranger = daemon.client("frames")
        with stranger:
            refuse_all(daemon, stranger, [("not_permitted", message)], 2 * TIMES)


def test_what_is_unavailable_is_not_kept(tmp_path: Path) -> None:
    tables = TABLES | {"transactions": {"enabled": False}}
    with running(tmp_path, **tables) as daemon, daemon.client("frames") as client:
        refuse_all(daemon, client, [("unavailable", {"type": "TxSubmitted", "tx": tx("x", **PADDING)})])


def lines_that_are_too_long(daemon: Daemon) -> None:
    with daemon.client("json") as client:
        for _ in range(TIMES):
            client.raw(b"{" + b"x" * LONGEST + b"\n")
            answer = client.receive()
            assert answer is not None and answer["code"] == "too_large"


def lines_that_are_not_json(daemon: Daemon) -> None:
    with daemon.client("json") as client:
        for _ in range(TIMES):
            client.raw(b'{"x":"' + b"x" * LONG + b"\n")
            answer = client.receive()
            assert answer is not None and answer["code"] == "malformed"


def frames_that_are_no_map(daemon: Daemon) -> None:
    for _ in range(TIMES):
        with daemon.client("frames") as client:
            client.raw(struct.pack(">I", LONG) + b"\xc1" * LONG)
            assert [answer["code"] for answer in client.rest()] == ["malformed"]


def frames_that_are_too_long(daemon: Daemon) -> None:
    for _ in range(2 * TIMES):
        with daemon.client("frames") as client:
            client.raw(struct.pack(">I", 2**31) + b"x" * 100_000)
            assert [answer["code"] for answer in client.rest()] == ["malformed"]


def frames_that_are_cut_off(daemon: Daemon) -> None:
    for _ in range(TIMES):
        with daemon.client("frames") as client:
            client.raw(struct.pack(">I", LONG) + b"x" * (LONG // 2))


def greetings_that_are_too_long(daemon: Daemon) -> None:
    with daemon.client("frames") as client:
        refuse(client, {"type": "Hello", "client": "x" * LONG}, "too_large")


def clients_that_come_and_go(daemon: Daemon) -> None:
    for n in range(500):
        with daemon.client() as client:
            if n % 2:
                client.send({"type": "Hello"}, {"type": "Subscribe", "events": ["BlockCommitted"]})


@pytest.mark.parametrize(
    "act",
    [
        lines_that_are_too_long,
        lines_that_are_not_json,
        frames_that_are_no_map,
        frames_that_are_too_long,
        frames_that_are_cut_off,
        greetings_that_are_too_long,
        clients_that_come_and_go,
    ],
)
def test_noise_is_not_kept(shared: Daemon, act: Callable[[Daemon], None]) -> None:
    act(shared)  # what the first time takes for good
    with flat(shared):
        act(shared)


@pytest.fixture(scope="module")
def shared(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Daemon]:
    with running(tmp_path_factory.mktemp("memory"), **TABLES) as daemon:
        yield daemon


WIDE = 12 * MIB
HEADS: dict[bytes, tuple[bytes, str]] = {
    b'{"type":"BlockApplied","height":1,"hash":"","txs":[': (b"\xa3txs", "where it belongs"),
    b'{"type":"BlockApplied","height":1,"hash":"","x":[': (b"\xa1x", "in an unknown field"),
    b'{"type":"BlockPersisted","height":1,"seq":[': (b"\xa3seq", "as the number"),
    b'{"type":[': (b"\xa4type", "as the type"),
}


@pytest.mark.parametrize("encoding", ["json", "frames"])
def test_a_message_takes_no_more_memory_than_it_has_bytes(tmp_path: Path, encoding: Encoding) -> None:
    """An empty list takes three characters of JSON or one byte of a frame, but 56 bytes as an object."""
    with running(tmp_path, socket={"max_frame_bytes": 2 * WIDE}) as daemon:
        for head, (name, where) in HEADS.items():
            with daemon.client(encoding) as client:
                client.hello()
                Path(f"/proc/{daemon.process.pid}/clear_refs").write_text("5")  # the most starts from now
                before = daemon.most_memory()
                if encoding == "json":
                    client.raw(head + b"[]," * (WIDE // 3) + b'0],"type":"BlockPersisted"}\n')
                else:
                    body = b"\x81" + name + b"\xdd" + struct.pack(">I", WIDE) + b"\x90" * WIDE
                    client.raw(struct.pack(">I", len(body)) + body)
                answer = client.receive()
                assert answer is not None and answer["code"] in {"malformed", "unknown_type"}, (
                    where
                )  # two types: either
                assert daemon.most_memory() - before < 6 * WIDE, where  # the buffer, the message, and reading ahead
