"""The configuration as TOML with every setting explained: the current values, or a template to edit."""

from __future__ import annotations

import json
import textwrap
from collections.abc import Iterator, Mapping

from msgspec import Struct

from config.kinds import MASK
from config.settings import Config
from config.tree import ROOT, Setting, Table

_HEADER = """\
Configuration of utxod. An environment variable UTXOD_SECTION__NAME (UTXOD_DATA_DIR, UTXOD_UTXO__INDEX__POLICY)
takes precedence over the value in this file. Durations are written as 30s, 5m, 1h or 500ms; a number without a
unit means seconds. Sizes are written as 64MiB; a number without a unit means bytes."""


_UNSET = "# Not set; for example:"


def render(config: Config) -> str:
    """Return all values in force as TOML that `load` reads back as an equal Config.

    Secrets are the exception: one is shown as a mask, which `load` refuses, so that the mask never becomes a secret.
    """
    return _text(config, _HEADER, commented=False)


def template() -> str:
    """Return the default configuration with every value commented out, for an operator to edit."""
    return _text(Config(), f"{_HEADER} Settings that are commented out have the default value shown.", commented=True)


def starter(settings: Mapping[str, str]) -> str:
    """Return the template with some settings written out: texts, by their dotted names."""
    table, lines = "", list[str]()
    for line in template().splitlines():
        if line.startswith("["):
            table = f"{line[1:-1]}."
        key, is_value, _ = line.removeprefix("# ").partition(" = ")
        if is_value and line.startswith("# ") and table + key in settings:
            if lines[-1] == _UNSET:
                lines.pop()
            line = f"{key} = {_quoted(settings[table + key])}"
        lines.append(line)
    return "\n".join(lines) + "\n"


def _text(config: Config, header: str, commented: bool) -> str:
    lines = [*_comment(header), *_table(ROOT, config, commented)]
    return "\n".join(lines) + "\n"


def _table(table: Table, values: Struct, commented: bool) -> Iterator[str]:
    if table.name:
        yield from ("", f"[{table.name}]", *_comment(table.doc))
    for key, entry in table.entries.items():
        value = getattr(values, key)
        if isinstance(entry, Table):
            yield from _table(entry, value, commented)
        else:
            yield from ("", *_setting(key, entry, value, commented))


def _setting(key: str, setting: Setting, value: object, commented: bool) -> Iterator[str]:
    unset = value is None
    yield from _comment(" ".join([setting.description, *_limits(setting)]))
    if unset:
        yield _UNSET
    shown = _toml(setting.example if unset else MASK if setting.secret else value, setting)
    yield f"{'# ' if commented or unset else ''}{key} = {shown}"


def _limits(setting: Setting) -> Iterator[str]:
    if setting.choices:
        yield f"One of {setting.choices}."
    least = getattr(setting.kind, "ge", None) or 0
    if least > 0:
        yield f"At least {setting.notation.show(least) if setting.notation else least}."


def _toml(value: object, setting: Setting) -> str:
    if isinstance(value, tuple):
        return f"[{', '.join(_quoted(item) if isinstance(item, str) else str(item) for item in value)}]"
    if isinstance(value, bool):
        return json.dumps(value)
    if isinstance(value, int | float):
        return _quoted(setting.notation.show(value)) if setting.notation else str(value)
    return _quoted(str(value))


def _quoted(text: str) -> str:
    # JSON's strings are TOML's, but for the one control character that JSON leaves as it is.
    return json.dumps(text, ensure_ascii=False).replace("\x7f", "\\u007f")


def _comment(text: str) -> list[str]:
    return textwrap.wrap(text, 110, initial_indent="# ", subsequent_indent="# ", break_on_hyphens=False)
