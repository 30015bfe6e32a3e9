"""The tables of what answers queries: utxod's own HTTP interface, and the facades that implement other APIs."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

from msgspec import Meta

from config.kinds import Seconds, Secret, Table, Text
from config.units import ENDPOINT


class Http(Table, frozen=True, kw_only=True):
    """The read-only HTTP API."""

    listen: Annotated[
        str,
        Meta(
            description="Address of the read-only HTTP interface; an IPv6 host is written in brackets.",
            extra={"notation": ENDPOINT},
        ),
    ] = "127.0.0.1:8410"
    ready_grace: Annotated[
        Seconds, Meta(ge=0, description="Time without a feeder after which answers are no longer reported as ready.")
    ] = 60.0
    workers: Annotated[int, Meta(ge=0, le=1024, description="Number of HTTP workers; 0 disables HTTP.")] = 1
    token: Annotated[
        Secret | None,
        Meta(
            description="Secret that requests have to carry; without one, anyone who can connect may query.",
            examples=["a long random text"],
        ),
    ] = None
    allowed_hosts: Annotated[
        tuple[Text, ...],
        Meta(
            description="Names that Host may have besides localhost, loopback addresses and the host of listen; "
            '["*"] is every name. Not on loopback, addresses are accepted too, and every name while this is empty.'
        ),
    ] = ()
    max_connections: Annotated[
        int, Meta(ge=4, le=1_000_000, description="Connections to each worker; one more closes the longest waiting.")
    ] = 1024
    max_connections_per_address: Annotated[
        int, Meta(ge=0, le=1_000_000, description="Connections to each worker from one address; 0 is no limit.")
    ] = 0
    head_timeout: Annotated[Seconds, Meta(gt=0, description="Time for a client to send the head of a request.")] = 10.0
    cors_origins: Annotated[
        tuple[Text, ...],
        Meta(
            description='Origins whose pages may read answers, such as https://wallet.example.org; ["*"] is every one. '
            "While this is empty, every one may read the answers of the facades (kupo, blockfrost, ogmios), and none "
            "those of our own routes."
        ),
    ] = ()
    idle_timeout: Annotated[Seconds, Meta(gt=0, description="Time for which an idle connection is kept open.")] = 75.0
    send_timeout: Annotated[
        Seconds, Meta(gt=0, description="Time after which a client that reads nothing of its answer is disconnected.")
    ] = 30.0


class Kupo(Table, frozen=True, kw_only=True):
    """Kupo's API, under /kupo, for existing Kupo clients. Needs chain.family = "cardano"."""

    enabled: Annotated[bool, Meta(description="Answer Kupo's clients, under /kupo of http.listen.")] = False
    listen: Annotated[
        str | None,
        Meta(
            description="Address of a listener of its own, where the paths have no /kupo in front.",
            examples=["127.0.0.1:1442"],
            extra={"notation": ENDPOINT},
        ),
    ] = None


class Blockfrost(Table, frozen=True, kw_only=True):
    """The part of Blockfrost's API that is about outputs, under /blockfrost/NETWORK. Needs chain.family = "cardano"."""

    enabled: Annotated[
        bool, Meta(description="Answer Blockfrost's clients, under /blockfrost/NETWORK/api/v0 of http.listen.")
    ] = False
    listen: Annotated[
        str | None,
        Meta(
            description="Address of a listener of its own, where the paths begin with /api/v0.",
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
    """Ogmios' API, under /ogmios: queries for outputs are answered here, everything else by upstream.ogmios."""

    enabled: Annotated[bool, Meta(description="Answer Ogmios' clients, under /ogmios of http.listen.")] = False
    listen: Annotated[
        str | None,
        Meta(
            description="Address of a listener of its own, where the path is /.",
            examples=["127.0.0.1:1337"],
            extra={"notation": ENDPOINT},
        ),
    ] = None


class Upstream(Table, frozen=True, kw_only=True):
    """Servers for what the store does not have: protocol parameters, fees, mempool, raw bytes, submitting."""

    ogmios: Annotated[
        Secret | None,
        Meta(
            description="Ogmios server to query; never shown, because it may contain a password.",
            examples=["ws://127.0.0.1:1337"],
        ),
    ] = None
    timeout: Annotated[Seconds, Meta(gt=0, description="Time for an answer of the Ogmios server.")] = 30.0
    protocol_parameters: Annotated[
        Path | None,
        Meta(
            description="File with protocol parameters, as Ogmios' queryLedgerState/protocolParameters gives them; "
            "it is read instead of querying.",
            examples=["/etc/utxod/protocol-parameters.json"],
        ),
    ] = None
    bitcoin: Annotated[
        Secret | None,
        Meta(
            description="Node for raw transactions, fees, the mempool and broadcasting; never shown, because it may "
            "hold a password.",
            examples=["http://user:password@127.0.0.1:8332"],
        ),
    ] = None
    bitcoin_cookie: Annotated[
        Path | None,
        Meta(
            description="Cookie file of that node, instead of user and password.",
            examples=["/var/lib/bitcoin/.cookie"],
        ),
    ] = None
    mempool_interval: Annotated[Seconds, Meta(gt=0, description="How often the mempool of that node is read.")] = 2.0
