"""How blocks move the tables: what each row was, and what it is. Changes compose, and the way back is one of them.

A batch is the sum of its blocks' changes, written once; a rollback is the sum of the undone blocks' changes reversed,
written by the same code.
"""

from __future__ import annotations


class Diff:
    """What a change does to one table.

    `after` has every key touched, None where the row is gone. `before` has the keys that were there, so a key in
    `after` alone was born.
    """

    __slots__ = ("after", "before")

    def __init__(
        self, before: dict[bytes, bytes] | None = None, after: dict[bytes, bytes | None] | None = None
    ) -> None:
        self.before: dict[bytes, bytes] = {} if before is None else before
        self.after: dict[bytes, bytes | None] = {} if after is None else after

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Diff) and (self.before, self.after) == (other.before, other.after)

    __hash__ = None  # type: ignore[assignment]  # mutable

    def __repr__(self) -> str:
        return f"Diff({self.before!r}, {self.after!r})"

    def absorb(self, later: Diff) -> None:
        """Become this change followed by `later`."""
        touched = self.after
        for key, row in later.before.items():
            if key not in touched:
                self.before[key] = row
        touched.update(later.after)

    def reversed(self) -> Diff:
        """Return the way back."""
        before = {key: row for key, row in self.after.items() if row is not None}
        return Diff(before, {key: self.before.get(key) for key in self.after})


class ChangeSet:
    """What one block, or a batch of them, does to every table."""

    __slots__ = ("blocks", "details", "hashes", "outputs", "txids", "txs", "undos")

    def __init__(self) -> None:
        self.outputs = Diff()  # locator → row
        self.txs = Diff()  # position → txid | flags
        self.txids = Diff()  # txid → position
        self.blocks = Diff()  # ordinal → block row
        self.hashes = Diff()  # block hash → ordinal
        self.undos = Diff()  # ordinal → undo record
        self.details = Diff()  # ordinal → what the transaction store keeps of a block

    def __eq__(self, other: object) -> bool:
        return isinstance(other, ChangeSet) and all(getattr(self, t) == getattr(other, t) for t in self.__slots__)

    __hash__ = None  # type: ignore[assignment]  # mutable

    def absorb(self, later: ChangeSet) -> None:
        """Become this change followed by `later`."""
        for table in self.__slots__:
            getattr(self, table).absorb(getattr(later, table))

    def then(self, later: ChangeSet) -> ChangeSet:
        """Return this change followed by `later`; both stay as they are."""
        both = ChangeSet()
        both.absorb(self)
        both.absorb(later)
        return both

    def reversed(self) -> ChangeSet:
        """Return the way back."""
        back = ChangeSet()
        for table in self.__slots__:
            setattr(back, table, getattr(self, table).reversed())
        return back
