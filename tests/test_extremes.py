"""Every integer of every message at its extremes, and beyond them: answered, and nothing of the daemon falls over."""

from __future__ import annotations

from collections.abc import Iterator
from copy import deepcopy
from itertools import count
from pathlib import Path
from typing import Any, NamedTuple

from daemons import Client, Daemon, Encoding, Message, running
from msgspec import inspect
from patience import until
from questions import Web
from scenarios import address, at, digest, output, tx

from daemon import metrics
from handlers.events import Details, Inbound

LEAST, MOST = -(2**63), 2**64 - 1  # what both encodings can say
HIGHEST = 2**32 - 2
HEIGHTS = {"BlockApplied.height", "TxMined.height", "TxPreserved.until", "NodeState.height", "Hello.network_tip.height"}
TXS = ("BlockApplied.txs", "TxSubmitted.tx")
INDEXES = {f"{tx}.{name}" for tx in TXS for name in ("inputs", "collateral", "references")}
INDEXES |= {"OutputsFrozen.outpoints", "OutputsUnfrozen.outpoints", "OutputReassigned.outpoint"}
INDEXES |= {"GenesisOutputs.outputs.index"}
PLACES = {f"{tx}.{name}" for tx in TXS for name in ("place", "input_places")} | {"GenesisOutputs.places"}
SIGNED = {f"{tx}.{name}" for tx in TXS for name in ("fee", "size", "version", "lock_time", "subtree_index")}
SIGNED |= {"BlockApplied.time", "BlockApplied.epoch", "BlockApplied.block_id", "TxMined.subtree_index"}
numbers = count()

WHOLE = tx(
    "whole",
    output("x", assets=[[b"p" * 28, b"name", 1]]),
    spends=[at("p")],
    collateral=[at("p", 1)],
    references=[at("p", 2)],
    collateral_return=output("back", assets=[[b"p" * 28, b"", 1]]),
    previous=[[1, b""]],
    place=1,
    input_places=[1],
    details=dict.fromkeys(Details.__struct_fields__, 1),
    **dict.fromkeys(("fee", "size", "subtree_index", "version", "lock_time"), 1),
)
MESSAGES: list[Message] = [
    {
        "type": "BlockApplied",
        "hash": digest("x"),
        "issuer": {"op_cert_counter": 1},
        "txs": [WHOLE],
        **dict.fromkeys(("height", "slot", "time", "epoch", "block_id", "size"), 1),
    },
    {"type": "BlockPersisted", "height": 1},
    {"type": "TxSubmitted", "tx": WHOLE},
    {"type": "TxMined", "txids": [digest("tx", "p")], "block_id": 1, "height": 1, "subtree_index": 1},
    {"type": "TxPreserved", "txids": [digest("tx", "p")], "until": 1},
    {"type": "NodeState", "state": "running", "height": 1},
    {"type": "OutputsFrozen", "outpoints": [at("p")]},
    {"type": "OutputsUnfrozen", "outpoints": [at("p")]},
    {"type": "OutputReassigned", "outpoint": at("p"), "address": address("heir")},
    {"type": "TxWithdrawn", "txids": [], "reason": "operator"},
    {"type": "TxUnlocked", "txids": [digest("tx", "p")]},
    {"type": "TxLocked", "txids": []},
    {"type": "TxConflicting", "txids": []},
    {"type": "WinnersDecided", "txids": []},
    {"type": "Rollback", "to": {"slot": 1, "height": 1}},
    {
        "type": "GenesisOutputs",
        "outputs": [{"txid": digest("g"), "index": 1, "output": WHOLE["outputs"][0]}],
        "places": [1],
    },
    {"type": "Subscribe", "events": [], "from_sequence": 1},
    {"type": "Hello", "network_tip": {"height": 1, "slot": 1}},
]


class Leaf(NamedTuple):
    """An integer of a message: its path, type and name."""

    way: tuple[str | int, ...]
    kind: inspect.IntType
    name: str

    @property
    def place(self) -> str:
        return "$" + "".join(f"[{step}]" if isinstance(step, int) else f".{step}" for step in self.way)

    @property
    def least(self) -> int:
        return LEAST if self.kind.ge is None else int(self.kind.ge)

    @property
    def most(self) -> int:
        return MOST if self.kind.le is None else int(self.kind.le)


