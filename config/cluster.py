"""The settings of replication."""

from __future__ import annotations

from typing import Annotated

from msgspec import Meta

from config.kinds import Table, Text


class Cluster(Table, frozen=True, kw_only=True):
    """Replication: daemons that are fed from a stream of events reach the same state. See docs/cluster.md."""

    stream: Annotated[
        Text | None,
        Meta(
            description="NATS servers, separated by commas, whose JetStream has the events of the chain. Feeds with "
            "--stream publish them; the daemon follows them in a separate process.",
            examples=["nats://10.0.0.1:4222,nats://10.0.0.2:4222"],
        ),
    ] = None
