"""Long submissions are decoded in pieces: with the same outcome as at once, also where something is wrong with one."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterator
from typing import Any

import msgspec
import pytest
from daemons import Client, Daemon, Encoding, Message, encoded
from scenarios import digest

from handlers import columns, wire
from handlers.events import TxSubmitted
from handlers.large_submission import LONG, LONGEST_JSON, MOST, PIECE, Outline, find, whole
from handlers.refusal import Refused

pytestmark = pytest.mark.configured(chain={"family": "bitcoin", "network": "regtest"})

MANY = 2 * PIECE + 17
BOTH = pytest.mark.parametrize("encoding", ["frames", "json"])


def body(message: Message, encoding: Encoding) -> bytes:
    return encoded(message, "json")[:-1] if encoding == "json" else msgspec.msgpack.encode(message)


def submitted(**more: Any) -> Message:
    """Return a submission of a transaction with outputs for three pieces."""
    outputs: list[Message] = [{"address": n.to_bytes(60, "big"), "value": n} for n in range(MANY)]
    outputs[5]["assets"] = [[digest("policy", size=28), b"name", 7]]
    tx = {"txid": digest("large"), "inputs": [[digest("parent"), 0]], "outputs": outputs, "fee": 7, "lock_time": 9}
    return {"type": "TxSubmitted", "seq": 3, "tx": tx | more.pop("tx", {})} | more


def found(frame: bytes | bytearray, encoding: Encoding = "frames") -> Outline:
    outline = find(frame, encoding)
    assert outline is not None
    return outline


def pieces(outline: Outline) -> tuple[TxSubmitted, int]:
    """Return a submission that was decoded in turns, and how many turns there were."""
    turns = 0

    async def turn(step: Callable[[], Any]) -> Any:
        nonlocal turns
        turns += 1
        return step()

    return asyncio.run(whole(outline, turn)), turns


@pytest.mark.parametrize(
    "more", [{}, {"locked": True, "on_spent": "record", "input_hashes": [None]}, {"tx": {"previous": [[5, b"\x01"]]}}]
)
@BOTH
def test_a_long_submission_is_what_it_is_at_once(more: Message, encoding: Encoding) -> None:
    message = body(submitted(**more), encoding)
    outline = found(message, encoding)
    assert (outline.txid, outline.outputs) == (digest("large"), MANY)
    made, turns = pieces(outline)
    assert made == wire.decode(message, encoding)
    assert type(made) is TxSubmitted and turns == -(-MANY // outline.piece) + 1


def test_a_frame_is_as_it_was_when_it_is_decoded() -> None:
    frame = bytearray(body(submitted(), "frames"))
    before = bytes(frame)
    pieces(found(frame))
    assert frame == before


def rearranged(message: Message, *last: str) -> Message:
    moved = {name: message[name] for name in sorted(message, key=last.__contains__)}
    return moved | {"tx": {name: message["tx"][name] for name in sorted(message["tx"], key=last.__contains__)}}


@pytest.mark.parametrize(
    ("last", "count"), [*((last, MANY) for last in ("txid", "outputs", "tx", "seq")), ("tx", 70_000)]
)
def test_fields_may_be_in_any_order(last: str, count: int) -> None:
    """The length of a list takes two bytes or four."""
    message = submitted()
    message["tx"]["outputs"] = [{"address": bytes(60), "value": n} for n in range(count)]
    frame = msgspec.msgpack.encode(rearranged(message, last))
    made, _ = pieces(found(frame))
    assert made == wire.decode(frame, "frames")


def entry(name: str, value: Any, *, long: bool) -> bytes:
    head = bytes([0xD9, len(name)]) if long else bytes([0xA0 | len(name)])
    return head + name.encode() + msgspec.msgpack.encode(value)


@pytest.mark.parametrize("long", [False, True])
@pytest.mark.parametrize("empty", [False, True])
def test_a_transaction_has_one_list_of_outputs(long: bool, empty: bool) -> None:
    message = submitted()
    again = [] if empty else message["tx"]["outputs"][:1]
    twice = b"".join(
        [
            b"\x83" + entry("txid", digest("large"), long=False),
            entry("outputs", message["tx"]["outputs"], long=False),
            entry("outputs", again, long=long),
        ]
    )
    frame = b"\x83" + entry("type", "TxSubmitted", long=False) + entry("seq", 1, long=False) + b"\xa2tx" + twice
    for each in (frame, b"\x84" + frame[1:] + entry("tx", message["tx"] | {"outputs": again}, long=long)):
        with pytest.raises(Refused, match="a transaction has one list of outputs"):
            pieces(found(each))


def test_only_long_frames_are_examined() -> None:
    message = submitted()
    message["tx"]["outputs"] = message["tx"]["outputs"][:100]
    frame = msgspec.msgpack.encode(message)
    assert len(frame) < LONG and find(frame, "frames") is None
    for encoding in ("frames", "json"):
        assert find(body(submitted(type="BlockApplied"), encoding), encoding) is None


@pytest.mark.parametrize("length", [LONG, -1], ids=["many missing", "one byte missing"])
def test_a_frame_that_ends_too_soon(length: int) -> None:
    with pytest.raises(Refused) as refused:
        pieces(found(msgspec.msgpack.encode(submitted())[:length]))
    assert (refused.value.refusal.code, refused.value.refusal.broken) == ("malformed", True)


def broken() -> Iterator[tuple[Message, str]]:
    late = 2 * PIECE + 3
    for change, reported in (
        ({"value": "7"}, f"Expected `int`, got `str` - at `$.tx.outputs[{late}].value`"),
        ({"adress": b""}, f"at `$.tx.outputs[{late}].adress`"),
    ):
        message = submitted()
        message["tx"]["outputs"][late] |= change
        yield message, reported
    yield submitted(tx={"fee": "seven"}), "Expected `int | null`, got `str` - at `$.tx.fee`"
    yield submitted(input_hashes=[None, None]), "at `$.input_hashes`"
    yield submitted(tx={"previous": []}), "at `$.tx.previous`"


@pytest.mark.parametrize(("message", "reported"), [*broken()], ids=["type", "name", "fee", "hashes", "previous"])
@BOTH
def test_what_is_wrong_is_named_as_at_once(message: Message, reported: str, encoding: Encoding) -> None:
    compare(body(message, encoding), encoding, reported)


@pytest.mark.parametrize(("changed", "name"), [({"address": "zz"}, "address"), ({"value": 1 << 64}, "value")])
def test_what_is_wrong_with_values_of_json_is_named_as_at_once(changed: Message, name: str) -> None:
    message, late = submitted(), 2 * PIECE + 3
    message["tx"]["outputs"][late] |= changed
    compare(body(message, "json"), "json", f"at `$.tx.outputs[{late}].{name}`")


def compare(message: bytes, encoding: Encoding, reported: str) -> None:
    with pytest.raises(Refused) as at_once:
        wire.decode(message, encoding)
    with pytest.raises(Refused) as in_pieces:
        outline = find(message, encoding)
        pieces(outline) if outline is not None else wire.decode(message, encoding)
    assert in_pieces.value.refusal == at_once.value.refusal
    assert reported in in_pieces.value.refusal.message


@pytest.mark.parametrize("place", ["tx.inputs", "tx.previous", "tx.datums", "input_hashes"])
def test_lists_that_are_too_long_are_refused_before_they_are_decoded(place: str) -> None:
    name = place.removeprefix("tx.")
    entries: list[Any] = [[digest("parent"), 0] if name == "inputs" else b"\x01"] * (MOST + 1)
    message = submitted(tx={name: entries}) if "." in place else submitted(**{name: entries})
    frame = msgspec.msgpack.encode(message)
    for decode in (lambda: columns.decode(frame, "frames"), lambda: pieces(found(frame))):
        with pytest.raises(Refused, match=f"100,001 entries .* at `\\$.{place}`") as refused:
            decode()
        assert refused.value.refusal.code == "too_large"


def ask(client: Client, message: Message) -> Message:
    client.send(message)
    answer = client.receive()
    assert answer is not None
    return answer


def test_a_daemon_accepts_and_refuses_long_submissions(daemon: Daemon) -> None:
    parent = {"txid": digest("parent"), "outputs": [{"address": b"\x51", "value": 9}]}
    long = {"txid": digest("long"), "outputs": [{"address": bytes(LONG), "value": 1}]}  # long, but one commit
    bad, _ = next(broken())
    with daemon.client("frames") as client:
        assert ask(client, {"type": "TxSubmitted", "seq": 1, "tx": parent})["status"] == "accepted"
        refused = ask(client, bad)
        assert refused["code"] == "malformed" and f"outputs[{2 * PIECE + 3}].value" in refused["message"]
        assert ask(client, {"type": "TxSubmitted", "seq": 2, "tx": long})["status"] == "accepted"
        assert ask(client, submitted())["status"] == "accepted"
        assert ask(client, submitted())["status"] == "duplicate"
    assert str(MANY).encode() in daemon.run("query", "tx", digest("large").hex(), "--json").stdout
    daemon.assert_sound()


def test_what_takes_long_in_one_turn_is_refused(daemon: Daemon) -> None:
    small, large = {"address": b"\x51", "value": 1}, {"address": bytes(LONGEST_JSON // 2), "value": 1}
    many = {"txid": digest("many"), "inputs": [[digest(f"{n}"), 0] for n in range(MOST + 1)], "outputs": [small]}
    line = {"type": "TxSubmitted", "seq": 2, "tx": {"txid": digest("long"), "outputs": [large]}}
    with daemon.client("json") as client:
        answer = ask(client, {"type": "TxSubmitted", "seq": 1, "tx": many})
        assert answer["code"] == "too_large" and "$.tx.inputs" in answer["message"]
        answer = ask(client, line)
        assert answer["code"] == "too_large" and "send it in a frame" in answer["message"]
        assert client.hello()
    with daemon.client("frames") as client:
        assert ask(client, line)["status"] == "accepted"


def test_bytes_that_are_no_value_end_the_connection(daemon: Daemon) -> None:
    body = bytearray(msgspec.msgpack.encode(submitted()))
    last = body.rindex(b"value")
    body[last : last + 5] = b"valu\xff"
    with daemon.client("frames") as client:
        client.raw(len(body).to_bytes(4, "big") + body)
        answer = client.receive()
        assert answer is not None and answer["code"] == "malformed"
        assert client.receive() is None
