"""A real full node, bcoin, on a private chain in memory; installed once, in a cache by its lock file."""

from __future__ import annotations

import hashlib
import json
import os
import shutil
import socket
import subprocess
import tempfile
from base64 import b64encode
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from http.client import HTTPConnection, HTTPException
from pathlib import Path
from random import Random, SystemRandom
from time import monotonic, sleep
from typing import Any

import pytest
from bitcoin_rpc_chain import txid_of
from patience import patience
from test_bitcoin_block import made_input, made_output, made_tx

from feeds.bitcoin.networks import REGTEST

_PACKAGE = Path(__file__).with_name("bcoin")
_INSTALL = ["npm", "ci", "--ignore-scripts", "--no-audit", "--no-fund", "--loglevel=error"]
_INSTALL_S = 180.0
_PATIENCE_S = 30.0
_IDLE_S = 2.0
KEY = "k3y"


def needed() -> Path:
    """Return the folder of bcoin; skip the test where it cannot be installed."""
    missing = [name for name in ("node", "npm") if shutil.which(name) is None]
    if missing:
        _miss(f"no {' and no '.join(missing)}: apt-get install nodejs npm")
    files = [_PACKAGE / "package.json", _PACKAGE / "package-lock.json"]
    digest = hashlib.sha256(b"".join(file.read_bytes() for file in files)).hexdigest()[:16]
    place = _cache() / f"bcoin-{digest}"
    if place.exists():
        return place
    with tempfile.TemporaryDirectory(dir=place.parent) as made:
        for file in files:
            shutil.copy(file, made)
        try:
            done = subprocess.run(_INSTALL, cwd=made, capture_output=True, timeout=_INSTALL_S, check=False, text=True)
        except subprocess.TimeoutExpired:
            _miss(f"npm did not install bcoin in {_INSTALL_S:g} s")
        if done.returncode:
            _miss(f"npm could not install bcoin: {done.stderr.strip()[-300:]}")
        with suppress(OSError):  # another test run was quicker
            Path(made).rename(place)
            Path(made).mkdir()
    return place


def _miss(why: str) -> None:
    if os.environ.get("UTXOD_REQUIRE_CHAIN_DATA") == "1":
        pytest.fail(why)
    pytest.skip(why)


def _cache() -> Path:
    folder = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "utxod-tests"
    try:
        folder.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryFile(dir=folder):
            return folder
    except OSError:
        folder = Path(tempfile.gettempdir()) / "utxod-tests"
        folder.mkdir(exist_ok=True)
        return folder


def free_ports(count: int) -> list[int]:
    """Return free ports outside of the range from which clients are given theirs."""
    found: list[int] = []
    while len(found) < count:
        port = SystemRandom().randrange(15_000, 30_000)
        with socket.socket() as probe:
            probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            with suppress(OSError):
                probe.bind(("127.0.0.1", port))
                found.append(port)
    return found


class NodeFault(Exception):
    """The node answered with an error."""


class BcoinNode:
    """A node that can be restarted; its chain does not survive a restart."""

    def __init__(self, installed: Path, folder: Path) -> None:
        self._installed = installed
        self._folder = folder
        self._log = folder / "bcoin.log"
        self.port, self._wallet_port = free_ports(2)
        self._process: subprocess.Popen[bytes] | None = None
        self._connections: dict[int, HTTPConnection] = {}
        self._requests: dict[int, float] = {}  # when the last request was sent

    @property
    def url(self) -> str:
        return f"http://bitcoinrpc:{KEY}@127.0.0.1:{self.port}"

    def start(self) -> None:
        options = {
            "network": "regtest",
            "memory": "true",
            "prefix": str(self._folder),
            "api-key": KEY,
            "wallet-api-key": KEY,
            "http-port": self.port,
            "wallet-http-port": self._wallet_port,
            "index-tx": "true",
            "index-address": "true",
            "listen": "false",
            "no-dns": "true",
            "workers": "false",
            "log-level": "warning",
            "log-file": "false",
        }
        main = self._installed / "node_modules" / "bcoin" / "bin" / "node"
        command = ["node", str(main), *(f"--{name}={value}" for name, value in options.items())]
        kept = {name: os.environ[name] for name in ("PATH", "HOME") if name in os.environ}
        with self._log.open("ab") as log:
            self._process = subprocess.Popen(
                command,
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                env=kept | {"NODE_BACKEND": "js", "BCOIN_NETWORK": "regtest"},
            )
        until = monotonic() + patience(_PATIENCE_S)
        while True:
            with suppress(OSError, HTTPException):
                assert self.rpc("getblockhash", 0) == REGTEST.genesis.hex()
                self.wallet("getwalletinfo")
                return
            assert self._process.poll() is None and monotonic() < until, self._log.read_text()
            sleep(0.05)

    def stop(self) -> None:
        for connection in self._connections.values():
            connection.close()
        self._connections.clear()
        if self._process is not None:
            self._process.kill()
            self._process.wait(_PATIENCE_S)

    # --- asking --------------------------------------------------------------------------------------------------

    def rpc(self, method: str, *parameters: Any) -> Any:
        return self._result(self._ask(self.port, "POST", "/", {"method": method, "params": parameters}))

    def rpc_many(self, calls: Sequence[tuple[Any, ...]]) -> list[Any]:
        bodies = [{"method": method, "params": parameters} for method, *parameters in calls]
        return list(map(self._result, self._ask(self.port, "POST", "/", bodies))) if bodies else []

    def wallet(self, method: str, *parameters: Any) -> Any:
        return self._result(self._ask(self._wallet_port, "POST", "/", {"method": method, "params": parameters}))

    def wallet_http(self, verb: str, path: str, body: Any) -> Any:
        return self._ask(self._wallet_port, verb, f"/wallet/primary{path}", body)

    def send(self, raw: bytes, txid: str) -> None:
        assert self._ask(self.port, "POST", "/broadcast", {"tx": raw.hex()}) == {"success": True}
        assert txid in self.rpc("getrawmempool"), self._log.read_text()[-500:]

    def coins(self, address: str) -> list[dict[str, Any]]:
        found: list[dict[str, Any]] = self._ask(self.port, "GET", f"/coin/address/{address}", None)
        return found

    @staticmethod
    def _result(answer: Any) -> Any:
        if answer["error"] is not None:
            raise NodeFault(str(answer["error"]))
        return answer["result"]

    def _ask(self, port: int, verb: str, path: str, body: Any) -> Any:
        if monotonic() - self._requests.get(port, 0) > _IDLE_S and port in self._connections:
            self._connections.pop(port).close()  # the node closes it soon
        self._requests[port] = monotonic()
        connection = self._connections.setdefault(
            port, HTTPConnection("127.0.0.1", port, timeout=patience(_PATIENCE_S))
        )
        login = {"Authorization": f"Basic {b64encode(f'x:{KEY}'.encode()).decode()}"}
        try:
            connection.request(verb, path, json.dumps(body), login | {"Content-Type": "application/json"})
            answer = connection.getresponse()
            whole = answer.read()
        except (OSError, HTTPException):
            self._connections.pop(port).close()
            raise
        if answer.status != 200:
            raise NodeFault(f"{answer.status} {whole.decode()}")
        return json.loads(whole)


