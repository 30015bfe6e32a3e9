"""Messages to the daemon.

They refuse unknown fields, except `Hello`: a misspelt `inputs` would lose a spend without an error. Default values are
left out when they are encoded, so a feeder of this version can feed a daemon that lacks its newest fields.
"""

from __future__ import annotations

from typing import Annotated, Literal

from handlers.events.outbound import Event
from handlers.events.parts import (
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
        int | None, about("The client's own number, echoed in the answer. Without it only an `Error` is sent.")
    ] = None


class Hello(Message, frozen=True, kw_only=True, forbid_unknown_fields=False):
    """Who connects, and how far the network is. It may be sent again at any time.

    Unknown fields are ignored, so that a client can greet a daemon of any version.
    """

    client: Annotated[str, about("Name and version of the client.")] = ""
    network_tip: Annotated[
        NetworkTip | None,
        about(
            "Where the network is. Blocks that are deeper below it than every window cannot be undone; leave it out "
            "if every block has to be. Once a connection feeds, only its own counts."
        ),
    ] = None


class Subscribe(Message, frozen=True, kw_only=True):
    """Turn this connection into a stream of facts, each sent after its commit."""

    events: Annotated[
        list[Literal["BlockCommitted", "RolledBack", "Pruned", "TxStatusChanged"]], about("Which facts to send.")
    ]
    from_sequence: Annotated[
        Count | None, about("Begin with the kept fact of this sequence; without it only new facts are sent.")
    ] = None


class BlockApplied(Message, frozen=True, kw_only=True):
    """A block joined the chain. Everything but `txs` is kept as it came, for every block.

    It has to follow the tip: by `prev_hash`, or without one by its height. On an empty store any block does.
    """

    height: Annotated[Height, about("Height of the block.")]
    hash: Annotated[Hash32, about("Hash of the block.")]
    slot: Annotated[Count | None, about("Its slot; without it the height counts as the slot.")] = None
    prev_hash: Annotated[
        Hash32 | None, about("Hash of the block before. Without it only the height is compared with the tip's.")
    ] = None
    time: Annotated[int | None, about("Its time, in Unix seconds.")] = None
    epoch: Annotated[int | None, about("Its epoch.")] = None
    era: Annotated[str | None, about("Name of its era.")] = None
    block_id: Annotated[
        int | None, about("The node's own number of the block, as in `TxMined`; without it the height counts.")
    ] = None
    size: Annotated[Count | None, about("Bytes of the whole block.")] = None
    header: Annotated[Header | None, about("The header of a Bitcoin block.")] = None
    issuer: Annotated[Issuer | None, about("Who made a Cardano block.")] = None
    txs: Annotated[list[Tx], about("All transactions of the block, in its order.")] = []

    @property
    def point(self) -> Point:
        """Return the block's place; a chain without slots counts heights."""
        return Point(self.height, self.height if self.slot is None else self.slot, self.hash)


class Rollback(Message, frozen=True, kw_only=True):
    """The chain went back to a point. The point itself stays; all blocks after it are undone."""

    to: Annotated[
        RollbackPoint | Literal["origin"], about("Where to go back to; `origin`: no block stays, genesis outputs do.")
    ]


class BlockPersisted(Message, frozen=True, kw_only=True):
    """Everything up to a block of the chain is safely kept elsewhere."""

    height: Annotated[Count, about("Height of the block.")]
    hash: Annotated[Hash32 | None, about("Its hash. It is compared with the block of this height.")] = None


class GenesisOutputs(Message, frozen=True, kw_only=True):
    """What exists before the first block. Accepted on an empty store only, and once; never rolled back."""

    outputs: Annotated[list[GenesisOutput], about("The outputs.")]


class NodeState(Message, frozen=True, kw_only=True):
    """What the node is doing. Nothing is pruned unless it is running."""

    state: Annotated[Literal["running", "catching_up", "reorganising", "stopped"], about("What the node is doing.")]
    height: Annotated[Height, about("Height of the node's last block.")]


