"""What a block did to the set can be asked: over a model at every block, over HTTP, and on the command line."""

from __future__ import annotations

from pathlib import Path
from random import Random
from typing import Any

import cbor2
import pytest
from chains import CODEC, feed, open_chain, prune_all, random_chain, random_genesis
from chains import block as chain_block
from chains import output as chain_output
from chains import tx as chain_tx
from daemons import Message
from mmr_reference import leaf, numbered
from model import Coin, Model, made
from questions import TIP, Api, failure, running_api, short_folder
from scenarios import back_to, block, chain, digest, output, tx
from test_cli_query import utxod
from test_http import AS_CBOR, FIRST, GENESIS, SECOND, canonical, utxo_path

from handlers.deltas import InCbor, NoDelta, find
from handlers.events import OutPoint
from handlers.query import Query, Snapshot
from storage.errors import Damaged
from storage.history.layout import OUTPUT, TX, UNDO
from storage.windows import Windows

Born = tuple[OutPoint, Coin]

# --- at every block ------------------------------------------------------------------------------------------------


def changes(model: Model, ordinal: int) -> tuple[list[Born], list[tuple[Born, bytes]]]:
    coins, fed = dict(model.moments[ordinal - 1].coins), model.moments[ordinal].block
    born, spent = list[Born](), list[tuple[Born, bytes]]()
    assert fed is not None
    for number, each in enumerate(fed.txs):
        again = [point for point in coins if point[0] == each.txid]
        for point in [*dict.fromkeys(each.inputs if each.valid else each.collateral), *again]:
            if coin := coins.pop(point, None):
                spent.append(((point, coin), each.txid))
        for index, coin in made(each, ordinal, number):
            coins[each.txid, index] = coin
            born.append(((each.txid, index), coin))
    return born, spent


def expected(model: Model, ordinal: int, *, mmr: bool) -> dict[int, Any]:
    """Return the map of a delta by the keys of the design; what was spent is sorted."""
    born, spent = changes(model, ordinal)
    point, fed = model.moments[ordinal].point, model.moments[ordinal].block
    assert point is not None and fed is not None

    def entry(each: Born) -> dict[int, Any]:
        return {0: list(each[0]), 1: cbor2.loads(leaf(*each, model.moments[each[1].place[0]]))[1]}

    failed = [each for each in fed.txs if not each.valid]
    delta: dict[int, Any] = {
        0: point.height,
        1: point.slot,
        2: point.hash,
        3: [entry(each) for each in born],
        4: sorted((entry(each) | {2: by} for each, by in spent), key=repr),
        5: {0: bool(failed)},
    }
    if failed:
        delta[6] = [{0: each.txid, 1: True, 2: each.collateral_return is not None} for each in failed]
    if mmr:
        leaves = list(enumerate(numbered(model, ordinal)))
        place = {coin.place: number for number, (_, coin, _) in leaves if coin is not None}
        appended = [number for number, (_, _, moment) in leaves if moment is model.moments[ordinal]]
        delta[7] = {0: appended, 1: sorted(place[coin.place] for (_, coin), _ in spent)}
    return delta


def delta_of(shot: Snapshot, windows: Windows, block: int | bytes) -> dict[int, Any]:
    """Return a block's delta, with spent outputs sorted; check that it is canonical."""
    found = find(shot, windows, block, InCbor(shot))
    for _ in found.read():
        pass
    raw = found.whole()
    delta: dict[int, Any] = cbor2.loads(raw)
    assert raw == cbor2.dumps(delta, canonical=True)
    assert found.size == len(delta[3]) + len(delta[4])
    delta[4].sort(key=repr)
    if 7 in delta:
        delta[7][1].sort()
    return delta


@pytest.mark.parametrize("store", ["classic", "mmr"])
def test_every_delta_is_that_of_the_model(tmp_path: Path, store: str) -> None:
    """Blocks come in batches, and later blocks may spend their outputs."""
    rng, model, invalid = Random(7), Model(2, 12), 0
    with open_chain(tmp_path, store=store, prune_depth=2, rollback_window=12) as chain:
        genesis = random_genesis(rng)
        chain.seed(genesis)
        model.seed(genesis)
        blocks = random_chain(rng, 40)
        for each in blocks:
            model.apply(each)
        while blocks:
            count = rng.randint(1, 4)
            feed(chain, *blocks[:count])
            blocks = blocks[count:]
            prune_all(chain)
        with Query(chain.store, CODEC, "cardano").snapshot() as shot:
            for ordinal, moment in enumerate(model.moments[1:], start=1):
                assert moment.point is not None
                if ordinal <= 28:
                    for removed in (moment.point.height, moment.point.hash):
                        with pytest.raises(NoDelta) as none:
                            find(shot, chain.windows, removed, InCbor(shot))
                        assert none.value.code == "delta_gone"
                else:
                    delta = delta_of(shot, chain.windows, moment.point.hash)
                    assert delta == expected(model, ordinal, mmr=store == "mmr")
                    assert delta == delta_of(shot, chain.windows, moment.point.height)
                    invalid += 6 in delta
    assert invalid > 0


