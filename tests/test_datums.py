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
from daemons import Encoding, Message, statuses
from patience import until
from questions import Asked, asked, failure, short_folder
from scenarios import at, chain
from scenarios import back_to as told_back_to
from scenarios import block as told_block
from scenarios import output as told_output
from scenarios import tx as told_tx
from test_cli_query import utxod
from test_columns import frame_of, plain

import storage.history.datums
from handlers.chain import Chain
from handlers.columns import columns, read
from handlers.datums import find_datum, look_for_datum
from handlers.events import BlockApplied, Output, Tx
from handlers.query import NoIndex, Query
from storage.errors import Damaged
from storage.history.layout import OUTPUT, VALUE_BYTES, to_extra
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
    """Return an output that names the hash of a datum."""
    return told_output(to, datum_hash=hash_of(datum), **more)


# --- through a daemon ------------------------------------------------------------------------------------------------

OTHERS = [b"%d" % n for n in range(20)]
FIRST = told_block(
    None,
    told_tx("creates", names(ODD), names(b"other's"), names(b"later"), told_output("ann", inline_datum=b"inline")),
    told_tx("reveals", datums=[b"other's", ODD, b"of nobody", *OTHERS]),
    told_tx("both", told_output("ann", inline_datum=b"both", datum_hash=hash_of(b"both")), datums=[b"both"]),
    told_tx("plain", *(told_output("ann", n) for n in range(9))),
)
SECOND = told_block(
    FIRST,
    told_tx("spends", told_output("ann"), spends=[at("creates", 2)], datums=[b"later"]),
    told_tx(
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
def told() -> Iterator[Asked]:
    with short_folder() as folder, asked(folder, utxo=INDEX) as asking:
        asking.feed(FIRST, SECOND)
        yield asking


@pytest.mark.parametrize("datum", KNOWN)
def test_a_datum_is_found_by_its_hash(told: Asked, datum: bytes) -> None:
    assert told.get(path_of(datum)) == {"datum_hash": hash_of(datum).hex(), "datum": datum.hex()}
    assert told.get(path_of(datum).replace(hash_of(datum).hex(), hash_of(datum).hex().upper()))["datum"] == datum.hex()
    as_cbor = told.ask(path_of(datum), **AS_CBOR)
    assert (as_cbor.status_code, as_cbor.headers["content-type"]) == (200, "application/cbor")
    assert as_cbor.content == datum


@pytest.mark.parametrize("datum", UNKNOWN)
def test_a_datum_that_no_kept_output_names_is_unknown(told: Asked, datum: bytes) -> None:
    for headers in ({}, AS_CBOR):
        failure(told.ask(path_of(datum), **headers), 404, "unknown_datum", hash_of(datum).hex())


@pytest.mark.parametrize("text", ["x", "ab" * 31, "ab" * 33, "zz" * 32, " " * 64, "ab" * 31 + "a "])
def test_a_malformed_hash(told: Asked, text: str) -> None:
    failure(told.ask(f"/api/v1/datums/{text}"), 400, "bad_parameter", "datum_hash", "64 hex digits")
    assert "64 hex digits" in utxod(told.daemon, "query", "datum", "--", text).one_line(2)


def test_a_client_that_has_the_answer_is_told_so(told: Asked) -> None:
    whole, cbor = told.ask(path_of(ODD)), told.ask(path_of(ODD), **AS_CBOR)
    assert whole.headers["etag"] != cbor.headers["etag"]
    assert whole.headers["x-tip-hash"] == SECOND["hash"].hex()
    again = told.ask(path_of(ODD), **{"If-None-Match": whole.headers["etag"]})
    assert (again.status_code, again.content) == (304, b"")
    assert told.ask(path_of(ODD), "HEAD").headers["etag"] == whole.headers["etag"]
    failure(told.ask(path_of(b"nowhere"), **{"If-None-Match": whole.headers["etag"]}), 404, "unknown_datum")


def test_outputs_say_nothing_of_witnesses(told: Asked) -> None:
    """A datum of the witnesses is no inline datum."""
    found = told.get(f"/api/v1/utxos/{at('creates')[0].hex()}/0")
    assert (found["data_hash"], found["inline_datum"]) == (hash_of(ODD).hex(), None)
    assert [utxo["output_index"] for utxo in told.get(f"{path_of(ODD)}/utxos")] == [0]
    exported = told.daemon.run("export", "--format", "jsonl")
    assert exported.returncode == 0 and hash_of(ODD).hex().encode() in exported.stdout


def test_on_the_command_line(told: Asked) -> None:
    for datum in KNOWN:
        text = hash_of(datum).hex()
        assert utxod(told.daemon, "query", "datum", text) == (0, datum.hex() + "\n", "")
        assert utxod(told.daemon, "query", "datum", text, "--json").json() == told.get(path_of(datum))
    unknown = hash_of(b"nowhere").hex()
    assert f"no datum with the hash {unknown}" in utxod(told.daemon, "query", "datum", unknown).one_line(1)
    assert "--json" in utxod(told.daemon, "query", "datum", "--help").out


@pytest.mark.parametrize("encoding", ["json", "frames"])
def test_both_encodings_and_a_restart(encoding: Encoding) -> None:
    with short_folder() as folder, asked(folder, utxo=INDEX) as asking:
        with asking.daemon.client(encoding) as client:
            assert statuses(client.feed([FIRST, SECOND])) == ["applied"] * 2
        assert asking.daemon.term() == 0
        asking.daemon.start()
        for datum in KNOWN:
            assert asking.get(path_of(datum))["datum"] == datum.hex()
        for datum in UNKNOWN:
            failure(asking.ask(path_of(datum)), 404, "unknown_datum")
        asking.daemon.term()
        asking.daemon.assert_sound()


def test_a_revealed_datum_goes_with_the_output_that_was_spent() -> None:
    """It is known after the spend, not after a rollback, and not once the spent output is forgotten."""
    windows = {"rollback_window": 2, "prune_depth": 2}
    with short_folder() as folder, asked(folder, utxo=INDEX | windows) as asking:
        asking.feed(FIRST)
        failure(asking.ask(path_of(b"later")), 404, "unknown_datum")
        asking.feed(SECOND)
        assert asking.get(path_of(b"later"))
        asking.feed(told_back_to(FIRST))
        failure(asking.ask(path_of(b"later")), 404, "unknown_datum")
        asking.feed(SECOND, *chain(6, SECOND))
        until(lambda: asking.ask(path_of(b"later")).status_code == 404, why="the undo log was pruned")
        failure(asking.ask(path_of(b"later")), 404, "unknown_datum")
        assert asking.get(path_of(ODD))


def test_a_submission_reveals_nothing_before_it_is_mined() -> None:
    waits = told_tx("waits", names(b"waits"), spends=[at("plain")], datums=[b"waits"])
    with short_folder() as folder, asked(folder, utxo=INDEX) as asking:
        asking.feed(FIRST, {"type": "TxSubmitted", "tx": waits})
        failure(asking.ask(path_of(b"waits")), 404, "unknown_datum")
        asking.feed(told_block(FIRST, waits))
        assert asking.get(path_of(b"waits"))


def test_an_index_that_is_built_later() -> None:
    """Datums are stored without it, so that it can be built."""
    with short_folder() as folder, asked(folder) as asking:
        asking.feed(FIRST, SECOND)
        failure(asking.ask(path_of(ODD)), 503, "not_enabled", "utxo.index.datum")
        assert "index datum is not kept" in utxod(asking.daemon, "query", "datum", hash_of(ODD).hex()).one_line(1)
        asking.daemon.term()
        asking.daemon.configure(utxo=INDEX)
        assert asking.daemon.run("reindex").returncode == 0
        for datum in KNOWN:
            assert utxod(asking.daemon, "query", "datum", hash_of(datum).hex()).out == datum.hex() + "\n"


# --- in the store ----------------------------------------------------------------------------------------------------


def query_of(chain: Chain) -> Query:
    return Query(chain.store, CODEC, "cardano")


def found(chain: Chain, datum: bytes) -> bool:
    with query_of(chain).snapshot() as shot:
        known = find_datum(shot, hash_of(datum))
    assert known in (None, datum)
    return known is not None


def expected(told: list[BlockApplied], floor: int) -> set[bytes]:
    """Return the hashes whose datum is known, by a rule of its own."""
    lives, known = dict[tuple[bytes, int], tuple[bytes, bool]](), set[bytes]()
    for ordinal, each in enumerate(told, 1):
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


def hashes(told: list[BlockApplied]) -> set[bytes]:
    named = {hash_of(datum) for each in told for made in each.txs for datum in made.datums}
    outputs: list[Output | None] = [
        o for each in told for made in each.txs for o in (*made.outputs, made.collateral_return)
    ]
    named |= {hash_of(o.inline_datum) for o in outputs if o is not None and o.inline_datum is not None}
    return named | {o.datum_hash for o in outputs if o is not None and o.datum_hash is not None}


@pytest.mark.parametrize("seed", range(4))
def test_what_is_known_in_any_story(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, seed: int) -> None:
    """Blocks one by one and several at once, rolled back, pruned: what is known follows from the blocks alone."""
    monkeypatch.setattr(storage.history.datums, "_READ", 2)
    monkeypatch.setattr(storage.history.datums, "VALUE_BYTES", 60)
    rng, told, ever, seen = Random(seed), list[BlockApplied](), set[bytes](), set[bool]()
    with open_chain(tmp_path, **OPTIONS) as chain:
        for _ in range(25):
            some = random_chain(rng, rng.choice((1, 1, 4)), after=told, repeats=False)
            feed(chain, *some)
            told += some
            ever |= hashes(some)
            if rng.random() < 0.3:
                prune_all(chain)
            most = min(WINDOW, len(told) - chain.state.floor)
            if rng.random() < 0.3 and (depth := rng.randint(0, most)):
                told = told[:-depth]
                chain.rollback(back_to(told[-1] if told else "origin"))
            wanted = expected(told, chain.state.floor)
            with query_of(chain).snapshot() as shot:
                for digest in ever:
                    datum = find_datum(shot, digest)
                    assert (datum is not None) == (digest in wanted), digest.hex()
                    assert datum is None or hash_of(datum) == digest
                    seen.add(datum is not None)
        assert verify(chain.store.disk) == []
    assert seen == {True, False}


def test_far_below_the_tip_only_what_lives_has_its_datum(tmp_path: Path) -> None:
    first = block(
        None, tx("one", output("ann", datum_hash=hash_of(b"kept")), output("ann", datum_hash=hash_of(b"spent")))
    )
    lives = tx("two", output("ann", datum_hash=hash_of(b"new")), spends=[place("one", 1)], datums=[b"new", b"spent"])
    second = block(first, lives, tx("three", datums=[b"kept"]))
    with open_chain(tmp_path, **OPTIONS) as chain:
        feed(chain, first, second, network_height=1000)
        assert [found(chain, datum) for datum in (b"new", b"spent", b"kept")] == [True, False, False]
        assert verify(chain.store.disk) == []


def test_a_datum_stays_with_the_outputs_that_have_it(tmp_path: Path) -> None:
    """An output that was created without the datum does not get it when it is revealed elsewhere."""
    paid = [output("ann", datum_hash=hash_of(b"d")) for _ in range(2)]
    told = [block(None, tx("with", paid[0], datums=[b"d"]), tx("plain", output("ann")))]
    told.append(block(told[0], tx("without", paid[1])))
    told.append(block(told[1], tx("spends", spends=[place("with")])))
    with open_chain(tmp_path, **OPTIONS) as chain:
        for each in told:
            feed(chain, each)
        assert found(chain, b"d")
        for _ in range(WINDOW + 1):
            told.append(block(told[-1]))
            feed(chain, told[-1])
        prune_all(chain)
        assert not found(chain, b"d")
        feed(chain, block(told[-1], tx("reveals", spends=[place("without")], datums=[b"d"])))
        assert found(chain, b"d")


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


def test_a_hash_that_many_outputs_name_gives_others_a_turn(tmp_path: Path) -> None:
    """The datum is with the first of them, and the last ones are looked at first."""
    many = 1000
    first = block(None, tx("with", output("ann", datum_hash=hash_of(b"d")), datums=[b"d"]))
    second = block(first, tx("many", *(output("ann", datum_hash=hash_of(b"d")) for _ in range(many))))
    with open_chain(tmp_path, **OPTIONS) as chain:
        feed(chain, first)
        feed(chain, second)
        with query_of(chain).snapshot() as shot:
            *turns, last = look_for_datum(shot, hash_of(b"d"))
        assert last == b"d" and turns == [None] * (many // storage.history.datums._READ)


def test_an_output_that_is_not_there(tmp_path: Path) -> None:
    with open_chain(tmp_path, **OPTIONS) as chain:
        feed(chain, block(None, tx("one", output("ann", datum_hash=hash_of(b"d")))))
        chain.store.disk.write(lambda txn: txn.delete(bytes(8), db=chain.store.disk.tables[OUTPUT]))
        with pytest.raises(Damaged, match="output 0 lives, or may live again, but is missing"):
            found(chain, b"d")


@pytest.mark.parametrize("size", [0, 1, 27, 29, 31, 33, 64])
def test_a_hash_of_another_size_is_in_no_index(tmp_path: Path, size: int) -> None:
    """The wire does not bound it, and a key has at most 32 bytes."""
    odd = output("ann", datum_hash=bytes(size), script_ref_hash=bytes(size))
    good = output("ann", datum_hash=hash_of(b"d"), script_ref_hash=bytes(28))
    with open_chain(tmp_path, **OPTIONS | {"indexes": ["datum", "script"]}) as chain:
        feed(chain, block(None, tx("one", odd, good, odd, datums=[b"d"])))
        assert found(chain, b"d") and verify(chain.store.disk) == []
        with query_of(chain).snapshot() as shot:
            for index, key in (("datum", hash_of(b"d")), ("script", bytes(28))):
                listed = shot.page(shot.listed(index, key), 10, "asc", 1, None)
                assert [utxo.output_index for utxo in listed.utxos] == [1]


def test_without_the_index(tmp_path: Path) -> None:
    with open_chain(tmp_path, indexes=["address_hash"]) as chain:
        feed(chain, block(None, tx("one", output("ann", inline_datum=b"d"))))
        with query_of(chain).snapshot() as shot, pytest.raises(NoIndex, match="datum"):
            find_datum(shot, hash_of(b"d"))


# --- a block as columns ----------------------------------------------------------------------------------------------


def test_datums_of_an_ordinary_block_are_read_from_its_bytes() -> None:
    txs = [
        Tx(bytes([n]) * 32, outputs=[Output(b"a", n)], datums=[b"x", b"\xa7address", bytes([n])][: n % 4])
        for n in range(9)
    ]
    told = BlockApplied(height=1, hash=bytes(32), txs=txs)
    raw = read(frame_of(told))
    assert raw is not None and plain(columns(raw)) == plain(columns(told))
    assert columns(raw).datums == [b"x", b"\xa7address", b"\x03", b"\x07"]


def test_which_datum_goes_where() -> None:
    """With each output that can be spent and names it, once; what none of them names is left for the undo log."""
    named, lost = hash_of(b"named"), hash_of(b"lost")
    outputs = [
        Output(b"a", 1, datum_hash=named),
        Output(b"a", 2),
        Output(b"a", 3, inline_datum=b"named", datum_hash=named),
        Output(b"a", 4, inline_datum=b"else", datum_hash=named),
        Output(b"a", 5, datum_hash=lost, spendable=False),
        Output(b"a", 6, datum_hash=hash_of(b"nowhere")),
        Output(b"a", 7, inline_datum=b"inline"),
    ]
    datums = [b"named", b"lost", b"inline", b"named"]
    made = columns(BlockApplied(height=1, hash=bytes(32), txs=[Tx(bytes(32), outputs=outputs, datums=datums)]))
    given = {at: to_extra(raw).datum for at, raw in made.extra.items()}
    assert given == {0: b"named", 2: None, 3: b"named", 4: b"lost", 5: None, 6: None}
    assert made.datums == [b"lost", b"inline"]
