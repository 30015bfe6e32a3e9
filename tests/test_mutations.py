"""The list of mutations stays true: each still applies to the code, and names tests that there are."""

from __future__ import annotations

import ast
import subprocess
from pathlib import Path

import pytest
from mutations.patches import FOLDER, ROOT, Mutation, load

MUTATIONS = load()
AREAS = {path.stem for path in FOLDER.glob("*.toml")}


def functions(file: Path) -> set[str]:
    return {node.name for node in ast.parse(file.read_text()).body if hasattr(node, "name")}


def test_every_area_has_mutations() -> None:
    assert {name.partition("/")[0] for name in MUTATIONS} == AREAS and len(AREAS) >= 12
    assert len(MUTATIONS) >= 200
    assert len({(each.file, each.old, each.new) for each in MUTATIONS.values()}) == len(MUTATIONS)


def test_every_mutation_applies() -> None:
    for name, mutation in MUTATIONS.items():
        mutation.place(ROOT)
        assert mutation.old != mutation.new and mutation.breaks, name
        assert compile((ROOT / mutation.file).read_text().replace(mutation.old, mutation.new), mutation.file, "exec")
        assert mutation.tests, name
        for test in mutation.tests:
            file, _, function = test.partition("::")
            assert (ROOT / "tests" / file).is_file(), f"{name}: {test}"
            assert not function or function in functions(ROOT / "tests" / file), f"{name}: {test}"


@pytest.mark.parametrize("text", ["x = 1\n", "if a > b:\nif a > b:\n"])
def test_a_mutation_that_does_not_apply_is_refused(tmp_path: Path, text: str) -> None:
    (tmp_path / "code.py").write_text(text)
    with pytest.raises(ValueError, match=r"code.py: 'a > b' occurs [02] times, expected once"):
        Mutation("code.py", "a > b", "a >= b", "something", ["test_mutations.py"]).place(tmp_path)


def test_the_place_of_a_mutation(tmp_path: Path) -> None:
    (tmp_path / "code.py").write_text("x = 1\nif a > b:\n")
    assert Mutation("code.py", "a > b", "a >= b", "something", []).place(tmp_path) == "code.py:2"


def test_the_documented_commands_run() -> None:
    command = str(ROOT / "tests" / "mutations" / "run")
    listed = subprocess.run([command, "--list"], check=True, stdout=subprocess.PIPE, text=True).stdout
    assert [line.split()[0] for line in listed.splitlines() if line.startswith("config/")] == [
        name for name in MUTATIONS if name.startswith("config/")
    ]
    assert f"{command.removeprefix(f'{ROOT}/')} config/1 " in (ROOT / "CONTRIBUTING.md").read_text()
    done = subprocess.run([command, "config/1"], check=False, stdout=subprocess.PIPE, text=True)
    assert done.returncode == 0 and "1 caught, 0 survived, 0 unclear" in done.stdout
