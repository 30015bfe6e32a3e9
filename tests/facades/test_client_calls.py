"""Every call of the libraries of Blockfrost, Lucid Evolution, Mesh and Blaze that the facades answer."""

from __future__ import annotations

import json
import subprocess
from collections import Counter
from collections.abc import Callable, Iterator
from functools import cache
from typing import Any, NamedTuple

import blockfrost_schema
import cbor2
import httpx
import pytest
from chain_model import Coin, datum_of, scripts_of
from installed import HERE, modules, needs_clients, needs_npm, python
from msgspec.structs import replace
from preview import CODEC, blocks, coins, feed, own_listener, served
from questions import Web, short_folder
from stand_in import Node, ada, node

from feeds.cardano.transaction import read_transaction
from formats import bech32
from storage.indexes import payment_credential, stake_credential

pytestmark = needs_clients
METADATA = {674: {"msg": ["hello"]}}


class Served(NamedTuple):
    """Where the facades answer."""

    base: str
    ogmios: str
    upstream: Node

    @property
    def blockfrost(self) -> str:
        return f"{self.base}/blockfrost/preview/api"

    def get(self, path: str) -> Any:
        """Return what the facade answers; the other tests compare that with a model of the chain."""
        answer = httpx.get(f"{self.blockfrost}/v0{path}", timeout=30)
        assert answer.status_code == 200, (path, answer.text)
        blockfrost_schema.check(path, 200, answer.json())
        return answer.json()

    def submit(self, raw: bytes) -> str:
        """Submit a transaction."""
        answer = httpx.post(f"{self.blockfrost}/v0/tx/submit", content=raw, timeout=30)
        assert answer.status_code == 200, answer.text
        return str(answer.json())


def live() -> list[Coin]:
    return [coin for coin in coins().values() if not coin.spend and coin.block.height]


def payment(coin: Coin) -> bytes:
    """Return a transaction that spends an output, with metadata; its witnesses are not checked here."""
    body = {0: [[coin.txid, coin.number]], 1: [{0: coin.output.address, 1: coin.output.value - 9}], 2: 9}
    return cbor2.dumps([body, {}, True, METADATA])


def holds(coin: Coin, unit: str) -> bool:
    return any((policy + name).hex() == unit for policy, name, _ in coin.output.assets)


class Wallet(NamedTuple):
    """An output with assets at an address with a stake key, an inline datum, and outputs that others own."""

    coin: Coin
    datum: Coin
    others: list[Coin]

    @property
    def address(self) -> bytes:
        return self.coin.output.address

    @property
    def stake(self) -> str:
        return bech32.encode("stake_test", *bech32.symbols(b"\xe0" + self.address[29:57]))

    @property
    def unit(self) -> str:
        policy, name, _ = self.coin.output.assets[0]
        return (policy + name).hex()


@cache
def wallet() -> Wallet:
    fits = [coin for coin in live() if coin.output.assets and not coin.output.script_ref and coin.block.height > 9]
    coin = next(coin for coin in fits if coin.output.address[0] == 0)
    datum = next(coin for coin in coins().values() if coin.output.inline_datum is not None)
    stake = coin.output.address[29:57]
    return Wallet(coin, datum, [other for other in live() if stake_credential(other.output.address) != stake])


@pytest.fixture(scope="module")
def daemon() -> Iterator[Served]:
    """Yield the daemon, with a transaction in a block after the run, and one that waits."""
    (port, here), (front, ogmios) = own_listener(), own_listener()
    with (
        node() as upstream,
        short_folder() as folder,
        served(folder, upstream={"ogmios": upstream.url}, http={"listen": here}, ogmios={"listen": ogmios}) as api,
    ):
        account = {"delegate": {"id": "pool1x"}, "rewards": ada(7), "deposit": ada(2_000_000)}
        upstream.accounts = {wallet().address[29:57].hex(): account}
        found = Served(f"http://127.0.0.1:{port}", f"http://127.0.0.1:{front}", upstream)
        with Web(port) as web:
            web.get("/health/live")
        mined, waiting, *_ = map(payment, wallet().others)
        found.submit(mined)
        tip = blocks()[-1]
        block = replace(tip, height=tip.height + 1, slot=(tip.slot or 0) + 20, hash=b"\x01" * 32, prev_hash=tip.hash)
        feed(api, replace(block, txs=[read_transaction(mined)]))
        found.submit(waiting)
        yield found


# --- blockfrost-js and blockfrost-python -----------------------------------------------------------------------------


class Call(NamedTuple):
    """A path, and the functions that request it; one of them does not exist in blockfrost-python."""

    path: str
    javascript: str
    python: str | None
    args: tuple[Any, ...] = ()


