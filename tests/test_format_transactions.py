"""Golden bytes of the transaction store's tables.

If this fails, the format on disk changed: raise `storage.history.layout.FORMAT` and write docs/format.md first.
"""

from __future__ import annotations

import zlib
from hashlib import blake2b, sha256
from pathlib import Path

import pytest
from chains import TABLES
from msgspec.structs import replace
from stores import create, draft, open_store, open_transactions, write

from handlers import new_records, states
from handlers.bodies import body
from handlers.chain import Chain
from handlers.claims import spend
from handlers.events import BlockApplied, Output, Tx
from handlers.spending import Mined, Rules
from handlers.transactions import TxView
from handlers.tx_blocks import TxBlocks
from storage import ghost_layout, jobs, pool
from storage.disk import Disk
from storage.jobs import Job, JobStore
from storage.pool_layout import ALL_IN_ONE, BODY_PAGE, FROZEN, LOCK_PAGE, Lock, claim, output_hash
from storage.windows import Windows

SMALL, LARGE, CHAINED, CHILD, OTHER = (f"{n:02x}" * 32 for n in (0x51, 0x52, 0x53, 0x54, 0x55))
Tables = dict[str, dict[str, list[str]]]


def tx(name: str, values: list[int], *spent: tuple[str, int], **parts: bytes | int) -> Tx:
    outputs = [Output(b"\x51", value) for value in values]
    return Tx(bytes.fromhex(name), [(bytes.fromhex(txid), n) for txid, n in spent], outputs, **parts)  # type: ignore[arg-type]


@pytest.fixture(scope="module")
def written(tmp_path_factory: pytest.TempPathFactory) -> Tables:
    """Apply messages that set every field, and return all rows in hexadecimal."""
    folder = tmp_path_factory.mktemp("format")
    with Disk(folder / "lmdb", TABLES + pool.TABLES + jobs.TABLES, durable=False) as disk:
        chain_store = open_store(disk, chain="bitcoin/mainnet")
        real = open_transactions(chain_store, Rules(batch_size=2, retention=10, reassign_delay=7))
        chain = Chain(chain_store, Windows(10, 10), 10, TxBlocks(real))
        chained = tx(CHAINED, [5, 6], fee=3, size=250, subtree_index=1)
        assert chain.apply(BlockApplied(height=300, hash=b"\xb1" * 32, block_id=900, txs=[chained]), None)
        chain.commit()
        real.height = 300
        small = tx(SMALL, [7, 8], (CHAINED, 0), fee=2, raw=b"\x01\x02", version=2, lock_time=500_000_000)
        small = replace(small, previous=[(5, b"\x51")])
        write(real, lambda view: create(view, small, 290, locked=True, created_at=1_757_500_000_123))
        write(real, lambda view: states.freeze(view, (small.txid, 0)))
        write(real, lambda view: states.reassign(view, (small.txid, 0), b"\xdd" * 32, b"\x52"))
        write(real, lambda view: states.freeze(view, (small.txid, 0)))
        write(real, lambda view: states.preserve(view, small.txid, 0x01020304))
        large = tx(LARGE, [1, 2, 3], (OTHER, 9))
        at = Mined(901, 299, 4)
        record = draft(real.rules, large, 0, mined=[at], conflicting=True, created_at=1)
        for page in (0, 1):
            write(real, lambda view, page=page: new_records.put_page(view, large, record, page, creating=page == 1))  # type: ignore[misc]
        child = bytes.fromhex(CHILD)
        write(real, lambda view: spend(view, child, [(large.txid, 0)], 305, ignore_conflicting=True))
        write(real, lambda view: view.rows.put_claim(chained.txid, 0, 1, claim(child, 258)))
        lock = Lock(b"owner", 1.5, 35.5, 4711, "host", 2)
        write(real, lambda view: view.rows.put_lock(child, lock))
        write(real, lambda view: _marked(view, large.txid, child))
        return dump(disk)


