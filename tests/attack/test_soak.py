"""`utxod bench soak` itself; its attacks are the other files here."""

from __future__ import annotations

from pathlib import Path

import pytest
from attacking import MEETS, ROUNDS
from click.testing import CliRunner

import bench.soak
from bench.soak import KINDS, soak


def test_every_module_of_attacks_is_run() -> None:
    sources = Path(bench.soak.__file__).parent.glob("*.py")
    assert {path.stem for path in sources if "\ndef round(" in path.read_text()} == set(KINDS)
    assert set(ROUNDS) == set(MEETS) == set(KINDS)
    for kind in KINDS:
        assert f'attack("{kind}")' in (Path(__file__).parent / f"test_attack_{kind}.py").read_text()


def test_soak_runs_for_the_given_time_and_reports(folder: Path) -> None:
    done = CliRunner().invoke(soak, ["--for", "1s", "--only", "readers", "--parallel", "1", "--work", str(folder)])
    assert done.exit_code == 0, done.output
    assert done.output.startswith("seed ") and "blocks next to a paused reader" in done.output
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
