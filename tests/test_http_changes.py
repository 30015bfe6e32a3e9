"""What was created and spent since a point, applied to a set; then over HTTP."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from random import Random
from typing import Any

import pytest
import scenarios
from chains import back_to, block, feed, open_chain, output, prune_all, random_chain, tx
from chains import live as live_outputs
from daemons import Message
from questions import Api, failure, running_api, short_folder
from scenarios import point

from handlers.addresses import codec
from handlers.chain import Chain
from handlers.changes import Change, Changes, PointGone, PointRemoved, UnknownPoint
from handlers.cursors import BadCursor
from handlers.events import BlockApplied
from handlers.query import Query
from storage.change_log import Retention

CHANGES = "/api/v1/changes"
WINDOWS: list[Any] = [
    {"prune_depth": 9, "rollback_window": 9},
    {"prune_depth": 2, "rollback_window": 9, "store": "mmr"},
]


def listed(chain: Chain, since: BlockApplied | int | None, count: int = 1000) -> list[Change]:
    """Return all changes since a point, over as many pages as it takes."""
    query, found, cursor = Query(chain.store, codec("cardano", "mainnet"), "cardano"), list[Change](), None
    while True:
        with query.snapshot() as shot:
            changes = Changes(shot)
            if cursor is not None:
                changes.resume(cursor)
            elif isinstance(since, int):
                changes.since_fact(since)
            elif since is None:
                changes.since_origin()
            else:
                changes.since_block(since.height, since.hash)
            page, cursor = changes.page(count)
        assert len(page) == count or (cursor is None and len(page) <= count)
        assert not found or page[:1] != found[-1:], "a page begins with the last change of the page before"
        found += page
        if cursor is None:
            return found


def live(chain: Chain) -> set[tuple[str, int]]:
    return {(txid.hex(), index) for txid, index in live_outputs(chain.store)}


def applied(to: set[tuple[str, int]], changes: list[Change]) -> set[tuple[str, int]]:
    """Return a set after changes: what is created was not there, and what is spent was."""
    outputs = set(to)
    for change in changes:
        name = change.tx_hash, change.output_index
        assert (name in outputs) == (change.change == "spent"), change
        outputs ^= {name}
    return outputs


@pytest.mark.parametrize("windows", WINDOWS)
def test_changes_since_any_point_lead_to_the_tip(windows: Any, tmp_path: Path) -> None:
    for seed in range(2):
        with open_chain(tmp_path / str(seed), **windows, may_prune=True) as chain:
            sets: dict[int, set[tuple[str, int]]] = {0: set()}
            sequences, blocks = {}, random_chain(Random(seed), 22, repeats=False)
            for n, each in enumerate(blocks, 1):
                feed(chain, each)
                sets[n] = live(chain)
                sequences[n] = chain.changes.newest()
            prune_all(chain)
            floor = chain.state.floor
            assert floor >= 12 and chain.view.floor is not None
            seen = set[str]()
            for n in range(floor, 23):
                for count in (1000, 3, 1):
                    changes = listed(chain, blocks[n - 1], count)
                    assert applied(sets[n], changes) == sets[22]
                    seen.update(change.change for change in changes)
                    for change in changes:
                        assert (change.spent_tx_hash is not None) if change.change == "spent" else True
                assert listed(chain, sequences[n]) == changes
            assert seen == {"created", "spent"}
            with pytest.raises(PointGone) as missing:
                listed(chain, blocks[floor - 2])
            assert missing.value.oldest == blocks[floor - 1].point
            with pytest.raises(PointGone):
                listed(chain, None)
            with pytest.raises(PointGone):
                listed(chain, sequences[floor - 1])
            with pytest.raises(UnknownPoint, match="never applied"):  # every block of the chain is known
                listed(chain, block(None, salt="never"))


def test_a_removed_point_names_the_common_ancestor(tmp_path: Path) -> None:
    with open_chain(tmp_path, prune_depth=30, rollback_window=30) as chain:
        made: list[BlockApplied] = []
        for n in range(10):
            made.append(block(made[-1] if made else None, tx(f"{n}", output("ann"))))
            feed(chain, made[-1])
        first = chain.changes.newest()
        assert chain.rollback(back_to(made[6]))
        other = block(made[6], tx("other", output("bob")))
        feed(chain, other)
        other_at = chain.changes.newest()
        for removed in (made[7], made[9], first):
            with pytest.raises(PointRemoved) as missing:
                listed(chain, removed)
            assert missing.value.ancestor == made[6].point
        assert chain.rollback(back_to(made[4]))
        feed(chain, made[5], made[6], made[7])
        assert len(listed(chain, made[6])) == 1 and len(listed(chain, made[4])) == 3
        for removed, ancestor in ((made[8], made[4]), (first, made[4]), (other, made[4]), (other_at, made[4])):
            with pytest.raises(PointRemoved) as missing:
                listed(chain, removed)
            assert missing.value.ancestor == ancestor.point
        assert chain.rollback(back_to("origin"))
        with pytest.raises(PointRemoved) as missing:
            listed(chain, made[3])
        assert missing.value.ancestor is None
        with pytest.raises(UnknownPoint, match="never applied"):
            listed(chain, block(None, salt="never"))
        with pytest.raises(UnknownPoint, match="future"):
            listed(chain, chain.changes.newest() + 1)
        assert listed(chain, None) == []


def test_changes_since_a_fact_that_was_removed_are_refused(tmp_path: Path) -> None:
    with open_chain(tmp_path, prune_depth=30, rollback_window=30) as chain:
        chain.changes.keep = Retention(count=3)
        made: list[BlockApplied] = []
        for n in range(8):
            made.append(block(made[-1] if made else None, tx(f"{n}", output("ann"))))
            feed(chain, made[-1])
        assert len(listed(chain, 5)) == 3 and len(listed(chain, 8)) == 0
        with pytest.raises(PointGone) as missing:
            listed(chain, 4)
        assert missing.value.oldest == 6
        assert chain.rollback(back_to(made[1]))  # fact 9; the oldest is now 7
        assert listed(chain, 9) == []
        with pytest.raises(PointRemoved) as removed:
            listed(chain, 7)
        assert removed.value.ancestor == made[1].point
        with pytest.raises(PointGone):  # the block before fact 7 is not known any more
            listed(chain, 6)


def test_a_cursor_continues_while_its_block_stays(tmp_path: Path) -> None:
    with open_chain(tmp_path, prune_depth=30, rollback_window=30) as chain:
        made = [block(None, tx("0", *(output("ann", n) for n in range(4))))]
        made.append(block(made[0], tx("1", output("bob"))))
        feed(chain, *made)
        query = Query(chain.store, codec("cardano", "mainnet"), "cardano")
        with query.snapshot() as shot:
            changes = Changes(shot)
            changes.since_origin()
            _, cursor = changes.page(3)
        assert cursor is not None
        assert chain.rollback(back_to(made[0]))
        feed(chain, block(made[0], tx("2", output("cid"))))
        with query.snapshot() as shot:
            changes = Changes(shot)
            changes.resume(cursor)
            rest, end = changes.page(9)
        assert [change.lovelace_amount for change in rest] == [3, 1] and end is None
        assert chain.rollback(back_to("origin"))
        with query.snapshot() as shot, pytest.raises(PointRemoved) as missing:
            Changes(shot).resume(cursor)
        assert missing.value.ancestor is None
        feed(chain, block(None, salt="other"))  # another block in its place
        with query.snapshot() as shot, pytest.raises(PointRemoved):
            Changes(shot).resume(cursor)
        for wrong in ("", "x", "kAAA", cursor[:-3]):
            with query.snapshot() as shot, pytest.raises(BadCursor):
                Changes(shot).resume(wrong)


def test_the_block_at_the_floor_has_no_effects_any_more(tmp_path: Path) -> None:
    with open_chain(tmp_path, prune_depth=2, rollback_window=2) as chain:
        made = [block(None, tx("0", output("ann")))]
        for n in range(1, 6):
            made.append(block(made[-1], tx(f"{n}", output("ann"))))
        feed(chain, *made)
        prune_all(chain)
        with chain.store.disk.read() as txn:
            stored = chain.store.stored(txn)
            floor = stored.state.floor
            assert [stored.undo(ordinal) for ordinal in (floor, floor + 1)] == [None, []]


@pytest.fixture(scope="module")
def fed_api() -> Iterator[tuple[Api, list[Message]]]:
    with short_folder() as folder, running_api(folder, utxo={"rollback_window": 8, "prune_depth": 8}) as api:
        blocks = scenarios.chain(12, outputs=2)
        for each in blocks[:9]:  # a commit each: what is due is pruned with the next ones
            api.feed(each)
        api.feed(blocks[9], scenarios.back_to(blocks[8]))
        paid = scenarios.tx("other", scenarios.output("bob", 5))
        api.feed(other := scenarios.block(blocks[8], paid, branch="other"))
        yield api, [*blocks[:9], other]


def test_the_list_over_http(fed_api: tuple[Api, list[Message]]) -> None:
    api, blocks = fed_api
    here = f"from={blocks[5]['height']}.{blocks[5]['hash'].hex()}"
    answer = api.ask(f"{CHANGES}?{here}")
    assert answer.status_code == 200 and "x-next-cursor" not in answer.headers
    changes = answer.json()
    names = [f"{each['change']} {each['block']} {each['lovelace_amount']}" for each in changes]
    each_block = ("created {0} {0}00", "created {0} {0}01", "spent {1} {1}00")
    assert names == [*(text.format(n, n - 1) for n in (7, 8, 9) for text in each_block), "created 10 5"]
    assert changes[2]["spent_at_block"] == 7 and "spent_at_block" not in changes[0]
    utxo = api.get(f"/api/v1/utxos/{changes[9]['tx_hash']}/0")
    assert changes[9] == utxo | {"change": "created"}
    tip = point(blocks[-1])
    assert answer.headers["x-next-from"] == f"{tip['height']}.{tip['hash']}"
    assert api.get(f"{CHANGES}?from={answer.headers['x-next-from']}") == []
    paged, query = list[Any](), f"{here}&count=3"
    while query:
        page = api.ask(f"{CHANGES}?{query}")
        assert ("x-next-from" in page.headers) != ("x-next-cursor" in page.headers)
        paged += page.json()
        cursor = page.headers.get("x-next-cursor")
        query = f"count=3&cursor={cursor}" if cursor else ""
    assert paged == changes
    again = api.ask(f"{CHANGES}?{here}", **{"If-None-Match": answer.headers["etag"]})
    assert again.status_code == 304


def test_points_that_are_refused_over_http(fed_api: tuple[Api, list[Message]]) -> None:
    api, blocks = fed_api
    removed = scenarios.chain(12, outputs=2)[9]
    answer = api.ask(f"{CHANGES}?from=10.{removed['hash'].hex()}")
    assert (answer.status_code, answer.json()["error"]) == (409, "point_removed")
    assert answer.json()["detail"] == {"ancestor": point(blocks[8])}
    answer = api.ask(f"{CHANGES}?from=origin")
    assert (answer.status_code, answer.json()["error"]) == (404, "gone")
    oldest = answer.json()["detail"]["oldest"]
    assert 1 <= oldest["height"] <= api.get("/api/v1/status")["utxo"]["rollback_floor"]["height"]
    assert api.ask(f"{CHANGES}?from={oldest['height']}.{oldest['hash']}").status_code == 200
    for place in (f"10.{'ab' * 32}", "99999999"):
        failure(api.ask(f"{CHANGES}?from={place}"), 404, "unknown_point")
    froms = ["", "from=", "from=x", "from=-1", "from=1.", "from=1.ab", f"from=x.{'ab' * 32}", "from=1&from=2"]
    for query in [*froms, "from=1&cursor=x", "cursor=x", "from=1&order=desc", "from=1&page=2", "from=1&count=0"]:
        failure(api.ask(f"{CHANGES}?{query}"), 400, "bad_parameter")
