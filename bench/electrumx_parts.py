"""Runs a peer's script in ElectrumX's environment, which reads long lists of blocks in parts.

ElectrumX fetches some ten megabytes at a time and examines its cache after each of them. The script passes
everything that comes before the measurement as one list, which would take all memory where an old set is in it.
"""

from __future__ import annotations

import runpy
import sys
from collections.abc import Sequence
from typing import Any

_PART = 10 << 20  # bytes


def main() -> None:
    """Run the script that the first argument names, with those that follow."""
    from electrumx.server.block_processor import BlockProcessor  # type: ignore[import-not-found]

    whole = BlockProcessor.check_and_advance_blocks

    async def in_parts(self: Any, blocks: Sequence[bytes]) -> None:
        part, size = list[bytes](), 0
        for block in blocks:
            part.append(block)
            size += len(block)
            if size >= _PART:
                await whole(self, part)
                part, size = [], 0
        if part:
            await whole(self, part)

    BlockProcessor.check_and_advance_blocks = in_parts
    sys.argv = sys.argv[1:]
    runpy.run_path(sys.argv[0], run_name="__main__")


if __name__ == "__main__":
    main()
