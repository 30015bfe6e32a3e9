"""The pure rules: who may spend what, in which order that is checked, and when a transaction may be forgotten."""

from __future__ import annotations

from itertools import combinations
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from handlers.spending import (
    Fault,
    TxFault,
    count_page,
    data_output,
    mine,
    parents_first,
    record_fault,
    settle,
    slot_fault,
    unmine,
)
from storage.pool_layout import FROZEN, OutPoint, Page, Record, claim
from storage.reassigned import Reassignment

NAME, OTHER = b"\x0a" * 32, b"\x0b" * 32
BY, BY_OTHER = claim(b"\x01" * 32, 0), claim(b"\x02" * 32, 3)
RETENTION = 10
HEIGHTS = st.integers(0, 50)


def record(**fields: Any) -> Record:
    return Record(**{"outputs": 1, "recorded": 1} | fields)


def page(**fields: Any) -> Page:
    return Page(**{"outputs": 1, "recorded": 1} | fields)


# --- spending ------------------------------------------------------------------------------------------------------

RECORD_CHECKS: list[tuple[str, dict[str, Any]]] = [  # in the order of the contract
    ("CREATING", {"creating": True}),
    ("CONFLICTING", {"conflicting": True}),
    ("LOCKED", {"locked": True}),
    ("COINBASE_IMMATURE", {"spending_height": 101}),
]


@pytest.mark.parametrize("count", range(1, len(RECORD_CHECKS) + 1))
def test_the_first_check_that_fails_is_reported(count: int) -> None:
    for checks in combinations(RECORD_CHECKS, count):
        fields = {key: value for _, wrong in checks for key, value in wrong.items()}
        fault = record_fault(record(**fields), 100, ignore_locked=False, ignore_conflicting=False)
        assert fault == Fault(checks[0][0])


def test_flags_excuse_what_they_name_and_nothing_else() -> None:
    everything = record(creating=True, conflicting=True, locked=True, spending_height=101)
    seen = []
    for field in ("creating", "conflicting", "locked", "spending_height"):
        fault = record_fault(everything, 100, ignore_locked=True, ignore_conflicting=True)
        seen.append(fault and fault.code)
        setattr(everything, field, None if field == "spending_height" else False)
    assert seen == ["CREATING", "COINBASE_IMMATURE", "COINBASE_IMMATURE", "COINBASE_IMMATURE"]
    assert record_fault(everything, 100, ignore_locked=False, ignore_conflicting=False) is None
    locked = record(locked=True)
    assert record_fault(locked, 1, ignore_locked=False, ignore_conflicting=True) == Fault("LOCKED")
    conflicting = record(conflicting=True)
    assert record_fault(conflicting, 1, ignore_locked=True, ignore_conflicting=False) == Fault("CONFLICTING")


@pytest.mark.parametrize(("height", "code"), [(108, "COINBASE_IMMATURE"), (109, None), (110, None)])
def test_a_coinbase_is_ripe_at_its_spending_height(height: int, code: str | None) -> None:
    fault = record_fault(record(spending_height=109), height, ignore_locked=False, ignore_conflicting=False)
    assert (fault and fault.code) == code


SLOT_CHECKS: list[tuple[str, bytes | None, dict[str, Any]]] = [  # from the last to the first
    ("SPENT", NAME + BY_OTHER, {}),
    ("FROZEN", NAME + FROZEN, {}),
    ("FROZEN_UNTIL", NAME + FROZEN, {"spendable_in": {0: 101}}),
    ("FROZEN_UNTIL", NAME + BY_OTHER, {"spendable_in": {0: 101}}),
    ("FROZEN_UNTIL", NAME + BY, {"spendable_in": {0: 101}}),
    ("UTXO_HASH_MISMATCH", OTHER + FROZEN, {"spendable_in": {0: 101}}),
    ("UTXO_NOT_FOUND", None, {"spendable_in": {0: 101}}),
    ("INVALID_SPEND", NAME + BY, {"deleted_children": [BY[:32]]}),
]


@pytest.mark.parametrize(("code", "row", "fields"), SLOT_CHECKS)
def test_why_a_slot_cant_be_spent(code: str, row: bytes | None, fields: dict[str, Any]) -> None:
    fault = slot_fault(page(**fields), 0, row, BY, 100, NAME)
    assert fault is not None
    assert fault.code == code
    assert fault.spender == ((BY_OTHER[:32], 3) if code == "SPENT" else None)


