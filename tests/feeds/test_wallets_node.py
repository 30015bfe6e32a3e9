"""A daemon and wallets with a real full node: the set, notifications, the mempool, BDK from scan to payment."""

from __future__ import annotations

import json
import subprocess
from collections.abc import Iterator
from hashlib import sha256
from itertools import pairwise
from random import Random
from typing import Any

import bdkpython as bdk
import httpx
import pytest
from bcoin_node import NOTE, PAY_TO_WITNESS, TRUE, Anyone, BcoinNode, bcoin, free_ports
from bitcoin_feeds import BITCOIN, exported, following, tip_of
from bitcoin_rpc_chain import txid_of
from daemons import Daemon, running
from electrum_client import Wallet, script_hash
from installed import modules, needs_npm
from patience import patience, until
from test_bitcoin_block import made_input, made_output, made_tx

from formats import base58

PORT, WEB = free_ports(2)
COIN = 100_000_000
TPUB = "043587cf"
KEY = "tprv8ZgxMBicQKsPdcAqYBpzAFwU5yxBUo88ggoBqu1qPcHUfSbKK1sKMLmC7EAk438btHQrSdu3jGGQa6PA71nvH5nkDexhLteJqkM4dQmWF9g"


@pytest.fixture(scope="module")
def node(tmp_path_factory: pytest.TempPathFactory) -> Iterator[BcoinNode]:
    with bcoin(tmp_path_factory.mktemp("bcoin")) as node:
        yield node


@pytest.fixture(scope="module")
def daemon(node: BcoinNode, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Daemon]:
    tables: dict[str, Any] = {
        "electrum": {"enabled": True, "listen": f"127.0.0.1:{PORT}"},
        "esplora": {"enabled": True, "listen": f"127.0.0.1:{WEB}"},
        "upstream": {"bitcoin": node.url, "mempool_interval": "50ms"},
        "utxo": {"index": {"history": True}},
    }
    folder = tmp_path_factory.mktemp("wallets")
    with running(folder, chain=BITCOIN, **tables) as daemon, following(daemon, node.url), Wallet(PORT):
        yield daemon


def mine(node: BcoinNode, daemon: Daemon, count: int, address: str) -> int:
    node.rpc("generatetoaddress", count, address)
    height: int = node.rpc("getblockcount")
    with Wallet(PORT) as wallet:
        until(lambda: wallet.call("blockchain.headers.subscribe")["height"], lambda found: found == height)
    return height


@pytest.fixture(scope="module")
def anyone(node: BcoinNode, daemon: Daemon) -> Anyone:
    """Return coins on a chain that is long enough for witnesses."""
    found = Anyone(node, Random(3))
    mine(node, daemon, 446, found.address)
    return found


def assert_same(node: BcoinNode, daemon: Daemon) -> list[str]:
    """Compare the daemon's set with the node's."""
    until(lambda: tip_of(daemon), lambda found: found == node.rpc("getbestblockhash"))
    whole, lines = node.rpc("gettxoutsetinfo"), exported(daemon)
    coins = [line.split(",") for line in lines]
    assert (whole["bestblock"], whole["txouts"]) == (tip_of(daemon), len(coins))
    assert sum(int(value) for _, _, value, _ in coins) == round(whole["total_amount"] * COIN)
    answers = node.rpc_many([("gettxout", txid, int(index), False) for txid, index, _, _ in coins])
    theirs = [(round(answer["value"] * COIN), answer["scriptPubKey"]["hex"]) for answer in answers]
    assert [(int(value), script) for _, _, value, script in coins] == theirs
    return lines


