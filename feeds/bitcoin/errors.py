"""Errors in a source, in one line that names the place. Both end the feed."""

from feeds.errors import SourceError

__all__ = ["BlockError", "ChainError", "SourceError"]


class BlockError(SourceError):
    """The bytes of one block are not a block."""


class ChainError(SourceError):
    """Blocks that are sound one by one do not make a chain."""
