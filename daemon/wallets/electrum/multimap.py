"""Several values by key, compactly where most keys have one."""

from __future__ import annotations

from collections.abc import Collection, Hashable, Iterator
from typing import Generic, TypeVar

_K = TypeVar("_K", bound=Hashable)
_V = TypeVar("_V", bound=Hashable)

_SPARSE = 8  # a dictionary never shrinks: it is copied when it had this many times the keys that it has
_SMALL = 10_000  # keys, up to which it stays


class Multimap(Generic[_K, _V]):
    """Sets of values by key. A key with one value has the value itself, because an empty set takes 216 bytes."""

    def __init__(self) -> None:
        self._values: dict[_K, _V | set[_V]] = {}
        self._most = 0

    def __contains__(self, key: object) -> bool:
        return key in self._values

    def __iter__(self) -> Iterator[_K]:
        return iter(self._values)

    def get(self, key: _K) -> Collection[_V]:
        """Return the values of a key; a copy."""
        found = self._values.get(key)
        if found is None:
            return ()
        return tuple(found) if isinstance(found, set) else (found,)

    def add(self, key: _K, value: _V) -> None:
        """Add a value."""
        found = self._values.setdefault(key, value)
        if isinstance(found, set):
            found.add(value)
        elif found != value:
            self._values[key] = {found, value}

    def discard(self, key: _K, value: _V) -> None:
        """Remove a value if it is there."""
        found = self._values.get(key)
        if isinstance(found, set):
            found.discard(value)
            if len(found) == 1:
                (self._values[key],) = found
        elif found is not None and found == value:
            self._most = max(self._most, len(self._values))
            del self._values[key]
            if self._most > _SMALL and len(self._values) < self._most // _SPARSE:
                self._values, self._most = dict(self._values), len(self._values)
