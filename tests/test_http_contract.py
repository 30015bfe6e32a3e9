"""The OpenAPI document against the routes, and requests that it allows and forbids against a real daemon."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterator
from hashlib import blake2b
from pathlib import Path
from typing import Any

import jsonschema_rs
import pytest
import schemathesis
from daemons import running
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from questions import Web, free_port, short_folder
from scenarios import address, at, back_to, block, chain, digest, output, tx
from schemathesis import GenerationMode
from schemathesis.specs.openapi.checks import (
    content_type_conformance,
    response_headers_conformance,
    response_schema_conformance,
    status_code_conformance,
)
from starlette.routing import Route

from daemon.http.app import Site
from daemon.http.daemon_link import DaemonLink
from daemon.http.openapi import document
from daemon.turns import Turns
from handlers.addresses import codec
from handlers.query import Query
from storage.indexes import NAMES
from storage.windows import Windows

DOCUMENT = document()
SCHEMA: Any = schemathesis.openapi.from_dict(DOCUMENT)
OPERATIONS: dict[str, Any] = {made.ok().label: made.ok() for made in SCHEMA.get_all_operations()}
CHECKS = [
    status_code_conformance,
    content_type_conformance,
    response_headers_conformance,
    response_schema_conformance,
]
BASE = b"\x01" + digest("credential", "ann", size=28) + digest("credential", "delegate", size=28)
KNOWN: dict[str, list[Any]] = {  # parameters that find something
    "address": [address(name).hex() for name in ("ann", "bob", "nobody")]
    + [codec("cardano", "mainnet").write(address("ann"))],
    "credential": [digest("credential", name, size=28).hex() for name in ("ann", "bob", "nobody")],
    "tx_hash": [digest("tx", name).hex() for name in ("many", "rich", "spend", "1", "5")],
    "stake": [digest("credential", name, size=28).hex() for name in ("delegate", "nobody")]
    + [codec("cardano", "mainnet").stake(BASE)],
    "txid": [digest("tx", name).hex() for name in ("many", "waits", "lost", "large", "spend", "nobody")],
    "index": [0, 1, 2, 39],
    "policy": [bytes(28).hex(), "ab" * 28],
    "unit": [bytes(28).hex() + b"x".hex(), "ab" * 28],
    "datum_hash": [blake2b(b"\x00", digest_size=32).hexdigest(), "ab" * 32],
    "script_hash": [bytes(28).hex(), "ab" * 28],
    "block": [1, 2, digest("block", 1, "").hex()],
}
SINCE = ["origin", "0", "3", "99999", f"1.{digest('block', 1, '').hex()}", f"3.{digest('block', 3, 'gone').hex()}"]
RICH = output(
    "ann", 7, assets=[[bytes(28), b"x", 1 << 62]], inline_datum=b"\x00", script_ref=b"\x01", script_ref_hash=bytes(28)
)
FIRST = block(
    None, tx("many", *(output("ann", n) for n in range(40)), raw=b"\x00\xff"), tx("rich", RICH), time=1, epoch=2
)
SPEND = tx("spend", output("bob"), spends=[at("many", 0), at("many", 1)])
DELEGATED = tx("delegated", {"address": BASE, "value": 5})
WAITS = tx("waits", output("cid"), output("dan"), spends=[at("many", 3), at("many", 4)], raw=b"\x00")
LOST = tx("lost", output("cid"), spends=[at("many", 0)])
LARGE = tx("large", *(output("eve", n) for n in range(50)), spends=[at("many", 5)], raw=bytes(99))
BAD = tx("bad", valid=False, collateral=[at("many", 2)], collateral_return=output("ann", 3))


@pytest.fixture(scope="module")
def web() -> Iterator[Web]:
    port = free_port()
    http = {"workers": 1, "listen": f"127.0.0.1:{port}", "ready_grace": "1h"}
    utxo = {"index": dict.fromkeys(NAMES, True), "store": "mmr"}
    large = {"batch_size": 20}
    with (
        short_folder() as folder,
        running(folder, http=http, utxo=utxo, transactions=large) as daemon,
        Web(port) as web,
    ):
        web.get("/health/live")
        with daemon.client() as client:
            second = block(FIRST, SPEND, BAD, DELEGATED)
            for message in (FIRST, *({"type": "TxSubmitted", "tx": each} for each in (WAITS, LOST, LARGE))):
                assert client.ask(message)["status"] in {"applied", "accepted"}
            client.feed([second, *chain(2, second, branch="gone"), back_to(second), *chain(3, second)])
        yield web


def resolved(schema: Any, components: dict[str, Any]) -> Any:
    return {**schema, "components": {"schemas": components}}


def test_the_document_is_openapi(web: Web) -> None:
    assert web.get("/openapi.json") == DOCUMENT
    assert DOCUMENT["openapi"] == "3.1.0"
    components = DOCUMENT["components"]["schemas"]
    text = str(DOCUMENT)
    assert set(re.findall(r"#/components/schemas/(\w+)", text)) <= set(components)
    for schema in components.values():
        jsonschema_rs.Draft202012Validator(resolved(schema, components))
    for path, verbs in DOCUMENT["paths"].items():
        assert list(verbs) == ["get"]
        assert verbs["get"]["summary"].endswith(".")
        reported = {each["name"]: each for each in verbs["get"]["parameters"]}
        assert {name for name, each in reported.items() if each["in"] == "path"} == set(re.findall(r"{(\w+)}", path))
        assert all(each["required"] for each in reported.values() if each["in"] == "path")
        for status, answer in verbs["get"]["responses"].items():
            assert re.fullmatch("[2345]..", status) and answer["description"]


def test_the_document_describes_token_headers_and_encodings() -> None:
    assert DOCUMENT["components"]["securitySchemes"]["token"]["scheme"] == "bearer"
    tip = {"X-Tip-Height", "X-Tip-Slot", "X-Tip-Hash", "ETag"}
    for path, verbs in DOCUMENT["paths"].items():
        route, opened = verbs["get"], path in ("/", "/docs", "/health/live", "/health/ready")
        assert ("401" in route["responses"]) == ("security" in route) == (not opened), path
        assert opened or route["security"] == [{"token": []}, {}]  # where there is no token, nobody is asked
        for status, printed in route["responses"].items():
            assert set(printed["headers"]) >= (tip if status != "401" else {"WWW-Authenticate"}), (path, status)
        kinds = set(route["responses"].get("200", {"content": {}})["content"])
        lists = path.endswith(("/utxos", "/changes", "/pruner/jobs", "/transactions", "/txs"))
        outputs = (path.endswith("/utxos") and "/txs/" not in path) or path.startswith("/api/v1/utxos/")
        outputs = outputs or path.endswith(("/delta", "/datums/{datum_hash}"))
        assert (kinds == {"application/json", "application/cbor"}) == outputs, path
        assert ("X-Next-Cursor" in route["responses"].get("200", {"headers": ()})["headers"]) == lists
        assert ("409" in route["responses"]) == (lists and path != "/api/v1/txs"), path  # its cursors stay good
    assert set(DOCUMENT["paths"]["/metrics"]["get"]["responses"]["200"]["content"]) == {"text/plain"}


def test_the_document_and_the_routes_are_the_same() -> None:
    site = Site.__new__(Site)
    site.query, site.transactions, site.jobs, site.recovery = Query.__new__(Query), None, None, None
    site.mmr, site.windows, site.daemon_link = None, Windows(1, 1), DaemonLink(Path())
    site.codec, site.turns = codec("cardano", "mainnet"), Turns()
    routes: dict[str, Route] = {route.path: route for route in site.routes()}
    assert set(routes) == set(DOCUMENT["paths"])
    for route in routes.values():
        assert route.methods == {"GET", "HEAD"}


def check(web: Web, case: Any, met: Counter[int]) -> None:
    """Compare an answer with the document. A 503 states that something is not kept and is accepted."""
    answer = case.call(base_url=web.url, timeout=30)
    met[answer.status_code] += 1
    assert answer.status_code < 500 or answer.status_code == 503, answer.text
    if answer.status_code in (404, 405) and str(answer.status_code) not in case.operation.definition.raw["responses"]:
        assert answer.json()["error"] in ("unknown_path", "method_not_allowed")  # what was made is another path
        return
    case.validate_response(answer, checks=CHECKS)


QUESTIONS = [(label, GenerationMode.POSITIVE) for label in OPERATIONS] + [
    (label, GenerationMode.NEGATIVE)  # where there is something that the document forbids
    for label, operation in OPERATIONS.items()
    if any(each["schema"] != {"type": "string"} for each in operation.definition.raw["parameters"])
]


@pytest.mark.parametrize(("label", "mode"), QUESTIONS)
def test_answers_to_generated_requests_match_the_document(web: Web, label: str, mode: GenerationMode) -> None:
    operation, met = OPERATIONS[label], Counter[int]()

    @settings(max_examples=12, deadline=None, database=None, suppress_health_check=[*HealthCheck])
    @given(case=operation.as_strategy(generation_mode=mode), known=st.data())
    def ask(case: Any, known: st.DataObject) -> None:
        for name in case.path_parameters:
            if mode is GenerationMode.POSITIVE and known.draw(st.integers(0, 3)):
                case.path_parameters[name] = known.draw(st.sampled_from(KNOWN[name]))
        if label.endswith("/changes") and mode is GenerationMode.POSITIVE and known.draw(st.integers(0, 3)):
            case.query = {"from": known.draw(st.sampled_from(SINCE))}
        check(web, case, met)

    ask()
    if mode is GenerationMode.POSITIVE and "200" in operation.definition.raw["responses"]:
        assert met[200], met
