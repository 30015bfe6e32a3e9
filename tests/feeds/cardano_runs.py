"""The runs of real Cardano blocks, and what is expected of each."""

from collections.abc import Iterator
from pathlib import Path
from typing import Any

from real_data import document, find, longest, names, need, rows

from feeds.cardano.eras import NETWORKS, Network
from feeds.cardano.genesis import read_genesis
from handlers.events import GenesisOutputs

RUNS = longest(names("cardano/*-*"))


def network_of(run: str) -> Network:
    return NETWORKS[Path(run).name.partition("-")[0]]


def genesis_of(run: str) -> GenesisOutputs:
    """Return the genesis outputs, which are unknown where a run begins later."""
    file = find(f"{run}/genesis.json")
    return GenesisOutputs(outputs=[]) if file is None else read_genesis([file]).outputs


def expected_rows(run: str) -> Iterator[dict[str, Any]]:
    return rows(need(f"expected/{_name(run)}.blocks.jsonl.xz"))


def checkpoints(run: str) -> dict[str, dict[str, Any]]:
    """Return the digests of whole sets that are expected, by the hash of the block after which they hold."""
    if (epochs := find(f"expected/{_name(run)}.epochs.json")) is not None:
        return {each["last_hash"]: each for each in document(epochs)["epochs"]}
    if (summary := find(f"expected/{_name(run)}.summary.json")) is None:
        return {}
    summary_of = document(summary)
    last = {summary_of["last"]["hash"]: summary_of["final"]} if "final" in summary_of else {}
    return {each["hash"]: each for each in summary_of["checkpoints"]} | last


def _name(run: str) -> str:
    return run.replace("/", "-")
