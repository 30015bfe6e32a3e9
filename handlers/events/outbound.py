"""Messages from the daemon: facts, each after its commit, and answers to messages."""

from __future__ import annotations

from typing import Annotated, Literal

from msgspec import Struct

from handlers.causes import AnyCause
from handlers.events.parts import ChainName, Hash32, Point
from handlers.meaning import about


class Event(Struct, frozen=True, tag_field="type", tag=str):
    """A message on the wire: its class name is its `type`."""


Sequence = Annotated[int, about("Position of the fact in the change log. Sequences begin at 1 and have no gaps.")]


class BlockCommitted(Event, frozen=True, kw_only=True):
    """A block is durable on disk."""

    height: Annotated[int, about("Height of the block.")]
    slot: Annotated[int, about("Slot of the block; on a chain without slots, its height.")]
    hash: Annotated[Hash32, about("Hash of the block.")]
    txs: Annotated[int, about("Number of transactions in the block.")]
    created: Annotated[int, about("Number of outputs that it created, without unspendable ones.")]
    spent: Annotated[int, about("Number of outputs that it spent, including those that it created.")]
    missing_inputs: Annotated[int, about("Number of inputs whose output is not in the set; they were skipped.")]
    sequence: Sequence = 0


class RolledBack(Event, frozen=True, kw_only=True, rename={"from_": "from"}):
    """Blocks were rolled back."""

    from_: Annotated[Point, about("Tip before the rollback.")]
    to: Annotated[Point | Literal["origin"], about("Tip after the rollback; `origin` if no block is left.")]
    blocks: Annotated[int, about("Number of blocks that were undone.")]
    sequence: Sequence = 0


class Pruned(Event, frozen=True, kw_only=True, omit_defaults=True):
    """Data that no rollback can need any more was deleted."""

    spent_outputs: Annotated[int, about("Number of spent outputs that were deleted.")]
    transactions: Annotated[int, about("Number of records of transactions that were deleted.")]
    undo_records: Annotated[int, about("Number of undo logs that were deleted.")]
    floor: Annotated[Point | None, about("Rollback floor after the commit; null if every block can be undone.")]
    mmr_nodes: Annotated[int, about("Number of nodes of an MMR store that are no longer needed.")] = 0
    sequence: Sequence = 0


class TxStatusChanged(Event, frozen=True, kw_only=True):
    """The status of a transaction changed."""

    txid: Annotated[Hash32, about("Id of the transaction.")]
    status: Annotated[
        str,
        about(
            "`pending`, `mined`, `conflicting`, `withdrawn` or `pruned`. The recovery service determines `confirmed`, "
            "`deleted`, `orphan` and `dead`."
        ),
    ]
    height: Annotated[int | None, about("Height of its block if it is mined, otherwise of the tip.")] = None
    cause: Annotated[AnyCause | None, about("Cause of the change; null if it is not known.")] = None
    sequence: Sequence = 0


class Welcome(Event, frozen=True, kw_only=True):
    """The state of the daemon, and the blocks from which a feeder can continue."""

    protocol: Annotated[int, about("Version of the protocol. It increases when documented behaviour changes.")]
    version: Annotated[str, about("Version of the daemon.")]
    chain: Annotated[ChainName, about("Chain of the daemon.")]
    tip: Annotated[Point | None, about("Last block; null on an empty store.")]
    points: Annotated[
        list[Point],
        about("Blocks that a rollback can return to, newest first, with increasing distances down to the floor."),
    ]
    rollback_floor: Annotated[
        Point | None, about("Lowest block that a rollback can return to; null if it can return to the origin.")
    ]
    persisted_height: Annotated[int | None, about("Height of the last `BlockPersisted`.")]
    network_tip_height: Annotated[
        int | None,
        about("Height of the network, as reported by the feeder; null after `http.ready_grace` without a feeder."),
    ] = None
    seconds_since_last_block: Annotated[
        float | None, about("Seconds since this daemon last committed a block; null before its first.")
    ] = None
    feeder_away_s: Annotated[
        float | None, about("Seconds since the last feeder disconnected; 0 while one is connected.")
    ] = None
    store_id: Annotated[
        str | None, about("Identifier of the store. A store that is created again has another one.")
    ] = None
    newest_sequence: Annotated[int | None, about("Sequence of the last fact that was sent to subscribers.")] = None
    stream_sequence: Annotated[
        int | None, about("Sequence of the last applied message of the stream; null unless the daemon follows one.")
    ] = None
    stream_end: Annotated[int | None, about("Sequence of the last message of the stream, if it is known.")] = None
    seq: Annotated[int | None, about("`seq` of the `Hello` message.")] = None


AckStatus = Literal["applied", "duplicate", "rolled_back", "noop", "accepted"]


class Ack(Event, frozen=True, kw_only=True, omit_defaults=True):
    """The effect of a message is durable on disk. Only messages with a `seq` get an `Ack`."""

    seq: Annotated[int, about("`seq` of the message.")]
    status: Annotated[AckStatus, about("Result.")]
    tip: Annotated[Point | None, about("Last block after the message was applied; null on an empty store.")]
    evicted: Annotated[int, about("Number of older submissions that were evicted for this one.")] = 0


class Error(Event, frozen=True, kw_only=True):
    """A message was refused and changed nothing. It is also sent for messages without a `seq`."""

    seq: Annotated[int | None, about("`seq` of the message; null if it has none, or if it could not be read.")]
    code: Annotated[str, about("Error code, for programs.")]
    message: Annotated[str, about("Description of the error and its place, for people. The wording may change.")]
    retryable: Annotated[bool, about("Whether the same message may be accepted later.")] = False
    detail: Annotated[dict[str, object], about("Further data for programs, which depends on `code`.")] = {}


Fact = BlockCommitted | RolledBack | Pruned | TxStatusChanged
Outbound = Fact | Welcome | Ack | Error
