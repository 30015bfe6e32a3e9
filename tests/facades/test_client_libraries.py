"""Real client libraries, in environments of their own, against a daemon, its facades and a stand-in for a node.

They are installed where CLIENTS_FOLDER says, once; without it these tests are skipped.
"""

from __future__ import annotations

import os
import re
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import httpx
import pytest
from preview import CODEC, feed, own_listener, served
from questions import Asked, short_folder
from stand_in import Node, node

from feeds.cardano.eras import PREVIEW
from feeds.cardano.transaction import read_transaction
from handlers.events import BlockApplied, GenesisOutputs, Output, Tx

ROOT = Path(__file__).resolve().parents[2]
HERE = Path(__file__).parent / "clients"
FOLDER = os.environ.get("CLIENTS_FOLDER")
FIRST_SLOT = 2_000_000

pytestmark = pytest.mark.skipif(not FOLDER, reason="CLIENTS_FOLDER says where client libraries are installed")


@pytest.fixture(scope="module")
def python() -> Path:
    """Return the interpreter of the environment with the clients, made if its requirements have changed."""
    wanted, folder = ROOT / "requirements" / "clients.txt", Path(str(FOLDER)).expanduser() / "python"
    stamp, found = folder / "installed.txt", folder / "bin" / "python"
    if not stamp.exists() or stamp.read_text() != wanted.read_text():
        subprocess.run([sys.executable, "-m", "venv", "--clear", folder], check=True)
        subprocess.run([found, "-m", "pip", "install", "-q", "-r", wanted], check=True)
        stamp.write_text(wanted.read_text())
    return found


class Chain:
    """A chain that grows by what the node has taken."""

    def __init__(self, asking: Asked, upstream: Node) -> None:
        self.asking, self.upstream = asking, upstream
        self.blocks: list[BlockApplied] = []

    def grow(self, *txs: Tx) -> None:
        height = len(self.blocks) + 1
        slot = FIRST_SLOT + 20 * height
        before = self.blocks[-1].hash if self.blocks else None
        block = BlockApplied(
            height=height,
            hash=height.to_bytes(32, "big"),
            slot=slot,
            prev_hash=before,
            time=PREVIEW.time(slot),
            epoch=PREVIEW.epoch(slot),
            era="conway",
            txs=list(txs),
        )
        feed(self.asking, block)
        self.blocks.append(block)

    def mine(self, txid: str) -> None:
        self.grow(read_transaction(self.upstream.taken[txid]))


@contextmanager
def chain() -> Iterator[tuple[Chain, str, str]]:
    """Give a chain, and the URLs of Blockfrost's and of Kupo's API."""
    (port, listen), (own, here) = own_listener(), own_listener()
    tables = {"kupo": {"listen": listen}, "http": {"listen": here}}
    with (
        node() as upstream,
        short_folder() as folder,
        served(folder, GenesisOutputs(outputs=[]), upstream={"ogmios": upstream.url}, **tables) as asking,
    ):
        upstream.evaluated = []
        yield Chain(asking, upstream), f"http://127.0.0.1:{own}/blockfrost/preview/api", f"http://127.0.0.1:{port}"


@pytest.mark.parametrize("kupo", [False, True], ids=["blockfrost", "kupo"])
def test_pycardano(python: Path, kupo: bool) -> None:
    """It builds, signs and submits a payment, a mint and a script spend, and sees each confirmed."""
    with chain() as (made, blockfrost, kupo_url):
        command = [str(python), str(HERE / "pycardano_story.py"), blockfrost, *([kupo_url] if kupo else [])]
        pipe = subprocess.PIPE
        with subprocess.Popen(command, stdin=pipe, stdout=pipe, text=True, env={"PYTHONWARNINGS": "ignore"}) as story:
            assert story.stdin is not None and story.stdout is not None
            said = list[str]()
            for line in story.stdout:
                word, _, rest = line.strip().partition(" ")
                said.append(word)
                if word == "address":
                    funds = [Output(CODEC.read(rest), 50_000_000) for _ in range(4)]
                    made.grow(Tx(b"\x07" * 32, [], funds))
                elif word == "submitted":
                    assert httpx.get(f"{blockfrost}/v0/mempool").json() == [{"tx_hash": rest}]
                    made.mine(rest)
                story.stdin.write("\n")
                story.stdin.flush()
            assert story.wait(30) == 0
        assert said == ["address", *["submitted"] * 4, "done"]
        assert len(made.upstream.taken) == 4


EXAMPLES = re.findall(r"^```python\n(.*?)^```", (ROOT / "docs" / "clients.md").read_text(), re.MULTILINE | re.DOTALL)


@pytest.mark.parametrize("example", EXAMPLES, ids=range(len(EXAMPLES)))
def test_the_examples_of_the_documentation(python: Path, example: str) -> None:
    with chain() as (made, blockfrost, _):
        made.grow()
        told = example.replace("http://127.0.0.1:8410", blockfrost.partition("/blockfrost")[0])
        done = subprocess.run(
            [python, "-W", "ignore", "-c", told], capture_output=True, text=True, timeout=60, check=False
        )
        assert done.returncode == 0, done.stderr
        assert done.stdout.startswith(str(made.blocks[-1].slot)), done.stdout
