"""Answers over HTTP, field by field, from a daemon with outputs of every kind; lists are in `test_http_lists`."""

from __future__ import annotations

from collections.abc import Iterator
from hashlib import blake2b
from typing import Any
from urllib.parse import quote

import cbor2
import pytest
from daemons import Message
from questions import TIP, Api, failure, outpoints, running_api, short_folder
from scenarios import address, at, block, digest, output, point, tx

from daemon.http.openapi import document

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


def to(name: str, value: int = 1, **fields: Any) -> Message:
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
TXID = digest("tx", "bare").hex()
BASE = f"/api/v1/addresses/{VECTORS['base'][0]}"


def documented(*left_out: str) -> list[str]:
    """Return every path of the document with a value for each parameter, except those that begin with `left_out`."""
    values = {
        "address": VECTORS["base"][0],
        "credential": PAYMENT,
        "stake": STAKE,
        "policy": POLICY,
        "unit": f"{POLICY}676f6c64",
        "datum_hash": DATUM_HASH,
        "script_hash": digest("script", size=28).hex(),
        "block": "2",
        "tx_hash": TXID,
        "txid": TXID,
        "index": "0",
    }
    return [path.format(**values) for path in document()["paths"] if path == "/" or not path.startswith(left_out)]


@pytest.fixture(scope="module")
def fed_api() -> Iterator[Api]:
    with short_folder() as folder, running_api(folder) as api:
        api.feed(GENESIS, FIRST, SECOND)
        yield api


def utxo_path(name: object, index: int = 0) -> str:
    return f"/api/v1/utxos/{digest('tx', name).hex()}/{index}"


def lovelace(value: int) -> Message:
    return {"unit": "lovelace", "policy_id": None, "asset_name": None, "quantity": str(value)}


def expected_bare(**fields: Any) -> Message:
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


FIELDS = [*expected_bare()]
OWNERS = [name for name in FIELDS if name.startswith("owner_")]


def test_an_output_field_by_field(fed_api: Api) -> None:
    assert [*fed_api.get(utxo_path("bare")).items()] == [*expected_bare().items()]


def test_owners_are_read_from_the_address(fed_api: Api) -> None:
    no_owners = dict.fromkeys(OWNERS)
    with_stake = {"owner_stake_addr": STAKE, "owner_stake_credential": DELEGATED}
    script = {"owner_payment_credential": VECTORS["script"][1][2:58]}
    for index, name, owners in (
        (2, "pointer", {"owner_payment_credential": PAYMENT}),
        (3, "script", script | with_stake),
        (4, "byron", {}),
    ):
        found = fed_api.get(utxo_path("bare", index))
        assert {owner: found[owner] for owner in OWNERS} == no_owners | {"owner_addr": VECTORS[name][0]} | owners


def test_amounts_have_the_base_unit_first_and_quantities_as_strings(fed_api: Api) -> None:
    assert fed_api.get(utxo_path("assets"))["amounts"] == [
        lovelace(6),
        {"unit": f"{POLICY}676f6c64", "policy_id": POLICY, "asset_name": "676f6c64", "quantity": str(HUGE)},
        {"unit": POLICY, "policy_id": POLICY, "asset_name": "", "quantity": "1"},
        {"unit": "00" * 28 + "ff" * 32, "policy_id": "00" * 28, "asset_name": "ff" * 32, "quantity": "5"},
    ]


def test_hashes_of_datums_and_scripts_are_given_or_derived(fed_api: Api) -> None:
    for path, found in (
        (utxo_path("datum"), (DATUM_HASH, DATUM.hex())),
        (utxo_path("datum", 1), (digest("datum").hex(), None)),
        (utxo_path("empty datum"), (blake2b(b"", digest_size=32).hexdigest(), "")),
    ):
        answer = fed_api.get(path)
        assert (answer["data_hash"], answer["inline_datum"]) == found
    given = {utxo_path("script"): ("82014100", digest("script", size=28).hex())}
    derived = {utxo_path("scripts", index): each for index, each in enumerate(SCRIPTS.items())}
    for path, (script, script_hash) in (given | derived).items():
        answer = fed_api.get(path)
        assert (answer["script_ref"], answer["reference_script_hash"]) == (script, script_hash)
        record = cbor2.loads(cbor_of(fed_api, path))
        assert (record[5].hex(), record.get(6)) == (script, script_hash and bytes.fromhex(script_hash))


