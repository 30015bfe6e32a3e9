"""The settings that must be equal in all replicas of a stream: the first replica stores its own next to the stream."""

from __future__ import annotations

from collections.abc import Mapping

import msgspec
from nats.js.api import KeyValueConfig
from nats.js.errors import KeyNotFoundError, KeyWrongLastSequenceError, NotFoundError

from feeds.errors import FeedError
from feeds.stream.log import Log

_BUCKET = "UTXOD_SETTINGS"


async def agree(stream: Log, settings: Mapping[str, object]) -> None:
    """Compare settings with those of the first replica of a stream.

    Raises:
        FeedError: they differ.
        TROUBLE: the servers do not answer.
    """
    key, ours = stream.subject.removeprefix("utxod."), {name: str(value) for name, value in settings.items()}
    async with stream.connection.api() as api:
        try:
            bucket = await api.key_value(_BUCKET)
        except NotFoundError:
            replicas = (await api.stream_info(stream.name)).config.num_replicas or 1
            bucket = await api.create_key_value(KeyValueConfig(bucket=_BUCKET, replicas=replicas))
        try:
            stored = await bucket.get(key)
        except KeyNotFoundError:
            try:
                await bucket.create(key, msgspec.json.encode(ours))
                return
            except KeyWrongLastSequenceError:  # another replica was first
                stored = await bucket.get(key)
    theirs = msgspec.json.decode(stored.value or b"{}", type=dict[str, str])
    different = [name for name in {**theirs, **ours} if theirs.get(name) != ours.get(name)]
    if different:
        each = "; ".join(f"{name} is {ours.get(name)}, not {theirs.get(name)}" for name in different)
        advice = f"make them equal, or stop all replicas and delete the key {key} of the bucket {_BUCKET}"
        raise FeedError(f"settings differ from those of the other replicas of {stream.name}: {each}; {advice}")
