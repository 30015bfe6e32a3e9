"""Faster replacements of some NumPy functions on the hot path.

NumPy 2.4 finds the distinct elements of integers by hashing, at 190 ns an element, where sorting takes 6. It copies
records of several fields, and rows of a matrix, one by one where they are indexed by an array: `take` and `compress`
copy them whole, ten times as fast. A stable sort of integers in no order takes eight times as long as another one.
"""

from __future__ import annotations

from collections.abc import Iterable

import numpy as np

from storage.history.layout import Flags, Numbers, Records, Words

_PLACE_BITS = 24  # of an element's place among others, next to its number in one integer
_PLACE = (1 << _PLACE_BITS) - 1


def distinct(numbers: Numbers) -> Numbers:
    """Return the distinct elements in order."""
    ordered = np.sort(numbers)
    return ordered.compress(_begins(ordered))


def first_places(numbers: Numbers) -> tuple[Numbers, Numbers]:
    """Return the distinct elements of whole numbers below 2^39 in order, and the first place of each."""
    if len(numbers) > _PLACE:
        return np.unique(numbers, return_index=True)
    both = np.sort(numbers << _PLACE_BITS | np.arange(len(numbers)))
    ordered = both >> _PLACE_BITS
    begins = _begins(ordered)
    return ordered.compress(begins), (both & _PLACE).compress(begins)


def places_among_distinct(numbers: Numbers) -> tuple[Numbers, Numbers]:
    """Return the distinct elements in order, and for each element its place among them."""
    order = np.argsort(numbers)
    ordered = numbers.take(order)
    begins, places = _begins(ordered), np.empty(len(numbers), np.int64)
    places[order] = np.cumsum(begins) - 1
    return ordered.compress(begins), places


def stable_order(keys: Words | Numbers) -> Numbers:
    """Return the order of keys; equal ones stay in theirs."""
    order = np.argsort(keys)
    ordered = keys.take(order)
    begins = _begins(ordered)
    if begins.all():
        return order
    both = np.cumsum(begins) << 32 | order
    both.sort()
    return both & 0xFFFF_FFFF


def same_rows(ours: Words, theirs: Words) -> Flags:
    """Return which rows of four words are equal."""
    flags: Flags = (
        (ours[:, 0] == theirs[:, 0])
        & (ours[:, 1] == theirs[:, 1])
        & (ours[:, 2] == theirs[:, 2])
        & (ours[:, 3] == theirs[:, 3])
    )
    return flags


def joined(parts: Iterable[Records], record: np.dtype[np.void]) -> Records:
    """Return records one after the other."""
    return np.frombuffer(b"".join(part.data for part in map(np.ascontiguousarray, parts)), record)


def ranges(starts: Numbers, counts: Numbers) -> Numbers:
    """Return the numbers of ranges, one after the other."""
    numbers: Numbers = np.arange(int(counts.sum())) + np.repeat(starts - (np.cumsum(counts) - counts), counts)
    return numbers


def _begins(ordered: Words | Numbers) -> Flags:
    """Return where elements in order differ from the one before."""
    begins = np.ones(len(ordered), np.bool_)
    np.not_equal(ordered[1:], ordered[:-1], out=begins[1:])
    return begins


def exact_sums(amounts: Words | Numbers, ends: Numbers) -> list[int]:
    """Return the sums of consecutive amounts up to each end; no sum is too large."""
    low = np.concatenate(([0], np.cumsum((amounts & amounts.dtype.type(0xFFFF_FFFF)).astype(np.int64))))[ends]
    high = np.concatenate(([0], np.cumsum((amounts >> amounts.dtype.type(32)).astype(np.int64))))[ends]
    parts = zip(np.diff(high, prepend=0).tolist(), np.diff(low, prepend=0).tolist(), strict=True)
    return [upper * (1 << 32) + lower for upper, lower in parts]
