"""Errors that end a feed, in one line. The daemon keeps the state that it acknowledged last."""


class FeedError(Exception):
    """The feed can't continue."""


class SourceError(FeedError):
    """What was given can't be turned into a chain."""
