"""The wire contract, sections 1 and 1.2: encodings, greetings, answers and what is refused; both encodings."""

from __future__ import annotations

import struct
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from daemons import Client, Daemon, Encoding, Message, ack, encoded, error, running, statuses
from scenarios import back_to, block, chain, expected, output, point, tx

ONE = b"\x01" * 32
PERSISTED: Message = {"type": "BlockPersisted", "height": 1}


@pytest.fixture(scope="module")
def standing(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Daemon]:
    """Give a daemon that many tests share: it stays empty, for all of them are refused."""
    with running(tmp_path_factory.mktemp("standing")) as daemon:
        yield daemon
        with daemon.client() as client:
            assert client.hello()["tip"] is None


@pytest.fixture
def asker(standing: Daemon, encoding: Encoding) -> Iterator[Client]:
    with standing.client(encoding) as client:
        assert client.ask(back_to("origin"))["type"] == "Ack"
        yield client
        if client.socket.fileno() >= 0:
            assert client.hello()  # the connection goes on


# --- encodings -----------------------------------------------------------------------------------------------------


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


def test_welcome_names_the_chain(tmp_path: Path) -> None:
    with running(tmp_path, chain={"family": "bitcoin", "network": "regtest"}) as daemon, daemon.client() as client:
        assert client.hello()["chain"] == {"family": "bitcoin", "network": "regtest"}


def test_welcome_says_where_we_are(tmp_path: Path, encoding: Encoding) -> None:
    blocks = chain(40)
    with running(tmp_path, utxo={"rollback_window": 25}) as daemon, daemon.client(encoding) as client:
        assert statuses(client.feed([*blocks, PERSISTED | {"height": 17}])) == ["applied"] * 40 + ["accepted"]
        welcome = client.hello()
        assert welcome["tip"] == point(blocks[-1])
        assert welcome["rollback_floor"] == point(blocks[39 - 25])
        assert welcome["persisted_height"] == 17
        back = [0, 1, 2, 4, 8, 16, 25]  # newest first, thinning out exponentially, down to the floor
        assert welcome["points"] == [point(blocks[39 - steps]) for steps in back]


def test_hello_is_optional_and_may_come_again(client: Client) -> None:
    blocks = chain(2)
    ack(client.ask(blocks[0]), "applied", point(blocks[0]))
    assert client.hello()["tip"] == point(blocks[0])
    ack(client.ask(blocks[1]), "applied", point(blocks[1]))
    assert client.hello(network_tip={"height": 7})["tip"] == point(blocks[1])


def test_hello_without_a_number_is_answered_too(asker: Client) -> None:
    asker.send({"type": "Hello"})
    answer = asker.receive()
    assert answer is not None and answer["type"] == "Welcome" and answer["seq"] is None


def test_network_tip_lets_the_daemon_catch_up(tmp_path: Path, encoding: Encoding) -> None:
    """Deeper below the announced tip than every window no way back is kept, and the floor says so."""
    blocks = chain(30)
    tables: Message = {"utxo": {"rollback_window": 5, "prune_depth": 3}}
    with running(tmp_path, **tables) as daemon, daemon.client(encoding) as client:
        client.hello(network_tip={"height": 1000})
        assert statuses(client.feed(blocks[:20])) == ["applied"] * 20
        assert client.hello()["rollback_floor"] == point(blocks[19])
        error(client.ask(back_to(blocks[18])), "beyond_rollback_floor")
        client.hello(network_tip={"height": 30})  # renewed: we are there
        assert statuses(client.feed(blocks[20:])) == ["applied"] * 10
        assert client.hello()["rollback_floor"] == point(blocks[24])
        ack(client.ask(back_to(blocks[25])), "rolled_back", point(blocks[25]))
        assert daemon.export() == expected(blocks[:26])


def test_first_byte_chooses_the_encoding(standing: Daemon) -> None:
    daemon = standing
    with daemon.client("frames") as client:
        client.raw(b"[1]\n")  # no line: a frame that says to be 1.5 GB long
        error(client.receive(), "malformed", None)
        assert client.receive() is None
    with daemon.client("json") as client:
        assert client.hello()
        client.raw(b"\0\0\0\1\x80\n")  # no frame: a line that is not JSON
        error(client.receive(), "malformed", None)
        assert client.hello()