def test_a_collateral_return_has_the_index_after_the_outputs_that_are_not_created(fed_api: Api) -> None:
    found = fed_api.get(utxo_path("failed", 1))
    assert found["is_collateral_return"] is True
    assert (found["slot"], found["block"], found["block_time"], found["epoch"]) == (60, 2, None, None)
    failure(fed_api.ask(utxo_path("failed", 0)), 404, "unknown_output")
    assert fed_api.get(utxo_path("pledge"))["spent_tx_hash"] == digest("tx", "failed").hex()


def test_a_genesis_output_has_height_and_slot_0(fed_api: Api) -> None:
    found = fed_api.get(f"/api/v1/utxos/{digest('genesis').hex()}/7")
    assert (found["slot"], found["block"], found["block_hash"], found["block_time"]) == (0, 0, "00" * 32, None)


def test_a_spent_output_names_its_spender(fed_api: Api) -> None:
    spent = {
        "spent_tx_hash": digest("tx", "pay").hex(),
        "spent_at_slot": 60,
        "spent_at_block": 2,
        "spent_at_block_hash": SECOND["hash"].hex(),
        "spent_block_time": None,
        "spent_epoch": None,
    }
    found = fed_api.get(utxo_path("bare", 2))
    assert list(found) == [*FIELDS, *spent] and {name: found[name] for name in spent} == spent
    assert fed_api.get("/api/v1/addresses/" + VECTORS["pointer"][0] + "/utxos") == []


def test_a_list_has_the_same_objects_in_chain_order(fed_api: Api) -> None:
    names = ["bare 0", "bare 1", "assets 0", "datum 0", "datum 1", "empty datum 0", "script 0", "failed 1"]
    singly = [fed_api.ask(utxo_path(name[:-2], int(name[-1]))).text for name in names]
    assert fed_api.ask(f"{BASE}/utxos").text == f"[{','.join(singly)}]"
    assert f'"lovelace_amount":{MOST},' in singly[1]


@pytest.mark.parametrize("name", VECTORS)
def test_an_address_may_be_text_or_hex_of_either_case(fed_api: Api, name: str) -> None:
    text, raw = VECTORS[name]
    forms = {text, raw, raw.upper()} | ({text.upper()} if name != "byron" else set())
    assert len({fed_api.ask(f"/api/v1/addresses/{form}/utxos").text for form in forms}) == 1


def test_the_balance_of_an_address(fed_api: Api) -> None:
    whole = 2_000_000 + MOST + 6 + 7 + 8 + 9 + 10 + 12
    answer = fed_api.ask(f"{BASE}/balance")
    assert f'"lovelace_amount":{whole},' in answer.text  # beyond 64 bits, and exact
    found = answer.json()
    assert list(found) == ["lovelace_amount", "amounts", "utxo_count"]
    assert (found["utxo_count"], found["amounts"][0]) == (8, lovelace(whole))
    sums = {POLICY: "1", f"{POLICY}676f6c64": str(HUGE), "00" * 28 + "ff" * 32: "5"}
    assert {each["unit"]: each["quantity"] for each in found["amounts"][1:]} == sums
    unused = f"/api/v1/addresses/{address('nobody').hex()}"
    assert fed_api.get(f"{unused}/utxos") == []
    assert fed_api.get(f"{unused}/balance") == {"lovelace_amount": 0, "amounts": [lovelace(0)], "utxo_count": 0}


def test_a_payment_credential_finds_every_address_that_has_it(fed_api: Api) -> None:
    for what in ("utxos", "balance"):
        found = fed_api.get(f"/api/v1/credentials/{PAYMENT}/{what}")
        assert found == fed_api.get(f"{BASE}/{what}") == fed_api.get(f"/api/v1/credentials/{PAYMENT.upper()}/{what}")
    assert fed_api.get(f"/api/v1/credentials/{DELEGATED}/utxos") == []
    paid = digest("credential", "paid", size=28).hex()
    assert outpoints(fed_api.get(f"/api/v1/credentials/{paid}/utxos")) == [(digest("tx", "pay").hex(), 0)]


