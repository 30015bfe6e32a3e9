"""Pages as JSON: byte for byte the objects' encoding, kept only for as long as it is true, in bounded room."""

from __future__ import annotations

from collections.abc import MutableMapping
from pathlib import Path
from random import Random
from typing import Any

import anyio
import msgspec
import pytest
from chains import (
    ADDRESSES,
    address,
    back_to,
    block,
    feed,
    genesis,
    open_chain,
    output,
    random_chain,
    random_genesis,
    tx,
    wallet,
)
from hypothesis import given, settings
from hypothesis import strategies as st

from daemon.http.lists import Lists
from daemon.turns import Turns
from handlers.addresses import Family, codec
from handlers.chain import Chain
from handlers.events import BlockApplied
from handlers.query import Boundary, Order, Query, Torn
from handlers.rendering import OutputRenderer, Written
from handlers.walk import PLACE
from storage.rows import BlockRow, Body

encode = msgspec.json.encode
MAINNET: tuple[tuple[Family, str], ...] = (("cardano", "mainnet"), ("bitcoin", "mainnet"), ("raw", "any"))
SCRIBES: dict[str, OutputRenderer] = {
    family: OutputRenderer(codec(family, network), family) for family, network in MAINNET
}
ORDERS: tuple[Order, ...] = ("asc", "desc")
MOST = (1 << 64) - 1

some_bytes = st.one_of(st.none(), st.binary(max_size=40))
bodies = st.builds(
    Body,
    address=st.one_of(st.binary(max_size=160), st.sampled_from(ADDRESSES)),
    value=st.integers(0, MOST),
    assets=st.lists(
        st.tuples(st.binary(min_size=28, max_size=28), st.binary(max_size=32), st.integers(0, MOST)), max_size=3
    ),
    datum_hash=some_bytes,
    inline_datum=some_bytes,
    script_ref=some_bytes,
    script_ref_hash=some_bytes,
    is_collateral_return=st.booleans(),
)
blocks = st.builds(
    BlockRow,
    height=st.integers(0, 1 << 32),
    slot=st.integers(0, 1 << 63),
    hash=st.binary(min_size=32, max_size=32),
    time=st.one_of(st.none(), st.integers(0, 1 << 40)),
    epoch=st.one_of(st.none(), st.integers(0, 1 << 20)),
)


@settings(max_examples=400, deadline=None)
@given(st.sampled_from([*SCRIBES]), st.binary(min_size=32, max_size=32), st.integers(0, (1 << 32) - 1), bodies, blocks)
def test_an_output_as_json_is_the_object_encoded(
    family: str, txid: bytes, index: int, body: Body, born: BlockRow
) -> None:
    renderer = SCRIBES[family]
    more = None if body == Body(body.address, body.value) else body
    written = renderer.json(txid, index, body.address, body.value, more, renderer.created_json(born))
    assert written.encode() == encode(renderer.utxo(txid, index, body, born))


def asking(chain: Chain, room: int = 1 << 20) -> Query:
    return Query(chain.store, codec("cardano", "mainnet"), "cardano", room)


def assert_pages_are_true(query: Query) -> int:
    """Compare every list, in parts, with the objects that are read anew; return how many outputs there were."""
    seen = 0
    with query.snapshot() as shot:
        for owner in ADDRESSES:
            where = shot.by_address(owner)
            for order in ("asc", "desc"):
                for count in (1, 3, 1000):
                    walk, whole = shot.walk(where, order, None), shot.page(where, 1000, order, 1, None).utxos
                    places, cursor = walk.take(count)
                    seen += len(places)
                    assert shot.json(places) == encode(whole[:count])
                    assert (cursor is None) == (count >= len(whole))
    return seen


@pytest.mark.parametrize("seed", range(4))
def test_pages_stay_true_on_any_chain(tmp_path: Path, seed: int) -> None:
    """Blocks come and go, and pages are asked for between; what was kept is never told when it is not so."""
    rng = Random(seed)
    with open_chain(tmp_path, rollback_window=50, prune_depth=2) as chain:
        query, story, seen, returns = asking(chain), list[BlockApplied](), 0, 0
        chain.seed(random_genesis(rng))
        for _ in range(30):
            if len(story) > 3 and rng.random() < 0.3:
                keep = rng.randrange(max(len(story) - 5, 1), len(story))
                chain.rollback(back_to(story[keep - 1]))
                story, returns = story[:keep], returns + 1
            if rng.random() < 0.9:
                seen += assert_pages_are_true(query)
            more = random_chain(rng, rng.randrange(1, 4), after=story)
            feed(chain, *more)
            story += more
            seen += assert_pages_are_true(query)
        assert seen > 500 and returns > 3


def test_a_page_is_written_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    first = block(None, tx("a", *(output("ann", n) for n in range(5))), tx("b", output("bob")))
    with open_chain(tmp_path) as chain:
        query, written = asking(chain), list[int]()
        json = query.renderer.json

        def write(txid: bytes, index: int, address: bytes, value: int, body: Body | None, created: str) -> str:
            written.append(index)
            return json(txid, index, address, value, body, created)

        monkeypatch.setattr(query.renderer, "json", write)

        def ask() -> bytes:
            with query.snapshot() as shot:
                return shot.json(shot.walk(shot.by_address(wallet("ann")), "asc", None).take(3)[0])

        feed(chain, first)
        page = ask()
        assert written == [0, 1, 2]
        feed(chain, second := block(first, tx("c", output("ann"))), block(second))
        assert ask() == page and written == [0, 1, 2]  # the chain has grown, and this page has not changed
        chain.rollback(back_to(second))
        assert ask() == page and written == [0, 1, 2, 0, 1, 2]  # a block has gone: nothing is taken for granted


