"""The owners of reassigned outputs: the differences between the list of an owner and its index.

The index still lists an output under the owner that the chain has. A query for the outputs of an owner costs one more
seek, as long as none of them was reassigned.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import NamedTuple

import numpy as np
from msgspec.structs import replace

from handlers.records import Entry
from handlers.walk import Listed, Order
from storage.disk import META, Disk, Txn
from storage.history.layout import Found, Numbers
from storage.history.output_keys import RULES
from storage.history.stored import Stored
from storage.pool import is_stale
from storage.reassigned import KINDS, TABLE, Given, ReassignedStore


class Moved(NamedTuple):
    """Changes of a list by reassignments: the removed numbers, and the owners of the others."""

    away: Numbers
    given: dict[int, Given]


class Owners:
    """The owners of reassigned outputs, in one snapshot at one height."""

    def __init__(self, txn: Txn, disk: Disk, height: int) -> None:
        self._txn, self._height = txn, height
        self.given: dict[int, Given] = {}  # to whom outputs were given that are in the owner's list that is walked
        self._known = False  # whether an owner's list is walked: it has no others that were given away
        self._store = ReassignedStore(disk) if TABLE in disk.tables else None
        if self._store is not None and (not self._store.any(txn) or is_stale(txn, disk.tables[META])):
            self._store = None

    def of(self, txid: bytes, index: int, height: int | None = None) -> Given | None:
        """Return the new owner of an output, None while it belongs to its first owner."""
        moves = None if self._store is None else self._store.find(self._txn, txid, index)
        return None if moves is None else moves.owner(self._height if height is None else height)

    @property
    def nothing_reassigned(self) -> bool:
        """Return whether none of the queried outputs was reassigned."""
        return self._store is None or (self._known and not self.given)

    def among(self, stored: Stored, numbers: list[int]) -> dict[int, Given]:
        """Return the new owners of the reassigned ones of these outputs, by number."""
        if self._known:
            return {number: self.given[number] for number in numbers if number in self.given}
        homes = stored.homes(np.unique(np.array(numbers, np.int64)))
        found = ((number, self.of(home.txid, home.output)) for number, home in homes.items())
        return {number: given for number, given in found if given is not None}

    def address(self, found: Found) -> bytes:
        """Return the owner of an output in the list that is walked."""
        given = self.given.get(found.number)
        return found.address if given is None else given.address

    def walk(self, stored: Stored, where: Listed) -> Moved | None:
        """Return what reassignments change in a list, and keep it for queries about its outputs.

        None means that they change nothing.
        """
        moved, self._known = self._moved(stored, where), where[0] in KINDS
        self.given = {} if moved is None else moved.given
        return moved

    def _moved(self, stored: Stored, where: Listed) -> Moved | None:
        kind, key = where
        if self._store is None or kind not in KINDS:
            return None
        away, given = list[int](), dict[int, Given]()
        for txid, index in self._store.under(self._txn, kind, key):
            tx, owner = stored.find_tx(txid), self.of(txid, index)
            if tx is None or owner is None or index >= tx.outputs:
                continue
            if key in RULES[kind].keys(owner.address, b""):
                given[tx.number + index] = owner
            else:
                away.append(tx.number + index)
        return Moved(np.array(sorted(away), np.int64), given) if away or given else None


def spliced(listed: Iterable[Numbers], moved: Moved, order: Order, after: int | None) -> Iterator[Numbers]:
    """Yield a list part by part, without the removed numbers and with the added ones, each in its place."""
    sign = 1 if order == "asc" else -1
    more = np.array(sorted(sign * number for number in moved.given), np.int64)
    if after is not None:
        more = more[more > sign * after]
    for part in listed:
        if not len(part):
            yield part
            continue
        upto = int(np.searchsorted(more, part[-1], "right"))
        yield np.union1d(part[~np.isin(sign * part, moved.away)], more[:upto])
        more = more[upto:]
    yield more


def owned(entry: Entry, given: Given | None) -> Entry:
    """Return an output with its current owner."""
    if given is None:
        return entry
    body = replace(entry.body, address=given.address)
    return replace(entry, body=body, reassigned_at=given.height)
