"""The conformance cases of queries and balances (`conformance/chain.json`) over HTTP: a test for each, named after it.

Several cases are about systems with other queries. The docstring says what takes their place here.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from hashlib import blake2b
from itertools import chain as joined
from pathlib import Path
from typing import Any

import pytest
from daemons import Message
from questions import Api, failure, outpoints, running_api, short_folder
from scenarios import address, at, back_to, digest, output, point, tx
from scenarios import block as plain_block

CASES = json.loads((Path(__file__).parent / "conformance" / "chain.json").read_text())
AREAS = {"query", "balance"}
POLICY = digest("policy", size=28)
C = [digest("c", n, size=28) for n in range(3)]
BYRON = bytes.fromhex("82d818582183581cf11939f42338d59e21baa08645ac1f0038d5ee969f99fe98f402fe79a0001ac9d64e5b")


@pytest.fixture(scope="module")
def daemon() -> Iterator[Api]:
    with short_folder() as folder, running_api(folder, utxo={"index": {"stake_credential": True}}) as api:
        yield api


@pytest.fixture
def empty(daemon: Api) -> Iterator[Api]:
    yield daemon
    daemon.feed(back_to("origin"))


def block(parent: Message | None, *txs: Message, branch: str = "", **fields: Any) -> Message:
    """Return a block whose hash depends on its transactions, because tests share a daemon."""
    return plain_block(parent, *txs, branch=f"{branch}{txs}", **fields)


def base(payment: bytes, stake: bytes, kind: int = 0) -> bytes:
    return bytes((kind << 4 | 1,)) + payment + stake


def to(raw: bytes, value: int = 1, **fields: Any) -> Message:
    return {"address": raw, "value": value} | fields


def utxos(api: Api, path: str, query: str = "") -> list[Any]:
    found: list[Any] = api.get(f"/api/v1/{path}/utxos{query}")
    return found


def lovelace(api: Api, path: str) -> int:
    found = api.get(f"/api/v1/{path}/balance")
    assert found["amounts"][0]["quantity"] == str(found["lovelace_amount"])
    value: int = found["lovelace_amount"]
    return value


def twenty_five() -> list[Message]:
    """Return blocks with 25 outputs to one address, two of them in one slot (and one block)."""
    story: list[Message] = []
    for n in range(24):
        name = f"paid {n}"
        txs = [tx(name, output("A", n))] if n != 7 else [tx(name, output("A", 7)), tx("twin", output("A", 70))]
        story.append(block(story[-1] if story else None, *txs))
    return story


BLOCKS = twenty_five()
A = f"addresses/{address('A').hex()}"
ALL = [(paid["txid"].hex(), 0) for paid in joined.from_iterable(each["txs"] for each in BLOCKS)]


@pytest.fixture(scope="module")
def paid() -> Iterator[Api]:
    with short_folder() as folder, running_api(folder) as api:
        api.feed(*BLOCKS)
        yield api


def test_utxo_073_the_balance_of_a_stake_credential_follows_a_rollback(empty: Api) -> None:
    first = block(None, tx("in", to(base(C[0], C[1]), 1000)), slot=100)
    between = block(first, slot=199)
    path = f"stakes/{C[1].hex()}"
    empty.feed(first, between)
    assert lovelace(empty, path) == 1000
    empty.feed(block(between, tx("out", spends=[at("in")]), slot=200))
    assert (lovelace(empty, path), utxos(empty, path)) == (0, [])
    empty.feed({"type": "Rollback", "to": {"slot": 199}})
    assert lovelace(empty, path) == 1000


def test_utxo_074_change_counts_for_the_stake_credential(empty: Api) -> None:
    first = block(None, tx("in", to(base(C[0], C[1]), 1000)), slot=100)
    path = f"stakes/{C[1].hex()}"
    spends = tx("out", to(base(C[2], C[1]), 400), output("elsewhere", 600), spends=[at("in")])
    empty.feed(first, block(first, spends, slot=200))
    assert (lovelace(empty, path), outpoints(utxos(empty, path))) == (400, [(digest("tx", "out").hex(), 0)])
    empty.feed({"type": "Rollback", "to": {"slot": 199}})
    assert (lovelace(empty, path), outpoints(utxos(empty, path))) == (1000, [(digest("tx", "in").hex(), 0)])


def test_utxo_075_a_balance_is_of_live_outputs_only(empty: Api) -> None:
    def held(n: int, *names: bytes) -> Message:
        return output("A", n, assets=[[POLICY, name, n] for name in names])

    first = block(None, tx("in", held(1, b"x", b"y"), held(2, b"x"), held(4, b"z"), output("A", 8)))
    empty.feed(first, block(first, tx("out", output("B"), spends=[at("in", 0), at("in", 2)])))
    found = empty.get(f"/api/v1/{A}/balance")
    assert (found["lovelace_amount"], found["utxo_count"]) == (10, 2)
    assert [(each["unit"], each["quantity"]) for each in found["amounts"]] == [
        ("lovelace", "10"),
        (f"{POLICY.hex()}{b'x'.hex()}", "2"),
    ]


def test_utxo_076_pages_are_in_the_order_of_the_chain(paid: Api) -> None:
    """Within a slot the contract orders by the place in the block, the case by the hash of the transaction."""
    pages = [outpoints(utxos(paid, A, f"?count=10&page={page}")) for page in (1, 2, 3)]
    assert [len(page) for page in pages] == [10, 10, 5]
    assert [*joined.from_iterable(pages)] == ALL
    assert [outpoints(page) for page in paid.web.pages(f"/api/v1/{A}/utxos", 10)] == pages


def test_utxo_077_there_is_no_page_0(paid: Api) -> None:
    failure(paid.ask(f"/api/v1/{A}/utxos?count=10&page=0"), 400, "bad_parameter", "page")
    assert outpoints(utxos(paid, A, "?count=10&page=1")) == ALL[:10]


def test_utxo_078_descending_is_the_exact_reverse(paid: Api) -> None:
    assert utxos(paid, A, "?order=desc") == utxos(paid, A)[::-1]
    pages = [outpoints(page) for page in paid.web.pages(f"/api/v1/{A}/utxos", 10, "desc")]
    assert [*joined.from_iterable(pages)] == ALL[::-1]


def test_utxo_079_what_is_filtered_by_asset_is_filtered_before_paging(empty: Api) -> None:
    held = [output("A", n, assets=[[POLICY, b"X", n]] if n > 20 else []) for n in range(1, 31)]
    other = [output("A", 99, assets=[[POLICY, b"Y", 5]]), output("B", 98, assets=[[POLICY, b"X", 5]])]
    empty.feed(block(None, tx("held", *held, *other)))
    of_x = f"&asset={POLICY.hex()}{b'X'.hex()}"
    page = utxos(empty, A, f"?count=10&page=1{of_x}")
    assert [utxo["lovelace_amount"] for utxo in page] == [*range(21, 31)]


def test_utxo_082_the_hash_of_an_inline_datum_is_of_its_original_bytes(empty: Api) -> None:
    odd = bytes.fromhex("9f1b0000000000000001ff")  # an array without a length, a number longer than it need be
    empty.feed(block(None, tx("in", output("A", inline_datum=odd))))
    [found] = utxos(empty, A)
    assert found["inline_datum"] == odd.hex()
    assert found["data_hash"] == blake2b(odd, digest_size=32).hexdigest()


def test_utxo_083_a_large_quantity_is_exact(empty: Api) -> None:
    quantity = 9_223_371_692_031_396_353
    empty.feed(block(None, tx("in", output("A", quantity, assets=[[POLICY, b"X", quantity]]))))
    [found] = utxos(empty, A)
    assert [each["quantity"] for each in found["amounts"]] == [str(quantity)] * 2
    assert found["lovelace_amount"] == quantity
    assert f'"lovelace_amount":{quantity},' in empty.ask(f"/api/v1/{A}/utxos").text


FIXTURE = [b"\x61" + C[0], b"\x71" + C[1], base(C[0], C[2], 2), base(C[1], C[0]), BYRON]


def test_utxo_085_a_payment_credential_finds_every_kind_of_address_with_it(empty: Api) -> None:
    empty.feed(block(None, tx("in", *map(to, FIXTURE))))
    found = utxos(empty, f"credentials/{C[0].hex()}")
    assert [utxo["output_index"] for utxo in found] == [0, 2]


def test_utxo_086_a_stake_credential_finds_delegating_addresses_only(empty: Api) -> None:
    empty.feed(block(None, tx("in", *map(to, FIXTURE))))
    found = utxos(empty, f"stakes/{C[0].hex()}")
    assert [utxo["output_index"] for utxo in found] == [3]
    assert utxos(empty, f"stakes/{found[0]['owner_stake_addr']}") == found  # and by its text
    assert utxos(empty, f"stakes/{found[0]['owner_addr']}") == found
    failure(empty.ask(f"/api/v1/stakes/{BYRON.hex()}/utxos"), 400, "bad_parameter", "stake")


def test_utxo_087_a_cursor_of_a_block_that_was_rolled_back_is_refused(empty: Api) -> None:
    first = block(None, tx("in", *(output("A", n) for n in range(9))))
    empty.feed(first, second := block(first))
    cursor = empty.ask(f"/api/v1/{A}/utxos?count=5").headers["x-next-cursor"]
    assert len(utxos(empty, A, f"?cursor={cursor}")) == 4
    empty.feed(back_to(first), block(first, branch="other"))
    answer = empty.ask(f"/api/v1/{A}/utxos?cursor={cursor}")
    failure(answer, 409, "cursor_gone")
    assert second["hash"].hex() != answer.headers["x-tip-hash"] == empty.get("/api/v1/tip")["hash"]
    empty.feed(back_to(first))
    answer = empty.ask(f"/api/v1/{A}/utxos?cursor={cursor}")
    failure(answer, 409, "cursor_gone")
    assert answer.headers["x-tip-hash"] == point(first)["hash"]


@pytest.mark.parametrize("query", ["count=14&count=42", "count=foo", "page=-57", "page=2&cursor=x", "asset=zz"])
def test_utxo_088_bad_parameters_are_refused_each(paid: Api, query: str) -> None:
    failure(paid.ask(f"/api/v1/{A}/utxos?{query}"), 400, "bad_parameter", query.partition("=")[0])


def test_utxo_088_good_and_unknown_parameters_are_not(paid: Api) -> None:
    assert outpoints(utxos(paid, A, "?count=14&order=desc&colour=blue")) == ALL[::-1][:14]


def test_utxo_090_paths_methods_and_parameters_that_are_wrong(paid: Api) -> None:
    failure(paid.ask("/api/v1/nothing"), 404, "unknown_path")
    failure(paid.ask("/api/v1/tip", "POST"), 405, "method_not_allowed")
    failure(paid.ask(f"/api/v1/{A}/utxos?order=foo"), 400, "bad_parameter", "order")
    failure(paid.ask("/api/v1/addresses/a/b/c/utxos"), 404, "unknown_path")
    failure(paid.ask("/api/v1/addresses/a*b*c/utxos"), 400, "bad_address")


def test_every_case_has_its_test() -> None:
    here = {f"UTXO-{found[1]}" for name in globals() if (found := re.match(r"test_utxo_(\d{3})_\w+", name))}
    assert here == {case["id"] for case in CASES if case["area"] in AREAS}