def test_what_a_slot_allows() -> None:
    assert slot_fault(page(), 0, NAME, BY, 1, NAME) is None
    assert slot_fault(page(), 0, NAME + BY, BY, 1, NAME) is None  # once more by the same input
    assert slot_fault(page(), 0, OTHER, BY, 1) is None  # the caller knows no hash
    assert slot_fault(page(deleted_children=[BY[:32]]), 0, NAME, BY, 1) is None  # only a replay is refused
    assert slot_fault(page(deleted_children=[BY_OTHER[:32]]), 0, NAME + BY, BY, 1) is None
    assert slot_fault(page(spendable_in={1: 999}), 0, NAME, BY, 1) is None  # another slot's


@pytest.mark.parametrize(("height", "code"), [(1100, "FROZEN_UNTIL"), (1101, None), (1102, None)])
def test_a_reassigned_output_is_spendable_at_its_height(height: int, code: str | None) -> None:
    fault = slot_fault(page(spendable_in={0: 1101}), 0, NAME, BY, height)
    assert (fault and fault.code) == code


# --- being forgotten -----------------------------------------------------------------------------------------------

DONE: dict[str, Any] = {"spent": 1, "block_ids": (7,), "main_ids": (7,), "external": True}
# What a record says, its height of deletion before, and that after being settled at height 100.
RULES: list[tuple[dict[str, Any], int | None, int | None]] = [
    (DONE, None, 110),
    (DONE, 110, 110),
    (DONE, 105, 110),  # raised
    (DONE, 200, 200),  # never lowered
    (DONE | {"external": False}, None, 110),
    (DONE | {"spent": 0}, 110, None),
    (DONE | {"spent": 0}, None, None),
    (DONE | {"block_ids": (), "main_ids": ()}, 110, None),
    (DONE | {"unmined_since": 90}, 110, None),  # mined off the longest chain
    (DONE | {"unmined_since": 0}, 110, None),  # unmined since the very first
    (DONE | {"pages": 2, "spent_pages": 1}, 110, None),
    (DONE | {"pages": 2, "spent_pages": 2}, None, 110),
    (DONE | {"pages": 1, "spent_pages": None}, None, None),
    (DONE | {"recorded": 0, "spent": 0}, None, 110),  # nothing that could be spent
    (DONE | {"reassignments": (Reassignment(0, NAME, OTHER, 1, 9),)}, 110, None),  # spent by no block yet
    (DONE | {"reassignments": (Reassignment(0, NAME, OTHER, 1, 9, spent=True),)}, None, 110),
    (DONE | {"conflicting": True, "spent": 0}, None, 110),
    (DONE | {"conflicting": True}, 105, 105),  # set once
    (DONE | {"preserve_until": 500}, None, None),
    (DONE | {"preserve_until": 500, "spent": 0}, 110, 110),  # not touched at all
    (DONE | {"preserve_until": 500, "conflicting": True}, None, None),
    (DONE | {"locked": True}, None, 110),
]


@pytest.mark.parametrize(("fields", "before", "after"), RULES)
def test_when_a_transaction_is_to_be_deleted(fields: dict[str, Any], before: int | None, after: int | None) -> None:
    settled = record(**fields, delete_at=before)
    settle(settled, 100, RETENTION)
    assert settled.delete_at == after


def test_without_a_retention_nothing_is_ever_to_be_deleted() -> None:
    for fields, before, _ in RULES:
        kept = record(**fields, delete_at=before)
        settle(kept, 100, 0)
        assert kept.delete_at == before


def test_pages_are_counted_within_bounds() -> None:
    large = record(pages=2)
    for by, count in ((1, 1), (1, 2), (-1, 1), (-1, 0)):
        count_page(large, by)
        assert large.spent_pages == count
    for at, by in ((0, -1), (2, 1), (None, -1)):
        large.spent_pages = at
        with pytest.raises(TxFault) as caught:
            count_page(large, by)
        assert (caught.value.code, large.spent_pages) == ("INVALID_PARAMETER", at)


# --- being mined ---------------------------------------------------------------------------------------------------


