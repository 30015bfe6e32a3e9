"""The HTTP contract, sentence by sentence, against a real daemon that was told a rich story."""

from __future__ import annotations

import json
import re
import socket
from collections.abc import Iterator
from hashlib import blake2b, sha256
from itertools import pairwise
from statistics import median
from threading import Thread
from time import perf_counter
from typing import Any
from urllib.parse import quote

import cbor2
import httpx
import pytest
from daemons import Message, utxod
from questions import TIP, Asked, Web, asked, failure, outpoints, short_folder, timeless
from scenarios import address, at, back_to, block, digest, output, point, tx

from handlers.walk import PLACE

ROUTES = {  # of the contract, with parameters that find something
    "lists": ["/api/v1/addresses/{rich}/utxos", "/api/v1/credentials/{credential}/utxos"],
    "balances": ["/api/v1/addresses/{rich}/balance", "/api/v1/credentials/{credential}/balance"],
    "stakes": ["/api/v1/stakes/{stake}/utxos", "/api/v1/stakes/{stake}/balance"],  # unless their index is kept: 503
    "policies": ["/api/v1/policies/{policy}/utxos"],  # the same
    "hashes": [  # the same
        "/api/v1/datums/{datum}",
        "/api/v1/datums/{datum}/utxos",
        "/api/v1/scripts/{script}/utxos",
    ],
    "touched": ["/api/v1/addresses/{rich}/transactions"],  # the same
    "outputs": ["/api/v1/utxos/{live}", "/api/v1/utxos/{spent}"],
    "deltas": ["/api/v1/blocks/2/delta"],
    "others": [
        "/api/v1/blocks/2",
        "/api/v1/tip",
        "/api/v1/status",
        "/api/v1/events",
        "/api/v1/changes?from=origin",
        "/api/v1/pruner/jobs",
        "/metrics",
        "/openapi.json",
        "/messages.json",
        "/docs",
        "/",
    ],
    "health": ["/health/live"],
}
TRANSACTIONS = ["/api/v1/txs", "/api/v1/txs/{txid}", "/api/v1/txs/{txid}/raw", "/api/v1/txs/{txid}/utxos"]
ABSENT = [
    "/api/v1/mmr/root",
    "/api/v1/mmr/proof/{live}",
]
RECOVERY = [
    "/api/v1/recovery/transactions",
    "/api/v1/recovery/transactions?status=pending",
    "/api/v1/recovery/transactions/{txid}",
]
VECTORS = {  # bech32 and base58 that others wrote, with their bytes (CIP 19, and Byron's mainnet)
    "base": (
        "addr1qx2fxv2umyhttkxyxp8x0dlpdt3k6cwng5pxj3jhsydzer3n0d3vllmyqwsx5wktcd8cc3sq835lu7drv2xwl2wywfgse35a3x",
        "019493315cd92eb5d8c4304e67b7e16ae36d61d34502694657811a2c8e337b62cfff6403a06a3acbc34f8c46003c69fe79a3628cefa9c47251",
    ),
    "pointer": (
        "addr1gx2fxv2umyhttkxyxp8x0dlpdt3k6cwng5pxj3jhsydzer5pnz75xxcrzqf96k",
        "419493315cd92eb5d8c4304e67b7e16ae36d61d34502694657811a2c8e8198bd431b03",
    ),
    "script": (
        "addr1z8phkx6acpnf78fuvxn0mkew3l0fd058hzquvz7w36x4gten0d3vllmyqwsx5wktcd8cc3sq835lu7drv2xwl2wywfgs9yc0hh",
        "11c37b1b5dc0669f1d3c61a6fddb2e8fde96be87b881c60bce8e8d542f337b62cfff6403a06a3acbc34f8c46003c69fe79a3628cefa9c47251",
    ),
    "byron": (
        "Ae2tdPwUPEZLs4HtbuNey7tK4hTKrwNwYtGqp7bDfCy2WdR3P6735W5Yfpe",
        "82d818582183581cf11939f42338d59e21baa08645ac1f0038d5ee969f99fe98f402fe79a0001ac9d64e5b",
    ),
}
STAKE = "stake1uyehkck0lajq8gr28t9uxnuvgcqrc6070x3k9r8048z8y5gh6ffgw"  # of the base address, as CIP 19 has it
PAYMENT = "9493315cd92eb5d8c4304e67b7e16ae36d61d34502694657811a2c8e"
DELEGATED = "337b62cfff6403a06a3acbc34f8c46003c69fe79a3628cefa9c47251"
POLICY = "ab" * 28
HUGE = 9_223_371_692_031_396_353
MOST = (1 << 64) - 1
FIELDS = [
    "tx_hash",
    "output_index",
    "owner_addr",
    "owner_stake_addr",
    "owner_payment_credential",
    "owner_stake_credential",
    "lovelace_amount",
    "amounts",
    "data_hash",
    "inline_datum",
    "script_ref",
    "reference_script_hash",
    "is_collateral_return",
    "slot",
    "block",
    "block_hash",
    "epoch",
    "block_time",
]
SPENT_FIELDS = [
    "spent_tx_hash",
    "spent_at_slot",
    "spent_at_block",
    "spent_at_block_hash",
    "spent_block_time",
    "spent_epoch",
]


def to(name: str, value: int = 1, **fields: Any) -> Message:
    """Return an output to one of the addresses above."""
    return {"address": bytes.fromhex(VECTORS[name][1]), "value": value} | fields


GENESIS: Message = {
    "type": "GenesisOutputs",
    "outputs": [{"txid": digest("genesis"), "index": 7, "output": to("byron", 1_000)}],
}
ASSETS = [[bytes.fromhex(POLICY), b"gold", HUGE], [bytes.fromhex(POLICY), b"", 1], [bytes(28), b"\xff" * 32, 5]]
DATUM = bytes.fromhex("d87980")
DATUM_HASH = "923918e403bf43c34b4ef6b48eb2ee04babed17320d8d1b9ff9ad086e86f44ec"  # the well-known one of Constr 0 []
SCRIPTS = {  # script references that come without their hash
    "82014e4d01000033222220051200120011": "67f33146617a5e61936081db3b2117cbf59bd2123748f58ac9678656",
    "d8185182014e4d01000033222220051200120011": "67f33146617a5e61936081db3b2117cbf59bd2123748f58ac9678656",
    "82008201838200581c3c07030e36bfffe67e2e2ec09e5293d384637cd2f004356ef320f3fe8204186482051896": (
        "7f287c9b596851bd9394fc84625c2876073de7b19512390e54d64b50"
    ),
    "0102": None,
}
FIRST = block(
    None,
    tx("bare", to("base", 2_000_000), to("base", MOST), to("pointer", 3), to("script", 4), to("byron", 5)),
    tx("assets", to("base", 6, assets=ASSETS)),
    tx("datum", to("base", 7, inline_datum=DATUM), to("base", 8, datum_hash=digest("datum"))),
    tx("empty datum", to("base", 9, inline_datum=b"")),
    tx("script", to("base", 10, script_ref=b"\x82\x01\x41\x00", script_ref_hash=digest("script", size=28))),
    tx("pledge", output("pledge", 11)),
    tx("scripts", *(output("scripts", script_ref=bytes.fromhex(script)) for script in SCRIPTS)),
    time=1_700_000_000,
    epoch=450,
)
SECOND = block(
    FIRST,
    tx("failed", output("never", 1), valid=False, collateral=[at("pledge")], collateral_return=to("base", 12)),
    tx("pay", output("paid", 13), spends=[at("bare", 2), at("bare", 3)]),
    slot=60,
)
HERE = {
    "rich": VECTORS["base"][0],
    "credential": PAYMENT,
    "stake": STAKE,
    "policy": POLICY,
    "datum": DATUM_HASH,
    "script": digest("script", size=28).hex(),
    "live": f"{digest('tx', 'bare').hex()}/0",
    "spent": f"{digest('tx', 'bare').hex()}/2",
    "txid": digest("tx", "bare").hex(),
}