def test_who_still_looks_at_a_fork_that_was_left_spoils_nothing(tmp_path: Path) -> None:
    """The same places hold other outputs on the other fork."""
    first = block(None, tx("a", output("ann", 1)))
    ours, theirs = block(first, tx("b", output("ann", 2))), block(first, tx("c", output("ann", 3)), salt="other")
    with open_chain(tmp_path) as chain:
        query = asking(chain)
        feed(chain, first, ours)
        with query.snapshot() as before:
            chain.rollback(back_to(first))
            feed(chain, theirs)
            with query.snapshot() as after:
                where = after.by_address(wallet("ann"))
                places = after.walk(where, "asc", None).take(9)[0]
                assert places == before.walk(where, "asc", None).take(9)[0]
                old, new = before.json(places), after.json(places)
                assert old == encode(before.page(where, 9, "asc", 1, None).utxos)
                assert new == encode(after.page(where, 9, "asc", 1, None).utxos) != old
        with query.snapshot() as again:
            assert again.json(places) == new


def test_what_is_kept_has_bounded_room() -> None:
    written = Written(10_000)
    for n in range(2000):
        written.keep(n.to_bytes(12, "big"), bytes(300))
        assert len(written._young) + len(written._old) <= 10_000 // 500 + 2
    assert written.find((1999).to_bytes(12, "big")) == bytes(300)
    assert written.find((0).to_bytes(12, "big")) is None
    for n in range(20_000):
        written.keep_created(n, "x")
        assert len(written.created_parts) <= 8192


def test_what_is_asked_for_again_and_again_stays() -> None:
    written = Written(10_000)
    written.keep(b"often", b"page")
    for n in range(2000):
        written.keep(n.to_bytes(12, "big"), bytes(300))
        assert written.find(b"often") == b"page"


def test_a_place_after_the_last_is_no_place(tmp_path: Path) -> None:
    with open_chain(tmp_path) as chain:
        feed(chain, block(None, tx("first"), tx("a", output("ann"))))
        query = asking(chain)
        with query.snapshot() as shot:
            where, size = shot.by_address(wallet("ann")), PLACE.size
            for place in (b"\xff" * size, bytes(size)):
                for order in ORDERS:
                    cursor = shot.cut(place, where[1], order)
                    assert bool(shot.walk(where, order, cursor).take(5)[0]) == (
                        (order == "asc") == (place == bytes(size))
                    )


def test_a_boundary_is_the_same_until_something_moves(tmp_path: Path) -> None:
    first = block(None)
    with open_chain(tmp_path) as chain:
        query = asking(chain)

        def look() -> Boundary:
            with query.snapshot() as shot:
                assert (shot.state, shot.tip()) == (chain.state, chain.tip)
                return shot.boundary

        empty = look()
        assert look() is empty
        chain.seed(genesis(ann=5))
        seeded = look()
        assert seeded is not empty and look() is seeded
        feed(chain, first)
        one = look()
        assert one is not seeded and look() is one
        feed(chain, block(first))
        two = look()
        chain.rollback(back_to(first))
        assert two is not one and look() is not two
        assert look().written is not two.written


def test_a_map_that_grows_tears_what_gave_others_a_turn(tmp_path: Path) -> None:
    with open_chain(tmp_path, map_size=1 << 20, max_map_size=1 << 26) as chain:
        first = block(None, tx("a", *(output(address(0, "ann", "x"), n) for n in range(3000))))
        feed(chain, first)
        query = asking(chain)
        with pytest.raises(Torn), query.snapshot() as shot:
            for _ in shot.balance(shot.by_address(address(0, "ann", "x"))):
                chain.store.disk.env.set_mapsize(1 << 24)
        with query.snapshot() as shot:
            assert [*shot.balance(shot.by_address(address(0, "ann", "x")))][-1].count == 3000


def test_answers_are_kept_until_the_store_moves(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """In bounded room, and never told of another block."""
    first = block(None, tx("a", *(output("ann", n) for n in range(5))))
    with open_chain(tmp_path) as chain:
        feed(chain, first)
        query = asking(chain)
        lists = Lists(query, "owner", lambda shot, text: shot.by_address(wallet(text)), Turns())

        def ask(query_string: bytes = b"") -> tuple[bytes, bytes]:
            sent = list[MutableMapping[str, Any]]()

            async def send(message: MutableMapping[str, Any]) -> None:
                sent.append(message)

            async def receive() -> MutableMapping[str, Any]:
                raise AssertionError("a question has no body")

            scope: MutableMapping[str, Any] = {
                "path_params": {"owner": "ann"},
                "query_string": query_string,
                "headers": [],
            }
            anyio.run(lists, scope, receive, send)
            return dict(sent[0]["headers"])[b"x-tip-height"], sent[1]["body"]

        with query.snapshot() as shot:
            whole = encode(shot.page(shot.by_address(wallet("ann")), 100, "asc", 1, None).utxos)
        assert [ask(), ask()] == [(b"1", whole)] * 2 and len(lists._answers) == 1
        feed(chain, second := block(first, tx("b", output("ann"))))
        height, more = ask()
        assert height == b"2" and len(more) > len(whole) and len(lists._answers) == 1
        chain.rollback(back_to(first))
        assert ask() == (b"1", whole)
        feed(chain, second)
        assert ask() == (b"2", more)
        monkeypatch.setattr("daemon.http.lists._ROOM", 20_000)
        feed(chain, block(second))
        for n in range(100):
            assert ask(b"n=%d" % n) == (b"3", more)
            assert len(lists._answers) * len(more) < 20_000
