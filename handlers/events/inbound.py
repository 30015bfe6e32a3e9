"""Messages to the daemon.

They refuse unknown fields, except `Hello`: a misspelt `inputs` would lose a spend without an error. Default values are
left out when they are encoded, so a feeder of this version can feed a daemon that lacks its newest fields.
"""

from __future__ import annotations

from typing import Annotated, Literal

from handlers.events.outbound import Event
from handlers.events.parts import (
    U32,
    Count,
    GenesisOutput,
    Hash32,
    Header,
    Height,
    Issuer,
    NetworkTip,
    OutPoint,
    Point,
    RollbackPoint,
    Tx,
)
from handlers.meaning import about

Txids = Annotated[list[Hash32], about("Ids of the transactions.")]


class Message(Event, frozen=True, kw_only=True, forbid_unknown_fields=True, omit_defaults=True):
    """A message in."""

    seq: Annotated[
        int | None,
        about("Number that the client chooses. The answer has the same number. Without it, only an `Error` is sent."),
    ] = None


class Hello(Message, frozen=True, kw_only=True, forbid_unknown_fields=False):
    """The name of the client, and the height of the network. It may be sent again at any time.

    Unknown fields are ignored, so a client can send it to a daemon of any version.
    """

    client: Annotated[str, about("Name and version of the client.")] = ""
    network_tip: Annotated[
        NetworkTip | None,
        about(
            "Tip of the network. Blocks that are deeper below it than both windows cannot be rolled back. Omit it if "
            "every block has to be reversible. While a connection feeds, only its own `network_tip` is used."
        ),
    ] = None


class Subscribe(Message, frozen=True, kw_only=True):
    """Turn this connection into a stream of facts, each sent after its commit."""

    events: Annotated[
        list[Literal["BlockCommitted", "RolledBack", "Pruned", "TxStatusChanged"]], about("Types of the facts to send.")
    ]
    from_sequence: Annotated[
        Count | None, about("Sequence of the first fact to send. Without it, only new facts are sent.")
    ] = None


class BlockApplied(Message, frozen=True, kw_only=True):
    """Append a block to the chain. All fields except `txs` are stored unchanged for every block.

    The block must follow the tip: by `prev_hash`, or by its height if there is no `prev_hash`. An empty store
    accepts any block.
    """

    height: Annotated[Height, about("Height of the block.")]
    hash: Annotated[Hash32, about("Hash of the block.")]
    slot: Annotated[Count | None, about("Slot of the block. Without it, the height is used.")] = None
    prev_hash: Annotated[
        Hash32 | None, about("Hash of the previous block. Without it, only the height is compared with the tip.")
    ] = None
    time: Annotated[int | None, about("Unix time of the block, in seconds.")] = None
    epoch: Annotated[int | None, about("Epoch of the block.")] = None
    era: Annotated[str | None, about("Name of the era of the block.")] = None
    block_id: Annotated[
        int | None, about("The node's own number of the block, as in `TxMined`. Without it, the height is used.")
    ] = None
    size: Annotated[Count | None, about("Size of the whole block in bytes.")] = None
    header: Annotated[Header | None, about("Header of a Bitcoin block.")] = None
    issuer: Annotated[Issuer | None, about("Issuer of a Cardano block.")] = None
    txs: Annotated[list[Tx], about("All transactions of the block, in their order.")] = []
    shard: Annotated[
        str | None,
        about(
            "The shard for which this part of a block was made, such as `3/8`. Its `txs` have the outputs of "
            "the shard, the inputs that spend them, and `place`. It must be the `cluster.shard` of the daemon."
        ),
    ] = None

    @property
    def point(self) -> Point:
        """Return the point of the block; on a chain without slots, the slot is the height."""
        return Point(self.height, self.height if self.slot is None else self.slot, self.hash)


class Rollback(Message, frozen=True, kw_only=True):
    """Roll the chain back to a block. This block stays; all blocks after it are undone."""

    to: Annotated[
        RollbackPoint | Literal["origin"],
        about("The new tip. With `origin`, all blocks are undone, and genesis outputs stay."),
    ]


class BlockPersisted(Message, frozen=True, kw_only=True):
    """Report that all blocks up to a block of the chain are stored durably by another system (a *persister*)."""

    height: Annotated[Count, about("Height of the block.")]
    hash: Annotated[Hash32 | None, about("Hash of the block. It is compared with the block of this height.")] = None


class GenesisOutputs(Message, frozen=True, kw_only=True):
    """Create the outputs that exist before the first block. Only an empty store accepts it. It is never rolled back."""

    outputs: Annotated[list[GenesisOutput], about("The outputs.")]
    shard: Annotated[str | None, about("The shard whose part of the outputs this is.")] = None
    places: Annotated[
        list[U32] | None,
        about("One entry for each output, if `shard` is given: the position of its transaction among all of them."),
    ] = None


