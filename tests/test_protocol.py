"""The wire contract, sections 1 and 1.2: encodings, greetings and answers; what the decoder refuses is elsewhere."""

from __future__ import annotations

import struct
from pathlib import Path
from typing import Any

import pytest
from daemons import Client, Daemon, Encoding, Message, ack, encoded, error, running, statuses
from scenarios import back_to, block, chain, expected, output, point, tx

PERSISTED: Message = {"type": "BlockPersisted", "height": 1}


def test_hello_is_answered_by_welcome(client: Client) -> None:
    welcome = client.hello(seq=41)
    version = welcome.pop("version")
    assert isinstance(version, str) and version
    promised = {
        "type": "Welcome",
        "seq": 41,
        "protocol": 1,
        "chain": {"family": "cardano", "network": "mainnet"},
        "tip": None,
        "points": [],
        "rollback_floor": None,
        "persisted_height": None,
    }
    assert {name: welcome[name] for name in promised} == promised


REGTEST = {"family": "bitcoin", "network": "regtest"}


def test_welcome_has_the_chain_its_tip_and_points_of_it(tmp_path: Path, encoding: Encoding) -> None:
    blocks = chain(40)
    with running(tmp_path, chain=REGTEST, utxo={"rollback_window": 25}) as daemon, daemon.client(encoding) as client:
        assert statuses(client.feed([*blocks, PERSISTED | {"height": 17}])) == ["applied"] * 40 + ["accepted"]
        welcome = client.hello()
        assert welcome["chain"] == REGTEST
        assert welcome["tip"] == point(blocks[-1])
        assert welcome["rollback_floor"] == point(blocks[39 - 25])
        assert welcome["persisted_height"] == 17
        back = [0, 1, 2, 4, 8, 16, 25]  # newest first, thinning out exponentially, down to the floor
        assert welcome["points"] == [point(blocks[39 - steps]) for steps in back]


def test_welcome_has_the_tip_after_the_last_messages_of_a_feeder_that_left(daemon: Daemon) -> None:
    """Otherwise a new feeder would begin at a block that is no longer the tip."""
    parent, blocks = None, []
    for height in range(1, 61):
        outputs = [output("ann", n) for n in range(50)]
        parent = block(parent, *(tx(f"{height}/{n}", *outputs) for n in range(10)))
        blocks.append(parent)
    with daemon.client() as feeder:
        feeder.feed(blocks[:1])
        feeder.send(*blocks[1:])
    with daemon.client() as other:
        assert other.hello()["tip"] == point(blocks[-1])


def test_hello_is_optional_and_may_come_again(client: Client) -> None:
    blocks = chain(2)
    ack(client.ask(blocks[0]), "applied", point(blocks[0]))
    assert client.hello()["tip"] == point(blocks[0])
    ack(client.ask(blocks[1]), "applied", point(blocks[1]))
    client.send({"type": "Hello"})
    answer = client.receive()
    assert answer is not None and (answer["type"], answer["seq"]) == ("Welcome", None)
    assert client.hello(network_tip={"height": 7})["tip"] == point(blocks[1])


def test_network_tip_lets_the_daemon_catch_up(tmp_path: Path) -> None:
    """Deeper below the announced tip than every window there are no undo logs, and the floor is the tip."""
    blocks = chain(30)
    tables: Message = {"utxo": {"rollback_window": 5, "prune_depth": 3}}
    with running(tmp_path, **tables) as daemon, daemon.client() as client:
        client.hello(network_tip={"height": 1000})
        assert statuses(client.feed(blocks[:20])) == ["applied"] * 20
        assert client.hello()["rollback_floor"] == point(blocks[19])
        error(client.ask(back_to(blocks[18])), "beyond_rollback_floor")
        client.hello(network_tip={"height": 30})  # the tip is within the window
        assert statuses(client.feed(blocks[20:])) == ["applied"] * 10
        assert client.hello()["rollback_floor"] == point(blocks[24])
        ack(client.ask(back_to(blocks[25])), "rolled_back", point(blocks[25]))
        assert daemon.export() == expected(blocks[:26])


def test_the_first_byte_chooses_the_encoding(daemon: Daemon) -> None:
    with daemon.client("frames") as client:
        client.raw(b"[1]\n")  # the length of a frame: 1.5 GB
        error(client.receive(), "malformed", None)
        assert client.receive() is None
    with daemon.client("json") as client:
        client.raw(b'{ "seq" : 5 ,\t"type" : "Hello" }\r\n')
        assert client.receive() is not None
        client.raw(b"\0\0\0\1\x80\n")  # a line that is not JSON
        error(client.receive(), "malformed", None)
        assert client.hello()


def test_a_message_may_come_in_pieces_with_its_fields_in_any_order(client: Client) -> None:
    first = block(None, tx("a", output("ann"))) | {"seq": 3}
    for byte in encoded(dict(reversed(list(first.items()))), client.encoding):
        client.raw(bytes((byte,)))
    ack(client.receive(), "applied", point(first), 3)


