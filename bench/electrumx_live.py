"""Runs in ElectrumX's own environment: applies a chain as its server does at the tip, or starts its server.

ElectrumX's intervals of polling, five seconds, are shortened for the server: notifications would wait for them.
"""

from __future__ import annotations

import asyncio
import json
import os
import sys
import time
from pathlib import Path
from typing import Any

_POLL_S = 0.02


class _Node:
    """A node that is queried only for its height."""

    def __init__(self) -> None:
        self.height = 0

    def cached_height(self) -> int:
        """Return the height that is known."""
        return self.height


class _NoSessions:
    """No sessions."""

    async def on_block(self, *_: object) -> None:
        """Notify no session."""


async def _apply(blocks: list[Path]) -> None:
    """Apply the blocks in files one by one, each with its own flush, and print the rate."""
    from electrumx import Env  # type: ignore[import-not-found]
    from electrumx.server.block_processor import BlockProcessor, OnDiskBlock  # type: ignore[import-not-found]
    from electrumx.server.db import DB  # type: ignore[import-not-found]

    env, node = Env(), _Node()
    processor: Any = BlockProcessor(env, DB(env), node, _NoSessions())
    processor.state = OnDiskBlock.state = (await processor.db.open_for_sync()).copy()
    OnDiskBlock.daemon = node
    await OnDiskBlock.scan_files()
    took = 0.0
    for height, path in enumerate(blocks):
        name = path.name.partition("-")[2]
        OnDiskBlock.blocks[name] = height, path.stat().st_size
        path.rename(OnDiskBlock.filename(name, height))
        node.height, began = height, time.perf_counter()
        await processor.advance_blocks([name])
        await processor.on_caught_up()
        if height > 1:  # what comes before prepares the payments
            took += time.perf_counter() - began
    assert processor.state.height == len(blocks) - 1, f"stopped at height {processor.state.height}"
    await processor.flush(True)
    print(json.dumps({"seconds": took}))


def _serve() -> None:
    from electrumx import Controller, Env
    from electrumx.server.block_processor import BlockProcessor
    from electrumx.server.mempool import MemPool  # type: ignore[import-not-found]

    BlockProcessor.polling_delay = _POLL_S
    MemPool.__init__.__defaults__ = (_POLL_S, 60.0)
    asyncio.run(Controller(Env()).run())


def main() -> None:
    """Apply the blocks of the folder that the first argument names, or serve without one."""
    if len(sys.argv) == 1:
        _serve()
        return
    blocks = sorted(Path(sys.argv[1]).iterdir(), key=lambda path: int(path.name.partition("-")[0]))
    os.chdir(os.environ["DB_DIRECTORY"])
    asyncio.run(_apply(blocks))


if __name__ == "__main__":
    main()
