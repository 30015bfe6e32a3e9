"""A gateway over four shards gives the answers of one daemon with the whole chain."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterator
from typing import Any

import httpx
import pytest
from chain_model import Coin, datum_of
from gateways import Cluster, shards
from preview import CODEC, before, blocks, coins, served
from questions import Api, Web, check_pages, failure, short_folder
from test_kupo import (  # noqa: F401 -- they are run with the gateway in place of the daemon
    test_addresses_and_credentials,
    test_assets,
    test_checkpoints,
    test_datums_and_scripts,
    test_malformed_and_unknown_paths,
    test_methods,
    test_pages,
    test_patterns,
    test_quantities_as_strings,
    test_references,
    test_unchanged_answers_are_304,
)

from formats.scripts import hash_of_reference
from storage.indexes import payment_credential, stake_credential

LISTS = ("addresses", "credentials", "stakes", "policies", "assets", "datums", "scripts")
NOT_SERVED = {
    "/api/v1/events",
    "/api/v1/txs",
    "/api/v1/mmr/root",
    "/api/v1/mmr/proof/{tx_hash}/{index}",
    "/api/v1/recovery/transactions",
    "/api/v1/recovery/transactions/{txid}",
    "/api/v1/pruner/jobs",
}


@pytest.fixture(scope="module")
def single() -> Iterator[Api]:
    with short_folder() as folder, served(folder) as api:
        yield api


@pytest.fixture(scope="module")
def cluster() -> Iterator[Cluster]:
    with short_folder() as folder, shards(folder) as cluster:
        cluster.feed(before(), *blocks())
        yield cluster


@pytest.fixture(scope="module")
def gateway(cluster: Cluster) -> Iterator[Web]:
    with cluster.gateway() as web:
        yield web


@pytest.fixture(scope="module")
def kupo(cluster: Cluster, gateway: Web) -> Api:
    return Api(cluster.daemons[0], gateway)


def same(single: Api, gateway: Web, path: str, **headers: str) -> httpx.Response:
    ours, theirs = gateway.ask(path, **headers), single.web.ask(path, **headers)
    assert (ours.status_code, ours.content) == (theirs.status_code, theirs.content), path
    for name in ("content-type", "x-tip-height", "x-tip-slot", "x-tip-hash", "etag", "x-history-from", "x-next-from"):
        assert ours.headers.get(name) == theirs.headers.get(name), (path, name)
    assert ("x-next-cursor" in ours.headers) == ("x-next-cursor" in theirs.headers), path
    return ours


def keys() -> dict[str, list[str]]:
    """Return keys of the run by what lists name them: those with most unspent outputs, and one without any."""
    found: dict[str, Counter[str]] = {name: Counter() for name in LISTS}
    for coin in coins().values():
        if coin.spend is not None:
            continue
        output = coin.output
        found["addresses"][CODEC.write(output.address)] += 1
        for name, key in (
            ("credentials", payment_credential(output.address)),
            ("stakes", stake_credential(output.address)),
            ("datums", datum_of(coin)),
            ("scripts", None if output.script_ref is None else hash_of_reference(output.script_ref)),
        ):
            if key is not None:
                found[name][key.hex()] += 1
        for policy, asset, _ in output.assets:
            found["policies"][policy.hex()] += 1
            found["assets"][(policy + asset).hex()] += 1
    return {name: [key for key, _ in each.most_common(3)] for name, each in found.items()}


def test_lists(single: Api, gateway: Web) -> None:
    listed = 0
    for name, some in keys().items():
        assert some or name == "scripts", name
        for key in some:
            path = f"/api/v1/{name}/{key}/utxos"
            for query in ("", "?count=1000", "?order=desc&count=1000", "?count=3&page=2", "?count=1&order=desc&page=4"):
                same(single, gateway, path + query)
            same(single, gateway, f"{path}?count=1000", accept="application/cbor")
            whole = single.get(f"{path}?count=1000")
            listed += len(whole)
            if len(whole) < 60:
                check_pages(gateway, path, whole, 7)
                check_pages(gateway, path, whole[::-1], 5, "desc")
    assert listed > 300
    asset = keys()["assets"][0]
    owner = next(CODEC.write(each.output.address) for each in coins().values() if holds(each, asset) and not each.spend)
    assert same(single, gateway, f"/api/v1/addresses/{owner}/utxos?asset={asset}").json()
    assert same(single, gateway, f"/api/v1/addresses/{'61' + '00' * 28}/utxos").json() == []


def holds(coin: Coin, unit: str) -> bool:
    return any((policy + name).hex() == unit for policy, name, _ in coin.output.assets)


def test_sums_and_histories(single: Api, gateway: Web) -> None:
    for name in ("addresses", "credentials", "stakes"):
        for key in (*keys()[name], "61" + "00" * 28 if name == "addresses" else "00" * 28):
            same(single, gateway, f"/api/v1/{name}/{key}/balance")
    for key in keys()["addresses"]:
        path = f"/api/v1/addresses/{key}/transactions"
        for query in ("?count=1000", "?order=desc&count=1000", "?count=2&page=2"):
            same(single, gateway, path + query)
        whole = single.get(f"{path}?count=1000")[:50]
        if len(whole) < 50:
            check_pages(gateway, path, whole, 4)


def test_single_objects(single: Api, gateway: Web) -> None:
    spent = [coin for coin in coins().values() if coin.spend][:20]
    live = [coin for coin in coins().values() if not coin.spend][:20]
    for coin in (*spent, *live):
        path = f"/api/v1/utxos/{coin.txid.hex()}/{coin.number}"
        assert same(single, gateway, path).status_code == 200
        same(single, gateway, path, accept="application/cbor")
        if coin.block.height:
            same(single, gateway, f"/api/v1/txs/{coin.txid.hex()}/utxos")
    same(single, gateway, f"/api/v1/utxos/{'00' * 32}/1")
    datums = {digest: coin for coin in coins().values() if (digest := datum_of(coin))}
    for digest in [*datums][:10]:
        same(single, gateway, f"/api/v1/datums/{digest.hex()}")
    failure(gateway.ask(f"/api/v1/datums/{'00' * 32}"), 404, "unknown_datum")


def test_blocks_and_changes(single: Api, gateway: Web) -> None:
    same(single, gateway, "/api/v1/tip")
    for block in (*blocks()[:3], *(each for each in blocks() if each.txs)):
        for name in (str(block.height), block.hash.hex()):
            same(single, gateway, f"/api/v1/blocks/{name}")
        for accept in ("*/*", "application/cbor"):
            same(single, gateway, f"/api/v1/blocks/{block.height}/delta", accept=accept)
    same(single, gateway, "/api/v1/blocks/1")
    ours, theirs = (changes(each, "origin", count) for each, count in ((gateway, 7), (single.web, 1000)))
    assert ours == theirs and len(ours) > 100
    middle = blocks()[len(blocks()) // 2]
    point = f"{middle.height}.{middle.hash.hex()}"
    assert changes(gateway, point, 3) == changes(single.web, point, 1000) != []
    same(single, gateway, f"/api/v1/changes?from={point}&count=1000")
    assert "sequences" in failure(gateway.ask("/api/v1/changes?from=3"), 400, "bad_parameter")


def changes(web: Web, since: str, count: int) -> list[Any]:
    found, query = list[Any](), f"from={since}"
    while True:
        answer = web.ask(f"/api/v1/changes?count={count}&{query}")
        assert answer.status_code == 200, answer.text
        found += answer.json()
        if "x-next-cursor" not in answer.headers:
            return found
        query = f"cursor={answer.headers['x-next-cursor']}"


def test_matches(single: Api, gateway: Web) -> None:
    middle = blocks()[len(blocks()) // 2].slot
    for flag in ("", "unspent", "spent", "resolve_hashes", f"created_after={middle}", f"spent_before={middle}"):
        for order in ("", "order=oldest_first"):
            path = f"/kupo/matches/*?{'&'.join(each for each in (flag, order) if each)}"
            ours, theirs = gateway.ask(path), single.ask(path)
            assert len(theirs.json()) > 20, path
            assert without_inputs(ours) == without_inputs(theirs), path
            assert ours.headers["etag"] == theirs.headers["etag"]


def without_inputs(answer: httpx.Response) -> bytes:
    """Return matches without the indexes of inputs: no shard knows all inputs of a transaction to put them in order."""
    return re.sub(rb'"input_index":[0-9]+', b"", answer.content)


def test_malformed_requests(single: Api, gateway: Web) -> None:
    key = keys()["addresses"][0]
    path = f"/api/v1/addresses/{key}/utxos"
    for bad in (
        *("/api/v1/addresses/abc/utxos", "/api/v1/addresses/abc/balance", "/api/v1/credentials/zz/utxos"),
        *(f"{path}?count=0", f"{path}?order=up", f"{path}?page=1&cursor=x", f"{path}?cursor=abc", f"{path}?asset=1"),
        *("/api/v1/utxos/00/1", f"/api/v1/utxos/{'00' * 32}/x", "/api/v1/blocks/x", "/api/v1/blocks/x/delta"),
        *("/api/v1/changes", "/api/v1/changes?from=x", "/api/v1/changes?from=origin&cursor=x", "/api/v1/nothing"),
    ):
        assert same(single, gateway, bad).status_code in (400, 404), bad
    first = gateway.ask(f"{path}?count=1")
    cursor = first.headers["x-next-cursor"]
    for other in (
        f"{path}?order=desc&cursor={cursor}",
        f"/api/v1/addresses/{keys()['addresses'][1]}/utxos?cursor={cursor}",
    ):
        failure(gateway.ask(other), 400, "bad_parameter", "cursor")
    theirs = single.ask(f"{path}?count=1").headers["x-next-cursor"]
    failure(gateway.ask(f"{path}?cursor={theirs}"), 400, "bad_parameter", "cursor")


def test_requests_that_are_known_get_304(gateway: Web) -> None:
    key = keys()["addresses"][0]
    for path in (f"addresses/{key}/utxos", f"addresses/{key}/balance", "tip", f"blocks/{blocks()[0].height}"):
        answer = gateway.ask(f"/api/v1/{path}")
        again = gateway.ask(f"/api/v1/{path}", **{"if-none-match": answer.headers["etag"]})
        assert (again.status_code, again.content) == (304, b""), path
        assert again.headers["x-tip-hash"] == answer.headers["x-tip-hash"]


def test_routes_of_one_store_are_not_served(gateway: Web, single: Api) -> None:
    contract = gateway.get("/openapi.json")
    assert contract == single.get("/openapi.json")
    for path in NOT_SERVED:
        assert path in contract["paths"]
        failure(gateway.ask(re.sub(r"\{\w+\}", "00" * 32, path)), 503, "not_enabled", "gateway")
    assert b"</html>" in gateway.ask("/docs").content


def test_the_state_of_all_shards(cluster: Cluster, gateway: Web, single: Api) -> None:
    status = gateway.get("/api/v1/status")
    assert status["tip"] == single.get("/api/v1/tip")
    assert status["unspent"] == single.get("/api/v1/status")["utxo"]["unspent"]
    assert [each["url"] for each in status["shards"]] == cluster.urls
    assert [each["shard"] for each in status["shards"]] == ["1/4", "2/4", "3/4", "4/4"]
    assert all(each["available"] for each in status["shards"])
    assert gateway.get("/health/live")["status"] == "live"
    metrics = gateway.ask("/metrics").text
    assert 'utxod_shard_available{shard="3/4"} 1.0' in metrics
    assert f'utxod_shard_tip_height{{shard="1/4"}} {float(blocks()[-1].height)}' in metrics
