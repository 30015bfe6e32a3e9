"""The list of mutations: small plausible bugs, by area, each with the tests that have to catch it."""

from __future__ import annotations

import tomllib
from pathlib import Path

import msgspec
from msgspec import Struct

FOLDER = Path(__file__).parent
ROOT = FOLDER.parent.parent


class Mutation(Struct, frozen=True, forbid_unknown_fields=True):
    """One bug: in `file`, `old` becomes `new`. `tests` are files below `tests`, the likeliest to fail first."""

    file: str
    old: str
    new: str
    breaks: str
    tests: list[str]

    def place(self, root: Path) -> str:
        """Return the file and the line.

        Raises:
            ValueError: the old text is not found exactly once.
        """
        text = (root / self.file).read_text()
        if (count := text.count(self.old)) != 1:
            what = f"{self.file}: {self.old!r} occurs {count} times, expected once"
            raise ValueError(f"{what}: rewrite this mutation in {FOLDER.relative_to(ROOT)}, or remove it with its rule")
        return f"{self.file}:{text[: text.index(self.old)].count(chr(10)) + 1}"


def load() -> dict[str, Mutation]:
    """Return all mutations by name: the area, and the place in its file."""
    found: dict[str, Mutation] = {}
    for file in sorted(FOLDER.glob("*.toml")):
        listed = msgspec.convert(tomllib.loads(file.read_text())["mutation"], list[Mutation])
        found |= {f"{file.stem}/{n}": mutation for n, mutation in enumerate(listed, 1)}
    return found
