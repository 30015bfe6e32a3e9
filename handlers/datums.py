"""Datums by their hash: some outputs contain only the hash."""

from __future__ import annotations

from collections.abc import Iterator

from msgspec import Struct

from handlers.answers import Hex
from handlers.query import Snapshot
from storage.history.datums import search


class Datum(Struct, frozen=True):
    """A datum: the bytes that the chain has, as hex."""

    datum_hash: Hex
    datum: Hex


def search_datum(shot: Snapshot, digest: bytes) -> Iterator[bytes | None]:
    """Search for the datum with a hash: yield None now and then, so that others get a turn, and at last the datum.

    It is known while an output that has the hash lives, or was spent in a block above the rollback floor: as inline
    datum, from the witnesses of the block that created the output, or from those of the block that spent it.

    Raises:
        NoIndex: the index by datum is not kept.
    """
    shot.listed("datum", digest)
    yield from search(shot.stored, digest)


def find_datum(shot: Snapshot, digest: bytes) -> bytes | None:
    """Return the datum with a hash, None when it is not known.

    Raises:
        NoIndex: the index by datum is not kept.
    """
    return next((found for found in search_datum(shot, digest) if found is not None), None)
