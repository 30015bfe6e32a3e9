"""The settings of the store: the set of unspent outputs, the LMDB environment, and the change log."""

from __future__ import annotations

from typing import Annotated, Literal

from msgspec import Meta

from config.kinds import GIB, MIB, TIB, Blocks, Bytes, Count, Seconds, Table


class Index(Table, frozen=True, kw_only=True):
    """Indexes of unspent outputs. Each enabled index needs disk space and time for every output."""

    address_hash: Annotated[bool, Meta(description="Find outputs by their whole address.")] = True
    payment_credential: Annotated[bool, Meta(description="Find outputs by payment credential (Cardano).")] = True
    stake_credential: Annotated[bool, Meta(description="Find outputs by stake credential (Cardano).")] = False
    policy: Annotated[bool, Meta(description="Find outputs by the policy of their assets.")] = False
    asset: Annotated[bool, Meta(description="Find outputs by asset (policy and name).")] = False
    datum: Annotated[
        bool, Meta(description="Find datums, and the outputs that have them, by the hash of the datum.")
    ] = False
    script: Annotated[bool, Meta(description="Find outputs by the hash of their reference script.")] = False
    history: Annotated[
        bool,
        Meta(
            description="Find all transactions that pay to an address or spend from it. "
            "With this index spent outputs are never deleted, so the store grows with the chain."
        ),
    ] = False
    strategy: Annotated[
        Literal["address_hash", "payment_credential", "both"] | None,
        Meta(
            description="Sets address_hash and payment_credential together. It cannot be combined with either of them.",
            examples=["both"],
        ),
    ] = None


class Delta(Table, frozen=True, kw_only=True):
    """The undo logs of blocks."""

    self_contained: Annotated[
        bool,
        Meta(
            description="Accepted, but without effect: spent outputs are always kept as long as the undo logs "
            "that refer to them."
        ),
    ] = False


class Utxo(Table, frozen=True, kw_only=True):
    """The set of unspent outputs."""

    enabled: Annotated[bool, Meta(description="Maintain the set of unspent outputs.")] = True
    store: Annotated[
        Literal["classic", "mmr"],
        Meta(description="Kind of store. A store of the kind mmr also provides proofs, and is slower."),
    ] = "classic"
    prune_depth: Annotated[
        Blocks,
        Meta(description="Number of blocks for which spent outputs can be queried; at least rollback_window is used."),
    ] = 2160
    rollback_window: Annotated[
        Blocks, Meta(description="Number of blocks that a rollback can undo. A deeper rollback is refused.")
    ] = 4320
    prune_batch_size: Annotated[
        Count, Meta(description="Maximum number of spends to prune between two waiting blocks.")
    ] = 500
    index: Index = Index()
    delta: Delta = Delta()


class Storage(Table, frozen=True, kw_only=True):
    """The LMDB environment in the data folder."""

    map_size: Annotated[
        Bytes, Meta(ge=MIB, le=1 << 47, description="Initial size of the map. It grows automatically.")
    ] = GIB
    max_map_size: Annotated[
        Bytes, Meta(ge=MIB, le=1 << 47, description="Maximum size of the map. When it is reached, the store is full.")
    ] = TIB


class LogRetention(Table, frozen=True, kw_only=True):
    """Limits of the change log. A fact beyond either limit is deleted; the newest fact is always kept."""

    count: Annotated[
        int, Meta(ge=0, le=10**9, description="Maximum number of facts, of up to 80 bytes each; 0 means no limit.")
    ] = 10**6
    age: Annotated[Seconds, Meta(ge=0, description="Age at which a fact is deleted; 0 means never.")] = 2_592_000.0


class Store(Table, frozen=True, kw_only=True):
    """Limits of the store."""

    max_reader_age: Annotated[
        Seconds,
        Meta(
            gt=0,
            description="Maximum time for which a read transaction may stay behind the latest commit. "
            "Meanwhile the pages that it sees cannot be reused, and the file grows.",
        ),
    ] = 60.0
    log_retention: LogRetention = LogRetention()
