"""Two daemons are told the same chain, one keeps a history: over HTTP and on the command line they say the same."""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import Any

import pytest
from daemons import Message
from questions import Asked, asked, failure, short_folder, until
from stories import at, back_to, block, digest, output, point, tx
from test_cli_query import utxod
from test_http import (
    ABSENT,
    AS_CBOR,
    DATUM_HASH,
    FIRST,
    GENESIS,
    HERE,
    POLICY,
    RECOVERY,
    ROUTES,
    SECOND,
    TRANSACTIONS,
    VECTORS,
)

INDEX = {"stake_credential": True, "policy": True}
GOLD = f"{POLICY}676f6c64"


def story() -> Iterator[Message]:
    yield from (GENESIS, FIRST, SECOND)
    lost = block(SECOND, tx("lost", output("ann", 1), spends=[at("bare")]), branch="lost")
    yield from (lost, block(lost), back_to(SECOND))
    third = block(SECOND, tx("third", *(output("ann", n) for n in range(30)), spends=[at("datum")]), time=1_700_000_060)
    yield third
    yield block(third, tx("fourth", output("ann", 99), spends=[at("third", n) for n in range(3, 9)]))


def hears(asking: Asked) -> None:
    until(lambda: "daemon_away" not in asking.ask("/health/ready").text, "the worker has found its daemon")


NO_TIMES = {"enabled": False}  # its rows say when they were written


@pytest.fixture(scope="module")
def told() -> Iterator[tuple[Asked, Asked]]:
    with (
        short_folder() as one,
        short_folder() as two,
        asked(one, utxo={"index": INDEX}, recovery=NO_TIMES) as classic,
        asked(two, utxo={"index": INDEX}, recovery=NO_TIMES, layout="history") as history,
    ):
        for each in (classic, history):
            hears(each)
            each.feed(*story())
        yield classic, history


def questions() -> Iterator[str]:
    kinds = [kind for kind in ROUTES if kind not in ("health", "others")]
    for path in [*(path for kind in kinds for path in ROUTES[kind]), *TRANSACTIONS, *ABSENT, *RECOVERY]:
        yield path.format(**HERE)
    yield from ("/api/v1/tip", "/api/v1/changes?from=origin", "/health/live")
    for height in range(5):
        yield f"/api/v1/blocks/{height}/delta"
    owner = f"/api/v1/addresses/{VECTORS['base'][0]}"
    ann = "/api/v1/addresses/" + output("ann")["address"].hex()
    for path in (owner, ann):
        for order in ("asc", "desc"):
            for query in ("count=3", "count=3&page=3", "count=1000", f"asset={GOLD}", "count=7&page=99", "count=26"):
                yield f"{path}/utxos?order={order}&{query}"
        yield f"{path}/balance"
    for name, outputs in (("bare", 6), ("failed", 3), ("third", 31), ("lost", 1), ("pledge", 1)):
        for index in range(outputs):
            yield "/api/v1/utxos/" + at(name)[0].hex() + f"/{index}"
    yield from ("/api/v1/addresses/x/utxos", f"{ann}/utxos?cursor=x", "/api/v1/blocks/x/delta", "/nothing")


@pytest.mark.parametrize("form", [{}, AS_CBOR])
def test_every_route_says_the_same(told: tuple[Asked, Asked], form: dict[str, str]) -> None:
    found = set[int]()
    for path in questions():
        classic, history = (each.ask(path, **form) for each in told)
        assert history.status_code == classic.status_code, path
        if path != "/health/live":  # which names the store
            assert history.content == classic.content, path
            assert history.headers.get("etag") == classic.headers.get("etag"), path
        assert ("x-next-cursor" in history.headers) == ("x-next-cursor" in classic.headers), path
        for name in ("content-type", "x-tip-height", "x-tip-slot", "x-tip-hash"):
            assert history.headers[name] == classic.headers[name], path
        found.add(history.status_code)
    assert found == {200, 400, 404, 503}


def test_where_it_is(told: tuple[Asked, Asked]) -> None:
    """Status, metrics and facts differ in what is the store's own."""
    classic, history = (each.get("/api/v1/status") for each in told)
    assert (classic["utxo"].pop("store"), history["utxo"].pop("store")) == ("classic", "history")
    rows, others = history["utxo"].pop("rows"), classic["utxo"].pop("rows")
    assert rows["history_block"] == 5 and rows["history_output"] and not {"utxo_output", "utxo_addr"} & rows.keys()
    assert others["utxo_block"] == 5 and not [name for name in others if name.startswith("history")]
    assert history["utxo"] == classic["utxo"] and history["tip"] == classic["tip"]
    facts = [each.get("/api/v1/events") for each in told]
    assert [fact["type"] for fact in facts[0]] == [fact["type"] for fact in facts[1]] != []
    wanted = r"^utxod_(?:unspent|tip_\w+|rollback_floor\w+|prune_backlog\w*) .*"
    gauges = [re.findall(wanted, each.ask("/metrics").text, re.MULTILINE) for each in told]
    assert gauges[0] == gauges[1] and len(gauges[0]) >= 4
    assert all(each.get("/health/ready")["status"] == "ready" for each in told)