@pytest.fixture(scope="module")
def told() -> Iterator[Asked]:
    """A daemon that was told the story."""
    with short_folder() as folder, asked(folder) as asking:
        asking.feed(GENESIS, FIRST, SECOND)
        yield asking


def utxo_path(name: object, index: int = 0) -> str:
    return f"/api/v1/utxos/{digest('tx', name).hex()}/{index}"


def lovelace(value: int) -> Message:
    return {"unit": "lovelace", "policy_id": None, "asset_name": None, "quantity": str(value)}


# --- Utxo ----------------------------------------------------------------------------------------------------------


def expected_bare(**fields: Any) -> Message:
    """Return the whole answer for the first output of `bare`, in the order of the contract."""
    return {
        "tx_hash": digest("tx", "bare").hex(),
        "output_index": 0,
        "owner_addr": VECTORS["base"][0],
        "owner_stake_addr": STAKE,
        "owner_payment_credential": PAYMENT,
        "owner_stake_credential": DELEGATED,
        "lovelace_amount": 2_000_000,
        "amounts": [lovelace(2_000_000)],
        "data_hash": None,
        "inline_datum": None,
        "script_ref": None,
        "reference_script_hash": None,
        "is_collateral_return": False,
        "slot": 20,
        "block": 1,
        "block_hash": FIRST["hash"].hex(),
        "epoch": 450,
        "block_time": 1_700_000_000,
    } | fields


def test_an_output_field_by_field(told: Asked) -> None:
    found = told.get(utxo_path("bare"))
    assert found == expected_bare()
    assert list(found) == FIELDS


def test_the_largest_value_is_exact(told: Asked) -> None:
    answer = told.ask(utxo_path("bare", 1))
    assert f'"lovelace_amount":{MOST},' in answer.text
    assert json.loads(answer.text)["amounts"] == [lovelace(MOST)]


def test_what_an_address_says_of_its_owners(told: Asked) -> None:
    pointer, script, byron = (told.get(utxo_path("bare", index)) for index in (2, 3, 4))
    assert pointer["owner_addr"] == VECTORS["pointer"][0]
    assert (pointer["owner_stake_addr"], pointer["owner_stake_credential"]) == (None, None)
    assert pointer["owner_payment_credential"] == PAYMENT
    assert script["owner_addr"] == VECTORS["script"][0]
    assert (script["owner_stake_addr"], script["owner_stake_credential"]) == (STAKE, DELEGATED)
    assert byron["owner_addr"] == VECTORS["byron"][0]
    assert {byron[name] for name in FIELDS if name.startswith("owner_") and name != "owner_addr"} == {None}


def test_amounts_have_the_base_unit_first_and_quantities_as_strings(told: Asked) -> None:
    assert told.get(utxo_path("assets"))["amounts"] == [
        lovelace(6),
        {"unit": f"{POLICY}676f6c64", "policy_id": POLICY, "asset_name": "676f6c64", "quantity": str(HUGE)},
        {"unit": POLICY, "policy_id": POLICY, "asset_name": "", "quantity": "1"},
        {"unit": "00" * 28 + "ff" * 32, "policy_id": "00" * 28, "asset_name": "ff" * 32, "quantity": "5"},
    ]


def test_the_hash_of_an_inline_datum_is_derived(told: Asked) -> None:
    inline, hashed, empty = (
        told.get(utxo_path("datum")),
        told.get(utxo_path("datum", 1)),
        told.get(utxo_path("empty datum")),
    )
    assert (inline["data_hash"], inline["inline_datum"]) == (DATUM_HASH, DATUM.hex())
    assert (hashed["data_hash"], hashed["inline_datum"]) == (digest("datum").hex(), None)
    assert (empty["data_hash"], empty["inline_datum"]) == (blake2b(b"", digest_size=32).hexdigest(), "")


def test_a_script_and_its_hash(told: Asked) -> None:
    found = told.get(utxo_path("script"))
    assert (found["script_ref"], found["reference_script_hash"]) == ("82014100", digest("script", size=28).hex())


def test_the_hash_of_a_script_is_derived(told: Asked) -> None:
    for index, (script, its_hash) in enumerate(SCRIPTS.items()):
        found = told.get(utxo_path("scripts", index))
        assert (found["script_ref"], found["reference_script_hash"]) == (script, its_hash)
        record = cbor2.loads(cbor_of(told, utxo_path("scripts", index)))
        assert (record[5].hex(), record.get(6)) == (script, its_hash and bytes.fromhex(its_hash))


def test_a_collateral_return(told: Asked) -> None:
    """It has the index after the outputs that its transaction would have had; they are not there."""
    found = told.get(utxo_path("failed", 1))
    assert found["is_collateral_return"] is True
    assert (found["slot"], found["block"], found["block_time"], found["epoch"]) == (60, 2, None, None)
    failure(told.ask(utxo_path("failed", 0)), 404, "unknown_output")


def test_a_genesis_output_has_height_and_slot_0(told: Asked) -> None:
    found = told.get(f"/api/v1/utxos/{digest('genesis').hex()}/7")
    assert (found["slot"], found["block"], found["block_hash"], found["block_time"]) == (0, 0, "00" * 32, None)


def test_a_spent_output_says_what_spent_it(told: Asked) -> None:
    found = told.get(utxo_path("bare", 2))
    assert list(found) == FIELDS + SPENT_FIELDS
    assert {name: found[name] for name in SPENT_FIELDS} == {
        "spent_tx_hash": digest("tx", "pay").hex(),
        "spent_at_slot": 60,
        "spent_at_block": 2,
        "spent_at_block_hash": SECOND["hash"].hex(),
        "spent_block_time": None,
        "spent_epoch": None,
    }
    pledge = told.get(utxo_path("pledge"))
    assert pledge["spent_tx_hash"] == digest("tx", "failed").hex()
    live = told.get("/api/v1/addresses/" + VECTORS["pointer"][0] + "/utxos")
    assert live == []


def test_a_list_has_the_same_objects_in_chain_order(told: Asked) -> None:
    answer = told.ask(f"/api/v1/addresses/{VECTORS['base'][0]}/utxos")
    names = [
        ("bare", 0),
        ("bare", 1),
        ("assets", 0),
        ("datum", 0),
        ("datum", 1),
        ("empty datum", 0),
        ("script", 0),
        ("failed", 1),
    ]
    singly = [told.ask(utxo_path(*name)).text for name in names]
    assert answer.text == f"[{','.join(singly)}]"


