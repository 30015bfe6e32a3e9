"""Why a transaction's status changed: a small type for each reason, as the wire has it."""

from __future__ import annotations

from msgspec import Struct


class Cause(Struct, frozen=True, tag_field="type", omit_defaults=True):
    """Why a transaction's status changed: its class name, in snake case, is its `type`."""


class Submitted(Cause, frozen=True, tag="submitted"):
    """It was submitted."""


class InBlock(Cause, frozen=True, tag="block"):
    """A block has it."""


class BlockRolledBack(Cause, frozen=True, tag="rollback"):
    """Its block was taken back."""


class DoubleSpend(Cause, frozen=True, tag="double_spend"):
    """Another transaction, `by`, spends its inputs."""

    by: bytes | None = None


class ParentLost(Cause, frozen=True, tag="parent"):
    """It builds on a transaction that lost."""

    txid: bytes


class Decided(Cause, frozen=True, tag="decided"):
    """An operator said so."""


class Withdrawn(Cause, frozen=True, tag="withdrawn"):
    """It left what waits for a block."""

    reason: str


class Expired(Cause, frozen=True, tag="expired"):
    """It waited for too long."""


AnyCause = Submitted | InBlock | BlockRolledBack | DoubleSpend | ParentLost | Decided | Withdrawn | Expired
