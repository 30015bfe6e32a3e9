"""The causes of a status change of a transaction: a small type for each, as on the wire."""

from __future__ import annotations

from typing import Annotated

from msgspec import Struct

from handlers.meaning import about


class Cause(Struct, frozen=True, tag_field="type", omit_defaults=True):
    """Why a transaction's status changed: its class name, in snake case, is its `type`."""


class Submitted(Cause, frozen=True, tag="submitted"):
    """The transaction was submitted: `pending`."""


class InBlock(Cause, frozen=True, tag="block"):
    """A block contains the transaction: `mined`."""


class BlockRolledBack(Cause, frozen=True, tag="rollback"):
    """The block of the transaction was rolled back: `pending`."""


class DoubleSpend(Cause, frozen=True, tag="double_spend"):
    """Another transaction spends one of its inputs: `conflicting`."""

    by: Annotated[
        bytes | None,
        about(
            "The other transaction. For a recorded submission: the one that spends its first lost input. Absent "
            "if not known."
        ),
    ] = None


class ParentLost(Cause, frozen=True, tag="parent"):
    """An ancestor of the transaction lost a conflict: `conflicting`."""

    txid: Annotated[bytes, about("The ancestor that lost.")]


class Decided(Cause, frozen=True, tag="decided"):
    """An operator decided it with a message: `pending` or `conflicting`."""


class Withdrawn(Cause, frozen=True, tag="withdrawn"):
    """The transaction was withdrawn: `withdrawn`; or `pruned` if the daemon evicted it."""

    reason: Annotated[
        str,
        about(
            "Reason in `TxWithdrawn`, also for descendants of its transactions; `operator` after `recovery discard`."
        ),
    ]


class Expired(Cause, frozen=True, tag="expired"):
    """The transaction was older than `transactions.max_pending_age`: `pruned`."""


AnyCause = Submitted | InBlock | BlockRolledBack | DoubleSpend | ParentLost | Decided | Withdrawn | Expired
