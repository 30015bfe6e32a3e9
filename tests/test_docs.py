"""The documents: links lead somewhere, commands, log events and error codes that exist are named, blocks run."""

from __future__ import annotations

import json
import os
import re
import shutil
import signal
import subprocess
import tomllib
from collections.abc import Iterator
from getpass import getuser
from importlib import metadata
from pathlib import Path
from tempfile import TemporaryDirectory
from threading import Timer
from typing import Any

import click
import pytest
import yaml  # type: ignore[import-untyped]
from daemons import PATIENCE_S, ROOT, Daemon, environment, running
from questions import Web, free_port

from bench.sample import messages
from daemon.cli import main
from handlers import wire

DOCUMENTS = sorted([ROOT / "README.md", ROOT / "CONTRIBUTING.md", ROOT / "SECURITY.md", *(ROOT / "docs").rglob("*.md")])
NAMES = [str(path.relative_to(ROOT)) for path in DOCUMENTS]
FENCED = re.compile(r"^```(\w*)\n(.*?)^```", re.MULTILINE | re.DOTALL)
SPELT = {"MIT License": "MIT", "Apache Software License": "Apache-2.0"}  # as classifiers have them


# --- links -----------------------------------------------------------------------------------------------------------


def anchors(path: Path) -> set[str]:
    """Return what a link into a document may name: its headings, as they are rendered."""
    headings = re.findall(r"^#+ (.*)$", FENCED.sub("", path.read_text()), re.MULTILINE)
    return {re.sub(r"[^\w\- ]", "", heading.lower()).replace(" ", "-") for heading in headings}


@pytest.mark.parametrize("name", NAMES)
def test_links_lead_somewhere(name: str) -> None:
    path = ROOT / name
    for target in re.findall(r"\]\(([^)\s]+)\)", FENCED.sub("", path.read_text())):
        if "://" in target:
            continue
        file, _, anchor = target.partition("#")
        other = (path.parent / file).resolve() if file else path
        assert other.exists(), target
        assert not anchor or anchor in anchors(other), target


def test_every_document_is_named_in_the_list_of_what_to_read() -> None:
    listed = (ROOT / "docs" / "README.md").read_text()
    for path in (ROOT / "docs").glob("*.md"):
        assert path.name == "README.md" or f"]({path.name}" in listed, path.name


# --- commands --------------------------------------------------------------------------------------------------------


def named(text: str) -> Iterator[str]:
    """Yield the commands of utxod in blocks of code and between backticks."""
    blocks = [block for _, block in FENCED.findall(text)]
    lines = [line.strip() for block in blocks for line in block.splitlines()]
    inline = [" ".join(each.split()) for each in re.findall(r"(?<!`)`([^`]+)`(?!`)", FENCED.sub("", text))]
    for line in (*lines, *inline):
        for part in re.split(r" \| (?=utxod)|; |&& ", line):
            if match := re.match(r"(?:\$ )?(?:\.venv/bin/)?utxod (.*)", part):
                yield re.split(r"\s+#|\s+[|>]\s|\s+2>", match[1])[0]


def unknown(command: str) -> list[str]:
    """Return the words of a command that it does not know: subcommands and options."""
    place: click.Command = main
    seen, wrong = [place], list[str]()
    for word in command.replace("[", " ").replace("]", " ").split():
        if word.startswith("--"):
            name = word.split("=")[0].rstrip(",.:;…")
            known = {option for each in seen for kind in each.params for option in (*kind.opts, *kind.secondary_opts)}
            if name not in known | {"--help", "--version"}:
                wrong.append(word)
        elif isinstance(place, click.Group) and re.fullmatch(r"[a-z][a-z|,{}-]*", word):
            choices = re.split(r"[|,]", word.strip("{}"))
            found = [place.get_command(click.Context(place), choice) for choice in choices]
            wrong += [choice for choice, each in zip(choices, found, strict=True) if each is None]
            if found[0] is None:
                return wrong
            place = found[0]
            seen += [each for each in found if each is not None]
    return wrong


@pytest.mark.parametrize("name", [name for name in NAMES if "decisions" not in name])  # those speak of their day
def test_commands_and_options_exist(name: str) -> None:
    found = {command: wrong for command in named((ROOT / name).read_text()) if (wrong := unknown(command))}
    found.pop("run --nonsense", None)
    assert found == {}


def test_the_rule_sees_a_command_that_is_none() -> None:
    text = (
        "Say `utxod staus` or\n```sh\nutxod query tx TXID --jsno  # it\n```\n`utxod prune now|noww`, `utxod tail --log`"
    )
    assert [unknown(command) for command in named(text)] == [["--jsno"], ["staus"], ["noww"], []]


@pytest.mark.parametrize("name", NAMES)
def test_blocks_of_data_can_be_parsed(name: str) -> None:
    for kind, block in FENCED.findall((ROOT / name).read_text()):
        if kind == "toml":
            tomllib.loads(block)
        if kind == "json":
            json.loads(block)
        if kind == "yaml":
            assert isinstance(yaml.safe_load(block), dict)


