"""Array operations of the hot path: each is what NumPy's own returns."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

import storage.history.arrays
from storage.history.arrays import distinct, first_places, joined, places_among_distinct, same_rows, stable_order
from storage.history.layout import SPEND

numbers = st.lists(st.integers(-3, 6) | st.integers(-(1 << 39), (1 << 39) - 1), max_size=40).map(
    lambda found: np.array(found, np.int64)
)
keys = st.lists(st.integers(0, 6) | st.integers(0, (1 << 64) - 1), max_size=40).map(
    lambda found: np.array(found, np.uint64)
)


@given(numbers)
def test_distinct_elements_and_their_places(found: np.ndarray[tuple[int], np.dtype[np.int64]]) -> None:
    elements, first, places = np.unique(found, return_index=True, return_inverse=True)
    assert distinct(found).tolist() == elements.tolist()
    assert [each.tolist() for each in first_places(found)] == [elements.tolist(), first.tolist()]
    assert [each.tolist() for each in places_among_distinct(found)] == [elements.tolist(), places.tolist()]


@given(keys | numbers)
def test_a_stable_order(found: np.ndarray[tuple[int], np.dtype[np.uint64]]) -> None:
    assert stable_order(found).tolist() == np.argsort(found, kind="stable").tolist()
    assert distinct(found).tolist() == sorted(set(found.tolist()))  # type: ignore[arg-type]


def test_first_places_of_very_many(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(storage.history.arrays, "_PLACE_BITS", 2)
    monkeypatch.setattr(storage.history.arrays, "_PLACE", 3)
    assert [each.tolist() for each in first_places(np.array([7, 5, 7, 5, 1]))] == [[1, 5, 7], [4, 1, 0]]


def test_rows_of_words() -> None:
    ours = np.arange(20, dtype=np.uint64).reshape(-1, 4)
    for column in range(4):
        theirs = ours.copy()
        theirs[3, column] += np.uint64(1)
        assert same_rows(ours, theirs).tolist() == [True, True, True, False, True]


def test_records_one_after_the_other() -> None:
    records = np.zeros(6, SPEND)
    records["number"] = range(6)
    whole = joined([records[:1], records[1:1], records[1::2], records[2:3]], SPEND)
    assert whole["number"].tolist() == [0, 1, 3, 5, 2]
    assert len(joined([], SPEND)) == 0