def test_field_order_does_not_matter(client: Client) -> None:
    first = block(None, tx("a", output("ann")))
    ack(client.ask(dict(reversed(list(first.items())))), "applied", point(first))


def test_lines_may_end_as_on_windows_and_hold_blanks(standing: Daemon) -> None:
    with standing.client("json") as client:
        client.raw(b'{ "seq" : 5 ,\t"type" : "Hello" }\r\n')
        assert client.receive() is not None


def test_messages_may_come_in_pieces(client: Client) -> None:
    first = block(None, tx("a", output("ann")))
    for byte in encoded(first | {"seq": 3}, client.encoding):
        client.raw(bytes((byte,)))
    ack(client.receive(), "applied", point(first), 3)


# --- answers -------------------------------------------------------------------------------------------------------


def test_answers_come_in_the_order_of_the_messages(client: Client) -> None:
    one, two, three = chain(3)
    story: list[tuple[Message, str]] = [
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
        ({"type": "TxUnlocked", "txids": [ONE]}, "TX_NOT_FOUND"),
        (back_to("origin"), "rolled_back"),
        (back_to("origin"), "noop"),
        ({"type": "GenesisOutputs", "outputs": []}, "accepted"),
        ({"type": "GenesisOutputs", "outputs": []}, "duplicate"),
        (one, "applied"),
    ]
    answers = client.feed((message for message, _ in story), first_seq=100)
    assert [answer["seq"] for answer in answers] == list(range(100, 100 + len(story)))
    assert statuses(answers) == [status for _, status in story]
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


@pytest.mark.parametrize("seq", [0, -7, 2**63, 2**64 - 1, -(2**63)])
def test_any_number_is_echoed(client: Client, seq: int) -> None:
    ack(client.ask({"type": "NodeState", "state": "running", "height": 1, "seq": seq}), "accepted", None, seq)
    error(client.ask({"type": "Nonsense", "seq": seq}), "unknown_type", seq)
    assert client.hello(seq=seq)["seq"] == seq


def test_acknowledged_is_durable(tmp_path: Path, encoding: Encoding) -> None:
    blocks = chain(6)
    with running(tmp_path) as daemon:
        for n, sent in enumerate(blocks):
            with daemon.client(encoding) as client:
                ack(client.ask(sent), "applied", point(sent))
                daemon.kill()
            daemon.start()
            with daemon.client(encoding) as client:
                assert client.hello()["tip"] == point(blocks[n])
        assert daemon.export() == expected(blocks)


# --- what is refused -----------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("fields", "place"),
    [
        ({"txs": [tx(n) for n in range(3)] + [tx(3, spends=[[ONE[:31], 0]])]}, "$.txs[3].inputs[0][0]"),
        ({"txs": [tx(0, spends=[[ONE, 0], [ONE, -1]])]}, "$.txs[0].inputs[1][1]"),
        ({"txs": [tx(0, spends=[[ONE, 2**32]])]}, "$.txs[0].inputs[0][1]"),
        ({"txs": [tx(0, spends=[[ONE]])]}, "$.txs[0].inputs[0]"),
        ({"txs": [tx(0, output("ann"), output("bob", -1))]}, "$.txs[0].outputs[1].value"),
        ({"txs": [tx(0, output("ann", assets=[[ONE, b"", 1]]))]}, "$.txs[0].outputs[0].assets[0][0]"),
        ({"txs": [tx(0, output("ann", assets=[[ONE[:28], ONE + ONE, 1]]))]}, "$.txs[0].outputs[0].assets[0][1]"),
        ({"txs": [tx(0, output("ann", inline_datum=5))]}, "$.txs[0].outputs[0].inline_datum"),
        ({"txs": [tx(0, collateral_return={"value": 1})]}, "$.txs[0].collateral_return"),
        ({"txs": [{"inputs": []}]}, "$.txs[0]"),
        ({"txs": {}}, "$.txs"),
        ({"height": "1"}, "$.height"),
        ({"height": -1}, "$.height"),
        ({"height": 1.5}, "$.height"),
        ({"hash": ONE + ONE}, "$.hash"),
        ({"hash": None}, "$.hash"),
        ({"prev_hash": 17}, "$.prev_hash"),
        ({"time": "noon"}, "$.time"),
        ({"era": 6}, "$.era"),
        ({"slot": -1}, "$.slot"),
        ({"seq": "first"}, "$.seq"),
    ],
)
def test_malformed_says_where(asker: Client, fields: Message, place: str) -> None:
    wrong = block(None) | fields
    answer = asker.ask(wrong | {"seq": fields.get("seq", 8)})
    error(answer, "malformed", None if "seq" in fields else 8)
    assert f"`{place}`" in answer["message"]