TRUE = b"\x51"
PAY_TO_WITNESS = b"\x00\x20" + hashlib.sha256(TRUE).digest()
NOTE = b"\x6a\x04note"
FEE = 20_000


class Anyone:
    """Coins that anyone can spend, plain (P2SH) and with a witness (P2WSH), and transactions made of them by hand."""

    def __init__(self, node: BcoinNode, random: Random) -> None:
        self._node = node
        self._random = random
        self.address: str = node.rpc("decodescript", TRUE.hex())["p2sh"]
        self.script = bytes.fromhex(node.rpc("validateaddress", self.address)["scriptPubKey"])
        self.witness_address: str = node.rpc("createwitnessaddress", TRUE.hex())["address"]
        assert node.rpc("validateaddress", self.witness_address)["scriptPubKey"] == PAY_TO_WITNESS.hex()

    def coins(self) -> list[dict[str, Any]]:
        """Return what can be spent in the next block."""
        tip = self._node.rpc("getblockcount")
        coins = [*self._node.coins(self.address), *self._node.coins(self.witness_address)]
        ripe = [each for each in coins if each["height"] >= 0 and (not each["coinbase"] or each["height"] < tip - 98)]
        return [each for each in ripe if each["value"] > 20 * FEE]

    def spend(self, *coins: dict[str, Any], outputs: int = 5) -> list[dict[str, Any]]:
        raw, made = self.transaction(*coins, outputs=outputs)
        self._node.send(raw, made[0]["hash"])
        return made

    def transaction(self, *coins: dict[str, Any], outputs: int = 5) -> tuple[bytes, list[dict[str, Any]]]:
        """Return a transaction that spends coins, and those that it makes and that can be spent again."""
        total = sum(coin["value"] for coin in coins) - FEE
        share = total // outputs
        values = [share] * (outputs - 1) + [total - share * (outputs - 1)]
        kinds = [self.script, PAY_TO_WITNESS, TRUE, b"\x76\xa9\x14" + self._random.randbytes(20) + b"\x88\xac"]
        scripts = [kinds[n] if n < len(kinds) else self._random.choice(kinds) for n in range(outputs)]
        paid = [*zip(values, scripts, strict=True), (0, NOTE), (0, TRUE)]
        inputs, witness = [], b""
        for coin in coins:
            plain = coin["script"] == self.script.hex()
            script = bytes([len(TRUE)]) + TRUE if plain else b""
            inputs.append(made_input(bytes.fromhex(coin["hash"]), coin["index"], script))
            witness += b"\x00" if plain else b"\x01" + bytes([len(TRUE)]) + TRUE
        made = [made_output(value, script) for value, script in paid]
        raw = made_tx(inputs, made, witness if any(witness) else None)
        txid = txid_of(made_tx(inputs, made))
        again = [
            (n, value, script) for n, (value, script) in enumerate(paid) if script in (self.script, PAY_TO_WITNESS)
        ]
        return raw, [{"hash": txid, "index": n, "value": value, "script": script.hex()} for n, value, script in again]


@contextmanager
def bcoin(folder: Path) -> Iterator[BcoinNode]:
    node = BcoinNode(needed(), folder)
    try:
        node.start()
        yield node
    finally:
        node.stop()
