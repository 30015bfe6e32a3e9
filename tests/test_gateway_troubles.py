"""A gateway whose shards are at different heights, on different branches, away, or not the right ones."""

from __future__ import annotations

import json
import os
import signal
from collections import Counter
from collections.abc import Iterator
from functools import cache
from hashlib import sha256
from pathlib import Path
from typing import Any

import pytest
from chain_model import Coin, coins_of
from daemons import reason, utxod, write_config
from gateways import CHAIN, Cluster, shards
from patience import until
from preview import CODEC, before, blocks, feed, served
from questions import Api, Web, failure, short_folder
from reader_processes import children

from formats.shards import number_of
from handlers.events import BlockApplied, Output, Rollback, RollbackPoint, Tx

RUN, COUNT = 40, 2


@pytest.fixture(scope="module")
def cluster() -> Iterator[Cluster]:
    """Yield two shards; every test leaves them at the same block."""
    with short_folder() as folder, shards(folder, COUNT) as cluster:
        cluster.feed(before(), *blocks()[:RUN])
        yield cluster


@pytest.fixture(scope="module")
def single() -> Iterator[Api]:
    with short_folder() as folder, served(folder, before(), *blocks()[:RUN]) as api:
        yield api


def back_to(block: BlockApplied) -> Rollback:
    return Rollback(to=RollbackPoint(slot=block.slot or 0, hash=block.hash, height=block.height))


@cache
def unspent() -> list[Coin]:
    return [coin for coin in coins_of(blocks()[:RUN], before()).values() if coin.spend is None]


@cache
def paths() -> list[str]:
    """Return routes that need all shards."""
    address = CODEC.write(Counter(coin.output.address for coin in unspent()).most_common(1)[0][0])
    lists = [f"/api/v1/addresses/{address}/{name}" for name in ("utxos?count=1000", "balance", "transactions?count=9")]
    block = f"/api/v1/blocks/{blocks()[RUN - 5].height}"
    return [*lists, "/api/v1/tip", block, f"{block}/delta", "/api/v1/changes?from=origin", "/kupo/matches/*?unspent"]


def assert_same(web: Web, single: Api) -> None:
    for path in paths():
        ours, theirs = web.ask(path), single.ask(path)
        assert (ours.status_code, ours.content) == (theirs.status_code, theirs.content), path
        assert ours.headers.get("x-tip-hash") == theirs.headers.get("x-tip-hash")
        assert ours.headers.get("etag") == theirs.headers.get("etag")


def test_answers_are_as_of_the_highest_block_that_all_shards_have(cluster: Cluster, single: Api) -> None:
    behind, rest = blocks()[RUN - 4], blocks()[RUN - 3 : RUN]
    with cluster.gateway() as web:
        now = [web.ask(path).content for path in paths()]
        cluster.feed(back_to(behind), only=1)
        feed(single, back_to(behind))
        assert_same(web, single)
        assert [web.ask(path).content for path in paths()] != now
        failure(web.ask(f"/api/v1/blocks/{rest[0].height}"), 404, "unknown_block")
        assert "utxod_shards_differed_total 0.0" not in web.ask("/metrics").text
        feed(single, *rest)
        cluster.feed(*rest, only=1)
        assert_same(web, single)
        assert [web.ask(path).content for path in paths()] == now


def test_a_list_that_is_mostly_in_one_shard(cluster: Cluster, single: Api) -> None:
    address, last = b"\x60" + bytes(28), blocks()[RUN - 1]
    named = [sha256(b"%d" % n).digest() for n in range(1500)]
    first = sorted(named, key=lambda txid: number_of(txid, COUNT))  # all of shard 1 are before those of shard 2
    txs = [Tx(txid, outputs=[Output(address, n + 1)]) for n, txid in enumerate(first)]
    block = BlockApplied(
        height=last.height + 1, slot=(last.slot or 0) + 1, hash=b"\6" * 32, prev_hash=last.hash, txs=txs
    )
    cluster.feed(block)
    feed(single, block)
    with cluster.gateway() as web:
        path = f"/api/v1/addresses/{CODEC.write(address)}/utxos"
        for query in ("count=300", "count=1000", "count=100&order=desc", "count=100&page=8", "count=7&page=100"):
            assert web.get(f"{path}?{query}") == single.get(f"{path}?{query}"), query
        for query in ("?unspent", "?order=oldest_first&limit=300"):
            kupo = f"/kupo/matches/{CODEC.write(address)}{query}"
            assert web.ask(kupo).content == single.ask(kupo).content
        changes = f"/api/v1/changes?from={last.height}.{last.hash.hex()}&count=1000"
        assert web.get(changes) == single.get(changes)
    cluster.feed(back_to(last))
    feed(single, back_to(last))


def test_a_reorganisation_between_pages_is_noticed(cluster: Cluster) -> None:
    path, place = paths()[0].replace("count=1000", "count=1"), blocks()[RUN - 3]
    with cluster.gateway() as web:
        first = web.ask(path)
        second = web.ask(f"{path}&cursor={first.headers['x-next-cursor']}")
        assert second.status_code == 200 and second.json() != first.json()
        stale = f"{path}&cursor={second.headers['x-next-cursor']}"
        for n in range(COUNT):
            cluster.feed(back_to(place), only=n)
            failure(web.ask(stale), 409, "cursor_gone")
        cluster.feed(*blocks()[RUN - 2 : RUN])
        assert web.ask(stale).status_code == 200


