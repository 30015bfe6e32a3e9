"""What is wrong with a source, in one line that names the place; all mean: stop, feeding on would be wrong."""

from __future__ import annotations

from pathlib import Path

from feeds.errors import SourceError

__all__ = ["BlockError", "ChainError", "CutShort", "GenesisError", "SourceError"]


class GenesisError(SourceError):
    """A genesis file does not say what exists before the first block."""


class ChainError(SourceError):
    """Blocks that are sound one by one do not follow each other."""


class BlockError(SourceError):
    """The bytes at `offset` are not what a block has there."""

    def __init__(self, what: str, offset: int, file: Path | None = None) -> None:
        super().__init__(f"{file}, byte {offset}: {what}" if file else f"byte {offset}: {what}")
        self.what, self.offset, self.file = what, offset, file

    def placed(self, file: Path, base: int) -> BlockError:
        """Return the same error, where the bytes that were looked at begin at `base` of `file`."""
        return type(self)(self.what, self.offset + base, file)


class CutShort(BlockError):
    """The bytes end before the block does; more of them may follow."""