def test_the_life_of_payments_is_reported(node: BcoinNode, daemon: Daemon, anyone: Anyone) -> None:
    coin = anyone.coins()[0]
    key, other = script_hash(PAY_TO_WITNESS), script_hash(anyone.script)
    with Wallet(PORT) as wallet:
        assert wallet.call("blockchain.scripthash.subscribe", key) is None
        assert wallet.call("blockchain.scripthash.subscribe", other) is not None
        height = wallet.call("blockchain.headers.subscribe")["height"]
        made = anyone.spend(coin)
        child = anyone.spend(made[0])
        txid, child_id = made[0]["hash"], child[0]["hash"]
        waiting = until(lambda: wallet.call("blockchain.scripthash.get_mempool", key), lambda found: len(found) == 2)
        assert waiting == [
            {"tx_hash": txid, "height": 0, "fee": 20_000},
            {"tx_hash": child_id, "height": -1, "fee": 20_000},
        ]
        assert_reported(wallet, key)
        assert wallet.call("blockchain.scripthash.get_balance", key)["confirmed"] == 0
        unspent = wallet.call("blockchain.scripthash.listunspent", key)
        assert {each["height"] for each in unspent} == {0} and len(unspent) == 2
        assert wallet.call("blockchain.scripthash.get_balance", key)["unconfirmed"] == sum(u["value"] for u in unspent)
        raw = wallet.call("blockchain.transaction.get", child_id)
        assert raw == node.rpc("getrawtransaction", child_id)
        assert wallet.call("mempool.get_fee_histogram") == []  # less than a step

        node.rpc("generatetoaddress", 1, anyone.address)
        assert wallet.notified("blockchain.headers.subscribe")[0]["height"] == height + 1
        until(lambda: wallet.call("blockchain.scripthash.get_mempool", key), lambda found: found == [])
        history = wallet.call("blockchain.scripthash.get_history", key)
        assert sorted(each["tx_hash"] for each in history) == sorted([txid, child_id])
        assert {each["height"] for each in history} == {height + 1}
        assert_reported(wallet, key)
        assert wallet.call("blockchain.transaction.get", txid) == node.rpc("getrawtransaction", txid)

        node.rpc("invalidateblock", node.rpc("getbestblockhash"))
        node.rpc("generatetoaddress", 2, anyone.address)
        until(lambda: wallet.call("blockchain.headers.subscribe")["height"], lambda found: found == height + 2)
        history = wallet.call("blockchain.scripthash.get_history", key)
        assert all(each["height"] > height or each["height"] <= 0 for each in history)
        assert_reported(wallet, key)


def test_the_daemons_set_is_that_of_the_node(node: BcoinNode, daemon: Daemon, anyone: Anyone) -> None:
    random = Random(7)

    def spend(transactions: int) -> None:
        for _ in range(transactions):
            made = anyone.spend(*random.sample(anyone.coins(), random.randrange(1, 4)))
            anyone.spend(random.choice(made), outputs=4)

    own = node.wallet("getnewaddress", "default")
    node.rpc("generatetoaddress", 3, own)
    spend(12)
    node.rpc("generatetoaddress", 101, anyone.address)
    until(lambda: node.wallet("getbalance", "default") > 0)
    node.wallet("sendmany", "default", {own: 3, anyone.address: 2})  # with a real signature
    node.rpc("generatetoaddress", 1, anyone.address)
    lines = assert_same(node, daemon)
    scripts = {line.rpartition(",")[2] for line in lines}
    assert {TRUE.hex(), PAY_TO_WITNESS.hex(), anyone.script.hex()} < scripts and NOTE.hex() not in scripts
    for depth in (1, 17):
        height = node.rpc("getblockcount")
        node.rpc("invalidateblock", node.rpc("getblockhash", height - depth + 1))
        spend(2)
        node.rpc("generatetoaddress", depth + 1, anyone.address)
        before, lines = lines, assert_same(node, daemon)
        assert lines != before
        turns = [line for line in daemon.log_lines() if line["event"] == "rolled_back"]
        assert turns[-1]["blocks"] == depth


def status(wallet: Wallet, key: str) -> str | None:
    history = wallet.call("blockchain.scripthash.get_history", key)
    if not history:
        return None
    return sha256("".join(f"{each['tx_hash']}:{each['height']}:" for each in history).encode()).hexdigest()


