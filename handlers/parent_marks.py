"""The marks that parents keep of deleted transactions."""

from __future__ import annotations

from handlers.transactions import TxView
from storage.pool_layout import Page, Record


class ParentMarks:
    """The marks that parents keep of the transactions that a step deletes; a page's children are searched in a set."""

    def __init__(self, view: TxView) -> None:
        self._view = view
        self._children: dict[tuple[bytes, int], set[bytes]] = {}
        self.pages: set[tuple[bytes, int]] = set()  # that got one

    def page(self, txid: bytes, number: int) -> Page | None:
        """Return a page."""
        return self._view.rows.page(txid, number) if number else self._view.record(txid)

    def children(self, txid: bytes, number: int) -> set[bytes]:
        """Return the deleted children of a page that is there."""
        if (txid, number) not in self._children:
            page = self.page(txid, number)
            self._children[txid, number] = set(page.deleted_children if page else ())
        return self._children[txid, number]

    def mark(self, txid: bytes, number: int, child: bytes, *, spends: bool) -> None:
        """Record on a page that a child was deleted; `spends` means that an output there names it as the spender."""
        page, children = self.page(txid, number), self.children(txid, number)
        assert page is not None
        if not spends and isinstance(page, Record):
            page.conflicting_children = [other for other in page.conflicting_children if other != child]
        elif child not in children:
            children.add(child)
            page.deleted_children.append(child)
            self.pages.add((txid, number))
        if isinstance(page, Record):
            self._view.put(txid, page)
        else:
            self._view.rows.put_page(txid, number, page)

    def forget(self, txid: bytes, record: Record) -> None:
        """Drop the marks of a transaction that is deleted itself."""
        self.pages.difference_update((txid, number) for number in range(record.pages + 1))
