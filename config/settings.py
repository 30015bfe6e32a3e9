"""Every setting: type, bounds, default and what it does for the operator. One Struct is one TOML table."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Annotated, Literal

from msgspec import Meta

from config.kinds import GIB, MIB, TIB, Blocks, Bytes, Count, Seconds, Secret, Table, Text, Uid
from config.serving import Blockfrost, Http, Kupo, Ogmios, Upstream
from config.units import BLOB_STORE
from config.wallets import Electrum, Esplora


class Chain(Table, frozen=True, kw_only=True):
    """The chain that is kept."""

    family: Annotated[
        Literal["cardano", "bitcoin", "raw"],
        Meta(
            description="Family of the chain, which determines the rules for addresses; raw treats them as plain bytes."
        ),
    ] = "cardano"
    network: Annotated[Text, Meta(description="Network, which determines how addresses are written.")] = "mainnet"


class Socket(Table, frozen=True, kw_only=True):
    """Where feeders and subscribers connect."""

    path: Annotated[
        Path | None,
        Meta(
            description="Unix socket; by default $RUNTIME_DIRECTORY/utxod.sock, else utxod.sock in the data folder.",
            examples=["/run/utxod/utxod.sock"],
        ),
    ] = None
    max_frame_bytes: Annotated[
        Bytes, Meta(ge=1024, le=4 * GIB - 1, description="Longest message that is accepted.")
    ] = 256 * MIB
    admin_uids: Annotated[
        tuple[Uid, ...],
        Meta(description="Users who may send operator messages, besides root and the user of the daemon."),
    ] = ()
    max_unread_bytes: Annotated[
        Bytes, Meta(ge=MIB, description="Answers and events that all clients together may leave unread in memory.")
    ] = 128 * MIB


class Index(Table, frozen=True, kw_only=True):
    """Indexes of unspent outputs; each one takes space and time for every output."""

    address_hash: Annotated[bool, Meta(description="Find outputs by their whole address.")] = True
    payment_credential: Annotated[bool, Meta(description="Find outputs by payment credential (Cardano).")] = True
    stake_credential: Annotated[bool, Meta(description="Find outputs by stake credential (Cardano).")] = False
    policy: Annotated[bool, Meta(description="Find outputs by the policy of their assets.")] = False
    asset: Annotated[bool, Meta(description="Find outputs by asset, policy and name.")] = False
    datum: Annotated[bool, Meta(description="Find datums, and outputs by their datum, by the datum's hash.")] = False
    script: Annotated[bool, Meta(description="Find outputs by the script that they carry.")] = False
    history: Annotated[
        bool,
        Meta(
            description="Find all transactions that pay to an address or spend from it; "
            "with it nothing is forgotten, so the store grows with the chain."
        ),
    ] = False
    strategy: Annotated[
        Literal["address_hash", "payment_credential", "both"] | None,
        Meta(
            description="Sets address_hash and payment_credential together; cannot be combined with either of them.",
            examples=["both"],
        ),
    ] = None


class Delta(Table, frozen=True, kw_only=True):
    """What the undo log of a block contains."""

    self_contained: Annotated[
        bool,
        Meta(description="Accepted, without effect: undo logs name spent outputs, which stay as long as the logs."),
    ] = False


class Utxo(Table, frozen=True, kw_only=True):
    """The set of unspent outputs."""

    enabled: Annotated[bool, Meta(description="Keep the set of unspent outputs.")] = True
    store: Annotated[
        Literal["classic", "mmr"],
        Meta(description="Kind of store: mmr also proves outputs, and is slower."),
    ] = "classic"
    prune_depth: Annotated[
        Blocks, Meta(description="Blocks for which spent outputs stay available; rollback_window if that is longer.")
    ] = 2160
    rollback_window: Annotated[
        Blocks, Meta(description="Blocks that a rollback can undo; a deeper one is refused.")
    ] = 4320
    prune_batch_size: Annotated[Count, Meta(description="Spends to prune between two waiting blocks.")] = 500
    index: Index = Index()
    delta: Delta = Delta()


class Batch(Table, frozen=True, kw_only=True):
    """How many waiting blocks share a commit; at the tip every block is committed at once."""

    max_bytes: Annotated[Bytes, Meta(ge=1, description="Commit when the blocks to apply reach this size.")] = 64 * MIB
    max_delay_ms: Annotated[
        int, Meta(ge=0, le=3_600_000, description="Commit after so many milliseconds, even if more blocks wait.")
    ] = 500


class Transactions(Table, frozen=True, kw_only=True):
    """The states of transactions, from submission until no rollback can reach them."""

    enabled: Annotated[bool, Meta(description="Keep a record of every transaction.")] = True
    batch_size: Annotated[
        Count, Meta(description="Outputs per page of a record; a larger transaction takes several commits.")
    ] = 20_000
    block_height_retention: Annotated[
        Blocks, Meta(description="Blocks for which a fully spent transaction is kept.")
    ] = 288
    coinbase_maturity: Annotated[Blocks, Meta(description="Blocks until coinbase outputs may be spent.")] = 100
    reassign_delay: Annotated[
        Count, Meta(description="Blocks from OutputReassigned until the output is the new owner's.")
    ] = 1000
    max_inline_bytes: Annotated[
        Bytes, Meta(ge=0, le=GIB, description="Raw transactions longer than this become blobs.")
    ] = MIB
    externalize_all: Annotated[bool, Meta(description="Keep every raw transaction as a blob, however short.")] = False
    blob_store: Annotated[
        str,
        Meta(
            description="Folder (inside data_dir when relative) or bucket (address and keys from AWS_*) for blobs.",
            extra={"notation": BLOB_STORE},
        ),
    ] = "file:blobs"
    max_pending_bytes: Annotated[
        Bytes,
        Meta(
            ge=0,
            le=1 << 62,
            description="Space for submitted transactions that wait for a block, with their blobs; beyond it the "
            "oldest are evicted. 0 is no limit.",
        ),
    ] = GIB
    max_pending_count: Annotated[
        int,
        Meta(
            ge=0,
            le=1_000_000_000,
            description="Submitted transactions that may wait for a block; beyond it the oldest are evicted. "
            "0 is no limit.",
        ),
    ] = 1_000_000
    max_pending_age: Annotated[
        Seconds, Meta(ge=0, description="Age at which a transaction that still waits is evicted; 0 is never.")
    ] = 1_209_600.0


class Pruner(Table, frozen=True, kw_only=True):
    """The removal of what no reorganisation can reach any more."""

    enabled: Annotated[bool, Meta(description="Remove old rows; without it the store only grows.")] = True
    trigger: Annotated[
        Literal["auto", "persisted", "applied"],
        Meta(description="What triggers a cycle; auto is every applied block until a BlockPersisted arrives."),
    ] = "auto"
    chunk_size: Annotated[Count, Meta(description="Transactions deleted at most by one commit.")] = 1000
    unmined_retention: Annotated[
        Blocks | None,
        Meta(
            description="Blocks after which parents of an unmined transaction are preserved; "
            "less than transactions.block_height_retention, by default half of it.",
            examples=[144],
        ),
    ] = None
    parent_preservation_blocks: Annotated[
        Blocks, Meta(description="Blocks for which they are preserved; more than transactions.block_height_retention.")
    ] = 1440
    defensive: Annotated[bool, Meta(description="Keep a transaction while a rollback can reach a spender.")] = False
    progress_log_interval: Annotated[
        Seconds, Meta(ge=0, description="How often a long cycle logs how far it is; 0 is never.")
    ] = 30.0
    job_timeout: Annotated[Seconds, Meta(gt=0, description="Time after which a cycle leaves the rest to the next.")] = (
        600.0
    )
    max_job_history: Annotated[Count, Meta(description="Cycles that the journal keeps.")] = 1000


class Recovery(Table, frozen=True, kw_only=True):
    """Bringing pending transactions to finality when their notification was lost."""

    enabled: Annotated[bool, Meta(description="Follow pending transactions until they are final.")] = True
    store: Annotated[
        Literal["sqlite", "postgresql"],
        Meta(description="Where pending transactions are kept; several instances share them only in postgresql."),
    ] = "sqlite"
    dsn: Annotated[
        Secret | None,
        Meta(
            description="PostgreSQL database; never shown, because it may hold a password.",
            examples=["postgresql://utxod@localhost/utxod"],
        ),
    ] = None
    ttl: Annotated[Seconds, Meta(gt=0, description="Age at which a pending transaction is checked.")] = 30.0
    scan_interval: Annotated[Seconds, Meta(gt=0, description="Pause between two searches for them.")] = 5.0
    batch_size: Annotated[Count, Meta(description="Transactions that are claimed at once.")] = 100
    worker_count: Annotated[int, Meta(ge=1, le=1024, description="Transactions that are claimed at a time.")] = 4
    lease_duration: Annotated[Seconds, Meta(ge=1, description="Time after which a silent claim may be taken over.")] = (
        30.0
    )
    not_found_grace_period: Annotated[
        Seconds, Meta(ge=0, description="Age at which an unknown transaction is given up; 0 is never.")
    ] = 1800.0
    not_found_attempts: Annotated[
        Count, Meta(description="Times that it has to be unknown, over the same period, before it is given up.")
    ] = 3
    confirmations: Annotated[Count, Meta(description="Blocks that make a mined transaction final.")] = 6
    attempt_timeout: Annotated[
        Seconds, Meta(ge=0, description="Time for one attempt at a transaction; 0 is no limit, else at least 10s.")
    ] = 60.0
    max_attempts: Annotated[Count, Meta(description="Failed attempts after which an operator has to decide.")] = 20
    retry_base: Annotated[
        Seconds, Meta(gt=0, description="Longest pause after the first failure; it doubles with each further one.")
    ] = 2.0
    retry_cap: Annotated[Seconds, Meta(gt=0, description="Longest pause after any number of failures.")] = 600.0
    stuck_alert_threshold: Annotated[
        int, Meta(ge=0, le=1_000_000, description="Timeouts of one transaction in a row that are an error; 0 is never.")
    ] = 5
    retention: Annotated[
        Seconds, Meta(gt=0, description="Age at which confirmed and deleted transactions leave the list.")
    ] = 604_800.0
    unresolved_retention: Annotated[
        Seconds, Meta(ge=0, description="Age at which orphan and dead transactions leave the list; 0 is never.")
    ] = 2_592_000.0
    max_final_count: Annotated[
        int,
        Meta(
            ge=0,
            le=1_000_000_000,
            description="Final transactions that the list keeps, whatever their age, and pending ones that the daemon "
            "itself does not have; beyond it the oldest leave, or are orphans. 0 is no limit.",
        ),
    ] = 1_000_000
    handlers: Annotated[
        tuple[Text, ...],
        Meta(
            description="Custom handlers, called before the daemon's own sources: package.module:Class, or the name of "
            "an entry point in the group utxod.recovery_handlers."
        ),
    ] = ()
    node_url: Annotated[
        Secret | None,
        Meta(
            description="Node to query too, Bitcoin-family JSON-RPC; never shown, because it may contain a password.",
            examples=["http://user:password@127.0.0.1:8332"],
        ),
    ] = None
    node_cookie: Annotated[
        Path | None,
        Meta(
            description="Cookie file of that node, instead of user and password.",
            examples=["/var/lib/bitcoin/.cookie"],
        ),
    ] = None
    advisory_lock_id: Annotated[
        int,
        Meta(
            ge=-(1 << 63), le=(1 << 63) - 1, description="Lock of the leader in PostgreSQL; the same for all instances."
        ),
    ] = int.from_bytes(b"utxodrec")
    instance_id: Annotated[
        Text | None,
        Meta(
            description="Name of this instance in claims; by default host name and process id.",
            examples=["utxod-1"],
        ),
    ] = None


class Storage(Table, frozen=True, kw_only=True):
    """The LMDB environment in the data folder."""

    map_size: Annotated[
        Bytes, Meta(ge=MIB, le=1 << 47, description="Size of the map at first; it grows by itself.")
    ] = GIB
    max_map_size: Annotated[
        Bytes, Meta(ge=MIB, le=1 << 47, description="Largest size of the map; then the store is full.")
    ] = TIB


class LogRetention(Table, frozen=True, kw_only=True):
    """How much of the change log is kept: a fact beyond either limit is deleted. The newest one is always kept."""

    count: Annotated[int, Meta(ge=0, le=10**9, description="Facts kept, 80 bytes each; 0 is no limit.")] = 10**6
    age: Annotated[Seconds, Meta(ge=0, description="Age at which a fact is deleted; 0 is never.")] = 2_592_000.0


class Store(Table, frozen=True, kw_only=True):
    """Limits on what the store has to keep."""

    max_reader_age: Annotated[
        Seconds,
        Meta(
            gt=0,
            description="How long a read transaction may stay behind the latest commit before it is ended; "
            "until then the pages that it sees cannot be reused, and the file grows.",
        ),
    ] = 60.0
    log_retention: LogRetention = LogRetention()


class Log(Table, frozen=True, kw_only=True):
    """The log on standard error."""

    format: Annotated[
        Literal["auto", "json", "text"],
        Meta(description="One JSON object a line, or readable colours; auto is JSON unless on a terminal."),
    ] = "auto"
    level: Annotated[
        Literal["debug", "info", "warning", "error"], Meta(description="The lowest level that is written.")
    ] = "info"


class Config(Table, frozen=True, kw_only=True):
    """Everything that may differ between two machines."""

    data_dir: Annotated[
        Path,
        Meta(
            description="Folder of everything that the daemon knows, relative to the working directory; "
            "by default $STATE_DIRECTORY, else utxod-data."
        ),
    ] = Path("utxod-data")
    shutdown_timeout: Annotated[
        Seconds,
        Meta(gt=0, description="Time at SIGTERM for what was received before; less than systemd's TimeoutStopSec."),
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
