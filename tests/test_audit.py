"""`utxod verify` walks the transaction store too: each of its rules, broken by hand, is found and named."""

from __future__ import annotations

import shutil
import signal
from collections.abc import Callable, Iterator
from hashlib import sha256
from pathlib import Path
from random import Random
from typing import Any

import pytest
from daemons import Daemon, home, piped, running
from msgspec.structs import replace
from scenarios import address, at, block, digest, output, tx
from stores import OnDisk

from config.load import load
from daemon.offline import reindex_records
from daemon.store import open_disk, open_store, reading
from handlers.audit import Audited, audit
from storage import keys
from storage.disk import Txn
from storage.jobs import TABLES as JOB_TABLES
from storage.jobs import Job, JobStore
from storage.pending import TABLE as PENDING
from storage.pending import Totals
from storage.pool_layout import BODY_PAGE, FROZEN, HASH, Apart, Body, Lock, Page, Record, claim
from storage.reassigned import TABLE as REASSIGNED
from storage.rows import pack, seal_bytes, seal_row

RETENTION = 200
NO_BODY = Apart(None, None, None)
MASTER = keys.u32(0)
LOCK = Lock(b"owner", 1.0, 2.0, 1, "host", 3)
Damage = Callable[[OnDisk, Txn], object]


def name(of: str) -> bytes:
    return digest("tx", of)


