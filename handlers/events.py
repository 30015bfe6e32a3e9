"""The facts: what comes in over the socket, what goes out after a commit, and the answers.

The types are the wire contract (protocol, section 1), so their field names are too. Inbound facts are complete: no
handler has to ask back. They are decoded by the thousand per block, hence `gc=False` for what holds no cycle.

Inbound types refuse unknown fields, except in `Hello`: a misspelt `inputs` would lose a spend without an error. They
leave default values out when they are encoded, so a feeder of this version can feed a daemon that lacks its newest
fields.
"""

from __future__ import annotations

from typing import Annotated, Literal

from msgspec import Meta, Struct

from handlers.causes import AnyCause
from storage import keys

Hash32 = Annotated[bytes, Meta(min_length=32, max_length=32)]
Hash28 = Annotated[bytes, Meta(min_length=28, max_length=28)]
U32 = Annotated[int, Meta(ge=0, le=0xFFFF_FFFF)]
Count = Annotated[int, Meta(ge=0)]  # values, quantities, slots: 0 … 2^64-1, the upper bound is the encodings' own
Height = Annotated[int, Meta(ge=0, le=keys.HIGHEST)]
OutPoint = tuple[Hash32, U32]
Asset = tuple[Hash28, Annotated[bytes, Meta(max_length=32)], Count]


class Point(Struct, frozen=True, gc=False):
    """A block's place in the chain."""

    height: Count
    slot: Count
    hash: Hash32


class Output(Struct, frozen=True, gc=False, forbid_unknown_fields=True, omit_defaults=True):
    """What a transaction creates; `address` is the raw address (Cardano) or the locking script (Bitcoin)."""

    address: bytes
    value: Count
    assets: list[Asset] = []
    datum_hash: bytes | None = None
    inline_datum: bytes | None = None
    script_ref: bytes | None = None
    script_ref_hash: bytes | None = None
    spendable: bool = True


class Tx(Struct, frozen=True, gc=False, forbid_unknown_fields=True, omit_defaults=True):
    """One transaction of a block. `valid=False` is a phase-2 failure: collateral in, collateral return out.

    `previous` has value and script of what each input spends, where the sender knows it. `datums` are those among the
    witnesses; their hashes are BLAKE2b-256. `version`, `lock_time` and `previous` are kept with a transaction's record.
    """

    txid: Hash32
    inputs: list[OutPoint] = []
    outputs: list[Output] = []
    valid: bool = True
    collateral: list[OutPoint] = []
    references: list[OutPoint] = []
    collateral_return: Output | None = None
    coinbase: bool = False
    fee: int | None = None
    size: int | None = None
    subtree_index: int | None = None
    raw: bytes | None = None
    version: int | None = None
    lock_time: int | None = None
    previous: list[tuple[Count, bytes] | None] | None = None
    datums: list[bytes] = []


class Event(Struct, frozen=True, tag_field="type", tag=str):
    """A message on the wire: its class name is its `type`."""


class Message(Event, frozen=True, kw_only=True, forbid_unknown_fields=True, omit_defaults=True):
    """A message in; `seq` is the client's own number, echoed in the answer that it asks for."""

    seq: int | None = None


class NetworkTip(Struct, frozen=True, omit_defaults=True):
    """How far the network is, as the client sees it."""

    height: Height
    slot: Count | None = None


class Hello(Message, frozen=True, kw_only=True, forbid_unknown_fields=False):
    """Who connects, and how far the network is. Answered by `Welcome`.

    Unknown fields are ignored, so that a client can greet a daemon of any version.
    """

    client: str = ""
    network_tip: NetworkTip | None = None


class Subscribe(Message, frozen=True, kw_only=True):
    """Turn this connection into a stream of outbound facts, from a retained one on or from now on."""

    events: list[Literal["BlockCommitted", "RolledBack", "Pruned", "TxStatusChanged"]]
    from_sequence: Count | None = None