def leaves(kind: inspect.Type, value: Any, way: tuple[str | int, ...], name: str) -> Iterator[Leaf]:
    match kind:
        case inspect.IntType():
            yield Leaf(way, kind, name)
        case inspect.Metadata(type=described):
            yield from leaves(described, value, way, name)
        case inspect.StructType(fields=fields) if isinstance(value, dict):
            for field in fields:
                if field.name == "seq" or field.name in value:
                    yield from leaves(field.type, value.get(field.name, 1), (*way, field.name), f"{name}.{field.name}")
        case inspect.ListType(item_type=item) if value:
            yield from leaves(item, value[0], (*way, 0), name)
        case inspect.TupleType(item_types=items) if value is not None:
            for n, item in enumerate(items):
                yield from leaves(item, value[n], (*way, n), name)
        case inspect.UnionType(types=types):
            for each in types:
                yield from leaves(each, value, way, name)


def kinds() -> dict[str, inspect.StructType]:
    union = inspect.type_info(Inbound)
    assert isinstance(union, inspect.UnionType)
    return {str(kind.tag): kind for kind in union.types if isinstance(kind, inspect.StructType)}


def all_leaves(kind: inspect.Type) -> int:
    match kind:
        case inspect.IntType():
            return 1
        case inspect.Metadata(type=described):
            return all_leaves(described)
        case inspect.StructType(fields=fields):
            return sum(all_leaves(field.type) for field in fields)
        case inspect.ListType(item_type=item):
            return all_leaves(item)
        case inspect.TupleType(item_types=items):
            return sum(map(all_leaves, items))
        case inspect.UnionType(types=types):
            return sum(map(all_leaves, types))
    return 0


def found(message: Message) -> list[Leaf]:
    return list(leaves(kinds()[message["type"]], message, (), message["type"]))


def put(message: Message, leaf: Leaf, value: int) -> None:
    inside: Any = message
    for step in leaf.way[:-1]:
        inside = inside[step]
    inside[leaf.way[-1]] = value


def bounds(leaf: Leaf) -> tuple[int, int]:
    """Return the bounds that the format on disk allows."""
    if leaf.name in HEIGHTS:  # the indexes by height have 32 bits, and a reserved number
        return 0, HIGHEST
    if leaf.name in PLACES or (leaf.name in INDEXES and leaf.way[-1] in (1, "index")):  # part of keys
        return 0, 2**32 - 1
    return (LEAST if leaf.name in SIGNED or leaf.way == ("seq",) else 0), MOST  # in a value, as MessagePack holds it


def test_every_integer_is_tried_and_has_the_bounds_of_the_disk() -> None:
    assert {message["type"] for message in MESSAGES} == set(kinds())
    for message in MESSAGES:
        assert len(found(message)) == all_leaves(kinds()[message["type"]]), message["type"]
        for leaf in found(message):
            assert (leaf.least, leaf.most) == bounds(leaf), leaf


class Sender:
    def __init__(self, client: Client) -> None:
        self._client = client

    def ask(self, message: Message) -> Message:
        fresh, number = deepcopy(message), next(numbers)
        if fresh["type"] == "BlockApplied":
            tip = self._client.hello()["tip"]
            fresh |= {"hash": digest("block", number), "prev_hash": tip and bytes.fromhex(tip["hash"])}
        for each in [*fresh.get("txs", []), *([fresh["tx"]] if "tx" in fresh else [])]:
            each["txid"] = digest("tx", number)
        return self._client.ask(fresh)


def check(message: Message, leaf: Leaf, answer: Message) -> None:
    assert answer["type"] in {"Ack", "Error", "Welcome"}, (message, answer)
    assert answer.get("code") not in {"malformed", "unknown_type"}, (leaf, answer)