def _slot(name: str, index: int, value: int) -> bytes:
    return output_hash(bytes.fromhex(name), index, body(Output(b"\x51", value)))


def _marked(view: TxView, txid: bytes, child: bytes) -> None:
    record = view.need(txid)
    record.deleted_children, record.conflicting_children = [child], [child]
    view.put(txid, record)


def dump(disk: Disk) -> Tables:
    found: Tables = {}
    with disk.read() as txn:
        for name in (table.rstrip("*") for table in pool.TABLES):
            table = found[name] = {}
            for key, value in txn.cursor(disk.tables[name]):
                table.setdefault(key.hex(), []).append(value.hex())
    return found


def summed(raw: bytes) -> bytes:
    return raw + zlib.crc32(raw).to_bytes(4, "little")


# A slot's hash: blake2b-256 of the txid, the output's number, and its address and value.
SMALL_0 = "b78ef693d4f5acb456ba7e537ec7bb04d5a195120a51eb771591b70b2f8a789b"
SMALL_1 = "56d49c3ab41c721592fe5bb7f8bf69b7403456de8789d407b0bc6a4ab94c1e7f"
LARGE_0 = "016420d8f35a850dfb933f607121c32c397d5f378c408a8c24d5b1dbdaba2784"
LARGE_1 = "7f5f403e98b6f0a48cc1f4df6b531b66c92221303bded14b7aa5bc5bf8ab01e4"
LARGE_2 = "db6df99248fbbd72c255fae836b373358aeae9eccd3c295c5f48cec36c080255"
NEW_OWNER, BY_CHILD = "dd" * 32, "54" * 32

OF_HEIR = sha256(b"\x52").hexdigest()

GOLDEN: Tables = {
    "tx": {
        # outputs, recorded, spent, creating, deleted children, reassignments (slot, old, new, height, since,
        # spent by a block), spendable in;
        # total, page size, further pages, spent pages; coinbase, external, partial, locked, conflicting; born, created
        # at, unmined since, preserve until, delete at, spending height; block ids, heights, subtrees, ids on the
        # longest chain, conflicting children; fee, size, locked by operator, version, lock time;
        # submission, weight, names, inputs, apart
        SMALL: [
            f"dc0025 02 02 00 c2 90 91 96 00 c420{SMALL_0} c420{NEW_OWNER} cd012c cd0133 c2 81 00 cd0133"
            "02 ceffffffff 00 c0 c2 c2 c2 c3 c2 cd0122 cf000001993329c77b cd0122 ce01020304 c0 c0"
            "90 90 90 90 90 02 02 c2 02 ce1dcd6500"
            f"00 cd02df c440{NEW_OWNER}{SMALL_1} c424{CHAINED}00000000 c3"
        ],
        f"{SMALL} fffffffe": ["93 c0 c4020102 91 92 05 c40151"],  # inputs, raw bytes, what the inputs spend
        LARGE: [
            f"dc0025 02 02 01 c2 91 c420{CHILD} 90 80"
            "03 02 01 c0 c2 c3 c2 c2 c3 c0 01 c0 c0 0a c0 91 cd0385 91 cd012b 91 04 91 cd0385"
            f"91 c420{CHILD} c0 c0 c2 c0 c0"
            f"c0 00 c400 c424{OTHER}00000009 c2"
        ],
        f"{LARGE} 00000000 00000000": [f"{LARGE_0} {LARGE_1}"],  # names of the first page
        f"{LARGE} 00000001": ["97 01 01 00 c3 90 90 80"],  # still being created
        f"{LARGE} 00000001 00000000": [LARGE_2],
        # owner, taken at, ends at, process, host, pages
        f"{CHILD} ffffffff": ["96 c4056f776e6572 cb3ff8000000000000 cb4041c00000000000 cd1267 a4686f7374 02"],
    },
    "tx_claim": {
        f"{SMALL} 00000000 00000000": ["ff" * 36],  # frozen
        f"{LARGE} 00000000 00000000": [f"{BY_CHILD} 00000000"],  # spent by input 0
        f"{CHAINED} 00000000 00000001": [f"{BY_CHILD} 02010000"],  # of the chain, by input 258
    },
    "tx_delete_at": {"0000000a": [LARGE]},
    "tx_unmined": {"00000122": [SMALL]},
    "tx_preserved": {"01020304": [SMALL]},
    "tx_pending": {
        "00 0000000000000000": [SMALL],
        "01": ["92 01 cd02df"],  # count, bytes
    },
    "tx_reassigned": {
        f"00 {SMALL} 00000000": ["92 c0 91 93 c40152 cd012c cd0133"],  # first owner; address, height, since
        f"01 00 {OF_HEIR} {SMALL} 00000000": [""],
    },
}


