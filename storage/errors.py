"""Errors of the store, one class for each way of handling them."""

from __future__ import annotations


class StoreError(Exception):
    """The store cannot continue as it is."""


class Damaged(StoreError):
    """What is on disk contradicts itself: stop, do not restart, investigate."""

    advice = "keep a copy of the store and run `utxod verify`"


class RecoveryDamaged(Damaged):
    """The recovery tables cannot be read: they can be rebuilt from the store."""

    advice = "move recovery.db away and start the daemon: it creates the rows of pending transactions again"


class WrongFormat(StoreError):
    """The store was written by another version, or for another chain or configuration: stop, do not restart."""


class TableMissing(StoreError):
    """A table is missing: an earlier version wrote the store, its first start did not end, or it is damaged."""

    def __init__(self, folder: str, table: str) -> None:
        super().__init__(
            f"{folder}: the table {table} is missing: a daemon of this version makes it when it starts; "
            "if one has run here, the store is damaged: run `utxod verify`"
        )
        self.table = table


class StoreBusy(StoreError):
    """Another process has this store open for writing."""


class StoreFull(StoreError):
    """There is no space for this change: it was not made, the store is unchanged; try again when there is space."""


class PackageMissing(StoreError):
    """The configuration needs an optional package that is not installed: stop, do not restart."""

    def __init__(self, what: str, package: str, extra: str) -> None:
        super().__init__(f"{what} needs {package}, which is not installed: pip install 'utxod[{extra}]'")


class BlobFailed(StoreError):
    """The blob store has failed: nothing of the record is written, and the operation may be repeated."""


class ChainMoved(StoreError):
    """What is read in several snapshots can't be completed: its block was rolled back, or is below the floor by now."""

    def __init__(self, block: str, *, passed: bool) -> None:
        why = "is now below the rollback floor" if passed else "was rolled back meanwhile"
        how = ", faster, or from a copy of the store" if passed else ""
        super().__init__(f"incomplete: {block}, at which this began, {why}: start again{how}")


class SnapshotExpired(Exception):
    """A query took too long: its read transaction prevented the reuse of freed pages.

    It is not a `StoreError`: the store is sound, and the same query may be repeated.
    """

    def __init__(self, limit_s: float) -> None:
        limit = f"{limit_s:g} s (store.max_reader_age)"
        super().__init__(f"the read transaction was behind the latest commit for more than {limit} and was ended")
