"""Refusals: a message that is refused changes nothing, and its sender gets a code of the protocol and a reason."""

from __future__ import annotations

from msgspec import Struct

from handlers.events import Error
from storage.errors import StoreFull

CODES = {
    "malformed": (
        "The message cannot be read; `message` says where (`$.txs[3].inputs[0]`). Frames: the connection ends if "
        "their borders are lost."
    ),
    "unknown_type": "The protocol has no message of this `type`.",
    "too_large": (
        "A line is longer than `socket.max_frame_bytes`, a `Hello` or `Subscribe` than 64 KiB, a submission in JSON "
        "than 16 MiB. Or a submission has more than 100,000 inputs, or exceeds `transactions.max_pending_bytes` alone."
    ),
    "gap": "The block is above the tip and does not follow it, or `BlockPersisted` is above the tip. `detail.tip`",
    "fork": (
        "The block is at or below the tip and is not in the chain: roll back first. Or the store is not empty "
        "(`GenesisOutputs`). `detail.tip`"
    ),
    "unknown_point": (
        "The block is not in the chain. `detail.tip`; of a `Rollback` with slot or height `detail.nearest` too."
    ),
    "beyond_rollback_floor": "The rollback goes further back than blocks can be undone. `detail.floor`",
    "feeder_busy": "Another connection is feeding the chain.",
    "not_permitted": "The message is for operators, or for the feeder and operators.",
    "unavailable": (
        "What the message needs is not enabled in this daemon, or the daemon is stopping or has no space (then "
        "`retryable`)."
    ),
    "store_full": "The disk is full, or the map has its largest size. The state is as before.",
    "gone": "The facts from `from_sequence` on are no longer kept. `detail.oldest`",
    "unknown_sequence": "`from_sequence` is higher than the next one: it is of another store. `detail.newest`",
    "too_slow": "The client left too much unread; the connection ends.",
    "UTXO_ERROR": (
        "Inputs cannot be spent: `detail.inputs` has `outpoint`, `code` and `spender` (`[txid, input]`, if it is "
        "spent) of each."
    ),
    "TX_EXISTS": "There is another transaction of this id, or it is being created.",
    "TX_NOT_FOUND": "There is no such transaction; of an input: none that it could be an output of.",
    "IN_CHAIN": "The transaction is in a block of the chain, or the message contradicts one.",
    "PENDING_FULL": (
        "The limits of pending transactions are reached, also after evictions. `detail.count`, `detail.bytes`, "
        "`detail.evicted`"
    ),
    "PROCESSING": "The message is not valid for this transaction; `message` has the reason.",
    "INVALID_PARAMETER": "A number is out of range for this transaction.",
    "STORAGE_ERROR": "Something could not be read or written: the daemon's log has the reason.",
    "CREATING": "The transaction is large and being created: send it again later.",
    "LOCKED": "An input: outputs of its transaction are locked.",
    "CONFLICTING": "An input: its transaction has lost a conflict.",
    "COINBASE_IMMATURE": "An input: its coinbase has too few blocks (`transactions.coinbase_maturity`).",
    "UTXO_NOT_FOUND": "An input: its transaction has no such output.",
    "UTXO_HASH_MISMATCH": "An input: the output has another hash than in `input_hashes`.",
    "UTXO_NOT_FROZEN": "An output is not frozen.",
    "ALREADY_FROZEN": "An output is frozen already.",
    "FROZEN": "An input, or an output of a transaction to be withdrawn, is frozen or reassigned.",
    "FROZEN_UNTIL": "An input is reassigned, and can be spent from a later height on.",
    "SPENT": "An input is claimed or spent by another transaction: `spender`.",
    "INVALID_SPEND": "An input was spent by this very transaction before, which was pruned since.",
}


class Refusal(Struct, frozen=True):
    """Why a message can't be applied. `code` is the protocol's, `message` has the place and advice.

    `broken`: the bytes were no message at all, so what follows them can't be trusted.
    """

    code: str
    message: str
    retryable: bool = False
    broken: bool = False
    detail: dict[str, object] = {}

    def answer(self, seq: int | None) -> Error:
        """Return the answer to message `seq`."""
        return Error(seq=seq, code=self.code, message=self.message, retryable=self.retryable, detail=self.detail)


class Refused(Exception):
    """A message that can't be carried out, for as long as that is on its way up the stack.

    NOTE: what outlives the `except` block is `refusal`, never the exception. Its traceback refers to every frame that
    it passed through, and so to the whole message; and an exception that a frame or a delivery refers to in turn is a
    cycle, which is only freed by the garbage collector.
    """

    def __init__(
        self, code: str, message: str, *, retryable: bool = False, broken: bool = False, **detail: object
    ) -> None:
        super().__init__(message)
        self.refusal = Refusal(code, message, retryable, broken, detail)


def no_room(full: StoreFull) -> Refusal:
    """Return the refusal of a message for which the disk has no space."""
    return Refusal("store_full", str(full), retryable=True)