def test_a_network_of_bitcoin_that_is_not_known() -> None:
    """Its addresses are hex, and the log says so, once."""
    script = bytes.fromhex("76a91462e907b15cbf27d5425399ebf6f0fb50ebb88f1888ac")
    told = {"chain": {"family": "bitcoin", "network": "private"}, "http": {"workers": 2}}
    with short_folder() as folder, asked(folder, **told) as asking:
        asking.feed(block(None, tx("a", {"address": script, "value": 5})))
        [found] = asking.get(f"/api/v1/addresses/{script.hex()}/utxos")
        assert (found["owner_addr"], found["amounts"][0]["unit"]) == (script.hex(), "satoshi")
        text = "/api/v1/addresses/1A1zP1eP5QGefi2DMPTfTL5SLmv7DivfNa/utxos"
        failure(asking.ask(text), 400, "bad_address", "bitcoin has no network 'private'")
        warned = [line for line in asking.daemon.log_lines() if line["event"] == "addresses_as_hex"]
        assert [line["level"] for line in warned] == ["warning"]


def test_bitcoin_counts_in_satoshi() -> None:
    """A locking script that has an address, and one that has none."""
    key_hash = bytes.fromhex("76a91462e907b15cbf27d5425399ebf6f0fb50ebb88f1888ac")  # of the first block's coinbase
    told = {"chain": {"family": "bitcoin", "network": "mainnet"}}
    paid = tx(
        "coinbase", {"address": key_hash, "value": 5_000_000_000}, {"address": b"\x51", "value": 1}, coinbase=True
    )
    with short_folder() as folder, asked(folder, **told) as asking:
        asking.feed(block(None, paid, time=1_231_006_505))
        [found] = asking.get("/api/v1/addresses/1A1zP1eP5QGefi2DMPTfTL5SLmv7DivfNa/utxos")
        assert found["owner_addr"] == "1A1zP1eP5QGefi2DMPTfTL5SLmv7DivfNa"
        assert found["amounts"] == [lovelace(5_000_000_000) | {"unit": "satoshi"}]
        assert [found[name] for name in FIELDS if name.startswith("owner_")][1:] == [None, None, None]
        assert asking.get(f"/api/v1/addresses/{key_hash.hex()}/balance")["amounts"][0]["unit"] == "satoshi"
        assert [each["owner_addr"] for each in asking.get("/api/v1/addresses/51/utxos")] == ["51"]
        failure(asking.ask(f"/api/v1/credentials/{PAYMENT}/utxos"), 400, "bad_parameter", "credential")
        assert asking.get("/api/v1/status")["utxo"]["indexes"] == ["address_hash"]


# --- addresses, credentials, balances ------------------------------------------------------------------------------


@pytest.mark.parametrize("name", VECTORS)
def test_an_address_in_each_of_its_forms(told: Asked, name: str) -> None:
    text, raw = VECTORS[name]
    forms = {text, raw, raw.upper()} | ({text.upper()} if name != "byron" else set())
    answers = {told.ask(f"/api/v1/addresses/{form}/utxos").text for form in forms}
    assert len(answers) == 1


@pytest.mark.parametrize(
    "text",
    [
        "addr1",
        VECTORS["base"][0][:-1],
        VECTORS["base"][0][:-1] + "q",
        VECTORS["byron"][0][:-1],
        "addr_test1qz2fxv2umyhttkxyxp8x0dlpdt3k6cwng5pxj3jhsydzer3n0d3vllmyqwsx5wktcd8cc3sq835lu7drv2xwl2wywfgs68faae",
        STAKE,
        "abc",
        "zz",
        "1A1zP1eP5QGefi2DMPTfTL5SLmv7DivfNa",
        quote("ё"),
        "%20",
        "a" * 20_000 + "g",
    ],
)
@pytest.mark.parametrize("what", ["utxos", "balance"])
def test_what_is_no_address_is_refused(told: Asked, text: str, what: str) -> None:
    answer = told.ask(f"/api/v1/addresses/{text}/{what}")
    failure(answer, 400, "bad_address", "address")
    assert "hex of the raw bytes" in answer.json()["hint"]


def test_an_address_that_nobody_uses_has_nothing(told: Asked) -> None:
    unused = address("nobody").hex()
    assert told.get(f"/api/v1/addresses/{unused}/utxos") == []
    assert told.get(f"/api/v1/addresses/{unused}/balance") == {
        "lovelace_amount": 0,
        "amounts": [lovelace(0)],
        "utxo_count": 0,
    }


def test_the_balance_of_an_address(told: Asked) -> None:
    whole = 2_000_000 + MOST + 6 + 7 + 8 + 9 + 10 + 12
    answer = told.ask(f"/api/v1/addresses/{VECTORS['base'][0]}/balance")
    assert f'"lovelace_amount":{whole},' in answer.text  # beyond 64 bits, and exact
    found = answer.json()
    assert list(found) == ["lovelace_amount", "amounts", "utxo_count"]
    assert found["utxo_count"] == 8
    assert found["amounts"][0] == lovelace(whole)
    assert {each["unit"]: each["quantity"] for each in found["amounts"][1:]} == {
        POLICY: "1",
        f"{POLICY}676f6c64": str(HUGE),
        "00" * 28 + "ff" * 32: "5",
    }


def test_a_payment_credential_finds_every_address_that_has_it(told: Asked) -> None:
    by_credential = told.get(f"/api/v1/credentials/{PAYMENT}/utxos")
    assert by_credential == told.get(f"/api/v1/addresses/{VECTORS['base'][0]}/utxos")  # the pointer's are spent
    assert told.get(f"/api/v1/credentials/{PAYMENT}/balance") == told.get(
        f"/api/v1/addresses/{VECTORS['base'][0]}/balance"
    )
    assert told.get(f"/api/v1/credentials/{DELEGATED}/utxos") == []
    assert told.get(f"/api/v1/credentials/{PAYMENT.upper()}/utxos") == by_credential
    paid = digest("credential", "paid", size=28).hex()
    assert outpoints(told.get(f"/api/v1/credentials/{paid}/utxos")) == [(digest("tx", "pay").hex(), 0)]


@pytest.mark.parametrize("text", [PAYMENT[:-2], PAYMENT + "00", PAYMENT[:-1] + "g", "0x" + PAYMENT[2:], STAKE])
@pytest.mark.parametrize("what", ["utxos", "balance"])
def test_what_is_no_credential_is_refused(told: Asked, text: str, what: str) -> None:
    failure(told.ask(f"/api/v1/credentials/{text}/{what}"), 400, "bad_parameter", "credential")


# --- single outputs ------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("path", "named"),
    [
        ("ab/0", "tx_hash"),
        (f"{'g' * 64}/0", "tx_hash"),
        (f"{'ab' * 33}/0", "tx_hash"),
        (f"{'ab%20' * 21}a/0", "tx_hash"),
        (f"{'ab' * 32}/x", "index"),
        (f"{'ab' * 32}/-1", "index"),
        (f"{'ab' * 32}/1.0", "index"),
        (f"{'ab' * 32}/4294967296", "index"),
        (f"{'ab' * 32}/{'9' * 5000}", "index"),
        (f"{'ab' * 32}/{quote('٣')}", "index"),
    ],
)
def test_what_is_no_outpoint_is_refused(told: Asked, path: str, named: str) -> None:
    failure(told.ask(f"/api/v1/utxos/{path}"), 400, "bad_parameter", named)


@pytest.mark.parametrize("path", [f"{'ab' * 32}/0", f"{HERE['txid']}/5", f"{HERE['txid']}/4294967295"])
def test_an_output_that_is_not_there(told: Asked, path: str) -> None:
    failure(told.ask(f"/api/v1/utxos/{path}"), 404, "unknown_output", path.replace("/", "#"))


def test_a_transaction_id_of_either_case(told: Asked) -> None:
    assert told.get(f"/api/v1/utxos/{HERE['txid'].upper()}/0") == expected_bare()