@pytest.mark.parametrize("lost", [OUTPUT, UNDO, TX])
def test_a_delta_that_cannot_be_read_is_damage(tmp_path: Path, lost: str) -> None:
    with open_chain(tmp_path) as chain:
        parent = chain_block(None, chain_tx("a", chain_output("ann"), chain_output("bob")))
        feed(chain, parent)
        feed(chain, chain_block(parent, chain_tx("b", chain_output("cid"), spends=[(parent.txs[0].txid, 0)])))
        store = chain.store
        with Query(store, CODEC, "cardano").snapshot() as shot:
            delta = delta_of(shot, chain.windows, 2)
            assert (len(delta[3]), len(delta[4])) == (1, 1)
        store.disk.write(lambda txn: txn.drop(store.disk.tables[lost], delete=False))
        with Query(store, CODEC, "cardano").snapshot() as shot, pytest.raises(Damaged):
            delta_of(shot, chain.windows, 2)


def test_a_boundary_block_shares_its_height(tmp_path: Path) -> None:
    """A height finds the first of its blocks, a hash each of them."""
    with open_chain(tmp_path) as chain:
        blocks = random_chain(Random(3), 2)
        boundary = chain_block(blocks[-1], height=2, slot=(blocks[-1].slot or 0) + 1)
        feed(chain, *blocks, boundary)
        with Query(chain.store, CODEC, "cardano").snapshot() as shot:
            assert delta_of(shot, chain.windows, 2)[2] == blocks[-1].hash
            assert delta_of(shot, chain.windows, boundary.hash)[2] == boundary.hash


# --- over HTTP -----------------------------------------------------------------------------------------------------


def without_spend(utxo: Message) -> Message:
    return {name: value for name, value in utxo.items() if not name.startswith("spent_")}


def changed(fed_api: Api, name: str, index: int = 0, by: str | None = None) -> Message:
    utxo = without_spend(fed_api.get(utxo_path(name, index)))
    spender = {} if by is None else {"spent_tx_hash": digest("tx", by).hex()}
    return {"tx_hash": utxo["tx_hash"], "output_index": index} | spender | {"utxo": utxo}


def test_a_delta_over_http() -> None:
    with short_folder() as folder, running_api(folder) as fed_api:
        fed_api.feed(GENESIS, FIRST, SECOND)
        path = "/api/v1/blocks/2/delta"
        answer = fed_api.ask(path)
        assert answer.json() == {
            "block_number": 2,
            "slot": 60,
            "block_hash": SECOND["hash"].hex(),
            "created": [changed(fed_api, "failed", 1), changed(fed_api, "pay")],
            "spent": [
                changed(fed_api, "pledge", by="failed"),
                changed(fed_api, "bare", 2, by="pay"),
                changed(fed_api, "bare", 3, by="pay"),
            ],
            "flags": {"contains_invalid_tx": True},
            "tx_flags": [{"tx_hash": digest("tx", "failed").hex(), "is_invalid": True, "had_collateral_return": True}],
            "mmr": None,
        }
        assert answer.json()["created"][0]["utxo"]["is_collateral_return"] is True
        by_hash = fed_api.ask(f"/api/v1/blocks/{SECOND['hash'].hex().upper()}/delta")
        assert by_hash.content == answer.content and by_hash.headers["etag"] == answer.headers["etag"]
        first = fed_api.get("/api/v1/blocks/1/delta")
        assert (first["slot"], len(first["created"]), first["spent"], first["tx_flags"]) == (20, 15, [], [])

        coded = fed_api.ask(path, **AS_CBOR)
        assert coded.headers["content-type"] == "application/cbor" and coded.headers["etag"] != answer.headers["etag"]
        delta = cbor2.loads(coded.content)
        assert coded.content == canonical(delta)
        spends = [("pledge", 0, "failed"), ("bare", 2, "pay"), ("bare", 3, "pay")]
        records = [cbor2.loads(fed_api.ask(utxo_path(name, n), **AS_CBOR).content)[6] for name, n, _ in spends]
        assert delta == {
            0: 2,
            1: 60,
            2: SECOND["hash"],
            3: [
                {0: [digest("tx", name), n], 1: cbor2.loads(fed_api.ask(utxo_path(name, n), **AS_CBOR).content)}
                for name, n in (("failed", 1), ("pay", 0))
            ],
            4: [
                {0: [digest("tx", name), n], 1: record, 2: digest("tx", by)}
                for (name, n, by), record in zip(spends, records, strict=True)
            ],
            5: {0: True},
            6: [{0: digest("tx", "failed"), 1: True, 2: True}],
        }
        for each in (answer, coded):
            assert [each.headers[name] for name in TIP] == ["2", "60", SECOND["hash"].hex()]
            same = fed_api.ask(path, **{"If-None-Match": each.headers["etag"], "Accept": each.headers["content-type"]})
            assert (same.status_code, same.content) == (304, b"")


