"""Counts and sums of transactions: they are in the undo log of their block, and are deleted with it."""

from __future__ import annotations

from pathlib import Path

import pytest
from chains import Options, back_to, block, feed, open_chain, output, prune_all, rows, tx
from msgspec.structs import astuple

from handlers.chain import Chain
from handlers.events import BlockApplied, Details
from storage.errors import Damaged
from storage.history import details
from storage.history.layout import DETAILS, UNDO, VALUE_BYTES, seal
from storage.history.verify import verify

LARGE = Details(*[2**64 - 1] * len(Details.__struct_fields__))
SMALL = Details(invalid_hereafter=7, redeemer_count=1)
OPTIONS = Options(indexes=["datum"], rollback_window=3, prune_depth=3, map_size=1 << 26)


def described(before: BlockApplied | None, name: str, count: int) -> BlockApplied:
    """Return a block in which every third transaction has no details, and one reveals a datum."""
    given = [LARGE, None, SMALL]
    txs = [tx(f"{name}{n}", output("ann"), details=given[n % 3]) for n in range(count)]
    return block(before, *txs, tx(f"{name} reveals", datums=[b"\x80" * 9]))


def stored(chain: Chain, ordinal: int) -> list[details.Entry]:
    with chain.store.disk.read() as txn:
        found = details.read(txn, chain.store.disk.tables[UNDO], ordinal)
        assert chain.store.stored(txn).revealed(ordinal) in ([], [b"\x80" * 9])
        return found


def floor(chain: Chain) -> int:
    with chain.store.disk.read() as txn:
        return chain.store.state(txn).floor


def wanted(each: BlockApplied) -> list[details.Entry]:
    return [(len(tx.inputs), None if tx.details is None else astuple(tx.details)) for tx in each.txs]


@pytest.mark.parametrize("indexes", [["datum"], ["datum", "history"]])
def test_details_last_as_long_as_undo_logs(tmp_path: Path, indexes: list[str]) -> None:
    first = described(None, "a", 700)
    second = described(first, "b", 5)
    plain = block(second, tx("plain", output("ann")))
    with open_chain(tmp_path, **OPTIONS | {"indexes": indexes}) as chain:
        feed(chain, first)
        feed(chain, second, plain)
        parts = [len(raw) for key, raw in rows(chain.store, UNDO).items() if key[4:] >= DETAILS.to_bytes(4, "big")]
        assert len(parts) > 2 and max(parts) <= VALUE_BYTES
        for ordinal, each in enumerate((first, second), 1):
            assert stored(chain, ordinal) == wanted(each)
        assert stored(chain, 3) == []
        assert verify(chain.store.disk) == []
        chain.rollback(back_to(first))
        other = described(first, "c", 4)
        feed(chain, other)
        assert stored(chain, 2) == wanted(other)
        last = other
        for n in range(5):
            last = block(last, tx(f"later {n}", output("ann")))
            feed(chain, last)
        prune_all(chain)
        assert floor(chain) > 1
        assert stored(chain, 1) == (wanted(first) if "history" in indexes else [])
        assert verify(chain.store.disk) == []


def written(block: int, entries: int, count: int | None = None) -> bytes:
    """Return details of some transactions, written for a block."""
    encoded = details.encode([(0, (5,))] * entries)
    [(_, value)] = details.pack(block, entries if count is None else count, encoded)
    return value


DAMAGES = {
    "the details of transactions in the undo log of block 1 were written for block 2": written(2, 5),
    "the details of transactions in the undo log of block 1 are those of 5 transactions, not 4": written(1, 5, 4),
    "the details of transactions in the undo log of block 1 cannot be read": seal(5, b"\xc1"),
    "block 1 has 5 transactions, but details of 4": written(1, 4),
}


@pytest.mark.parametrize("finding", DAMAGES)
def test_damaged_details_are_found(tmp_path: Path, finding: str) -> None:
    with open_chain(tmp_path, **OPTIONS) as chain:
        feed(chain, described(None, "a", 4))
        table = chain.store.disk.tables[UNDO]
        key = (1).to_bytes(4, "big") + DETAILS.to_bytes(4, "big")
        chain.store.disk.write(lambda txn: txn.put(key, DAMAGES[finding], db=table))
        assert [each for each in verify(chain.store.disk) if finding in each]
        if "block 1 has 5" not in finding:
            with pytest.raises(Damaged, match=finding):
                stored(chain, 1)


def test_sums_of_a_block_are_exact(tmp_path: Path) -> None:
    """They are missing if a fee is, or if 64 bits are too few."""
    fees = [(5, 7), (None, 7), (2**62, 2**62), (-3, 1)]
    before: BlockApplied | None = None
    with open_chain(tmp_path, **OPTIONS) as chain:
        for n, pair in enumerate(fees):
            value = 2**63 if n == 2 else 10 + n
            txs = [tx(f"{n} {m}", output("ann", value), fee=fee) for m, fee in enumerate(pair)]
            before = block(before, *txs)
            feed(chain, before)
        with chain.store.disk.read() as txn:
            found = [chain.store.stored(txn).block(ordinal) for ordinal in range(1, 5)]
        assert [(each.output, each.fees) for each in found] == [(20, 12), (22, None), (None, None), (26, -2)]
