"""Pages of records while transactions are deleted: what their parents have to remember of them."""

from __future__ import annotations

from storage.disk import Txn
from storage.transactions import Page, Record, TxStore


class ParentPages:
    """Pages that a step has in hand: a parent of many is read once, and written once at the end."""

    def __init__(self, store: TxStore, txn: Txn) -> None:
        self._store, self._txn = store, txn
        self._pages: dict[tuple[bytes, int], Page | None] = {}
        self._children: dict[tuple[bytes, int], set[bytes]] = {}
        self._marked: set[tuple[bytes, int]] = set()
        self._touched: set[tuple[bytes, int]] = set()

    def get(self, txid: bytes, number: int) -> Page | None:
        """Return a page."""
        key = (txid, number)
        if key not in self._pages:
            self._pages[key] = self._store.page(self._txn, txid, number)
        return self._pages[key]

    def master(self, txid: bytes) -> Record | None:
        """Return a master."""
        record = self.get(txid, 0)
        assert record is None or isinstance(record, Record)
        return record

    def children(self, txid: bytes, number: int) -> set[bytes]:
        """Return the deleted children of a page that is there."""
        key = (txid, number)
        if key not in self._children:
            page = self.get(txid, number)
            self._children[key] = set(page.deleted_children if page else ())
        return self._children[key]

    def mark(self, txid: bytes, number: int, child: bytes, *, spends: bool) -> None:
        """Remember on a page that a child is gone; `spends` says that an output there names it as the spender."""
        page, children = self.get(txid, number), self.children(txid, number)
        assert page is not None
        if not spends:
            assert isinstance(page, Record)
            page.conflicting_children = [other for other in page.conflicting_children if other != child]
            self._touched.add((txid, number))
        elif child not in children:
            children.add(child)
            page.deleted_children.append(child)
            self._marked.add((txid, number))

    def learn(self, txid: bytes, record: Record) -> None:
        """Take in a record that was made meanwhile."""
        self._pages[txid, 0] = record

    def forget(self, txid: bytes) -> None:
        """Drop the pages of a transaction that goes itself."""
        record = self.master(txid)
        for number in range(record.pages + 1 if record else 0):
            self._pages[txid, number] = None
            self._marked.discard((txid, number))
            self._touched.discard((txid, number))

    def write(self) -> int:
        """Store what was marked; return how many pages that were."""
        for txid, number in sorted(self._marked | self._touched):
            page = self.get(txid, number)
            assert page is not None
            self._store.put_page(self._txn, txid, number, page)
        return len(self._marked)