COMMANDS = [
    ["address", VECTORS["base"][0]],
    ["address", VECTORS["base"][0], "--count", "3", "--order", "desc"],
    ["address", HERE["credential"], "--count", "5"],
    ["balance", VECTORS["base"][0]],
    ["utxo", f"{at('bare')[0].hex()}#2"],
    ["utxo", f"{at('failed')[0].hex()}#1"],
    ["utxo", f"{at('lost')[0].hex()}#0"],
    ["delta", "2"],
    ["delta", "9"],
    ["tx", at("third")[0].hex()],
    ["tx", "ab" * 32],
]


@pytest.mark.parametrize("words", COMMANDS, ids=" ".join)
def test_commands_say_the_same(told: tuple[Asked, Asked], words: list[str]) -> None:
    for form in ([], ["--json"]):
        cursor = r'("next_cursor":"|--cursor )[\w-]+'
        said = [utxod(each.daemon, "query", *words, *form) for each in told]
        classic, history = (each._replace(out=re.sub(cursor, r"\1", each.out)) for each in said)
        assert history == classic
        assert history.out or history.err


def test_status_on_the_command_line(told: tuple[Asked, Asked]) -> None:
    classic, history = (utxod(each.daemon, "status", "--json").json() for each in told)
    assert history["store"] == "history" and history["rows"]["history_block"] == 5
    for name in ("tip", "unspent", "blocks_applied", "rollback_floor", "indexes", "prune_backlog_blocks"):
        assert history[name] == classic[name]
    assert [each["state"] for each in history["handlers"]] == [each["state"] for each in classic["handlers"]]
    assert "history" in utxod(told[1].daemon, "status").out


def test_a_page_goes_on_by_cursor_on_the_command_line(told: tuple[Asked, Asked]) -> None:
    seen, cursor = list[Any](), list[str]()
    while True:
        said = utxod(told[1].daemon, "query", "address", HERE["credential"], "--json", "--count", "3", *cursor).json()
        seen += said["utxos"]
        if said["next_cursor"] is None:
            break
        cursor = ["--cursor", said["next_cursor"]]
    assert seen == told[0].get(f"/api/v1/credentials/{HERE['credential']}/utxos")


def test_an_index_that_is_not_kept() -> None:
    with short_folder() as folder, asked(folder, utxo={"index": {"address_hash": False}}, layout="history") as asking:
        asking.feed(FIRST)
        path = f"/api/v1/addresses/{VECTORS['base'][0]}/utxos"
        failure(asking.ask(path), 503, "not_enabled", "utxo.index.address_hash")
        assert asking.get("/api/v1/tip") == point(FIRST)
        assert "is not kept" in utxod(asking.daemon, "query", "address", VECTORS["base"][0]).one_line(1)


def test_lists_by_asset_datum_and_script() -> None:
    """Over HTTP and on the command line; a classic store does not keep these indexes."""
    index = {"asset": True, "datum": True, "script": True}
    datum, script = digest("datum").hex(), digest("script", size=28).hex()
    with short_folder() as folder, asked(folder, utxo={"index": index}, layout="history") as asking:
        asking.feed(GENESIS, FIRST, SECOND)
        for path, kind, key, name, output_index in (
            ("datums", "datum", datum, "datum", 1),
            ("datums", "datum", DATUM_HASH, "datum", 0),
            ("scripts", "script", script, "script", 0),
        ):
            found = asking.get(f"/api/v1/{path}/{key}/utxos")
            assert [(utxo["tx_hash"], utxo["output_index"]) for utxo in found] == [(at(name)[0].hex(), output_index)]
            assert utxod(asking.daemon, "query", "by", kind, key, "--json").json()["utxos"] == found
            assert asking.get(f"/api/v1/{path}/{'ab' * (len(key) // 2)}/utxos") == []
            failure(asking.ask(f"/api/v1/{path}/{key}ab/utxos"), 400, "bad_parameter", f"{kind}_hash")
        by_asset = utxod(asking.daemon, "query", "by", "asset", GOLD, "--json").json()["utxos"]
        assert [utxo["tx_hash"] for utxo in by_asset] == [at("assets")[0].hex()]
        assert by_asset == asking.get(f"/api/v1/addresses/{VECTORS['base'][0]}/utxos?asset={GOLD}")
        assert "has 64 hex digits" in utxod(asking.daemon, "query", "by", "datum", "ab").one_line(2)
        assert "has 56 to 120 hex digits" in utxod(asking.daemon, "query", "by", "asset", "ab" * 28 + "  ").one_line(2)
        assert "index policy is not kept" in utxod(asking.daemon, "query", "policy", POLICY).one_line(1)
