"""Real client libraries, in environments of their own, against a daemon, its facades and a stand-in for a node."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from shutil import which
from typing import Any

import httpx
import pytest
from chain_model import Coin, datum_of
from preview import CODEC, blocks, coins, feed, own_listener, served
from questions import Api, short_folder
from stand_in import Node, ada, node

from feeds.cardano.eras import PREVIEW
from feeds.cardano.transaction import read_transaction
from formats import bech32
from handlers.events import BlockApplied, GenesisOutputs, Output, Tx
from storage.indexes import payment_credential, stake_credential

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

    def __init__(self, api: Api, upstream: Node) -> None:
        self.api, self.upstream = api, upstream
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
        feed(self.api, block)
        self.blocks.append(block)

    def mine(self, txid: str) -> None:
        self.grow(read_transaction(self.upstream.taken[txid]))


@contextmanager
def chain() -> Iterator[tuple[Chain, str, str]]:
    """Yield a chain, and the URLs of Blockfrost's and of Kupo's API."""
    (port, listen), (own, here) = own_listener(), own_listener()
    tables = {"kupo": {"listen": listen}, "http": {"listen": here}}
    with (
        node() as upstream,
        short_folder() as folder,
        served(folder, GenesisOutputs(outputs=[]), upstream={"ogmios": upstream.url}, **tables) as api,
    ):
        upstream.evaluated = []
        yield Chain(api, upstream), f"http://127.0.0.1:{own}/blockfrost/preview/api", f"http://127.0.0.1:{port}"


@pytest.mark.parametrize("kupo", [False, True], ids=["blockfrost", "kupo"])
def test_pycardano(python: Path, kupo: bool) -> None:
    with chain() as (made, blockfrost, kupo_url):
        command = [str(python), str(HERE / "pycardano_session.py"), blockfrost, *([kupo_url] if kupo else [])]
        pipe = subprocess.PIPE
        with subprocess.Popen(command, stdin=pipe, stdout=pipe, text=True, env={"PYTHONWARNINGS": "ignore"}) as process:
            assert process.stdin is not None and process.stdout is not None
            words = list[str]()
            for line in process.stdout:
                word, _, rest = line.strip().partition(" ")
                words.append(word)
                if word == "address":
                    funds = [Output(CODEC.read(rest), 50_000_000) for _ in range(4)]
                    made.grow(Tx(b"\x07" * 32, [], funds))
                elif word == "submitted":
                    assert httpx.get(f"{blockfrost}/v0/mempool").json() == [{"tx_hash": rest}]
                    made.mine(rest)
                process.stdin.write("\n")
                process.stdin.flush()
            assert process.wait(30) == 0
        assert words == ["address", *["submitted"] * 4, "done"]
        assert len(made.upstream.taken) == 4


EXAMPLES = re.findall(r"^```python\n(.*?)^```", (ROOT / "docs" / "clients.md").read_text(), re.MULTILINE | re.DOTALL)


@pytest.mark.parametrize("example", EXAMPLES, ids=range(len(EXAMPLES)))
def test_the_examples_of_the_documentation(python: Path, example: str) -> None:
    with chain() as (made, blockfrost, _):
        made.grow()
        source = example.replace("http://127.0.0.1:8410", blockfrost.partition("/blockfrost")[0])
        done = subprocess.run(
            [python, "-W", "ignore", "-c", source], capture_output=True, text=True, timeout=60, check=False
        )
        assert done.returncode == 0, done.stderr
        assert done.stdout.startswith(str(made.blocks[-1].slot)), done.stdout


@pytest.fixture(scope="module")
def modules() -> Path:
    """Return the folder of Node.js' clients, made if what is wanted has changed."""
    folder, lock = Path(str(FOLDER)).expanduser() / "node", HERE / "package-lock.json"
    stamp = folder / "installed.json"
    if not stamp.exists() or stamp.read_text() != lock.read_text():
        folder.mkdir(parents=True, exist_ok=True)
        for name in ("package.json", "package-lock.json"):
            (folder / name).write_text((HERE / name).read_text())
        subprocess.run(["npm", "ci", "--no-audit", "--no-fund", "--ignore-scripts"], cwd=folder, check=True)
        stamp.write_text(lock.read_text())
    return folder


