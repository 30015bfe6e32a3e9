"""A daemon beside a real full node: after everything that happens its set is the node's own.

One story, as each step stands on the one before: mining, spending of every kind, reorganisations, and daemon, feed and
node killed. What the set has to be is asked of the node each time: how many coins there are and what they are worth,
and then each of them.
"""

from __future__ import annotations

import hashlib
from pathlib import Path
from random import Random
from typing import Any

import pytest
from bcoin_node import BcoinNode, bcoin
from bitcoin_feeds import BITCOIN, Feeding, exported, feed, following, tip_of, wait_for_tip, wait_until
from bitcoin_rpc_chain import txid_of
from daemons import Daemon, running
from test_bitcoin_block import made_input, made_output, made_tx

TRUE = b"\x51"
PAY_TO_WITNESS = b"\x00\x20" + hashlib.sha256(TRUE).digest()
NOTE = b"\x6a\x04note"
FEE = 20_000
COIN = 100_000_000


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
        """Spend coins in one transaction; return those that it makes and that can be spent again."""
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


class Beside:
    """A daemon, its feed and the node."""

    def __init__(self, node: BcoinNode, daemon: Daemon, feeding: Feeding, random: Random) -> None:
        self.node, self.daemon, self.feeding, self.random = node, daemon, feeding, random
        self.anyone = Anyone(node, random)

    def mine(self, count: int, address: str | None = None) -> None:
        self.node.rpc("generatetoaddress", count, address or self.anyone.address)

    def take_back(self, depth: int) -> None:
        """Let the node drop its last blocks."""
        height = self.node.rpc("getblockcount")
        self.node.rpc("invalidateblock", self.node.rpc("getblockhash", height - depth + 1))
        assert self.node.rpc("getblockcount") == height - depth

    def spend_some(self, transactions: int) -> None:
        """Spend coins of all kinds, and some that were only just made."""
        for _ in range(transactions):
            coins = self.anyone.coins()
            chosen = self.random.sample(coins, min(self.random.randrange(1, 4), len(coins)))
            made = self.anyone.spend(*chosen)
            self.anyone.spend(self.random.choice(made), outputs=4)

    def assert_same(self) -> list[str]:
        """Compare the daemon's set with the node's: as many, worth as much, and each is there as it is here."""
        wait_for_tip(self.daemon, lambda: str(self.node.rpc("getbestblockhash")), self.feeding)
        lines = exported(self.daemon)
        whole = self.node.rpc("gettxoutsetinfo")
        assert whole["bestblock"] == tip_of(self.daemon)
        coins = [line.split(",") for line in lines]
        assert len(coins) == whole["txouts"]
        assert sum(int(value) for _, _, value, _ in coins) == round(whole["total_amount"] * COIN)
        answers = self.node.rpc_many([("gettxout", txid, int(index), False) for txid, index, _, _ in coins])
        theirs = [(round(answer["value"] * COIN), answer["scriptPubKey"]["hex"]) for answer in answers]
        assert [(int(value), script) for _, _, value, script in coins] == theirs
        return lines


@pytest.fixture
def node(tmp_path: Path) -> Any:
    with bcoin(tmp_path) as node:
        yield node


def test_beside_a_full_node(node: BcoinNode, tmp_path: Path) -> None:
    with (
        running(tmp_path, chain=BITCOIN) as daemon,
        following(daemon, node.url, "--mempool", "--persisted-depth", 6) as feeding,
    ):
        beside = Beside(node, daemon, feeding, Random(7))
        mining_and_the_wallet(beside)
        spending_by_hand(beside)
        reorganisations(beside)
        interruptions(beside)
        another_chain(beside)
        daemon.assert_sound()
        assert daemon.status()["tip"]["height"] == node.rpc("getblockcount")


def mining_and_the_wallet(beside: Beside) -> None:
    """Mine until witnesses are allowed, and spend with real signatures: P2PKH, P2WPKH, and P2WPKH in P2SH."""
    node = beside.node
    mine = node.wallet("getnewaddress", "default")
    beside.mine(445, mine)
    assert len(beside.assert_same()) == 445
    node.wallet_http("PUT", "/account/modern", {"witness": True})
    modern = node.wallet("getnewaddress", "modern")
    nested = node.wallet_http("POST", "/nested", {"account": "modern"})["address"]
    wait_until(lambda: node.wallet("getbalance", "default") > 0)
    node.wallet("sendmany", "default", {modern: 20, nested: 20, mine: 3})
    beside.mine(1, mine)
    beside.assert_same()
    wait_until(lambda: node.wallet("getbalance", "modern") == 40)
    for value in (25, 7):  # more than one coin has, so both kinds are spent
        outputs = [{"address": beside.anyone.address, "value": value * COIN}]
        sent = node.wallet_http("POST", "/send", {"account": "modern", "rate": 20_000, "outputs": outputs})
        assert node.rpc("getrawtransaction", sent["hash"])[8:12] == "0001"  # it has witnesses
    beside.mine(1, mine)
    beside.assert_same()


def spending_by_hand(beside: Beside) -> None:
    """Spend in the block in which a coin was made, with and without witness, many of them, and to nobody."""
    beside.mine(220)
    for transactions in (1, 4, 12):
        beside.spend_some(transactions)
        assert len(beside.node.rpc("getrawmempool")) == 2 * transactions
        beside.mine(1)
        assert beside.node.rpc("getrawmempool") == []
        lines = beside.assert_same()
    scripts = {line.rpartition(",")[2] for line in lines}
    assert {TRUE.hex(), PAY_TO_WITNESS.hex(), beside.anyone.script.hex()} < scripts and NOTE.hex() not in scripts


def reorganisations(beside: Beside) -> None:
    """Blocks go, with what was spent and made in them, and others come, in which the same coins go elsewhere."""
    for depth in (1, 2, 5, 17, 60):
        before = beside.assert_same()
        beside.take_back(depth)
        beside.spend_some(2)
        beside.mine(depth + 1)
        assert beside.assert_same() != before
        turns = [line for line in beside.daemon.log_lines() if line["event"] == "rolled_back"]
        assert turns[-1]["blocks"] == depth


def interruptions(beside: Beside) -> None:
    """The daemon is killed while blocks come; the feed is, and the chain turns meanwhile."""
    for depth in (0, 3, 12):
        if depth:
            beside.take_back(depth)
        beside.spend_some(1)
        beside.mine(depth + 5)
        beside.daemon.kill()
        beside.mine(3)
        beside.daemon.start()
        beside.assert_same()
        beside.feeding.kill()
        beside.spend_some(1)
        beside.mine(2)
        beside.take_back(depth + 1)
        beside.mine(depth + 4)
        beside.feeding.start()
        beside.assert_same()
    beside.feeding.kill()
    beside.mine(4)
    beside.daemon.restart()
    said = feed(beside.daemon, beside.node.url, "--to", beside.node.rpc("getblockcount"))
    assert "4 applied" in said
    beside.feeding.start()
    beside.assert_same()


def another_chain(beside: Beside) -> None:
    """The node loses all it had, as it keeps it in memory, and mines another chain: the daemon waits, and follows."""
    height = beside.node.rpc("getblockcount")
    before = beside.assert_same()
    beside.node.stop()
    wait_until(lambda: "connection refused" in beside.feeding.said())
    beside.node.start()
    wait_until(lambda: f"is at height 0, the daemon at {height}: waiting" in beside.feeding.said())
    assert exported(beside.daemon) == before
    beside.mine(height)
    assert not set(before) & set(beside.assert_same())
