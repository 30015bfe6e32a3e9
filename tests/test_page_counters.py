"""Counters of an LMDB table that its page check reports, and the one that LMDB itself gets wrong."""

from __future__ import annotations

import struct
from pathlib import Path

import lmdb
import pytest

from storage.pages import check_pages, free_bytes

_RECORD = struct.Struct("=HQQQQ")  # depth, branch, leaf and overflow pages, entries of a table


def table_of_duplicates(folder: Path, left: int = 2000) -> tuple[Path, bytes]:
    """Make a table of which one key had a tree of duplicates; return its file and the table's record in it."""
    with lmdb.open(str(folder), max_dbs=2) as env:
        db = env.open_db(b"duplicates", dupsort=True, dupfixed=True)
        with env.begin(write=True) as txn:
            for n in range(2000):
                txn.put(b"key", n.to_bytes(32, "big"), db=db)
            for n in range(left, 2000):
                assert txn.delete(b"key", n.to_bytes(32, "big"), db=db)
            found = txn.stat(db)
    numbers = (found[name] for name in ("depth", "branch_pages", "leaf_pages", "overflow_pages", "entries"))
    return folder / "data.mdb", _RECORD.pack(*numbers)


def claim(file: Path, record: bytes, **changes: int) -> None:
    names = ("depth", "branch", "leaf", "overflow", "entries")
    numbers = dict(zip(names, _RECORD.unpack(record), strict=True))
    raw = file.read_bytes()
    assert record in raw
    changed = _RECORD.pack(*(numbers | {name: numbers[name] + more for name, more in changes.items()}).values())
    file.write_bytes(raw.replace(record, changed))


@pytest.mark.parametrize("left", [2000, 2], ids=["tree", "shrunk"])
def test_a_drifted_counter_of_duplicate_pages_is_no_damage(tmp_path: Path, left: int) -> None:
    file, record = table_of_duplicates(tmp_path, left)
    assert check_pages(file) == []
    claim(file, record, leaf=+1)
    assert check_pages(file) == []


def test_a_wrong_number_of_entries_is_damage(tmp_path: Path) -> None:
    file, record = table_of_duplicates(tmp_path)
    claim(file, record, entries=+1)
    (finding,) = check_pages(file)
    assert "entries" in finding


def test_free_bytes_are_the_pages_that_no_table_has(tmp_path: Path) -> None:
    with lmdb.open(str(tmp_path), max_dbs=1, map_size=1 << 26) as env:
        db = env.open_db(b"rows")
        found = [free_bytes(tmp_path / "data.mdb")]
        for kept in (20_000, 19_000, 100, 0):
            with env.begin(write=True) as txn:
                if kept == 20_000:
                    for n in range(kept):
                        txn.put(b"%d" % n, bytes(1000), db=db)
                for n in range(kept, 20_000):
                    txn.delete(b"%d" % n, db=db)
            with env.begin() as txn:
                tables = [env.stat(), txn.stat(db)]
            pages = sum(table[name] for table in tables for name in ("branch_pages", "leaf_pages", "overflow_pages"))
            free = free_bytes(tmp_path / "data.mdb") // env.stat()["psize"]
            others = env.info()["last_pgno"] + 1 - pages - free
            assert 2 <= others <= 2 + 40, "two meta pages, and what the list itself takes"
            found.append(free)
    assert found[0] == 0 and found[1] < 50 < found[3] and found[4] > 5_000
