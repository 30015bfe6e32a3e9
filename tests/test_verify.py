"""`utxod verify` finds every kind of damage that it says it finds, names it, and exits 3."""

from __future__ import annotations

import shutil
from collections.abc import Callable, Iterator
from pathlib import Path
from random import Random

import msgspec
import pytest
from daemons import Daemon, home, running
from storage.utxo import UtxoStore
from storage.verify import verify
from stories import back_to, block, chain, output, tx

from config.load import load
from daemon.store import open_disk, windows
from storage import keys
from storage.disk import Txn
from storage.rows import pack

TIP = 24
Damage = Callable[[UtxoStore, Txn], object]


@pytest.fixture(scope="module")
def whole(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    """Give the folder of a sound store: pruned, with a fork taken back, spent and unspent outputs, two indexes."""
    folder = tmp_path_factory.mktemp("whole")
    with running(folder, utxo={"rollback_window": 8, "prune_depth": 8}) as daemon:
        blocks = chain(20, outputs=3)
        fork = chain(2, blocks[-1], branch="given up")
        more = chain(3, blocks[-1], outputs=2)
        more.append(block(more[-1], tx("many", *(output(n) for n in range(5))), tx("none")))
        with daemon.client("frames") as client:
            client.feed([*blocks, *fork, back_to(blocks[-1]), *more])
        assert daemon.term() == 0
        daemon.assert_sound()
    yield folder


@pytest.fixture
def store(whole: Path, tmp_path: Path) -> Iterator[Daemon]:
    """Give a copy to damage."""
    with home(tmp_path, utxo={"rollback_window": 8, "prune_depth": 8}) as daemon:
        shutil.copytree(whole / "data", tmp_path / "data", dirs_exist_ok=True)
        yield daemon


def harm(daemon: Daemon, damage: Damage) -> None:
    config = load(daemon.config, {})
    with open_disk(config) as disk:
        store = UtxoStore(disk)
        disk.write(lambda txn: damage(store, txn))


def findings(daemon: Daemon, *, quick: bool = False) -> list[str]:
    config = load(daemon.config, {})
    with open_disk(config, readonly=True) as disk:
        return verify(UtxoStore(disk), windows(config), quick=quick)


def live(store: UtxoStore, txn: Txn) -> bytes:
    """Return the place of an output that is not spent, somewhere in the middle."""
    return [place for place, row in store.scan(txn, store.output) if row[0] != 1][7]


def spent(store: UtxoStore, txn: Txn) -> bytes:
    """Return the place of one that is, by a block that may be taken back."""
    return [place for place, row in store.scan(txn, store.output) if row[0] == 1][-1]


def change_state(store: UtxoStore, txn: Txn, **fields: int) -> None:
    store.put_state(txn, msgspec.structs.replace(store.state(txn), **fields))


def change_undo(store: UtxoStore, txn: Txn, ordinal: int, **fields: object) -> None:
    undo = store.undo_at(txn, ordinal)
    assert undo is not None
    txn.put(keys.u32(ordinal), pack(msgspec.structs.replace(undo, **fields)), db=store.delta)


def first(store: UtxoStore, txn: Txn, table: str) -> tuple[bytes, bytes]:
    cursor = txn.cursor(store.disk.tables[table])
    assert cursor.first()
    return cursor.item()


# Each is a kind of damage, with what is said of it.
KINDS: dict[str, tuple[Damage, str]] = {
    "a block above the tip": (
        lambda s, t: t.put(keys.u32(TIP + 1), t.get(keys.u32(TIP), b"", db=s.block), db=s.block),
        f"block {TIP + 1} lies above the tip {TIP}",
    ),
    "a block without its hash": (
        lambda s, t: t.delete(s.block_at(t, TIP - 2).hash, db=s.block_hash),
        f"block {TIP - 2} is not found by its hash",
    ),
    "a hash that leads astray": (
        lambda s, t: t.put(b"\x01" * 32, keys.u32(TIP), db=s.block_hash),
        f"hash {'01' * 32} leads to block {TIP}, which is not that block",
    ),
    "a hash of a block that is not retained": (
        lambda s, t: t.put(s.block_at(t, 3).hash, keys.u32(3), db=s.block_hash),
        "leads to block 3, which is not that block or not retained",
    ),
    "a block without a row": (lambda s, t: t.delete(keys.u32(TIP - 1), db=s.block), f"block {TIP - 1} "),
    "a block that cannot be read": (
        lambda s, t: t.put(keys.u32(TIP - 1), b"\x93\x01", db=s.block),
        f"block {TIP - 1} cannot be read",
    ),
    "a transaction in a block without a row": (
        lambda s, t: t.put(keys.position(900, 0), b"\x02" * 33, db=s.tx),
        "transaction 900/0 is in a block that has no row",
    ),
    "a transaction without its id": (
        lambda s, t: t.delete(t.get(keys.position(TIP, 1), b"", db=s.tx)[:32], db=s.txid),
        f"transaction {TIP}/1 is not found by its id",
    ),
    "an id that leads astray": (
        lambda s, t: t.put(b"\x03" * 32, keys.position(TIP, 0), db=s.txid),
        f"id {'03' * 32} leads to transaction {TIP}/0, which is another or gone",
    ),
    "an id of a transaction that is gone": (
        lambda s, t: t.put(b"\x03" * 32, keys.position(900, 0), db=s.txid),
        "leads to transaction 900/0, which is another or gone",
    ),
    "a transaction row that is gone": (
        lambda s, t: t.delete(live(s, t)[:8], db=s.tx),
        "is of a transaction that has no row",
    ),
    "a body that cannot be read": (
        lambda s, t: t.put(live(s, t), b"\x92\xc4\x02a", db=s.output),
        "cannot be read",
    ),
    "an output that is gone": (
        lambda s, t: t.delete(live(s, t), db=s.output),
        "outputs are unspent, the counter",
    ),
    "an output that nobody counted": (
        lambda s, t: t.put(live(s, t)[:8] + keys.u32(99), pack((b"", 1)), db=s.output),
        "outputs are unspent, the counter says",
    ),
    "an output spent by nobody": (
        lambda s, t: t.put(spent(s, t), b"\x01" + keys.position(900, 0) + bytes(4) + pack((b"", 1)), db=s.output),
        "was spent by transaction 900/0, which has no row",
    ),
    "an output spent before it was created": (
        lambda s, t: t.put(spent(s, t), b"\x01" + _early(s, t) + bytes(4) + pack((b"", 1)), db=s.output),
        "before it was created",
    ),
    "a wrong counter": (
        lambda s, t: change_state(s, t, unspent=s.state(t).unspent + 1),
        "outputs are unspent, the counter says",
    ),
    "an index entry that is gone": (
        lambda s, t: t.delete(*first(s, t, "utxo_addr"), s.disk.tables["utxo_addr"]),
        "index address_hash misses output",
    ),
    "an index entry too many": (
        lambda s, t: t.put(b"\x04" * 28, bytes(12), db=s.disk.tables["utxo_cred"]),
        "index payment_credential has",
    ),
    "an index entry under another key": (lambda s, t: _move(s, t), "index payment_credential misses output"),
    "an index that is not kept": (
        lambda s, t: t.put(b"\x04" * 28, bytes(12), db=s.disk.tables["utxo_policy"]),
        "index policy is not kept, but has 1 entries",
    ),
    "an undo record that is gone": (
        lambda s, t: t.delete(keys.u32(TIP - 3), db=s.delta),
        f"block {TIP - 3} can't be taken back: it has no undo record",
    ),
    "an undo record that is cut": (
        lambda s, t: t.put(keys.u32(TIP - 3), t.get(keys.u32(TIP - 3), b"", db=s.delta)[:-4], db=s.delta),
        f"the undo record of block {TIP - 3} cannot be read",
    ),
    "an undo record of another block": (
        lambda s, t: change_undo(s, t, TIP - 3, hash=b"\x05" * 32),
        f"the undo record of block {TIP - 3} is of another block",
    ),
    "an undo record that counts wrongly": (
        lambda s, t: change_undo(s, t, TIP - 3, created=[1, 2, 3, 4]),
        f"the undo record of block {TIP - 3} counts other transactions",
    ),
    "an undo record above the tip": (
        lambda s, t: t.put(keys.u32(TIP + 1), t.get(keys.u32(TIP), b"", db=s.delta), db=s.delta),
        f"there is an undo record of block {TIP + 1}, above the tip",
    ),
    "a tip that is not reached": (
        lambda s, t: change_state(s, t, tip=TIP + 1),
        f"block {TIP + 1} is retained, but has no row",
    ),
    "a tip that lies behind": (lambda s, t: change_state(s, t, tip=TIP - 1), f"block {TIP} lies above the tip"),
    "a floor that lies too low": (lambda s, t: change_state(s, t, floor=2), "block 2 is not found by its hash"),
    "a spent output that another block spent": (
        lambda s, t: t.put(spent(s, t), _by_another(s, t), db=s.output),
        "spent outputs, their rows say",
    ),
    "a spent output that the undo forgot": (
        lambda s, t: change_undo(s, t, TIP - 3, spent=b""),
        "has 0 spent outputs, their rows say",
    ),
    "a state that cannot be read": (
        lambda s, t: t.put(b"state", b"nonsense", db=s.meta),
        "the state cannot be read",
    ),
}
# These show only when blocks are taken back.
UNDO_KINDS: dict[str, tuple[Damage, str]] = {
    "a spent body that is gone": (
        lambda s, t: t.delete(spent(s, t), db=s.output),
        "but its body is no longer there: it can't be taken back",
    ),
}


def _early(store: UtxoStore, txn: Txn) -> bytes:
    """Return the position of a transaction that came before a spent output."""
    return next(place for place, _ in store.scan(txn, store.tx) if place < spent(store, txn)[:8])


def _by_another(store: UtxoStore, txn: Txn) -> bytes:
    row = txn.get(spent(store, txn), b"", db=store.output)
    return row[:1] + keys.position(TIP, 1) + row[9:]


def _move(store: UtxoStore, txn: Txn) -> None:
    db = store.disk.tables["utxo_cred"]
    key, place = first(store, txn, "utxo_cred")
    txn.delete(key, place, db)
    txn.put(b"\x04" * 28, place, db=db)


@pytest.mark.parametrize("kind", KINDS)
def test_damage_is_found_and_named(store: Daemon, kind: str) -> None:
    damage, words = KINDS[kind]
    assert findings(store) == []
    harm(store, damage)
    for quick in (True, False):
        found = findings(store, quick=quick)
        assert any(words in finding for finding in found), found


@pytest.mark.parametrize("kind", UNDO_KINDS)
def test_damage_to_the_way_back_is_found_and_named(store: Daemon, kind: str) -> None:
    damage, words = UNDO_KINDS[kind]
    harm(store, damage)
    found = findings(store)
    assert any(words in finding for finding in found), found


def test_the_command_exits_3_with_what_is_wrong(store: Daemon) -> None:
    store.assert_sound()
    harm(store, KINDS["a wrong counter"][0])
    for options in ([], ["--quick"]):
        done = store.run("verify", *options)
        assert (done.returncode, done.stdout) == (3, b"")
        assert b"outputs are unspent, the counter says" in done.stderr and b"Traceback" not in done.stderr
    copies = [path for path in (store.folder / "data").iterdir() if path.name.startswith("utxod-verify")]
    assert copies == []


def test_the_copy_is_cleared_away_and_the_store_is_not_touched(store: Daemon) -> None:
    data = store.folder / "data" / "lmdb" / "data.mdb"
    before = data.read_bytes()
    store.assert_sound()
    assert data.read_bytes() == before
    assert [path.name for path in (store.folder / "data").iterdir() if "verify" in path.name] == []


def test_quick_does_not_try_the_way_back(store: Daemon) -> None:
    harm(store, UNDO_KINDS["a spent body that is gone"][0])
    assert findings(store, quick=True) == []
    assert store.run("verify", "--quick").returncode == 0
    assert store.run("verify").returncode == 3


def test_many_findings_are_told_up_to_a_hundred(store: Daemon) -> None:
    def damage(kept: UtxoStore, txn: Txn) -> None:
        for n in range(300):
            txn.put(n.to_bytes(32, "big"), keys.position(900, n), db=kept.txid)

    harm(store, damage)
    assert len(findings(store)) == 100


@pytest.mark.parametrize(
    "table", ["utxo_block", "utxo_tx", "utxo_txid", "utxo_output", "utxo_block_delta", "utxo_meta"]
)
def test_any_row_that_is_cut_or_changed_is_an_answer(store: Daemon, table: str) -> None:
    """Whatever is in a row, it is found or does not matter; nothing of it ends in a crash."""
    config, random = load(store.config, {}), Random(table)
    with open_disk(config) as disk:
        kept = UtxoStore(disk)
        db = disk.tables[table]
        with disk.read() as txn:
            rows = [(key, value) for key, value in txn.cursor(db) if key != b"chain"]
        for _ in range(60):
            key, value = random.choice(rows)
            harmed = value[: random.randrange(len(value))] if random.random() < 0.5 else _flipped(random, value)
            disk.write(lambda txn, key=key, harmed=harmed: txn.put(key, harmed, db=db))  # type: ignore[misc]
            assert isinstance(verify(kept, windows(config), quick=True), list)
            disk.write(lambda txn, key=key, value=value: txn.put(key, value, db=db))  # type: ignore[misc]
        assert verify(kept, windows(config)) == []


def _flipped(random: Random, value: bytes) -> bytes:
    at = random.randrange(len(value))
    return value[:at] + bytes((value[at] ^ (1 << random.randrange(8)),)) + value[at + 1 :]


def test_a_damaged_page(store: Daemon) -> None:
    """What LMDB itself can't read is damage too, not a crash."""
    path = store.folder / "data" / "lmdb" / "data.mdb"
    raw = path.read_bytes()
    path.write_bytes(raw[:8192] + b"\xff" * 4096 * 3 + raw[8192 + 4096 * 3 :])
    for command in ("verify", "export", "status"):
        done = store.run(command)
        assert b"Traceback" not in done.stderr, done.stderr.decode()
        assert done.returncode in {0, 3}, done
