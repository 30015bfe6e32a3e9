"""Pure rules of transactions: who loses to others, counts of pages, and the order of parents and children."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from handlers.spending import (
    Fault,
    TxFault,
    data_output,
    parents_first,
    record_fault,
    settle,
)
from storage.pool_layout import OutPoint, Record

NAME, OTHER = b"\x0a" * 32, b"\x0b" * 32


def record(**fields: Any) -> Record:
    return Record(**{"outputs": 1, "recorded": 1} | fields)


def test_without_a_retention_no_transaction_is_ever_to_be_deleted() -> None:
    kept = record(spent=1, block_ids=(7,), main_ids=(7,))
    settle(kept, 100, 0)
    assert kept.delete_at is None


def test_a_flag_ignores_only_the_fault_that_it_names() -> None:
    locked, conflicting = record(locked=True), record(conflicting=True)
    assert record_fault(locked, 1, ignore_locked=False, ignore_conflicting=True) == Fault("LOCKED")
    assert record_fault(conflicting, 1, ignore_locked=True, ignore_conflicting=False) == Fault("CONFLICTING")


def test_data_outputs() -> None:
    assert data_output(0, b"\x6a\x01") and data_output(0, b"\x00\x6a\x01")
    for value, script in ((1, b"\x6a"), (0, b"\x76"), (0, b""), (0, b"\x00\x76\x6a")):
        assert not data_output(value, script)


# --- order ---------------------------------------------------------------------------------------------------------


@st.composite
def families(draw: st.DrawFn) -> dict[bytes, tuple[int, list[OutPoint]]]:
    """Draw transactions that spend earlier ones, or strangers, with ages that say nothing about that."""
    txids = draw(st.lists(st.binary(min_size=32, max_size=32), max_size=12, unique=True))
    found = {}
    for n, txid in enumerate(txids):
        parents = draw(st.lists(st.sampled_from([*txids[:n], NAME]), max_size=4))
        found[txid] = (draw(st.integers(0, 3)), [(parent, 0) for parent in parents])
    return dict(draw(st.permutations(list(found.items()))))


@pytest.mark.parametrize(
    ("code", "faults", "loses_to"),
    [
        ("UTXO_ERROR", [("SPENT", OTHER), ("SPENT", b"\x0c" * 32)], OTHER),
        ("UTXO_ERROR", [("SPENT", OTHER), ("UTXO_NOT_FOUND", None)], None),
        ("UTXO_ERROR", [("SPENT", OTHER), ("SPENT", NAME)], None),
        ("CREATING", [("SPENT", OTHER)], None),
    ],
)
def test_who_loses_to_others(code: str, faults: list[tuple[str, bytes | None]], loses_to: bytes | None) -> None:
    inputs = {n: Fault(why, (by, 0) if by else None) for n, (why, by) in enumerate(faults)}
    assert TxFault(code, "", inputs=inputs).rival(NAME) == loses_to


@given(families())
def test_parents_come_first(transactions: dict[bytes, tuple[int, list[OutPoint]]]) -> None:
    order = parents_first(transactions)
    assert sorted(order) == sorted(transactions)
    place = {txid: n for n, txid in enumerate(order)}
    for txid, (_, inputs) in transactions.items():
        assert all(place[parent] < place[txid] for parent, _ in inputs if parent in place)


def test_a_long_line_of_descent() -> None:
    line = [n.to_bytes(32, "big") for n in range(5000)]
    transactions = {txid: (-n, [(line[n - 1], 0)] if n else []) for n, txid in enumerate(line)}
    assert parents_first(transactions) == line