BARE = {"tx_delete_at", "tx_unmined", "tx_preserved"}  # whose values have no checksum


@pytest.mark.parametrize("table", GOLDEN)
def test_bytes_on_disk(table: str, written: Tables) -> None:
    bare = table in BARE
    raw = {key: [bytes.fromhex(value) for value in values] for key, values in GOLDEN[table].items()}
    expected = {
        key.replace(" ", ""): [(value if bare or not value else summed(value)).hex() for value in values]
        for key, values in raw.items()
    }
    assert written[table] == expected


def test_what_the_bytes_mean() -> None:
    assert [table for table in pool.TABLES if table.endswith("*")] == ["tx_delete_at*", "tx_unmined*", "tx_preserved*"]
    assert (BODY_PAGE, LOCK_PAGE, ALL_IN_ONE) == (0xFFFFFFFE, 0xFFFFFFFF, 0xFFFFFFFF)
    assert FROZEN == b"\xff" * 36
    assert set(GOLDEN) == {table.rstrip("*") for table in pool.TABLES if table not in ghost_layout.TABLES}
    assert _slot(SMALL, 0, 7).hex() == SMALL_0
    assert blake2b(bytes.fromhex(SMALL) + bytes(4) + bytes.fromhex("92c4015107"), digest_size=32).hexdigest() == SMALL_0


def test_the_bytes_of_the_pruner_s_journal(tmp_path: Path) -> None:
    with Disk(tmp_path, jobs.TABLES, durable=False) as disk:
        journal = JobStore(disk)
        job = Job(
            7, 300, "applied", "done", 1.5, 2.5, 35.5, 290, "undo", None, "why", 2, {"a": 1}, {"b": 2}, {"c": 0.5}
        )
        disk.write(lambda txn: journal.put(txn, job, 10))
        disk.write(lambda txn: journal.leave(txn, [(bytes.fromhex(LARGE), 258)]))
        with disk.read() as txn:
            found = {name: list(txn.cursor(disk.tables[name])) for name in jobs.TABLES}
    row = (
        "9f 07 cd012c a76170706c696564 a4646f6e65 cb3ff8000000000000 cb4004000000000000 cb4041c00000000000 cd0122"
        "a4756e646f c0 a3776879 02 81 a161 01 81 a162 02 81 a163 cb3fe0000000000000"
    )
    assert found == {
        "pruner_job": [(bytes.fromhex("0000000000000007"), summed(bytes.fromhex(row)))],
        "pruner_left": [(bytes.fromhex(LARGE), summed(bytes.fromhex("00000102")))],
    }


def test_stale_records_are_marked(tmp_path: Path) -> None:
    """A row of `utxo_meta` records that blocks may have been applied without the transaction store."""
    with Disk(tmp_path, TABLES + pool.TABLES, durable=False) as disk:
        open_store(disk)
        disk.write(lambda txn: txn.put(bytes(32), b"a record", db=disk.tables["tx"]))
        assert pool.Pool(disk).give_up()
        with disk.read() as txn:
            assert txn.get(b"records_stale", db=disk.tables["utxo_meta"]) == summed(b"1")
