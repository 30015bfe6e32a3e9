"""The settings of utxod's own HTTP interface, and of the facades that implement other APIs."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

from msgspec import Meta

from config.kinds import Seconds, Secret, Table, Text
from config.units import ENDPOINT


class Http(Table, frozen=True, kw_only=True):
    """The HTTP API, which is read-only."""

    listen: Annotated[
        str,
        Meta(
            description="Address and port, or unix:/path. An IPv6 address is written in brackets.",
            extra={"notation": ENDPOINT},
        ),
    ] = "127.0.0.1:8410"
    ready_grace: Annotated[
        Seconds, Meta(ge=0, description="Time without a feeder after which the daemon is no longer ready.")
    ] = 60.0
    workers: Annotated[int, Meta(ge=0, le=1024, description="Number of HTTP workers; 0 disables HTTP.")] = 1
    token: Annotated[
        Secret | None,
        Meta(
            description="Token that requests must contain. Without a token, every client that can connect may query.",
            examples=["a long random text"],
        ),
    ] = None
    allowed_hosts: Annotated[
        tuple[Text, ...],
        Meta(
            description="Host names that requests may contain in addition to localhost, loopback addresses and "
            "the host of "
            'listen; ["*"] allows every name. If listen is not on loopback, every address is allowed too, and every '
            "name if this list is empty."
        ),
    ] = ()
    max_connections: Annotated[
        int,
        Meta(
            ge=4,
            le=1_000_000,
            description="Maximum number of connections to each worker. A new one replaces the one that has "
            "waited longest.",
        ),
    ] = 1024
    max_connections_per_address: Annotated[
        int,
        Meta(
            ge=0,
            le=1_000_000,
            description="Maximum number of connections to each worker from one address; 0 means no limit.",
        ),
    ] = 0
    head_timeout: Annotated[
        Seconds, Meta(gt=0, description="Maximum time for a client to send the head of a request.")
    ] = 10.0
    cors_origins: Annotated[
        tuple[Text, ...],
        Meta(
            description='Origins whose pages may read answers, such as https://wallet.example.org; ["*"] allows '
            "every origin. "
            "If this list is empty, every origin may read answers of facades (kupo, blockfrost, ogmios), and no origin "
            "may read answers of other routes."
        ),
    ] = ()
    idle_timeout: Annotated[Seconds, Meta(gt=0, description="Time after which an idle connection is closed.")] = 75.0
    send_timeout: Annotated[
        Seconds, Meta(gt=0, description="Time after which a client that reads nothing of its answer is disconnected.")
    ] = 30.0


class Kupo(Table, frozen=True, kw_only=True):
    """The API of Kupo, under /kupo. It needs chain.family = "cardano"."""

    enabled: Annotated[bool, Meta(description="Provide the API of Kupo, under /kupo of http.listen.")] = False
    listen: Annotated[
        str | None,
        Meta(
            description="Address of a separate listener, where paths do not begin with /kupo.",
            examples=["127.0.0.1:1442"],
            extra={"notation": ENDPOINT},
        ),
    ] = None


class Blockfrost(Table, frozen=True, kw_only=True):
    """The part of Blockfrost's API that concerns outputs. It needs chain.family = "cardano"."""

    enabled: Annotated[
        bool, Meta(description="Provide the API of Blockfrost, under /blockfrost/NETWORK/api/v0 of http.listen.")
    ] = False
    listen: Annotated[
        str | None,
        Meta(
            description="Address of a separate listener, where paths begin with /api/v0.",
            examples=["127.0.0.1:3000"],
            extra={"notation": ENDPOINT},
        ),
    ] = None
    genesis: Annotated[
        Path | None,
        Meta(
            description="Shelley genesis file, for networks other than mainnet, preprod and preview.",
            examples=["/etc/utxod/shelley-genesis.json"],
        ),
    ] = None


class Ogmios(Table, frozen=True, kw_only=True):
    """The API of Ogmios. Queries for outputs are answered from the store, and all others by upstream.ogmios."""

    enabled: Annotated[bool, Meta(description="Provide the API of Ogmios, under /ogmios of http.listen.")] = False
    listen: Annotated[
        str | None,
        Meta(
            description="Address of a separate listener, where the path is /.",
            examples=["127.0.0.1:1337"],
            extra={"notation": ENDPOINT},
        ),
    ] = None


class Upstream(Table, frozen=True, kw_only=True):
    """Servers for requests that the store cannot answer: protocol parameters, fees, mempool, raw bytes, submission."""

    ogmios: Annotated[
        Secret | None,
        Meta(
            description="URL of an Ogmios server. It is never shown, because it may contain a password.",
            examples=["ws://127.0.0.1:1337"],
        ),
    ] = None
    timeout: Annotated[Seconds, Meta(gt=0, description="Maximum time to wait for an answer of the Ogmios server.")] = (
        30.0
    )
    protocol_parameters: Annotated[
        Path | None,
        Meta(
            description="File with protocol parameters in the form that queryLedgerState/protocolParameters of "
            "Ogmios returns. "
            "It is used instead of a query.",
            examples=["/etc/utxod/protocol-parameters.json"],
        ),
    ] = None
    bitcoin: Annotated[
        Secret | None,
        Meta(
            description="JSON-RPC URL of a Bitcoin node for raw transactions, fees, the mempool and broadcasting. "
            "It is never shown, because it may contain a password.",
            examples=["http://user:password@127.0.0.1:8332"],
        ),
    ] = None
    bitcoin_cookie: Annotated[
        Path | None,
        Meta(
            description="Cookie file of that node, instead of a user and password.",
            examples=["/var/lib/bitcoin/.cookie"],
        ),
    ] = None
    mempool_interval: Annotated[
        Seconds, Meta(gt=0, description="Interval at which the mempool of that node is read.")
    ] = 2.0
