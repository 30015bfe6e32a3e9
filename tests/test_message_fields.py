"""Which fields a message may have: an unknown one is refused with its place, except in Hello."""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import msgspec
import pytest
from daemons import Client, Daemon, Encoding, Message, ack, encoded, error, running
from scenarios import address, at, back_to, block, digest, expected, output, point, tx

from daemon import client as daemon_client
from daemon.http import daemon_link
from feeds import link
from handlers import events

ONE = digest("one")
GENESIS: Message = {"txid": ONE, "index": 0, "output": output("ann")}


@pytest.fixture(scope="module")
def standing(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Daemon]:
    """Give a daemon that refuses everything it is sent."""
    with running(tmp_path_factory.mktemp("standing")) as daemon:
        yield daemon
        with daemon.client() as client:
            welcome = client.hello()
            assert (welcome["tip"], welcome["persisted_height"]) == (None, None)
            ack(client.ask({"type": "GenesisOutputs", "outputs": []}), "accepted", None)  # there are none yet
        assert daemon.export() == []
        daemon.assert_sound()


UNKNOWN: dict[str, tuple[Message, str, str]] = {
    "a misspelt list of inputs": (
        block(None, *(tx(n) for n in range(3)), {"txid": ONE, "inptus": [at("p")], "outputs": []}),
        "$.txs[3].inptus",
        "inputs",
    ),
    "a block's": (block(None, hight=1), "$.hight", "height"),
    "another case": (block(None, prevHash=ONE), "$.prevHash", "prev_hash"),
    "an output's": (
        block(None, tx("a", output("x"), output("ann", adress=b"")), tx("b")),
        "$.txs[0].outputs[1].adress",
        "address",
    ),
    "a collateral return's": (
        block(None, tx("a", collateral_return=output("x", vlaue=1))),
        "$.txs[0].collateral_return.vlaue",
        "value",
    ),
    "an issuer's": (block(None, issuer={"vrf_vky": ONE}), "$.issuer.vrf_vky", "vrf_vkey"),
    "a rollback point's": ({"type": "Rollback", "to": {"slto": 1}}, "$.to.slto", "slot"),
    "a persisted block's": ({"type": "BlockPersisted", "height": 1, "hahs": ONE}, "$.hahs", "hash"),
    "a genesis output's": (
        {"type": "GenesisOutputs", "outputs": [GENESIS, GENESIS | {"indx": 1}]},
        "$.outputs[1].indx",
        "index",
    ),
    "an output's in the genesis": (
        {"type": "GenesisOutputs", "outputs": [GENESIS | {"output": output("x", spendabel=False)}]},
        "$.outputs[0].output.spendabel",
        "spendable",
    ),
    "the node's state": ({"type": "NodeState", "state": "running", "height": 1, "sate": ""}, "$.sate", "state"),
    "a submission's": ({"type": "TxSubmitted", "tx": tx("a", output("x")), "lokced": True}, "$.lokced", "locked"),
    "a submitted transaction's": ({"type": "TxSubmitted", "tx": tx("a", valdi=False)}, "$.tx.valdi", "valid"),
    "a withdrawal's": (
        {"type": "TxWithdrawn", "txids": [], "reason": "evicted", "raeson": "expired"},
        "$.raeson",
        "reason",
    ),
    "an unlocking's": ({"type": "TxUnlocked", "txids": [], "txdis": [ONE]}, "$.txdis", "txids"),
    "a locking's": ({"type": "TxLocked", "txids": [], "txid": [ONE]}, "$.txid", "txids"),
    "mined": (
        {"type": "TxMined", "txids": [], "block_id": 1, "height": 1, "longets": False},
        "$.longets",
        "longest",
    ),
    "a freeze's": ({"type": "OutputsFrozen", "outpoints": [], "outpionts": [at("p")]}, "$.outpionts", "outpoints"),
    "a thaw's": ({"type": "OutputsUnfrozen", "outpoints": [], "output": [at("p")]}, "$.output", "outpoints"),
    "a reassignment's": (
        {"type": "OutputReassigned", "outpoint": at("p"), "address": address("x"), "adress": b""},
        "$.adress",
        "address",
    ),
    "a conflict's": ({"type": "TxConflicting", "txids": [], "vlaue": False}, "$.vlaue", "value"),
    "winners": ({"type": "WinnersDecided", "txids": [], "winers": []}, "$.winers", ""),
    "a preservation's": ({"type": "TxPreserved", "txids": [], "until": 1, "untill": 2}, "$.untill", "until"),
    "a subscription's": ({"type": "Subscribe", "events": [], "event": []}, "$.event", "events"),
    "a resumed subscription's": (
        {"type": "Subscribe", "events": [], "from_seqence": 7},
        "$.from_seqence",
        "from_sequence",
    ),
    "of a later version": ({"type": "Subscribe", "events": [], "addresses": []}, "$.addresses", ""),
    "also of a later version": ({"type": "TxSubmitted", "tx": tx("a"), "priority": 1}, "$.priority", ""),
    "how a spent input": ({"type": "TxSubmitted", "tx": tx("a"), "on_spend": "record"}, "$.on_spend", "on_spent"),
}


