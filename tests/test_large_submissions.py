"""Long submissions are decoded in pieces: with the same outcome as at once, also where something is wrong with one."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import msgspec
import pytest
from daemons import Client, Daemon, Message, running
from scenarios import digest

from handlers import columns, wire
from handlers.events import TxSubmitted
from handlers.large_submission import LONG, LONGEST_JSON, MOST, PIECE, Outline, read, whole, whole_at_once
from handlers.refusal import Refused

MANY = 2 * PIECE + 17


def submitted(**more: Any) -> Message:
    """Return a submission of a transaction with outputs for three pieces."""
    outputs: list[Message] = [{"address": n.to_bytes(60, "big"), "value": n} for n in range(MANY)]
    outputs[5]["assets"] = [[digest("policy", size=28), b"name", 7]]
    tx = {"txid": digest("large"), "inputs": [[digest("parent"), 0]], "outputs": outputs, "fee": 7, "lock_time": 9}
    return {"type": "TxSubmitted", "seq": 3, "tx": tx | more.pop("tx", {})} | more


def pieces(event: TxSubmitted) -> tuple[TxSubmitted, int]:
    """Return a submission that was decoded in turns, and how many turns there were."""
    turns = 0

    async def turn(step: Callable[[], Any]) -> Any:
        nonlocal turns
        turns += 1
        return step()

    return asyncio.run(whole(event, turn)), turns


@pytest.mark.parametrize(
    "more", [{}, {"locked": True, "on_spent": "record", "input_hashes": [None]}, {"tx": {"previous": [[5, b"\x01"]]}}]
)
def test_a_long_submission_is_what_it_is_at_once(more: Message) -> None:
    frame = msgspec.msgpack.encode(submitted(**more))
    event = columns.decode(frame, "frames")
    assert isinstance(event, Outline) and len(event.tx.outputs) == MANY
    made, turns = pieces(event)
    assert made == wire.decode(frame, "frames") == whole_at_once(event, frame)
    assert type(made) is TxSubmitted and turns == 3
    assert pieces(made) == (made, 0)


def test_only_long_frames_are_left_undecoded() -> None:
    message = submitted()
    message["tx"]["outputs"] = message["tx"]["outputs"][:100]
    frame = msgspec.msgpack.encode(message)
    assert len(frame) < LONG and type(columns.decode(frame, "frames")) is TxSubmitted
    whole_one = submitted()
    whole_one["tx"]["fee"] = "seven"  # an error of the outline: the general way says which one
    assert read(msgspec.msgpack.encode(whole_one)) is None


def broken() -> Iterator[tuple[Message, str]]:
    """Yield submissions that are wrong, and what is said of each."""
    late = 2 * PIECE + 3
    for change, said in (
        ({"value": "7"}, f"Expected `int`, got `str` - at `$.tx.outputs[{late}].value`"),
        ({"adress": b""}, f"at `$.tx.outputs[{late}].adress`"),
    ):
        message = submitted()
        message["tx"]["outputs"][late] |= change
        yield message, said
    yield submitted(input_hashes=[None, None]), "at `$.input_hashes`"
    yield submitted(tx={"previous": []}), "at `$.tx.previous`"


@pytest.mark.parametrize(("message", "said"), [*broken()], ids=["type", "name", "hashes", "previous"])
def test_what_is_wrong_is_named_as_at_once(message: Message, said: str) -> None:
    frame = msgspec.msgpack.encode(message)
    with pytest.raises(Refused) as at_once:
        wire.decode(frame, "frames")
    with pytest.raises(Refused) as in_pieces:
        event = columns.decode(frame, "frames")
        assert isinstance(event, Outline)
        pieces(event)
    assert in_pieces.value.refusal == at_once.value.refusal
    assert said in in_pieces.value.refusal.message


@pytest.mark.parametrize("place", ["tx.inputs", "tx.previous", "tx.datums", "input_hashes"])
def test_lists_that_are_too_long_are_refused_before_they_are_decoded(place: str) -> None:
    name = place.removeprefix("tx.")
    entries: list[Any] = [[digest("parent"), 0] if name == "inputs" else b"\x01"] * (MOST + 1)
    message = submitted(tx={name: entries}) if "." in place else submitted(**{name: entries})
    with pytest.raises(Refused, match=f"100,001 entries .* at `\\$.{place}`") as refused:
        columns.decode(msgspec.msgpack.encode(message), "frames")
    assert refused.value.refusal.code == "too_large"


@pytest.fixture
def daemon(tmp_path: Path) -> Iterator[Daemon]:
    with running(tmp_path, chain={"family": "bitcoin", "network": "regtest"}) as started:
        yield started


def ask(client: Client, message: Message) -> Message:
    client.send(message)
    answer = client.receive()
    assert answer is not None
    return answer


def test_a_daemon_takes_and_refuses_long_submissions(daemon: Daemon) -> None:
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