@pytest.mark.parametrize("text", ["x", "-1", "4294967296", "1.0", "ab", "0" * 63, "zz" * 32, "%C2%B2", "0x1"])
def test_what_is_no_block_is_refused(fed_api: Api, text: str) -> None:
    failure(fed_api.ask(f"/api/v1/blocks/{text}/delta"), 400, "bad_parameter", "block is", "64 hex digits")


@pytest.fixture(scope="module")
def fed_api() -> Any:
    """Yield a daemon with a window of three blocks that has rolled back a branch."""
    blocks, utxo = chain(8), {"rollback_window": 3, "prune_depth": 1}
    with short_folder() as folder, running_api(folder, utxo=utxo) as fed_api:
        lost = chain(2, blocks[-1], branch="lost")
        fed_api.feed(*blocks, *lost, back_to(blocks[-1]))
        fed_api.blocks, fed_api.lost = blocks, lost  # type: ignore[attr-defined]
        yield fed_api


def test_blocks_without_a_delta(fed_api: Any) -> None:
    blocks = fed_api.blocks
    for unknown in (9, 4294967295, "ab" * 32, fed_api.lost[0]["hash"].hex()):
        answer = fed_api.ask(f"/api/v1/blocks/{unknown}/delta")
        failure(answer, 404, "unknown_block")
        assert answer.headers["x-tip-height"] == "8"
    floor = fed_api.get("/api/v1/status")["utxo"]["rollback_floor"]["height"]
    assert floor in (5, 6)
    for removed in (*range(floor + 1), blocks[floor - 1]["hash"].hex(), blocks[1]["hash"].hex()):
        failure(fed_api.ask(f"/api/v1/blocks/{removed}/delta"), 404, "delta_gone", f"rollback floor, height {floor}")
    for height in range(floor + 1, 9):
        assert fed_api.get(f"/api/v1/blocks/{height}/delta")["block_hash"] == blocks[height - 1]["hash"].hex()


def test_an_empty_store_has_no_block() -> None:
    with short_folder() as folder, running_api(folder) as api:
        for text in ("0", "1", "ab" * 32):
            failure(api.ask(f"/api/v1/blocks/{text}/delta"), 404, "unknown_block")


def test_a_large_delta_lets_others_through_and_has_a_limit() -> None:
    large = block(None, tx("large", *(output("ann", n) for n in range(5_000))))
    larger = block(large, *(tx(f"larger {n}", *(output("bob") for _ in range(1_001))) for n in range(100)))
    with short_folder() as folder, running_api(folder) as api:
        api.feed(large, larger)
        assert len(api.get("/api/v1/blocks/1/delta")["created"]) == 5_000
        failure(api.ask("/api/v1/blocks/2/delta"), 400, "too_large", "100,100")


# --- on the command line -------------------------------------------------------------------------------------------


def test_a_delta_on_the_command_line(fed_api: Any) -> None:
    path = "/api/v1/blocks/8/delta"
    for text in ("8", fed_api.blocks[7]["hash"].hex()):
        assert utxod(fed_api.daemon, "query", "delta", text, "--json").json() == fed_api.get(path)
    reported = utxod(fed_api.daemon, "query", "delta", "8")
    assert reported.code == 0 and "created 1" in reported.out and "spent 1" in reported.out
    assert "rollback floor, height " in utxod(fed_api.daemon, "query", "delta", "2").one_line(1)
    assert "no block of height 9" in utxod(fed_api.daemon, "query", "delta", "9").one_line(1)
    assert "64 hex digits" in utxod(fed_api.daemon, "query", "delta", "x").one_line(2)
