"""The best chain of a folder, or file, of Bitcoin blocks."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from pathlib import Path

from feeds.bitcoin.networks import Network
from feeds.bitcoin.source import Chain, Options
from handlers.events import BlockApplied, Point


def read_chain(
    path: Path,
    network: Network,
    after: Iterable[Point] = (),
    to_height: int | None = None,
    options: Options | None = None,
) -> Iterator[BlockApplied]:
    with Chain(path, network, options or Options()) as chain:
        yield from chain.blocks(after, to_height)
