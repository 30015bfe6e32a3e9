"""Why a transaction's status changed: a small type for each reason, as the wire has it."""

from __future__ import annotations

from typing import Annotated

from msgspec import Struct

from handlers.meaning import about


class Cause(Struct, frozen=True, tag_field="type", omit_defaults=True):
    """Why a transaction's status changed: its class name, in snake case, is its `type`."""


class Submitted(Cause, frozen=True, tag="submitted"):
    """It was submitted: `pending`."""


class InBlock(Cause, frozen=True, tag="block"):
    """A block has it: `mined`."""


class BlockRolledBack(Cause, frozen=True, tag="rollback"):
    """Its block was rolled back: `pending`."""


class DoubleSpend(Cause, frozen=True, tag="double_spend"):
    """Another transaction spends what it spends: `conflicting`."""

    by: Annotated[
        bytes | None,
        about("That transaction; of a recorded submission the one that has its first lost input. Absent if not known."),
    ] = None


class ParentLost(Cause, frozen=True, tag="parent"):
    """It builds on a transaction that lost: `conflicting`."""

    txid: Annotated[bytes, about("The transaction that lost.")]


class Decided(Cause, frozen=True, tag="decided"):
    """An operator's message: `pending` or `conflicting`."""


class Withdrawn(Cause, frozen=True, tag="withdrawn"):
    """It does not wait for a block any more: `withdrawn`; or `pruned` if the daemon evicted it."""

    reason: Annotated[
        str,
        about(
            "The reason of `TxWithdrawn`, also for what builds on its transactions; `operator` by `recovery discard`."
        ),
    ]


class Expired(Cause, frozen=True, tag="expired"):
    """It waited for longer than `transactions.max_pending_age`: `pruned`."""


AnyCause = Submitted | InBlock | BlockRolledBack | DoubleSpend | ParentLost | Decided | Withdrawn | Expired