def test_answers_come_in_the_order_of_the_messages(client: Client) -> None:
    one, two, three = chain(3)
    cases: list[tuple[Message, str]] = [
        (one, "applied"),
        (one, "duplicate"),
        ({"type": "Nonsense"}, "unknown_type"),
        (two, "applied"),
        ({"type": "BlockApplied"}, "malformed"),
        (back_to(two), "noop"),
        (back_to(one), "rolled_back"),
        (three, "gap"),
        (block(None, branch="other"), "fork"),
        (PERSISTED, "accepted"),
        (PERSISTED, "duplicate"),
        ({"type": "NodeState", "state": "running", "height": 1}, "accepted"),
        ({"type": "TxUnlocked", "txids": [bytes(32)]}, "TX_NOT_FOUND"),
        (back_to("origin"), "rolled_back"),
        (back_to("origin"), "noop"),
        ({"type": "GenesisOutputs", "outputs": []}, "accepted"),
        ({"type": "GenesisOutputs", "outputs": []}, "duplicate"),
        (one, "applied"),
    ]
    answers = client.feed((message for message, _ in cases), first_seq=100)
    assert [answer["seq"] for answer in answers] == list(range(100, 100 + len(cases)))
    assert statuses(answers) == [status for _, status in cases]
    places = [point(one), point(one), None, point(two), None, point(two), point(one), None, None, point(one)]
    assert [answer.get("tip") for answer in answers][:10] == places
    assert [answer["tip"] for answer in answers[-5:]] == [None, None, None, None, point(one)]


def test_without_a_number_there_is_no_acknowledgement_but_there_are_errors(client: Client) -> None:
    one, two = chain(2)
    client.send(one, {"type": "Nonsense"}, two, block(None, branch="other"), PERSISTED, PERSISTED | {"height": -1})
    error(client.receive(), "unknown_type", None)
    error(client.receive(), "fork", None)
    error(client.receive(), "malformed", None)
    assert client.silent()
    assert client.hello()["tip"] == point(two)


def test_any_number_is_echoed(client: Client) -> None:
    for seq in (0, -7, 2**63, 2**64 - 1, -(2**63)):
        ack(client.ask({"type": "NodeState", "state": "running", "height": 1, "seq": seq}), "accepted", None, seq)
        error(client.ask({"type": "Nonsense", "seq": seq}), "unknown_type", seq)
        assert client.hello(seq=seq)["seq"] == seq


def test_what_is_no_message_is_malformed_and_the_connection_continues(client: Client) -> None:
    assert client.hello()
    for kind in ("Nonsense", "blockapplied", "Ack", "BlockCommitted", "", "BlockApplied "):
        error(client.ask({"type": kind}), "unknown_type")
    wrongs: list[Message] = [{"type": 5}, {"type": None}, {"type": []}, {"type": {}}, {"height": 1}]
    for message in (*wrongs, {"type": "BlockApplied"}):
        error(client.ask(message), "malformed")
    wrong = block(None) | {"txs": [tx(0, spends=[[bytes(32), -1]])]}
    answer = client.ask(wrong | {"seq": 8})
    error(answer, "malformed", 8)
    assert "`$.txs[0].inputs[0][1]`" in answer["message"]
    error(client.ask(wrong | {"seq": "first"}), "malformed", None)
    values: list[Any] = [[], 5, "Hello", None]
    for value in values:
        client.send(value)
        error(client.receive(), "malformed", None)
    error(client.ask({"type": "Hello", "client": "x" * 70_000}), "too_large")
    error(client.ask({"type": "Subscribe", "events": ["Pruned"] * 12_000}), "too_large")
    assert client.hello()["tip"] is None


def test_a_line_that_is_not_json(daemon: Daemon) -> None:
    one, two = chain(2)
    with daemon.client("json") as client:
        client.send(one | {"seq": 1})
        for nonsense in (b"nonsense", b"", b"{", b'{"type":"Hello"', b'{"type":"Hello"} {}', b"\xff\xfe", b'"\xff"'):
            client.raw(nonsense + b"\n")
        client.send(two | {"seq": 2})
        ack(client.receive(), "applied", point(one), 1)
        for _ in range(7):
            error(client.receive(), "malformed", None)
        ack(client.receive(), "applied", point(two), 2)


@pytest.mark.parametrize("body", [b"\xc1", b"", b"\x81", b"\x81\xa4type", b"\x81\xa4type\xa5Hello\xc0"])
def test_a_broken_frame_ends_the_connection(daemon: Daemon, body: bytes) -> None:
    one, two = chain(2)
    with daemon.client("frames") as client:
        client.raw(encoded(one | {"seq": 1}, "frames") + struct.pack(">I", len(body)) + body)
        client.send(two)
        ack(client.receive(), "applied", point(one), 1)
        error(client.receive(), "malformed", None)
        assert client.receive() is None
    with daemon.client("frames") as client:
        assert client.hello()["tip"] == point(one)


def test_a_message_larger_than_a_batch_is_applied(tmp_path: Path, encoding: Encoding) -> None:
    one = block(None, *(tx(f"large {n}", output(n, script_ref=b"s" * 10_000)) for n in range(600)))
    two = chain(1, one)[0]
    with running(tmp_path, batch={"max_bytes": "1MiB"}) as daemon, daemon.client(encoding) as client:
        assert statuses(client.feed([one, two])) == ["applied", "applied"]
        assert daemon.export() == expected([one, two])
