"""The rooms of the house: imports point left only, files stay short, and a program speaks where programs speak."""

from __future__ import annotations

import ast
import tokenize
import tomllib
from collections.abc import Iterator
from functools import cache
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parent.parent
# Who may know whom. Each room knows itself.
KNOWS = {
    "config": set[str](),
    "formats": set[str](),
    "storage": {"formats"},
    "handlers": {"storage", "config", "formats"},
    "feeds": {"handlers", "formats"},
    "daemon": {"config", "formats", "storage", "handlers", "feeds"},
    "bench": {"config", "formats", "storage", "handlers", "daemon", "feeds"},
}
WIRE = {"handlers.events", "handlers.wire", "handlers.refusal"}  # what feeds may know of the handlers
CLI_LIKE = {"daemon.cli", "daemon.http.serve"}
LONGEST = 400
HOSTS = ("pypi", "pythonhosted", "npmjs", "jsdelivr", "unpkg", "cdnjs", "crates.io", "anaconda")


def modules() -> Iterator[tuple[str, Path]]:
    for room in KNOWS:
        for path in sorted((ROOT / room).rglob("*.py")):
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
        if imported.split(".")[0] in KNOWS:
            yield imported


@pytest.mark.parametrize("name", MODULES)
def test_imports_point_left_only(name: str) -> None:
    room = name.split(".")[0]
    for imported in ours(name, MODULES[name]):
        other = imported.split(".")[0]
        assert other == room or other in KNOWS[room], f"{name} imports {imported}"
        if room == "feeds" and other == "handlers":
            assert imported in WIRE, f"{name} imports {imported}"


def test_there_is_something_to_look_at() -> None:
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


@pytest.mark.parametrize("name", MODULES)
def test_no_module_is_imported_in_a_circle(name: str) -> None:
    """At import time: what a function imports when it is called may point anywhere that is allowed."""

    def at_once(module: str) -> Iterator[str]:
        for node in tree(MODULES[module]).body:
            if isinstance(node, ast.ImportFrom):
                for alias in node.names:
                    inner = f"{node.module}.{alias.name}"
                    yield inner if inner in MODULES else str(node.module)
            elif isinstance(node, ast.Import):
                yield from (alias.name for alias in node.names)

    seen, waiting = set[str](), [name]
    while waiting:
        for imported in at_once(waiting.pop()):
            assert imported != name, f"{name} imports itself in the end"
            if imported in MODULES and imported not in seen:
                seen.add(imported)
                waiting.append(imported)


@pytest.mark.parametrize("name", MODULES)
def test_files_are_short_and_say_what_they_are(name: str) -> None:
    assert len(MODULES[name].read_text().splitlines()) <= LONGEST
    docstring = ast.get_docstring(tree(MODULES[name]))
    assert docstring and docstring.splitlines()[0].endswith("."), name


@pytest.mark.parametrize("name", [name for name in MODULES if not name.startswith("bench")])
def test_only_commands_print(name: str) -> None:
    calls = [node.func for node in ast.walk(tree(MODULES[name])) if isinstance(node, ast.Call)]
    printed = [call for call in calls if isinstance(call, ast.Name) and call.id in {"print", "input", "breakpoint"}]
    assert not printed or name in CLI_LIKE


@pytest.mark.parametrize("name", MODULES)
def test_nothing_that_must_not_ship(name: str) -> None:
    with MODULES[name].open("rb") as file:
        remarks = [token.string for token in tokenize.tokenize(file.readline) if token.type == tokenize.COMMENT]
    assert not [remark for remark in remarks if "FIXME" in remark or "XXX" in remark]


def reads_of_lmdb(path: Path) -> list[int]:
    """Return the lines on which a file reads LMDB itself: with a cursor, or by a key."""
    calls = [node.func for node in ast.walk(tree(path)) if isinstance(node, ast.Call)]
    methods = [call for call in calls if isinstance(call, ast.Attribute)]
    return [
        call.lineno
        for call in methods
        if call.attr == "cursor" or (call.attr == "get" and isinstance(call.value, ast.Name) and call.value.id == "txn")
    ]


@pytest.mark.parametrize("name", [name for name in MODULES if name.split(".")[0] in {"handlers", "daemon", "feeds"}])
def test_only_storage_reads_lmdb(name: str) -> None:
    assert reads_of_lmdb(MODULES[name]) == [], f"{name}: ask a class of storage"


def test_the_rule_sees_a_read_of_lmdb(tmp_path: Path) -> None:
    path = tmp_path / "wrong.py"
    path.write_text("def f(txn, db, d):\n    txn.get(b'', db=db)\n    d.get(1)\n    self.txn.cursor(db).first()\n")
    assert reads_of_lmdb(path) == [2, 4]


def files() -> Iterator[Path]:
    """Yield the texts that are ours: code, tests, scripts, documents, units."""
    folders = [*KNOWS, "tests", "docs", "systemd", "requirements", ".ci"]
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
