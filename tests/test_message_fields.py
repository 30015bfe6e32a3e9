"""What the decoder refuses: unknown fields, types and values, and values out of range, each with its place."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import msgspec
import pytest
from chains import refused
from daemons import Client, Encoding, Message, ack, encoded, error, running
from scenarios import address, at, back_to, block, digest, expected, output, point, tx

from daemon import client as daemon_client
from daemon.http import daemon_link
from feeds import link
from handlers import events
from handlers.columns import decode
from handlers.wire import LENGTH

ONE = digest("one")
GENESIS: Message = {"txid": ONE, "index": 0, "output": output("ann")}


def why(message: Any, encoding: Encoding, code: str = "malformed") -> str:
    raw = encoded(message, encoding)
    return refused(code, lambda: decode(raw[LENGTH.size :] if encoding == "frames" else raw, encoding)).message


def of(kind: str, **fields: Any) -> Message:
    return {"type": kind} | fields


UNKNOWN: list[tuple[Message, str, str]] = [
    (block(None, *(tx(n) for n in range(3)), {"txid": ONE, "inptus": [at("p")]}), "$.txs[3].inptus", "inputs"),
    (block(None, hight=1), "$.hight", "height"),
    (block(None, prevHash=ONE), "$.prevHash", "prev_hash"),
    (block(None, tx("a", output("x"), output("ann", adress=b""))), "$.txs[0].outputs[1].adress", "address"),
    (block(None, tx("a", collateral_return=output("x", vlaue=1))), "$.txs[0].collateral_return.vlaue", "value"),
    (block(None, issuer={"vrf_vky": ONE}), "$.issuer.vrf_vky", "vrf_vkey"),
    (of("Rollback", to={"slto": 1}), "$.to.slto", "slot"),
    (of("BlockPersisted", height=1, hahs=ONE), "$.hahs", "hash"),
    (of("GenesisOutputs", outputs=[GENESIS, GENESIS | {"indx": 1}]), "$.outputs[1].indx", "index"),
    (of("GenesisOutputs", outputs=[GENESIS | {"output": output("x", spent=0)}]), "$.outputs[0].output.spent", ""),
    (of("NodeState", state="running", height=1, sate=""), "$.sate", "state"),
    (of("TxSubmitted", tx=tx("a", output("x")), lokced=True), "$.lokced", "locked"),
    (of("TxSubmitted", tx=tx("a", valdi=False)), "$.tx.valdi", "valid"),
    (of("TxWithdrawn", txids=[], reason="evicted", raeson="expired"), "$.raeson", "reason"),
    (of("TxUnlocked", txids=[], txdis=[ONE]), "$.txdis", "txids"),
    (of("TxLocked", txids=[], txid=[ONE]), "$.txid", "txids"),
    (of("TxMined", txids=[], block_id=1, height=1, longets=False), "$.longets", "longest"),
    (of("OutputsFrozen", outpoints=[], outpionts=[at("p")]), "$.outpionts", "outpoints"),
    (of("OutputsUnfrozen", outpoints=[], output=[at("p")]), "$.output", "outpoints"),
    (of("OutputReassigned", outpoint=at("p"), address=address("x"), adress=b""), "$.adress", "address"),
    (of("TxConflicting", txids=[], vlaue=False), "$.vlaue", "value"),
    (of("WinnersDecided", txids=[], winers=[]), "$.winers", ""),
    (of("TxPreserved", txids=[], until=1, untill=2), "$.untill", "until"),
    (of("Subscribe", events=[], event=[]), "$.event", "events"),
    (of("Subscribe", events=[], from_seqence=7), "$.from_seqence", "from_sequence"),
    (of("Subscribe", events=[], addresses=[]), "$.addresses", ""),
    (of("TxSubmitted", tx=tx("a"), priority=1), "$.priority", ""),
    (of("TxSubmitted", tx=tx("a"), on_spend="record"), "$.on_spend", "on_spent"),
]


def test_every_message_is_tried() -> None:
    tried = {message["type"] for message, _, _ in UNKNOWN}
    assert tried == {kind.__name__ for kind in events.Inbound.__args__} - {"Hello"}


@pytest.mark.parametrize(("message", "place", "near"), UNKNOWN, ids=[place for _, place, _ in UNKNOWN])
def test_an_unknown_field_is_refused(encoding: Encoding, message: Message, place: str, near: str) -> None:
    reason = why(message | {"seq": 5}, encoding)
    assert f"unknown field `{place.rpartition('.')[2]}` - at `{place}`" in reason
    assert reason.endswith(f": did you mean `{near}`?") if near else "known fields: " in reason


def test_an_unknown_type_gets_the_nearest_one_or_all(encoding: Encoding) -> None:
    kinds = {"BlockAplied": "BlockApplied", "blockapplied": "BlockApplied", "tx_submitted": "TxSubmitted"}
    for kind, near in (kinds | {"Hallo": "Hello", "OutputFrozen": "OutputsFrozen"}).items():
        reason = why(of(kind, seq=5), encoding, "unknown_type")
        assert reason == f"'{kind}' is not a type of message: did you mean `{near}`?"
    known = why(of("Zzz"), encoding, "unknown_type").partition("; known types: ")[2].split(", ")
    assert sorted(known) == sorted(kind.__name__ for kind in events.Inbound.__args__)


@pytest.mark.parametrize(
    ("message", "place", "hint"),
    [
        (of("NodeState", state="runing", height=1), "$.state", "did you mean `running`?"),
        (of("Subscribe", events=["Pruned", "BlockCommited"]), "$.events[1]", "did you mean `BlockCommitted`?"),
        (of("TxWithdrawn", txids=[], reason="?"), "$.reason", "known values: evicted, expired, operator, replaced"),
        (of("TxSubmitted", tx=tx("a"), on_spent="recrod"), "$.on_spent", "did you mean `record`?"),
    ],
)
def test_an_unknown_value_gets_the_known_ones(encoding: Encoding, message: Message, place: str, hint: str) -> None:
    reason = why(message, encoding)
    assert re.search(f" - at `{re.escape(place)}`[:;] {re.escape(hint)}$", reason), reason


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


@pytest.mark.parametrize("text", ["x" * 3_000_000, "a b", "` - at `$.txs[0]", "ü", "\n", ""])
def test_names_and_values_are_not_repeated_at_length(encoding: Encoding, text: str) -> None:
    for message in (block(None) | {text: 1}, of("Rollback", to={text: 1}), block(None, tx("a") | {text: 1})):
        assert len(why(message, encoding)) < 1000
    assert len(why({"type": text}, encoding, "unknown_type" if len(text) < 100 else "malformed")) < 1000
    for message in (of("NodeState", state=text, height=1), of("Rollback", to=text)):
        assert len(why(message, encoding)) < 1000


HEADER = bytes(range(80))
ISSUER: Message = {"vkey": ONE, "vrf_vkey": digest("vrf"), "op_cert": b"certificate", "op_cert_counter": 2**64 - 1}
MORE: Message = {"version": -(2**63), "lock_time": 2**64 - 1, "datums": [b"", b"datum"]}


def test_fields_that_few_feeds_have_are_accepted(tmp_path: Path, encoding: Encoding) -> None:
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
        ({"issuer": []}, "$.issuer"),
        ({"issuer": ISSUER | {"vkey": ONE[:31]}}, "$.issuer.vkey"),
        ({"issuer": ISSUER | {"vrf_vkey": ONE + ONE}}, "$.issuer.vrf_vkey"),
        ({"issuer": ISSUER | {"op_cert": 5}}, "$.issuer.op_cert"),
        ({"issuer": ISSUER | {"op_cert_counter": -1}}, "$.issuer.op_cert_counter"),
        ({"txs": {}}, "$.txs"),
        ({"txs": [{"inputs": []}]}, "$.txs[0]"),
        ({"txs": [tx(n) for n in range(3)] + [tx(3, spends=[[ONE[:31], 0]])]}, "$.txs[3].inputs[0][0]"),
        ({"txs": [tx(0, spends=[[ONE, 0], [ONE, -1]])]}, "$.txs[0].inputs[1][1]"),
        ({"txs": [tx(0, spends=[[ONE, 2**32]])]}, "$.txs[0].inputs[0][1]"),
        ({"txs": [tx(0, spends=[[ONE]])]}, "$.txs[0].inputs[0]"),
        ({"txs": [tx(0, output("ann"), output("bob", -1))]}, "$.txs[0].outputs[1].value"),
        ({"txs": [tx(0, output("ann", assets=[[ONE, b"", 1]]))]}, "$.txs[0].outputs[0].assets[0][0]"),
        ({"txs": [tx(0, output("ann", assets=[[ONE[:28], ONE + ONE, 1]]))]}, "$.txs[0].outputs[0].assets[0][1]"),
        ({"txs": [tx(0, output("ann", inline_datum=5))]}, "$.txs[0].outputs[0].inline_datum"),
        ({"txs": [tx(0, collateral_return={"value": 1})]}, "$.txs[0].collateral_return"),
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
def test_a_malformed_message_is_refused_with_its_place(encoding: Encoding, fields: Message, place: str) -> None:
    assert f"`{place}`" in why(block(None) | fields, encoding)


def test_missing_fields_and_previous_outputs_are_named(encoding: Encoding) -> None:
    for missing in ("height", "hash"):
        message = {name: value for name, value in block(None).items() if name != missing}
        assert f"`{missing}`" in why(message, encoding)
    submitted = tx("a", output("x"), spends=[at("p")], previous=[])
    assert "`$.tx.previous`" in why(of("TxSubmitted", tx=submitted), encoding)


CHAIN = {"family": "raw", "network": "x", "genesis": ONE}
ABSENT = dict.fromkeys(("tip", "rollback_floor", "persisted_height"))
COUNTS = dict.fromkeys(("height", "slot", "txs", "created", "spent", "missing_inputs"), 1)
NEWER: list[Message] = [
    of("Ack", seq=1, status="applied", tip={"height": 1, "slot": 2, "hash": ONE, "epoch": 3}),
    of("Error", seq=1, code="gap", message="", retryable=False, detail={}, trace="x"),
    of("Welcome", protocol=1, version="9", chain=CHAIN, points=[], features=["more"], **ABSENT),
    of("BlockCommitted", at=7, hash=ONE, **COUNTS),
]


@pytest.mark.parametrize("answer", NEWER, ids=lambda answer: answer["type"])
def test_answers_of_a_newer_daemon_are_understood(answer: Message) -> None:
    raw = encoded(answer, "frames")[LENGTH.size :]
    decoders: list[msgspec.msgpack.Decoder[Any]] = [daemon_client._DECODER, daemon_link._RECEIVED]
    if answer["type"] != "BlockCommitted":
        decoders.append(link._ANSWERS)
    for decoder in decoders:
        assert type(decoder.decode(raw)).__name__ == answer["type"]
