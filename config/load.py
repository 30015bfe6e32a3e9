"""Reads the configuration from a TOML file and the environment, or reports every error in it at once."""

from __future__ import annotations

import tomllib
from collections.abc import Iterable, Mapping
from difflib import get_close_matches
from pathlib import Path
from typing import Any, NamedTuple

import msgspec
from msgspec import inspect

from config.checks import problems as problems_of
from config.checks import recovery_problems
from config.settings import Config, Recovery, first_directory
from config.tree import ROOT, SETTINGS, Setting, Table, label, special

DEFAULT_FILE = Path("/etc/utxod/utxod.toml")
_PREFIX = "UTXOD_"
_NOT_SETTINGS = {"UTXOD_CONFIG", "UTXOD_CHAIN_DATA", "UTXOD_REQUIRE_CHAIN_DATA"}  # the last two belong to tests
_STRATEGY = "utxo.index.strategy"
_SET_BY_STRATEGY = ("utxo.index.address_hash", "utxo.index.payment_credential")
_WORDS = {"true": True, "yes": True, "1": True, "false": False, "no": False, "0": False}


class ConfigError(ValueError):
    """The configuration is wrong; the text has one line for each problem."""

    def __init__(self, problems: Iterable[str]) -> None:
        """Keep the lines as `problems` too."""
        self.problems = tuple(problems)
        super().__init__("\n".join(self.problems))


class _Given(NamedTuple):
    place: str
    raw: object


def load(path: Path | None, environ: Mapping[str, str]) -> Config:
    """Return the configuration of the file and the environment, which wins.

    The file is `path`, else $UTXOD_CONFIG, else `DEFAULT_FILE` if there is one. A value of the file that the
    environment replaces is not checked; combinations are checked only when every value is valid by itself.

    Raises:
        ConfigError: with all problems.
    """
    problems: list[str] = []
    given = _from_file(path, environ, problems) | _from_environment(environ, problems)
    values: dict[str, object] = {}
    for name, (place, raw) in given.items():
        try:
            values[name] = SETTINGS[name].read(raw)
        except ValueError as error:
            problems.append(f"{place}: {error}")
    problems += _expand_strategy(values, given)
    if problems:
        raise ConfigError(problems)
    config = _assemble(values, environ)
    for names, what in problems_of(config):
        place = next((given[name].place for name in names if name in given), SETTINGS[names[0]].label)
        problems.append(f"{place}: {what}")
    if problems:
        raise ConfigError(problems)
    return config


def _expand_strategy(values: dict[str, object], given: Mapping[str, _Given]) -> list[str]:
    """Replace the shorthand that sets two switches by these; return the source of their values."""
    if (strategy := values.pop(_STRATEGY, None)) is None:
        return []
    problems = []
    for name in _SET_BY_STRATEGY:
        key = name.rpartition(".")[2]
        if name in given:
            other = given[name].place
            problems.append(f"{given[_STRATEGY].place}: sets {key} too, as does {other}: remove one of them")
        values[name] = strategy in (key, "both")
    return problems


def named_file(path: Path | None, environ: Mapping[str, str]) -> Path | None:
    """Return the file that is named on the command line or in the environment, None where the default one is read."""
    named = environ.get("UTXOD_CONFIG")
    return path or (Path(named) if named else None)


def check_recovery(recovery: Recovery) -> Recovery:
    """Return settings that a program has made, checked by the rules and with the messages of `load`.

    Raises:
        ConfigError: with all problems.
    """
    values: dict[str, object] = {}
    problems: list[str] = []
    for name, raw in msgspec.structs.asdict(recovery).items():
        setting = SETTINGS[f"recovery.{name}"]
        try:
            values[name] = setting.read(raw)
        except ValueError as error:
            problems.append(f"{setting.label}: {error}")
    if problems:
        raise ConfigError(problems)
    checked = Recovery(**values)  # type: ignore[arg-type]  # each value was read as its own type
    problems = [f"{SETTINGS[names[0]].label}: {what}" for names, what in recovery_problems(checked)]
    if problems:
        raise ConfigError(problems)
    return checked


