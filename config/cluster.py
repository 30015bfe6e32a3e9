"""The settings of replication."""

from __future__ import annotations

import re
from typing import Annotated

from msgspec import Meta

from config.kinds import Seconds, Secret, Table, Text

_SHARD = re.compile(r"([1-9][0-9]{0,3})/([1-9][0-9]{0,3})")
_MOST_SHARDS = 1024


class Cluster(Table, frozen=True, kw_only=True):
    """Replication: daemons that are fed from a stream of events reach the same state. See docs/cluster.md."""

    stream: Annotated[
        Secret | None,
        Meta(
            description="NATS servers, separated by commas, whose JetStream has the events of the chain. Feeds with "
            "--stream publish them; the daemon follows them in a separate process. It is never shown, because it may "
            "contain a password.",
            examples=["nats://10.0.0.1:4222,nats://10.0.0.2:4222"],
        ),
    ] = None
    shard: Annotated[
        Text | None,
        Meta(
            description="The shard of the outputs that this daemon keeps, as NUMBER/COUNT. It is fed from the stream "
            "of this shard, which utxod split publishes. A store keeps its shard: another one needs another data_dir.",
            examples=["3/8"],
        ),
    ] = None
    shards: Annotated[
        tuple[Text, ...],
        Meta(
            description="For `utxod gateway`: the addresses of the HTTP interfaces of all shards, in their order, such "
            "as http://10.0.0.1:8410. The gateway sends http.token to them."
        ),
    ] = ()
    shard_timeout: Annotated[
        Seconds,
        Meta(gt=0, description="Time after which a gateway reports that a shard does not answer."),
    ] = 10.0

    @property
    def shard_fault(self) -> str | None:
        """Return what is wrong with `shard`."""
        found = None if self.shard is None else _SHARD.fullmatch(self.shard)
        if self.shard is None or (found and int(found[1]) <= int(found[2]) <= _MOST_SHARDS):
            return None
        return f'expected NUMBER/COUNT, such as "3/8": a number from 1 to COUNT, at most {_MOST_SHARDS} shards'
