"""Datums by their hash: inline ones, and those of witnesses, as long as an output with the hash is kept."""

from __future__ import annotations

from collections.abc import Iterator
from hashlib import blake2b
from pathlib import Path
from random import Random
from typing import Any

import pytest
from chains import CODEC, Options, back_to, block, feed, open_chain, output, prune_all, random_chain, tx
from chains import at as place
from daemons import Message
from questions import Api, failure, running_api, short_folder
from scenarios import at
from scenarios import block as message_block
from scenarios import output as message_output
from scenarios import tx as message_tx
from test_cli_query import utxod

import storage.history.datums
from handlers.chain import Chain
from handlers.datums import find_datum, search_datum
from handlers.events import BlockApplied, Output
from handlers.query import Query
from storage.errors import Damaged
from storage.history.layout import OUTPUT, VALUE_BYTES
from storage.history.verify import verify

INDEX: dict[str, Any] = {"index": {"datum": True}}
WINDOW = 3
OPTIONS = Options(indexes=["datum"], rollback_window=WINDOW, prune_depth=WINDOW, map_size=1 << 24)
AS_CBOR = {"Accept": "application/cbor"}
ODD = bytes.fromhex("d8799f1800ff")  # another encoding of [0] would have another hash


def hash_of(datum: bytes) -> bytes:
    return blake2b(datum, digest_size=32).digest()


def path_of(datum: bytes) -> str:
    return f"/api/v1/datums/{hash_of(datum).hex()}"


def names(datum: bytes, to: str = "script", **more: Any) -> Message:
    return message_output(to, datum_hash=hash_of(datum), **more)


OTHERS = [b"%d" % n for n in range(20)]
FIRST = message_block(
    None,
    message_tx(
        "creates", names(ODD), names(b"other's"), names(b"later"), message_output("ann", inline_datum=b"inline")
    ),
    message_tx("reveals", datums=[b"other's", ODD, b"of nobody", *OTHERS]),
    message_tx("both", message_output("ann", inline_datum=b"both", datum_hash=hash_of(b"both")), datums=[b"both"]),
    message_tx("plain", *(message_output("ann", n) for n in range(9))),
)
SECOND = message_block(
    FIRST,
    message_tx("spends", message_output("ann"), spends=[at("creates", 2)], datums=[b"later"]),
    message_tx(
        "fails",
        names(b"never"),
        valid=False,
        collateral=[at("plain")],
        collateral_return=names(b"returned"),
        datums=[b"returned", b"never"],
    ),
)
KNOWN = [ODD, b"other's", b"later", b"inline", b"both", b"returned"]
UNKNOWN = [b"of nobody", b"never", OTHERS[0], b"nowhere"]


@pytest.fixture(scope="module")
def served() -> Iterator[Api]:
    with short_folder() as folder, running_api(folder, utxo=INDEX) as api:
        api.feed(FIRST, SECOND)
        yield api


@pytest.mark.parametrize("datum", KNOWN)
def test_a_datum_is_found_by_its_hash(served: Api, datum: bytes) -> None:
    assert served.get(path_of(datum)) == {"datum_hash": hash_of(datum).hex(), "datum": datum.hex()}
    assert (
        served.get(path_of(datum).replace(hash_of(datum).hex(), hash_of(datum).hex().upper()))["datum"] == datum.hex()
    )
    as_cbor = served.ask(path_of(datum), **AS_CBOR)
    assert (as_cbor.status_code, as_cbor.headers["content-type"]) == (200, "application/cbor")
    assert as_cbor.content == datum


@pytest.mark.parametrize("datum", UNKNOWN)
def test_a_datum_that_no_kept_output_names_is_unknown(served: Api, datum: bytes) -> None:
    for headers in ({}, AS_CBOR):
        failure(served.ask(path_of(datum), **headers), 404, "unknown_datum", hash_of(datum).hex())


@pytest.mark.parametrize("text", ["x", "ab" * 31, "ab" * 33, "zz" * 32, " " * 64, "ab" * 31 + "a "])
def test_a_malformed_hash(served: Api, text: str) -> None:
    failure(served.ask(f"/api/v1/datums/{text}"), 400, "bad_parameter", "datum_hash", "64 hex digits")
    assert "64 hex digits" in utxod(served.daemon, "query", "datum", "--", text).one_line(2)


def test_an_unchanged_datum_is_304(served: Api) -> None:
    whole, cbor = served.ask(path_of(ODD)), served.ask(path_of(ODD), **AS_CBOR)
    assert whole.headers["etag"] != cbor.headers["etag"]
    assert whole.headers["x-tip-hash"] == SECOND["hash"].hex()
    again = served.ask(path_of(ODD), **{"If-None-Match": whole.headers["etag"]})
    assert (again.status_code, again.content) == (304, b"")
    assert served.ask(path_of(ODD), "HEAD").headers["etag"] == whole.headers["etag"]
    failure(served.ask(path_of(b"nowhere"), **{"If-None-Match": whole.headers["etag"]}), 404, "unknown_datum")


