"""Every method of the Electrum protocol, answer by answer next to ElectrumX on the same chain and mempool."""

from __future__ import annotations

from collections.abc import Iterator
from hashlib import sha256
from random import Random
from typing import Any, NamedTuple

import pytest
from bcoin_node import Anyone, BcoinNode, bcoin, free_ports
from bitcoin_feeds import BITCOIN, following
from daemons import running
from electrum_client import Wallet, script_hash
from electrumx_server import FOLDER, electrumx
from patience import until

pytestmark = pytest.mark.skipif(not FOLDER, reason="CLIENTS_FOLDER says where ElectrumX is installed")
BLOCKS = 470  # from 432 on witnesses are valid


class Both(NamedTuple):
    ours: int
    theirs: int
    node: BcoinNode
    scripts: list[bytes]
    blocks: list[list[str]]  # ids of transactions, by height
    waiting: list[str]


@pytest.fixture(scope="module")
def both(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Both]:
    (port,) = free_ports(1)
    with bcoin(tmp_path_factory.mktemp("bcoin")) as node:
        tables: dict[str, Any] = {
            "electrum": {"enabled": True, "listen": f"127.0.0.1:{port}"},
            "upstream": {"bitcoin": node.url, "mempool_interval": "50ms"},
            "utxo": {"index": {"history": True}},
        }
        with (
            running(tmp_path_factory.mktemp("ours"), chain=BITCOIN, **tables) as daemon,
            following(daemon, node.url),
            electrumx(node, tmp_path_factory.mktemp("theirs")) as theirs,
        ):
            anyone, random = Anyone(node, Random(5)), Random(6)
            node.rpc("generatetoaddress", 440, anyone.address)
            while (height := node.rpc("getblockcount")) < BLOCKS:
                for _ in range(random.randrange(4)):
                    made = anyone.spend(random.choice(anyone.coins()))
                    if random.random() < 0.5:
                        anyone.spend(random.choice(made), outputs=4)
                node.rpc("generatetoaddress", 1, random.choice([anyone.address, anyone.witness_address]))
            parent = anyone.spend(anyone.coins()[0])
            child = anyone.spend(parent[0])
            anyone.spend(child[0], parent[1])
            blocks = [node.rpc("getblock", node.rpc("getblockhash", n))["tx"] for n in range(height + 1)]
            waiting = node.rpc("getrawmempool")
            txs = [node.rpc("getrawtransaction", txid, True) for block in blocks[1:] for txid in block]
            txs += [node.rpc("getrawtransaction", txid, True) for txid in waiting]
            scripts = {bytes.fromhex(out["scriptPubKey"]["hex"]) for tx in txs for out in tx["vout"]}
            for place in (port, theirs):
                caught_up(place, height, script_hash(anyone.script))
            yield Both(port, theirs, node, sorted(scripts), blocks, waiting)


def caught_up(port: int, height: int, key: str) -> None:
    """Wait until a server has the last block, the node's mempool and the tree of all headers."""
    with Wallet(port) as wallet:
        until(lambda: wallet.call("blockchain.headers.subscribe")["height"], lambda found: found == height)
        until(lambda: wallet.call("blockchain.scripthash.get_mempool", key), lambda found: len(found) == 3)
        headers = wallet.call_all([("blockchain.block.header", n) for n in range(height + 1)])
        root = root_of([bytes.fromhex(header) for header in headers])
        until(lambda: wallet.call("blockchain.block.header", 0, height)["root"], lambda found: found == root)


def root_of(headers: list[bytes]) -> str:
    level = [double(header) for header in headers]
    while len(level) > 1:
        level += level[-1:] * (len(level) % 2)
        level = [double(level[n] + level[n + 1]) for n in range(0, len(level), 2)]
    return level[0][::-1].hex()


def double(data: bytes) -> bytes:
    return sha256(sha256(data).digest()).digest()


def plain(answer: dict[str, Any]) -> Any:
    """Return a result; unconfirmed outputs of `listunspent` are sorted."""
    result = answer.get("result")
    if isinstance(result, list) and result and "tx_pos" in result[0]:
        waiting = sorted((each for each in result if not each["height"]), key=lambda each: sorted(each.items()))
        return [each for each in result if each["height"]] + waiting
    return result