def test_spent_outputs_are_told_of_while_they_are_kept() -> None:
    story = [block(None, tx("a", output("ann", 5), output("bob", 6)))]
    story.append(block(story[-1], tx("b", spends=[at("a")]), time=77, epoch=3))
    for _ in range(5):
        story.append(block(story[-1]))
    utxo = {"prune_depth": 1, "rollback_window": 3, "delta": {"self_contained": True}}  # the longer one counts
    with short_folder() as folder, asked(folder, utxo=utxo) as asking:
        asking.feed(*story[:4])
        found = asking.get(utxo_path("a"))
        assert (found["spent_block_time"], found["spent_epoch"], found["spent_at_block"]) == (77, 3, 2)
        asking.feed(*story[4:])
        asking.web.until(utxo_path("a"), 404)
        failure(asking.ask(utxo_path("a")), 404, "unknown_output")
        assert "spent_tx_hash" not in asking.get(utxo_path("a", 1))


# --- tip and status ------------------------------------------------------------------------------------------------


def test_the_tip(told: Asked) -> None:
    assert told.get("/api/v1/tip") == point(SECOND)


def test_the_status(told: Asked) -> None:
    status = told.get("/api/v1/status")
    assert (status["tip"], status["protocol"]) == (point(SECOND), 1)
    assert (status["chain"]["family"], status["chain"]["network"]) == ("cardano", "mainnet")
    utxo = status["utxo"]
    assert (utxo["enabled"], utxo["store"], utxo["blocks_applied"]) == (True, "classic", 2)
    assert utxo["unspent"] == 1 + 15 - 3 + 2 - 0
    assert (utxo["prune_depth"], utxo["rollback_window"], utxo["rollback_floor"]) == (2160, 4320, None)
    assert utxo["indexes"] == ["address_hash", "payment_credential"]
    assert utxo["rows"]["history_block"] == 3 and utxo["rows"]["history_output"] >= 1
    assert status["storage"]["bytes_used"] > 0


def every_path(*kinds: str) -> list[str]:
    return [path.format(**HERE) for kind in kinds for path in ROUTES[kind]]


@pytest.mark.parametrize(
    "path", [*every_path("lists", "balances", "outputs", "deltas", "others", "health"), "/health/ready"]
)
def test_every_answer_says_which_block_it_is_of(told: Asked, path: str) -> None:
    answer = told.ask(path)
    assert [answer.headers[name] for name in TIP] == ["2", "60", SECOND["hash"].hex()]
    assert re.fullmatch(rf'(W/)?"{SECOND["hash"].hex()}(-[0-9a-z]+)*"', answer.headers["etag"])


@pytest.mark.parametrize(
    "path",
    [*every_path("lists", "balances", "outputs", "deltas"), "/api/v1/tip", "/docs", "/openapi.json", "/messages.json"],
)
def test_what_the_client_has_is_not_sent_again(told: Asked, path: str) -> None:
    answer = told.ask(path)
    etag = answer.headers["etag"]
    for said in (etag, f"W/{etag}", f'"other", {etag}', "*"):
        same = told.ask(path, **{"If-None-Match": said})
        assert (same.status_code, same.content, same.headers["etag"]) == (304, b"", etag), said
        assert [same.headers[name] for name in TIP] == ["2", "60", SECOND["hash"].hex()]
    for said in ('"other"', etag.strip('"'), etag.replace('"', '"x', 1)):
        assert told.ask(path, **{"If-None-Match": said}).content == answer.content


@pytest.mark.parametrize("path", ["/api/v1/status", "/api/v1/events", "/metrics", "/health/live"])
def test_the_tag_of_what_changes_by_itself_is_of_its_content(told: Asked, path: str) -> None:
    """They change between two questions, or not: the tag says so. That of the status leaves out its clock."""
    answers = [told.ask(path) for _ in range(20)]
    for one, other in pairwise(answers):
        same = timeless(one.content) == timeless(other.content)
        assert (one.headers["etag"] == other.headers["etag"]) == same


def test_tags_differ_by_form_and_change_with_the_tip() -> None:
    paths = [*every_path("lists", "balances"), utxo_path("bare"), "/api/v1/tip", "/api/v1/status", "/docs"]
    other = block(FIRST, branch="other")
    with short_folder() as folder, asked(folder) as asking:
        seen: dict[str, set[str]] = {path: set() for path in paths}
        for message in (FIRST, SECOND, back_to(FIRST), other, block(other)):
            asking.feed(message)
            for path in paths:
                seen[path].add(asking.ask(path).headers["etag"])
    assert {path: len(tags) for path, tags in seen.items() if path != "/api/v1/status"} == {
        path: 4 for path in paths if path != "/api/v1/status"
    }
    assert len(seen["/api/v1/status"]) >= 4


def test_a_bad_question_is_refused_though_the_tag_is_known(told: Asked) -> None:
    path = every_path("lists")[0]
    known = {"If-None-Match": told.ask(path).headers["etag"]}
    failure(told.ask(path + "?cursor=nonsense", **known), 400, "bad_parameter", "cursor")
    failure(told.ask(path + "?count=0", **known), 400, "bad_parameter", "count")
    failure(told.ask("/api/v1/addresses/abc/balance", **known), 400, "bad_address", "address")
    failure(told.ask(f"/api/v1/utxos/{'ab' * 32}/0", **known), 404, "unknown_output")


def test_an_empty_store() -> None:
    with short_folder() as folder, asked(folder) as asking:
        failure(asking.ask("/api/v1/tip"), 404, "no_tip")
        answer = asking.ask(f"/api/v1/addresses/{VECTORS['byron'][0]}/utxos")
        assert answer.json() == []
        assert [answer.headers[name] for name in TIP] == ["origin"] * 3
        assert asking.get("/api/v1/status")["tip"] is None
        asking.feed(GENESIS)  # moves no tip, and is seen
        again = asking.ask(
            f"/api/v1/addresses/{VECTORS['byron'][0]}/utxos", **{"If-None-Match": answer.headers["etag"]}
        )
        assert outpoints(again.json()) == [(digest("genesis").hex(), 7)]


# --- CBOR ----------------------------------------------------------------------------------------------------------


def head(major: int, number: int) -> bytes:
    """Return the shortest head of a CBOR item."""
    for size, info in ((0, 0), (1, 24), (2, 25), (4, 26), (8, 27)):
        if number < (1 << 8 * size if size else 24):
            return bytes((major << 5 | (info or number),)) + (number.to_bytes(size, "big") if size else b"")
    raise AssertionError(number)


def canonical(value: Any) -> bytes:
    """Return canonical CBOR (RFC 7049, 3.9) of what records are made of: an encoder of our own."""
    match value:
        case bool():
            return b"\xf5" if value else b"\xf4"
        case int():
            return head(0, value)
        case bytes():
            return head(2, len(value)) + value
        case str():
            return head(3, len(value.encode())) + value.encode()
        case list():
            return head(4, len(value)) + b"".join(map(canonical, value))
        case dict():
            pairs = sorted(
                ((canonical(key), canonical(item)) for key, item in value.items()), key=lambda p: (len(p[0]), p[0])
            )
            return head(5, len(value)) + b"".join(key + item for key, item in pairs)
    raise AssertionError(value)