def test_outputs_do_not_show_datums_of_witnesses(served: Api) -> None:
    found = served.get(f"/api/v1/utxos/{at('creates')[0].hex()}/0")
    assert (found["data_hash"], found["inline_datum"]) == (hash_of(ODD).hex(), None)
    assert [utxo["output_index"] for utxo in served.get(f"{path_of(ODD)}/utxos")] == [0]
    exported = served.daemon.run("export", "--format", "jsonl")
    assert exported.returncode == 0 and hash_of(ODD).hex().encode() in exported.stdout


def test_query_datum(served: Api) -> None:
    for datum in KNOWN:
        text = hash_of(datum).hex()
        assert utxod(served.daemon, "query", "datum", text) == (0, datum.hex() + "\n", "")
        assert utxod(served.daemon, "query", "datum", text, "--json").json() == served.get(path_of(datum))
    unknown = hash_of(b"nowhere").hex()
    assert f"no datum with the hash {unknown}" in utxod(served.daemon, "query", "datum", unknown).one_line(1)
    assert "--json" in utxod(served.daemon, "query", "datum", "--help").out


def test_the_index_can_be_built_later_and_a_submission_reveals_nothing_before_it_is_mined() -> None:
    waits = message_tx("waits", names(b"waits"), spends=[at("plain", 1)], datums=[b"waits"])
    with short_folder() as folder, running_api(folder) as api:
        api.feed(FIRST, SECOND)
        failure(api.ask(path_of(ODD)), 503, "not_enabled", "utxo.index.datum")
        assert "index datum is not kept" in utxod(api.daemon, "query", "datum", hash_of(ODD).hex()).one_line(1)
        api.daemon.term()
        api.daemon.configure(utxo=INDEX, http={"workers": 1, "listen": f"unix:{folder}/http"})
        assert api.daemon.run("reindex").returncode == 0
        for datum in KNOWN:
            assert utxod(api.daemon, "query", "datum", hash_of(datum).hex()).out == datum.hex() + "\n"
        api.daemon.start()
        api.feed({"type": "TxSubmitted", "tx": waits})
        failure(api.ask(path_of(b"waits")), 404, "unknown_datum")
        api.feed(message_block(SECOND, waits))
        assert api.get(path_of(b"waits"))
        assert [api.get(path_of(datum))["datum"] for datum in KNOWN] == [datum.hex() for datum in KNOWN]


def query_of(chain: Chain) -> Query:
    return Query(chain.store, CODEC, "cardano")


def found(chain: Chain, datum: bytes) -> bool:
    with query_of(chain).snapshot() as shot:
        known = find_datum(shot, hash_of(datum))
    assert known in (None, datum)
    return known is not None


def expected(served: list[BlockApplied], floor: int) -> set[bytes]:
    """Return the hashes whose datum is known, computed from the blocks alone."""
    lives, known = dict[tuple[bytes, int], tuple[bytes, bool]](), set[bytes]()
    for ordinal, each in enumerate(served, 1):
        revealed = {hash_of(datum) for made in each.txs for datum in made.datums}
        for made in each.txs:
            for point in made.inputs if made.valid else made.collateral:
                digest, has = lives.pop(point, (b"", False))
                if ordinal > floor and (has or digest in revealed):
                    known.add(digest)
            outputs = list(enumerate(made.outputs)) if made.valid else []
            if not made.valid and made.collateral_return is not None:
                outputs = [(len(made.outputs), made.collateral_return)]
            for index, paid in outputs:
                if paid.spendable and paid.inline_datum is not None:
                    lives[made.txid, index] = hash_of(paid.inline_datum), True
                elif paid.spendable and paid.datum_hash is not None:
                    lives[made.txid, index] = paid.datum_hash, paid.datum_hash in revealed
    return known | {digest for digest, has in lives.values() if has}


def hashes(served: list[BlockApplied]) -> set[bytes]:
    named = {hash_of(datum) for each in served for made in each.txs for datum in made.datums}
    outputs: list[Output | None] = [
        o for each in served for made in each.txs for o in (*made.outputs, made.collateral_return)
    ]
    named |= {hash_of(o.inline_datum) for o in outputs if o is not None and o.inline_datum is not None}
    return named | {o.datum_hash for o in outputs if o is not None and o.datum_hash is not None}


