"""The settings of the protocols for Bitcoin wallets."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

from msgspec import Meta

from config.kinds import Count, Table
from config.units import ENDPOINT


class Electrum(Table, frozen=True, kw_only=True):
    """The Electrum protocol. It needs chain.family = "bitcoin", utxo.index.history and upstream.bitcoin."""

    enabled: Annotated[bool, Meta(description="Provide the Electrum protocol, in a separate process.")] = False
    listen: Annotated[
        str, Meta(description="Address for clients without encryption.", extra={"notation": ENDPOINT})
    ] = "127.0.0.1:50001"
    tls_listen: Annotated[
        str | None,
        Meta(
            description="Address for clients that use TLS; needs certificate and private_key.",
            examples=["0.0.0.0:50002"],
            extra={"notation": ENDPOINT},
        ),
    ] = None
    certificate: Annotated[
        Path | None, Meta(description="File with the certificate chain in PEM.", examples=["/etc/utxod/electrum.pem"])
    ] = None
    private_key: Annotated[
        Path | None,
        Meta(description="File with the private key of the certificate in PEM.", examples=["/etc/utxod/electrum.key"]),
    ] = None
    max_sessions: Annotated[
        Count, Meta(description="Maximum number of connected clients. Further clients are disconnected.")
    ] = 10_000
    max_subscriptions: Annotated[
        Count,
        Meta(
            description="Maximum number of scripts and outputs that all clients together may subscribe to. "
            "A million take 0.2 to 0.35 GB of memory."
        ),
    ] = 2_000_000
    max_subscriptions_per_session: Annotated[
        Count, Meta(description="Maximum number of scripts and outputs that one client may subscribe to.")
    ] = 500_000


class Esplora(Table, frozen=True, kw_only=True):
    """The HTTP API of Esplora. It needs chain.family = "bitcoin", utxo.index.history and upstream.bitcoin."""

    enabled: Annotated[bool, Meta(description="Provide the API of Esplora, in the process of the Electrum server.")] = (
        False
    )
    listen: Annotated[
        str,
        Meta(description="Address of the API. Paths begin with / or with /api.", extra={"notation": ENDPOINT}),
    ] = "127.0.0.1:3002"
