"""Imports point one way, files stay short, and only commands write to the terminal."""

from __future__ import annotations

import ast
import tokenize
import tomllib
from collections.abc import Iterator
from functools import cache
from graphlib import TopologicalSorter
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parent.parent
# Which packages each package may import, besides itself.
MAY_IMPORT = {
    "config": set[str](),
    "formats": set[str](),
    "storage": {"formats"},
    "handlers": {"storage", "config", "formats"},
    "feeds": {"handlers", "formats"},
    "daemon": {"config", "formats", "storage", "handlers", "feeds"},
    "bench": {"config", "formats", "storage", "handlers", "daemon", "feeds"},
}
WIRE = {"handlers.events", "handlers.wire", "handlers.refusal", "handlers.replication"}  # that feeds may import
CLI_LIKE = {"daemon.cli", "daemon.http.serve"}
LONGEST, LONGEST_TEST = 300, 500  # lines of a file, but for those that are listed
LIST = Path(__file__).parent / "long_files.txt"  # with the lines that each may have; it only ever gets shorter
MOST_LISTED = 38  # files: lower it with each that leaves the list
LISTED = {place: int(most) for most, place in (line.split() for line in LIST.read_text().splitlines())}
HOSTS = ("pypi", "pythonhosted", "npmjs", "jsdelivr", "unpkg", "cdnjs", "crates.io", "anaconda")


def modules() -> Iterator[tuple[str, Path]]:
    for package in MAY_IMPORT:
        for path in sorted((ROOT / package).rglob("*.py")):
            parts = path.relative_to(ROOT).with_suffix("").parts
            yield ".".join(parts[:-1] if parts[-1] == "__init__" else parts), path


MODULES = dict(modules())


@cache
def tree(path: Path) -> ast.Module:
    return ast.parse(path.read_text())


def imports(name: str, path: Path) -> Iterator[tuple[str, bool]]:
    """Yield every module that a module imports, wherever it does, and whether that is by name: `from x import y`."""
    for node in ast.walk(tree(path)):
        if isinstance(node, ast.Import):
            for alias in node.names:
                yield alias.name, False
        elif isinstance(node, ast.ImportFrom):
            assert node.level == 0, f"{name} imports relatively"
            for alias in node.names:
                inner = f"{node.module}.{alias.name}"
                yield (inner, False) if inner in MODULES else (str(node.module), True)


def ours(name: str, path: Path) -> Iterator[str]:
    for imported, _ in imports(name, path):
        if imported.split(".")[0] in MAY_IMPORT:
            yield imported


def test_imports_point_left_only() -> None:
    for name in MODULES:
        package = name.split(".")[0]
        for imported in ours(name, MODULES[name]):
            other = imported.split(".")[0]
            assert other == package or other in MAY_IMPORT[package], f"{name} imports {imported}"
            if package == "feeds" and other == "handlers":
                assert imported in WIRE, f"{name} imports {imported}"


def test_the_imports_are_found() -> None:
    assert len(MODULES) > 50
    known = {(name.split(".")[0], other.split(".")[0]) for name, path in MODULES.items() for other in ours(name, path)}
    assert {("handlers", "storage"), ("daemon", "handlers"), ("feeds", "handlers"), ("daemon", "config")} <= known


def test_the_rule_sees_a_wrong_arrow(tmp_path: Path) -> None:
    path = tmp_path / "wrong.py"
    path.write_text("def f():\n    from daemon import bus\n    import daemon.cli\n    from daemon.app import run\n")
    assert list(ours("storage.wrong", path)) == ["daemon.bus", "daemon.cli", "daemon.app"]


def test_every_package_is_installed() -> None:
    listed = tomllib.loads((ROOT / "pyproject.toml").read_text())["tool"]["setuptools"]["packages"]
    packages = {".".join(path.relative_to(ROOT).parent.parts) for path in MODULES.values()}
    assert sorted(packages) == sorted(listed)


def imported_at_once(name: str) -> Iterator[str]:
    """Yield the modules of ours that one imports when it is imported itself."""
    for node in tree(MODULES[name]).body:
        if isinstance(node, ast.ImportFrom):
            inner = [f"{node.module}.{alias.name}" for alias in node.names]
            yield from (each if each in MODULES else str(node.module) for each in inner)
        elif isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)


def test_no_module_is_imported_in_a_circle() -> None:
    """At import time: what a function imports when it is called may point anywhere that is allowed."""
    TopologicalSorter({name: MODULES.keys() & imported_at_once(name) for name in MODULES}).prepare()


def test_every_module_has_a_docstring() -> None:
    for name in MODULES:
        docstring = ast.get_docstring(tree(MODULES[name]))
        assert docstring and docstring.splitlines()[0].endswith("."), name