def test_a_block_is_entered_once_by_its_id() -> None:
    mined = record(born=5, unmined_since=5, locked=True, creating=True)
    mine(mined, 7, 100, 2, longest=True)
    mine(mined, 7, 999, 9, longest=True)
    assert (mined.block_ids, mined.block_heights, mined.subtree_idxs) == ((7,), (100,), (2,))
    assert (mined.main_ids, mined.unmined_since, mined.locked, mined.creating) == ((7,), None, False, False)
    assert mined.mined


def test_a_block_off_the_longest_chain_leaves_it_unmined() -> None:
    forked = record(born=5, unmined_since=5)
    mine(forked, 8, 100, None, longest=False)
    assert (forked.block_ids, forked.main_ids, forked.unmined_since, forked.mined) == ((8,), (), 5, False)
    mine(forked, 9, 100, None, longest=True)
    mine(forked, 10, 101, None, longest=False)
    assert forked.main_ids == (9,)  # what is on the longest chain stays there
    assert forked.unmined_since is None


@pytest.mark.parametrize(("born", "since"), [(5, 5), (None, 101), (200, 101)])
def test_without_its_last_block_it_is_as_old_as_it_ever_was(born: int | None, since: int) -> None:
    mined = record(born=born, block_ids=(7,), block_heights=(100,), subtree_idxs=(0,), main_ids=(7,), locked=True)
    unmine(mined, 7, 101)
    assert (mined.block_ids, mined.block_heights, mined.subtree_idxs, mined.main_ids) == ((), (), (), ())
    assert (mined.unmined_since, mined.locked) == (since, False)


def test_unmining_one_block_of_several() -> None:
    mined = record(block_ids=(7, 8), block_heights=(100, 101), subtree_idxs=(1, None), main_ids=(7, 8))
    unmine(mined, 99, 101)  # not one of its blocks
    assert (mined.block_ids, mined.unmined_since) == ((7, 8), None)
    unmine(mined, 7, 101)
    assert (mined.block_ids, mined.block_heights, mined.subtree_idxs) == ((8,), (101,), (None,))
    assert mined.main_ids == (8,)
    assert mined.unmined_since is None


@pytest.mark.parametrize(
    ("value", "script", "data"),
    [
        (0, b"\x6a", True),
        (0, b"\x6a\x01\x02", True),
        (0, b"\x00\x6a\x01", True),
        (1, b"\x6a", False),
        (0, b"\x76", False),
        (0, b"", False),
        (0, b"\x00", False),
        (0, b"\x00\x76\x6a", False),
    ],
)
def test_data_outputs(value: int, script: bytes, data: bool) -> None:
    assert data_output(value, script) is data


# --- order ---------------------------------------------------------------------------------------------------------


@st.composite
def families(draw: st.DrawFn) -> dict[bytes, tuple[Record, list[OutPoint]]]:
    """Draw transactions that spend earlier ones, or strangers, with ages that say nothing about that."""
    txids = draw(st.lists(st.binary(min_size=32, max_size=32), max_size=12, unique=True))
    found = {}
    for n, txid in enumerate(txids):
        parents = draw(st.lists(st.sampled_from([*txids[:n], NAME]), max_size=4))
        found[txid] = (record(created_at=draw(st.integers(0, 3))), [(parent, 0) for parent in parents])
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
    """Only a transaction whose every fault is that another transaction has the input."""
    inputs = {n: Fault(why, (by, 0) if by else None) for n, (why, by) in enumerate(faults)}
    assert TxFault(code, "", inputs=inputs).rival(NAME) == loses_to


@given(families())
def test_parents_come_first(transactions: dict[bytes, tuple[Record, list[OutPoint]]]) -> None:
    order = parents_first(transactions)
    assert sorted(order) == sorted(transactions)
    place = {txid: n for n, txid in enumerate(order)}
    for txid, (_, inputs) in transactions.items():
        assert all(place[parent] < place[txid] for parent, _ in inputs if parent in place)


def test_a_long_line_of_descent() -> None:
    """As deep as a mempool may chain, and no recursion."""
    line = [n.to_bytes(32, "big") for n in range(5000)]
    transactions = {txid: (record(created_at=-n), [(line[n - 1], 0)] if n else []) for n, txid in enumerate(line)}
    assert parents_first(transactions) == line
