"""What can be wrong with our disk. A family is named for what happens next."""

from __future__ import annotations


class StoreError(Exception):
    """The store cannot go on as it is."""


class Damaged(StoreError):
    """What is on disk contradicts itself: stop, do not restart, look."""


class WrongFormat(StoreError):
    """The store was written by another version, or for another chain or configuration: stop, do not restart."""


class StoreBusy(StoreError):
    """Another process has this store open for writing."""


class StoreFull(StoreError):
    """There is no room for this change: it was not made, the store is as it was; try again when there is room."""


class BlobFailed(StoreError):
    """The blob store did not do it: nothing of the record is written, and what had to be done can be tried again."""