@pytest.fixture(scope="module")
def whole(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    """Yield the folder of a sound store that has a transaction of every kind."""
    folder = tmp_path_factory.mktemp("audit")
    with running(folder, transactions={"batch_size": 2, "block_height_retention": RETENTION}) as daemon:
        paid = [output("x", 1), output("y", 2)]
        first = block(None, *(tx(each, *paid, output("z", 3)) for each in ("p", "q", "r")))
        m, removed = tx("m", *paid, spends=[at("p", 2)]), tx("gone", output("x"), spends=[at("r")])
        second = block(first, m, removed, tx("raw", output("x"), spends=[at("q", 2)], raw=b"raw"))
        third = block(second, tx("w", output("x"), spends=[at("m"), at("gone"), at("q", 1)]))
        pending = [
            tx("u", *paid, spends=[at("p")]),
            tx("v", output("x"), spends=[at("u"), at("m", 1)]),
            tx("big", *(output("b", n + 1) for n in range(5)), spends=[at("q")]),
            tx("l", output("x"), spends=[at("q", 1)]),
        ]
        early: list[dict[str, Any]] = [{"type": "TxSubmitted", "tx": each} for each in (m, removed)]
        late: list[dict[str, Any]] = [{"type": "TxSubmitted", "tx": each} for each in pending]
        child = {"type": "TxSubmitted", "tx": tx("c", output("x"), spends=[at("big", 2), at("big", 3)])}
        frozen = {"type": "OutputsFrozen", "outpoints": [at("p", 1), at("u", 1)]}
        kept = {"type": "TxPreserved", "txids": [name("raw")], "until": 50}
        with daemon.client() as client:
            moved: list[dict[str, Any]] = [{"type": "OutputsFrozen", "outpoints": [at("r", 1)]}]
            moved += [{"type": "OutputReassigned", "outpoint": at("r", 1), "address": address("heir")}]
            for message in [first, *early, second, *late, child, third, frozen, kept, *moved]:
                assert client.ask(message).get("status") in {"applied", "accepted"}, message
        assert daemon.term() == 0
        daemon.assert_sound()
    yield folder


@pytest.fixture
def store(whole: Path, tmp_path: Path) -> Iterator[Daemon]:
    with home(tmp_path, transactions={"batch_size": 2, "block_height_retention": RETENTION}) as daemon:
        shutil.copytree(whole / "data", tmp_path / "data")
        yield daemon


def harm(daemon: Daemon, damage: Damage) -> None:
    with open_disk(load(daemon.config, {})) as disk:
        disk.write(lambda txn: damage(OnDisk(disk), txn))


def audited(daemon: Daemon) -> Audited:
    config = load(daemon.config, {})
    with open_disk(config, readonly=True) as disk:
        return audit(reading(open_store(disk, config), config))


def rows(daemon: Daemon) -> dict[str, dict[bytes, bytes]]:
    """Return every row by table; the transactions of an index at one height are joined."""
    with open_disk(load(daemon.config, {}), readonly=True) as disk, disk.read() as txn:
        tables: dict[str, dict[bytes, bytes]] = {}
        for table in ("tx", "tx_claim", "tx_delete_at", "tx_unmined", "tx_preserved"):
            for key, row in txn.cursor(disk.tables[table]):
                kept = tables.setdefault(table, {})
                kept[key] = kept.get(key, b"") + row
    return tables


# --- damage ----------------------------------------------------------------------------------------------------------


def record(of: str, **fields: Any) -> Damage:
    """Return what changes fields of a record and keeps the indexes consistent."""

    def damage(store: OnDisk, txn: Txn) -> None:
        kept = store.record(txn, name(of))
        assert kept is not None
        for field, value in fields.items():
            assert getattr(kept, field) != value
            setattr(kept, field, value)
        store.put_record(txn, name(of), kept)

    return damage


def page(of: str, number: int, **fields: Any) -> Damage:
    def damage(store: OnDisk, txn: Txn) -> None:
        kept = store.page(txn, name(of), number)
        assert kept is not None
        for field, value in fields.items():
            setattr(kept, field, value)
        store.put_page(txn, name(of), number, kept)

    return damage


def slot(of: str, number: int, index: int, tail: bytes | None, *, spent: int = 0) -> Damage:
    """Return what replaces the end of a slot; `spent` is added to the count of its page."""

    def damage(store: OnDisk, txn: Txn) -> None:
        row = store.slot(txn, name(of), number, index) or digest("hash")
        if tail is None:
            store.drop_slot(txn, name(of), number, index)
        else:
            store.put_slot(txn, name(of), number, index, row[:HASH] + tail)
        if spent and (kept := store.page(txn, name(of), number)) is not None:
            kept.spent += spent
            store.put_page(txn, name(of), number, kept)

    return damage


def both(*damages: Damage) -> Damage:
    return lambda store, txn: [damage(store, txn) for damage in damages]


def index(table: str, at_height: int, txid: bytes, *, remove: bool = False) -> Damage:
    def damage(store: OnDisk, txn: Txn) -> None:
        db = store.disk.tables[table]
        if remove:
            assert txn.delete(keys.u32(at_height), txid, db)
        else:
            txn.put(keys.u32(at_height), txid, db=db)

    return damage


def put(key: bytes, row: bytes, table: str = "tx") -> Damage:
    """Return what writes a row; a row that is not empty gets its checksum."""
    return lambda store, txn: txn.put(key, row and seal_bytes(row), db=store.disk.tables[table])


def delete(key: bytes, table: str = "tx") -> Damage:
    return lambda store, txn: txn.delete(key, db=store.disk.tables[table])


def given(**fields: Any) -> Damage:
    def damage(store: OnDisk, txn: Txn) -> None:
        kept = store.record(txn, name("r"))
        assert kept is not None
        [each] = kept.reassignments
        kept.reassignments = (replace(each, **fields),)
        store.put_record(txn, name("r"), kept)

    return damage


GIVEN = name("r") + keys.u32(1)


def heir_row(of: str) -> bytes:
    return b"\1\0" + sha256(address(of)).digest() + GIVEN


BY_U = claim(name("u"), 0)
BY_UNKNOWN = claim(name("nobody"), 0)
BODY = keys.u32(BODY_PAGE)
KINDS: dict[str, tuple[Damage, str]] = {
    "a wrong count of recorded outputs": (record("m", recorded=3), "recorded outputs, but has 2 slots"),
    "a wrong count of spent outputs": (record("u", spent=2), "spent outputs, but 1 of its slots"),
    "a wrong count on a page": (page("big", 1, spent=1), "page 1 of transaction"),
    "a wrong total": (record("big", total=6), "5 outputs on its pages, but its record"),
    "a wrong count of spent pages": (record("big", spent_pages=2), "1 spent further pages, but its record"),
    "a page that is missing": (
        lambda store, txn: store.remove_page(txn, name("big"), 2),
        "1 further pages, but its record",
    ),
    "a page between that is missing": (lambda store, txn: store.remove_page(txn, name("big"), 1), "page 1 is missing"),
    "a page that is being created alone": (page("big", 2, creating=True), "being created, but the transaction is not"),
    "an output beyond its page": (both(slot("m", 0, 7, b""), record("m", recorded=3)), "beyond the 2 outputs of its"),
    "names of a page that is not there": (put(name("big") + keys.u32(3) + MASTER, digest("h")), "names of page 3"),
    "names next to a record that has them": (put(name("m") + MASTER + MASTER, digest("h")), "names of page 0"),
    "a claim of a page that is not there": (
        put(name("big") + keys.u32(9) + MASTER, BY_U, "tx_claim"),
        "slot 0 of page 9",
    ),
    "a claim of what can't be spent": (put(name("m") + MASTER + keys.u32(7), BY_U, "tx_claim"), "has no such output"),
    "a claim of a wrong length": (put(name("m") + MASTER + keys.u32(1), b"short", "tx_claim"), "it has 5 bytes"),
    "a claim with a wrong key": (put(name("m") + MASTER, BY_U, "tx_claim"), "is not a claim"),
    "a submission that is not in the order": (delete(b"\0" + bytes(8), PENDING), "submissions lists 4"),
    "a submission in the order that is none": (
        put(b"\0" + bytes(7) + b"\x77", name("m"), PENDING),
        "is listed as pending submission 119",
    ),
    "wrong totals of submissions": (put(b"\1", pack(Totals(1, 2)), PENDING), "but the totals count 1"),
    "an index row too many": (index("tx_unmined", 3, name("m")), "index of unmined_since lists transaction"),
    "an index row of nobody": (index("tx_preserved", 3, name("nobody")), "index of preserve_until lists transaction"),
    "an index row too few": (index("tx_preserved", 50, name("raw"), remove=True), "preserve_until does not list"),
    "an end that no rule gives": (record("u", delete_at=9), "has deletion height 9, but the rule"),
    "an end that is not there": (record("gone", delete_at=None), "has no deletion height, but the rule"),
    "an end of what is preserved": (record("raw", delete_at=9), "is preserved until 50, but has"),
    "an end of a loser that is not there": (record("l", delete_at=None), "has no deletion height, but the"),
    "a block on the longest chain that it is not in": (record("m", main_ids=(2, 77)), "longest chain in [2, 77]"),
    "blocks without heights": (record("m", block_heights=()), "has 1 blocks, 0 heights"),
    "mined and unmined": (record("m", unmined_since=2), "is mined and unmined"),
    "neither mined nor unmined": (record("u", unmined_since=None), "is neither mined nor unmined"),
    "a body without a record": (put(name("x") + BODY, pack(NO_BODY)), "has a body, but no record"),
    "a body that its record does not know": (put(name("u") + BODY, pack(NO_BODY)), "has a body, but its record"),
    "a body that is not there": (delete(name("raw") + BODY), "has no body, but its record"),
    "a page without a record": (put(name("x") + keys.u32(1), pack(Page(0, 0))), "page 1 of transaction"),
    "names without a record": (put(name("x") + keys.u32(1) + MASTER, digest("h")), "names of page 1"),
    "a claim of a page without a record": (put(name("x") + keys.u32(1) + MASTER, BY_U, "tx_claim"), "has no record"),
    "a row of no kind": (put(name("x") + b"123", b"what"), "has an unknown kind of key"),
    "a reassignment that its record does not know": (record("r", reassignments=()), "has no reassignment of it"),
    "a reassignment at another height": (given(height=1), "[(1, 1003)] in its record, but at [(3, 1003)]"),
    "a reassignment to another hash": (given(new_hash=bytes(32)), "does not have the hash of its new owner"),
    "a reassigned output that no block spends": (given(spent=True), "spent by a block, but its slot is unspent"),
    "a reassigned output without a row": (delete(b"\0" + GIVEN, REASSIGNED), "but at [] in the table"),
    "a new owner without a row": (delete(heir_row("heir"), REASSIGNED), "is not listed under each of its owners"),
    "an old owner without a row": (delete(heir_row("y"), REASSIGNED), "is not listed under each of its owners"),
    "a row of one who never owned it": (put(heir_row("z"), b"", REASSIGNED), "an owner that its reassignments"),
    "a row of what was not reassigned": (put(heir_row("z")[:-1] + b"\7", b"", REASSIGNED), "that its reassi"),
    "owners that cannot be read": (put(b"\0" + GIVEN, b"\xc1", REASSIGNED), "the row of reassigned output"),
    "a record that cannot be read": (put(name("u"), b"\xc1"), f"transaction {name('u').hex()} cannot be read"),
    "a page size of nothing": (record("big", page_size=0), "cannot be read: ZeroDivisionErr"),
}
# The records and the chain say different things: the store is sound.
CONTRADICTIONS: dict[str, tuple[Damage, str]] = {
    "an input that is not held": (slot("p", 0, 0, None), f"input 0 of transaction {name('u').hex()}"),
    "an input of a record that is not held": (
        slot("u", 0, 0, b"", spent=-1),
        f"input 0 of transaction {name('v').hex()}",
    ),
    "an input that another holds": (slot("p", 0, 0, claim(name("c"), 0)), f"input 0 of transaction {name('u').hex()}"),
    "spent in a block, unspent here": (
        both(slot("m", 0, 0, b"", spent=-1), record("m", delete_at=None)),
        f"is spent by {name('w').hex()} in the UTXO store, by no transaction in its record",
    ),
    "spent in a block, by another here": (slot("m", 0, 0, BY_U), f"UTXO store, by {name('u').hex()} in its"),
    "spent by another input": (slot("m", 0, 0, claim(name("w"), 9)), "in the UTXO store, by"),
    "unspent in a block, spent by one of a block here": (
        slot("m", 0, 1, claim(name("w"), 0)),
        "but its record has the spender",
    ),
    "unspent here, not there at all": (
        both(slot("m", 0, 2, b""), record("m", recorded=3, outputs=3, total=3, delete_at=None)),
        "but does not exist in the UTXO store",
    ),
    "unspent in a block, no slot here": (
        both(slot("raw", 0, 0, None), record("raw", recorded=0)),
        "but has no slot in its record",
    ),
    "a spender that nobody knows": (slot("u", 0, 0, BY_UNKNOWN), "which is unknown"),
    "a claim of an unknown transaction": (
        slot("p", 0, 0, BY_UNKNOWN),
        f"has a claim of {name('nobody').hex()}, which is",
    ),
    "a claim of a block's transaction": (slot("p", 0, 0, claim(name("w"), 0)), "which is in a block and does not"),
    "a claim on what a block has spent": (slot("p", 0, 2, BY_U), "but is spent in"),
    "a freeze of what is not there": (slot("p", 0, 9, FROZEN), "but does not exist in"),
    "a freeze of nobody's output": (slot("nobody", 0, 0, FROZEN), "but does not exist in"),
    "a first owner that the chain does not know": (
        lambda store, txn: store.pool.reassigned.place(txn, name("r"), [b"", b"another"]),
        "has another first owner in the table of reassigned outputs",
    ),
    "a reassigned output that no block spends": (
        both(slot("r", 0, 1, BY_U, spent=1), given(spent=True)),
        "is unspent in the UTXO store, but its reassignment is marked",
    ),
    "waiting, and in a block": (record("m", main_ids=(), unmined_since=2, delete_at=None), "but its record is unmine"),
    "claims of what is not there": (put(name("nobody") + MASTER + MASTER, BY_U, "tx_claim"), "but does not exist in"),
}


@pytest.mark.parametrize("kind", KINDS)
def test_damage_is_found(store: Daemon, kind: str) -> None:
    damage, reported = KINDS[kind]
    assert audited(store) == Audited([], [])
    harm(store, damage)
    found = audited(store).findings
    assert any(reported in finding for finding in found), found


@pytest.mark.parametrize("kind", CONTRADICTIONS)
def test_contradictions_are_found_and_settled(store: Daemon, kind: str) -> None:
    damage, reported = CONTRADICTIONS[kind]
    harm(store, damage)
    found = audited(store)
    assert found.findings == []
    assert any(reported in finding for finding in found.contradictions), found
    rebuilt = reindex_records(load(store.config, {}))
    assert audited(store) == Audited([], []), rebuilt
    assert "rebuilt 0 records" not in rebuilt
    assert "rebuilt 0 records" in reindex_records(load(store.config, {}))


def test_verify_exits_4_until_the_records_are_rebuilt(store: Daemon) -> None:
    harm(store, CONTRADICTIONS["spent in a block, unspent here"][0])
    for options in ([], ["--quick"]):
        done = store.run("verify", *options)
        assert (done.returncode, done.stdout) == (4, b"")
        assert b"by no transaction in its record" in done.stderr and b"the store is sound" in done.stderr
        assert b"`utxod reindex --records`" in done.stderr
    done = store.run("reindex", "--records")
    assert (done.returncode, done.stdout) == (0, b"rebuilt 1 records of transactions: they agree with the chain\n")
    assert b"record_repaired" in done.stderr and name("m").hex().encode() in done.stderr
    store.assert_sound()


def test_rebuilding_records_changes_nothing_of_a_sound_store(store: Daemon) -> None:
    before = rows(store)
    assert "rebuilt 0 records" in reindex_records(load(store.config, {}))
    assert rows(store) == before


def test_rebuilding_a_record_keeps_what_only_the_record_has(store: Daemon) -> None:
    known = {"preserve_until": 70, "delete_at": None, "born": 2, "created_at": 12345, "locked": True}
    harm(store, both(slot("m", 0, 0, b"", spent=-1), slot("m", 0, 1, FROZEN, spent=-1), record("m", **known)))
    with open_disk(load(store.config, {})) as disk:
        disk.write(lambda txn: OnDisk(disk).put_body(txn, name("m"), Body([(name("p"), 2)], b"raw")))
    reindex_records(load(store.config, {}))
    with open_disk(load(store.config, {}), readonly=True) as disk, disk.read() as txn:
        kept, body = OnDisk(disk).record(txn, name("m")), OnDisk(disk).body(txn, name("m"))
        frozen = OnDisk(disk).slot(txn, name("m"), 0, 1)
    assert kept is not None and {field: getattr(kept, field) for field in known} == known
    assert body == Body([(name("p"), 2)], b"raw")
    assert frozen is not None and frozen[HASH:] == FROZEN


def test_rebuilding_records_may_be_killed_and_run_again(store: Daemon) -> None:
    strays = {name(f"stray {n}") + MASTER + MASTER: seal_bytes(BY_UNKNOWN) for n in range(20_000)}
    harm(store, lambda kept, txn: txn.cursor(kept.pool.claim).putmulti(sorted(strays.items())))
    with piped("reindex", "--records", "--config", store.config) as process:
        assert process.stderr is not None
        for line in process.stderr:
            if b"records_checked" in line:  # the first commit is made
                process.kill()
                break
        process.stderr.read()
    assert process.returncode == -signal.SIGKILL
    assert 0 < len(strays.keys() & rows(store)["tx_claim"].keys()) < len(strays)
    assert "rebuilt 0 records" not in reindex_records(load(store.config, {}))
    assert audited(store) == Audited([], [])


def test_records_are_rebuilt_where_there_are_some_and_no_daemon(store: Daemon) -> None:
    store.start()
    done = store.run("reindex", "--records")
    assert done.returncode == 1 and b"another process has this store open" in done.stderr
    assert store.term() == 0
    store.configure(transactions={"enabled": False})
    done = store.run("reindex", "--records")
    assert done.returncode == 1 and b"transactions.enabled is off" in done.stderr


def test_rebuilding_records_begins_no_store(tmp_path: Path) -> None:
    with home(tmp_path) as daemon:
        for options in ([], ["--records"]):
            done = daemon.run("reindex", *options)
            assert done.returncode == 1 and b"there is no store here" in done.stderr
        assert not (tmp_path / "data").exists()


def test_verify_exits_3_for_damage_unless_the_transaction_store_is_off(store: Daemon) -> None:
    harm(store, CONTRADICTIONS["spent in a block, unspent here"][0])
    harm(store, KINDS["a wrong total"][0])
    done = store.run("verify")
    assert (done.returncode, done.stdout) == (3, b"")
    assert b"its record counts 6" in done.stderr and b"Traceback" not in done.stderr
    assert b"by no transaction in its record" in done.stderr and b"the store is sound" not in done.stderr
    store.configure(transactions={"enabled": False})
    store.assert_sound()


def test_incomplete_creations_are_reported_and_are_no_damage(store: Daemon) -> None:
    harm(store, lambda store, txn: store.put_lock(txn, name("begun"), LOCK))
    harm(store, lambda store, txn: store.put_lock(txn, name("going on"), LOCK))
    for of in ("cut off", "going on"):
        half = Record(2, 0, creating=True, total=6, page_size=2, pages=2, unmined_since=3, born=3)
        harm(store, lambda store, txn, of=of, half=half: store.put_record(txn, name(of), half))  # type: ignore[misc]
        harm(store, lambda store, txn, of=of: store.put_body(txn, name(of), Body([(name("p"), 2)])))  # type: ignore[misc]
        harm(store, put(name(of) + keys.u32(1), pack(Page(2, 0, creating=True))))
    found = audited(store)
    assert found.findings == []
    assert sorted(found.incomplete) == sorted(
        [
            f"transaction {name('begun').hex()} is incomplete: it has a lock, but no record",
            f"transaction {name('cut off').hex()} is incomplete: it has 2 of 3 pages, and no process is creating it",
        ]
    )
    done = store.run("verify")
    assert (done.returncode, done.stderr) == (0, b"")
    assert sorted(done.stdout.decode().splitlines()) == sorted([*found.incomplete, "sound"])


def test_pages_that_the_pruner_is_about_to_remove_are_no_damage(store: Daemon) -> None:
    def damage(kept: OnDisk, txn: Txn) -> None:
        for number in (1, 2):
            txn.put(name("x") + keys.u32(number), seal_row(Page(1, 1)), db=kept.pool.tx)
            txn.put(name("x") + keys.u32(number) + MASTER, seal_bytes(digest("h")), db=kept.pool.tx)
            txn.put(name("x") + keys.u32(number) + MASTER, seal_bytes(BY_U), db=kept.pool.claim)
        JobStore(kept.disk).leave(txn, [(name("x"), 2)])

    harm(store, damage)
    assert audited(store).findings == []
    harm(store, lambda kept, txn: JobStore(kept.disk).next_left(txn))
    assert any("page 2 of transaction" in finding for finding in audited(store).findings)


def test_a_spender_that_was_pruned_is_no_contradiction(store: Daemon) -> None:
    harm(store, slot("u", 0, 0, BY_UNKNOWN))
    assert any("which is unknown" in finding for finding in audited(store).contradictions)
    harm(store, record("u", deleted_children=[name("nobody")]))
    assert not any("which is unknown" in finding for finding in audited(store).contradictions)


def test_many_findings_are_reported_up_to_a_hundred(store: Daemon) -> None:
    rows = [(digest("x", n) + BODY, seal_row(NO_BODY)) for n in range(300)]
    harm(store, lambda kept, txn: [txn.put(key, row, db=kept.pool.tx) for key, row in rows])
    assert len(audited(store).findings) == 100


TABLES = ("tx", "tx_claim", "tx_delete_at", "tx_unmined", "tx_preserved", PENDING, REASSIGNED, *JOB_TABLES)


@pytest.mark.parametrize("table", TABLES)
def test_any_row_that_is_cut_or_changed_is_found(store: Daemon, table: str) -> None:
    random = Random(table)
    config = load(store.config, {})
    with open_disk(config) as disk:
        db, transactions = disk.tables[table], reading(open_store(disk, config), config)
        disk.write(lambda txn: JobStore(disk).put(txn, Job(1, 3, "applied", "done", 1.5), 10))
        disk.write(lambda txn: JobStore(disk).leave(txn, [(name("left"), 3)]))
        with disk.read() as txn:
            rows = [(key, value) for key, value in txn.cursor(db) if value]
        sound, fixed = audit(transactions), table in ("tx_delete_at", "tx_unmined", "tx_preserved")
        for _ in range(10 if fixed else 60):
            key, value = random.choice(rows)
            harmed = bytearray(value)
            harmed[random.randrange(len(harmed))] ^= 1 << random.randrange(8)
            cut = not fixed and random.random() < 0.5
            row = value[: random.randrange(len(value))] if cut else bytes(harmed)
            disk.write(lambda txn, key=key, value=value: txn.delete(key, value, db))  # type: ignore[misc]
            disk.write(lambda txn, key=key, row=row: txn.put(key, row, db=db))  # type: ignore[misc]
            assert audit(transactions).findings, (key, row)
            disk.write(lambda txn, key=key, row=row: txn.delete(key, row, db))  # type: ignore[misc]
            disk.write(lambda txn, key=key, value=value: txn.put(key, value, db=db))  # type: ignore[misc]
        assert audit(transactions) == sound == Audited([], [])
