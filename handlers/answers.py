"""The answers to queries: the types of the HTTP API, field by field."""

from __future__ import annotations

from typing import Annotated, Any

from msgspec import UNSET, Meta, Struct, UnsetType

from handlers.events import Point
from storage.change_log import LogStore
from storage.disk import Disk, Txn
from storage.log_place import LogPlace

Hex = Annotated[str, Meta(pattern="^([0-9a-f]{2})*$")]
Hash = Annotated[str, Meta(pattern="^[0-9a-f]{64}$")]


class Amount(Struct, frozen=True, gc=False):
    """How much of one unit; the base unit has no policy. Quantities are strings: they pass 2^53."""

    unit: str
    policy_id: Hex | None
    asset_name: Hex | None
    quantity: Annotated[str, Meta(pattern="^[0-9]+$")]


class Utxo(Struct, frozen=True, kw_only=True, gc=False):
    """One output; `reassigned_at` only when it was given to its owner, the six after it only when it is spent."""

    tx_hash: Hash
    output_index: int
    owner_addr: str
    owner_stake_addr: str | None
    owner_payment_credential: Hex | None
    owner_stake_credential: Hex | None
    lovelace_amount: int
    amounts: list[Amount]
    data_hash: Hex | None
    inline_datum: Hex | None
    script_ref: Hex | None
    reference_script_hash: Hex | None
    is_collateral_return: bool
    slot: int
    block: Annotated[int, Meta(description="the height")]
    block_hash: Hash
    epoch: int | None
    block_time: int | None
    reassigned_at: Annotated[int | UnsetType, Meta(description="height of its latest OutputReassigned")] = UNSET
    spent_tx_hash: Hash | UnsetType = UNSET
    spent_at_slot: int | UnsetType = UNSET
    spent_at_block: int | UnsetType = UNSET
    spent_at_block_hash: Hash | UnsetType = UNSET
    spent_block_time: int | UnsetType | None = UNSET
    spent_epoch: int | UnsetType | None = UNSET


class Balance(Struct, frozen=True, kw_only=True):
    """What an address or credential holds, exactly."""

    lovelace_amount: int
    amounts: list[Amount]
    utxo_count: int


class TipAnswer(Struct, frozen=True):
    """A block's place in the chain."""

    height: int
    slot: int
    hash: Hash


class Failure(Struct, frozen=True):
    """Why there is no answer: a code for programs, a message with advice."""

    error: Annotated[str, Meta(pattern="^[a-z_]+$")]
    message: str
    hint: str | None = None
    detail: dict[str, Any] | UnsetType = UNSET


Number = Annotated[int, Meta(ge=0, lt=1 << 62)]


class MmrRoot(Struct, frozen=True, kw_only=True):
    """What an MMR store commits to: the outputs that were ever created, and which of them are unspent."""

    height: Annotated[int | None, Meta(description="of the block that it is true of, null before the first")]
    slot: int | None
    hash: Hash | None
    size: Annotated[Number, Meta(description="nodes over the outputs")]
    leaves: Annotated[Number, Meta(description="outputs ever created")]
    output_root: Hash
    bitmap_root: Hash
    root: Annotated[Hash, Meta(description="over size, output_root and bitmap_root")]


class HistoryStatus(Struct, frozen=True, kw_only=True):
    """The index `history`."""

    from_height: Annotated[int, Meta(description="height of the first block whose transactions are all in it")]
    entries: Annotated[int, Meta(description="one for each transaction and each address that it touches")]
    bytes: Annotated[int, Meta(description="of these entries on disk")]


class UtxoStatus(Struct, frozen=True, kw_only=True):
    """The UTXO store."""

    enabled: bool
    store: str
    blocks_applied: int
    unspent: int
    rollback_floor: TipAnswer | None
    prune_depth: int
    rollback_window: int
    prune_backlog_blocks: int
    indexes: list[str]
    rows: dict[str, int]
    mmr: MmrRoot | None
    history: Annotated[HistoryStatus | None, Meta(description="null where the index is not kept")]


class StorageStatus(Struct, frozen=True, kw_only=True):
    """The LMDB environment."""

    bytes_used: int
    map_size: int


class ChangeLogStatus(Struct, frozen=True, kw_only=True):
    """The change log: sequences of the oldest and the newest fact that are kept; an empty one has 1 and 0."""

    oldest: int
    newest: int
    bytes: Annotated[int, Meta(description="on disk")]


class StreamStatus(Struct, frozen=True, kw_only=True):
    """The stream that a replica follows, and how far it is."""

    name: str
    sequence: Annotated[int, Meta(description="of the last message whose effect is stored")]
    end: Annotated[int | None, Meta(description="sequence of the last message of the stream, null if not known")]
    behind: Annotated[int | None, Meta(description="messages that are not applied yet, null if not known")]


class ChainStatus(Struct, frozen=True, kw_only=True):
    """Which chain, and how far it is."""

    family: str
    network: str
    shard: Annotated[str | None, Meta(description="the shard of the outputs that this daemon keeps, such as 3/8")]
    network_tip_height: int | None
    lag_blocks: int | None
    persisted_height: int | None
    seconds_since_last_block: float | None


class Status(Struct, frozen=True, kw_only=True):
    """The state of the chain, the store and the daemon."""

    version: str
    protocol: int
    tip: TipAnswer | None
    chain: ChainStatus
    utxo: UtxoStatus
    storage: StorageStatus
    change_log: ChangeLogStatus
    stream: Annotated[StreamStatus | None, Meta(description="null before a message of a stream was applied")]


class Health(Struct, frozen=True, kw_only=True):
    """Whether questions can be answered, and how old the answers are."""

    status: Annotated[str, Meta(description="one of live, ready, daemon_away, empty, no_feeder, behind, not_enabled")]
    reason: Annotated[str | None, Meta(description="reason why it is not ready")]
    seconds_since_last_block: float | None
    lag_blocks: Annotated[int | None, Meta(description="null while the height of the network is unknown")]
    store_id: Annotated[str | None, Meta(description="identifier of the store")]


def table_rows(disk: Disk, txn: Txn) -> dict[str, int]:
    """Return how many rows each table of a store has."""
    return {name: txn.stat(db)["entries"] for name, db in disk.tables.items()}


def change_log_status(log: LogStore, txn: Txn) -> ChangeLogStatus:
    """Return where the change log begins and ends."""
    oldest, newest = log.ends(txn)
    return ChangeLogStatus(oldest=oldest, newest=newest, bytes=log.size(txn))


def stream_status(place: LogPlace | None, end: int | None) -> StreamStatus | None:
    """Return how far a replica is, by its stored place and the end that the process `replica` has reported."""
    if place is None:
        return None
    behind = None if end is None else max(end - place.sequence, 0)
    return StreamStatus(name=place.stream.partition("@")[0], sequence=place.sequence, end=end, behind=behind)


def to_tip(point: Point) -> TipAnswer:
    """Return a point as it is answered."""
    return TipAnswer(point.height, point.slot, point.hash.hex())
