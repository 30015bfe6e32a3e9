"""Mutated messages: valid ones of every type, with one part changed."""

from __future__ import annotations

import json
from collections.abc import Callable
from random import Random
from struct import Struct as Packed
from typing import Any

import msgspec

from bench.soak.scenario import Scenario
from handlers import wire
from handlers.events import (
    BlockApplied,
    BlockPersisted,
    GenesisOutputs,
    Hello,
    Inbound,
    NetworkTip,
    NodeState,
    Output,
    OutputReassigned,
    OutputsFrozen,
    OutputsUnfrozen,
    Rollback,
    Subscribe,
    Tx,
    TxConflicting,
    TxLocked,
    TxMined,
    TxPreserved,
    TxSubmitted,
    TxUnlocked,
    TxWithdrawn,
    WinnersDecided,
)

_LENGTH = Packed(">I")
_LONGEST = 50_000  # bytes
_ODD: list[Any] = [
    None,
    True,
    -1,
    0,
    1 << 31,
    1 << 32,
    (1 << 63) - 1,
    1 << 63,
    (1 << 64) - 1,
    -(1 << 63),
    1.5,
    "",
    "é\x00",
    b"",
    b"\xff" * 33,
    [],
    {},
    [[]],
]


def corpus(scenario: Scenario) -> list[Any]:
    """Return one plain map for each message of a scenario, and for each other type of the protocol."""
    txids = [tx.txid for step in scenario.steps for tx in getattr(step.message, "txs", [])][:40]
    messages: list[Inbound] = [step.message for step in scenario.steps]
    for txid in txids[:6]:
        messages += [
            TxWithdrawn(txids=[txid], reason="replaced"),
            TxUnlocked(txids=[txid]),
            TxLocked(txids=[txid]),
            TxMined(txids=[txid], block_id=7, height=3),
            TxMined(txids=[txid], block_id=7, height=3, subtree_index=1, longest=False, unset=True),
            TxSubmitted(tx=_full(txid), locked=True),
            BlockApplied(height=3, hash=txid, txs=[_full(txid)]),
            OutputsFrozen(outpoints=[(txid, 0)]),
            OutputsUnfrozen(outpoints=[(txid, 0)]),
            OutputReassigned(outpoint=(txid, 0), address=b"\x61" + bytes(28)),
            TxConflicting(txids=[txid]),
            WinnersDecided(txids=[txid]),
            TxPreserved(txids=[txid], until=10),
        ]
    messages += [
        Hello(client="x", network_tip=NetworkTip(height=5)),
        Subscribe(events=["BlockCommitted", "TxStatusChanged"]),
        BlockPersisted(height=2),
        NodeState(state="running", height=4),
        Rollback(to="origin"),
        GenesisOutputs(outputs=[]),
    ]
    return [msgspec.to_builtins(message, builtin_types=(bytes,)) for message in messages]


def _full(txid: bytes) -> Tx:
    """Return a transaction that spends from another, with all optional fields."""
    spends, before = [(txid, 0), (txid, 1)], [(1, b"\x61" + bytes(28)), None]
    return Tx(txid[::-1], spends, [Output(b"\x61" + bytes(28), 1)], version=2, lock_time=500_000_000, previous=before)


class Mutator:
    """Changes messages, the same way for the same seed."""

    def __init__(self, random: Random, maps: list[Any]) -> None:
        self._random, self._maps = random, maps
        self._encode = msgspec.msgpack.Encoder().encode
        self._ways: list[Callable[[Any], Any]] = [
            self._replace,
            self._replace,
            self._remove,
            self._rename,
            self._add,
            self._nest,
            self._repeat,
        ]

    def frame(self) -> bytes:
        """Return a frame: a changed map, or now and then changed bytes."""
        body = self._encode(self._changed())
        if self._random.random() < 0.02:
            body = self._bytes(body)
        length = len(body) if self._random.random() < 0.999 else self._random.getrandbits(32)
        return _LENGTH.pack(length) + body

    def line(self) -> bytes:
        """Return a line of JSON: a changed map, often changed bytes."""
        body = json.dumps(wire._hex(self._changed()), default=repr).encode()
        if self._random.random() < 0.3:
            body = self._bytes(body).replace(b"\n", b" ")
        return b"{" + body[1:] + b"\n"

    def _changed(self) -> Any:
        """Return a changed message; one that changes made far longer would only try the connection."""
        while True:
            message = self._random.choice(self._maps)
            for _ in range(self._random.choice((1, 1, 1, 2, 4))):
                message = self._somewhere(message)
            if len(self._encode(message)) < _LONGEST:
                return message

    def _somewhere(self, value: Any) -> Any:
        """Return a copy with one place changed, near the root more often than deep inside."""
        random = self._random
        if isinstance(value, dict) and value and random.random() < 0.6:
            name = random.choice(list(value))
            return value | {name: self._somewhere(value[name])}
        if isinstance(value, list) and value and random.random() < 0.7:
            at = random.randrange(len(value))
            return [*value[:at], self._somewhere(value[at]), *value[at + 1 :]]
        return random.choice(self._ways)(value)

    def _replace(self, _: Any) -> Any:
        return self._random.choice(_ODD)

    def _remove(self, value: Any) -> Any:
        if isinstance(value, dict) and value:
            removed = self._random.choice(list(value))
            return {name: each for name, each in value.items() if name != removed}
        return value[:-1] if isinstance(value, list | bytes | str) else None

    def _rename(self, value: Any) -> Any:
        if isinstance(value, dict) and value:
            name = self._random.choice(list(value))
            return {(each[::-1] if each == name else each): kept for each, kept in value.items()}
        return value

    def _add(self, value: Any) -> Any:
        if isinstance(value, dict):
            return value | {self._random.choice(("seq", "type", "x", "txs", "inptus")): self._random.choice(_ODD)}
        return [value, value]

    def _nest(self, value: Any) -> Any:
        for _ in range(self._random.choice((2, 30))):
            value = [value]
        return value

    def _repeat(self, value: Any) -> Any:
        """Return a list, bytes or text twice or 300 times, where that is not longer than a message may be."""
        times = self._random.choice((2, 300))
        if not isinstance(value, list | bytes | str) or len(self._encode(value)) * times > _LONGEST:
            return value
        return value * times

    def _bytes(self, body: bytes) -> bytes:
        random, changed = self._random, bytearray(body)
        for _ in range(random.randint(1, 4)):
            at = random.randrange(len(changed)) if changed else 0
            match random.randrange(5):
                case 0 if changed:
                    changed[at] ^= 1 << random.randrange(8)
                case 1:
                    del changed[at : at + random.randint(1, 20)]
                case 2:
                    changed[at:at] = random.randbytes(random.randint(1, 8))
                case 3:
                    changed[at:at] = random.choice((b"[", b"{", b"\x91")) * random.choice((10, 3000))
                case _:
                    changed[at:at] = changed[at : at + random.randint(1, 30)]
        return bytes(changed)