class TxSubmitted(Message, frozen=True, kw_only=True):
    """A transaction waits for a block. It claims all of its inputs, or is refused.

    If any input is unknown, immature, frozen, locked or named twice, it is refused with `UTXO_ERROR`, which names each
    such input in `detail.inputs`.
    """

    tx: Annotated[Tx, about("The transaction.")]
    locked: Annotated[
        bool,
        about("Make its outputs unspendable until `TxUnlocked`, a block that contains it, or a restart of the daemon."),
    ] = False
    on_spent: Annotated[
        Literal["refuse", "record"],
        about("What to do when others have claimed or spent its inputs: refuse it, or keep it as conflicting."),
    ] = "refuse"
    input_hashes: Annotated[
        list[Hash32 | None] | None,
        about(
            "Hashes of what it spends, or null, one entry for each input: the first 32 bytes of `slot` in "
            "`/api/v1/txs/{txid}/utxos`. Another hash is refused as `UTXO_HASH_MISMATCH`."
        ),
    ] = None

    @property
    def wanted(self) -> dict[int, bytes]:
        """Return the hashes that are given, by the numbers of their inputs."""
        hashes = self.input_hashes
        return {n: name for n, name in enumerate(hashes) if name is not None} if hashes else {}


class TxWithdrawn(Message, frozen=True, kw_only=True):
    """Transactions do not wait for a block any more; what builds on them leaves with them, all in one commit."""

    txids: Txids
    reason: Annotated[
        Literal["evicted", "replaced", "expired", "operator"], about("The reason, which subscribers receive.")
    ]


class TxUnlocked(Message, frozen=True, kw_only=True):
    """Outputs of these transactions may be spent again, whatever the kind of lock."""

    txids: Txids


class TxLocked(Message, frozen=True, kw_only=True):
    """Outputs of these transactions may not be spent until `TxUnlocked`, also after a restart."""

    txids: Txids


class TxMined(Message, frozen=True, kw_only=True):
    """Transactions are in a block that is not sent as `BlockApplied`, or with `unset` are no longer.

    The active chain takes precedence: a message that contradicts one of its blocks is refused with `IN_CHAIN`.
    """

    txids: Txids
    block_id: Annotated[Count, about("The node's own number of the block.")]
    height: Annotated[Height, about("Height of the block.")]
    subtree_index: Annotated[int | None, about("The subtree in the block, on chains that have them.")] = None
    longest: Annotated[bool, about("Whether the block is on the longest chain.")] = True
    unset: Annotated[bool, about("Whether they are not in the block any more.")] = False


class OutputsFrozen(Message, frozen=True, kw_only=True):
    """These outputs must not be spent."""

    outpoints: Annotated[list[OutPoint], about("The outputs, as `[txid, index]`.")]


class OutputsUnfrozen(Message, frozen=True, kw_only=True):
    """These frozen outputs may be spent again."""

    outpoints: Annotated[list[OutPoint], about("The outputs, as `[txid, index]`.")]


class OutputReassigned(Message, frozen=True, kw_only=True):
    """A frozen output is given to another address, `transactions.reassign_delay` blocks later."""

    outpoint: Annotated[OutPoint, about("The output, as `[txid, index]`.")]
    address: Annotated[bytes, about("The new owner: raw address or locking script.")]


class TxConflicting(Message, frozen=True, kw_only=True):
    """Transactions, and all that builds on them, conflict with others, or with `value` false do not any more."""

    txids: Txids
    value: Annotated[bool, about("False: they claim their inputs again, all or none.")] = True


class WinnersDecided(Message, frozen=True, kw_only=True):
    """These conflicting transactions have won: they claim their inputs, and those that had them become conflicting."""

    txids: Txids


class TxPreserved(Message, frozen=True, kw_only=True):
    """The records of these transactions are not pruned before a height."""

    txids: Txids
    until: Annotated[Height, about("The height.")]


ChainMessage = BlockApplied | Rollback | BlockPersisted | GenesisOutputs | NodeState
OperatorMessage = (
    TxLocked | OutputsFrozen | OutputsUnfrozen | OutputReassigned | TxConflicting | WinnersDecided | TxPreserved
)
TxMessage = TxSubmitted | TxWithdrawn | TxUnlocked | TxMined | OperatorMessage
Inbound = Hello | Subscribe | ChainMessage | TxMessage