def test_extremes_are_answered(tmp_path: Path) -> None:
    encoding: Encoding = "json"
    tables: dict[str, Any] = {"http": {"workers": 1, "listen": f"unix:{tmp_path}/http"}, "recovery": {"ttl": "1s"}}
    with running(tmp_path, pruner={"max_job_history": 10}, **tables) as daemon:
        with daemon.client(encoding) as client:
            sender = Sender(client)
            sender.ask(MESSAGES[0] | {"txs": [tx("p", *(output(n) for n in range(3)))]})
            for message in MESSAGES:
                for leaf in found(message):
                    _try(sender, message, leaf, encoding)
                for end in ("least", "most"):
                    whole = deepcopy(message)
                    for leaf in found(message):
                        put(whole, leaf, getattr(leaf, end))
                    check(message, leaf, sender.ask(whole))
        _still_alive(daemon, tmp_path)


def test_an_output_index_where_no_page_can_be(tmp_path: Path) -> None:
    """With one output a page, the number of this page would collide with another kind of row."""
    with running(tmp_path, transactions={"batch_size": 1}) as daemon, daemon.client() as client:
        made = tx("paged", output("x"), output("y"))
        assert client.ask({"type": "TxSubmitted", "tx": made})["status"] == "accepted"
        for index in (2, 2**32 - 3, 2**32 - 2, 2**32 - 1):
            spend = tx(index, output("z"), spends=[at("paged", index)])
            (fault,) = client.ask({"type": "TxSubmitted", "tx": spend})["detail"]["inputs"]
            assert fault["code"] == "UTXO_NOT_FOUND"
            frozen = {"type": "OutputsFrozen", "outpoints": [at("paged", index)]}
            assert client.ask(frozen)["code"] == "UTXO_NOT_FOUND"
        daemon.assert_sound()


def _try(sender: Sender, message: Message, leaf: Leaf, encoding: Encoding) -> None:
    for value in {leaf.least, 0, 1, leaf.most}:
        changed = deepcopy(message)
        put(changed, leaf, value)
        answer = sender.ask(changed)
        check(changed, leaf, answer)
        if leaf.way == ("seq",):
            assert answer["seq"] == value
    for value in (leaf.least - 1, leaf.most + 1, 2**64 + 1, -(2**64)):
        if encoding == "frames" and not LEAST <= value <= MOST:
            continue  # MessagePack has no such numbers
        changed = deepcopy(message)
        put(changed, leaf, value)
        answer = sender.ask(changed)
        assert (answer["type"], answer.get("code")) == ("Error", "malformed"), (leaf, value, answer)
        assert f"`{leaf.place}`" in answer["message"], (leaf, answer)


def _still_alive(daemon: Daemon, folder: Path) -> None:
    with daemon.client() as client:
        shown = metrics.daemon_numbers(folder / "data" / "metrics")
        assert shown is not None
        client.hello()
        until(  # the metrics thread still writes
            lambda: metrics.daemon_numbers(folder / "data" / "metrics"),
            lambda later: later is not None and later.messages["Hello"] > shown.messages["Hello"],
        )
        tip = {"height": 1, "slot": 1, "prev_hash": bytes.fromhex(client.hello()["tip"]["hash"])}
        made = tx("last", *(output("last", MOST, assets=[[b"p" * 28, b"", MOST]]) for _ in range(3)))
        last = {"type": "BlockApplied", "hash": digest("last"), "time": MOST, "epoch": LEAST, "txs": [made]} | tip
        assert client.ask(last)["status"] == "applied"
    owner, outpoint = f"/api/v1/addresses/{address('last').hex()}", f"/api/v1/utxos/{digest('tx', 'last').hex()}/0"
    with Web(folder / "http") as web:
        for path in ("/metrics", outpoint, f"{owner}/utxos", f"{owner}/balance", "/api/v1/status", "/health/live"):
            assert web.ask(path).status_code == 200, path
            assert web.ask(path, accept="application/cbor").status_code == 200, path
        balance = web.ask(f"{owner}/balance").json()
        assert (balance["lovelace_amount"], balance["amounts"][1]["quantity"]) == (3 * MOST, str(3 * MOST))
    for command in (["status", "--json"], ["status"], ["query", "address", address("last").hex()], ["export"]):
        done = daemon.run(*command)
        assert done.returncode == 0, done.stderr.decode()
    daemon.restart()
    daemon.assert_sound()
