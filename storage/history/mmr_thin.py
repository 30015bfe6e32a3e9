"""Deletion of nodes that no proof needs: those below a node whose outputs are all permanently spent.

Values are examined in the order of positions. Under a node of the current value either all outputs belong to it, then
their bits decide; or the node's children are in earlier values or at their end, and what is left of these decides.
The children of a node are deleted when everything under it is dead. So a value costs reading a few others, however
high its nodes.
"""

from __future__ import annotations

from collections.abc import Callable

import numpy as np

from storage.disk import Txn
from storage.history.layout import Flags, Numbers
from storage.history.mmr_arrays import described, last_leaf
from storage.history.mmr_nodes import Nodes, StoredNodes, Value

MOST = 2  # a value is rewritten when fewer than one node in this many stays

Revivable = Callable[[Numbers], Flags]


class Thinned:
    """Some neighbouring values, `span` from the first position to the one behind the last."""

    def __init__(self, nodes: Nodes, stored: StoredNodes, span: tuple[int, int], revivable: Revivable) -> None:
        self._nodes, self._stored, self._revivable = nodes, stored, revivable
        self._low = last_leaf(span[0])
        self._dead = ~revivable(np.arange(self._low, last_leaf(span[1] - 1) + 1))
        self._before = np.concatenate((np.zeros(1, np.int64), np.cumsum(self._dead)))

    def thin(self, txn: Txn, first: int) -> int:
        """Rewrite a value when more than half of it may be deleted; return how many nodes were deleted."""
        low, high = last_leaf(first), last_leaf(first + self._nodes.per_value - 1)
        if not self._dead[low - self._low : high + 1 - self._low].any():
            return 0
        positions, last, heights = described(first, self._nodes.per_value)
        parents = self._dead_nodes(first, last, heights)
        left, right = positions[parents] - (1 << heights[parents]), positions[parents] - 1
        children = np.concatenate((left, right))
        gone = self._delete(txn, first, children[children >= first] - first, enough=True)
        outside = children[children < first]
        for value in np.unique(outside // self._nodes.per_value).tolist():
            begin = value * self._nodes.per_value
            gone += self._delete(txn, begin, outside[outside // self._nodes.per_value == value] - begin, enough=False)
        return gone

    def _dead_nodes(self, first: int, last: Numbers, heights: Numbers) -> Numbers:
        """Return the places of the nodes above leaves under which all is dead; `last` is the last leaf under each."""
        begin = last + 1 - (1 << heights)
        dead = np.zeros(len(last), np.bool_)
        known = begin >= self._low
        counts = self._before[last[known] + 1 - self._low] - self._before[begin[known] - self._low]
        dead[known] = counts == 1 << heights[known]
        for place in np.flatnonzero(~known).tolist():
            leaf, height = int(last[place]), int(heights[place]) - 1
            left, right = place - (2 << height), place - 1
            dead[place] = (dead[right] if right >= 0 else self._all_dead(first + right, leaf, height)) and (
                dead[left] if left >= 0 else self._all_dead(first + left, leaf - (1 << height), height)
            )
        return np.flatnonzero(dead & (heights > 0))

    def _all_dead(self, position: int, last: int, height: int) -> bool:
        """Return whether everything under a node of an earlier value is known to be dead."""
        if height == 0:
            return not bool(self._revivable(np.array([last]))[0])
        near = (position, position - 1, position - (1 << height))  # it and its children
        return any(self._stored.find(each) is None for each in near)

    def _delete(self, txn: Txn, first: int, places: Numbers, *, enough: bool) -> int:
        """Remove nodes from a value; with `enough` only when most of it is removed."""
        value = self._stored.value(first)
        there = value.there.copy()
        there[places[places < len(there)]] = False
        kept, count = int(there.sum()), int(value.there.sum())
        if kept == count or (enough and MOST * kept >= count):
            return 0
        self._nodes.put(txn, first, Value(there, value.hashes[there[value.there]]))
        self._stored.forget(first)
        return count - kept
