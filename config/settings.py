"""Every setting: type, bounds, default and meaning. Each Struct is one TOML table."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Annotated, Literal

from msgspec import Meta

from config.cluster import Cluster
from config.kinds import GIB, MIB, Blocks, Bytes, Count, Seconds, Secret, Table, Text, Uid
from config.serving import Blockfrost, Http, Kupo, Ogmios, Upstream
from config.store import Storage, Store, Utxo
from config.units import BLOB_STORE
from config.wallets import Electrum, Esplora


class Chain(Table, frozen=True, kw_only=True):
    """The chain that the daemon follows."""

    family: Annotated[
        Literal["cardano", "bitcoin", "raw"],
        Meta(
            description="Family of the chain. It determines how addresses are interpreted; raw treats them as "
            "plain bytes."
        ),
    ] = "cardano"
    network: Annotated[Text, Meta(description="Network of the chain. It determines how addresses are written.")] = (
        "mainnet"
    )


class Socket(Table, frozen=True, kw_only=True):
    """The Unix socket for feeders, subscribers and submitters."""

    path: Annotated[
        Path | None,
        Meta(
            description="Path of the socket; by default $RUNTIME_DIRECTORY/utxod.sock, or else utxod.sock in "
            "the data folder.",
            examples=["/run/utxod/utxod.sock"],
        ),
    ] = None
    max_frame_bytes: Annotated[Bytes, Meta(ge=1024, le=4 * GIB - 1, description="Maximum length of a message.")] = (
        256 * MIB
    )
    admin_uids: Annotated[
        tuple[Uid, ...],
        Meta(description="User ids that may send operator messages, in addition to root and the daemon's user."),
    ] = ()
    max_unread_bytes: Annotated[
        Bytes,
        Meta(ge=MIB, description="Maximum size of the answers and facts that all clients together may leave unread."),
    ] = 128 * MIB


class Batch(Table, frozen=True, kw_only=True):
    """How waiting blocks are combined into commits. At the tip every block is committed immediately."""

    max_bytes: Annotated[Bytes, Meta(ge=1, description="Commit when the waiting blocks reach this size.")] = 64 * MIB
    max_delay_ms: Annotated[
        int,
        Meta(
            ge=0, le=3_600_000, description="Commit after this number of milliseconds, even if more blocks are waiting."
        ),
    ] = 500


class Transactions(Table, frozen=True, kw_only=True):
    """Records of transactions, from their submission until no rollback can affect them."""

    enabled: Annotated[bool, Meta(description="Keep records of submitted transactions.")] = True
    batch_size: Annotated[
        Count,
        Meta(description="Number of outputs in each page of a record. A larger transaction needs several commits."),
    ] = 20_000
    block_height_retention: Annotated[
        Blocks, Meta(description="Number of blocks for which a fully spent transaction is kept.")
    ] = 288
    coinbase_maturity: Annotated[
        Blocks, Meta(description="Number of blocks after which coinbase outputs may be spent.")
    ] = 100
    reassign_delay: Annotated[
        Count,
        Meta(description="Number of blocks after OutputReassigned from which the output belongs to the new owner."),
    ] = 1000
    max_inline_bytes: Annotated[
        Bytes, Meta(ge=0, le=GIB, description="Raw transactions that are longer than this are stored as blobs.")
    ] = MIB
    externalize_all: Annotated[
        bool, Meta(description="Store every raw transaction as a blob, regardless of its length.")
    ] = False
    blob_store: Annotated[
        str,
        Meta(
            description="Folder (relative to data_dir) or bucket (with address and keys from AWS_*) for blobs.",
            extra={"notation": BLOB_STORE},
        ),
    ] = "file:blobs"
    max_pending_bytes: Annotated[
        Bytes,
        Meta(
            ge=0,
            le=1 << 62,
            description="Maximum space for submitted transactions that are not mined, with their blobs. Beyond "
            "it the oldest "
            "are evicted; 0 means no limit.",
        ),
    ] = GIB
    max_pending_count: Annotated[
        int,
        Meta(
            ge=0,
            le=1_000_000_000,
            description="Maximum number of submitted transactions that are not mined. Beyond it the oldest are "
            "evicted; "
            "0 means no limit.",
        ),
    ] = 1_000_000
    max_pending_age: Annotated[
        Seconds, Meta(ge=0, description="Age at which a transaction that is not mined is evicted; 0 means never.")
    ] = 1_209_600.0


class Pruner(Table, frozen=True, kw_only=True):
    """The deletion of data that no rollback can need any more."""

    enabled: Annotated[bool, Meta(description="Delete obsolete data. If it is off, the store only grows.")] = True
    trigger: Annotated[
        Literal["auto", "persisted", "applied"],
        Meta(
            description="Event that starts a cycle; auto means every applied block until a BlockPersisted is received."
        ),
    ] = "auto"
    chunk_size: Annotated[Count, Meta(description="Maximum number of transactions that one commit deletes.")] = 1000
    unmined_retention: Annotated[
        Blocks | None,
        Meta(
            description="Number of blocks after which the parents of an unmined transaction are preserved. "
            "It must be less than transactions.block_height_retention; the default is half of it.",
            examples=[144],
        ),
    ] = None
    parent_preservation_blocks: Annotated[
        Blocks,
        Meta(
            description="Number of blocks for which parents are preserved. "
            "It must be more than transactions.block_height_retention."
        ),
    ] = 1440
    defensive: Annotated[
        bool, Meta(description="Keep a transaction while a rollback can undo the block of one of its spenders.")
    ] = False
    progress_log_interval: Annotated[
        Seconds, Meta(ge=0, description="Interval at which a long cycle logs its progress; 0 means never.")
    ] = 30.0
    job_timeout: Annotated[
        Seconds, Meta(gt=0, description="Time after which a cycle ends. The next cycle continues its work.")
    ] = 600.0
    max_job_history: Annotated[Count, Meta(description="Number of cycles that the journal keeps.")] = 1000


class Recovery(Table, frozen=True, kw_only=True):
    """The recovery service, which determines the final status of pending transactions."""

    enabled: Annotated[bool, Meta(description="Track pending transactions until they are final.")] = True
    store: Annotated[
        Literal["sqlite", "postgresql"],
        Meta(description="Database for pending transactions. Several instances can share only a PostgreSQL database."),
    ] = "sqlite"
    dsn: Annotated[
        Secret | None,
        Meta(
            description="URL of the PostgreSQL database. It is never shown, because it may contain a password.",
            examples=["postgresql://utxod@localhost/utxod"],
        ),
    ] = None
    ttl: Annotated[Seconds, Meta(gt=0, description="Age at which the service first checks a pending transaction.")] = (
        30.0
    )
    scan_interval: Annotated[Seconds, Meta(gt=0, description="Pause between two searches for due transactions.")] = 5.0
    batch_size: Annotated[Count, Meta(description="Number of transactions that are claimed in one step.")] = 100
    worker_count: Annotated[
        int, Meta(ge=1, le=1024, description="Number of transactions that are checked concurrently.")
    ] = 4
    lease_duration: Annotated[
        Seconds, Meta(ge=1, description="Time after which another instance may take over a claim that was not renewed.")
    ] = 30.0
    not_found_grace_period: Annotated[
        Seconds,
        Meta(ge=0, description="Age at which a transaction that no source has becomes an orphan; 0 means never."),
    ] = 1800.0
    not_found_attempts: Annotated[
        Count, Meta(description="Number of checks within that period in which no source has the transaction.")
    ] = 3
    confirmations: Annotated[Count, Meta(description="Number of blocks after which a mined transaction is final.")] = 6
    attempt_timeout: Annotated[
        Seconds,
        Meta(ge=0, description="Time limit of one attempt to check a transaction: at least 10s, or 0 for no limit."),
    ] = 60.0
    max_attempts: Annotated[
        Count, Meta(description="Number of failed attempts after which an operator has to decide.")
    ] = 20
    retry_base: Annotated[
        Seconds, Meta(gt=0, description="Maximum pause after the first failure. It doubles with each further failure.")
    ] = 2.0
    retry_cap: Annotated[Seconds, Meta(gt=0, description="Maximum pause after any number of failures.")] = 600.0
    stuck_alert_threshold: Annotated[
        int,
        Meta(
            ge=0,
            le=1_000_000,
            description="Number of consecutive timeouts of a transaction that is logged as an error; 0 means never.",
        ),
    ] = 5
    retention: Annotated[
        Seconds, Meta(gt=0, description="Age at which confirmed and deleted transactions are removed from the list.")
    ] = 604_800.0
    unresolved_retention: Annotated[
        Seconds,
        Meta(ge=0, description="Age at which orphan and dead transactions are removed from the list; 0 means never."),
    ] = 2_592_000.0
    max_final_count: Annotated[
        int,
        Meta(
            ge=0,
            le=1_000_000_000,
            description="Maximum number of final transactions in the list, and of pending ones that the daemon "
            "itself does "
            "not have. Beyond it the oldest final ones are removed, and such pending ones become orphans; 0 "
            "means no limit.",
        ),
    ] = 1_000_000
    handlers: Annotated[
        tuple[Text, ...],
        Meta(
            description="Custom handlers, which are called before the daemon's own sources: "
            "package.module:Class, or the name of "
            "an entry point in the group utxod.recovery_handlers."
        ),
    ] = ()
    node_url: Annotated[
        Secret | None,
        Meta(
            description="JSON-RPC URL of a Bitcoin node to query too. It is never shown, because it may contain "
            "a password.",
            examples=["http://user:password@127.0.0.1:8332"],
        ),
    ] = None
    node_cookie: Annotated[
        Path | None,
        Meta(
            description="Cookie file of that node, instead of a user and password.",
            examples=["/var/lib/bitcoin/.cookie"],
        ),
    ] = None
    advisory_lock_id: Annotated[
        int,
        Meta(
            ge=-(1 << 63),
            le=(1 << 63) - 1,
            description="Number of the leader's advisory lock in PostgreSQL. It must be the same for all instances.",
        ),
    ] = int.from_bytes(b"utxodrec")
    instance_id: Annotated[
        Text | None,
        Meta(
            description="Name of this instance in claims; by default the host name.",
            examples=["utxod-1"],
        ),
    ] = None


class Log(Table, frozen=True, kw_only=True):
    """The log on standard error."""

    format: Annotated[
        Literal["auto", "json", "text"],
        Meta(
            description="Format: json is one JSON object per line, text is for people; auto means text on a "
            "terminal, otherwise json."
        ),
    ] = "auto"
    level: Annotated[Literal["debug", "info", "warning", "error"], Meta(description="Lowest level that is logged.")] = (
        "info"
    )


class Config(Table, frozen=True, kw_only=True):
    """All settings."""

    data_dir: Annotated[
        Path,
        Meta(
            description="Folder for all data of the daemon, relative to the working directory; "
            "by default $STATE_DIRECTORY, or else utxod-data."
        ),
    ] = Path("utxod-data")
    shutdown_timeout: Annotated[
        Seconds,
        Meta(
            gt=0,
            description="Maximum time after SIGTERM to apply received messages. It must be less than "
            "TimeoutStopSec of systemd.",
        ),
    ] = 60.0
    chain: Chain = Chain()
    socket: Socket = Socket()
    http: Http = Http()
    kupo: Kupo = Kupo()
    blockfrost: Blockfrost = Blockfrost()
    ogmios: Ogmios = Ogmios()
    electrum: Electrum = Electrum()
    esplora: Esplora = Esplora()
    upstream: Upstream = Upstream()
    cluster: Cluster = Cluster()
    utxo: Utxo = Utxo()
    batch: Batch = Batch()
    transactions: Transactions = Transactions()
    pruner: Pruner = Pruner()
    recovery: Recovery = Recovery()
    storage: Storage = Storage()
    store: Store = Store()
    log: Log = Log()


def socket_path(config: Config, environ: Mapping[str, str]) -> Path:
    """Return where the local socket is; systemd may name several runtime directories, the first one counts."""
    runtime = first_directory(environ, "RUNTIME_DIRECTORY")
    return config.socket.path or (runtime or config.data_dir) / "utxod.sock"


def first_directory(environ: Mapping[str, str], name: str) -> Path | None:
    """Return the first of the colon-separated directories that systemd passes in `name`, None without any."""
    first = environ.get(name, "").split(":")[0]
    return Path(first) if first else None
