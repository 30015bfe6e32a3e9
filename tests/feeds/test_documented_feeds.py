"""The commands of README.md that feed a daemon from a node, run as they are written next to stand-ins for the nodes."""

from __future__ import annotations

import lzma
import re
import shutil
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
from bitcoin_feeds import BITCOIN
from bitcoin_rpc_chain import FakeNode
from bitcoin_rpc_server import LOGIN
from bitcoin_rpc_server import serving as serving_rpc
from daemons import PATIENCE_S, ROOT, environment, running
from ogmios_server import serving as serving_ogmios
from patience import until
from real_data import need
from test_bitcoin_blkfiles import CHAIN, record, write
from test_ogmios_chain import blocks

PREVIEW = {"family": "cardano", "network": "preview"}
COMMANDS = re.findall(r"^utxod feed (?!file).*$", (ROOT / "README.md").read_text(), re.MULTILINE)
Node = tuple[dict[str, str], int, dict[str, str]]  # the chain, the height of its tip, and what stands for the node


@contextmanager
def block_files(home: Path) -> Iterator[Node]:
    (home / ".bitcoin" / "blocks").mkdir(parents=True)
    write(home / ".bitcoin" / "blocks", 0, b"".join(map(record, CHAIN)))
    yield BITCOIN, len(CHAIN), {}


@contextmanager
def bitcoin_node(home: Path) -> Iterator[Node]:
    (home / ".bitcoin").mkdir()
    (home / ".bitcoin" / ".cookie").write_text(LOGIN)
    with serving_rpc(FakeNode(9)) as server:
        yield BITCOIN, 9, {"http://127.0.0.1:8332": server.name}


@contextmanager
def chunk_files(home: Path) -> Iterator[Node]:
    run = need("cardano/preview-genesis-100")
    (home / "db").mkdir()
    (home / "db" / "00000.chunk").write_bytes(lzma.decompress((run / "run.chunk.xz").read_bytes()))
    (home / "db" / "00001.chunk").write_bytes(b"")  # the node writes to the last file
    shutil.copy(run / "genesis.json", home / "shelley-genesis.json")
    yield PREVIEW, 100, {"/var/lib/cardano/db": str(home / "db")}


@contextmanager
def ogmios(home: Path) -> Iterator[Node]:
    with serving_ogmios(blocks(5)) as server:
        yield PREVIEW, 5, {"ws://127.0.0.1:1337": server.url}


NODES = {"bitcoin-blocks": block_files, "bitcoin-rpc": bitcoin_node, "cardano-chunks": chunk_files, "ogmios": ogmios}


def test_every_feed_of_a_node_is_in_the_readme() -> None:
    assert [command.split()[2] for command in COMMANDS] == list(NODES)


@pytest.mark.parametrize("command", COMMANDS)
def test_a_documented_feed_reaches_the_tip_of_the_node(command: str, tmp_path: Path) -> None:
    kind, home = command.split()[2], tmp_path / "home"
    home.mkdir()
    with NODES[kind](home) as (chain, height, places), running(tmp_path, chain=chain) as daemon:
        for documented, ours in places.items():
            command = command.replace(documented, ours)
        path = f"{ROOT / '.venv' / 'bin'}:/usr/bin:/bin"
        environ = environment(HOME=str(home), PATH=path, UTXOD_CONFIG=str(daemon.config))
        log = tmp_path / "log"
        with log.open("wb") as errors:
            feed = subprocess.Popen(["bash", "-c", f"exec {command}"], stderr=errors, env=environ, cwd=home)
        try:
            until(lambda: (daemon.status()["tip"] or {"height": 0})["height"] == height)
            if NODES[kind] is not block_files:  # this one ends after the last block
                feed.terminate()
            assert feed.wait(PATIENCE_S) == 0, log.read_text()
        finally:
            feed.kill()
            feed.wait()
        daemon.assert_sound()