def places(kept: Callable[[Coin], object]) -> list[list[Any]]:
    return sorted([coin.txid.hex(), coin.number] for coin in coins().values() if not coin.spend and kept(coin))


def holds(coin: Coin, unit: str) -> bool:
    return any((policy + name).hex() == unit for policy, name, _ in coin.output.assets)


@pytest.mark.skipif(which("npm") is None, reason="needs npm")
def test_clients_of_nodejs(modules: Path) -> None:
    live = [coin for coin in coins().values() if not coin.spend and coin.output.assets and not coin.output.script_ref]
    wanted = next(coin for coin in live if stake_credential(coin.output.address) and coin.output.address[0] == 0)
    address = wanted.output.address
    units = Counter((p + n).hex() for coin in coins().values() if not coin.spend for p, n, _ in coin.output.assets)
    unit = (wanted.output.assets[0][0] + wanted.output.assets[0][1]).hex()
    only = next(each for each, count in units.items() if count == 1 and len(each) > 56)
    datum = next(coin for coin in coins().values() if coin.output.inline_datum is not None)
    digest = datum_of(datum)
    assert digest is not None and datum.output.inline_datum is not None
    stake = bech32.encode("stake_test", *bech32.symbols(b"\xe0" + address[29:57]))
    (port, here), (front, ogmios) = own_listener(), own_listener()
    tables = {"http": {"listen": here}, "ogmios": {"listen": ogmios}}
    with (
        node() as upstream,
        short_folder() as folder,
        served(folder, upstream={"ogmios": upstream.url}, **tables),
    ):
        account = {"delegate": {"id": "pool1x"}, "rewards": ada(7), "deposit": ada(2_000_000)}
        upstream.accounts = {address[29:57].hex(): account}
        base = f"http://127.0.0.1:{port}"
        requests = {
            "kupo": f"{base}/kupo",
            "ogmios": f"http://127.0.0.1:{front}",
            "blockfrost": f"{base}/blockfrost/preview/api/v0",
            "address": CODEC.write(address),
            "credential": address[1:29].hex(),
            "unit": unit,
            "only": only,
            "reference": {"txHash": wanted.txid.hex(), "outputIndex": wanted.number},
            "datum_hash": digest.hex(),
            "stake": stake,
        }
        (modules / "queries.mjs").write_text((HERE / "queries.mjs").read_text())
        command = ["node", "--no-warnings", "queries.mjs"]
        done = subprocess.run(
            command, cwd=modules, input=json.dumps(requests), capture_output=True, text=True, timeout=120, check=False
        )
    assert done.returncode == 0, done.stderr
    answers = [json.loads(line) for line in done.stdout.splitlines()]
    assert not [answer for answer in answers if "result" not in answer], done.stdout
    own: Callable[[Coin], object] = lambda coin: coin.output.address == address  # noqa: E731
    expected = {
        "parameters": 44,
        "address": places(own),
        "credential": places(lambda coin: payment_credential(coin.output.address) == address[1:29]),
        "unit": places(lambda coin: own(coin) and holds(coin, unit)),
        "one": places(lambda coin: holds(coin, only)),
        "references": [[wanted.txid.hex(), wanted.number]],
        "datum": datum.output.inline_datum.hex(),
        "delegation": {"poolId": "pool1x", "rewards": "7"},
        "block": blocks()[-1].hash.hex(),
        "genesis": 2,
        "holders": len({coin.output.address for coin in coins().values() if not coin.spend and holds(coin, unit)}),
        "transaction": sum(coin.txid == wanted.txid for coin in coins().values()),
    }
    for answer in answers:
        result = sorted(answer["result"]) if isinstance(answer["result"], list) else answer["result"]
        assert result == expected[answer["call"]], answer
    assert len(answers) == 27