def bare_record(**more: Any) -> dict[int, Any]:
    """Return the record of the first output of `bare`, by the keys of the design."""
    return {
        0: bytes.fromhex(VECTORS["base"][1]),
        1: 2_000_000,
        7: False,
        8: 20,
        9: 1,
        10: FIRST["hash"],
        11: 450,
        12: 1_700_000_000,
        13: bytes.fromhex(PAYMENT),
        14: bytes.fromhex(DELEGATED),
        15: bytes.fromhex("e1" + DELEGATED),
    } | {int(key.removeprefix("k")): value for key, value in more.items()}


AS_CBOR = {"Accept": "application/cbor"}


def cbor_of(told: Asked, path: str) -> bytes:
    answer = told.ask(path, **AS_CBOR)
    assert (answer.status_code, answer.headers["content-type"]) == (200, "application/cbor")
    assert "accept" in answer.headers["vary"].lower()
    return answer.content


GOLDEN = (
    "ab005839019493315cd92eb5d8c4304e67b7e16ae36d61d34502694657811a2c8e337b62cfff6403a06a3acbc34f8c46"
    "003c69fe79a3628cefa9c47251011a001e848007f4081409010a58206681bc9cb5dda928d1664cad8fddd1d60a7b3bda"
    "d02fb1a4a54e658436665f270b1901c20c1a6553f1000d581c9493315cd92eb5d8c4304e67b7e16ae36d61d345026946"
    "57811a2c8e0e581c337b62cfff6403a06a3acbc34f8c46003c69fe79a3628cefa9c472510f581de1337b62cfff6403a0"
    "6a3acbc34f8c46003c69fe79a3628cefa9c47251"
)


def test_golden_bytes_of_a_record(told: Asked) -> None:
    """Written down once, to the last byte: whoever reads records relies on them."""
    record = cbor_of(told, utxo_path("bare"))
    assert record.hex() == GOLDEN
    assert record == canonical(bare_record())


def test_records_of_every_kind(told: Asked) -> None:
    assets = [list(asset) for asset in ASSETS]
    assert cbor_of(told, utxo_path("assets")) == canonical(bare_record(k1=6, k2=assets))
    assert cbor_of(told, utxo_path("bare", 1)) == canonical(bare_record(k1=MOST))
    datum = bare_record(k1=7, k3=bytes.fromhex(DATUM_HASH), k4=DATUM)
    assert cbor_of(told, utxo_path("datum")) == canonical(datum)
    script = bare_record(k1=10, k5=b"\x82\x01\x41\x00", k6=digest("script", size=28))
    assert cbor_of(told, utxo_path("script")) == canonical(script)
    returned = bare_record(k1=12, k7=True, k8=60, k9=2, k10=SECOND["hash"])
    for absent in (11, 12):
        del returned[absent]
    assert cbor_of(told, utxo_path("failed", 1)) == canonical(returned)


def test_a_spent_record_goes_around_the_record(told: Asked) -> None:
    before = bare_record(k0=bytes.fromhex(VECTORS["pointer"][1]), k1=3)
    for absent in (14, 15):
        del before[absent]
    spent = {0: digest("tx", "pay"), 1: 60, 2: 2, 3: SECOND["hash"], 6: before}
    assert cbor_of(told, utxo_path("bare", 2)) == canonical(spent)


def test_a_list_of_records(told: Asked) -> None:
    path = f"/api/v1/addresses/{VECTORS['base'][0]}/utxos?count=2"
    pairs = [[[digest("tx", "bare"), 0], bare_record()], [[digest("tx", "bare"), 1], bare_record(k1=MOST)]]
    assert cbor_of(told, path) == canonical(pairs)
    cursors = {told.ask(path, **headers).headers["x-next-cursor"] for headers in (AS_CBOR, {})}
    assert len(cursors) == 1
    assert cbor_of(told, f"/api/v1/addresses/{address('nobody').hex()}/utxos") == b"\x80"


def test_the_tag_tells_the_forms_apart(told: Asked) -> None:
    for path in (utxo_path("bare"), every_path("lists")[0]):
        plain, record = told.ask(path), told.ask(path, **AS_CBOR)
        assert plain.headers["etag"] != record.headers["etag"]
        other = told.ask(path, **AS_CBOR, **{"If-None-Match": plain.headers["etag"]})
        assert (other.status_code, other.content) == (200, record.content)
        assert told.ask(path, **AS_CBOR, **{"If-None-Match": record.headers["etag"]}).status_code == 304


@pytest.mark.parametrize(
    ("accept", "kind"),
    [
        ("application/cbor", "application/cbor"),
        ("application/cbor, application/json;q=0.5", "application/cbor"),
        ("application/cbor, */*", "application/cbor"),
        ("text/html, application/cbor;q=0.9, */*;q=0.1", "application/cbor"),
        ("Application/CBOR", "application/cbor"),
        ("application/json", "application/json"),
        ("application/json, application/cbor;q=0.5", "application/json"),
        ("application/cbor;q=0", "application/json"),
        ("application/cbor;q=nonsense", "application/json"),
        ("application/cbor-seq", "application/json"),
        ("*/*", "application/json"),
        ("", "application/json"),
    ],
)
def test_the_form_is_what_the_client_prefers(told: Asked, accept: str, kind: str) -> None:
    for path in (utxo_path("bare"), every_path("lists")[0]):
        assert told.ask(path, Accept=accept).headers["content-type"] == kind


# --- lists: count, order, page, cursor -----------------------------------------------------------------------------

PAID = [tx(f"{height}/{n}", output("ann", height * 10 + n), output("ann")) for height in range(1, 5) for n in range(3)]


@pytest.fixture(scope="module")
def listed() -> Iterator[Asked]:
    """An address with 24 outputs in four blocks."""
    story: list[Message] = []
    for height in range(4):
        story.append(block(story[-1] if story else None, *PAID[height * 3 : height * 3 + 3]))
    with short_folder() as folder, asked(folder) as asking:
        asking.feed(*story)
        yield asking


ANN = f"/api/v1/addresses/{address('ann').hex()}/utxos"
ALL = [(made["txid"].hex(), index) for made in PAID for index in range(2)]


def test_a_list_is_in_chain_order(listed: Asked) -> None:
    assert outpoints(listed.get(ANN)) == ALL
    assert outpoints(listed.get(ANN + "?order=asc")) == ALL
    assert outpoints(listed.get(ANN + "?order=desc")) == ALL[::-1]


@pytest.mark.parametrize("order", ["asc", "desc"])
@pytest.mark.parametrize("count", [1, 5, 8, 12, 23, 24, 25, 1000])
def test_page_and_cursor_give_the_same_lists(listed: Asked, count: int, order: str) -> None:
    wanted = ALL if order == "asc" else ALL[::-1]
    pages = [wanted[begin : begin + count] for begin in range(0, len(wanted), count)]
    assert [outpoints(page) for page in listed.web.pages(ANN, count, order)] == pages
    numbered = [listed.ask(f"{ANN}?count={count}&order={order}&page={page}") for page in range(1, len(pages) + 2)]
    assert [outpoints(answer.json()) for answer in numbered] == [*pages, []]
    assert ["x-next-cursor" in answer.headers for answer in numbered] == [True] * (len(pages) - 1) + [False, False]


def test_a_list_has_a_hundred_unless_told(told: Asked) -> None:
    many = tx("many", *(output("crowd", n) for n in range(1, 1101)))
    crowd = f"/api/v1/addresses/{address('crowd').hex()}/utxos"
    with short_folder() as folder, asked(folder) as asking:
        asking.feed(block(None, many))
        first = asking.ask(crowd)
        assert [each["lovelace_amount"] for each in first.json()] == list(range(1, 101))
        assert "x-next-cursor" in first.headers
        assert len(asking.get(crowd + "?count=1000")) == 1000
        assert [each["lovelace_amount"] for each in asking.get(crowd + "?count=1000&page=2")] == list(range(1001, 1101))
        assert asking.get(crowd + "?count=1000&page=4294967296") == []