def test_shards_on_different_branches_are_reported(cluster: Cluster) -> None:
    last, place = blocks()[RUN - 1], blocks()[RUN - 2]
    other = BlockApplied(height=last.height, slot=last.slot, hash=b"\7" * 32, prev_hash=last.prev_hash)
    with cluster.gateway() as web:
        cluster.feed(back_to(place), other, only=1)
        failure(web.ask(paths()[0]), 503, "shards_differ", "1/2", "2/2")
        cluster.feed(back_to(place), last, only=1)
        assert web.ask(paths()[0]).status_code == 200


def test_a_shard_below_the_rollback_floor_of_others_is_unavailable() -> None:
    window = {"utxo": {"rollback_window": 5, "prune_depth": 5}}
    with short_folder() as folder, shards(folder, COUNT, **window) as cluster, cluster.gateway() as web:
        cluster.feed(*blocks()[:4])
        cluster.feed(*blocks()[4:RUN], only=0)
        where = f"slot {blocks()[3].slot}, too far behind"
        for path in ("/api/v1/tip", "/kupo/matches/*"):
            answer = until(lambda path=path: web.ask(path), lambda answer: where in answer.text)  # type: ignore[misc]
            assert answer.status_code == 503 and "2/2" in answer.text
        cluster.feed(*blocks()[4:RUN], only=1)
        assert web.get("/api/v1/tip")["height"] == blocks()[RUN - 1].height


def test_a_killed_shard_is_named_and_everything_else_is_served(cluster: Cluster, single: Api) -> None:
    held = {number_of(coin.txid, COUNT): f"/api/v1/utxos/{coin.txid.hex()}/{coin.number}" for coin in unspent()}
    with cluster.gateway() as web:
        cluster.daemons[1].kill()
        for path in (held[2], *paths()):
            answer = until(lambda path=path: web.ask(path), lambda answer: answer.status_code == 503)  # type: ignore[misc]
            content: Any = answer.json()
            if path.startswith("/kupo"):
                assert "2/2" in content["hint"]
            else:
                assert (content["error"], content["detail"]["shard"]) == ("shard_unavailable", "2/2"), content
                assert cluster.urls[1] in content["message"]
        assert web.get(held[1]) == single.get(held[1])
        state = until(lambda: web.get("/api/v1/status")["shards"], lambda found: not found[1]["available"])
        assert state[0]["available"] and state[1]["reason"]
        assert web.ask("/health/ready").json()["status"] == "shard_unavailable"
        assert 'utxod_shard_available{shard="2/2"} 0.0' in web.ask("/metrics").text
        cluster.daemons[1].start()
        for path in (held[2], *paths()):
            again = until(lambda path=path: web.ask(path), lambda answer: answer.status_code == 200)  # type: ignore[misc]
            assert again.content == single.ask(path).content
    events = [json.loads(line)["event"] for line in cluster.log.read_text().splitlines()]
    assert events.count("shard_unavailable") == events.count("shard_available") > 0


def test_a_shard_that_does_not_answer_is_given_up(cluster: Cluster) -> None:
    workers = children(cluster.daemons[0].process.pid)
    with cluster.gateway(cluster={"shards": cluster.urls, "shard_timeout": "1s"}) as web:
        for pid in workers:
            os.kill(pid, signal.SIGSTOP)
        try:
            answer = web.ask(paths()[0])
            assert answer.status_code == 503 and answer.json()["detail"]["shard"] == "1/2"
            assert "no answer within 1 s" in answer.json()["message"]
        finally:
            for pid in workers:
                os.kill(pid, signal.SIGCONT)
        until(lambda: web.ask(paths()[0]).status_code, lambda status: status == 200)


def test_wrong_shards_are_refused_at_the_start(cluster: Cluster, single: Api, tmp_path: Path) -> None:
    one, two = cluster.urls
    preprod = {"family": "cardano", "network": "preprod"}
    cases: list[tuple[dict[str, Any], int, str]] = [
        ({"cluster": {"shards": [two, one]}}, 1, "is shard 2/2, but cluster.shards names it as shard 1/2"),
        ({"cluster": {"shards": [one]}}, 1, "is shard 1/2, but cluster.shards names it as shard 1/1"),
        ({"chain": preprod}, 1, "it keeps cardano/preview, but the gateway is for cardano/preprod"),
        ({"cluster": {"shards": []}}, 2, "cluster.shards is empty"),
    ]
    for tables, code, why in cases:
        http = {"listen": f"unix:{tmp_path}/http"}
        config = write_config(tmp_path, {"chain": CHAIN, "cluster": {"shards": [one, two]}, "http": http} | tables)
        done = utxod("gateway", "--config", config)
        assert done.returncode == code, done.stderr.decode()
        assert why in reason(done)
