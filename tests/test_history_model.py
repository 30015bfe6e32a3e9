"""Any story of blocks, reorganisations, restarts and pruning leaves a history as a stack of plain dicts says.

Values, merges and filters are made small, so that a short story has many of them.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

import msgspec
import pytest
import test_model
from chains import Branches
from houses import small_values
from test_model import Index, Story, search

from handlers.events import OutPoint
from storage.history.layout import Extra, Found
from storage.history.output_keys import address_key, digest
from storage.history.stored import Stored
from storage.history.verify import verify
from storage.rows import Body

OFTEN = {  # what a short run meets whatever it begins with; the classic machine has to meet the rest too
    "a collateral return",
    "a failed transaction",
    "a missing input",
    "a restart",
    "a txid again",
    "an in-block spend",
    "an output with assets",
    "an unspendable output",
    "blocks far below the network's tip",
    "other windows",
    "several blocks in a commit",
    "undo records were pruned",
}


class HistoryStory(Story):
    """A history and a model, told the same."""

    store = "history"

    @contextmanager
    def stored(self) -> Iterator[Stored]:
        with self.chain.store.disk.read() as txn:
            yield Stored(txn, self.chain.store.disk.tables)

    def bodies(self) -> dict[OutPoint, Body]:
        with self.stored() as stored:
            found = {}
            for number in range(stored.state.next_number):
                if stored.live.is_set(number):
                    tx, output = stored.tx_of(number), stored.output(number)
                    assert output is not None
                    assert stored.find_tx(tx.txid) == tx
                    found[tx.txid, number - tx.number] = to_body(output)
            return found

    def whole_index(self, index: str, expected: Index) -> Index:
        if index not in self.options["indexes"]:
            return {}
        with self.stored() as stored:
            return {key: self.listed(stored, index, key) for key in expected}

    def listed(self, stored: Stored, index: str, key: bytes) -> list[OutPoint]:
        prefix = stored.prefix(digest(address_key(key) if index == "address_hash" else key))
        found = []
        up = [n for some in stored.index(index).ascending(prefix) for n in some.tolist()]
        down = [n for some in stored.index(index).descending(prefix) for n in some.tolist()]
        assert up == down[::-1]
        assert up == sorted(set(up))
        for number in up:
            if stored.live.is_set(number):
                tx = stored.tx_of(number)
                found.append((tx.txid, number - tx.number))
        return found

    def hangs_together(self) -> None:
        assert verify(self.chain.store.disk, quick=True) == []

    def nothing_else_is_kept(self) -> None:
        pass


def to_body(found: Found) -> Body:
    extra = msgspec.msgpack.decode(found.extra, type=Extra) if found.extra else Extra()
    return extra.body(found.address, found.value)


def test_any_story_equals_the_model(monkeypatch: pytest.MonkeyPatch) -> None:
    """The machine runs until it met everything that it is there for; else it tested nothing."""
    met = Branches()
    monkeypatch.setattr(test_model, "MET", met)
    small_values(monkeypatch)
    search(HistoryStory, met, OFTEN, examples=200)
    assert any(name.startswith("a reorganisation by") for name in met.met)
