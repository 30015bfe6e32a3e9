"""The tables of the protocols of Bitcoin wallets."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

from msgspec import Meta

from config.kinds import Count, Table
from config.units import ENDPOINT


class Electrum(Table, frozen=True, kw_only=True):
    """The Electrum protocol. Needs chain.family = "bitcoin", utxo.index.history and upstream.bitcoin."""

    enabled: Annotated[bool, Meta(description="Answer Electrum clients, in a process of its own.")] = False
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
        Path | None, Meta(description="Certificate chain in PEM.", examples=["/etc/utxod/electrum.pem"])
    ] = None
    private_key: Annotated[
        Path | None, Meta(description="Its private key in PEM.", examples=["/etc/utxod/electrum.key"])
    ] = None
    max_sessions: Annotated[Count, Meta(description="Clients that may be connected; another one is disconnected.")] = (
        10_000
    )
    max_subscriptions: Annotated[Count, Meta(description="Scripts that all clients may subscribe to together.")] = (
        10_000_000
    )
    max_subscriptions_per_session: Annotated[Count, Meta(description="Scripts that a client may subscribe to.")] = (
        1_000_000
    )


class Esplora(Table, frozen=True, kw_only=True):
    """Esplora's HTTP API. Needs chain.family = "bitcoin", utxo.index.history and upstream.bitcoin."""

    enabled: Annotated[bool, Meta(description="Answer Esplora clients, in the process of the Electrum server.")] = False
    listen: Annotated[
        str,
        Meta(description="Address for HTTP; paths begin with / or with /api.", extra={"notation": ENDPOINT}),
    ] = "127.0.0.1:3002"
