"""Where the real chain data for acceptance tests are, and what happens without them.

They are looked for in $UTXOD_CHAIN_DATA, else in ../shared/data beside the repository. A test that misses them is
skipped and says so; with UTXOD_REQUIRE_CHAIN_DATA=1 it fails instead.
"""

import json
import lzma
import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

_REPOSITORY = Path(__file__).resolve().parents[2]
ROOT = Path(os.environ.get("UTXOD_CHAIN_DATA") or _REPOSITORY.parent / "shared" / "data")


def need(name: str) -> Path:
    """Return the path of `name` in the data, or end the test here."""
    path = ROOT / name
    if path.exists():
        return path
    message = f"no real chain data at {path}: set UTXOD_CHAIN_DATA"
    if os.environ.get("UTXOD_REQUIRE_CHAIN_DATA") == "1":
        pytest.fail(message)
    pytest.skip(message)


def names(pattern: str) -> list[str]:
    """Return the names in the data that match, for parametrize; without any the pattern itself, for `need` to miss."""
    return sorted(str(path.relative_to(ROOT)) for path in ROOT.glob(pattern)) or [pattern]


def lines(path: Path) -> Iterator[str]:
    """Yield the lines of a text file, plain or .xz."""
    with lzma.open(path, "rt") if path.suffix == ".xz" else path.open() as file:
        for line in file:
            yield line.rstrip("\n")


def rows(path: Path) -> Iterator[dict[str, Any]]:
    """Yield the objects of a JSON Lines file, plain or .xz."""
    return map(json.loads, lines(path))
