"""Lists over HTTP: count, order, page and cursor. What they contain is compared with a model in `test_query`."""

from __future__ import annotations

from base64 import urlsafe_b64encode
from collections.abc import Iterator
from hashlib import sha256
from urllib.parse import quote

import cbor2
import msgspec
import pytest
from questions import Api, check_pages, failure, outpoints, running_api, short_folder
from scenarios import address, at, block, digest, output, tx
from test_http import AS_CBOR, POLICY

from handlers.walk import PLACE

PAID = [tx(f"{height}/{n}", output("ann", height * 10 + n), output("ann")) for height in range(1, 5) for n in range(3)]
ANN = f"/api/v1/addresses/{address('ann').hex()}/utxos"
ALL = [(made["txid"].hex(), index) for made in PAID for index in range(2)]


@pytest.fixture(scope="module")
def listed() -> Iterator[Api]:
    blocks = [block(None, *PAID[:3])]
    for height in range(1, 4):
        blocks.append(block(blocks[-1], *PAID[height * 3 : height * 3 + 3]))
    blocks.append(block(blocks[-1], tx("crowd", *(output("crowd", n) for n in range(1, 1101)))))
    with short_folder() as folder, running_api(folder) as api:
        api.feed(*blocks)
        yield api


@pytest.mark.parametrize("order", ["asc", "desc"])
@pytest.mark.parametrize("count", [1, 5, 8, 23, 24, 1000])
def test_page_and_cursor_give_the_same_lists(listed: Api, count: int, order: str) -> None:
    whole = listed.get(f"{ANN}?order={order}")
    assert outpoints(whole) == (ALL if order == "asc" else ALL[::-1])
    check_pages(listed.web, ANN, whole, count, order)
    for page, more in ((1, count < len(ALL)), (-(-len(ALL) // count), False)):
        assert ("x-next-cursor" in listed.ask(f"{ANN}?count={count}&page={page}").headers) == more


def test_a_page_has_100_outputs_unless_a_count_is_given(listed: Api) -> None:
    crowd = f"/api/v1/addresses/{address('crowd').hex()}/utxos"
    first = listed.ask(crowd)
    assert [each["lovelace_amount"] for each in first.json()] == [*range(1, 101)] and "x-next-cursor" in first.headers
    assert len(listed.get(crowd + "?count=1000")) == 1000
    assert [each["lovelace_amount"] for each in listed.get(crowd + "?count=1000&page=2")] == [*range(1001, 1101)]
    assert listed.get(crowd + "?count=1000&page=4294967296") == []


NO_NUMBERS = ["0", "-1", "1.5", "", "+1", " 1", "١", "99999999999", "1_0", "0x10"]
REFUSED: list[tuple[str, str]] = [
    *((f"{name}={quote(value)}", name) for name in ("count", "page") for value in NO_NUMBERS),
    *(("count=1001", "count"), ("page=4294967297", "page")),
    *((f"order={value}", "order") for value in ("foo", "", "ASC", "asc,desc")),
    *((query, "more than once") for query in ("order=asc&order=desc", "cursor=a&cursor=b", "page=1&count=2&page=2")),
    *((f"asset={value}", "asset") for value in ("", "ab", "g" * 56, POLICY + "a", POLICY + "00" * 33, "gold")),
]


@pytest.mark.parametrize(("query", "named"), REFUSED)
def test_parameters_that_are_refused(listed: Api, query: str, named: str) -> None:
    failure(listed.ask(f"{ANN}?{query}"), 400, "bad_parameter", named)


def test_cursors(listed: Api) -> None:
    good: str = listed.ask(f"{ANN}?count=5").headers["x-next-cursor"]
    assert outpoints(listed.get(f"{ANN}?cursor={good}&count=2")) == ALL[5:7]
    assert outpoints(listed.get(f"{ANN}?cursor={good}")) == ALL[5:]
    failure(listed.ask(f"{ANN}?cursor={good}&page=1"), 400, "bad_parameter", "page and cursor")
    changed = [good[:-1], good + "A", good[1:], "!" + good, good + "!", good.replace(good[3], "+", 1)]
    for cursor in ("", "x", "====", *changed, "é", "A" * 9000):
        failure(listed.ask(f"{ANN}?cursor={quote(cursor)}"), 400, "bad_parameter", "cursor")
    other = ANN.replace(address("ann").hex(), address("bob").hex())
    credential = f"/api/v1/credentials/{digest('credential', 'ann', size=28).hex()}/utxos"
    for path in (f"{ANN}?order=desc", f"{ANN}?asset={POLICY}", f"{credential}?count=5", f"{other}?count=5"):
        failure(listed.ask(f"{path}&cursor={good}"), 400, "bad_parameter", "cursor")
    key, size, statuses = sha256(address("ann")).digest(), PLACE.size, set[int]()
    for place in (b"\xff" * size, bytes(size), b"\xff" * (size - 1) + b"\xfe", b"\xff" * (size - 1), b""):
        for ordinal in (0, 4, 6, -1, 1 << 32, 1 << 63):
            for order in ("asc", "desc"):  # well formed, and never returned by a daemon
                raw = msgspec.msgpack.encode([ordinal, bytes(32), place, order, key])
                cursor = urlsafe_b64encode(raw).rstrip(b"=").decode()
                statuses.add(listed.ask(f"{ANN}?order={order}&cursor={cursor}").status_code)
    assert statuses == {400, 409}


@pytest.mark.configured(utxo={"index": {"policy": True}})
def test_a_list_of_those_that_hold_a_policy(api: Api) -> None:
    gold, silver = ([bytes.fromhex(POLICY), name, 1] for name in (b"gold", b"silver"))
    other = [bytes(28), b"gold", 1]
    paid = [output("ann", 1, assets=[gold]), output("bob", 2, assets=[gold, silver, other]), output("ann", 3)]
    made = block(None, tx("a", *paid, output("cid", 4, assets=[other]), output("bob", 5, assets=[silver])))
    spend = block(made, tx("b", output("dan", 6, assets=[gold]), spends=[at("a", 4)]))
    path = f"/api/v1/policies/{POLICY}/utxos"
    api.feed(made)
    assert [utxo["lovelace_amount"] for utxo in api.get(path)] == [1, 2, 5]
    api.feed(spend)
    assert [utxo["lovelace_amount"] for utxo in api.get(path.replace(POLICY, POLICY.upper()))] == [1, 2, 6]
    assert [utxo["lovelace_amount"] for utxo in api.get(f"{path}?order=desc&count=2")] == [6, 2]
    assert [utxo["lovelace_amount"] for utxo in api.get(f"{path}?asset={'00' * 28}676f6c64")] == [2]
    assert len(cbor2.loads(api.ask(path, **AS_CBOR).content)) == 3
    assert api.get(f"/api/v1/policies/{'cd' * 28}/utxos") == []
    for text in ("ab", POLICY + "00", "zz" * 28):
        failure(api.ask(f"/api/v1/policies/{text}/utxos"), 400, "bad_parameter", "policy", "56 hex digits")
    failure(api.ask(f"/api/v1/assets/{POLICY}/utxos"), 503, "not_enabled", "utxo.index.asset")


@pytest.mark.configured(utxo={"index": {"asset": True}})
def test_a_list_of_those_that_hold_an_asset(api: Api) -> None:
    held = {name: [bytes.fromhex(POLICY), name, 1] for name in (b"", b"gold", b"golden")}
    paid = [
        output("ann", n, assets=[held[name] for name in names])
        for n, names in enumerate(((b"gold",), (b"golden", b"gold"), (b"",), (b"golden",), (), (b"gold",)))
    ]
    made = block(None, tx("a", *paid))
    spend = block(made, tx("b", output("bob", 9, assets=[held[b"gold"]]), spends=[at("a")]))
    api.feed(made, spend)

    def listed(path: str) -> list[int]:
        return [utxo["lovelace_amount"] for utxo in api.get(f"/api/v1/assets/{POLICY}{path}")]

    assert listed("676f6c64/utxos") == [1, 5, 9] and listed("676F6C64656E/utxos") == [1, 3]
    assert listed("/utxos") == [2] and listed("00/utxos") == []
    assert listed("676f6c64/utxos?order=desc&count=2") == [9, 5]
    assert listed(f"676f6c64/utxos?asset={POLICY}676f6c64656e") == [1]
    cursor = api.ask(f"/api/v1/assets/{POLICY}676f6c64/utxos?count=2").headers["x-next-cursor"]
    assert listed(f"676f6c64/utxos?cursor={cursor}") == [9]
    assert len(cbor2.loads(api.ask(f"/api/v1/assets/{POLICY}/utxos", **AS_CBOR).content)) == 1
    for text in ("ab", POLICY[:-2], POLICY + "0", POLICY + "00" * 33, "zz" * 28):
        failure(api.ask(f"/api/v1/assets/{text}/utxos"), 400, "bad_parameter", "unit", "policy id")
    failure(api.ask(f"/api/v1/policies/{POLICY}/utxos"), 503, "not_enabled", "utxo.index.policy")