def table() -> list[Call]:
    """Return a call of every path but those that submit."""
    own, (first, second, *_) = wallet(), wallet().others
    address, unit, stake = CODEC.write(own.address), own.unit, own.stake
    script, digest = next(scripts_of(coins()))[0].hex(), datum_of(own.datum)
    assert digest is not None
    datum, policy, tx = digest.hex(), unit[:56], own.coin.txid.hex()
    mined, waiting = (read_transaction(payment(coin)).txid.hex() for coin in (first, second))
    payer, at = CODEC.write(second.output.address), own.coin.block
    return [
        Call("/", "root", "root"),
        Call("/health", "health", "health"),
        Call(f"/addresses/{address}", "addresses", "address", (address,)),
        Call(f"/addresses/{address}/utxos", "addressesUtxosAll", "address_utxos", (address,)),
        Call(f"/addresses/{address}/utxos/{unit}", "addressesUtxosAssetAll", "address_utxos_asset", (address, unit)),
        Call(f"/addresses/{address}/transactions", "addressesTransactionsAll", "address_transactions", (address,)),
        Call(f"/accounts/{stake}", "accounts", "accounts", (stake,)),
        Call(f"/accounts/{stake}/utxos", "accountsUtxosAll", "account_utxos", (stake,)),
        Call(f"/accounts/{stake}/addresses/assets", "accountsAddressesAssetsAll", "account_addresses_assets", (stake,)),
        Call(f"/assets/{unit}", "assetsById", "asset", (unit,)),
        Call(f"/assets/{unit}/utxos", "assetsUtxosAll", None, (unit,)),
        Call(f"/assets/{unit}/addresses", "assetsAddresses", "asset_addresses", (unit,)),
        Call(f"/assets/policy/{policy}", "assetsPolicyByIdAll", "assets_policy", (policy,)),
        Call(f"/scripts/{script}", "scriptsByHash", "script", (script,)),
        Call(f"/scripts/{script}/json", "scriptsJson", "script_json", (script,)),
        Call(f"/scripts/{script}/cbor", "scriptsCbor", "script_cbor", (script,)),
        Call(f"/scripts/{script}/utxos", "scriptsUtxosAll", None, (script,)),
        Call(f"/scripts/datum/{datum}", "scriptsDatum", "script_datum", (datum,)),
        Call(f"/scripts/datum/{datum}/cbor", "scriptsDatumCbor", "script_datum_cbor", (datum,)),
        Call(f"/txs/{tx}", "txs", "transaction", (tx,)),
        Call(f"/txs/{tx}/utxos", "txsUtxos", "transaction_utxos", (tx,)),
        Call(f"/txs/{mined}/cbor", "txsCbor", "transaction_cbor", (mined,)),
        Call(f"/txs/{mined}/metadata/cbor", "txsMetadataCbor", "transaction_metadata_cbor", (mined,)),
        Call("/blocks/latest", "blocksLatest", "block_latest"),
        Call(f"/blocks/{at.height}", "blocks", "block", (at.height,)),
        Call(f"/blocks/slot/{at.slot}", "blocksBySlot", "block_slot", (at.slot,)),
        Call(f"/blocks/{at.hash.hex()}/next", "blocksNext", "blocks_next", (at.hash.hex(),)),
        Call(f"/blocks/{at.hash.hex()}/previous", "blocksPrevious", "blocks_previous", (at.hash.hex(),)),
        Call(f"/blocks/{at.hash.hex()}/txs", "blocksTxsAll", "block_transactions", (at.hash.hex(),)),
        Call("/genesis", "genesis", "genesis"),
        Call("/epochs/latest", "epochsLatest", "epoch_latest"),
        Call("/epochs/latest/parameters", "epochsLatestParameters", "epoch_latest_parameters"),
        Call("/network", "network", "network"),
        Call("/network/eras", "networkEras", "network_eras"),
        Call("/mempool", "mempoolAll", "mempool"),
        Call(f"/mempool/{waiting}", "mempoolTx", "mempool_tx", (waiting,)),
        Call(f"/mempool/addresses/{payer}", "mempoolByAddressAll", "mempool_address", (payer,)),
    ]


