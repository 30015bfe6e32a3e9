"""Messages about transactions as plain values, and what their answers say."""

from __future__ import annotations

from itertools import count
from typing import Any, Protocol

from daemons import Message, as_hex
from scenarios import digest, output, tx

NOWHERE = [digest("nowhere"), 0]
RETRYABLE = {"CREATING", "LOCKED", "STORAGE_ERROR", "FROZEN_UNTIL", "COINBASE_IMMATURE"}
_probes = count()


class Asking(Protocol):
    """A client of a daemon, or of a `LocalDaemon`."""

    def ask(self, message: Message) -> Message: ...


class Receiver(Protocol):
    """A subscriber to `TxStatusChanged`."""

    def receive(self) -> Message | None: ...


# --- messages --------------------------------------------------------------------------------------------------------


def submit(transaction: Message, **fields: Any) -> Message:
    return {"type": "TxSubmitted", "tx": transaction} | fields


def spending(name: object, *spends: list[Any], outputs: int = 2, **fields: Any) -> Message:
    """Return the submission of a transaction with so many outputs."""
    return submit(large(name, outputs, *spends), **fields)


def large(name: object, outputs: int, *spends: list[Any], **fields: Any) -> Message:
    return tx(name, *(output(f"{name}{n}", n + 1) for n in range(outputs)), spends=list(spends), **fields)


def coins(*names: str, outputs: int = 2) -> list[Message]:
    """Return transactions that come from nowhere and pay some outputs each."""
    return [tx(name, *(output(f"{name}{n}", 10 + n) for n in range(outputs))) for name in names]


def message_about(kind: str, *names: object, **fields: Any) -> Message:
    """Return a message about named transactions."""
    return {"type": kind, "txids": [digest("tx", name) for name in names]} | fields


def mined(*names: object, height: int = 9, **fields: Any) -> Message:
    return message_about("TxMined", *names, height=height, **{"block_id": height} | fields)


def on_outputs(kind: str, *outpoints: list[Any]) -> Message:
    return {"type": kind, "outpoints": list(outpoints)}


# --- answers ---------------------------------------------------------------------------------------------------------


def done(client: Asking, *messages: Message) -> None:
    """Send messages, all of which change something."""
    for message in messages:
        answer = client.ask(message)
        assert answer.get("status") in {"accepted", "applied", "rolled_back"}, (message, answer)


def refused(answer: Message | None, code: str, *inputs: tuple[Any, ...]) -> None:
    """Check a refusal: its code, whether trying again may help, and what it says of each output."""
    assert answer is not None and (answer["type"], answer.get("code")) == ("Error", code), answer
    expected = [{"outpoint": as_hex(outpoint), "code": why} | spender(*by) for outpoint, why, *by in inputs]
    assert answer["detail"] == ({"inputs": expected} if inputs else {}), answer
    assert answer["retryable"] is bool(RETRYABLE & {code, *(why for _, why, *_ in inputs)})
    assert answer["message"]


def spender(name: object = None, index: int = 0) -> Message:
    return {} if name is None else {"spender": [digest("tx", name).hex(), index]}


def state(client: Asking, *outpoints: list[Any]) -> list[str | tuple[str, str]]:
    """Return what keeps each output from being spent, `free` if nothing does; a spent one with its spender."""
    answer = client.ask(submit(tx(f"probe {next(_probes)}", output("x"), spends=[*outpoints, NOWHERE])))
    assert answer.get("code") == "UTXO_ERROR", answer
    faults = {(*fault["outpoint"],): fault for fault in answer["detail"]["inputs"]}
    states: list[str | tuple[str, str]] = []
    for outpoint in outpoints:
        fault = faults.get((*as_hex(outpoint),))
        states.append("free" if fault is None else fault["code"])
        if fault is not None and "spender" in fault:
            states[-1] = (fault["code"], fault["spender"][0])
    return states


def by(name: object) -> tuple[str, str]:
    return "SPENT", digest("tx", name).hex()


def status_facts(listener: Receiver, count: int) -> list[tuple[str, str, int]]:
    """Return the next facts about transactions, without those of recovery: these come when they come."""
    numbers, found = list[int](), list[tuple[str, str, int]]()
    while len(found) < count:
        fact = listener.receive()
        assert fact is not None
        numbers.append(fact["sequence"])
        if fact["status"] not in {"confirmed", "deleted", "orphan", "dead"}:
            assert set(fact) == {"type", "txid", "status", "height", "cause", "sequence"}, fact
            found.append((fact["txid"], fact["status"], fact["height"]))
    assert numbers == sorted(set(numbers))
    return found


def turn(name: object, status: str, height: int) -> tuple[str, str, int]:
    return digest("tx", name).hex(), status, height