@pytest.mark.parametrize("name", ["count", "page"])
@pytest.mark.parametrize("value", ["0", "-1", "1.5", "1e2", "", "x", "+1", " 1", "١", "99999999999", "1_0", "0x10"])
def test_a_number_out_of_range_is_refused(listed: Asked, name: str, value: str) -> None:
    failure(listed.ask(f"{ANN}?{name}={quote(value)}"), 400, "bad_parameter", name)


@pytest.mark.parametrize(("query", "named"), [("count=1001", "count"), ("page=4294967297", "page")])
def test_a_number_too_large_is_refused(listed: Asked, query: str, named: str) -> None:
    failure(listed.ask(f"{ANN}?{query}"), 400, "bad_parameter", named)


@pytest.mark.parametrize("value", ["foo", "", "ASC", "asc,desc"])
def test_an_order_is_asc_or_desc(listed: Asked, value: str) -> None:
    failure(listed.ask(f"{ANN}?order={value}"), 400, "bad_parameter", "order")


@pytest.mark.parametrize(
    "query", ["count=5&count=5", "order=asc&order=desc", "cursor=a&cursor=b", "page=1&count=2&page=2"]
)
def test_a_parameter_given_twice_is_refused(listed: Asked, query: str) -> None:
    failure(listed.ask(f"{ANN}?{query}"), 400, "bad_parameter", "more than once")


def test_unknown_parameters_are_ignored(listed: Asked) -> None:
    assert listed.get(ANN + "?colour=blue&colour=red&%ff=%fe&&=&count=3") == listed.get(ANN + "?count=3")


def cursor_of(asking: Asked, query: str, path: str = ANN) -> str:
    cursor: str = asking.ask(path + query).headers["x-next-cursor"]
    return cursor


def test_page_and_cursor_exclude_each_other(listed: Asked) -> None:
    cursor = cursor_of(listed, "?count=5")
    failure(listed.ask(f"{ANN}?cursor={cursor}&page=1"), 400, "bad_parameter", "page and cursor")


def test_a_cursor_takes_any_count(listed: Asked) -> None:
    cursor = cursor_of(listed, "?count=5")
    assert outpoints(listed.get(f"{ANN}?cursor={cursor}&count=2")) == ALL[5:7]
    assert outpoints(listed.get(f"{ANN}?cursor={cursor}")) == ALL[5:]


def test_a_cursor_that_is_none_is_refused(listed: Asked) -> None:
    good = cursor_of(listed, "?count=5")
    bad = [
        "",
        "x",
        "====",
        good[:-1],
        good + "A",
        good[1:],
        "!" + good,
        good + "!",
        good.replace(good[3], "+", 1),
        "é",
        "A" * 9000,
    ]
    for cursor in bad:
        failure(listed.ask(f"{ANN}?cursor={quote(cursor)}"), 400, "bad_parameter", "cursor")


def test_a_cursor_of_another_list_is_refused(listed: Asked) -> None:
    credential = f"/api/v1/credentials/{digest('credential', 'ann', size=28).hex()}/utxos"
    cursor = cursor_of(listed, "?count=5")
    for path in (
        f"{ANN}?order=desc&cursor=",
        f"{credential}?cursor=",
        ANN.replace(address("ann").hex(), address("bob").hex()) + "?cursor=",
    ):
        failure(listed.ask(path + cursor), 400, "bad_parameter", "cursor")


def test_no_cursor_breaks_the_worker(listed: Asked) -> None:
    """Cursors that were never cut: any place, any ordinal, any block."""
    from base64 import urlsafe_b64encode

    import msgspec

    key, size = sha256(address("ann")).digest(), PLACE.size
    statuses = set[int]()
    for place in (b"\xff" * size, bytes(size), b"\xff" * (size - 1) + b"\xfe", b"\xff" * (size - 1), b""):
        for ordinal in (0, 4, 5, -1, 1 << 32, 1 << 63):
            for order in ("asc", "desc"):
                raw = msgspec.msgpack.encode([ordinal, bytes(32), place, order, key])
                cursor = urlsafe_b64encode(raw).rstrip(b"=").decode()
                statuses.add(listed.ask(f"{ANN}?order={order}&cursor={cursor}").status_code)
    assert statuses == {400, 409}


@pytest.mark.parametrize("order", ["asc", "desc"])
def test_a_cursor_is_exact_while_the_chain_grows(order: str) -> None:
    """Between two pages blocks come that spend on both sides of the cursor, the very output it was cut at too."""
    paid = [tx(n, output("ann", n)) for n in range(20)]
    story = [block(None, *paid[:10])]
    story.append(block(story[-1], *paid[10:]))
    gone = [3, 4, 5, 12, 14, 15]
    story.append(block(story[-1], tx("spend", output("ann", 99), spends=[at(n) for n in gone])))
    story += [block(story[-1])]
    with short_folder() as folder, asked(folder) as asking:
        asking.feed(*story[:2])
        first = asking.ask(f"{ANN}?count=5&order={order}")
        seen = [each["lovelace_amount"] for each in first.json()]
        asking.feed(*story[2:])
        rest = asking.get(f"{ANN}?count=50&order={order}&cursor={first.headers['x-next-cursor']}")
        values = [each["lovelace_amount"] for each in rest]
        if order == "asc":
            assert (seen, values) == ([0, 1, 2, 3, 4], [n for n in range(5, 20) if n not in gone] + [99])
        else:
            assert (seen, values) == ([19, 18, 17, 16, 15], [n for n in range(14, -1, -1) if n not in gone])


def test_a_cursor_is_gone_with_its_block() -> None:
    paid = [tx(n, output("ann", n)) for n in range(20)]
    story = [block(None, *paid[:10])]
    story.append(block(story[-1], *paid[10:]))
    other = block(story[0], *paid[10:], branch="other")
    with short_folder() as folder, asked(folder) as asking:
        asking.feed(story[0])
        early = cursor_of(asking, "?count=5")
        asking.feed(story[1])
        late = cursor_of(asking, "?count=5")
        asking.feed(back_to(story[0]))
        failure(asking.ask(f"{ANN}?cursor={late}"), 409, "cursor_gone", "no longer in the chain")
        assert [each["lovelace_amount"] for each in asking.get(f"{ANN}?cursor={early}")] == [5, 6, 7, 8, 9]
        asking.feed(other)
        failure(asking.ask(f"{ANN}?cursor={late}"), 409, "cursor_gone")
        assert len(asking.get(f"{ANN}?cursor={early}")) == 15
        asking.feed(back_to(story[0]), story[1])
        assert len(asking.get(f"{ANN}?cursor={late}")) == 15  # its block is back
        asking.feed(back_to("origin"))
        for cursor in (early, late):
            failure(asking.ask(f"{ANN}?cursor={cursor}"), 409, "cursor_gone")