def compare(both: Both, calls: list[tuple[Any, ...]], version: str = "1.4.2") -> list[Any]:
    """Assert that both servers give the same answers, and return them.

    Not compared: the order of unconfirmed outputs, which the protocol leaves open; texts of errors.
    """
    with Wallet(both.ours, version) as ours, Wallet(both.theirs, version) as theirs:
        found, expected = ours.ask_all(calls), theirs.ask_all(calls)
    different = [
        (call, one, other)
        for call, one, other in zip(calls, found, expected, strict=True)
        if plain(one) != plain(other) or ("error" in one) != ("error" in other)
    ]
    assert different == []
    return [answer.get("result") for answer in found]


@pytest.mark.parametrize("method", ["get_history", "get_mempool", "get_balance", "listunspent", "subscribe"])
def test_scripts(both: Both, method: str) -> None:
    keys = [*map(script_hash, both.scripts), script_hash(b"unknown")]
    found = compare(both, [(f"blockchain.scripthash.{method}", key) for key in keys])
    assert len(found) > 50 and found[0] != found[-1]


@pytest.mark.parametrize("version", ["1.4", "1.4.2", "1.6"])
def test_headers(both: Both, version: str) -> None:
    last = len(both.blocks) - 1
    calls: list[tuple[Any, ...]] = [("blockchain.block.header", n) for n in range(last + 1)]
    calls += [("blockchain.block.header", n, at) for n, at in ((0, last), (3, 9), (last, last), (17, 64))]
    calls += [("blockchain.block.headers", n, 20) for n in (0, 7, last - 5, last)]
    calls += [("blockchain.block.headers", 5, 9, last), ("blockchain.block.headers", 0, 0)]
    calls += [("blockchain.headers.subscribe",)]
    compare(both, calls, version)


def test_transactions(both: Both) -> None:
    places = [(txid, n) for n, block in enumerate(both.blocks) for txid in block if n]
    calls: list[tuple[Any, ...]] = [("blockchain.transaction.get", txid) for txid, _ in places]
    calls += [("blockchain.transaction.get", txid, True) for txid in both.blocks[-1]]
    calls += [("blockchain.transaction.get", txid) for txid in both.waiting]
    calls += [("blockchain.transaction.get_merkle", txid, n) for txid, n in places]
    for n, block in enumerate(both.blocks):
        for at in range(len(block) if n else 0):  # ElectrumX does not have the genesis transaction
            calls += [("blockchain.transaction.id_from_pos", n, at, merkle) for merkle in (False, True)]
    compare(both, calls)


@pytest.mark.parametrize("version", ["1.4.2", "1.6"])
def test_answers_about_the_server_and_about_fees(both: Both, version: str) -> None:
    compare(both, [("server.ping",), ("server.donation_address",), ("server.peers.subscribe",)], version)
    compare(both, [("mempool.get_fee_histogram",), ("blockchain.estimatefee", 6)], version)
    if version != "1.6":  # there it is mempool.get_info, for which ElectrumX needs figures that bcoin does not give
        compare(both, [("blockchain.relayfee",)], version)


@pytest.mark.parametrize(
    "call",
    [
        ("blockchain.nothing",),
        ("blockchain.scripthash.get_history",),
        ("blockchain.scripthash.get_balance", "zz"),
        ("blockchain.scripthash.listunspent", 5),
        ("blockchain.block.header", -1),
        ("blockchain.block.header", 10_000),
        ("blockchain.block.header", 9, 4),
        ("blockchain.block.headers", 3, "x"),
        ("blockchain.transaction.get", "ab" * 31),
        ("blockchain.transaction.get", "ab" * 32),
        ("blockchain.transaction.get_merkle", "ab" * 32, 5),
        ("blockchain.transaction.id_from_pos", 5, 5),
        ("blockchain.transaction.broadcast", "00"),
    ],
)
def test_malformed_requests_are_refused_by_both_servers(both: Both, call: tuple[Any, ...]) -> None:
    compare(both, [call, ("server.ping",)])
