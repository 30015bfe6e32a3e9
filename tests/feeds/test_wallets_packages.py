"""Packages of transactions, with a stand-in for a node that has `submitpackage` as Bitcoin Core 28 does."""

from __future__ import annotations

import json
from collections.abc import Iterator
from functools import partial
from pathlib import Path
from typing import Any

import httpx
import pytest
from bcoin_node import free_ports
from bitcoin_feeds import BITCOIN, following, wait_for_tip
from bitcoin_rpc_chain import FakeNode, Fault, txid_of
from bitcoin_rpc_server import serving
from daemons import running
from electrum_client import Wallet, script_hash
from patience import patience, until
from test_bitcoin_block import made_input, made_output, made_tx

from formats.transactions import parse_transaction

PORT, WEB = free_ports(2)
PAID = b"\x53"


class PackageNode(FakeNode):
    """A node that takes a package if every input of it exists, and a child only with its parents."""

    def __init__(self, length: int) -> None:
        super().__init__(length)
        self.lies["submitpackage"] = self._submit
        self.refuse = ""  # what it answers about every transaction

    def _submit(self, parameters: list[Any]) -> dict[str, Any]:
        (raws,) = parameters
        if not raws:
            raise Fault(-8, "Array must contain between 1 and 25 transactions.")
        results = dict[str, Any]()
        for raw in map(bytes.fromhex, raws):
            tx = parse_transaction(raw)
            known = {*self.pool, *map(txid_of, self.coinbases.values())}
            missing = any(each.txid.hex() not in known for each in tx.inputs)
            fault = self.refuse or ("bad-txns-inputs-missingorspent" if missing else "")
            results[tx.txid.hex()] = {"txid": tx.txid.hex()} | ({"error": fault} if fault else {"vsize": tx.size})
            if not fault:
                self.pool[tx.txid.hex()] = raw
        failed = any("error" in each for each in results.values())
        return {"package_msg": "transaction failed" if failed else "success", "tx-results": results}


@pytest.fixture(scope="module")
def node(tmp_path_factory: pytest.TempPathFactory) -> Iterator[PackageNode]:
    """Yield the node of a daemon that has its chain and serves wallets."""
    node = PackageNode(4)
    tables: dict[str, Any] = {
        "electrum": {"enabled": True, "listen": f"127.0.0.1:{PORT}"},
        "esplora": {"enabled": True, "listen": f"127.0.0.1:{WEB}"},
        "utxo": {"index": {"history": True}},
    }
    with serving(node) as server:
        tables["upstream"] = {"bitcoin": server.url, "mempool_interval": "1h"}  # read at once after a broadcast
        folder: Path = tmp_path_factory.mktemp("packages")
        with running(folder, chain=BITCOIN, **tables) as daemon, following(daemon, server.url) as feeding:
            wait_for_tip(daemon, lambda: node.chain[-1], feeding)
            with Wallet(PORT):  # it listens
                yield node


def package(node: PackageNode, script: bytes, value: int = 49) -> list[bytes]:
    """Return a parent that spends the last coinbase, and its child."""
    coinbase = txid_of(node.coinbases[node.chain[-1]])
    parent = made_tx([made_input(bytes.fromhex(coinbase), 0)], [made_output(value, PAID)])
    child = made_tx([made_input(bytes.fromhex(txid_of(parent)), 0)], [made_output(value - 1, script)])
    return [parent, child]


def test_a_package_of_electrum_reaches_the_mempool(node: PackageNode) -> None:
    node.pool.clear()
    raws = package(node, b"\x54")
    parent, child = map(txid_of, raws)
    with Wallet(PORT, "1.6") as wallet:
        hexes = [raw.hex() for raw in raws]
        alone = wallet.call("blockchain.transaction.broadcast_package", hexes[1:])
        error = {"txid": child, "error": "bad-txns-inputs-missingorspent"}
        assert alone == {"success": False, "errors": [error]}
        assert wallet.call("blockchain.transaction.broadcast_package", hexes) == {"success": True}
        key = script_hash(b"\x54")
        waiting = until(lambda: wallet.call("blockchain.scripthash.get_mempool", key))
        assert [(each["tx_hash"], each["height"], each["fee"]) for each in waiting] == [(child, -1, 1)]
        whole = wallet.call("blockchain.transaction.broadcast_package", hexes, True)
        assert whole["package_msg"] == "success" and whole["tx-results"].keys() == {parent, child}


def test_a_package_of_esplora_reaches_the_mempool(node: PackageNode) -> None:
    node.pool.clear()
    raws = package(node, b"\x55", 48)
    place = f"http://127.0.0.1:{WEB}/txs/package"
    content = json.dumps([raw.hex() for raw in raws])
    answer = httpx.post(place, content=content, timeout=patience(20))
    assert answer.status_code == 200 and answer.json()["package_msg"] == "success"
    assert answer.json()["tx-results"].keys() == {*map(txid_of, raws)}
    recent = f"http://127.0.0.1:{WEB}/mempool/txids"
    until(lambda: set(httpx.get(recent).json()), lambda found: found == {*map(txid_of, raws)})


def test_what_the_node_refuses_is_explained(node: PackageNode) -> None:
    raws = [raw.hex() for raw in package(node, b"\x56", 47)]
    place = f"http://127.0.0.1:{WEB}/txs/package"
    with Wallet(PORT, "1.6") as wallet:
        node.refuse = "min relay fee not met"
        refused = wallet.call("blockchain.transaction.broadcast_package", raws)
        assert refused["success"] is False and {each["error"] for each in refused["errors"]} == {node.refuse}
        node.refuse = ""
        malformed: list[Any] = [[], {"tx-results": 5}, {"tx-results": {"a": 5}, "package_msg": "success"}]
        for value in malformed:
            node.lies["submitpackage"] = partial(lambda value, _: value, value)
            fault = wallet.ask("blockchain.transaction.broadcast_package", raws)["error"]
            assert fault["code"] == 2 and fault["message"].startswith("the node answered submitpackage with"), fault
        del node.lies["submitpackage"]
        fault = wallet.ask("blockchain.transaction.broadcast_package", raws)["error"]
        assert fault["code"] == 2 and "refuses submitpackage: Method not found (-32601)" in fault["message"]
        answer = httpx.post(place, content=json.dumps(raws), timeout=patience(20))
        assert answer.status_code == 503 and "refuses submitpackage: Method not found" in answer.text
        node.lies["submitpackage"] = node._submit
    for body, what in (('"00"', "a package is a JSON list"), ('["0"]', "transaction 0 of the package must consist of")):
        answer = httpx.post(place, content=body, timeout=patience(20))
        assert answer.status_code == 400 and what in answer.text
