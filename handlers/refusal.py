"""Refusals: a refused message changes nothing, and its sender receives a code of the protocol and a reason."""

from __future__ import annotations

from msgspec import Struct

from handlers.events import Error
from storage.errors import StoreFull

CODES = {
    "malformed": (
        "The message cannot be decoded; `message` has the place (`$.txs[3].inputs[0]`). If the boundaries of "
        "frames are "
        "lost, the connection is closed."
    ),
    "unknown_type": "There is no message of this `type`.",
    "too_large": (
        "A line is longer than `socket.max_frame_bytes`, a `Hello` or `Subscribe` longer than 64 KiB, or a "
        "submission in "
        "JSON longer than 16 MiB. Or a submission has more than 100,000 inputs, or alone exceeds "
        "`transactions.max_pending_bytes`."
    ),
    "gap": "The block is above the tip and does not follow it, or `BlockPersisted` is above the tip. `detail.tip`",
    "fork": (
        "The block is at or below the tip and is not in the chain: roll back first. For `GenesisOutputs`: the store is "
        "not empty. `detail.tip`"
    ),
    "unknown_point": (
        "The block is not in the chain. `detail.tip`; for a `Rollback` with a slot or height also `detail.nearest`."
    ),
    "wrong_shard": (
        "The block is not the part of this daemon's `cluster.shard`, or it is a part and the daemon has no shard. The "
        "same for `GenesisOutputs`."
    ),
    "beyond_rollback_floor": "The rollback would go below the rollback floor. `detail.floor`",
    "feeder_busy": "Another connection is feeding the chain.",
    "not_permitted": "The message is accepted only from operators, or only from the feeder and operators.",
    "unavailable": (
        "The message needs a feature that is not enabled in this daemon. Or the daemon is stopping, or has no space; "
        "then the error is `retryable`."
    ),
    "store_full": "The disk is full, or the map has its maximum size. Nothing was changed.",
    "gone": "The facts from `from_sequence` on are no longer kept. `detail.oldest`",
    "unknown_sequence": "`from_sequence` is higher than the next sequence: it belongs to another store. "
    "`detail.newest`",
    "too_slow": "The client left too much data unread; the connection is closed.",
    "UTXO_ERROR": (
        "Inputs cannot be spent: `detail.inputs` has `outpoint`, `code` and, if it is spent, `spender` (`[txid, "
        "input]`) of each."
    ),
    "TX_EXISTS": "Another transaction has this id, or this transaction is being created.",
    "TX_NOT_FOUND": "The transaction is not known. As the code of an input: its transaction is not known.",
    "IN_CHAIN": "The transaction is in a block of the chain, or the message contradicts a block of the chain.",
    "PENDING_FULL": (
        "The limits of pending transactions are reached, even after evictions. `detail.count`, `detail.bytes`, "
        "`detail.evicted`"
    ),
    "PROCESSING": "The message is not valid for this transaction; `message` has the reason.",
    "STORAGE_ERROR": "Data could not be read or written; the daemon's log has the reason.",
    "CREATING": "The transaction is large and is still being created: send the message again later.",
    "LOCKED": "An input: outputs of its transaction are locked.",
    "CONFLICTING": "An input: its transaction has lost a conflict.",
    "COINBASE_IMMATURE": "An input: it spends a coinbase that is not mature (`transactions.coinbase_maturity`).",
    "UTXO_NOT_FOUND": "An input: its transaction has no such output.",
    "UTXO_HASH_MISMATCH": "An input: the hash of the output differs from `input_hashes`.",
    "UTXO_NOT_FROZEN": "An output is not frozen.",
    "ALREADY_FROZEN": "An output is already frozen.",
    "FROZEN": "An input, or an output of a transaction to be withdrawn, is frozen or reassigned.",
    "FROZEN_UNTIL": "An input is reassigned, and cannot be spent before a later height.",
    "SPENT": "An input is claimed or spent by another transaction, `spender`.",
    "INVALID_SPEND": "An input was already spent by this transaction, which was pruned.",
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
    """A refusal on its way up the stack.

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
