"""The runs of real Bitcoin blocks, and what is expected of each."""

import hashlib
from functools import cache
from typing import Any

from real_data import lines, longest, names, need, rows

from feeds.bitcoin.networks import MAINNET, NETWORKS, Network
from feeds.bitcoin.source import Chain, Options
from handlers.events import Point

RUNS = [*longest(names("bitcoin/*.hex.xz")), *names("bitcoin/reorg/*.hex.xz")]


def network_of(run: str) -> Network:
    return NETWORKS.get(run.rpartition("/")[2].partition("-")[0], MAINNET)


@cache
def expected_runs() -> dict[str, tuple[str, list[dict[str, Any]]]]:
    """Return the name and rows of the expected files by the hash of the last block."""
    found = {}
    for name in names("expected/bitcoin-*.blocks.jsonl.xz"):
        expected = list(rows(need(name)))
        found[expected[-1]["hash"]] = (name.removesuffix(".blocks.jsonl.xz"), expected)
    return found


def open_run(run: str, *, mark_unspendable: bool = True) -> tuple[Chain, str, list[dict[str, Any]]]:
    path, begun = need(run), first_hash(run)
    first = next(rows[0] for _, rows in expected_runs().values() if rows[0]["hash"] == begun)
    before = Point(first["height"] - 1, first["height"] - 1, bytes.fromhex(first["prev_hash"]))
    chain = Chain(
        path, network_of(run), Options(root=before if first["height"] > 1 else None, mark_unspendable=mark_unspendable)
    )
    name, expected = expected_runs()[chain.tip.hash.hex()]
    return chain, name, expected


def first_hash(run: str) -> str:
    header = bytes.fromhex(next(lines(need(run)))[:160])
    return hashlib.sha256(hashlib.sha256(header).digest()).digest()[::-1].hex()
