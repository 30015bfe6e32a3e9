"""Chains that are replicated through NATS JetStream: feeds publish events to a stream, daemons are fed from it."""

from feeds.errors import SourceError

try:
    import nats  # noqa: F401 -- checked before a module of this package imports it
except ImportError as error:
    raise SourceError("streams need the package nats-py: pip install 'utxod[stream]'") from error
