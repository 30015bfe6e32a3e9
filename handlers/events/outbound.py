"""What the daemon sends: facts, each after its commit, and answers to messages."""

from __future__ import annotations

from typing import Annotated, Literal

from msgspec import Struct

from handlers.causes import AnyCause
from handlers.events.parts import ChainName, Hash32, Point
from handlers.meaning import about


class Event(Struct, frozen=True, tag_field="type", tag=str):
    """A message on the wire: its class name is its `type`."""


Sequence = Annotated[int, about("The fact's place in the change log, from 1 on, without a gap.")]


class BlockCommitted(Event, frozen=True, kw_only=True):
    """A block is durable on disk."""

    height: Annotated[int, about("Height of the block.")]
    slot: Annotated[int, about("Its slot; its height on a chain without slots.")]
    hash: Annotated[Hash32, about("Its hash.")]
    txs: Annotated[int, about("Number of its transactions.")]
    created: Annotated[int, about("Outputs that it created, without unspendable ones.")]
    spent: Annotated[int, about("Outputs that it spent, its own too.")]
    missing_inputs: Annotated[int, about("Inputs whose outputs were not unspent here; they were skipped.")]
    sequence: Sequence = 0


class RolledBack(Event, frozen=True, kw_only=True, rename={"from_": "from"}):
    """The tip went back from one point to another."""

    from_: Annotated[Point, about("The tip before.")]
    to: Annotated[Point | Literal["origin"], about("The tip now; `origin`: no block is left.")]
    blocks: Annotated[int, about("Number of blocks that were undone.")]
    sequence: Sequence = 0


class Pruned(Event, frozen=True, kw_only=True, omit_defaults=True):
    """Rows that no reorganisation can reach were deleted."""

    spent_outputs: Annotated[int, about("Spent outputs that were deleted.")]
    transactions: Annotated[int, about("Records of transactions that were deleted.")]
    undo_records: Annotated[int, about("Undo logs that were deleted.")]
    floor: Annotated[Point | None, about("The rollback floor now; null while every block can be undone.")]
    mmr_nodes: Annotated[int, about("Nodes of an MMR store below which no output is unspent any more.")] = 0
    sequence: Sequence = 0


class TxStatusChanged(Event, frozen=True, kw_only=True):
    """A transaction has another status."""

    txid: Annotated[Hash32, about("The transaction's id.")]
    status: Annotated[
        str,
        about(
            "`pending`, `mined`, `conflicting`, `withdrawn` or `pruned`; of the recovery service `confirmed`, "
            "`deleted`, `orphan` or `dead`."
        ),
    ]
    height: Annotated[int | None, about("Height of its block if it is mined, else of the tip.")] = None
    cause: Annotated[AnyCause | None, about("Why; null where no cause is known.")] = None
    sequence: Sequence = 0


class Welcome(Event, frozen=True, kw_only=True):
    """Where the daemon is, and how far back a feeder may start."""

    protocol: Annotated[int, about("Version of the protocol: it rises when something that was documented changes.")]
    version: Annotated[str, about("Version of the daemon.")]
    chain: Annotated[ChainName, about("Which chain it keeps.")]
    tip: Annotated[Point | None, about("The last block; null on an empty store.")]
    points: Annotated[
        list[Point], about("Blocks that a rollback can go to, newest first, thinning out down to the floor.")
    ]
    rollback_floor: Annotated[
        Point | None, about("The lowest block that a rollback can go to; null while it can go to the origin.")
    ]
    persisted_height: Annotated[int | None, about("The height of the last `BlockPersisted`.")]
    network_tip_height: Annotated[
        int | None,
        about("Height of the network, as the feeder reported it; null once no feeder has been connected for a while."),
    ] = None
    seconds_since_last_block: Annotated[float | None, about("Since this daemon committed a block; null before.")] = None
    feeder_away_s: Annotated[float | None, about("Seconds since the last feeder left; 0 while one is connected.")] = (
        None
    )
    store_id: Annotated[str | None, about("Identifies the store; changes when it is created again.")] = None
    newest_sequence: Annotated[int | None, about("Sequence of the last fact that was sent to subscribers.")] = None
    seq: Annotated[int | None, about("`seq` of the `Hello`.")] = None


AckStatus = Literal["applied", "duplicate", "rolled_back", "noop", "accepted"]


class Ack(Event, frozen=True, kw_only=True, omit_defaults=True):
    """The effect of a message is durable on disk. Only messages with a `seq` get one."""

    seq: Annotated[int, about("`seq` of the message.")]
    status: Annotated[AckStatus, about("What became of it.")]
    tip: Annotated[Point | None, about("The last block after it; null on an empty store.")]
    evicted: Annotated[int, about("How many older submissions were evicted for this one.")] = 0


class Error(Event, frozen=True, kw_only=True):
    """A message changed nothing, and why. It is also sent for messages without a `seq`."""

    seq: Annotated[int | None, about("`seq` of the message; null where it has none or could not be read.")]
    code: Annotated[str, about("What is wrong, for programs.")]
    message: Annotated[str, about("What is wrong and where, for people; the wording may change.")]
    retryable: Annotated[bool, about("Whether the same message may be accepted later.")] = False
    detail: Annotated[dict[str, object], about("More for programs; what is in it depends on `code`.")] = {}


Fact = BlockCommitted | RolledBack | Pruned | TxStatusChanged
Outbound = Fact | Welcome | Ack | Error
