"""A daemon with an MMR store: roots and proofs over HTTP, proofs checked by who has no store, damage that is found."""

from __future__ import annotations

import json
import shutil
import zlib
from collections.abc import Callable, Iterator
from pathlib import Path
from struct import pack as packed

import msgspec
import numpy as np
import pytest
from daemons import Daemon, home, reason, running, utxod
from questions import Asked, Web, asked, failure, short_folder
from scenarios import at, back_to, block, chain, digest, output, tx

from config.load import load
from daemon.store import leaf_writer, open_disk
from handlers.proofs import Contradiction, MmrProof, check
from storage import mmr
from storage.disk import Txn
from storage.history.bits import open_chunk
from storage.history.layout import LIVE, STATE, count_of, seal, seal_row, stored_state
from storage.history.mmr import BIT_NODE, NODE, THIN_AT
from storage.history.mmr_nodes import NODES, Value, pack, unpack
from storage.history.store import HistoryStore
from storage.history.verify import verify
from storage.mmr import U64

FIRST = block(None, tx("many", *(output("ann", n) for n in range(40))), time=1, epoch=2)
SECOND = block(
    FIRST,
    tx("spend", output("bob"), output("cid"), spends=[at("many", 0), at("many", 1)]),
    tx("inside", output("dan"), spends=[at("spend", 0)]),
    tx("failed", output("eve"), valid=False, collateral=[at("many", 2)], collateral_return=output("ann", 3)),
)
ROOT, PROOF = "/api/v1/mmr/root", "/api/v1/mmr/proof/{}/{}"
POINT = ("height", "slot", "hash")


@pytest.fixture(scope="module")
def told() -> Iterator[Asked]:
    with (
        short_folder() as folder,
        asked(folder, utxo={"store": "mmr", "prune_depth": 2, "rollback_window": 2}) as asking,
    ):
        asking.feed(FIRST, SECOND, *chain(1, SECOND, branch="gone"), back_to(SECOND))
        yield asking


def proof_path(name: str, index: int = 0) -> str:
    return PROOF.format(digest("tx", name).hex(), index)


def test_roots_move_with_the_chain_and_back(told: Asked) -> None:
    before = told.ask(ROOT)
    root = before.json()
    assert root["leaves"] == 40 + 2 + 1 + 2
    assert root["size"] == mmr.size_of(45)
    assert (root["height"], root["hash"]) == (2, SECOND["hash"].hex()) == (2, before.headers["x-tip-hash"])
    assert told.ask(ROOT, **{"If-None-Match": before.headers["etag"]}).status_code == 304
    third = block(SECOND, tx("third", output("fay"), spends=[at("many", 5)]))
    told.feed(third)
    moved = told.get(ROOT)
    assert moved["leaves"] == 46
    assert moved["root"] != root["root"] and moved["bitmap_root"] != root["bitmap_root"]
    told.feed(back_to(SECOND))
    assert told.get(ROOT) == root


def test_a_proof_is_checked_by_who_has_nothing_else(told: Asked, tmp_path: Path) -> None:
    root = told.get(ROOT)["root"]
    for name, index, unspent in (("many", 7, True), ("spend", 1, True), ("failed", 1, True), ("many", 0, False)):
        answer = told.ask(proof_path(name, index))
        proof = answer.json()
        assert proof["unspent"] == unspent and proof["root"] == root
        (tmp_path / "proof").write_bytes(answer.content)
        for arguments in ([tmp_path / "proof"], [tmp_path / "proof", "--root", root], ["-", "--root", root.upper()]):
            done = utxod("verify-proof", *arguments, stdin=answer.content)
            assert (done.returncode, done.stderr) == (0, b"")
            text = done.stdout.decode()
            assert f"{digest('tx', name).hex()}#{index}" in text and proof["hash"] in text and root in text
            assert ("still unspent at block 2" in text) == unspent
            assert ("according to the proof" in text) == ("--root" not in arguments)
    assert told.get(f"/api/v1/utxos/{digest('tx', 'spend').hex()}/0")["spent_at_block"] == 2
    born_and_spent = told.get(proof_path("spend", 0))
    assert not born_and_spent["unspent"]


