"""The sets of real chain data: the small one is whole, and says nothing else than the full one."""

import os
from pathlib import Path

from real_data import FULL, SMALL, WHOLE, document, lines

MOST_BYTES = 1_500_000  # of the small set, which everybody clones
LISTS = ("bitcoin-single-blocks.json", "cardano-single-blocks.json.xz")
CUTS = WHOLE | {"cardano/preview-genesis-100": "cardano/preview-genesis-run"}


def files() -> list[Path]:
    return [path for path in SMALL.rglob("*") if path.is_file()]


def test_the_full_set_is_here_where_it_has_to_be() -> None:
    if os.environ.get("UTXOD_REQUIRE_CHAIN_DATA") == "1" or os.environ.get("UTXOD_CHAIN_DATA"):
        assert FULL.is_dir(), f"no real chain data at {FULL}: set UTXOD_CHAIN_DATA"


def test_the_small_set_is_small() -> None:
    assert sum(path.stat().st_size for path in files()) <= MOST_BYTES


def test_the_source_of_every_file_is_listed() -> None:
    listed = (SMALL / "PROVENANCE.md").read_text()
    for path in files():
        *folders, name = path.relative_to(SMALL).parts
        if folders and folders[0] != "expected":
            run = folders[0] == "cardano" and folders[1] != "single"  # a folder
            assert f"| {folders[1] if run else name.partition('.')[0]} |" in listed, path


def test_files_of_both_sets_are_equal() -> None:
    for path in files() if FULL.is_dir() else []:
        other = FULL / path.relative_to(SMALL)
        if path.name in LISTS:
            assert all(each in document(other) for each in document(path))
        elif other.exists() and path.name != "PROVENANCE.md":
            assert path.read_bytes() == other.read_bytes(), path


def test_shortened_runs_are_beginnings_of_the_full_ones() -> None:
    for names in CUTS.items() if FULL.is_dir() else []:
        for cut, whole in (names, map(expected_blocks, names)):
            if cut.endswith(".xz"):
                for line, other in zip(lines(SMALL / cut), lines(FULL / whole), strict=False):
                    assert line == other, cut


def expected_blocks(run: str) -> str:
    return f"expected/{run.removesuffix('.hex.xz').replace('/', '-')}.blocks.jsonl.xz"