def test_every_message_is_tried() -> None:
    tried = {message["type"] for message, _, _ in UNKNOWN.values()}
    assert tried == {kind.__name__ for kind in events.Inbound.__args__} - {"Hello"}


@pytest.mark.parametrize("what", UNKNOWN)
def test_an_unknown_field_is_refused(standing: Daemon, encoding: Encoding, what: str) -> None:
    message, place, near = UNKNOWN[what]
    with standing.client(encoding) as client:
        answer = client.ask(message | {"seq": 5})
        assert error(answer, "malformed", 5) == {}
        assert f"unknown field `{place.rpartition('.')[2]}` - at `{place}`" in answer["message"]
        assert answer["message"].endswith(f": did you mean `{near}`?") or (
            not near and "known fields: " in answer["message"]
        )
        assert client.hello()


@pytest.mark.parametrize(
    ("kind", "near"),
    [
        ("BlockAplied", "BlockApplied"),
        ("blockapplied", "BlockApplied"),
        ("tx_submitted", "TxSubmitted"),
        ("Hallo", "Hello"),
        ("OutputFrozen", "OutputsFrozen"),
    ],
)
def test_a_misspelt_type_gets_the_nearest_one(standing: Daemon, encoding: Encoding, kind: str, near: str) -> None:
    with standing.client(encoding) as client:
        answer = client.ask({"type": kind, "seq": 5})
        assert error(answer, "unknown_type", 5) == {}
        assert answer["message"] == f"'{kind}' is not a type of message: did you mean `{near}`?"


def test_an_unknown_type_gets_the_known_ones(standing: Daemon, encoding: Encoding) -> None:
    with standing.client(encoding) as client:
        answer = client.ask({"type": "Zzz"})
        known = answer["message"].partition("; known types: ")[2].split(", ")
        assert sorted(known) == sorted(kind.__name__ for kind in events.Inbound.__args__)


@pytest.mark.parametrize(
    ("message", "place", "hint"),
    [
        ({"type": "NodeState", "state": "runing", "height": 1}, "$.state", "did you mean `running`?"),
        ({"type": "Subscribe", "events": ["Pruned", "BlockCommited"]}, "$.events[1]", "did you mean `BlockCommitted`?"),
        (
            {"type": "TxWithdrawn", "txids": [], "reason": "?"},
            "$.reason",
            "known values: evicted, expired, operator, replaced",
        ),
        ({"type": "TxSubmitted", "tx": tx("a"), "on_spent": "recrod"}, "$.on_spent", "did you mean `record`?"),
    ],
)
def test_an_unknown_value_gets_the_known_ones(
    standing: Daemon, encoding: Encoding, message: Message, place: str, hint: str
) -> None:
    with standing.client(encoding) as client:
        answer = client.ask(message)
        error(answer, "malformed")
        assert re.search(f" - at `{re.escape(place)}`[:;] {re.escape(hint)}$", answer["message"]), answer


def test_a_misspelt_field_loses_no_spend(client: Client) -> None:
    one = block(None, tx("p", output("ann"), output("bob")))
    two = block(one, tx("c", output("cid"), spends=[at("p")]))
    misspelt = two | {"txs": [{"txid": digest("tx", "c"), "inptus": [at("p")], "outputs": [output("cid")]}]}
    ack(client.ask(one), "applied", point(one))
    error(client.ask(misspelt), "malformed")
    ack(client.ask(two), "applied", point(two))


def test_unknown_fields_of_a_greeting_are_ignored(client: Client) -> None:
    tip = {"height": 7, "slot": 140, "hash": ONE}
    assert client.hello(shoe_size=43, mood=["good", {"why": ONE}], network_tip=tip)["network_tip_height"] == 7


@pytest.mark.parametrize("name", ["x" * 3_000_000, "a b", "` - at `$.txs[0]", "ü", "\n", ""])
def test_odd_names(standing: Daemon, encoding: Encoding, name: str) -> None:
    """What a client sends is not repeated to it at length."""
    with standing.client(encoding) as client:
        messages: list[Any] = [block(None), {"type": "Rollback", "to": {}}, block(None, tx("a"))]
        for message in messages:
            objects = message.get("txs") or [message.get("to", message)]
            objects[0][name] = 1
            answer = client.ask(message)
            error(answer, "malformed")
            assert len(answer["message"]) < 1000
        assert client.hello()


@pytest.mark.parametrize(
    "message",
    [
        {"type": "x" * 3_000_000},
        {"type": "NodeState", "state": "x" * 3_000_000, "height": 1},
        {"type": "Rollback", "to": "x" * 3_000_000},
    ],
    ids=["type", "state", "to"],
)
def test_long_values_are_not_repeated(standing: Daemon, encoding: Encoding, message: Message) -> None:
    with standing.client(encoding) as client:
        answer = client.ask(message)
        assert answer["code"] in {"malformed", "unknown_type"} and len(answer["message"]) < 1000


# --- fields that few feeds have --------------------------------------------------------------------------------------

