"""A daemon with a real run of the preview network, and every facade switched on."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from functools import cache
from pathlib import Path
from typing import Any

from cardano_runs import network_of
from chain_model import Coins, coins_of
from msgspec.structs import replace
from questions import Api, free_port, running_api
from real_data import lines, need

from feeds.cardano.chunks import read_chain
from handlers import wire
from handlers.addresses import codec
from handlers.events import BlockApplied, GenesisOutput, GenesisOutputs, Output

RUN = "cardano/preview-babbage-52558"
CODEC = codec("cardano", "preview")
INDEXES = ("address_hash", "payment_credential", "stake_credential", "policy", "asset", "datum", "script", "history")


@cache
def blocks() -> list[BlockApplied]:
    return list(read_chain(need(RUN), network_of(RUN)))


@cache
def before() -> GenesisOutputs:
    """Return what the run spends that was there before it, as if from genesis files."""
    found = []
    for line in lines(need(f"{RUN}/prevouts.csv.xz")):
        txid, index, value, address = line.strip().split(",")
        output = Output(bytes.fromhex(address), int(value))
        found.append(GenesisOutput(bytes.fromhex(txid), int(index), output))
    return GenesisOutputs(outputs=found)


@cache
def coins() -> Coins:
    return coins_of(blocks(), before())


@contextmanager
def served(folder: Path, *messages: Any, **tables: Any) -> Iterator[Api]:
    """Yield a daemon with all indexes that was fed blocks, by default those of the run."""
    names = ("kupo", "blockfrost", "ogmios")
    facades = {name: {"enabled": True} | tables.pop(name, {}) for name in names}
    chain = {"family": "cardano", "network": "preview"}
    utxo = {"index": dict.fromkeys(INDEXES, True)} | tables.pop("utxo", {})
    with running_api(folder, chain=chain, utxo=utxo, **facades, **tables) as api:
        feed(api, *(messages or [before(), *blocks()]))
        yield api


def feed(api: Api, *messages: Any) -> None:
    """Let messages become durable."""
    with api.daemon.client("frames") as client:
        for seq, message in enumerate(messages, 1):
            client.raw(wire.encode(replace(message, seq=seq), "frames"))
        for message in messages:
            answer = client.receive()
            assert answer is not None and answer["status"] in ("applied", "rolled_back", "accepted"), (message, answer)


def own_listener() -> tuple[int, str]:
    """Return a free port, and the configuration of a listener on it."""
    port = free_port()
    return port, f"127.0.0.1:{port}"