def answers(command: list[Any], url: str, calls: list[tuple[str, tuple[Any, ...]]]) -> list[Any]:
    """Return the answers that a library returns."""
    done = subprocess.run(
        command,
        cwd=modules(),
        input=json.dumps({"url": url, "calls": calls}),
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    found = [json.loads(line) for line in done.stdout.splitlines()]
    assert not [each for each in found if "answer" not in each], found
    assert [each["name"] for each in found] == [name for name, _ in calls]
    return [each["answer"] for each in found]


@needs_npm
@pytest.mark.parametrize("library", ["blockfrost-js", "blockfrost-python"])
def test_every_call_of_the_libraries_of_blockfrost(daemon: Served, library: str) -> None:
    """What they return is what the facade answers; each submits and evaluates a transaction at the end."""
    javascript = library == "blockfrost-js"
    listed = [call for call in table() if javascript or call.python is not None]
    raw = payment(wallet().others[2 if javascript else 3]).hex()
    calls = [(call.javascript if javascript else str(call.python), call.args) for call in listed]
    wanted = [daemon.get(call.path) for call in listed]
    names = ("utilsTxsEvaluate", "utilsTxsEvaluateUtxos", "txSubmit")
    if not javascript:
        names = ("transaction_evaluate_cbor", "transaction_evaluate_utxos", "transaction_submit_cbor")
    calls += [(names[0], (raw,)), (names[1], (raw, [])), (names[2], (raw,))]
    if javascript:
        answered = answers(["node", "--no-warnings", "calls.mjs"], f"{daemon.blockfrost}/v0", calls)
    else:
        answered = answers([python(), "-W", "ignore", HERE / "calls.py"], daemon.blockfrost, calls)
    *found, evaluated, with_outputs, submitted = answered
    for call, expected, answer in zip(listed, wanted, found, strict=True):
        assert answer == expected, call
    assert evaluated["result"] == with_outputs["result"] and "spend:0" in evaluated["result"]["EvaluationResult"]
    assert submitted == read_transaction(bytes.fromhex(raw)).txid.hex() and submitted in daemon.upstream.taken


# --- providers of wallets --------------------------------------------------------------------------------------------


def places(kept: Callable[[Coin], object]) -> list[list[Any]]:
    return sorted([coin.txid.hex(), coin.number] for coin in live() if kept(coin))


@needs_npm
def test_providers_of_wallets(daemon: Served) -> None:
    units = Counter((p + n).hex() for coin in live() for p, n, _ in coin.output.assets)
    held, address, unit = wallet().coin, wallet().address, wallet().unit
    only = next(each for each, count in units.items() if count == 1 and len(each) > 56)
    digest, datum = datum_of(wallet().datum), wallet().datum.output.inline_datum
    assert digest is not None and datum is not None
    requests = {
        "kupo": f"{daemon.base}/kupo",
        "ogmios": daemon.ogmios,
        "blockfrost": f"{daemon.blockfrost}/v0",
        "address": CODEC.write(address),
        "credential": address[1:29].hex(),
        "unit": unit,
        "only": only,
        "reference": {"txHash": held.txid.hex(), "outputIndex": held.number},
        "datum_hash": digest.hex(),
        "stake": wallet().stake,
        "block": held.block.hash.hex(),
    }
    command = ["node", "--no-warnings", "queries.mjs"]
    done = subprocess.run(
        command, cwd=modules(), input=json.dumps(requests), capture_output=True, text=True, timeout=120, check=False
    )
    assert done.returncode == 0, done.stderr
    answered = [json.loads(line) for line in done.stdout.splitlines() if line.startswith("{")]
    assert not [answer for answer in answered if "result" not in answer], done.stdout
    own: Callable[[Coin], object] = lambda coin: coin.output.address == address  # noqa: E731
    policy = unit[:56]
    expected = {
        "parameters": 44,
        "address": places(own),
        "credential": places(lambda coin: payment_credential(coin.output.address) == address[1:29]),
        "unit": places(lambda coin: own(coin) and holds(coin, unit)),
        "one": places(lambda coin: holds(coin, only)),
        "references": [[held.txid.hex(), held.number]],
        "datum": datum.hex(),
        "delegation": {"poolId": "pool1x", "rewards": "7"},
        "holders": len({coin.output.address for coin in live() if holds(coin, unit)}),
        "collection": len({each for each in units if each[:56] == policy}),
        "block": held.block.hash.hex(),
        "latest": "01" * 32,
        "transaction": [held.txid.hex(), sum(coin.txid == held.txid for coin in coins().values())],
        "transactions": daemon.get(f"/addresses/{CODEC.write(address)}/transactions")[0]["tx_hash"],
        "costs": 3,
    }
    for answer in answered:
        result = answer["result"]
        if isinstance(result, list) and all(isinstance(each, list) for each in result):
            result = sorted(result)
        assert result == expected[answer["call"]], answer
    clients = Counter(answer["client"] for answer in answered)
    assert clients == {"lucid-kupmios": 8, "lucid-blockfrost": 8, "blaze-kupmios": 5, "blaze-blockfrost": 5, "mesh": 12}