# --- blocks are executed ---------------------------------------------------------------------------------------------

# Where the blocks of a kind are executed or parsed, if not by `test_the_commands_of_a_page_run`.
ELSEWHERE = {
    ("docs/service.md", "bash"): "tests/test_systemd.py",  # as root, with systemd
    ("docs/recovery.md", "python"): "tests/test_recovery_service.py",
    ("docs/clients.md", "python"): "tests/facades/test_client_libraries.py",
}
PARSED = {"toml", "json", "yaml", "text"}
MARKED = re.compile(r"(?:^<!-- run by: (.+?) -->\n)?^```sh\n(.*?)^```", re.MULTILINE | re.DOTALL)
ENDLESS = {"utxod tail": b"", "utxod run": b'"listening"', "utxod status --watch": b""}  # until they print this
PLACES = {"/var/lib/utxod": "data", "/var/backups/": "backups/", "/srv/": "srv/", "/etc/utxod/": ""}


def shell_blocks(name: str) -> list[tuple[str, str]]:
    """Return the blocks of commands in a document, each with the file that runs it, if this one does not."""
    return MARKED.findall((ROOT / name).read_text())


def test_every_block_of_code_is_executed_or_parsed() -> None:
    found = {(name, kind) for name in NAMES for kind, _ in FENCED.findall((ROOT / name).read_text())}
    assert {(name, kind) for name, kind in found if kind not in PARSED | {"sh"}} == ELSEWHERE.keys()
    assert all(
        (ROOT / test).is_file() and Path(name).name in (ROOT / test).read_text()
        for (name, _), test in ELSEWHERE.items()
    )
    for name in NAMES:
        plain = FENCED.sub("", (ROOT / name).read_text())
        assert not re.findall(r"^ {4}(?:utxod|systemctl|curl|\./)", plain, re.MULTILINE), f"{name}: use a block ```sh"


RUN_ELSEWHERE = [(name, file, block) for name in NAMES for file, block in shell_blocks(name) if file]


@pytest.mark.parametrize(("name", "file", "block"), RUN_ELSEWHERE)
def test_the_file_that_runs_a_block_has_its_commands(name: str, file: str, block: str) -> None:
    text = (ROOT / file).read_text()
    for line in block.splitlines():
        for command in re.split(r"\s+# ", line)[0].split(" && "):
            words = [word for word in command.split() if "=" not in word]
            program = words[0].removeprefix(".venv/bin/")
            assert name in text or (words[1] if program == "utxod" else program) in text, command


@pytest.fixture(scope="module")
def fed() -> Iterator[Daemon]:
    """Yield a daemon with a sample chain, all indexes, proofs, and the APIs of other systems."""
    if missing := [program for program in ("curl", "zstd", "journalctl") if shutil.which(program) is None]:
        pytest.skip(f"install {' and '.join(missing)}: commands of the documents need it")
    names = ("stake_credential", "policy", "asset", "datum", "script")
    tables: dict[str, Any] = {
        "chain": {"family": "cardano", "network": "preview"},
        "utxo": {"store": "mmr", "index": dict.fromkeys(names, True)},
        "http": {"listen": f"127.0.0.1:{free_port()}", "workers": 1},
        **{facade: {"enabled": True} for facade in ("kupo", "blockfrost", "ogmios")},
    }
    with TemporaryDirectory(prefix="utxod-") as folder, running(Path(folder), **tables) as daemon:
        for place in ("srv", "backups"):
            (daemon.folder / place).mkdir()
        yield daemon


CHAIN = list(messages(20))
EVENTS = b"".join(wire.encode(message, "json") for message in CHAIN)


def web(daemon: Daemon) -> str:
    return str(tomllib.loads(daemon.config.read_text())["http"]["listen"])


def values(daemon: Daemon, folder: Path) -> dict[str, str]:
    """Return the values of placeholders and variables of the documents; write a proof."""
    txid, index, _, address = daemon.export()[-1].split(",")
    outputs = [output for message in CHAIN for tx in getattr(message, "txs", ()) for output in tx.outputs]
    policy = next(output.assets[0][0].hex() for output in outputs if output.assets)
    with Web(int(web(daemon).rpartition(":")[2])) as asker:
        root = asker.get("/api/v1/mmr/root")["root"]
        (folder / "proof.json").write_bytes(asker.ask(f"/api/v1/mmr/proof/{txid}/{index}").content)
    words = {"ADDR": address, "TXID#INDEX": f"{txid}#{index}", "TXID": txid, "ID": policy}
    return words | {"ROOT": root, "FILE": "proof.json"}


def here(text: str, daemon: Daemon) -> str:
    for path, ours in PLACES.items():
        text = text.replace(path, str(daemon.folder / ours) + "/" * path.endswith("/"))
    text = text.replace(" utxod: ", f" {getuser()}: ")
    return re.sub(r"(?:localhost|127\.0\.0\.1):8410", web(daemon), text)