def reported(wallet: Wallet, key: str) -> list[str | None]:
    """Return the statuses of a script that were reported so far."""
    wallet.call("server.ping")
    return [each["params"][1] for each in wallet.notifications if each["params"][0] == key]


def assert_reported(wallet: Wallet, key: str) -> None:
    """Wait until the last status that was reported is that of the history, and none was reported twice."""
    until(
        lambda: (reported(wallet, key), status(wallet, key)),
        lambda both: both[0][-1:] == [both[1]],
        "the status is not reported",
    )
    found = reported(wallet, key)
    assert all(one != other for one, other in pairwise(found)), "a status was reported twice"


def test_where_an_output_is_created_and_spent_is_reported(node: BcoinNode, daemon: Daemon, anyone: Anyone) -> None:
    height = mine(node, daemon, 1, anyone.address)
    coin = anyone.coins()[0]
    raw, made = anyone.transaction(coin)
    old, new = (coin["hash"], coin["index"]), (made[0]["hash"], made[0]["index"])
    with Wallet(PORT) as wallet:
        seen: dict[tuple[str, int], list[Any]] = {old: [], new: []}
        for place in (old, new):
            seen[place].append(wallet.call("blockchain.outpoint.subscribe", *place))
        assert seen == {old: [{"funder_height": coin["height"]}], new: [{}]}

        def reported(place: tuple[str, int], expected: dict[str, Any]) -> None:
            """Wait until a status is reported; no status is reported twice in succession."""
            while seen[place][-1] != expected:
                txid, index, found = wallet.notified("blockchain.outpoint.subscribe")
                assert found != seen[txid, index][-1]
                seen[txid, index].append(found)
            assert wallet.call("blockchain.outpoint.get_status", *place) == expected

        node.send(raw, new[0])
        spent = {"spender_txhash": new[0], "spender_height": 0}
        reported(old, {"funder_height": coin["height"]} | spent)
        reported(new, {"funder_height": 0})
        child = anyone.spend(made[0])[0]["hash"]
        reported(new, {"funder_height": 0, "spender_txhash": child, "spender_height": -1})
        mine(node, daemon, 1, anyone.address)
        reported(old, {"funder_height": coin["height"]} | spent | {"spender_height": height + 1})
        mined = {"funder_height": height + 1, "spender_txhash": child, "spender_height": height + 1}
        reported(new, mined)
        node.rpc("invalidateblock", node.rpc("getbestblockhash"))
        node.rpc("generatetoaddress", 2, anyone.witness_address)
        until(
            lambda: wallet.call("blockchain.outpoint.get_status", *new),
            lambda found: found != mined,
            "the output is where it was before the reorganisation",
        )
        reported(new, wallet.call("blockchain.outpoint.get_status", *new))
        assert wallet.call("blockchain.outpoint.unsubscribe", *new) is True
        assert wallet.call("blockchain.outpoint.unsubscribe", *new) is False
        assert wallet.call("blockchain.outpoint.unsubscribe", *old) is True


def get(path: str) -> Any:
    answer = httpx.get(f"http://127.0.0.1:{WEB}/api{path}", timeout=patience(20))
    assert answer.status_code == 200, answer.text
    return answer.json()


