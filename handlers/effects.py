"""What one block did to the set, whichever way the store lays it out: for deltas, and for changes since a point."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterator

from handlers.records import Entry
from storage.rows import BlockRow


class Effects(ABC):
    """The outputs that a block created and spent, as they were then; a block above the rollback floor has them."""

    block: BlockRow
    created_count: int
    spent_count: int
    contains_invalid: bool

    def gather(self) -> Iterator[None]:
        """Read ahead what `created` needs of other blocks; yields now and then, so that others get a turn."""
        return iter(())

    @abstractmethod
    def created(self, start: int = 0) -> Iterator[Entry]:
        """Yield what it created, in chain order, as it was before it was spent; so many are left out.

        Raises:
            Damaged: something of it is not there.
        """

    @abstractmethod
    def spent(self, start: int = 0) -> Iterator[Entry]:
        """Yield what it spent, in the order of spending, with the spender; so many are left out.

        Raises:
            Damaged: something of it is not there.
        """

    @abstractmethod
    def failed(self) -> Iterator[tuple[bytes, bool]]:
        """Yield the transactions that failed phase 2, and whether they had a collateral return."""

    def leaves(self) -> tuple[list[int], list[int]] | None:
        """Return the leaves of an MMR store that it appended and those that it spent; None in another store."""
        return None