class Issuer(Struct, frozen=True, forbid_unknown_fields=True, omit_defaults=True):
    """What a Cardano feeder knows of a block's issuer: its keys and its operational certificate."""

    vkey: Hash32 | None = None
    vrf_vkey: Hash32 | None = None
    op_cert: bytes | None = None
    op_cert_counter: Count | None = None


class BlockApplied(Message, frozen=True, kw_only=True):
    """A block joined the chain. The store keeps everything but `txs` as it came, for every block."""

    height: Height
    hash: Hash32
    slot: Count | None = None
    prev_hash: Hash32 | None = None
    time: int | None = None
    epoch: int | None = None
    era: str | None = None
    block_id: int | None = None
    size: Count | None = None
    header: Annotated[bytes, Meta(min_length=80, max_length=80)] | None = None
    issuer: Issuer | None = None
    txs: list[Tx] = []

    @property
    def point(self) -> Point:
        """Return the block's place; a chain without slots counts heights."""
        return Point(self.height, self.height if self.slot is None else self.slot, self.hash)


class RollbackPoint(Struct, frozen=True, forbid_unknown_fields=True, omit_defaults=True):
    """Where to go back to: by `hash`, or without one by the last block whose slot is at most `slot`."""

    slot: Count | None = None
    hash: Hash32 | None = None
    height: Count | None = None


class Rollback(Message, frozen=True, kw_only=True):
    """The chain went back to a point; the point itself stays."""

    to: RollbackPoint | Literal["origin"]


class BlockPersisted(Message, frozen=True, kw_only=True):
    """Everything up to this height is safely kept elsewhere."""

    height: Count
    hash: Hash32 | None = None


class GenesisOutput(Struct, frozen=True, forbid_unknown_fields=True):
    """One output that exists before the first block."""

    txid: Hash32
    index: U32
    output: Output


class GenesisOutputs(Message, frozen=True, kw_only=True):
    """What exists before the first block; never rolled back."""

    outputs: list[GenesisOutput]


class NodeState(Message, frozen=True, kw_only=True):
    """What the node says it is doing; nothing is pruned unless it is running."""

    state: Literal["running", "catching_up", "reorganising", "stopped"]
    height: Height


# --- the life of transactions ------------------------------------------------------------------------------------


class TxSubmitted(Message, frozen=True, kw_only=True):
    """A transaction was accepted by the node and waits for a block. Its own lock ends at a restart.

    `on_spent` says what becomes of it when others have claimed or spent what it spends: it is refused, or kept as
    conflicting. `input_hashes` are the hashes of what it spends, one for each input, where the sender knows them.
    """

    tx: Tx
    locked: bool = False
    on_spent: Literal["refuse", "record"] = "refuse"
    input_hashes: list[Hash32 | None] | None = None

    @property
    def wanted(self) -> dict[int, bytes]:
        """Return the hashes that are given, by the numbers of their inputs."""
        return {n: name for n, name in enumerate(self.input_hashes or []) if name is not None}


class TxWithdrawn(Message, frozen=True, kw_only=True):
    """These transactions do not wait for a block any more; what builds on them leaves with them."""

    txids: list[Hash32]
    reason: Literal["evicted", "replaced", "expired", "operator"]


class TxUnlocked(Message, frozen=True, kw_only=True):
    """Outputs of these transactions may be spent, whoever locked them."""

    txids: list[Hash32]


class TxLocked(Message, frozen=True, kw_only=True):
    """Outputs of these transactions may not be spent for now (operator); it outlives restarts."""

    txids: list[Hash32]


class TxMined(Message, frozen=True, kw_only=True):
    """These transactions are in a block, or with `unset` no longer."""

    txids: list[Hash32]
    block_id: Count
    height: Height
    subtree_index: int | None = None
    longest: bool = True
    unset: bool = False


class OutputsFrozen(Message, frozen=True, kw_only=True):
    """Outputs that nobody may spend (operator)."""

    outpoints: list[OutPoint]