def test_esplora_shows_whole_transactions_page_by_page(node: BcoinNode, daemon: Daemon, anyone: Anyone) -> None:
    coin = anyone.coins()[0]
    made = anyone.spend(coin)
    txid, key = made[0]["hash"], sha256(PAY_TO_WITNESS).hexdigest()
    waiting = until(lambda: get(f"/scripthash/{key}/txs"), lambda found: any(each["txid"] == txid for each in found))[0]
    assert waiting["status"] == {"confirmed": False} and waiting["fee"] == 20_000
    assert get(f"/scripthash/{key}/txs/mempool") == [waiting] and get("/mempool/txids") == [txid]
    assert get("/mempool")["total_fee"] == 20_000 and get("/mempool/recent")[0]["txid"] == txid
    before = waiting["vin"][0]
    assert (before["txid"], before["vout"]) == (coin["hash"], coin["index"])
    assert (before["prevout"]["value"], before["prevout"]["scriptpubkey"]) == (coin["value"], coin["script"])
    spender = {"spent": True, "txid": txid, "vin": 0, "status": {"confirmed": False}}
    assert get(f"/tx/{coin['hash']}/outspend/{coin['index']}") == spender
    height = mine(node, daemon, 1, anyone.address)
    confirmed = until(lambda: get(f"/tx/{txid}"), lambda found: found["status"]["confirmed"])
    status = confirmed.pop("status")
    assert confirmed == {name: value for name, value in waiting.items() if name not in {"status", "claimed_by"}}
    assert (status["block_height"], status["block_hash"]) == (height, node.rpc("getbestblockhash"))
    kinds = {output["scriptpubkey_type"] for output in confirmed["vout"]}
    assert {"p2sh", "v0_p2wsh", "op_return", "unknown"} <= kinds
    theirs = node.rpc("getrawtransaction", txid, 1)
    assert all(confirmed[name] == theirs[name] for name in ("size", "version", "locktime"))
    coinbase = get(f"/block/{status['block_hash']}/txs")[0]
    assert coinbase["vin"][0]["is_coinbase"] and coinbase["vin"][0]["prevout"] is None and coinbase["fee"] == 0

    busy = sha256(anyone.script).hexdigest()
    with Wallet(PORT) as wallet:
        history = wallet.call("blockchain.scripthash.get_history", script_hash(anyone.script))
    seen, page = list[str](), get(f"/scripthash/{busy}/txs/chain")
    while page:
        seen += [each["txid"] for each in page]
        page = get(f"/scripthash/{busy}/txs/chain/{seen[-1]}") if len(page) == 25 else []
    assert len(seen) > 400 and seen == [each["tx_hash"] for each in reversed(history)]
    assert [each["txid"] for each in get(f"/scripthash/{busy}/txs")][:25] == seen[:25]


class Bdk:
    def __init__(self, protocol: str, *descriptors: str) -> None:
        network = bdk.Network.REGTEST
        electrum = protocol == "electrum"
        account = f"wpkh({KEY}/84'/1'/{int(electrum)}'"  # what one of them is paid is not in the other's wallet
        own = descriptors or tuple(f"{account}/{n}/*)" for n in (0, 1))
        kinds = (bdk.Descriptor(each, bdk.NetworkKind.TEST) for each in own)
        self.wallet = bdk.Wallet(*kinds, network, bdk.Persister.new_in_memory())
        address = f"tcp://127.0.0.1:{PORT}" if electrum else f"http://127.0.0.1:{WEB}/api"
        self.client = bdk.ElectrumClient(address) if electrum else bdk.EsploraClient(address)
        self._options = (5, True) if electrum else (2,)  # calls in a list, or requests at a time

    def scan(self) -> None:
        self.wallet.apply_update(self.client.full_scan(self.wallet.start_full_scan().build(), 10, *self._options))

    def sync(self) -> None:
        request = self.wallet.start_sync_with_revealed_spks().build()
        self.wallet.apply_update(self.client.sync(request, *self._options))

    def send(self, transaction: Any) -> None:
        send = getattr(self.client, "transaction_broadcast", None) or self.client.broadcast
        send(transaction)

    def balance_now(self) -> int:
        self.sync()
        return self.total()

    def address(self) -> str:
        return str(self.wallet.reveal_next_address(bdk.KeychainKind.EXTERNAL).address)

    def total(self) -> int:
        return int(self.wallet.balance().total.to_sat())