HEADER = bytes(range(80))
ISSUER: Message = {"vkey": ONE, "vrf_vkey": digest("vrf"), "op_cert": b"certificate", "op_cert_counter": 2**64 - 1}
MORE: Message = {"version": -(2**63), "lock_time": 2**64 - 1, "datums": [b"", b"datum"]}


def test_the_contracts_fields_are_accepted(tmp_path: Path, encoding: Encoding) -> None:
    one = block(None, tx("p", output("ann"), output("bob"), **MORE), size=2**64 - 1, header=HEADER, issuer=ISSUER)
    previous = [[1, address("ann")], None]
    two = block(one, tx("c", output("x"), spends=[at("p"), at("p", 1)], previous=previous), issuer={}, header=None)
    with running(tmp_path) as daemon, daemon.client(encoding) as client:
        ack(client.ask(one), "applied", point(one))
        ack(client.ask(two), "applied", point(two))
        waits = tx("w", output("y"), spends=[at("c")], previous=[None], **MORE)
        ack(client.ask({"type": "TxSubmitted", "tx": waits}), "accepted", point(two))
        ack(client.ask(back_to(one)), "rolled_back", point(one))
        assert daemon.export() == expected([one])
        daemon.assert_sound()


@pytest.mark.parametrize(
    ("fields", "place"),
    [
        ({"header": HEADER[:79]}, "$.header"),
        ({"header": HEADER + b"\0"}, "$.header"),
        ({"size": -1}, "$.size"),
        ({"size": "291"}, "$.size"),
        ({"issuer": []}, "$.issuer"),
        ({"issuer": ISSUER | {"vkey": ONE[:31]}}, "$.issuer.vkey"),
        ({"issuer": ISSUER | {"vrf_vkey": ONE + ONE}}, "$.issuer.vrf_vkey"),
        ({"issuer": ISSUER | {"op_cert": 5}}, "$.issuer.op_cert"),
        ({"issuer": ISSUER | {"op_cert_counter": -1}}, "$.issuer.op_cert_counter"),
        ({"txs": [tx("a", version="1")]}, "$.txs[0].version"),
        ({"txs": [tx("a", lock_time=1.5)]}, "$.txs[0].lock_time"),
        ({"txs": [tx("a", datums=ONE)]}, "$.txs[0].datums"),
        ({"txs": [tx("a"), tx("b", datums=[ONE, 7])]}, "$.txs[1].datums[1]"),
        ({"txs": [tx("a", spends=[at("p")], previous=[[-1, b""]])]}, "$.txs[0].previous[0][0]"),
        ({"txs": [tx("a", spends=[at("p")], previous=[[1]])]}, "$.txs[0].previous[0]"),
        ({"txs": [tx("a", spends=[at("p")], previous=[[1, 2]])]}, "$.txs[0].previous[0][1]"),
        ({"txs": [tx("a"), tx("b", spends=[at("p")], previous=[])]}, "$.txs[1].previous"),
        ({"txs": [tx("a", spends=[at("p")], previous=[None, None])]}, "$.txs[0].previous"),
    ],
)
def test_they_are_validated(standing: Daemon, encoding: Encoding, fields: Message, place: str) -> None:
    with standing.client(encoding) as client:
        answer = client.ask(block(None) | fields)
        error(answer, "malformed")
        assert f"`{place}`" in answer["message"]


def test_previous_of_a_submission_is_validated(standing: Daemon, encoding: Encoding) -> None:
    with standing.client(encoding) as client:
        answer = client.ask({"type": "TxSubmitted", "tx": tx("a", output("x"), spends=[at("p")], previous=[])})
        error(answer, "malformed")
        assert "`$.tx.previous`" in answer["message"]


# --- the other direction ---------------------------------------------------------------------------------------------

NEWER: list[Message] = [
    {"type": "Ack", "seq": 1, "status": "applied", "tip": {"height": 1, "slot": 2, "hash": ONE, "epoch": 3}},
    {"type": "Error", "seq": 1, "code": "gap", "message": "", "retryable": False, "detail": {}, "trace": "x"},
    {
        "type": "Welcome",
        "protocol": 1,
        "version": "9",
        "chain": {"family": "raw", "network": "x", "genesis": ONE},
        "tip": None,
        "points": [],
        "rollback_floor": None,
        "persisted_height": None,
        "features": ["more"],
    },
    {
        "type": "BlockCommitted",
        "at": 7,
        **dict.fromkeys(("height", "slot", "txs", "created", "spent", "missing_inputs"), 1),
        "hash": ONE,
    },
]


@pytest.mark.parametrize("answer", NEWER, ids=lambda answer: answer["type"])
def test_answers_of_a_newer_daemon_are_understood(answer: Message) -> None:
    raw = encoded(answer, "frames")[4:]
    decoders: list[msgspec.msgpack.Decoder[Any]] = [daemon_client._HEARD, daemon_link._RECEIVED]
    if answer["type"] != "BlockCommitted":
        decoders.append(link._ANSWERS)
    for decoder in decoders:
        assert type(decoder.decode(raw)).__name__ == answer["type"]
