"""What every command says of itself, and that all of them are told in the same way where the configuration is."""

from __future__ import annotations

import subprocess
import sys
import tomllib
from collections.abc import Iterator
from pathlib import Path

import click
import pytest
from click.testing import CliRunner
from daemons import ROOT, environment, home, utxod

from daemon.cli import main

NEED_NO_CONFIGURATION = {("completion",), ("init",), ("replica",), ("restore",), ("verify-proof",), ("bench",)}
ABSENT = "import sys; sys.modules['msgpack'] = None; from daemon.cli import main; main()"


def commands(group: click.Command, path: tuple[str, ...] = ()) -> Iterator[tuple[tuple[str, ...], click.Command]]:
    yield path, group
    if isinstance(group, click.Group):
        context = click.Context(group)
        for name in group.list_commands(context):
            found = group.get_command(context, name)
            assert found is not None
            yield from commands(found, (*path, name))


EVERY = dict(commands(main))


@pytest.mark.parametrize("path", EVERY, ids=" ".join)
def test_the_help_is_whole(path: tuple[str, ...]) -> None:
    done = CliRunner().invoke(main, [*path, "--help"], terminal_width=80)
    assert done.exit_code == 0
    assert max(map(len, done.output.splitlines())) <= 80
    assert "..." not in done.output.replace("[ARGS]...", "").replace("]...", "").replace("TXID...", "")
    command = EVERY[path]
    assert command.help and command.help[0].isupper() and command.get_short_help_str()
    shown = [option for option in command.params if isinstance(option, click.Option) and not option.hidden]
    assert path[:1] == ("bench",) or all(option.help for option in shown)
    assert any("--config" in option.opts for option in shown) == (path[:1] not in NEED_NO_CONFIGURATION)


@pytest.mark.parametrize("level", range(4))
def test_the_configuration_is_named_at_any_level(tmp_path: Path, level: int) -> None:
    """The last occurrence of the option counts."""
    with home(tmp_path, chain={"family": "bitcoin", "network": "regtest"}) as daemon:
        words: list[str | Path] = ["config", "show"]
        words[level:level] = ["--config", daemon.config]
        if level < 3:
            done = utxod(*words)
        else:
            done = utxod("--config", tmp_path / "none", "config", "show", "--config", daemon.config)
        assert (done.returncode, b'network = "regtest"' in done.stdout) == (0, True), done.stderr


def test_a_feed_takes_the_options_of_the_daemon_at_any_level(tmp_path: Path) -> None:
    (tmp_path / "events").write_bytes(b"")
    with home(tmp_path) as daemon:
        for words in (
            ("feed", "--config", daemon.config, "file"),
            ("feed", "file", "--config", daemon.config),
            ("feed", "--socket", daemon.socket, "file"),
            ("feed", "file", "--socket", daemon.socket),
            ("feed", "--socket", "other", "file", "--socket", daemon.socket),
        ):
            done = utxod(*words, tmp_path / "events", "--wait", "0.01", cwd=tmp_path)
            assert done.returncode == 1
            assert f"no daemon listens on {daemon.socket} " in done.stderr.decode().splitlines()[-1]


@pytest.mark.parametrize(
    ("words", "advice"), [(["quer"], "'query'"), (["query", "utox"], "'utxo'"), (["feed", "ogmio"], "'ogmios'")]
)
def test_a_misspelt_command_gets_the_nearest_name(words: list[str], advice: str) -> None:
    done = CliRunner().invoke(main, words)
    assert done.exit_code == 2 and f"Error: No such command {words[-1]!r}. Did you mean {advice}?" in done.output
    assert "Did you mean" not in CliRunner().invoke(main, [*words[:-1], "xyz"]).output


# --- measurements without their packages -------------------------------------------------------------------------


def without_msgpack(*words: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-c", ABSENT, *words]
    return subprocess.run(command, capture_output=True, text=True, env=environment(), check=False)


def test_the_help_of_bench_needs_none_of_its_packages_and_names_them() -> None:
    done = without_msgpack("bench", "--help")
    assert (done.returncode, done.stderr) == (0, "")
    reported = " ".join(done.stdout.split())
    extras = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["optional-dependencies"]
    for package in extras["bench"]:
        assert package.split(">")[0] in reported
    assert "apply Not available: msgpack is not installed" in reported and "soak Attack daemons" in reported


def test_a_measurement_without_its_packages_is_one_error_line() -> None:
    done = without_msgpack("bench", "apply", "--old", "7", "more")
    assert (done.returncode, done.stdout) == (1, "")
    assert done.stderr.startswith("Error: msgpack is not installed") and done.stderr.count("\n") == 1