class OutputsUnfrozen(Message, frozen=True, kw_only=True):
    """Outputs that may be spent again (operator)."""

    outpoints: list[OutPoint]


class OutputReassigned(Message, frozen=True, kw_only=True):
    """A frozen output given to another address (operator)."""

    outpoint: OutPoint
    address: bytes


class TxConflicting(Message, frozen=True, kw_only=True):
    """Transactions that conflict with others, or with `value=False` no longer (operator)."""

    txids: list[Hash32]
    value: bool = True


class WinnersDecided(Message, frozen=True, kw_only=True):
    """Of the conflicting transactions these have won (operator)."""

    txids: list[Hash32]


class TxPreserved(Message, frozen=True, kw_only=True):
    """Transactions that are not pruned before a height (operator)."""

    txids: list[Hash32]
    until: Height


ChainMessage = BlockApplied | Rollback | BlockPersisted | GenesisOutputs | NodeState
OperatorMessage = (
    TxLocked | OutputsFrozen | OutputsUnfrozen | OutputReassigned | TxConflicting | WinnersDecided | TxPreserved
)
TxMessage = TxSubmitted | TxWithdrawn | TxUnlocked | TxMined | OperatorMessage
Inbound = Hello | Subscribe | ChainMessage | TxMessage


# --- published after the commit that they speak of ---------------------------------------------------------------


class BlockCommitted(Event, frozen=True, kw_only=True):
    """A block is durable on disk. `sequence` is a fact's place in the change log, 0 before it has one."""

    height: int
    slot: int
    hash: Hash32
    txs: int
    created: int
    spent: int
    missing_inputs: int
    sequence: int = 0


class RolledBack(Event, frozen=True, kw_only=True, rename={"from_": "from"}):
    """The tip went back from one point to another."""

    from_: Point
    to: Point | Literal["origin"]
    blocks: int
    sequence: int = 0


class Pruned(Event, frozen=True, kw_only=True, omit_defaults=True):
    """Rows that no reorganisation can reach are gone, and nodes of an MMR store below which nothing lives."""

    spent_outputs: int
    transactions: int
    undo_records: int
    floor: Point | None
    mmr_nodes: int = 0
    sequence: int = 0


class TxStatusChanged(Event, frozen=True, kw_only=True):
    """A transaction's life took a turn."""

    txid: Hash32
    status: str
    height: int | None = None
    cause: AnyCause | None = None
    sequence: int = 0


Fact = BlockCommitted | RolledBack | Pruned | TxStatusChanged


# --- answers -----------------------------------------------------------------------------------------------------


class ChainName(Struct, frozen=True):
    """Which chain a daemon keeps."""

    family: str
    network: str


class Welcome(Event, frozen=True, kw_only=True):
    """What a client needs to know before it feeds: where we are and how far back it may start."""

    protocol: int
    version: str
    chain: ChainName
    tip: Point | None
    points: list[Point]
    rollback_floor: Point | None
    persisted_height: int | None
    network_tip_height: int | None = None
    seconds_since_last_block: float | None = None
    feeder_away_s: float | None = None  # 0 while a feeder is connected, else since the last one left
    store_id: str | None = None  # of the store that this daemon keeps
    newest_sequence: int | None = None  # of the facts that were sent to subscribers
    seq: int | None = None


AckStatus = Literal["applied", "duplicate", "rolled_back", "noop", "accepted"]


class Ack(Event, frozen=True, kw_only=True, omit_defaults=True):
    """The effect of message `seq` is durable on disk.

    `evicted` is only there when older submissions had to make room for this one: how many transactions that were.
    """

    seq: int
    status: AckStatus
    tip: Point | None
    evicted: int = 0


class Error(Event, frozen=True, kw_only=True):
    """A message changed nothing, and why."""

    seq: int | None
    code: str
    message: str
    retryable: bool = False
    detail: dict[str, object] = {}


Outbound = Fact | Welcome | Ack | Error
