"""Where the real chain data for tests are: a small set in tests/data, and the full one where it is found."""

import json
import lzma
import os
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any

_REPOSITORY = Path(__file__).resolve().parents[2]
SMALL = _REPOSITORY / "tests" / "data"
FULL = Path(os.environ.get("UTXOD_CHAIN_DATA") or _REPOSITORY.parent / "shared" / "data")


WHOLE = {  # runs of the small set that are the beginnings of longer ones
    "bitcoin/mainnet-0-199.hex.xz": "bitcoin/mainnet-0-599.hex.xz",
    "bitcoin/testnet3-1-546.hex.xz": "bitcoin/testnet3-1-2500.hex.xz",
    "cardano/mainnet-shelley-100": "cardano/mainnet-shelley-4802149",
    "cardano/preprod-babbage-100": "cardano/preprod-babbage-910412",
}


def every(name: str) -> list[Path]:
    return [root / name for root in (SMALL, FULL) if (root / name).exists()]


def find(name: str) -> Path | None:
    return next(iter(every(name)), None)


def need(name: str) -> Path:
    path = find(name)
    assert path is not None, f"neither {SMALL} nor {FULL} has {name}"
    return path


def names(pattern: str) -> list[str]:
    matching = {str(path.relative_to(root)) for root in (SMALL, FULL) for path in root.glob(pattern)}
    assert matching, f"neither {SMALL} nor {FULL} has {pattern}"
    return sorted(matching)


def longest(runs: Iterable[str]) -> list[str]:
    """Return runs, but for those of which a longer one is there."""
    return [run for run in runs if run not in WHOLE or find(WHOLE[run]) is None]


def found(wanted: Iterable[str]) -> list[str]:
    return [name for name in wanted if find(name)]


def lines(path: Path) -> Iterator[str]:
    with lzma.open(path, "rt") if path.suffix == ".xz" else path.open() as file:
        for line in file:
            yield line.rstrip("\n")


def rows(path: Path) -> Iterator[dict[str, Any]]:
    return map(json.loads, lines(path))


def document(path: Path) -> Any:
    return json.loads("\n".join(lines(path)))