@pytest.mark.parametrize("protocol", ["electrum", "esplora"])
def test_bdk_scans_pays_and_follows_a_reorganisation(
    node: BcoinNode, daemon: Daemon, anyone: Anyone, protocol: str
) -> None:
    one, paid = Bdk(protocol), list[int]()
    for n in range(8):
        script = bdk.Address(one.address(), bdk.Network.REGTEST).script_pubkey().to_bytes()
        coin = max(anyone.coins(), key=lambda coin: coin["value"])
        node.send(*payment(coin, bytes(script), 1_000_000 * (n + 1)))
        paid.append(1_000_000 * (n + 1))
    height = mine(node, daemon, 1, anyone.address)
    one.sync()
    assert one.total() == sum(paid)
    fresh = Bdk(protocol)
    fresh.scan()
    assert fresh.total() == sum(paid) and len(fresh.wallet.transactions()) == 8

    back = bdk.Script(PAY_TO_WITNESS)
    psbt = (
        bdk.TxBuilder()
        .add_recipient(back, bdk.Amount.from_sat(5_000_000))
        .fee_rate(bdk.FeeRate.from_sat_per_vb(50))
        .finish(one.wallet)
    )
    assert one.wallet.sign(psbt)
    transaction = psbt.extract_tx()
    one.send(transaction)
    txid = str(transaction.compute_txid())
    until(lambda: node.rpc("getrawmempool"), lambda found: txid in found)
    until(fresh.balance_now, lambda total: total < sum(paid) - 5_000_000, "the payment is not seen")
    mine(node, daemon, 1, anyone.address)
    fresh.scan()
    spent = sum(paid) - fresh.total()
    assert 5_000_000 < spent < 5_100_000

    node.rpc("invalidateblock", node.rpc("getblockhash", height))
    mine(node, daemon, 3, anyone.address)
    fresh.sync()
    assert fresh.wallet.latest_checkpoint().height == height + 2
    assert fresh.total() == sum(paid) - spent


def explored(requests: dict[str, Any]) -> list[dict[str, Any]]:
    """Return what @bitcoinerlab/explorer finds over each protocol."""
    command = ["node", "--no-warnings", "explorer.mjs"]
    done = subprocess.run(
        command, cwd=modules(), input=json.dumps(requests), capture_output=True, text=True, timeout=120, check=False
    )
    assert done.returncode == 0, done.stderr
    return [json.loads(line) for line in done.stdout.splitlines()]


class NodesWallet:
    """An account of the node's own wallet, and a wallet of BDK that watches the same addresses."""

    def __init__(self, node: BcoinNode) -> None:
        self._node = node
        made = node.wallet_http("PUT", "/account/savings", {"type": "pubkeyhash"})
        account = base58.decode_check(made["accountKey"])
        xpub = base58.encode_check(bytes.fromhex(TPUB) + account[4:])  # bcoin has a version of its own for regtest
        kinds = (bdk.Descriptor(f"pkh({xpub}/{n}/*)", bdk.NetworkKind.TEST) for n in (0, 1))
        self._keys = bdk.Wallet(*kinds, bdk.Network.REGTEST, bdk.Persister.new_in_memory())

    def scripts(self) -> dict[str, bytes]:
        """Return more addresses than it uses, with their scripts."""
        both = (bdk.KeychainKind.EXTERNAL, bdk.KeychainKind.INTERNAL)
        found = [self._keys.peek_address(kind, n).address for kind in both for n in range(12)]
        return {str(address): bytes(address.script_pubkey().to_bytes()) for address in found}

    def amounts(self) -> tuple[int, int]:
        """Return its sums in satoshi: with unconfirmed transactions, and without.

        Transactions that the node has dropped after a reorganisation stay in the wallet, but do not count here.
        """
        balance = self._node.wallet_http("GET", "/balance?account=savings", None)
        waiting = self._node.rpc("getrawmempool")
        return balance["unconfirmed" if waiting else "confirmed"], balance["confirmed"]

    def pay(self, address: str, value: int) -> None:
        """Send a transaction with a real signature."""
        order = {"account": "savings", "rate": 20_000, "outputs": [{"address": address, "value": value}]}
        assert self._node.wallet_http("POST", "/send", order)["hash"] in self._node.rpc("getrawmempool")

    def found_by(self, protocol: str) -> int:
        """Return what BDK finds with a full scan."""
        kinds = (bdk.KeychainKind.EXTERNAL, bdk.KeychainKind.INTERNAL)
        one = Bdk(protocol, *map(self._keys.public_descriptor, kinds))
        one.scan()
        return one.total()