def test_what_contradicts_is_named(told: Asked, tmp_path: Path) -> None:
    proof, file = told.get(proof_path("many", 7)), tmp_path / "proof"
    other = told.get(proof_path("many", 8))
    wrong = {
        "outpoint": {"output_index": 8},
        "position": {"leaf": 8},
        "size": {"size": 2},
        "chunk": {"chunk": 1},
        "bits_size": {"bits_size": 3},
        "unspent": {"unspent": False},
        "output_root": {"path": proof["path"][:-1]},
        "bitmap_root": {"bits": "f" * 256},
        "root": {"root": "00" * 32},
    }
    for step, fields in wrong.items():
        file.write_text(json.dumps(proof | fields))
        done = utxod("verify-proof", file)
        assert done.returncode == 3 and f"proves nothing: {step}: " in done.stderr.decode(), done.stderr
    file.write_text(json.dumps(proof))
    done = utxod("verify-proof", file, "--root", "00" * 32)
    assert done.returncode == 3 and f"it is {proof['root']}, not {'00' * 32}" in done.stderr.decode()
    for field in ("path", "data", "leaf", "position"):
        with pytest.raises(Contradiction):
            check(msgspec.convert(proof | {field: other[field]}, MmrProof))


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ("{", b"is no proof: Input data was truncated"),
        ("{}", b"missing required field `height`"),
        ('{"leaf": -1}', b"$.leaf"),
        ('{"path": ["ab"]}', b"$.path[0]"),
        ('{"rooot": "ab"}', b"unknown field `rooot`"),
        ("\udcff", b"is no proof"),
    ],
)
def test_what_is_no_proof(text: str, says: bytes, tmp_path: Path) -> None:
    (tmp_path / "proof").write_bytes(text.encode(errors="surrogateescape"))
    done = utxod("verify-proof", tmp_path / "proof")
    assert done.returncode == 2 and says in done.stderr and b"Traceback" not in done.stderr, done.stderr


def test_wrong_use(tmp_path: Path) -> None:
    assert utxod("verify-proof", tmp_path / "absent").returncode == 2
    assert b"64 hex digits" in utxod("verify-proof", "-", "--root", "abc").stderr


def test_any_single_changed_byte_is_seen(told: Asked) -> None:
    """But for the block, which is not in the hash: it comes with the root from who is believed."""
    raw = told.ask(proof_path("many", 7)).content
    proof = json.loads(raw)
    free = set[int]()
    for field in POINT:
        begin = raw.index(json.dumps({field: proof[field]}, separators=(",", ":"))[1:-1].encode())
        free |= set(range(begin + len(field) + 3, raw.index(b",", begin)))
    accepted = []
    for place, was in enumerate(raw):
        for now in {was ^ 1, was ^ 0x20, ord("0") if was != ord("0") else ord("1")}:
            try:
                check(msgspec.json.decode(raw[:place] + bytes((now,)) + raw[place + 1 :], type=MmrProof))
            except (Contradiction, msgspec.DecodeError, UnicodeDecodeError):
                continue
            accepted.append(place)
    assert set(accepted) <= free and len(raw) > 1000


def test_what_is_asked_wrongly(told: Asked) -> None:
    failure(told.ask(PROOF.format("ab", 0)), 400, "bad_parameter", "tx_hash")
    failure(told.ask(PROOF.format("ab" * 32, "x")), 400, "bad_parameter", "index")
    failure(told.ask(PROOF.format("ab" * 32, 0)), 404, "unknown_output", "never created")
    failure(told.ask(proof_path("failed", 0)), 404, "unknown_output")


def test_status_and_metrics_tell_of_it(told: Asked) -> None:
    root, status = told.get(ROOT), told.get("/api/v1/status")["utxo"]
    assert (status["store"], status["mmr"]) == ("mmr", root)
    said = told.daemon.status()
    assert (said["store"], said["mmr"]) == ("mmr", root)
    assert f"leaves           {root['leaves']}, root {root['root']}".split() in [
        line.split() for line in told.daemon.run("status").stdout.decode().splitlines()
    ]
    assert f"utxod_mmr_leaves {root['leaves']}.0" in told.ask("/metrics").text


def test_what_is_spent_for_long_can_be_proved_no_more() -> None:
    """Its row and its nodes go, the proofs of its neighbours stay."""
    with short_folder() as folder, asked(folder, utxo={"store": "mmr", "prune_depth": 2, "rollback_window": 2}) as told:
        told.feed(FIRST, SECOND, *chain(6, SECOND))
        told.daemon.term()
        told.daemon.run("prune")
        told.daemon.assert_sound()
        told.daemon.start()
        failure(told.ask(proof_path("many", 0)), 404, "unknown_output", "so long ago")
        neighbour = told.get(proof_path("many", 3))
        check(msgspec.convert(neighbour, MmrProof))
        assert neighbour["unspent"]


