"""Requests that our contract of Kupo's API allows and forbids, and answers that it describes."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from typing import Any
from urllib.parse import quote, urlencode

import jsonschema_rs
import pytest
from chain_model import datum_of, scripts_of
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from kupo_contract import DOCUMENT, SCHEMA
from preview import CODEC, blocks, coins, served
from questions import Api, short_folder
from schemathesis import GenerationMode
from schemathesis.specs.openapi.checks import (
    content_type_conformance,
    response_headers_conformance,
    response_schema_conformance,
    status_code_conformance,
)

from daemon.http.kupo.parameters import FLAGS, VALUES
from storage.indexes import stake_credential

OPERATIONS: dict[str, Any] = {made.ok().label: made.ok() for made in SCHEMA.get_all_operations()}
CHECKS = [
    status_code_conformance,
    content_type_conformance,
    response_headers_conformance,
    response_schema_conformance,
]
NO_VALUE = FLAGS | {"strict"}
QUANTITIES = "application/json;asset-quantity=string"


@pytest.fixture(scope="module")
def kupo() -> Iterator[Api]:
    with short_folder() as folder, served(folder) as api:
        yield api


@pytest.fixture(scope="module")
def known() -> dict[str, list[str]]:
    """Return parameters that find something."""
    live = [coin for coin in coins().values() if not coin.spend and coin.output.assets]
    coin = next(coin for coin in live if stake_credential(coin.output.address) and coin.output.address[0] == 0)
    address, (policy, name, _) = coin.output.address, coin.output.assets[0]
    payment, stake, txid = address[1:29].hex(), address[29:57].hex(), coin.txid.hex()
    block = blocks()[40]
    bounds = [str(block.slot), f"{block.slot}.{block.hash.hex()}", f"{block.slot}.{'00' * 32}"]
    patterns = ["*", "*/*", CODEC.write(address), address.hex(), f"{payment}/*", f"*/{stake}", f"{payment}/{stake}"]
    patterns += [f"{policy.hex()}.*", f"{policy.hex()}.{name.hex()}", f"*@{txid}", f"{coin.number}@{txid}"]
    return {
        "pattern": patterns,
        "datum_hash": [digest.hex() for each in coins().values() if (digest := datum_of(each))][:3],
        "script_hash": [digest.hex() for digest, _, _ in scripts_of(coins())][:3],
        "slot": [str(block.slot), str((block.slot or 0) + 1), "0"],
        "policy_id": [policy.hex()],
        "asset_name": [name.hex()],
        "transaction_id": [txid],
        "If-None-Match": [blocks()[-1].hash.hex()],
        **dict.fromkeys(("created_after", "created_before", "spent_after", "spent_before"), bounds),
    }


def test_the_contract_names_every_parameter() -> None:
    for schema in DOCUMENT["components"]["schemas"].values():
        jsonschema_rs.Draft202012Validator({**schema, "components": DOCUMENT["components"]})
    parameters = DOCUMENT["components"]["parameters"].values()
    assert {each["name"] for each in parameters if each["in"] == "query"} == FLAGS | VALUES
    assert {each["name"] for each in parameters if each.get("allowEmptyValue")} == FLAGS


QUESTIONS = [(label, GenerationMode.POSITIVE) for label in OPERATIONS] + [
    (label, GenerationMode.NEGATIVE)
    for label, operation in OPERATIONS.items()
    if label.startswith(("GET /matches", "GET /datums", "GET /scripts", "GET /checkpoints/", "GET /metadata"))
]


@pytest.mark.parametrize(("label", "mode"), QUESTIONS)
def test_the_contract_holds(kupo: Api, known: dict[str, list[str]], label: str, mode: GenerationMode) -> None:
    operation, met = OPERATIONS[label], Counter[int]()

    @settings(max_examples=25, deadline=None, database=None, suppress_health_check=[*HealthCheck])
    @given(case=operation.as_strategy(generation_mode=mode), drawn=st.data())
    def ask(case: Any, drawn: st.DataObject) -> None:
        met[answer_to(kupo, case, known if mode is GenerationMode.POSITIVE else {}, drawn)] += 1

    ask()
    if mode is GenerationMode.POSITIVE and "200" in operation.definition.raw["responses"]:
        assert met[200] or label == "GET /health", met
        assert met[200] + met[304] > 10 or "matches" not in label, met


def answer_to(api: Api, case: Any, known: dict[str, list[str]], drawn: st.DataObject) -> int:
    """Ask, hold the answer to the contract, and return its status."""
    if known and case.query:  # most requests with many parameters contradict themselves
        kept = drawn.draw(st.sets(st.sampled_from(sorted(case.query)), max_size=3))
        case.query = {name: value for name, value in case.query.items() if name in kept}
    for values in (case.path_parameters, case.query, case.headers):
        for name in [*values] if values else []:
            if name == "cursor":
                del values[name]  # one that fits is not made at random
            elif name in known and (name == "pattern" or drawn.draw(st.integers(0, 3))):
                values[name] = drawn.draw(st.sampled_from(known[name]))
    request = case.as_transport_kwargs(base_url="http://localhost")
    flags = [name for name, value in (case.query or {}).items() if name in NO_VALUE and value == ""]
    others = {name: value for name, value in (request.get("params") or {}).items() if name not in flags}
    path = "/kupo" + request["url"].removeprefix("http://localhost")
    query = "&".join([*map(quote, flags), *([urlencode(others, doseq=True)] if others else [])])
    accept = drawn.draw(st.sampled_from(["application/json", QUANTITIES, "text/plain"]))
    headers = {name: str(value) for name, value in (case.headers or {}).items() if name == "If-None-Match"}
    try:
        answer = api.ask(f"{path}?{query}" if query else path, case.method, Accept=accept, **headers)
    except UnicodeEncodeError:  # not a header
        return 0
    described = answer.status_code == 404 and "404" not in case.operation.definition.raw["responses"]
    if described:  # what was made is another path
        assert set(answer.json()) == {"hint"}
    else:
        case.validate_response(answer, checks=CHECKS)
    return answer.status_code
