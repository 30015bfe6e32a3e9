"""The documents: their links lead somewhere, the commands that they name exist, and those of the README run."""

from __future__ import annotations

import json
import os
import re
import shlex
import subprocess
import tomllib
from collections.abc import Iterator
from importlib import metadata
from pathlib import Path
from tempfile import TemporaryDirectory

import click
import pytest
from daemons import ROOT, Daemon, environment, running

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
    """Yield what a document has as code and what begins with our command: in blocks, and between backticks."""
    blocks = [block for _, block in FENCED.findall(text)]
    plain = FENCED.sub("", text)
    blocks += re.findall(r"(?:^ {4}.*\n)+", plain, re.MULTILINE)
    lines = [line.strip() for block in blocks for line in block.splitlines()]
    inline = [" ".join(each.split()) for each in re.findall(r"(?<!`)`([^`]+)`(?!`)", plain)]
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
    text = "Say `utxod staus` or\n\n    utxod query tx TXID --jsno  # it\n\n`utxod prune now|noww`, `utxod tail --log`"
    assert [unknown(command) for command in named(text)] == [["--jsno"], ["staus"], ["noww"], []]


@pytest.mark.parametrize("name", NAMES)
def test_blocks_of_toml_and_json_are(name: str) -> None:
    for kind, block in FENCED.findall((ROOT / name).read_text()):
        if kind == "toml":
            tomllib.loads(block)
        if kind == "json":
            json.loads(block)


# --- the README runs -------------------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def fed() -> Iterator[Daemon]:
    """Give a daemon with the sample chain of `./run`."""
    chain = {"family": "cardano", "network": "preview"}
    with (
        TemporaryDirectory(prefix="utxod-") as folder,
        running(Path(folder), chain=chain, utxo={"store": "mmr", "index": {"policy": True}}) as daemon,
    ):
        events = b"".join(wire.encode(message, "json") for message in messages(20))
        assert daemon.run("feed", "file", "-", stdin=events).returncode == 0
        yield daemon


def section(heading: str) -> list[str]:
    """Return the commands in the block below a heading of the README, one for each alternative."""
    text = (ROOT / "README.md").read_text().split(f"## {heading}\n")[1].split("\n## ")[0]
    (block,) = re.findall(r"(?:^ {4}.*\n)+", text, re.MULTILINE)
    lines = [line.split(" # ")[0].strip() for line in block.splitlines()]
    commands = []
    for line in lines:
        first, *others = line.split(" | ")
        alternatives = [f"utxod query {other}" for other in others] if first.startswith("utxod query") else []
        commands += [first, *alternatives] if alternatives else [line]
    return commands


def values(daemon: Daemon) -> dict[str, str]:
    """Return what stands for the words in capitals."""
    txid, index, _, address = daemon.export()[-1].split(",")
    outputs = [output for message in messages(20) for tx in getattr(message, "txs", ()) for output in tx.outputs]
    policy = next(output.assets[0][0].hex() for output in outputs if output.assets)
    return {"ADDR": address, "TXID#INDEX": f"'{txid}#{index}'", "TXID": txid, "ID": policy}


QUERIES = [command for command in section("Queries") if "verify-proof" not in command]  # test_mmr_daemon has a proof


@pytest.mark.parametrize("command", QUERIES)
def test_the_queries_of_the_readme_are_answered(fed: Daemon, command: str, tmp_path: Path) -> None:
    if command == "utxod tail":  # for ever
        command = "timeout -s INT 3 utxod tail --from 1"
    for name, value in values(fed).items():
        command = re.sub(rf"(?<!\S){re.escape(name)}(?!\S)", value, command)
    done = subprocess.run(
        ["bash", "-o", "pipefail", "-c", command],
        capture_output=True,
        env=environment(UTXOD_CONFIG=str(fed.config), PATH=f"{ROOT / '.venv' / 'bin'}:{os.environ['PATH']}"),
        cwd=tmp_path,
        check=False,
    )
    assert done.stdout and b"Error" not in done.stderr, done
    assert done.returncode == 0 or shlex.split(command)[0] == "timeout", done


# --- licences --------------------------------------------------------------------------------------------------------


def test_the_licence_of_every_dependency_is_listed() -> None:
    listed = dict(re.findall(r"^\| ([\w-]+) \| (.+) \|$", (ROOT / "docs" / "licences.md").read_text(), re.MULTILINE))
    listed = {name: licence for name, licence in listed.items() if name not in {"package", "---"}}
    locked = re.findall(r"^([\w-]+)==", (ROOT / "requirements" / "service.txt").read_text(), re.MULTILINE)
    assert listed.keys() == set(locked)
    for name, licence in listed.items():
        told = metadata.metadata(name)
        classified = [each.split(" :: ")[-1] for each in told.get_all("Classifier") or [] if each.startswith("License")]
        spelt = " OR ".join(sorted(SPELT[each] for each in classified if each in SPELT))
        assert licence in {told["License-Expression"], spelt, told["License"]}, (name, licence, spelt)