def run_line(line: str, daemon: Daemon, folder: Path, environ: dict[str, str]) -> None:
    """Run a line in a shell; `systemctl` starts and stops the daemon of the test."""
    if line == "systemctl stop utxod":
        assert daemon.term() == 0
        return
    if line == "systemctl start utxod":
        daemon.start()
        return
    wanted = next((text for command, text in ENDLESS.items() if line.startswith(command)), None)
    process = subprocess.Popen(
        ["bash", "-o", "pipefail", "-c", line if wanted is None else f"exec {line}"],
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        env=environment(**environ),
        cwd=folder,
    )
    late = Timer(PATIENCE_S, process.kill)
    late.start()
    try:
        output = b""
        if wanted is not None:
            assert process.stdout is not None
            while not output or wanted not in output:
                output = process.stdout.readline()
                assert output, line
            process.send_signal(signal.SIGINT)
        output += process.communicate()[0]
    finally:
        late.cancel()
    assert process.returncode == 0 and b"Error" not in output, (line, output)


@pytest.mark.parametrize("name", [name for name in NAMES if any(not file for file, _ in shell_blocks(name))])
def test_the_commands_of_a_page_run(fed: Daemon, name: str, tmp_path: Path) -> None:
    assert fed.run("feed", "file", "-", stdin=EVENTS).returncode == 0  # the page before may have left an empty store
    (tmp_path / "events.jsonl").write_bytes(EVENTS)
    (tmp_path / "messages.jsonl").write_text('{"type":"Hello","seq":1}\n')
    meant = values(fed, tmp_path)
    ssh = tmp_path / "ssh"  # another machine: `ssh HOST COMMAND` runs the command here
    ssh.write_text('#!/bin/sh\nshift\nexec sh -c "$@"\n')
    ssh.chmod(0o755)
    path = f"{tmp_path}:{ROOT / '.venv' / 'bin'}:{os.environ['PATH']}"
    environ = {"UTXOD_CONFIG": str(fed.config), "PATH": path, "TXID": meant["TXID"], "ROOT": meant["ROOT"]}
    for file, block in shell_blocks(name):
        for line in [] if file else block.splitlines():
            command = re.split(r"\s+# ", line)[0]
            for word, value in meant.items():
                command = re.sub(rf"(?<=\s){re.escape(word)}(?!\S)", value, command)
            if not command.startswith("export "):  # `environ` has these
                run_line(here(command, fed), fed, tmp_path, environ)


# --- events and codes ------------------------------------------------------------------------------------------------

PROGRAM = {
    path: path.read_text()
    for package in ("config", "daemon", "feeds", "formats", "handlers", "storage")
    for path in sorted((ROOT / package).rglob("*.py"))
}


def in_tables() -> set[str]:
    """Return the code in the tables of the pages for operators."""
    text = "".join((ROOT / "docs" / name).read_text() for name in ("operate.md", "wallets.md", "cluster.md"))
    return {name for row in re.findall(r"^\|.*", text, re.MULTILINE) for name in re.findall(r"`(\w+)`", row)}


def test_every_warning_and_error_in_the_log_is_documented() -> None:
    logged = re.compile(r"\blog\.(?:warning|error|critical|exception)\(\s*\"(\w+)\"")
    found = {event for text in PROGRAM.values() for event in logged.findall(text)}
    assert len(found) > 50
    assert found - in_tables() == set()


def test_every_error_code_of_http_is_documented() -> None:
    refused = re.compile(r"\b(?:Problem|Refusal)\(\s*\d{3}, \"(\w+)\"")
    found = {code for text in PROGRAM.values() for code in refused.findall(text)}
    assert len(found) > 20
    assert found - in_tables() == set()


# --- licences --------------------------------------------------------------------------------------------------------


def test_the_licence_of_every_dependency_is_listed() -> None:
    listed = dict(re.findall(r"^\| ([\w-]+) \| (.+) \|$", (ROOT / "docs" / "licences.md").read_text(), re.MULTILINE))
    listed = {name: licence for name, licence in listed.items() if name not in {"package", "---"}}
    run, locked = (
        re.findall(r"^([\w-]+)==\S+(.*)$", (ROOT / "requirements" / f"{name}.txt").read_text(), re.MULTILINE)
        for name in ("run", "service")
    )
    assert {name for name, _ in run} <= {name for name, _ in locked}, "what ./run installs is distributed too"
    assert listed.keys() == {name for name, marker in locked if "pypy" not in marker}  # it needs CPython
    for name, licence in listed.items():
        reported = metadata.metadata(name)
        classified = [
            each.split(" :: ")[-1] for each in reported.get_all("Classifier") or [] if each.startswith("License")
        ]
        spelt = " OR ".join(sorted(SPELT[each] for each in classified if each in SPELT))
        assert licence in {reported["License-Expression"], spelt, reported["License"]}, (name, licence, spelt)
