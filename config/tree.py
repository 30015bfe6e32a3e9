"""The Structs of `settings` as a tree of tables and settings, for reading and showing them.

A setting's name is dotted (`utxo.index.policy`); in TOML it is written as `[utxo.index] policy`, in the environment as
`UTXOD_UTXO__INDEX__POLICY`.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from typing import Any, NamedTuple, get_args

import msgspec
from msgspec import inspect, structs

from config.kinds import MASK, Secret
from config.settings import Config
from config.units import Notation


class Setting(NamedTuple):
    """One value of the configuration; `kind` is its type without metadata and without None."""

    name: str
    annotation: Any
    kind: inspect.Type
    description: str
    example: object
    notation: Notation | None

    @property
    def label(self) -> str:
        """Return how the file writes the name of this setting."""
        table, _, key = self.name.rpartition(".")
        return label(table, key)

    @property
    def variable(self) -> str:
        """Return the environment variable of this setting."""
        return "UTXOD_" + self.name.replace(".", "__").upper()

    @property
    def secret(self) -> bool:
        """Return whether the value must not be shown."""
        return isinstance(self.kind, inspect.CustomType) and self.kind.cls is Secret

    @property
    def choices(self) -> str:
        """Return the texts that this setting takes, in the order of `settings`; empty when there is no such list."""
        if not isinstance(self.kind, inspect.LiteralType):
            return ""
        options = get_args(get_args(self.annotation)[0])
        return ", ".join(map(json.dumps, get_args(options[0]) or options))  # of a literal that may be None the first

    @property
    def expects(self) -> str:
        """Return which values are right, as the object of "expected"."""
        shape = self.notation.expects if self.notation else f"one of {self.choices}" if self.choices else ""
        return (shape or _shape(self.kind)) + _bounds(self.kind, self.notation)

    def read(self, raw: object) -> object:
        """Return the value that a TOML value represents.

        Raises:
            ValueError: it represents none; the text names the valid values, and repeats this one unless it is a secret.
        """
        try:
            parsed = self.notation.parse(raw) if self.notation else raw
            return msgspec.convert(parsed, self.annotation, dec_hook=special)
        except (ValueError, msgspec.ValidationError, RecursionError):
            given = "" if self.secret else f"{_shortened(raw)}: "
            raise ValueError(f"{given}expected {self.expects}") from None


class Table(NamedTuple):
    """One table of the file; the root has no name. Settings come before tables, as TOML requires."""

    name: str
    doc: str
    entries: dict[str, Setting | Table]

    def settings(self) -> Iterator[Setting]:
        """Yield every setting of this table and of the tables in it."""
        for entry in self.entries.values():
            yield from [entry] if isinstance(entry, Setting) else entry.settings()


def label(table: str, key: str) -> str:
    """Return how the file writes a key: `[utxo.index] policy`; a key that must be quoted is."""
    shown = key if re.fullmatch("[A-Za-z0-9_-]+", key) else json.dumps(key)
    return f"[{table}] {shown}" if table else shown


def special(kind: type, raw: object) -> object:
    """Make a Path or a Secret, which msgspec does not support. The mask is refused: it was copied from `show`."""
    if isinstance(raw, kind):
        return raw
    if not isinstance(raw, str) or raw == "" or (kind is Secret and raw == MASK):
        raise ValueError(raw)
    return kind(raw)


def _table(struct: type[msgspec.Struct], name: str = "") -> Table:
    entries: dict[str, Setting | Table] = {}
    for field in structs.fields(struct):
        path = f"{name}.{field.name}" if name else field.name
        is_table = isinstance(field.type, type) and issubclass(field.type, msgspec.Struct)
        entries[field.name] = _table(field.type, path) if is_table else _setting(path, field.type)
    return Table(name, struct.__doc__ or "", entries)


def _setting(name: str, annotation: object) -> Setting:
    meta = inspect.type_info(annotation)
    assert isinstance(meta, inspect.Metadata), f"{name} has no description"
    schema, extra, kind = meta.extra_json_schema or {}, meta.extra or {}, meta.type
    if isinstance(kind, inspect.UnionType):
        kind = next(option for option in kind.types if not isinstance(option, inspect.NoneType))
    return Setting(
        name, annotation, kind, schema["description"], schema.get("examples", [None])[0], extra.get("notation")
    )


def _shape(kind: inspect.Type) -> str:
    match kind:
        case inspect.BoolType():
            return "true or false"
        case inspect.IntType():
            return "a whole number"
        case inspect.VarTupleType(item_type=item):
            return f"a list, each item {_shape(item)}{_bounds(item)}"
        case inspect.CustomType(cls=cls) if cls is Secret:
            return f'a text that is not empty and not the mask "{MASK}"'
        case _:
            return "a text that is not empty"


def _bounds(kind: inspect.Type, notation: Notation | None = None) -> str:
    if not isinstance(kind, inspect.IntType | inspect.FloatType):
        return ""
    show = notation.show if notation else str
    words = [("more than", kind.gt), ("at least", kind.ge), ("at most", kind.le)]
    return "".join(f", {word} {show(bound)}" for word, bound in words if bound is not None)


def _shortened(raw: object) -> str:
    try:
        text = json.dumps(raw, ensure_ascii=False, default=str)
    except RecursionError:
        text = "(nested too deeply to show)"
    return text if len(text) <= 80 else text[:77] + "..."


ROOT = _table(Config)
SETTINGS = {setting.name: setting for setting in ROOT.settings()}
