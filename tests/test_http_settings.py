"""Answers over HTTP of daemons with other chains and settings than those of `test_http`."""

from __future__ import annotations

import pytest
from daemons import utxod
from questions import TIP, Api, failure, outpoints
from scenarios import back_to, block, digest, point, tx
from test_http import (
    BASE,
    FIRST,
    GENESIS,
    OWNERS,
    PAYMENT,
    SECOND,
    VECTORS,
    documented,
    expected_bare,
    lovelace,
    utxo_path,
)


def test_an_empty_store(api: Api) -> None:
    path = f"/api/v1/addresses/{VECTORS['byron'][0]}/utxos"
    failure(api.ask("/api/v1/tip"), 404, "no_tip")
    answer = api.ask(path)
    assert answer.json() == []
    assert [answer.headers[name] for name in TIP] == ["origin"] * 3
    assert api.get("/api/v1/status")["tip"] is None
    api.feed(GENESIS)  # changes the answer, though there is still no tip
    again = api.ask(path, **{"If-None-Match": answer.headers["etag"]})
    assert outpoints(again.json()) == [(digest("genesis").hex(), 7)]


@pytest.mark.configured(chain={"family": "bitcoin", "network": "private"}, http={"workers": 2})
def test_a_network_of_bitcoin_that_is_not_known(api: Api) -> None:
    script = bytes.fromhex("76a91462e907b15cbf27d5425399ebf6f0fb50ebb88f1888ac")
    api.feed(block(None, tx("a", {"address": script, "value": 5})))
    [found] = api.get(f"/api/v1/addresses/{script.hex()}/utxos")
    assert (found["owner_addr"], found["amounts"][0]["unit"]) == (script.hex(), "satoshi")
    text = "/api/v1/addresses/1A1zP1eP5QGefi2DMPTfTL5SLmv7DivfNa/utxos"
    failure(api.ask(text), 400, "bad_address", "bitcoin has no network 'private'")
    warned = [line for line in api.daemon.log_lines() if line["event"] == "addresses_as_hex"]
    assert [line["level"] for line in warned] == ["warning"]


@pytest.mark.configured(chain={"family": "bitcoin", "network": "mainnet"})
def test_bitcoin_counts_in_satoshi(api: Api) -> None:
    key_hash = bytes.fromhex("76a91462e907b15cbf27d5425399ebf6f0fb50ebb88f1888ac")  # of the first block's coinbase
    paid = tx(
        "coinbase", {"address": key_hash, "value": 5_000_000_000}, {"address": b"\x51", "value": 1}, coinbase=True
    )
    api.feed(block(None, paid, time=1_231_006_505))
    [found] = api.get("/api/v1/addresses/1A1zP1eP5QGefi2DMPTfTL5SLmv7DivfNa/utxos")
    assert found["owner_addr"] == "1A1zP1eP5QGefi2DMPTfTL5SLmv7DivfNa"
    assert found["amounts"] == [lovelace(5_000_000_000) | {"unit": "satoshi"}]
    assert [found[name] for name in OWNERS][1:] == [None, None, None]
    assert api.get(f"/api/v1/addresses/{key_hash.hex()}/balance")["amounts"][0]["unit"] == "satoshi"
    assert [each["owner_addr"] for each in api.get("/api/v1/addresses/51/utxos")] == ["51"]
    failure(api.ask(f"/api/v1/credentials/{PAYMENT}/utxos"), 400, "bad_parameter", "credential")
    assert api.get("/api/v1/status")["utxo"]["indexes"] == ["address_hash"]


@pytest.mark.configured(utxo={"index": {"strategy": "payment_credential"}}, transactions={"enabled": False})
def test_indexes_and_transactions_that_are_not_kept(api: Api) -> None:
    api.feed(FIRST)
    assert api.get("/api/v1/status")["utxo"]["indexes"] == ["payment_credential"]
    for what in ("utxos", "balance"):
        answer = api.ask(f"{BASE}/{what}")
        failure(answer, 503, "not_enabled", "utxo.index.address_hash")
        assert answer.json()["hint"] == "utxod reindex builds it"
        assert api.get(f"/api/v1/credentials/{PAYMENT}/{what}")
    for path in documented():
        if "/txs" in path or "/recovery/" in path:
            failure(api.ask(path), 503, "not_enabled", "transactions.enabled")
    assert api.get(utxo_path("bare")) == expected_bare()
    shown = utxod("config", "show", "--config", api.daemon.config).stdout.decode()
    assert "\naddress_hash = false\n" in shown and "\npayment_credential = true\n" in shown
    assert "\n# strategy = " in shown


@pytest.mark.configured(utxo={"enabled": False})
def test_a_daemon_without_the_utxo_store(api: Api) -> None:
    for path in documented("/health", "/docs", "/openapi.json", "/messages.json"):
        if path != "/":
            failure(api.ask(path), 503, "not_enabled", "not enabled")
    failure(api.ask("/nothing"), 404, "unknown_path")
    failure(api.ask("/api/v1/tip", "POST"), 405, "method_not_allowed")
    assert api.get("/health/live")["status"] == "live"
    ready = api.ask("/health/ready")
    assert (ready.status_code, ready.json()["status"]) == (503, "not_enabled")
    assert api.get("/openapi.json")["openapi"].startswith("3.") and api.get("/messages.json")["$defs"]
    assert api.ask("/docs").status_code == api.ask("/").status_code == 200


def test_events_are_recent_facts_of_the_change_log(api: Api) -> None:
    path = "/api/v1/events"
    api.feed(FIRST, SECOND, back_to(FIRST))
    facts = api.get(path)
    assert api.daemon.term() == 0
    api.daemon.start()
    api.web.until("/health/live", 200)
    assert api.get(path) == api.get(f"{path}?type=RolledBack&type=BlockCommitted&type=Pruned") == facts
    assert api.get(f"{path}?type=RolledBack") == facts[:1]
    failure(api.ask(f"{path}?type=TxStatusChanged"), 400, "bad_parameter")
    kinds = [(fact["type"], fact["sequence"], fact.get("height")) for fact in facts]
    # fact 3 is about a transaction of the block that was rolled back
    assert kinds == [("RolledBack", 4, None), ("BlockCommitted", 2, 2), ("BlockCommitted", 1, 1)]
    assert {name: facts[1][name] for name in ("height", "slot", "hash")} == point(SECOND)
    assert facts[0]["heard_at"] >= facts[-1]["heard_at"] > 1_700_000_000
