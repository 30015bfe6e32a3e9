"""The mempool of a node that publishes ZMQ notifications: it is read when it changes, long before the next interval."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import zmq
from bcoin_node import free_ports
from bitcoin_feeds import BITCOIN, following, wait_for_tip
from bitcoin_rpc_chain import FakeNode, txid_of
from bitcoin_rpc_server import serving
from daemons import running
from electrum_client import Wallet, script_hash
from patience import until
from test_bitcoin_block import made_input, made_output, made_tx

from daemon.wallets.announcements import endpoint_of

[PORT] = free_ports(1)
PAID = b"\x53"


@pytest.fixture
def publisher() -> Iterator[zmq.SyncSocket]:
    with zmq.Context() as context, context.socket(zmq.XPUB) as socket:
        socket.linger = 0
        socket.bind_to_random_port("tcp://127.0.0.1")
        yield socket


def test_a_change_is_reported_at_once(publisher: zmq.SyncSocket, tmp_path: Path) -> None:
    node, endpoint = FakeNode(3), publisher.getsockopt_string(zmq.LAST_ENDPOINT)
    node.lies["getzmqnotifications"] = lambda _: [
        {"type": "pubrawblock", "address": "tcp://127.0.0.1:1", "hwm": 1000},
        {"type": "pubsequence", "address": endpoint, "hwm": 1000},
    ]
    with (
        serving(node) as server,
        running(
            tmp_path,
            chain=BITCOIN,
            electrum={"enabled": True, "listen": f"127.0.0.1:{PORT}"},
            upstream={"bitcoin": server.url, "mempool_interval": "1h"},
            utxo={"index": {"history": True}},
        ) as daemon,
        following(daemon, server.url) as feeding,
    ):
        wait_for_tip(daemon, lambda: node.chain[-1], feeding)
        with Wallet(PORT) as wallet:
            until(lambda: wallet.call("blockchain.headers.subscribe")["height"], lambda found: found == node.height)
            assert publisher.recv() == b"\x01sequence"  # it has subscribed
            assert wallet.call("blockchain.scripthash.subscribe", script_hash(PAID)) is None
            coinbase = bytes.fromhex(txid_of(node.coinbases[node.chain[-1]]))
            tx = made_tx([made_input(coinbase, 0)], [made_output(49, PAID)])
            polls = sum(method == "getrawmempool" for method, _ in node.calls)
            node.pool[txid_of(tx)] = tx
            for number in range(5000):
                publisher.send_multipart([b"sequence", bytes(32) + b"A", number.to_bytes(4, "little")])
            key, status = wallet.notified("blockchain.scripthash.subscribe")
            assert key == script_hash(PAID) and status is not None
            del node.pool[txid_of(tx)]
            publisher.send_multipart([b"sequence", bytes(32) + b"R", bytes(4)])
            assert wallet.notified("blockchain.scripthash.subscribe") == [script_hash(PAID), None]
            polls = sum(method == "getrawmempool" for method, _ in node.calls) - polls
            assert 2 <= polls < 1000, "many announcements lead to few polls"


def test_an_invalid_endpoint_of_the_node_ends_nothing(tmp_path: Path) -> None:
    node = FakeNode(3)
    node.lies["getzmqnotifications"] = lambda _: [{"type": "pubsequence", "address": "tcp://127.0.0.1:zmq"}]
    tables: dict[str, Any] = {
        "electrum": {"enabled": True, "listen": f"127.0.0.1:{PORT}"},
        "utxo": {"index": {"history": True}},
    }
    with (
        serving(node) as server,
        running(tmp_path, chain=BITCOIN, upstream={"bitcoin": server.url}, **tables) as daemon,
        Wallet(PORT) as wallet,
    ):
        until(lambda: "notifications_refused" in daemon.events())
        assert wallet.call("server.ping") is None and "process_ended" not in daemon.events()


SEQUENCE = {"type": "pubsequence", "address": "tcp://127.0.0.1:28332"}


@pytest.mark.parametrize(
    ("offered", "host", "found"),
    [
        ([SEQUENCE], "127.0.0.1", ("sequence", "tcp://127.0.0.1:28332")),
        (
            [{"type": "pubhashtx", "address": "tcp://127.0.0.1:1"}, SEQUENCE],
            "::1",
            ("sequence", "tcp://127.0.0.1:28332"),
        ),
        ([{"type": "pubrawtx", "address": "tcp://0.0.0.0:28333"}], "node.lan", ("rawtx", "tcp://node.lan:28333")),
        ([{"type": "pubhashtx", "address": "tcp://*:28333"}], "10.0.0.7", ("hashtx", "tcp://10.0.0.7:28333")),
        ([{"type": "pubhashtx", "address": "tcp://[::]:28333"}], "::1", ("hashtx", "tcp://[::1]:28333")),
        ([{"type": "pubhashtx", "address": "tcp://10.0.0.8:1"}], "10.0.0.7", ("hashtx", "tcp://10.0.0.8:1")),
        ([{"type": "pubhashtx", "address": "ipc:///run/zmq"}], "localhost", ("hashtx", "ipc:///run/zmq")),
        ([SEQUENCE], "node.lan", None),
        ([{"type": "pubhashtx", "address": "ipc:///run/zmq"}], "node.lan", None),
        ([{"type": "pubhashblock", "address": "tcp://127.0.0.1:28332"}], "127.0.0.1", None),
        ([{"type": 3}, "pubsequence", {"type": "pubsequence", "address": 5}], "127.0.0.1", None),
        ({"pubsequence": "tcp://127.0.0.1:1"}, "127.0.0.1", None),
        (None, "127.0.0.1", None),
    ],
)
def test_the_endpoint_that_is_followed(offered: object, host: str, found: tuple[str, str] | None) -> None:
    assert endpoint_of(offered, host) == found