@needs_npm
def test_clients_reach_the_balances_of_the_nodes_wallet(node: BcoinNode, daemon: Daemon, anyone: Anyone) -> None:
    wallet = NodesWallet(node)
    scripts = wallet.scripts()
    own = node.wallet("getnewaddress", "savings")
    assert bytes.fromhex(node.rpc("validateaddress", own)["scriptPubKey"]) in scripts.values()
    spare = [coin for coin in anyone.coins() if coin["value"] > COIN][-6:]
    for coin, script in zip(spare, list(scripts.values())[:4], strict=False):
        node.send(*payment(coin, script, 3_000_000))

    def compare(push: dict[str, tuple[bytes, str]] | None = None) -> None:
        """Wait until every client has the balance of the node's wallet, and compare what else they found."""
        until(
            lambda: ({wallet.found_by("electrum"), wallet.found_by("esplora")}, wallet.amounts()),
            lambda found: found[0] == {found[1][0]},
            "BDK has another balance",
        )
        total, confirmed = wallet.amounts()
        requests = {"electrum": PORT, "esplora": f"http://127.0.0.1:{WEB}/api", "addresses": list(scripts)}
        requests["push"] = {protocol: raw.hex() for protocol, (raw, _) in (push or {}).items()}
        found = {each["protocol"]: each for each in explored(requests)}
        assert found.keys() == {"electrum", "esplora"}
        for protocol, each in found.items():
            amounts = each["balances"].values()
            assert sum(amount["balance"] for amount in amounts) == confirmed
            assert sum(amount["unconfirmedBalance"] for amount in amounts) == total - confirmed
            assert each["height"] == node.rpc("getblockcount") and each["block"]["blockHash"] == node.rpc(
                "getbestblockhash"
            )
            raws = node.rpc_many([("getrawtransaction", txid) for txid in each["transactions"]])
            assert raws and list(each["transactions"].values()) == raws
            if push:
                assert each["pushed"] == push[protocol][1] and each["pushed"] in node.rpc("getrawmempool")
        assert found["electrum"]["balances"] == found["esplora"]["balances"]
        histories = [
            {address: sorted(listed) for address, listed in each["histories"].items()} for each in found.values()
        ]
        assert histories[0] == histories[1]

    compare()
    mine(node, daemon, 1, anyone.address)
    wallet.pay(anyone.address, 5_000_000)
    script = next(iter(scripts.values()))
    compare({"electrum": payment(spare[4], script, 1_000_000), "esplora": payment(spare[5], script, 2_000_000)})
    height = mine(node, daemon, 2, anyone.address)
    compare()
    node.rpc("invalidateblock", node.rpc("getblockhash", height - 1))
    mine(node, daemon, 3, anyone.witness_address)
    compare()


def payment(coin: dict[str, Any], script: bytes, value: int) -> tuple[bytes, str]:
    plain = coin["script"] != PAY_TO_WITNESS.hex()
    inputs = [made_input(bytes.fromhex(coin["hash"]), coin["index"], bytes([len(TRUE)]) + TRUE if plain else b"")]
    outputs = [made_output(value, script), made_output(coin["value"] - value - 20_000, bytes.fromhex(coin["script"]))]
    witness = None if plain else b"\x01" + bytes([len(TRUE)]) + TRUE
    return made_tx(inputs, outputs, witness), txid_of(made_tx(inputs, outputs))
