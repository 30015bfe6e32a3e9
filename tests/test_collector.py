"""What the garbage collector must not be told to ignore: a struct with `gc=False` can't be part of a cycle."""

from __future__ import annotations

import gc
from collections.abc import Iterator
from importlib import import_module
from pathlib import Path
from types import NoneType, UnionType
from typing import Annotated, Any, Literal, Union, get_args, get_origin, get_type_hints
from weakref import ref

import pytest
from chains import block, open_chain, output, tx
from msgspec import Raw, Struct, UnsetType
from test_tidy import MODULES

PLAIN = (int, float, bool, str, bytes, NoneType, UnsetType, Raw)
CONTAINERS = (list, tuple, dict, set, frozenset)


def untracked() -> list[type[Struct]]:
    """Return every struct of the program that the garbage collector is configured to ignore."""
    for name in MODULES:
        if not name.startswith("bench"):
            import_module(name)
    waiting: list[type[Struct]] = [Struct]
    found: list[type[Struct]] = []
    while waiting:
        kind = waiting.pop()
        waiting += kind.__subclasses__()
        if kind.__module__ in MODULES and not kind.__struct_config__.gc:
            found.append(kind)
    return found


def ways_back(kind: Any, root: type[Struct], seen: set[type]) -> Iterator[str]:
    """Yield how a value of this type may refer to a `root`, or to something that may refer to anything."""
    origin = get_origin(kind)
    if origin is Annotated:
        yield from ways_back(get_args(kind)[0], root, seen)
    elif origin in (Union, UnionType) or origin in CONTAINERS:
        for part in get_args(kind):
            yield from ways_back(part, root, seen)
    elif isinstance(kind, type) and issubclass(kind, Struct):
        if kind is root and seen:
            yield "itself"
        if kind in seen:
            return
        seen.add(kind)
        for name, field in get_type_hints(kind, include_extras=True).items():
            for way in ways_back(field, root, seen):
                yield f"{kind.__name__}.{name}: {way}"
    elif origin is not Literal and kind is not Ellipsis and kind not in PLAIN:
        yield str(kind)


UNTRACKED = untracked()


@pytest.mark.parametrize("kind", UNTRACKED, ids=lambda kind: f"{kind.__module__}.{kind.__name__}")
def test_what_the_collector_ignores_is_in_no_cycle(kind: type[Struct]) -> None:
    assert list(ways_back(kind, kind, set())) == []


class Recursive(Struct):
    inside: list[tuple[int, Recursive | None]]


class Opaque(Struct):
    owner: object


class Outer(Struct):
    inner: dict[str, Recursive]


def test_the_rule_sees_a_way_back() -> None:
    assert list(ways_back(Recursive, Recursive, set())) == ["Recursive.inside: itself"]
    assert list(ways_back(Opaque, Opaque, set())) == ["Opaque.owner: <class 'object'>"]
    assert list(ways_back(Outer, Outer, set())) == []
    assert len(UNTRACKED) > 20


def test_a_batch_is_in_no_cycle(tmp_path: Path) -> None:
    """The memory of long blocks is freed at the commit, not by the collector."""
    with open_chain(tmp_path) as chain:
        chain.apply(block(None, tx("a", output("ann"))), None)
        batch = ref(chain.batch)
        gc.disable()
        try:
            chain.commit()
            assert batch() is None
        finally:
            gc.enable()