# --- damage --------------------------------------------------------------------------------------------------------


TABLES = {"rollback_window": 8, "prune_depth": 8, "store": "mmr"}


@pytest.fixture(scope="module")
def whole(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    """Give the folder of a sound store: of the first value of nodes most were let go, but those above output 7."""
    folder = tmp_path_factory.mktemp("whole")
    with running(folder, utxo=TABLES) as daemon:
        first = block(None, tx("many", *(output("ann") for _ in range(400))))
        second = block(first, tx("spend", output("bob"), spends=[at("many", n) for n in range(300) if n != 7]))
        with daemon.client("frames") as client:
            client.feed([first, second, *chain(14, second, outputs=3)])
        assert daemon.term() == 0
        assert daemon.run("prune").returncode == 0
        daemon.assert_sound()
        with open_disk(load(daemon.config, {}), readonly=True) as disk:
            kept = HistoryStore(disk).mmr
            assert kept is not None
            with disk.read() as txn:
                nodes = kept.nodes(txn)
                assert [n for n in range(16) if nodes.find(n) is not None] == [6, 9, 10, 11, 12, 13, 14]
    yield folder


@pytest.fixture
def store(whole: Path, tmp_path: Path) -> Iterator[Daemon]:
    """Give a copy to damage."""
    with home(tmp_path, utxo=TABLES) as daemon:
        shutil.copytree(whole / "data", tmp_path / "data", dirs_exist_ok=True)
        yield daemon


Damage = Callable[[HistoryStore, Txn], object]


def value(first: int, change: Callable[[bytes], bytes], table: str = NODE) -> Damage:
    """Return what changes a value of nodes; without bytes it goes."""

    def damage(store: HistoryStore, txn: Txn) -> None:
        key, db = U64.pack(first), store.disk.tables[table]
        if changed := change(txn.get(key, b"", db=db)):
            txn.put(key, changed, db=db)
        else:
            assert txn.delete(key, db=db)

    return damage


def another(position: int) -> Damage:
    """Return what puts another hash in place of a node, under the right checksum."""

    def change(raw: bytes) -> bytes:
        found = unpack(raw, 0)
        hashes = found.hashes.copy()
        hashes[int(found.there[: position % NODES].sum()), 0] ^= 1
        return pack(found._replace(hashes=hashes))

    return value(position // NODES * NODES, change)


def gone(position: int) -> Damage:
    """Return what lets a node go."""

    def change(raw: bytes) -> bytes:
        found = unpack(raw, 0)
        there = found.there.copy()
        there[position % NODES] = False
        return pack(Value(there, found.hashes[there[found.there]]))

    return value(position // NODES * NODES, change)


def meta(name: bytes, raw: bytes) -> Damage:
    return lambda store, txn: txn.put(name, raw, db=store.meta)


def other_bits(store: HistoryStore, txn: Txn) -> None:
    """Let another output be unspent than that which is."""
    key, db = bytes(4), store.disk.tables[LIVE]
    bits = np.frombuffer(open_chunk(key, txn.get(key, b"", db=db)), np.uint8).copy()
    bits[[0, UNSPENT >> 3]] ^= np.array([1, 1 << (UNSPENT & 7)], np.uint8)
    txn.put(key, bits.tobytes() + packed("<I", zlib.crc32(bits.tobytes())), db=db)


def more_numbers(store: HistoryStore, txn: Txn) -> None:
    state = stored_state(txn, store.meta)
    txn.put(STATE, seal_row(msgspec.structs.replace(state, next_number=state.next_number + 1)), db=store.meta)


UNSPENT = 350
LEAF, PEAK = mmr.size_of(UNSPENT), mmr.peaks(mmr.size_of(400))[0]  # of 256 leaves; the value of both goes on to the end
NEED = "of the mountain range is not there, but proofs need it"
SUMS = "does not have the checksum that was written with it"
BITS = "nodes over the bits of outputs, from 0 on, are not the hashes of what is below them"
KINDS: dict[str, tuple[Damage, str]] = {
    "a leaf that is another": (another(LEAF), f"the leaf of output {UNSPENT} is not the hash of its record"),
    "a parent that is another": (another(LEAF + 2), f"node {LEAF + 2} of the mountain range is not the hash of its"),
    "a leaf that is gone": (gone(LEAF), f"node {LEAF} {NEED}"),
    "a parent that is gone": (gone(LEAF + 2), f"node {LEAF + 2} {NEED}"),
    "a peak that is gone": (gone(PEAK), f"node {PEAK} {NEED}"),
    "a dead leaf beside one that lives": (gone(10), f"node 10 {NEED}"),
    "the top of what was let go": (gone(6), f"node 6 {NEED}"),
    "a value that is gone": (value(NODES, lambda raw: b""), f"node {NODES} {NEED}"),
    "a value that is another": (value(NODES, lambda raw: raw[:-1] + bytes((raw[-1] ^ 1,))), SUMS),
    "a value that is cut off": (value(NODES, lambda raw: raw[:5]), SUMS),
    "a value with a node less": (value(NODES, lambda raw: seal(count_of(raw) - 1, raw[8:-32])), "nodes, of "),
    "a value with half a node": (value(0, lambda raw: seal(count_of(raw), raw[8:-16])), "another length than it says"),
    "a value with half a bitmap": (value(0, lambda raw: seal(count_of(raw), raw[8:40])), "another length than it says"),
    "a value behind the end": (value(9 * NODES, lambda raw: seal(1, bytes(32))), f"for the nodes from {9 * NODES} on"),
    "a value between two": (value(100, lambda raw: seal(1, bytes(32))), "a value for the nodes from 100 on"),
    "a key of another length": (
        lambda store, txn: txn.put(b"\xff" * 7, b"?", db=store.disk.tables[NODE]),
        f"{NODE} has a key of 7 bytes",
    ),
    "bits that are others": (other_bits, "is unspent, but has no record"),
    "bits that are gone": (
        lambda store, txn: txn.delete(bytes(4), db=store.disk.tables[LIVE]),
        "0 outputs are unspent, the counter says",
    ),
    "a node over bits that is another": (value(0, lambda raw: seal(1, bytes(32)), BIT_NODE), BITS),
    "a node over bits that is gone": (value(0, lambda raw: b"", BIT_NODE), BITS),
    "a node over bits too many": (value(0, lambda raw: seal(2, raw[8:] * 2), BIT_NODE), "has 2 nodes, of 1 in all"),
    "another number of outputs": (more_numbers, "the state continues at"),
    "another kind of store": (meta(b"store", b"mmx"), "the kind of the store is b'mmx'"),
    "no place to go on": (meta(THIN_AT, bytes(7)), "the position at which nodes are let go has 7 bytes"),
}


def harm(daemon: Daemon, kind: str) -> None:
    with open_disk(load(daemon.config, {})) as disk:
        store = HistoryStore(disk)
        disk.write(lambda txn: KINDS[kind][0](store, txn))


@pytest.mark.parametrize("kind", KINDS)
def test_damage_is_found_and_named(store: Daemon, kind: str) -> None:
    harm(store, kind)
    config, words = load(store.config, {}), KINDS[kind][1]
    with open_disk(config, readonly=True) as disk:
        found = verify(disk, quick=True, leaves=leaf_writer(config))
    assert any(words in finding for finding in found), found


def test_the_command_tells_of_damage(store: Daemon) -> None:
    harm(store, "a node over bits that is gone")
    done = store.run("verify")
    assert done.returncode == 3 and BITS in done.stderr.decode() and b"Traceback" not in done.stderr


@pytest.mark.parametrize(
    ("kind", "words"),
    [
        ("a peak that is gone", f"of the 370 nodes from {NODES} on some are not there"),
        ("a value that is gone", f"has nodes up to {NODES}, there should be 879"),
        ("a value that is another", SUMS),
        ("a value behind the end", "there should be 879"),
        ("bits that are gone", "0 outputs are unspent, the counter says 130"),
        ("a node over bits that is gone", "has nodes up to 0, there should be 1"),
        ("another kind of store", "the kind of the store is b'mmx'"),
    ],
)
def test_nothing_is_made_up_in_place_of_what_is_lost(store: Daemon, kind: str, words: str) -> None:
    """A daemon does not go on with what it can see to be damaged: it would write roots over it."""
    harm(store, kind)
    done = store.run("run")
    assert done.returncode == 3 and words in reason(done), done.stderr


def test_a_proof_over_a_lost_node_is_an_error(store: Daemon) -> None:
    """The others are still made."""
    harm(store, "a dead leaf beside one that lives")
    store.configure(utxo=TABLES, http={"workers": 1, "listen": f"unix:{store.folder}/http"})
    store.start()
    with Web(store.folder / "http") as web:
        failure(web.ask(proof_path("many", 7)), 500, "store_damaged")
        check(msgspec.convert(web.get(proof_path("many", UNSPENT)), MmrProof))