@pytest.mark.parametrize("missing", ["height", "hash"])
def test_missing_fields_are_named(asker: Client, missing: str) -> None:
    wrong = {name: value for name, value in block(None).items() if name != missing}
    answer = asker.ask(wrong)
    error(answer, "malformed")
    assert f"`{missing}`" in answer["message"]


@pytest.mark.parametrize("text", [b"zz" * 32, b"1", b"11 11", "é".encode() * 32])
def test_bytes_are_hex_in_lines(standing: Daemon, text: bytes) -> None:
    with standing.client("json") as client:
        client.raw(b'{"type":"BlockPersisted","seq":1,"height":1,"hash":"%s"}\n' % text)
        answer = client.receive()
        error(answer, "malformed")
        assert answer is not None and "`$.hash`" in answer["message"]


def test_unknown_and_missing_types(asker: Client) -> None:
    for kind in ("Nonsense", "blockapplied", "Ack", "BlockCommitted", "", "BlockApplied "):
        error(asker.ask({"type": kind}), "unknown_type")
    wrongs: list[object] = [5, None, True, [], {}]
    for wrong in wrongs:
        error(asker.ask({"type": wrong}), "malformed")
    error(asker.ask({"height": 1}), "malformed")
    assert asker.hello()


def test_values_that_are_no_message(asker: Client) -> None:
    assert asker.hello()
    values: list[Any] = [[], 5, "Hello", None]
    for value in values:
        asker.send(value)
        error(asker.receive(), "malformed", None)
    assert asker.hello()


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


def test_too_long(tmp_path: Path, encoding: Encoding) -> None:
    one, two = chain(2)
    with running(tmp_path, socket={"max_frame_bytes": 4096}) as daemon, daemon.client(encoding) as client:
        long = {"type": "Hello", "seq": 2, "client": "x" * 5000}
        client.send(one | {"seq": 1}, long)
        ack(client.receive(), "applied", point(one), 1)
        if encoding == "json":
            error(client.receive(), "too_large", None)
            ack(client.ask(two), "applied", point(two))
        else:
            error(client.receive(), "malformed", None)
            assert client.receive() is None


def test_a_message_of_just_the_longest_size(tmp_path: Path, encoding: Encoding) -> None:
    message = {"type": "Hello", "seq": 1, "client": ""}
    frame = len(encoded(message, encoding)) - (1 if encoding == "json" else 4)
    with running(tmp_path, socket={"max_frame_bytes": 4096}) as daemon, daemon.client(encoding) as client:
        room = 4096 - frame - (0 if encoding == "json" else 2)  # a long string's length takes two bytes more
        assert client.ask(message | {"client": "x" * room})["type"] == "Welcome"
        client.send(message | {"client": "x" * (room + 1)})
        error(client.receive(), "too_large" if encoding == "json" else "malformed", None)


def test_a_message_larger_than_a_batch_goes_through(tmp_path: Path, encoding: Encoding) -> None:
    """A batch is one megabyte here: what is longer than several of them is taken in alone."""
    one = block(None, *(tx(f"large {n}", output(n, script_ref=b"s" * 10_000)) for n in range(600)))
    two = chain(1, one)[0]
    with running(tmp_path, batch={"max_bytes": "1MiB"}) as daemon, daemon.client(encoding) as client:
        assert statuses(client.feed([one, two])) == ["applied", "applied"]
        assert daemon.export() == expected([one, two])


def test_too_large_for_a_greeting(asker: Client) -> None:
    error(asker.ask({"type": "Hello", "client": "x" * 70_000}), "too_large")
    error(asker.ask({"type": "Subscribe", "events": ["Pruned"] * 12_000}), "too_large")
    assert asker.hello()
