"""Every kind of attack of `utxod bench soak`, bounded: real daemons, the same seeds in every run.

A longer run with other seeds is `utxod bench soak --for 1h`.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
from click.testing import CliRunner
from questions import short_folder

import bench.soak
from bench.soak import KINDS, one_round, soak
from bench.soak.crowd import CROWDS
from bench.soak.target import Met

ROUNDS = {"kills": 3, "power": 3, "faults": 4, "lies": 4, "fuzz": 2, "requests": 1, "crowd": len(CROWDS), "readers": 2}
# What the rounds of a kind have to meet together: an attack that meets nothing tests nothing.
MEETS = {
    "kills": {"kills": 30, "kills with messages unanswered": 8, "kills during the start": 1, "walks after a kill": 6},
    "power": {"power cuts": 180, "power cuts in a write of data.mdb": 60, "power cuts in a sync of data.mdb": 10},
    "faults": {"daemons ended by a disk": 2, "messages answered store_full": 1, "lives with EIO": 8},
    "lies": {"lies": 1500, "Rollback rolled_back": 20, "TxSubmitted accepted": 30, "blocks of lies rolled back": 20},
    "fuzz": {"fuzzed messages": 60_000, "answered malformed": 5000, "fuzzed connections": 20},
    "requests": {"fuzzed requests": 3000, "answered 400": 300, "answered 200": 300, "half requests": 5},
    "crowd": {"attacking messages": 1000, "rounds of crowds": len(CROWDS)},
    "readers": {"blocks beside a paused reader": 200},
}


@pytest.fixture
def folder() -> Iterator[Path]:
    """Give a folder with a short name: paths of sockets are bounded."""
    with short_folder() as name:
        yield name


@pytest.mark.parametrize("kind", KINDS)
def test_promises_hold_under_attack(kind: str, folder: Path) -> None:
    met = Met()
    for seed in range(ROUNDS[kind]):
        print(f"utxod bench soak --only {kind} --seed {seed}")  # pytest shows it when the test fails
        met.add(one_round(kind, folder, seed))
    for what, least in MEETS[kind].items():
        assert met[what] >= least, (what, met)


def test_every_module_of_attacks_is_run() -> None:
    sources = Path(bench.soak.__file__).parent.glob("*.py")
    assert {path.stem for path in sources if "\ndef round(" in path.read_text()} == set(KINDS)


def test_soak_runs_for_as_long_as_it_is_told_and_reports(folder: Path) -> None:
    done = CliRunner().invoke(soak, ["--for", "1s", "--only", "power", "--parallel", "1", "--work", str(folder)])
    assert done.exit_code == 0, done.output
    assert done.output.startswith("seed ") and "lives recorded" in done.output
    assert list(folder.iterdir()) == []


def test_soak_refuses_a_folder_with_too_long_a_name(tmp_path: Path) -> None:
    deep = tmp_path / ("d" * 100)
    deep.mkdir()
    done = CliRunner().invoke(soak, ["--for", "1s", "--work", str(deep)])
    assert done.exit_code == 2 and "more than 107 bytes" in done.output
    assert list(deep.iterdir()) == []


def test_soak_names_the_round_that_broke_a_promise_and_keeps_its_folder(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    broken, work = folder / "broken", folder / "work"
    broken.mkdir()
    work.mkdir()
    (broken / "uvloop.py").write_text("raise ImportError('no daemon can start')")
    monkeypatch.setenv("PYTHONPATH", str(broken))
    arguments = ["--for", "1h", "--only", "lies", "--seed", "7", "--parallel", "1", "--work", str(work)]
    done = CliRunner().invoke(soak, arguments)
    assert done.exit_code == 1
    assert "lies, seed 7: " in done.output and "no daemon can start" in done.output
    assert (next(work.iterdir()) / "lies-7" / "log").is_file()