@pytest.mark.parametrize("seed", range(3))
def test_known_datums_follow_from_the_blocks(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, seed: int) -> None:
    monkeypatch.setattr(storage.history.datums, "_READ", 2)
    monkeypatch.setattr(storage.history.datums, "VALUE_BYTES", 60)
    rng, served, ever, seen = Random(seed), list[BlockApplied](), set[bytes](), set[bool]()
    with open_chain(tmp_path, **OPTIONS) as chain:
        for _ in range(25):
            some = random_chain(rng, rng.choice((1, 1, 4)), after=served, repeats=False)
            feed(chain, *some)
            served += some
            ever |= hashes(some)
            if rng.random() < 0.3:
                prune_all(chain)
            most = min(WINDOW, len(served) - chain.state.floor)
            if rng.random() < 0.3 and (depth := rng.randint(0, most)):
                served = served[:-depth]
                chain.rollback(back_to(served[-1] if served else "origin"))
            wanted = expected(served, chain.state.floor)
            with query_of(chain).snapshot() as shot:
                for digest in ever:
                    datum = find_datum(shot, digest)
                    assert (datum is not None) == (digest in wanted), digest.hex()
                    assert datum is None or hash_of(datum) == digest
                    seen.add(datum is not None)
        assert verify(chain.store.disk) == []
    assert seen == {True, False}


def test_far_below_the_tip_only_unspent_outputs_keep_their_datum(tmp_path: Path) -> None:
    first = block(
        None, tx("one", output("ann", datum_hash=hash_of(b"kept")), output("ann", datum_hash=hash_of(b"spent")))
    )
    lives = tx("two", output("ann", datum_hash=hash_of(b"new")), spends=[place("one", 1)], datums=[b"new", b"spent"])
    second = block(first, lives, tx("three", datums=[b"kept"]))
    with open_chain(tmp_path, **OPTIONS) as chain:
        feed(chain, first, second, network_height=1000)
        assert [found(chain, datum) for datum in (b"new", b"spent", b"kept")] == [True, False, False]
        assert verify(chain.store.disk) == []


@pytest.mark.parametrize("sizes", [[10] * 3000, [VALUE_BYTES * 2], [1, VALUE_BYTES * 3, 1], [8000] * 5])
def test_many_and_large_datums(tmp_path: Path, sizes: list[int]) -> None:
    datums = [Random(n).randbytes(size) for n, size in enumerate(sizes)]
    first = block(None, tx("names", *(output("ann", datum_hash=hash_of(datum)) for datum in datums)))
    spends = [place("names", n) for n in range(len(datums))]
    with open_chain(tmp_path, **OPTIONS) as chain:
        feed(chain, first)
        feed(chain, second := block(first, tx("spends", spends=spends, datums=datums)))
        assert all(found(chain, datum) for datum in (datums[0], datums[len(datums) // 2], datums[-1]))
        with chain.store.disk.read() as txn:
            rows = [value for _, value in txn.cursor(chain.store.disk.tables["history_undo"])]
        assert all(len(row) <= VALUE_BYTES or row[4] == 1 for row in rows)
        assert sum(map(len, rows)) < sum(sizes) + 6 * len(sizes) + 17 * len(sizes) + 100
        assert verify(chain.store.disk) == []
        chain.rollback(back_to(first))
        assert not found(chain, datums[0]) and verify(chain.store.disk) == []
        assert chain.apply(second, None)


def test_a_search_among_many_outputs_is_done_in_steps(tmp_path: Path) -> None:
    many = 1000
    first = block(None, tx("with", output("ann", datum_hash=hash_of(b"d")), datums=[b"d"]))
    second = block(first, tx("many", *(output("ann", datum_hash=hash_of(b"d")) for _ in range(many))))
    with open_chain(tmp_path, **OPTIONS) as chain:
        feed(chain, first)
        feed(chain, second)
        with query_of(chain).snapshot() as shot:
            *turns, last = search_datum(shot, hash_of(b"d"))
        assert last == b"d" and turns == [None] * (many // storage.history.datums._READ)


def test_a_missing_output_is_damage(tmp_path: Path) -> None:
    with open_chain(tmp_path, **OPTIONS) as chain:
        feed(chain, block(None, tx("one", output("ann", datum_hash=hash_of(b"d")))))
        chain.store.disk.write(lambda txn: txn.delete(bytes(8), db=chain.store.disk.tables[OUTPUT]))
        with pytest.raises(Damaged, match="output 0 is unspent, or may be unspent again, but is missing"):
            found(chain, b"d")


@pytest.mark.parametrize("size", [0, 1, 27, 29, 31, 33, 64])
def test_a_hash_of_another_size_is_in_no_index(tmp_path: Path, size: int) -> None:
    odd = output("ann", datum_hash=bytes(size), script_ref_hash=bytes(size))
    good = output("ann", datum_hash=hash_of(b"d"), script_ref_hash=bytes(28))
    with open_chain(tmp_path, **OPTIONS | {"indexes": ["datum", "script"]}) as chain:
        feed(chain, block(None, tx("one", odd, good, odd, datums=[b"d"])))
        assert found(chain, b"d") and verify(chain.store.disk) == []
        with query_of(chain).snapshot() as shot:
            for index, key in (("datum", hash_of(b"d")), ("script", bytes(28))):
                listed = shot.page(shot.listed(index, key), 10, "asc", 1, None)
                assert [utxo.output_index for utxo in listed.utxos] == [1]