def length_fault(place: str, lines: int, longest: int, listed: int | None) -> str | None:
    """Return what is wrong with the length of a file, or with what the list of long files says of it."""
    if listed is None:
        return None if lines <= longest else f"{place} has {lines} lines, more than {longest}: split it"
    if lines > listed:
        return f"{place} has {lines} lines, more than the {listed} that {LIST.name} allows: split it"
    if lines <= longest:
        return f"{place} has {lines} lines, which any file may have: remove it from {LIST.name}"
    if (least := -(-lines // 10) * 10) < listed:
        return f"{place} has {lines} lines: lower its limit in {LIST.name} to {least}"
    return None


def test_files_are_short() -> None:
    """Those that were long when the limit was set are listed; a file that has become shorter must not grow again."""
    tests = [path for path in (ROOT / "tests").rglob("*.py") if "data" not in path.parts]
    sizes = [(path, LONGEST) for path in MODULES.values()] + [(path, LONGEST_TEST) for path in tests]
    places = {str(path.relative_to(ROOT)): (path, longest) for path, longest in sizes}
    lines = {place: len(path.read_text().splitlines()) for place, (path, _) in places.items()}
    faults = [length_fault(place, lines[place], longest, LISTED.get(place)) for place, (_, longest) in places.items()]
    faults += [f"there is no {place}: remove it from {LIST.name}" for place in LISTED.keys() - places.keys()]
    assert "\n".join(filter(None, faults)) == ""
    assert len(LISTED) <= MOST_LISTED


@pytest.mark.parametrize(
    ("lines", "listed", "fault"),
    [
        (300, None, None),
        (301, None, "301 lines, more than 300"),
        (391, 400, None),
        (401, 400, "401 lines, more than the 400"),
        (390, 400, "lower its limit in long_files.txt to 390"),
        (300, 310, "remove it"),
    ],
)
def test_the_list_of_long_files_only_shrinks(lines: int, listed: int | None, fault: str | None) -> None:
    found = length_fault("a.py", lines, 300, listed)
    assert found is None if fault is None else found is not None and fault in found


def test_only_commands_print() -> None:
    for name in (name for name in MODULES if not name.startswith("bench")):
        calls = [node.func for node in ast.walk(tree(MODULES[name])) if isinstance(node, ast.Call)]
        printed = [call for call in calls if isinstance(call, ast.Name) and call.id in {"print", "input", "breakpoint"}]
        assert not printed or name in CLI_LIKE, name


def test_nothing_that_must_not_ship() -> None:
    for name in MODULES:
        with MODULES[name].open("rb") as file:
            remarks = [token.string for token in tokenize.tokenize(file.readline) if token.type == tokenize.COMMENT]
        assert not [remark for remark in remarks if "FIXME" in remark or "XXX" in remark], name


def reads_of_lmdb(path: Path) -> list[int]:
    """Return the lines on which a file reads LMDB itself: with a cursor, or by a key."""
    calls = [node.func for node in ast.walk(tree(path)) if isinstance(node, ast.Call)]
    methods = [call for call in calls if isinstance(call, ast.Attribute)]
    return [
        call.lineno
        for call in methods
        if call.attr == "cursor" or (call.attr == "get" and isinstance(call.value, ast.Name) and call.value.id == "txn")
    ]


def test_only_storage_reads_lmdb() -> None:
    for name in (name for name in MODULES if name.split(".")[0] in {"handlers", "daemon", "feeds"}):
        assert reads_of_lmdb(MODULES[name]) == [], f"{name}: ask a class of storage"


def test_the_rule_sees_a_read_of_lmdb(tmp_path: Path) -> None:
    path = tmp_path / "wrong.py"
    path.write_text("def f(txn, db, d):\n    txn.get(b'', db=db)\n    d.get(1)\n    self.txn.cursor(db).first()\n")
    assert reads_of_lmdb(path) == [2, 4]


def files() -> Iterator[Path]:
    """Yield the texts that are ours: code, tests, scripts, documents, units."""
    folders = [*MAY_IMPORT, "tests", "docs", "systemd", "requirements", ".ci"]
    found = [path for folder in folders for path in (ROOT / folder).rglob("*") if path.is_file()]
    found += [path for path in ROOT.iterdir() if path.is_file()]
    for path in found:
        if (
            path.suffix not in {".pyc", ".json", ".jsonl", ".cbor", ".dat", ".hex", ".gz"}
            and "__pycache__" not in path.parts
        ):
            yield path


def test_no_package_host_is_named() -> None:
    """Where packages come from is the machine's business."""
    wrong = []
    for path in files():
        if path == Path(__file__):
            continue
        try:
            text = path.read_text()
        except UnicodeDecodeError:
            continue
        wrong += [f"{path}: {host}" for host in HOSTS if f"{host}." in text.lower() or f"{host}/" in text.lower()]
    assert wrong == []
