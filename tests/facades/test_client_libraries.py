"""Real client libraries, in environments of their own, against a daemon, its facades and a stand-in for a node."""

from __future__ import annotations

import json
import os
import re
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, NamedTuple

import httpx
import pytest
from installed import HERE, ROOT, modules, needs_clients, needs_npm, python
from preview import CODEC, blocks, feed, own_listener, served
from questions import Api, Web, short_folder
from stand_in import Node, node

from feeds.cardano.eras import PREVIEW
from feeds.cardano.transaction import read_transaction
from handlers.events import BlockApplied, Output, Tx

pytestmark = needs_clients


class Chain:
    """The run, and blocks after it with what the node has accepted."""

    def __init__(self, api: Api, upstream: Node) -> None:
        self.api, self.upstream, self.tip = api, upstream, blocks()[-1]

    def grow(self, *txs: Tx) -> None:
        height, slot = self.tip.height + 1, (self.tip.slot or 0) + 20
        self.tip = BlockApplied(
            height=height,
            hash=height.to_bytes(32, "big"),
            slot=slot,
            prev_hash=self.tip.hash,
            time=PREVIEW.time(slot),
            epoch=PREVIEW.epoch(slot),
            era="conway",
            size=300,
            txs=list(txs),
        )
        feed(self.api, self.tip)

    def mine(self, txid: str) -> None:
        self.grow(read_transaction(self.upstream.taken[txid]))


class Urls(NamedTuple):
    """Where the facades answer."""

    blockfrost: str
    kupo: str
    ogmios: str


@contextmanager
def chain() -> Iterator[tuple[Chain, Urls]]:
    """Yield a chain, and the facades that serve it."""
    (port, listen), (own, here), (front, ogmios) = own_listener(), own_listener(), own_listener()
    tables = {"kupo": {"listen": listen}, "http": {"listen": here}, "ogmios": {"listen": ogmios}}
    with (
        node() as upstream,
        short_folder() as folder,
        served(folder, upstream={"ogmios": upstream.url}, **tables) as api,
    ):
        upstream.evaluated = []
        with Web(own) as web:
            web.get("/health/live")
        host = "http://127.0.0.1"
        yield Chain(api, upstream), Urls(f"{host}:{own}/blockfrost/preview/api", f"{host}:{port}", f"{host}:{front}")


def converse(made: Chain, blockfrost: str, command: list[Any], cwd: Path | None = None) -> list[str]:
    """Run a wallet: give its addresses funds, put what it submits in blocks. Return the words that it said."""
    pipe, words, funded = subprocess.PIPE, list[str](), 0
    environ = os.environ | {"PYTHONWARNINGS": "ignore"}
    with subprocess.Popen(command, stdin=pipe, stdout=pipe, text=True, env=environ, cwd=cwd) as process:
        assert process.stdin is not None and process.stdout is not None
        for line in process.stdout:
            word, _, rest = line.strip().partition(" ")
            if word not in ("address", "submitted", "done"):
                continue  # libraries print warnings
            words.append(word)
            if word == "address":
                funded += 1
                outputs = [Output(CODEC.read(rest), 50_000_000) for _ in range(4)]
                made.grow(Tx(funded.to_bytes(32, "big"), [], outputs, fee=0))
            elif word == "submitted":
                assert httpx.get(f"{blockfrost}/v0/mempool").json() == [{"tx_hash": rest}]
                made.mine(rest)
            process.stdin.write("\n")
            process.stdin.flush()
        assert process.wait(30) == 0
    return words


@pytest.mark.parametrize("kupo", [False, True], ids=["blockfrost", "kupo"])
def test_pycardano(kupo: bool) -> None:
    with chain() as (made, urls):
        command = [python(), HERE / "pycardano_session.py", urls.blockfrost, *([urls.kupo] if kupo else [])]
        assert converse(made, urls.blockfrost, command) == ["address", *["submitted"] * 4, "done"]
        assert len(made.upstream.taken) == 4


@needs_npm
@pytest.mark.parametrize(("library", "providers"), [("lucid", 2), ("mesh", 1), ("blaze", 2)])
def test_wallets_of_nodejs(library: str, providers: int) -> None:
    """Each wallet pays, mints, and spends from a script, with each of its providers."""
    with chain() as (made, urls):
        given = json.dumps(urls._asdict() | {"blockfrost": f"{urls.blockfrost}/v0"})
        command = ["node", "--no-warnings", "wallets.mjs", library, given]
        words = converse(made, urls.blockfrost, command, modules())
        assert words == [*["address", *["submitted"] * 4] * providers, "done"]
        assert len(made.upstream.taken) == 4 * providers


EXAMPLES = re.findall(r"^```python\n(.*?)^```", (ROOT / "docs" / "clients.md").read_text(), re.MULTILINE | re.DOTALL)


@pytest.mark.parametrize("example", EXAMPLES, ids=range(len(EXAMPLES)))
def test_the_examples_of_the_documentation(example: str) -> None:
    with chain() as (made, urls):
        made.grow()
        source = example.replace("http://127.0.0.1:8410", urls.blockfrost.partition("/blockfrost")[0])
        done = subprocess.run(
            [python(), "-W", "ignore", "-c", source], capture_output=True, text=True, timeout=60, check=False
        )
        assert done.returncode == 0, done.stderr
        assert done.stdout.startswith(str(made.tip.slot)), done.stdout