BAD_ADDRESSES = [
    "addr1",
    VECTORS["base"][0][:-1] + "q",
    VECTORS["byron"][0][:-1],
    "addr_test1qz2fxv2umyhttkxyxp8x0dlpdt3k6cwng5pxj3jhsydzer3n0d3vllmyqwsx5wktcd8cc3sq835lu7drv2xwl2wywfgs68faae",
    STAKE,
    "zz",
    quote("ё"),
    "%20",
    "a" * 20_000 + "g",
]
BAD_INDEXES = ["x", "-1", "1.0", "4294967296", "9" * 5000, quote("٣")]
REFUSED: list[tuple[str, int, str, str]] = [
    *((f"addresses/{text}/utxos", 400, "bad_address", "address") for text in BAD_ADDRESSES),
    ("addresses/abc/balance", 400, "bad_address", "address"),
    *((f"credentials/{text}/utxos", 400, "bad_parameter", "credential") for text in (PAYMENT[:-2], STAKE)),
    *((f"credentials/{PAYMENT[:-1]}{end}/balance", 400, "bad_parameter", "credential") for end in ("g", "000")),
    *((f"utxos/{text}/0", 400, "bad_parameter", "tx_hash") for text in ("ab", "g" * 64, "ab" * 33, "ab%20" * 21 + "a")),
    *((f"utxos/{'ab' * 32}/{text}", 400, "bad_parameter", "index") for text in BAD_INDEXES),
    *((f"utxos/{txid}/5", 404, "unknown_output", f"{txid}#5") for txid in ("ab" * 32, TXID)),
    (f"utxos/{TXID}/4294967295", 404, "unknown_output", f"{TXID}#4294967295"),
    *((path, 404, "unknown_path", path) for path in ("nothing", "tip/", "addresses//utxos", "utxos/ab")),
    *((f"stakes/{STAKE}/{what}", 503, "not_enabled", "utxo.index.stake_credential") for what in ("utxos", "balance")),
    (f"datums/{DATUM_HASH}", 503, "not_enabled", "utxo.index."),
    (f"datums/{DATUM_HASH}/utxos", 503, "not_enabled", "utxo.index."),
    (f"scripts/{digest('script', size=28).hex()}/utxos", 503, "not_enabled", "utxo.index."),
    (f"addresses/{VECTORS['base'][0]}/transactions", 503, "not_enabled", "utxo.index.history"),
    (f"policies/{POLICY}/utxos", 503, "not_enabled", "utxo.index.policy"),
    (f"assets/{POLICY}/utxos", 503, "not_enabled", "utxo.index.asset"),
    ("mmr/root", 503, "not_enabled", "mmr/root"),
    (f"mmr/proof/{TXID}/0", 503, "not_enabled", f"mmr/proof/{TXID}/0"),
]


@pytest.mark.parametrize(("path", "status", "code", "named"), REFUSED, ids=lambda each: str(each)[:40])
def test_requests_that_are_refused(fed_api: Api, path: str, status: int, code: str, named: str) -> None:
    for headers in ({}, {"If-None-Match": fed_api.ask("/api/v1/tip").headers["etag"]}):
        answer = fed_api.ask(f"/api/v1/{path}", **headers)
        failure(answer, status, code, named)
        assert answer.headers["x-tip-hash"] == SECOND["hash"].hex()
        assert code != "bad_address" or "hex of the raw bytes" in answer.json()["hint"]


def test_the_tip(fed_api: Api) -> None:
    assert fed_api.get("/api/v1/tip") == point(SECOND)


