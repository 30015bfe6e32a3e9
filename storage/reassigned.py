"""Reassigned outputs: the new owner, the height from which it may spend, and the keys under which they are found.

    tx_reassigned   0x00 | txid | index u32                       the first owner and those after it
                    0x01 | kind u8 | key | txid | index u32       empty: an owner of the output is found under this key

Kinds number the indexes by owner; keys are those of the index, padded to 32 bytes. A search for the outputs of an
owner needs one seek here to find that none was reassigned.
"""

from __future__ import annotations

from collections.abc import Iterator

from msgspec import Struct
from msgspec.structs import replace

from storage import keys
from storage.disk import Disk, Txn, rows_with
from storage.history.output_keys import RULES
from storage.rows import open_row, seal_row

TABLE = "tx_reassigned"
KINDS = ("address_hash", "payment_credential", "stake_credential")
_OUTPUT, _OWNER = b"\0", b"\1"
_KEY = 32
_OUTPOINT = _KEY + 4

OutPoint = tuple[bytes, int]


class Reassignment(Struct, array_like=True, frozen=True):
    """A slot that was given to another owner at a height, and is theirs `since` another.

    `spent`: a block of the active chain spends it.
    """

    slot: int
    old_hash: bytes
    new_hash: bytes
    height: int
    since: int
    spent: bool = False


class Given(Struct, array_like=True, frozen=True):
    """To whom an output was given, at which height, and from which height on it is theirs."""

    address: bytes
    height: int
    since: int


class Moves(Struct, array_like=True, frozen=True):
    """The owners of an output, in order. The first is not known before a block has its transaction."""

    first: bytes | None
    given: list[Given]

    def owner(self, height: int) -> Given | None:
        """Return the owner at a height; None while it is the first one."""
        return next((each for each in reversed(self.given) if each.since <= height), None)


class ReassignedStore:
    """The table of reassigned outputs."""

    def __init__(self, disk: Disk) -> None:
        self._db = disk.tables[TABLE]

    def any(self, txn: Txn) -> bool:
        """Return whether there is one."""
        return bool(txn.stat(self._db)["entries"])

    def find(self, txn: Txn, txid: bytes, index: int) -> Moves | None:
        """Return the owners of an output; None of one that was never reassigned."""
        raw = txn.get(_OUTPUT + txid + keys.u32(index), db=self._db)
        return None if raw is None else _moves(raw, txid, index)

    def of(self, txn: Txn, txid: bytes) -> list[tuple[int, Moves]]:
        """Return a transaction's reassigned outputs."""
        rows = [(keys.number(key[-4:]), raw) for key, raw in rows_with(txn, self._db, _OUTPUT + txid)]
        return [(index, _moves(raw, txid, index)) for index, raw in rows]

    def under(self, txn: Txn, kind: str, key: bytes) -> list[OutPoint]:
        """Return the outputs of which an owner is found under a key of an index."""
        rows = rows_with(txn, self._db, _front(KINDS.index(kind), key))
        return [(row[-_OUTPOINT:-4], keys.number(row[-4:])) for row, _ in rows]

    def listed(self, txn: Txn, front: bytes, outpoint: OutPoint) -> bool:
        """Return whether an output has a row by owner whose key begins so."""
        return txn.get(front + outpoint[0] + keys.u32(outpoint[1]), db=self._db) is not None

    def put(self, txn: Txn, txid: bytes, index: int, moves: Moves) -> None:
        """Store the owners of an output, in the place of those that it had."""
        self._forget(txn, txid, index)
        outpoint = txid + keys.u32(index)
        txn.put(_OUTPUT + outpoint, seal_row(moves), db=self._db)
        for front in owner_keys(moves):
            txn.put(front + outpoint, b"", db=self._db)

    def place(self, txn: Txn, txid: bytes, owners: list[bytes]) -> None:
        """Store the first owners of a transaction's outputs, which a block determines."""
        for index, moves in self.of(txn, txid):
            if index < len(owners) and moves.first != owners[index]:
                self.put(txn, txid, index, replace(moves, first=owners[index]))

    def drop(self, txn: Txn, txid: bytes) -> None:
        """Remove a transaction's outputs."""
        for index, _ in self.of(txn, txid):
            self._forget(txn, txid, index)

    def _forget(self, txn: Txn, txid: bytes, index: int) -> None:
        moves, outpoint = self.find(txn, txid, index), txid + keys.u32(index)
        if moves is not None:
            txn.delete(_OUTPUT + outpoint, db=self._db)
            for front in owner_keys(moves):
                txn.delete(front + outpoint, db=self._db)

    def clear(self, txn: Txn) -> None:
        """Remove all rows."""
        txn.drop(self._db, delete=False)

    def rows(self, txn: Txn) -> Iterator[tuple[bytes, OutPoint]]:
        """Yield every row: how its key begins if it is one by owner, and the outpoint."""
        for key in txn.cursor(self._db).iternext(values=False):
            yield key[:-_OUTPOINT].removeprefix(_OUTPUT), (key[-_OUTPOINT:-4], keys.number(key[-4:]))


def owner_keys(moves: Moves) -> set[bytes]:
    """Return how the keys of all rows by owner begin that an output has."""
    owners = {each.address for each in moves.given} | ({moves.first} if moves.first is not None else set())
    return {
        _front(n, key) for n, kind in enumerate(KINDS) for address in owners for key in RULES[kind].keys(address, b"")
    }


def _front(kind: int, key: bytes) -> bytes:
    return _OWNER + bytes((kind,)) + key.ljust(_KEY, b"\0")


def _moves(raw: bytes, txid: bytes, index: int) -> Moves:
    return open_row(Moves, raw, f"the row of reassigned output {txid.hex()}#{index}")
