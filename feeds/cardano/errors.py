"""Errors in a source, in one line that names the place. All of them end the feed."""

from __future__ import annotations

from pathlib import Path

from feeds.errors import SourceError
from formats.cbor import CborError

__all__ = ["BlockError", "ChainError", "CutShort", "GenesisError", "SourceError"]


class GenesisError(SourceError):
    """A genesis file does not define what exists before the first block."""


class ChainError(SourceError):
    """Blocks that are sound one by one do not follow each other."""


class BlockError(SourceError, CborError):
    """The bytes at `offset` are not what a block has there."""

    def __init__(self, what: str, offset: int, file: Path | None = None) -> None:
        CborError.__init__(self, what, offset)
        self.file = file
        if file is not None:
            self.args = (f"{file}, {self}",)

    @classmethod
    def of(cls, error: CborError) -> BlockError:
        """Return the same error, met in a block."""
        return error if isinstance(error, BlockError) else cls(error.what, error.offset)

    def placed(self, file: Path, base: int) -> BlockError:
        """Return the same error, where the bytes that were examined begin at `base` of `file`."""
        return type(self)(self.what, self.offset + base, file)


class CutShort(BlockError):
    """The bytes end before the block does; more of them may follow."""
