"""What ends a feed: one clear line. The daemon's state is what it last acknowledged."""


class FeedError(Exception):
    """The feed can't go on."""


class SourceError(FeedError):
    """What was given can't be turned into a chain."""
