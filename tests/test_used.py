"""Nothing of the program is there for its tests alone: every function, method and class is named somewhere else in it.

A function or class of a module counts as used where it is imported, where it is asked of the module, and where its own
module names it outside of itself. Of a method only the name is known, so one of the same name elsewhere hides it.
"""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from importlib import import_module
from typing import NamedTuple

from test_tidy import MODULES, tree

COMMAND = re.compile(r"\.(command|group)\(")
DEFINITION = ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef
# Called by what is no file of the program.
NAMED_ELSEWHERE = {
    "bench.electrumx_live:_Node.cached_height": "ElectrumX calls it",
    "bench.electrumx_live:_NoSessions.on_block": "ElectrumX calls it",
    "daemon.http.head:HeadReader.on_header": "httptools calls it",
    "daemon.http.head:HeadReader.on_headers_complete": "httptools calls it",
    "daemon.http.head:HeadReader.on_url": "httptools calls it",
    "daemon.http.protocol:HttpConnection.shutdown": "uvicorn calls it",
}


class Defined(NamedTuple):
    """A function, class or method of the program; `inside` is the class of a method."""

    module: str
    inside: str | None
    name: str
    node: DEFINITION

    def __str__(self) -> str:
        return f"{self.module}:{self.inside}.{self.name}" if self.inside else f"{self.module}:{self.name}"


def defined(module: str, parsed: ast.Module) -> Iterator[Defined]:
    for node in parsed.body:
        if isinstance(node, DEFINITION):
            yield Defined(module, None, node.name, node)
        if isinstance(node, ast.ClassDef):
            for member in node.body:
                if isinstance(member, DEFINITION):
                    yield Defined(module, node.name, member.name, member)


class Uses:
    """What a program names: attributes wherever they stand, functions and classes by their modules."""

    def __init__(self, trees: dict[str, ast.Module]) -> None:
        self.attributes: dict[str, list[ast.AST]] = {}
        self.imported_late: set[str] = set()  # names asked of `import_module(...)`
        self.names: dict[tuple[str, str], list[ast.AST]] = {}
        for module, parsed in trees.items():
            aliases = dict(self._modules(parsed, trees))
            for node in ast.walk(parsed):
                match node:
                    case ast.Name(id=name):
                        self._name(module, name, node)
                    case ast.Call(func=ast.Name(id="getattr"), args=[_, ast.Constant(value=str(name)), *_]):
                        self.attributes.setdefault(name, []).append(node)
                    case ast.Attribute(value=ast.Name(id=alias), attr=name) if alias in aliases:
                        self._name(aliases[alias], name, node)
                    case ast.Attribute(value=ast.Call(func=ast.Name(id="import_module")), attr=name):
                        self.imported_late.add(name)
                    case ast.Attribute(attr=name):
                        self.attributes.setdefault(name, []).append(node)
                    case ast.ImportFrom(module=str(other)):
                        for each in node.names:
                            self._name(other, each.name, node)

    def _name(self, module: str, name: str, node: ast.AST) -> None:
        self.names.setdefault((module, name), []).append(node)

    @staticmethod
    def _modules(parsed: ast.Module, trees: dict[str, ast.Module]) -> Iterator[tuple[str, str]]:
        """Yield the names under which a module knows others."""
        for node in ast.walk(parsed):
            if isinstance(node, ast.ImportFrom):
                for each in node.names:
                    if (inner := f"{node.module}.{each.name}") in trees:
                        yield each.asname or each.name, inner

    def of(self, what: Defined) -> bool:
        """Return whether something is named outside of itself."""
        if what.inside is None and what.name in self.imported_late:
            return True
        own = set(ast.walk(what.node))
        places = self.attributes.get(what.name, []) if what.inside else self.names.get((what.module, what.name), [])
        return any(node not in own for node in places)


def is_command(what: Defined) -> bool:
    return any(COMMAND.search(ast.unparse(each)) for each in what.node.decorator_list)


def called_by_library(what: Defined) -> bool:
    """Return whether it is a special method, or overrides one of a class that is not ours."""
    if what.inside is None:
        return False
    bases = getattr(import_module(what.module), what.inside).__mro__[1:]
    special = what.name.startswith("__") and what.name.endswith("__")
    return special or any(what.name in vars(base) for base in bases if base.__module__ not in MODULES)


def unnamed(trees: dict[str, ast.Module]) -> list[Defined]:
    """Return what nothing outside of it names, but for commands."""
    uses = Uses(trees)
    found = [what for module, parsed in trees.items() for what in defined(module, parsed)]
    return [what for what in found if not uses.of(what) and not is_command(what)]


def unused(trees: dict[str, ast.Module]) -> list[str]:
    return [str(what) for what in unnamed(trees) if not called_by_library(what)]


def test_everything_is_named_somewhere_else_in_the_program() -> None:
    found = unused({name: tree(path) for name, path in MODULES.items()})
    assert sorted(set(found) - NAMED_ELSEWHERE.keys()) == [], "only tests use these: remove them, or call them"
    assert sorted(NAMED_ELSEWHERE.keys() - set(found)) == [], "these are used, or gone: take them off the list"


def test_the_rule_finds_what_no_name_refers_to() -> None:
    one = """
from formats import two
import formats.three
def _used(): return two.asked()
def alone(): return alone()
class Thing:
    def called(self): return _used()
    def never(self): return self.never()
    def by_name(self): return getattr(self, "called")
"""
    two = """
from formats.one import Thing
def asked(): return Thing().by_name()
def shown(): "unused"
@main.command()
def shell(): pass
"""
    trees = {"formats.one": ast.parse(one), "formats.two": ast.parse(two)}
    assert list(map(str, unnamed(trees))) == ["formats.one:alone", "formats.one:Thing.never", "formats.two:shown"]
