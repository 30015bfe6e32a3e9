"""Pages as JSON: byte for byte the encoding of the objects, kept only while it is true, in bounded memory."""

from __future__ import annotations

from collections.abc import MutableMapping
from pathlib import Path
from typing import Any

import anyio
import msgspec
import pytest
from chains import ADDRESSES, address, back_to, block, feed, open_chain, output, query_of, tx, wallet
from hypothesis import given, settings
from hypothesis import strategies as st

from daemon.http.lists import Lists
from daemon.turns import Turns
from handlers.addresses import Family, codec
from handlers.query import Torn
from handlers.rendering import OutputRenderer, Written
from storage.rows import BlockRow, Body

encode = msgspec.json.encode
MAINNET: tuple[tuple[Family, str], ...] = (("cardano", "mainnet"), ("bitcoin", "mainnet"), ("raw", "any"))
RENDERERS = {family: OutputRenderer(codec(family, network), family) for family, network in MAINNET}
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


@settings(max_examples=200, deadline=None)
@given(
    st.sampled_from([*RENDERERS]), st.binary(min_size=32, max_size=32), st.integers(0, (1 << 32) - 1), bodies, blocks
)
def test_an_output_as_json_is_the_object_encoded(
    family: Family, txid: bytes, index: int, body: Body, born: BlockRow
) -> None:
    renderer = RENDERERS[family]
    more = None if body == Body(body.address, body.value) else body
    written = renderer.json(txid, index, body.address, body.value, more, renderer.created_json(born))
    assert written.encode() == encode(renderer.utxo(txid, index, body, born))


def test_a_page_is_written_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    first = block(None, tx("a", *(output("ann", n) for n in range(5))), tx("b", output("bob")))
    with open_chain(tmp_path) as chain:
        query, written = query_of(chain), list[int]()
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
        assert ask() == page and written == [0, 1, 2]  # the chain has grown, and this page is the same
        chain.rollback(back_to(second))
        assert ask() == page and written == [0, 1, 2, 0, 1, 2]  # after a rollback nothing is reused


def test_written_outputs_have_bounded_memory_and_the_frequent_ones_stay() -> None:
    written = Written(10_000)
    written.keep(b"often", b"page")
    for n in range(2000):
        written.keep(n.to_bytes(12, "big"), bytes(300))
        assert len(written.lists) <= 10_000 // 500 + 2
        assert written.find(b"often") == b"page"
    assert written.find((1999).to_bytes(12, "big")) == bytes(300)
    assert written.find((0).to_bytes(12, "big")) is None
    for n in range(20_000):
        written.keep_created(n, "x")
        assert len(written.created_parts) <= 8192


def test_a_map_that_grows_ends_answers_that_take_turns(tmp_path: Path) -> None:
    with open_chain(tmp_path, map_size=1 << 20, max_map_size=1 << 26) as chain:
        first = block(None, tx("a", *(output(address(0, "ann", "x"), n) for n in range(3000))))
        feed(chain, first)
        query = query_of(chain)
        with pytest.raises(Torn), query.snapshot() as shot:
            for _ in shot.balance(shot.by_address(address(0, "ann", "x"))):
                chain.store.disk.env.set_mapsize(1 << 24)
        with query.snapshot() as shot:
            assert [*shot.balance(shot.by_address(address(0, "ann", "x")))][-1].count == 3000


def test_answers_are_kept_until_the_store_moves(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    first = block(None, tx("a", *(output("ann", n) for n in range(5))))
    with open_chain(tmp_path) as chain:
        feed(chain, first)
        query = query_of(chain)
        lists = Lists(query, "owner", lambda shot, text: shot.by_address(wallet(text)), Turns())

        def ask(query_string: bytes = b"") -> tuple[bytes, bytes]:
            sent = list[MutableMapping[str, Any]]()

            async def send(message: MutableMapping[str, Any]) -> None:
                sent.append(message)

            async def receive() -> MutableMapping[str, Any]:
                raise AssertionError("a question has no body")

            path = {"owner": "ann"}
            scope: MutableMapping[str, Any] = {"path_params": path, "query_string": query_string, "headers": []}
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
        monkeypatch.setattr("daemon.http.lists._CACHE_BYTES", 20_000)
        feed(chain, block(second))
        for n in range(100):
            assert ask(b"n=%d" % n) == (b"3", more)
            assert len(lists._answers) * len(more) < 20_000
