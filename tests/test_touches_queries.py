"""What touched an address, asked over HTTP and on the command line."""

from __future__ import annotations

from typing import Any

import pytest
from questions import Api, failure, running_api, short_folder
from scenarios import address, at, back_to, block, output, tx
from test_cli_query import utxod

ANN = address("ann").hex()
PATH = f"/api/v1/addresses/{ANN}/transactions"


def story() -> tuple[list[dict[str, Any]], list[str]]:
    """Return blocks, far more than a rollback reaches, and the transactions that touch ann in order."""
    first = block(None, tx("paid", output("ann", 5), output("bob", 6)), time=1_700_000_000)
    second = block(first, tx("spent", output("bob", 5), spends=[at("paid")]), tx("other", output("bob")))
    third = block(second, tx("again", output("ann"), output("ann", 2), spends=[at("paid", 1)]))
    blocks = [first, second, third]
    for _ in range(20):
        blocks.append(block(blocks[-1]))
    return blocks, [at(name)[0].hex() for name in ("paid", "spent", "again")]


def hashes(found: list[dict[str, Any]]) -> list[str]:
    return [each["tx_hash"] for each in found]


@pytest.fixture(scope="module")
def fed_api() -> Any:
    utxo = {"rollback_window": 3, "prune_depth": 3, "index": {"history": True}}
    with short_folder() as folder, running_api(folder, utxo=utxo) as api:
        api.feed(*story()[0])
        yield api


def test_every_transaction_is_listed_long_after(fed_api: Api) -> None:
    blocks, txids = story()
    answer = fed_api.ask(PATH)
    assert hashes(answer.json()) == txids and answer.headers["x-history-from"] == "1"
    assert answer.json()[0] == {
        "tx_hash": txids[0],
        "block_height": 1,
        "block_hash": blocks[0]["hash"].hex(),
        "slot": 20,
        "block_time": 1_700_000_000,
    }
    assert hashes(fed_api.get(PATH + "?order=desc")) == txids[::-1]
    assert fed_api.ask(PATH, **{"If-None-Match": answer.headers["etag"]}).status_code == 304
    assert fed_api.get(f"/api/v1/addresses/{address('nobody').hex()}/transactions") == []


def test_the_status_shows_the_range_and_size_of_the_index(fed_api: Api) -> None:
    index = fed_api.get("/api/v1/status")["utxo"]["history"]
    assert index == {"from_height": 1, "entries": 7, "bytes": 7 * 16}  # three transactions touch two addresses
    assert "from height 1 on, 7 entries, 112.0 B" in utxod(fed_api.daemon, "status").out


def test_pages_go_on_by_cursor_and_by_number(fed_api: Api) -> None:
    _, txids = story()
    for order, expected in (("asc", txids), ("desc", txids[::-1])):
        assert [hashes(page) for page in fed_api.web.pages(PATH, 2, order)] == [expected[:2], expected[2:]]
        for page, txid in enumerate(expected, 1):
            assert hashes(fed_api.get(f"{PATH}?count=1&page={page}&order={order}")) == [txid]
    assert fed_api.get(f"{PATH}?page=9") == []
    cursor = fed_api.ask(f"{PATH}?count=2").headers["x-next-cursor"]
    failure(fed_api.ask(f"{PATH}?cursor={cursor}&order=desc"), 400, "bad_parameter", "cursor")
    failure(fed_api.ask(f"{PATH}?asset={'ab' * 28}"), 400, "bad_parameter", "asset")
    answer = fed_api.ask("/api/v1/addresses/x/transactions")
    failure(answer, 400, "bad_address", "address")
    assert answer.json()["hint"].startswith("accepted are bech32 (addr1…)")


def test_the_command_line_reports_the_same(fed_api: Api) -> None:
    _, txids = story()
    reported = utxod(fed_api.daemon, "query", "transactions", ANN, "--json").json()
    assert (
        reported["transactions"] == fed_api.get(PATH)
        and reported["next_cursor"] is None
        and reported["complete_from"] == 1
    )
    page = utxod(fed_api.daemon, "query", "transactions", ANN, "--count", "2")
    assert txids[1] in page.out and txids[2] not in page.out and "there are more: --cursor" in page.out
    assert "every transaction from height 1 on" in page.out
    assert "address" in utxod(fed_api.daemon, "query", "transactions", "x").one_line(2)


def test_a_rollback_takes_touches_back() -> None:
    with short_folder() as folder, running_api(folder, utxo={"index": {"history": True}}) as api:
        blocks, txids = story()
        api.feed(*blocks[:3])
        assert hashes(api.get(PATH)) == txids
        cursor = api.ask(f"{PATH}?count=1").headers["x-next-cursor"]
        api.feed(back_to(blocks[1]))
        assert hashes(api.get(PATH)) == txids[:2]
        failure(api.ask(f"{PATH}?cursor={cursor}"), 409, "cursor_gone")


def test_without_the_index_the_answer_names_it() -> None:
    with short_folder() as folder, running_api(folder) as api:
        api.feed(story()[0][0])
        failure(api.ask(PATH), 503, "not_enabled", "utxo.index.history")
        assert "utxo.index.history switches it on" in utxod(api.daemon, "query", "transactions", ANN).one_line(1)
