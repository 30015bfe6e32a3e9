"""A daemon with an MMR store: roots and proofs over HTTP, proofs checked by who has no store, damage that is found."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import msgspec
import pytest
from daemons import Daemon, home, running, utxod
from questions import Asked, asked, failure, short_folder
from storage.change import ChangeSet
from storage.mmr_store import MmrStore
from storage.utxo import UtxoStore
from storage.verify import verify
from stories import at, back_to, block, chain, digest, output, tx

from config.load import load
from daemon.store import leaf_writer, open_disk, windows
from handlers.proofs import Contradiction, MmrProof, check
from storage import keys, mmr
from storage.disk import Txn
from storage.errors import Damaged
from storage.mmr import U64
from storage.rows import SPENT
from storage.windows import Windows, prune

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
    assert root["leaves"] == 40 + 2 + 1 + 1 and root["size"] == mmr.size_of(44)
    assert (root["height"], root["hash"]) == (2, SECOND["hash"].hex()) == (2, before.headers["x-tip-hash"])
    assert told.ask(ROOT, **{"If-None-Match": before.headers["etag"]}).status_code == 304
    third = block(SECOND, tx("third", output("fay"), spends=[at("many", 5)]))
    told.feed(third)
    moved = told.get(ROOT)
    assert moved["leaves"] == 45 and moved["root"] != root["root"] and moved["bitmap_root"] != root["bitmap_root"]
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
            assert ("as the proof says" in text) == ("--root" not in arguments)
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
    """Give the folder of a sound store, with some of its nodes let go and some waiting for it."""
    folder = tmp_path_factory.mktemp("whole")
    with running(folder, utxo=TABLES) as daemon:
        first = block(None, tx("many", *(output("ann") for _ in range(20))))
        spends = [at("many", n) for n in (0, 1, 2, 3, 4, 6)]
        second = block(first, tx("spend", output("bob"), spends=spends))
        blocks = [first, second, *chain(14, second, outputs=3)]
        with daemon.client("frames") as client:
            client.feed(blocks)
        assert daemon.term() == 0
        assert daemon.run("prune").returncode == 0
        daemon.assert_sound()
    yield folder


@pytest.fixture
def store(whole: Path, tmp_path: Path) -> Iterator[Daemon]:
    """Give a copy to damage."""
    with home(tmp_path, utxo=TABLES) as daemon:
        shutil.copytree(whole / "data", tmp_path / "data", dirs_exist_ok=True)
        yield daemon


def key(number: int) -> bytes:
    return U64.pack(number)


def last(txn: Txn, db: Any) -> tuple[bytes, bytes]:
    cursor = txn.cursor(db)
    assert cursor.last()
    return cursor.item()


def flip(txn: Txn, db: Any, name: bytes) -> None:
    raw = txn.get(name, b"", db=db)
    txn.put(name, bytes((raw[0] ^ 1,)) + raw[1:], db=db)


def mark(txn: Txn, kept: MmrStore, position: int) -> None:
    txn.put(key(position), txn.get(key(position), b"", db=kept.nodes) + b"\x01", db=kept.nodes)


LEAF_7 = mmr.size_of(7)  # unspent, as is its sibling's neighbour; below leaves 4 to 7 nothing is let go
Damage = Callable[[UtxoStore, MmrStore, Txn], object]
KINDS: dict[str, tuple[Damage, str]] = {
    "a leaf that is another": (lambda s, m, t: flip(t, m.nodes, key(LEAF_7)), "is not the hash of"),
    "a parent that is another": (lambda s, m, t: flip(t, m.nodes, key(LEAF_7 + 1)), "is not the hash of its children"),
    "a leaf that is gone": (lambda s, m, t: t.delete(key(LEAF_7), db=m.nodes), "was let go, or is not there"),
    "a parent that is gone": (lambda s, m, t: t.delete(key(LEAF_7 + 1), db=m.nodes), "children"),
    "a peak that is gone": (
        lambda s, m, t: t.delete(key(mmr.peaks(mmr.size_of(m.count(t)))[0]), db=m.nodes),
        "are missing, below, above or at",
    ),
    "a top of what was let go that is gone": (lambda s, m, t: t.delete(key(6), db=m.nodes), "children"),
    "a top of what was let go without its mark": (
        lambda s, m, t: t.put(key(6), t.get(key(6), b"", db=m.nodes)[:32], db=m.nodes),
        "node 6 of the mountain range has 0 of its two children",
    ),
    "a mark over what lives": (lambda s, m, t: mark(t, m, LEAF_7), "was let go, or is not there"),
    "a mark over a parent of what lives": (lambda s, m, t: mark(t, m, LEAF_7 + 1), "contradict each other"),
    "a node of another length": (lambda s, m, t: t.put(key(LEAF_7 + 1), b"\x01" * 34, db=m.nodes), "cannot be read"),
    "a node too many": (lambda s, m, t: t.put(key(9999), bytes(32), db=m.nodes), "lies behind its end"),
    "a bit that is another": (lambda s, m, t: flip(t, m.bits, key(0)), "are not those of the live outputs"),
    "bits that are gone": (lambda s, m, t: t.delete(key(0), db=m.bits), "there are 0 chunks of bits"),
    "bits of another length": (lambda s, m, t: t.put(key(0), bytes(127), db=m.bits), "cannot be read"),
    "a node over bits that is another": (lambda s, m, t: flip(t, m.bit_nodes, key(0)), "node 0 over the bits"),
    "a node over bits that is gone": (lambda s, m, t: t.delete(key(0), db=m.bit_nodes), "node 0 over the bits"),
    "a first leaf that is another": (
        lambda s, m, t: t.put(last(t, m.tx)[0], key(3), db=m.tx),
        "has leaf 3, which is another's",
    ),
    "a first leaf that is gone": (lambda s, m, t: t.delete(last(t, m.tx)[0], db=m.tx), "has no first leaf"),
    "a first leaf too many": (lambda s, m, t: t.put(keys.position(900, 0), key(3), db=m.tx), "the other a first leaf"),
    "another number of leaves": (lambda s, m, t: t.put(b"leaves", key(5), db=s.meta), "lies behind its end"),
    "no number of leaves": (lambda s, m, t: t.delete(b"leaves", db=s.meta), "number of leaves cannot be read"),
    "a leaf to be let go that lives": (lambda s, m, t: t.put(key(0), key(7), db=m.dead), "which is another's"),
    "a leaf to be let go twice": (lambda s, m, t: t.put(key(0), key(9) * 2, db=m.dead), "waits for it twice"),
    "an undo record with other leaves": (lambda s, m, t: _other_leaves(s, t), "leaves, others say otherwise"),
}


def _other_leaves(store: UtxoStore, txn: Txn) -> None:
    name, raw = last(txn, store.delta)
    txn.put(name, raw[:-1] + bytes((raw[-1] ^ 1,)), db=store.delta)


def findings(daemon: Daemon, damage: Damage) -> list[str]:
    config = load(daemon.config, {})
    with open_disk(config) as disk:
        store = UtxoStore(disk, leaf_writer(config))
        assert store.mmr is not None
        kept = store.mmr
        disk.write(lambda txn: damage(store, kept, txn))
        return verify(store, windows(config), quick=True)


@pytest.mark.parametrize("kind", KINDS)
def test_damage_is_found_and_named(store: Daemon, kind: str) -> None:
    damage, words = KINDS[kind]
    found = findings(store, damage)
    assert any(words in finding for finding in found), found
    done = store.run("verify")
    assert done.returncode == 3 and words in done.stderr.decode() and b"Traceback" not in done.stderr


def test_bits_that_are_gone_are_not_made_up(store: Daemon) -> None:
    """A block that spends what has its bit there is not written."""
    config = load(store.config, {})
    with open_disk(config) as disk:
        kept = UtxoStore(disk, leaf_writer(config))
        assert kept.mmr is not None
        bits = kept.mmr.bits
        disk.write(lambda txn: txn.delete(key(0), db=bits))
        with disk.read() as txn:
            undone = kept.change_of(txn, kept.state(txn).tip, ChangeSet()).reversed()
            state = kept.state(txn)
        kept.use_indexes(["address_hash", "payment_credential"])
        with pytest.raises(Damaged, match="the bits of leaves 0 and on cannot be read"):
            disk.write(lambda txn: kept.write(txn, undone, state))


def test_a_leaf_that_is_let_go_twice_stops_the_pruner(store: Daemon) -> None:
    def twice(kept: UtxoStore, _: MmrStore, txn: Txn) -> None:
        place = next(place for place, row in kept.scan(txn, kept.output) if row[0] != SPENT)
        assert kept.mmr is not None
        leaf = kept.mmr.locate(txn, [place])[0]
        txn.put(key(0), key(leaf) * 2, db=kept.mmr.dead)
        with pytest.raises(Exception, match=f"leaf {leaf} is to be let go, but is not there, or was before"):
            prune(kept, txn, Windows(9, 9), 10, "mmr")

    assert findings(store, twice)