def test_the_status(fed_api: Api) -> None:
    status = fed_api.get("/api/v1/status")
    assert (status["tip"], status["protocol"]) == (point(SECOND), 1)
    assert (status["chain"]["family"], status["chain"]["network"]) == ("cardano", "mainnet")
    utxo = status["utxo"]
    assert (utxo["enabled"], utxo["store"], utxo["blocks_applied"]) == (True, "classic", 2)
    assert utxo["unspent"] == 1 + 15 - 3 + 2 - 0
    assert (utxo["prune_depth"], utxo["rollback_window"], utxo["rollback_floor"]) == (2160, 4320, None)
    assert utxo["indexes"] == ["address_hash", "payment_credential"]
    assert utxo["rows"]["history_block"] == 3 and utxo["rows"]["history_output"] >= 1
    assert utxo["history"] is None
    assert status["storage"]["bytes_used"] > 0


@pytest.mark.parametrize(
    "path",
    [
        *(f"{BASE}/utxos", f"{BASE}/balance", utxo_path("bare"), utxo_path("bare", 2), "/api/v1/blocks/2/delta"),
        *("/api/v1/tip", "/docs", "/openapi.json", "/messages.json"),
    ],
)
def test_what_the_client_has_is_not_sent_again(fed_api: Api, path: str) -> None:
    answer = fed_api.ask(path)
    etag = answer.headers["etag"]
    for shown in (etag, f"W/{etag}", f'"other", {etag}', "*"):
        same = fed_api.ask(path, **{"If-None-Match": shown})
        assert (same.status_code, same.content, same.headers["etag"]) == (304, b"", etag), shown
        assert [same.headers[name] for name in TIP] == ["2", "60", SECOND["hash"].hex()]
    for shown in ('"other"', etag.strip('"'), etag.replace('"', '"x', 1)):
        assert fed_api.ask(path, **{"If-None-Match": shown}).content == answer.content


def canonical(value: Any) -> bytes:
    return cbor2.dumps(value, canonical=True)


def bare_record(**more: Any) -> dict[int, Any]:
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


def cbor_of(fed_api: Api, path: str) -> bytes:
    answer = fed_api.ask(path, **AS_CBOR)
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


def test_golden_bytes_of_a_record(fed_api: Api) -> None:
    """Clients rely on every byte. `test_records` has records of every kind."""
    record = cbor_of(fed_api, utxo_path("bare"))
    assert record.hex() == GOLDEN
    assert record == canonical(bare_record())


def test_the_record_of_a_spent_output_contains_that_of_the_output(fed_api: Api) -> None:
    before = bare_record(k0=bytes.fromhex(VECTORS["pointer"][1]), k1=3)
    for absent in (14, 15):
        del before[absent]
    spent = {0: digest("tx", "pay"), 1: 60, 2: 2, 3: SECOND["hash"], 6: before}
    assert cbor_of(fed_api, utxo_path("bare", 2)) == canonical(spent)


def test_a_list_of_records(fed_api: Api) -> None:
    path = f"/api/v1/addresses/{VECTORS['base'][0]}/utxos?count=2"
    pairs = [[[digest("tx", "bare"), 0], bare_record()], [[digest("tx", "bare"), 1], bare_record(k1=MOST)]]
    assert cbor_of(fed_api, path) == canonical(pairs)
    cursors = {fed_api.ask(path, **headers).headers["x-next-cursor"] for headers in (AS_CBOR, {})}
    assert len(cursors) == 1
    assert cbor_of(fed_api, f"/api/v1/addresses/{address('nobody').hex()}/utxos") == b"\x80"


def test_json_and_cbor_have_tags_of_their_own(fed_api: Api) -> None:
    for path in (utxo_path("bare"), f"{BASE}/utxos"):
        plain, record = fed_api.ask(path), fed_api.ask(path, **AS_CBOR)
        assert plain.headers["etag"] != record.headers["etag"]
        other = fed_api.ask(path, **AS_CBOR, **{"If-None-Match": plain.headers["etag"]})
        assert (other.status_code, other.content) == (200, record.content)
        assert fed_api.ask(path, **AS_CBOR, **{"If-None-Match": record.headers["etag"]}).status_code == 304


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
def test_the_accept_header_chooses_json_or_cbor(fed_api: Api, accept: str, kind: str) -> None:
    for path in (utxo_path("bare"), f"{BASE}/utxos"):
        assert fed_api.ask(path, Accept=accept).headers["content-type"] == kind