class NodeState(Message, frozen=True, kw_only=True):
    """Report the state of the node. Nothing is pruned while it is not `running`."""

    state: Annotated[Literal["running", "catching_up", "reorganising", "stopped"], about("State of the node.")]
    height: Annotated[Height, about("Height of the node's last block.")]


class TxSubmitted(Message, frozen=True, kw_only=True):
    """Submit a transaction that is in no block yet. It claims all of its inputs, or is refused.

    If any input is unknown, immature, frozen, locked or named twice, it is refused with `UTXO_ERROR`, and
    `detail.inputs` lists each such input.
    """

    tx: Annotated[Tx, about("The transaction.")]
    locked: Annotated[
        bool,
        about("If true, its outputs cannot be spent until `TxUnlocked`, a block that contains it, or a restart."),
    ] = False
    on_spent: Annotated[
        Literal["refuse", "record"],
        about("If other transactions have claimed or spent its inputs: refuse it, or record it as conflicting."),
    ] = "refuse"
    input_hashes: Annotated[
        list[Hash32 | None] | None,
        about(
            "One entry for each input: the expected hash of the spent output, or null. The hash is the first 32 bytes "
            "of `slot` in `/api/v1/txs/{txid}/utxos`. If it differs, the input has the code `UTXO_HASH_MISMATCH`."
        ),
    ] = None


class TxWithdrawn(Message, frozen=True, kw_only=True):
    """Remove transactions that are in no block, together with all their descendants, in one commit."""

    txids: Txids
    reason: Annotated[
        Literal["evicted", "replaced", "expired", "operator"], about("Reason, which is reported to subscribers.")
    ]


class TxUnlocked(Message, frozen=True, kw_only=True):
    """Allow the outputs of these transactions to be spent again, whatever the kind of lock."""

    txids: Txids


class TxLocked(Message, frozen=True, kw_only=True):
    """Make the outputs of these transactions unspendable until `TxUnlocked`, also after a restart."""

    txids: Txids


class TxMined(Message, frozen=True, kw_only=True):
    """Report that transactions are in a block that is not sent as `BlockApplied`, or no longer with `unset`.

    The active chain takes precedence: a message that contradicts one of its blocks is refused with `IN_CHAIN`.
    """

    txids: Txids
    block_id: Annotated[Count, about("The node's own number of the block.")]
    height: Annotated[Height, about("Height of the block.")]
    subtree_index: Annotated[int | None, about("Index of the subtree in the block, on chains that have subtrees.")] = (
        None
    )
    longest: Annotated[bool, about("Whether the block is on the longest chain.")] = True
    unset: Annotated[bool, about("Whether the transactions are no longer in the block.")] = False


class OutputsFrozen(Message, frozen=True, kw_only=True):
    """Freeze outputs: submissions cannot spend them. Blocks can."""

    outpoints: Annotated[list[OutPoint], about("The outputs, as `[txid, index]`.")]


class OutputsUnfrozen(Message, frozen=True, kw_only=True):
    """Allow submissions to spend these frozen outputs again."""

    outpoints: Annotated[list[OutPoint], about("The outputs, as `[txid, index]`.")]


class OutputReassigned(Message, frozen=True, kw_only=True):
    """Give a frozen output to another address. It takes effect after `transactions.reassign_delay` blocks."""

    outpoint: Annotated[OutPoint, about("The output, as `[txid, index]`.")]
    address: Annotated[bytes, about("New owner: raw address or locking script.")]


class TxConflicting(Message, frozen=True, kw_only=True):
    """Make transactions and all their descendants conflicting, or end this with `value` false."""

    txids: Txids
    value: Annotated[bool, about("False: the transactions claim their inputs again, all of them or none.")] = True


class WinnersDecided(Message, frozen=True, kw_only=True):
    """Let conflicting transactions claim their inputs. The transactions that claimed them before become conflicting."""

    txids: Txids


class TxPreserved(Message, frozen=True, kw_only=True):
    """Keep the records of transactions at least until a height."""

    txids: Txids
    until: Annotated[Height, about("Height before which the records are not pruned.")]


ChainMessage = BlockApplied | Rollback | BlockPersisted | GenesisOutputs | NodeState
OperatorMessage = (
    TxLocked | OutputsFrozen | OutputsUnfrozen | OutputReassigned | TxConflicting | WinnersDecided | TxPreserved
)
TxMessage = TxSubmitted | TxWithdrawn | TxUnlocked | TxMined | OperatorMessage
Inbound = Hello | Subscribe | ChainMessage | TxMessage
