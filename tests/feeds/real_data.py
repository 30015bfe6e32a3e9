"""Where the real chain data for tests are: a small set in tests/data, and the full one where it is found.

The full set is looked for in $UTXOD_CHAIN_DATA, else in ../shared/data beside the repository. Both have the same form.
A file that both have is the same in both, but for the lists of what is expected of single blocks: `every` returns both
of them. Tests are parametrised over what is found, so without the full set they are fewer, and none is skipped.
"""

import json
import lzma
import os
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any

_REPOSITORY = Path(__file__).resolve().parents[2]
SMALL = _REPOSITORY / "tests" / "data"
FULL = Path(os.environ.get("UTXOD_CHAIN_DATA") or _REPOSITORY.parent / "shared" / "data")


def every(name: str) -> list[Path]:
    """Return the file or folder of this name in each set that has it, the small set first."""
    return [root / name for root in (SMALL, FULL) if (root / name).exists()]


def find(name: str) -> Path | None:
    """Return the path of `name`; None where no set has it."""
    return next(iter(every(name)), None)


def need(name: str) -> Path:
    """Return the path of `name`, which is in one of the sets."""
    path = find(name)
    assert path is not None, f"neither {SMALL} nor {FULL} has {name}"
    return path


def names(pattern: str) -> list[str]:
    """Return the names that match in any of the sets, for parametrize."""
    matching = {str(path.relative_to(root)) for root in (SMALL, FULL) for path in root.glob(pattern)}
    assert matching, f"neither {SMALL} nor {FULL} has {pattern}"
    return sorted(matching)


def found(wanted: Iterable[str]) -> list[str]:
    """Return those of some names that are in one of the sets, for parametrize."""
    return [name for name in wanted if find(name)]


def lines(path: Path) -> Iterator[str]:
    """Yield the lines of a text file, plain or .xz."""
    with lzma.open(path, "rt") if path.suffix == ".xz" else path.open() as file:
        for line in file:
            yield line.rstrip("\n")


def rows(path: Path) -> Iterator[dict[str, Any]]:
    """Yield the objects of a JSON Lines file, plain or .xz."""
    return map(json.loads, lines(path))


def document(path: Path) -> Any:
    """Return what a JSON file says, plain or .xz."""
    return json.loads("\n".join(lines(path)))