def test_a_list_follows_a_rollback() -> None:
    """The same place in the chain holds another output on the other fork, with the same values but one."""
    first = block(None, tx("a", output("ann", 1)))
    ours, theirs = block(first, tx("b", output("ann", 2))), block(first, tx("c", output("ann", 2)), branch="other")
    with short_folder() as folder, asked(folder) as asking:
        asking.feed(first, ours)
        assert [each["tx_hash"] for each in asking.get(ANN)] == [digest("tx", name).hex() for name in "ab"]
        asking.feed(back_to(first), theirs)
        answer = asking.get(ANN)
        assert [each["tx_hash"] for each in answer] == [digest("tx", name).hex() for name in "ac"]
        assert answer[1]["block_hash"] == theirs["hash"].hex()
        asking.feed(back_to("origin"))
        assert asking.get(ANN) == []


@pytest.mark.parametrize("key", ["addresses/" + address("ann").hex(), "policies/" + POLICY])
@pytest.mark.parametrize("indexed", [False, True])
@pytest.mark.parametrize("order", ["asc", "desc"])
def test_a_list_of_those_that_hold_an_asset(order: str, indexed: bool, key: str) -> None:
    """By page and by cursor, with others between, more than are looked at in one turn."""
    of_key = f"/api/v1/{key}/utxos"
    asset = [bytes.fromhex(POLICY), b"gold", 1]
    unit = f"{POLICY}676f6c64"
    near = [[asset[0], b"golde", 1], [asset[0], b"", 1], [bytes(28), b"gold", 1]]
    paid = [output("ann", n, assets=[*near, asset] if n % 7 == 0 else near[: n % 3]) for n in range(2500)]
    wanted = [n for n in range(2500) if n % 7 == 0][:: 1 if order == "asc" else -1]
    with short_folder() as folder, asked(folder, utxo={"index": {"policy": indexed}}) as asking:
        asking.feed(block(None, tx("many", *paid)))
        if not indexed and key.startswith("policies"):
            failure(asking.ask(of_key), 503, "not_enabled", "utxo.index.policy")
            return
        path = f"{of_key}?order={order}&asset={unit}"
        found = [utxo["lovelace_amount"] for utxo in asking.get(f"{path}&count=1000")]
        assert found == wanted
        by_cursor, answer = list[int](), asking.ask(f"{path}&count=50")
        while "x-next-cursor" in answer.headers:
            by_cursor += [utxo["lovelace_amount"] for utxo in answer.json()]
            answer = asking.ask(f"{path}&count=50&cursor={(cursor := answer.headers['x-next-cursor'])}")
        assert by_cursor + [utxo["lovelace_amount"] for utxo in answer.json()] == wanted
        pages = [asking.get(f"{path}&count=100&page={page}") for page in range(1, 6)]
        assert [len(page) for page in pages] == [100, 100, 100, len(wanted) - 300, 0]
        assert [utxo["lovelace_amount"] for page in pages for utxo in page] == wanted
        assert asking.get(f"{of_key}?asset={POLICY}ff") == []
        failure(asking.ask(f"{of_key}?order={order}&cursor={cursor}"), 400, "bad_parameter", "cursor")
        failure(asking.ask(f"{of_key}?order={order}&asset={POLICY}&cursor={cursor}"), 400, "bad_parameter", "cursor")


@pytest.mark.parametrize("value", ["", "ab", "g" * 56, POLICY + "a", POLICY + "00" * 33, f"{POLICY[:-1]}%20", "gold"])
def test_what_is_no_asset_is_refused(listed: Asked, value: str) -> None:
    failure(listed.ask(f"{ANN}?asset={value}"), 400, "bad_parameter", "asset")


# --- an address with many outputs ----------------------------------------------------------------------------------

CROWD = 40_000


