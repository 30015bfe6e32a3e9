"""Blockfrost's API over a real run: every endpoint, page and message, compared with a model of the same blocks."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from hashlib import blake2b
from pathlib import Path
from typing import Any

import blockfrost_schema
import cbor2
import httpx
import msgspec
import pytest
from chain_model import Coin, datum_of, scripts_of
from hypothesis import given, settings
from hypothesis import strategies as st
from installed import FOLDER
from msgspec.structs import replace
from preview import CODEC, before, blocks, coins, feed, own_listener, served
from questions import Api, Web, short_folder
from stand_in import EVALUATED, PARAMETERS, Node, node

from daemon.http.blockfrost.network import parameters
from daemon.http.blockfrost.outputs import fingerprint
from feeds.cardano.transaction import read_transaction
from formats import bech32
from formats.plutus import datum_json
from handlers.events import Details, Rollback, RollbackPoint
from storage.indexes import payment_credential, stake_credential

ROOT = "/blockfrost/preview/api/v0"
NOT_FOUND = "The requested component has not been found."
BAD_PATH = "Invalid path. Please check https://docs.blockfrost.io/"
Kept = Callable[[Coin], object]


@pytest.fixture(scope="module")
def upstream() -> Iterator[Node]:
    with node() as made:
        yield made


@pytest.fixture(scope="module")
def frost(upstream: Node) -> Iterator[Api]:
    with short_folder() as folder, served(folder, upstream={"ogmios": upstream.url}) as api:
        yield api


def ask(api: Api, path: str, status: int = 200, message: str | None = None) -> Any:
    answer = api.ask(f"{ROOT}{path}")
    assert answer.status_code == status, (path, answer.status_code, answer.text[:500])
    assert answer.headers["content-type"].startswith("application/json")
    assert answer.headers["access-control-allow-origin"] == "*"
    content = answer.json()
    if status != 200:
        assert set(content) == {"status_code", "error", "message"} and content["status_code"] == status
        assert message is None or content["message"] == message
    if FOLDER and (status == 200 or message != BAD_PATH):
        blockfrost_schema.check(path, status, content)
    return content


def unspent(kept: Kept) -> list[Coin]:
    return [coin for coin in coins().values() if not coin.spend and kept(coin)]


def some(kept: Kept) -> Coin:
    return next(coin for coin in coins().values() if kept(coin))


def amount(coin: Coin) -> list[dict[str, str]]:
    assets = [{"unit": (p + n).hex(), "quantity": str(q)} for p, n, q in coin.output.assets]
    return [{"unit": "lovelace", "quantity": str(coin.output.value)}, *assets]


def utxo(coin: Coin) -> dict[str, Any]:
    output, datum = coin.output, datum_of(coin)
    return {
        "address": CODEC.write(output.address),
        "tx_hash": coin.txid.hex(),
        "tx_index": coin.number,
        "output_index": coin.number,
        "amount": amount(coin),
        "block": coin.block.hash.hex(),
        "data_hash": None if datum is None else datum.hex(),
        "inline_datum": None if output.inline_datum is None else output.inline_datum.hex(),
        "reference_script_hash": None if output.script_ref_hash is None else output.script_ref_hash.hex(),
    }


def with_asset(coin: Coin) -> dict[str, Any]:
    """Return an output as among those of an asset."""
    found, datum = utxo(coin), coin.output.inline_datum
    del found["tx_index"]
    facts = {"block_height": coin.block.height, "block_time": coin.block.time}
    return found | facts | {"inline_datum_json": None if datum is None else datum_json(datum)}


def compare(api: Api, path: str, kept: Kept, count: int = 7, write: Callable[[Coin], object] = utxo) -> None:
    """Compare every page, in both orders."""
    for order in ("asc", "desc"):
        wanted = [write(coin) for coin in unspent(kept)][:: 1 if order == "asc" else -1]
        found, page = list[Any](), 1
        while part := ask(api, f"{path}?count={count}&page={page}&order={order}"):
            assert len(part) <= count
            found, page = found + part, page + 1
        assert found == wanted, path


def busiest(key: Callable[[Coin], bytes | None]) -> bytes:
    found = [key(coin) for coin in unspent(key)]
    return max((each for each in found if each), key=found.count)


def test_outputs_of_addresses_and_credentials(frost: Api) -> None:
    address = busiest(lambda coin: coin.output.address)
    compare(frost, f"/addresses/{CODEC.write(address)}/utxos", lambda coin: coin.output.address == address)
    compare(frost, f"/addresses/{CODEC.write(address)}/utxos/lovelace", lambda coin: coin.output.address == address)
    payment = address[1:29]
    for prefix in ("addr_vkh", "script"):
        text = bech32.encode(prefix, *bech32.symbols(payment))
        compare(frost, f"/addresses/{text}/utxos", lambda coin: payment_credential(coin.output.address) == payment)
    coin = some(lambda coin: not coin.spend and coin.output.assets)
    policy, name, _ = coin.output.assets[0]
    holder = coin.output.address
    path = f"/addresses/{CODEC.write(holder)}/utxos/{(policy + name).hex()}"
    compare(frost, path, lambda other: other.output.address == holder and holds(other, policy, name))


def holds(coin: Coin, policy: bytes, name: bytes) -> bool:
    return any((p, n) == (policy, name) for p, n, _ in coin.output.assets)


def test_accounts(frost: Api) -> None:
    stake = busiest(lambda coin: stake_credential(coin.output.address))
    text = bech32.encode("stake_test", *bech32.symbols(b"\xe0" + stake))
    own: Kept = lambda coin: stake_credential(coin.output.address) == stake  # noqa: E731
    compare(frost, f"/accounts/{text}/utxos", own)
    held = dict[str, int]()
    for coin in unspent(own):
        for p, n, q in coin.output.assets:
            held[(p + n).hex()] = held.get((p + n).hex(), 0) + q
    found = ask(frost, f"/accounts/{text}/addresses/assets")
    assert {each["unit"]: int(each["quantity"]) for each in found} == held
    ask(frost, "/accounts/stake_test1x/utxos", 400)


def test_assets_and_policies(frost: Api) -> None:
    policy, name, _ = some(lambda coin: not coin.spend and coin.output.assets).output.assets[0]
    unit = (policy + name).hex()
    own: Kept = lambda coin: holds(coin, policy, name)  # noqa: E731
    compare(frost, f"/assets/{unit}/utxos", own, write=with_asset)
    owners = dict[str, int]()
    for coin in unspent(own):
        quantity = next(q for p, n, q in coin.output.assets if (p, n) == (policy, name))
        owners[CODEC.write(coin.output.address)] = owners.get(CODEC.write(coin.output.address), 0) + quantity
    found = ask(frost, f"/assets/{unit}/addresses")
    assert found == [{"address": address, "quantity": str(quantity)} for address, quantity in owners.items()]
    assert ask(frost, f"/assets/{unit}/addresses?count=1&page=2") == found[1:2]
    names = dict[bytes, int]()
    for coin in unspent(lambda coin: any(p == policy for p, _, _ in coin.output.assets)):
        for p, n, q in coin.output.assets:
            names[n] = names.get(n, 0) + (q if p == policy else 0)
    listed = ask(frost, f"/assets/policy/{policy.hex()}")
    assert {each["asset"]: each["quantity"] for each in listed} == {
        (policy + n).hex(): str(q) for n, q in names.items() if q
    }
    facts = ask(frost, f"/assets/{unit}")
    assert (facts["asset"], facts["policy_id"], facts["quantity"]) == (unit, policy.hex(), str(sum(owners.values())))
    assert facts["fingerprint"] == fingerprint(policy, name)
    ask(frost, f"/assets/{'00' * 28}", 404, NOT_FOUND)
    ask(frost, "/assets/00", 400)
    for path in (f"/assets/{'00' * 28}/addresses", f"/assets/policy/{'00' * 28}", f"/assets/{'00' * 28}/utxos"):
        ask(frost, path, 404, NOT_FOUND)


def test_an_address(frost: Api) -> None:
    address = busiest(lambda coin: coin.output.address)
    own, held = unspent(lambda coin: coin.output.address == address), dict[str, int]()
    for coin in own:
        for each in amount(coin):
            held[each["unit"]] = held.get(each["unit"], 0) + int(each["quantity"])
    found = ask(frost, f"/addresses/{CODEC.write(address)}")
    assert {each["unit"]: int(each["quantity"]) for each in found["amount"]} == held
    assert found["amount"][0]["unit"] == "lovelace" and found["type"] == "shelley"
    assert (found["address"], found["stake_address"]) == (CODEC.write(address), CODEC.stake(address))
    assert found["script"] == bool(address[0] & 0x10)


def test_spent_and_unknown_addresses(frost: Api) -> None:
    spent = some(lambda coin: coin.spend and not unspent(lambda other: other.output.address == coin.output.address))
    text = CODEC.write(spent.output.address)
    assert ask(frost, f"/addresses/{text}/utxos") == ask(frost, f"/addresses/{text}/utxos?page=9") == []
    assert ask(frost, f"/addresses/{text}")["amount"] == [{"unit": "lovelace", "quantity": "0"}]
    unknown = CODEC.write(b"\x60" + bytes(28))
    for path in (f"/addresses/{unknown}/utxos", f"/addresses/{unknown}"):
        ask(frost, path, 404, NOT_FOUND)


PAGING = {
    "must be <= 100": ["count=101"],
    "must be >= 1": ["count=0", "count=-1", "page=0"],
    "must be integer": ["count=x", "count=1.5", "count=1&count=2"],
    "must be <= 21474836": ["page=21474837", "page=99999999999999999999"],
    "must be equal to one of the allowed values": ["order=newest"],
}


def test_malformed_paging(frost: Api) -> None:
    for message, queries in PAGING.items():
        for query in queries:
            name = query.partition("=")[0]
            path = f"/addresses/{CODEC.write(b'`' + bytes(28))}/utxos?{query}"
            ask(frost, path, 400, f"querystring/{name} {message}")


def test_malformed_paths(frost: Api) -> None:
    bad = "Invalid address for this network or malformed address format."
    mainnet = bech32.encode("addr", *bech32.symbols(b"\x61" + bytes(28)))
    for text in ("x", mainnet, "00" * 29, "addr_vkh1x"):
        ask(frost, f"/addresses/{text}/utxos", 400, bad)
    for text in ("/nothing", "/addresses", "/txs/a/b/c"):
        assert ask(frost, text, 400, BAD_PATH)["error"] == "Bad Request"
    assert frost.ask(f"{ROOT}/blocks/latest", "PUT").json()["message"] == BAD_PATH
    for text in (f"/txs/{'00' * 32}", "/txs/x", f"/scripts/{'00' * 28}", f"/scripts/datum/{'00' * 32}"):
        ask(frost, text, 404, NOT_FOUND)
    ask(frost, "/blocks/x", 400, "Missing, out of range or malformed hash_or_number.")
    ask(frost, "/blocks/slot/x", 400, "Missing, out of range or malformed slot_number.")
    assert frost.ask("/blockfrost/preview/elsewhere").status_code == 400


def test_scripts(frost: Api) -> None:
    kinds = ("timelock", "plutusV1", "plutusV2", "plutusV3")
    for digest, language, code in scripts_of(coins()):
        text, size = digest.hex(), len(code) if language else None
        described = {"script_hash": text, "type": kinds[language], "serialised_size": size}
        assert ask(frost, f"/scripts/{text}") == described
        assert ask(frost, f"/scripts/{text}/cbor") == {"cbor": code.hex() if language else None}
        assert (ask(frost, f"/scripts/{text}/json")["json"] is None) == bool(language)
        wanted = [utxo(coin) for coin in unspent(lambda coin, digest=digest: coin.output.script_ref_hash == digest)]  # type: ignore[misc]
        for each in wanted:
            del each["tx_index"]
        assert ask(frost, f"/scripts/{text}/utxos") == wanted


def test_datums(frost: Api) -> None:
    inline = [coin for coin in coins().values() if coin.output.inline_datum is not None]
    assert inline
    for coin in inline:
        digest, datum = datum_of(coin), coin.output.inline_datum
        assert digest is not None and datum is not None
        assert ask(frost, f"/scripts/datum/{digest.hex()}/cbor") == {"cbor": datum.hex()}
        assert ask(frost, f"/scripts/datum/{digest.hex()}")["json_value"]


def test_blocks(frost: Api) -> None:
    at, tip = blocks()[30], blocks()[-1]
    found = ask(frost, f"/blocks/{at.hash.hex()}")
    assert found == ask(frost, f"/blocks/{at.height}") == ask(frost, f"/blocks/slot/{at.slot}")
    assert ask(frost, "/blocks/latest") == ask(frost, f"/blocks/{tip.hash.hex()}")
    names = ("height", "slot", "epoch", "time", "size")
    assert [found[name] for name in names] == [getattr(at, name) for name in names]
    assert (found["hash"], found["tx_count"]) == (at.hash.hex(), len(at.txs))
    assert at.issuer is not None and at.issuer.vkey is not None and at.issuer.op_cert is not None
    pool = blake2b(at.issuer.vkey, digest_size=28).digest()
    assert found["slot_leader"] == bech32.encode("pool", *bech32.symbols(pool))
    assert found["block_vrf"].startswith("vrf_vk1") and found["op_cert"] == at.issuer.op_cert.hex()
    assert found["op_cert_counter"] == str(at.issuer.op_cert_counter)
    assert found["epoch_slot"] == (at.slot or 0) % 86_400 and found["confirmations"] == tip.height - at.height
    assert (found["previous_block"], found["next_block"]) == (blocks()[29].hash.hex(), blocks()[31].hash.hex())
    assert found["fees"] == str(sum(tx.fee or 0 for tx in at.txs))
    assert found["output"] == str(sum(output.value for tx in at.txs if tx.valid for output in tx.outputs))
    assert ask(frost, f"/blocks/{at.height}/txs") == [tx.txid.hex() for tx in at.txs]
    for path, heights in (("next?count=2", [1, 2]), ("previous?count=2&page=2", [-4, -3])):
        listed = ask(frost, f"/blocks/{at.height}/{path}")
        assert [each["height"] for each in listed] == [at.height + n for n in heights]
    ask(frost, f"/blocks/{'00' * 32}", 404, NOT_FOUND)
    ask(frost, f"/blocks/{tip.height + 1}", 404, NOT_FOUND)


def test_transactions(frost: Api) -> None:
    deposits = set[str]()
    for block in blocks()[:20]:
        for place, tx in enumerate(block.txs):
            found = ask(frost, f"/txs/{tx.txid.hex()}")
            assert (found["index"], found["fees"], found["size"]) == (place, str(tx.fee), tx.size)
            assert (found["block"], found["block_time"]) == (block.hash.hex(), block.time)
            both = ask(frost, f"/txs/{tx.txid.hex()}/utxos")
            spent = tx.inputs if tx.valid else tx.collateral
            assert [(each["tx_hash"], each["output_index"]) for each in both["inputs"]] == [
                (txid.hex(), index) for txid, index in spent
            ]
            made = [coin for coin in coins().values() if coin.txid == tx.txid]
            assert len(both["outputs"]) == len(made)
            for each, coin in zip(both["outputs"], made, strict=True):
                assert each["amount"] == amount(coin) and each["output_index"] == coin.number
                assert each["consumed_by_tx"] == (coin.spend.txid.hex() if coin.spend else None)
            assert found["utxo_count"] == len(spent) + len(made)
            assert found["output_amount"][0]["quantity"] == str(sum(coin.output.value for coin in made))
            named = {name: found.get(name, tx.details and tx.details.withdrawn) for name in Details.__struct_fields__}
            assert msgspec.convert(named, Details, strict=False) == tx.details
            left = sum(coins()[each].output.value for each in spent) + named["withdrawn"] - (tx.fee or 0)
            left -= sum(coin.output.value for coin in made)
            assert found["deposit"] == (str(left) if tx.valid else "0")
            deposits.add(found["deposit"])
    assert {"0", "2000000"} <= deposits
    ask(frost, f"/txs/{blocks()[3].hash.hex()}/cbor", 404, NOT_FOUND)
    seeded = some(lambda coin: not coin.block.height)
    genesis = ask(frost, f"/txs/{seeded.txid.hex()}")
    assert (genesis["block_time"], genesis["fees"], genesis["size"]) == (1666656000, "0", 0)


def test_the_network(frost: Api) -> None:
    assert ask(frost, "/genesis") == {
        "active_slots_coefficient": 0.05,
        "update_quorum": 5,
        "max_lovelace_supply": "45000000000000000",
        "network_magic": 2,
        "epoch_length": 86400,
        "system_start": 1666656000,
        "slots_per_kes_period": 129600,
        "slot_length": 1,
        "max_kes_evolutions": 62,
        "security_param": 432,
    }
    tip, epoch = blocks()[-1], ask(frost, "/epochs/latest")
    assert tip.epoch is not None and tip.time is not None
    own = [block for block in blocks() if block.epoch == tip.epoch]
    assert epoch["epoch"] == tip.epoch and epoch["end_time"] - epoch["start_time"] == 86_400
    assert epoch["start_time"] <= tip.time < epoch["end_time"] and epoch["last_block_time"] == tip.time
    assert (epoch["block_count"], epoch["tx_count"]) == (len(own), sum(len(block.txs) for block in own))
    made = [coin for coin in coins().values() if coin.block.epoch == tip.epoch]
    assert epoch["output"] == str(sum(coin.output.value for coin in made))
    assert epoch["fees"] == str(sum(tx.fee or 0 for block in own for tx in block.txs))
    assert ask(frost, "/health") == {"is_healthy": True} and ask(frost, "/health/clock")["server_time"] > 1e12
    assert set(ask(frost, "/")) == {"url", "version"}


def test_parameters_are_requested_once_an_epoch(frost: Api, upstream: Node) -> None:
    found = [ask(frost, "/epochs/latest/parameters") for _ in range(3)]
    assert found[0] == found[1] == found[2] == json.loads(json.dumps(parameters(PARAMETERS, blocks()[-1].epoch or 0)))
    assert upstream.methods().count("queryLedgerState/protocolParameters") == 1
    one = found[0]
    assert len(one) == 56 and (one["min_fee_a"], one["min_fee_b"], one["price_mem"]) == (44, 155381, 0.0577)
    assert one["coins_per_utxo_size"] == one["coins_per_utxo_word"] == "4310"
    assert [*one["cost_models"]["PlutusV2"].values()] == one["cost_models_raw"]["PlutusV2"]
    assert [*one["cost_models"]["PlutusV3"]] == sorted(one["cost_models"]["PlutusV3"])


def test_the_eras_of_the_node(frost: Api, upstream: Node) -> None:
    byron, conway = ask(frost, "/network/eras")
    assert byron == {
        "start": {"time": 0, "slot": 0, "epoch": 0},
        "end": {"time": 86_400, "slot": 4_320, "epoch": 1},
        "parameters": {"epoch_length": 4_320, "slot_length": 20.0, "safe_zone": 864},
    }
    assert (conway["start"], conway["parameters"]["slot_length"]) == (byron["end"], 1.0)
    end, safe = conway["end"], (blocks()[-1].slot or 0) + 1 + 25_920
    assert (end["slot"] - 4_320) % 86_400 == 0 and 0 <= end["slot"] - safe < 86_400
    assert end["epoch"] == 1 + (end["slot"] - 4_320) // 86_400 and end["time"] == 86_400 + end["slot"] - 4_320


@pytest.mark.parametrize(
    ("asset", "name"),  # from CIP 14
    [
        ("7eae28af2208be856f7a119668ae52a49b73725e326dc16579dcc373", "asset1rjklcrnsdzqp65wjgrg55sy9723kw09mlgvlc3"),
        (
            "1e349c9bdea19fd6c147626a5260bc44b71635f398b67c59881df209504154415445",
            "asset1hv4p5tv2a837mzqrst04d0dcptdjmluqvdx9k3",
        ),
    ],
)
def test_fingerprints(asset: str, name: str) -> None:
    raw = bytes.fromhex(asset)
    assert fingerprint(raw[:28], raw[28:]) == name


def test_an_account(frost: Api, upstream: Node) -> None:
    stake = busiest(lambda coin: stake_credential(coin.output.address))
    text = bech32.encode("stake_test", *bech32.symbols(b"\xe0" + stake))
    ask(frost, f"/accounts/{text}", 404, NOT_FOUND)
    upstream.accounts = {stake.hex(): {"delegate": {"id": "pool1x"}, "rewards": {"ada": {"lovelace": 7}}}}
    value = sum(coin.output.value for coin in unspent(lambda coin: stake_credential(coin.output.address) == stake))
    found = ask(frost, f"/accounts/{text}")
    assert (found["pool_id"], found["withdrawable_amount"]) == ("pool1x", "7")
    assert found["controlled_amount"] == str(value + 7)


def signed(coin: Coin, to: bytes, fee: int = 200_000) -> bytes:
    """Return a transaction that spends an output; its witnesses are not checked here."""
    body = {0: [[coin.txid, coin.number]], 1: [{0: to, 1: coin.output.value - fee}], 2: fee}
    return cbor2.dumps([body, {}, True, None])


def post(api: Api, path: str, body: bytes | str, status: int = 200) -> Any:
    transport = httpx.HTTPTransport(uds=str(api.daemon.folder / "http"))
    with httpx.Client(transport=transport, base_url="http://localhost", timeout=30) as client:
        answer = client.post(f"{ROOT}{path}", content=body, headers={"content-type": "application/cbor"})
    assert answer.status_code == status, answer.text
    return answer.json()


def test_submitting(frost: Api, upstream: Node) -> None:
    coin, to = some(lambda coin: not coin.spend and coin.block.height), b"\x60" + bytes(27) + b"\x01"
    raw = signed(coin, to)
    txid = read_transaction(raw).txid.hex()
    assert post(frost, "/tx/submit", raw) == txid and upstream.taken == {txid: raw}
    assert {"tx_hash": txid} in ask(frost, "/mempool")
    waiting = ask(frost, f"/mempool/{txid}")
    assert waiting["tx"]["fees"] == "200000" and waiting["outputs"][0]["address"] == CODEC.write(to)
    assert waiting["inputs"][0]["address"] == CODEC.write(coin.output.address)
    for address in (to, coin.output.address):
        assert ask(frost, f"/mempool/addresses/{CODEC.write(address)}") == [{"tx_hash": txid}]
    ask(frost, f"/mempool/{'00' * 32}", 404, NOT_FOUND)
    ask(frost, f"/txs/{txid}/cbor", 404, NOT_FOUND)  # clients take it for confirmed
    tip = blocks()[-1]
    block = replace(tip, height=tip.height + 1, slot=(tip.slot or 0) + 20, hash=b"\x01" * 32, prev_hash=tip.hash)
    feed(frost, replace(block, txs=[read_transaction(raw)]))
    assert ask(frost, f"/txs/{txid}/cbor") == {"cbor": raw.hex()}
    assert ask(frost, f"/txs/{txid}")["block_height"] == tip.height + 1
    assert ask(frost, "/mempool") == []
    feed(frost, Rollback(to=RollbackPoint(hash=tip.hash)))
    assert ask(frost, "/mempool") == [{"tx_hash": txid}]
    ask(frost, f"/txs/{txid}/cbor", 404, NOT_FOUND)
    upstream.refuses = {"code": 3117, "message": "Unknown inputs.", "data": {"unknownOutputReferences": []}}
    try:
        refused = post(frost, "/tx/submit", signed(coin, to, 1).hex(), 400)
        assert refused["message"] == 'Unknown inputs. {"unknownOutputReferences":[]}'
    finally:
        upstream.refuses = None
    for body in (b"\x80", b"", b"\x84\xa0"):
        post(frost, "/tx/submit", body, 400)


def test_evaluating(frost: Api, upstream: Node) -> None:
    wanted = {"spend:0": {"memory": 1700, "steps": 476468}, "withdrawal:1": {"memory": 5, "steps": 7}}
    found = post(frost, "/utils/txs/evaluate", "84a0")
    assert found["result"] == {"EvaluationResult": wanted} and found["type"] == "jsonwsp/response"
    assert post(frost, "/utils/txs/evaluate?version=6", "84a0")["result"] == EVALUATED
    output = [
        {"txId": "00" * 32, "index": 1},
        {"address": "addr_test1x", "value": {"coins": 5, "assets": {f"{'00' * 28}.ff": 1}}, "datumHash": "11" * 32},
    ]
    requests = json.dumps({"cbor": "84a0", "additionalUtxoSet": [output]})
    assert post(frost, "/utils/txs/evaluate/utxos", requests)["result"] == {"EvaluationResult": wanted}
    assert upstream.requests[-1]["params"]["additionalUtxo"] == [
        {
            "transaction": {"id": "00" * 32},
            "index": 1,
            "address": "addr_test1x",
            "value": {"ada": {"lovelace": 5}, "00" * 28: {"ff": 1}},
            "datumHash": "11" * 32,
        }
    ]
    for body in ("x", "[]", '{"cbor": 1}', '{"cbor": "84a0", "additionalUtxoSet": [1]}'):
        post(frost, "/utils/txs/evaluate/utxos", body, 400)
    upstream.refuses = {"code": 3010, "message": "Some scripts failed.", "data": [{"validator": "spend:0"}]}
    try:
        failed = post(frost, "/utils/txs/evaluate", "84a0")["result"]
        assert failed == {"EvaluationFailure": {"ScriptFailures": [{"validator": "spend:0"}]}}
    finally:
        upstream.refuses = None


def test_without_a_node(tmp_path: Path) -> None:
    port, listen = own_listener()
    file = tmp_path / "parameters.json"
    file.write_text(json.dumps({"result": PARAMETERS}))
    http = {"token": "secret"}
    tables: dict[str, Any] = {
        "blockfrost": {"listen": listen},
        "http": http,
        "upstream": {"protocol_parameters": str(file)},
    }
    with short_folder() as folder, served(folder, before(), *blocks()[:3], **tables), Web(port) as web:
        token = {"project_id": "secret"}
        assert web.ask("/api/v0/epochs/latest/parameters", **token).json()["min_fee_a"] == 44
        refused = web.ask("/api/v0/blocks/latest")
        assert refused.json() == {"status_code": 403, "error": "Forbidden", "message": "Invalid project token."}
        away = web.ask("/api/v0/tx/submit", "POST", **token)
        assert away.status_code == 400
        raw = signed(some(lambda coin: True), b"\x60" + bytes(28))
        away = httpx.post(f"{web.url}/api/v0/tx/submit", content=raw, headers=token)
        assert away.status_code == 503 and "upstream.ogmios" in away.json()["message"]


PIECES = st.sampled_from(
    ["addresses", "utxos", "txs", "blocks", "latest", "scripts", "datum", "assets", "policy", "*", ""]
)
TEXTS = st.sampled_from(["00" * 28, "00" * 32, "x", "%00", "é", "stake_test1", "addr_vkh1", "9" * 30, "-1"])


@settings(max_examples=80, deadline=None)
@given(st.lists(PIECES | TEXTS, max_size=4), st.sampled_from(["", "?count=1", "?page=%00", "?order=desc&count=100"]))
def test_random_paths(frost: Api, path: list[str], query: str) -> None:
    answer = frost.ask(f"{ROOT}/{'/'.join(path)}{query}")
    assert answer.status_code in (200, 400, 404), answer.text
    assert answer.status_code == 200 or answer.json()["status_code"] == answer.status_code