def _assemble(values: Mapping[str, object], environ: Mapping[str, str]) -> Config:
    state = first_directory(environ, "STATE_DIRECTORY")
    tree: dict[str, Any] = {"data_dir": state} if state else {}
    for name, value in values.items():
        *tables, key = name.split(".")
        inner = tree
        for table in tables:
            inner = inner.setdefault(table, {})
        inner[key] = value
    return msgspec.convert(tree, Config, dec_hook=special)


def _from_file(path: Path | None, environ: Mapping[str, str], problems: list[str]) -> dict[str, _Given]:
    named = named_file(path, environ)
    file = named or DEFAULT_FILE
    given: dict[str, _Given] = {}
    try:
        _walk(_parse(file), ROOT, file, given, problems)
    except FileNotFoundError:
        if named:
            problems.append(f"{file}: this file does not exist" + ("" if path else ", but UTXOD_CONFIG names it"))
    except OSError as error:
        problems.append(f"{file}: cannot be read: {error.strerror}")
    except ValueError as error:
        problems.append(f"{file}: {error}")
    return given


def _parse(file: Path) -> dict[str, Any]:
    raw = file.read_bytes()
    try:
        return tomllib.loads(raw.decode())
    except UnicodeDecodeError as error:
        line = raw.count(b"\n", 0, error.start) + 1
        raise ValueError(f"not UTF-8 (at line {line})") from None
    except tomllib.TOMLDecodeError as error:
        last_line = len(raw.splitlines())
        raise ValueError(str(error).replace("at end of document", f"at line {last_line}, the end")) from None
    except RecursionError:
        raise ValueError("lists or tables are nested too deeply") from None


def _walk(data: dict[str, Any], table: Table, file: Path, given: dict[str, _Given], problems: list[str]) -> None:
    for key, value in data.items():
        entry = table.entries.get(key)
        place = f"{file}: {label(table.name, key)}"
        if isinstance(entry, Setting):
            given[entry.name] = _Given(place, value)
        elif entry is None:
            problems.append(f"{place}: unknown name, {_nearest(key, table)}")
        elif isinstance(value, dict):
            _walk(value, entry, file, given, problems)
        else:
            problems.append(f"{place}: expected a table, written [{entry.name}]")


def _nearest(key: str, table: Table) -> str:
    """Suggest the tables where this very name belongs, else a similar name of this table, else all its names."""
    if homes := [setting.label for setting in SETTINGS.values() if f".{setting.name}".endswith(f".{key}")]:
        return f"did you mean {' or '.join(homes)}?"
    if near := get_close_matches(key, table.entries, 1):
        return f"did you mean {near[0]}?"
    return "known names: " + ", ".join(table.entries)


def _from_environment(environ: Mapping[str, str], problems: list[str]) -> dict[str, _Given]:
    variables = {setting.variable: setting for setting in SETTINGS.values()}
    given: dict[str, _Given] = {}
    for variable in sorted(environ):
        if setting := variables.get(variable):
            given[setting.name] = _Given(variable, _as_toml(environ[variable], setting.kind))
        elif variable.startswith(_PREFIX) and variable not in _NOT_SETTINGS:
            # Compared without the prefix, which would make all names similar.
            suffixes = [name.removeprefix(_PREFIX) for name in variables]
            near = get_close_matches(variable.removeprefix(_PREFIX), suffixes, 1, cutoff=0.5)
            hint = f"did you mean {_PREFIX}{near[0]}?" if near else "`utxod config show` has all names"
            problems.append(f"{variable}: unknown name, {hint}")
    return given


def _as_toml(text: str, kind: inspect.Type) -> object:
    """Return the value that TOML would have; if there is no value of this kind, the text itself, for the error."""
    source = text.strip()
    match kind:
        case inspect.BoolType():
            return _WORDS.get(source.lower(), text)
        case inspect.VarTupleType() if not source.startswith("["):
            source = f"[{source}]"
        case inspect.IntType() | inspect.VarTupleType():
            pass
        case _:
            return text
    try:
        return tomllib.loads(f"value = {source}")["value"]
    except (ValueError, RecursionError):
        return text