@pytest.fixture(scope="module")
def crowded() -> Iterator[Asked]:
    """An address with many outputs, beside one with a page of them."""
    few = block(None, tx("few", *(output("bob", n) for n in range(25))))
    story = [few]
    for n in range(4):
        many = [output("ann", 1, assets=[[bytes.fromhex(POLICY), b"%d" % (k % 5), k]]) for k in range(CROWD // 4)]
        story.append(block(story[-1], tx(n, *many)))
    with short_folder() as folder, asked(folder) as asking:
        asking.feed(*story)
        yield asking


def test_a_page_costs_the_same_wherever_it_is(crowded: Asked) -> None:
    """By cursor, beside a page of an address that has no more than it."""
    bob = ANN.replace(address("ann").hex(), address("bob").hex())
    middle = crowded.ask(f"{ANN}?count=1000&page={CROWD // 2000}").headers["x-next-cursor"]

    def least_s(path: str) -> float:
        def took(n: int) -> float:
            began = perf_counter()
            answer = crowded.ask(f"{path}&n={n}")  # no answer is one that was kept
            assert len(answer.json()) == 25
            return perf_counter() - began

        return min(took(n) for n in range(40))

    small = least_s(f"{bob}?count=25")
    for path in (f"{ANN}?count=25", f"{ANN}?count=25&order=desc", f"{ANN}?count=25&cursor={middle}"):
        assert least_s(path) < small * 3 + 0.001, path


def test_a_large_balance_lets_the_others_through(crowded: Asked) -> None:
    """While it is summed, in one worker, short questions are answered; and it is exact."""
    path = ANN.replace("utxos", "balance")
    found, took_s = [], list[float]()

    def sum_up() -> None:
        with Web(crowded.daemon.folder / "http") as other:
            found.append(other.get(path))

    began = perf_counter()
    sum_up()
    alone_s = perf_counter() - began
    thread = Thread(target=sum_up)
    thread.start()
    while thread.is_alive():
        began = perf_counter()
        crowded.get("/health/live")
        took_s.append(perf_counter() - began)
    thread.join()
    assert len(took_s) > 5 and median(took_s) < alone_s / 4
    assert found[0] == found[1]
    assert (found[0]["lovelace_amount"], found[0]["utxo_count"]) == (CROWD, CROWD)
    sums = {f"{POLICY}{str(k).encode().hex()}": sum(range(k, CROWD // 4, 5)) * 4 for k in range(5)}
    assert {each["unit"]: int(each["quantity"]) for each in found[0]["amounts"][1:]} == sums


# --- what is not there ---------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "path", ["/nothing", "/api/v1", "/api/v1/tip/", "/api/v1/addresses//utxos", "/api/v1/utxos/ab", "/api/v2/tip"]
)
def test_an_unknown_path(told: Asked, path: str) -> None:
    answer = told.ask(path)
    failure(answer, 404, "unknown_path", path)
    assert answer.headers["x-tip-hash"] == SECOND["hash"].hex()


@pytest.mark.parametrize("method", ["POST", "PUT", "DELETE", "PATCH", "OPTIONS", "TRACE"])
def test_everything_is_read_with_get(told: Asked, method: str) -> None:
    for path in [
        *every_path(*ROUTES),
        *(each.format(**HERE) for each in (*ABSENT, *RECOVERY, *TRANSACTIONS)),
    ]:
        answer = told.ask(path, method)
        failure(answer, 405, "method_not_allowed")
        assert {each.strip() for each in answer.headers["allow"].split(",")} == {"GET", "HEAD"}


def test_head_has_the_headers_of_get(told: Asked) -> None:
    for path in [*every_path("lists", "balances", "outputs", "deltas"), "/api/v1/tip", "/docs"]:
        whole, headers = told.ask(path), told.ask(path, "HEAD")
        assert headers.content == b""
        for each in (whole, headers):
            del each.headers["date"]
        assert headers.headers == whole.headers


def test_an_index_that_is_kept_only_when_asked_for(told: Asked) -> None:
    for path in every_path("stakes"):
        failure(told.ask(path), 503, "not_enabled", "utxo.index.stake_credential")
    for path in every_path("hashes"):
        failure(told.ask(path), 503, "not_enabled", "utxo.index.")
    for path in every_path("touched"):
        failure(told.ask(path), 503, "not_enabled", "utxo.index.history")
    for path in every_path("policies"):
        failure(told.ask(path), 503, "not_enabled", "utxo.index.policy")


def test_indexes_by_strategy() -> None:
    with short_folder() as folder, asked(folder, utxo={"index": {"strategy": "payment_credential"}}) as asking:
        asking.feed(FIRST)
        assert asking.get("/api/v1/status")["utxo"]["indexes"] == ["payment_credential"]
        failure(asking.ask(every_path("lists")[0]), 503, "not_enabled", "utxo.index.address_hash")
        assert asking.get(every_path("lists")[1])
        shown = utxod("config", "show", "--config", asking.daemon.config).stdout.decode()
        assert "\naddress_hash = false\n" in shown and "\npayment_credential = true\n" in shown
        assert "\n# strategy = " in shown


def test_a_list_of_those_that_hold_a_policy() -> None:
    gold, silver = ([bytes.fromhex(POLICY), name, 1] for name in (b"gold", b"silver"))
    other = [bytes(28), b"gold", 1]
    paid = [output("ann", 1, assets=[gold]), output("bob", 2, assets=[gold, silver, other]), output("ann", 3)]
    made = block(None, tx("a", *paid, output("cid", 4, assets=[other]), output("bob", 5, assets=[silver])))
    spend = block(made, tx("b", output("dan", 6, assets=[gold]), spends=[at("a", 4)]))
    path = f"/api/v1/policies/{POLICY}/utxos"
    with short_folder() as folder, asked(folder, utxo={"index": {"policy": True}}) as asking:
        asking.feed(made)
        assert [utxo["lovelace_amount"] for utxo in asking.get(path)] == [1, 2, 5]
        asking.feed(spend)
        assert [utxo["lovelace_amount"] for utxo in asking.get(path.replace(POLICY, POLICY.upper()))] == [1, 2, 6]
        assert [utxo["lovelace_amount"] for utxo in asking.get(f"{path}?order=desc&count=2")] == [6, 2]
        assert [utxo["lovelace_amount"] for utxo in asking.get(f"{path}?asset={'00' * 28}676f6c64")] == [2]
        assert len(cbor2.loads(asking.ask(path, **AS_CBOR).content)) == 3
        assert asking.get(f"/api/v1/policies/{'cd' * 28}/utxos") == []
        for text in ("ab", POLICY + "00", "zz" * 28):
            failure(asking.ask(f"/api/v1/policies/{text}/utxos"), 400, "bad_parameter", "policy", "56 hex digits")


@pytest.mark.parametrize("path", ABSENT)
def test_what_this_daemon_does_not_keep(told: Asked, path: str) -> None:
    answer = told.ask(path.format(**HERE))
    failure(answer, 503, "not_enabled", path.format(**HERE).split("?")[0])


def test_a_daemon_that_keeps_no_transactions() -> None:
    with short_folder() as folder, asked(folder, transactions={"enabled": False}) as asking:
        asking.feed(FIRST)
        for path in (*TRANSACTIONS, *RECOVERY):
            failure(asking.ask(path.format(**HERE)), 503, "not_enabled", "transactions.enabled")
        assert asking.get(utxo_path("bare")) == expected_bare()


def test_indexes_that_are_not_kept() -> None:
    index = {"address_hash": False, "payment_credential": False}
    with short_folder() as folder, asked(folder, utxo={"index": index}) as asking:
        asking.feed(FIRST)
        for path, name in ((VECTORS["base"][0], "address_hash"), (PAYMENT, "payment_credential")):
            kind = "addresses" if name == "address_hash" else "credentials"
            for what in ("utxos", "balance"):
                answer = asking.ask(f"/api/v1/{kind}/{path}/{what}")
                failure(answer, 503, "not_enabled", f"utxo.index.{name}")
                assert answer.json()["hint"] == "utxod reindex builds it"
        assert asking.get(utxo_path("bare")) == expected_bare()


def test_a_daemon_without_the_utxo_store() -> None:
    with short_folder() as folder, asked(folder, utxo={"enabled": False}) as asking:
        kinds = ("lists", "balances", "stakes", "outputs")
        for path in [*every_path(*kinds), "/api/v1/tip", "/api/v1/status", "/api/v1/pruner/jobs", "/metrics"]:
            assert asking.ask(path).status_code == 503, path
            failure(asking.ask(path), 503, "not_enabled", "not enabled")
        for path in (*ABSENT, *RECOVERY, *TRANSACTIONS):
            failure(asking.ask(path.format(**HERE)), 503, "not_enabled")
        failure(asking.ask("/nothing"), 404, "unknown_path")
        failure(asking.ask("/api/v1/tip", "POST"), 405, "method_not_allowed")
        assert asking.get("/health/live")["status"] == "live"
        ready = asking.ask("/health/ready")
        assert (ready.status_code, ready.json()["status"]) == (503, "not_enabled")
        assert asking.get("/openapi.json")["openapi"].startswith("3.")
        assert asking.get("/messages.json")["$defs"]
        assert asking.ask("/docs").status_code == asking.ask("/").status_code == 200


def test_what_is_not_http_is_refused_in_the_same_form(told: Asked) -> None:
    with socket.socket(socket.AF_UNIX) as raw:
        raw.settimeout(10)
        raw.connect(str(told.daemon.folder / "http"))
        raw.sendall(b"\x00\x01 nonsense\r\n\r\n")
        head, _, body = b"".join(iter(lambda: raw.recv(1 << 16), b"")).partition(b"\r\n\r\n")
    assert head.startswith(b"HTTP/1.1 400 ")
    assert json.loads(body)["error"] == "malformed_request"
    assert told.get("/health/live")["status"] == "live"
    assert all(line["event"] for line in told.daemon.log_lines())  # every line is one of ours


def test_text_answers(told: Asked) -> None:
    for path, kind in (("/docs", "text/html"), ("/", "text/html"), ("/metrics", "text/plain")):
        answer: httpx.Response = told.ask(path)
        assert (answer.status_code, answer.headers["content-type"].split(";")[0]) == (200, kind)


def test_events_are_recent_facts_of_the_change_log() -> None:
    """Also those from before the process that answers was started."""
    with short_folder() as folder, asked(folder) as asking:
        asking.feed(FIRST, SECOND, back_to(FIRST))
        facts = asking.get("/api/v1/events")
        assert asking.daemon.term() == 0
        asking.daemon.start()
        asking.web.until("/health/live", 200)
        assert asking.get("/api/v1/events") == facts
        assert asking.get("/api/v1/events?type=RolledBack") == facts[:1]
        assert asking.get("/api/v1/events?type=RolledBack&type=BlockCommitted&type=Pruned") == facts
        refused = asking.ask("/api/v1/events?type=TxStatusChanged")
        assert (refused.status_code, refused.json()["error"]) == (400, "bad_parameter")
    assert [fact["type"] for fact in facts] == ["RolledBack", "BlockCommitted", "BlockCommitted"]
    assert [fact["sequence"] for fact in facts] == [
        4,
        2,
        1,
    ]  # after 2 the transactions of the block that was taken back are told of
    assert [fact.get("height") for fact in facts] == [None, 2, 1]
    assert {name: facts[1][name] for name in ("height", "slot", "hash")} == point(SECOND)
    assert facts[0]["heard_at"] >= facts[-1]["heard_at"] > 1_700_000_000
