"""Made-up chains as plain messages, and what should be unspent once they are carried out: by rules of our own here."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from hashlib import blake2b
from typing import Any

from daemons import Message, as_hex


def digest(*names: object, size: int = 32) -> bytes:
    return blake2b("/".join(map(str, names)).encode(), digest_size=size).digest()


def address(name: object) -> bytes:
    """Return a Cardano address with a payment credential alone."""
    return b"\x61" + digest("credential", name, size=28)


def output(to: object, value: int = 1, **fields: Any) -> Message:
    return {"address": address(to), "value": value} | fields


def at(name: object, index: int = 0) -> list[Any]:
    return [digest("tx", name), index]


def tx(name: object, *outputs: Message, spends: Sequence[list[Any]] = (), **fields: Any) -> Message:
    return {"txid": digest("tx", name), "inputs": list(spends), "outputs": list(outputs)} | fields


def block(parent: Message | None, *txs: Message, branch: str = "", **fields: Any) -> Message:
    height = 1 if parent is None else parent["height"] + 1
    made: Message = {
        "type": "BlockApplied",
        "height": height,
        "slot": height * 20,
        "hash": digest("block", height, branch, *([] if parent is None else [parent["hash"].hex()])),
        "prev_hash": None if parent is None else parent["hash"],
        "txs": list(txs),
    }
    return made | fields


def chain(length: int, parent: Message | None = None, *, branch: str = "", outputs: int = 1) -> list[Message]:
    """Return blocks that follow each other; each pays some outputs and spends one of its parent's, if that did."""
    blocks: list[Message] = []
    for _ in range(length):
        height = 1 if parent is None else parent["height"] + 1
        name = f"{branch}{height}"
        old = parent["txs"][0]["txid"] if parent is not None and parent["txs"] else None
        spends = [] if old is None else [[old, 0]]
        paid = [output(f"{name}/{n}", height * 100 + n) for n in range(outputs)]
        parent = block(parent, tx(name, *paid, spends=spends), branch=branch)
        blocks.append(parent)
    return blocks


def point(of: Message) -> Message:
    return {"height": of["height"], "slot": of["slot"], "hash": of["hash"].hex()}


def back_to(place: Message | str) -> Message:
    if isinstance(place, str):
        return {"type": "Rollback", "to": place}
    return {"type": "Rollback", "to": {"slot": place["slot"], "hash": place["hash"], "height": place["height"]}}


class LiveSet:
    """What should be unspent after messages that were carried out, in chain order."""

    def __init__(self) -> None:
        self.coins: dict[tuple[str, int], str] = {}
        self._sent: list[Message] = []  # what still counts

    @property
    def tip(self) -> str | None:
        return next((message["hash"] for message in reversed(self._sent) if message["type"] == "BlockApplied"), None)

    def apply(self, messages: Iterable[Message]) -> LiveSet:
        for message in map(as_hex, messages):
            match message["type"]:
                case "BlockApplied" | "GenesisOutputs":
                    self._count(message)
                case "Rollback":
                    self._go_back(None if message["to"] == "origin" else message["to"]["hash"])
        return self

    def _count(self, message: Message) -> None:
        self._sent.append(message)
        for made in message.get("txs", ()):
            self._carry_out(made)
        for seeded in message.get("outputs", ()):
            self._add(seeded["txid"], seeded["index"], seeded["output"])

    def _go_back(self, to: str | None) -> None:
        stays = self._sent
        while stays and stays[-1]["type"] == "BlockApplied" and stays[-1]["hash"] != to:
            stays.pop()
        self.coins, self._sent = {}, []
        for message in stays:
            self._count(message)

    def _carry_out(self, made: Message) -> None:
        valid = made.get("valid", True)
        for txid, index in made.get("inputs" if valid else "collateral", ()):
            self.coins.pop((txid, index), None)
        if valid:
            for index, paid in enumerate(made.get("outputs", ())):
                self._add(made["txid"], index, paid)
        elif made.get("collateral_return"):
            self._add(made["txid"], len(made.get("outputs", ())), made["collateral_return"])

    def _add(self, txid: str, index: int, paid: Message) -> None:
        if paid.get("spendable", True):
            self.coins[txid, index] = f"{txid},{index},{paid['value']},{paid['address']}"

    def lines(self) -> list[str]:
        return list(self.coins.values())


def expected(messages: Iterable[Message]) -> list[str]:
    return LiveSet().apply(messages).lines()
