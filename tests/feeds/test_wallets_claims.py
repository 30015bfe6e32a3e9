"""What the transaction store knows of claims on outputs that transactions of the node's mempool spend."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import httpx
import pytest
from bcoin_node import free_ports
from bitcoin_feeds import BITCOIN, following, wait_for_tip
from bitcoin_rpc_chain import FakeNode, txid_of
from bitcoin_rpc_server import serving
from daemons import running
from electrum_client import Wallet, script_hash
from patience import until
from test_bitcoin_block import made_input, made_output, made_tx

PAID = b"\x53"


@pytest.mark.parametrize("enabled", [True, False])
def test_a_claim_of_another_transaction_is_a_field_of_the_mempools_answers(tmp_path: Path, enabled: bool) -> None:
    node, (port, web) = FakeNode(4), free_ports(2)
    tables: dict[str, Any] = {
        "electrum": {"enabled": True, "listen": f"127.0.0.1:{port}"},
        "esplora": {"enabled": True, "listen": f"127.0.0.1:{web}"},
        "utxo": {"index": {"history": True}},
        "transactions": {"enabled": enabled, "coinbase_maturity": 0},
    }
    with (
        serving(node) as server,
        running(
            tmp_path, chain=BITCOIN, upstream={"bitcoin": server.url, "mempool_interval": "50ms"}, **tables
        ) as daemon,
        following(daemon, server.url) as feeding,
        Wallet(port) as wallet,
    ):
        wait_for_tip(daemon, lambda: node.chain[-1], feeding)
        coinbase = txid_of(node.coinbases[node.chain[-1]])
        spends = [made_input(bytes.fromhex(coinbase), 0)]
        tx = made_tx(spends, [made_output(49, PAID)])
        other = "ab" * 32
        claim = {
            "type": "TxSubmitted",
            "tx": {"txid": other, "inputs": [[coinbase, 0]], "outputs": [{"address": "54", "value": 48}]},
        }
        if enabled:
            with daemon.client() as client:
                answer = client.ask(claim)
                assert answer.get("status") == "accepted", answer
        node.pool[txid_of(tx)] = tx
        key = script_hash(PAID)
        expected = {"tx_hash": txid_of(tx), "height": 0, "fee": 1} | ({"claimed_by": [other]} if enabled else {})
        assert until(lambda: wallet.call("blockchain.scripthash.get_mempool", key)) == [expected]
        assert wallet.call("blockchain.scripthash.get_history", key) == [expected]
        found = httpx.get(f"http://127.0.0.1:{web}/tx/{txid_of(tx)}").json()
        assert found.get("claimed_by") == expected.get("claimed_by") and found["status"] == {"confirmed": False}
        child = made_tx([made_input(bytes.fromhex(txid_of(tx)), 0)], [made_output(48, PAID)])
        node.pool[txid_of(child)] = child  # it spends what nobody else claims
        second = {"tx_hash": txid_of(child), "height": -1, "fee": 1}
        until(lambda: wallet.call("blockchain.scripthash.get_mempool", key), lambda found: found == [expected, second])
