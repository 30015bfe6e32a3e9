"""The messages between a daemon that follows a stream and its own process `replica`, next to those of every client.

The process sends `Following`, and `Logged` in front of each message of the stream. The daemon sends it what clients ask
for (`Submission`), to be published. These messages are accepted only on such a connection.
"""

from __future__ import annotations

from typing import Literal

import msgspec

from handlers.events import Event


class Following(Event, frozen=True, kw_only=True):
    """The stream that this connection follows, and its end. It is answered by `Reached`, and may be sent again."""

    stream: str  # another one with the same name is another stream
    end: int  # sequence of the last message that is known


class Logged(Event, frozen=True, kw_only=True, omit_defaults=True):
    """The place in the stream of the message that follows on this connection."""

    stream: str
    sequence: int
    at: int = 0  # milliseconds since 1970: when the stream received it
    origin: str = ""  # of a submission: the name that its daemon gave it
    id: str = ""  # which depends on all messages before it


class Unpublished(Event, frozen=True, kw_only=True):
    """A submission was not published; unless that is `certain`, it may still get a place in time."""

    origin: str
    code: str
    message: str
    retryable: bool = False
    certain: bool = True


class Published(Event, frozen=True, kw_only=True):
    """A submission is stored in the stream of submissions."""

    origin: str


class Reached(Event, frozen=True, kw_only=True):
    """The last message of a stream whose effect is durable; None if the daemon has another stream, or none."""

    sequence: int | None
    id: str = ""  # of that message, if it is known


class Submission(Event, frozen=True, kw_only=True):
    """A client's message that is to be published."""

    origin: str
    until: int  # milliseconds since 1970: it must not take effect later, since the client was refused by then
    encoding: Literal["json", "frames"]
    message: bytes


LOCAL = frozenset({"store_full", "unavailable"})  # codes of refusals that say nothing about other replicas
ToDaemon = Following | Logged | Published | Unpublished
TYPES = frozenset(kind.__name__ for kind in ToDaemon.__args__)
decode: msgspec.msgpack.Decoder[ToDaemon] = msgspec.msgpack.Decoder(ToDaemon)
