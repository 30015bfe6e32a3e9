"""Rows with missing fields: a default in place of a lost field would be a wrong answer, so they are damage."""

from __future__ import annotations

import zlib
from collections.abc import Callable
from pathlib import Path
from typing import Any

import msgspec
import pytest
from chains import TABLES, feed, open_chain, rows
from chains import block as made_block
from daemons import home
from msgspec import Struct
from scenarios import chain

from storage import pending, pool_layout
from storage.disk import META, Disk, Txn
from storage.errors import Damaged
from storage.history.history import U32
from storage.history.layout import BLOCK, STATE, Block, State
from storage.history.runs import Count, Manifest, Merge, Run, manifest
from storage.jobs import Job
from storage.reassigned import Given, Moves
from storage.rows import open_row, pack, seal_row

FULL: dict[str, tuple[Struct, int]] = {  # a row, and how many fields it must have
    "state": (State([1, 2, 3, 4], 5, 6, 7, 8, 9, 10), 7),
    "block": (Block(1, 2, b"h", 3, 4, 5, 6, 7, 8, 9, header=b"f", era="e", issuer=(b"i", None, None, 1)), 17),
    "runs": (Manifest([Run(1, 2, 3, 4, 5, 6)], [Merge([1], 2, 0, 3)], [7], Count(8, 9, 10, 11)), 4),
    "job": (Job(1, 2, "applied", "done", 1.5), 15),
    "page": (pool_layout.Page(3, 2, 1), 7),
    "record": (pool_layout.Record(3, 2, 1, total=3, block_ids=(1,), fee=5, size=6), 37),
    "body": (pool_layout.Apart(b"packed", b"raw", [(3, b"s")]), 3),
    "reassigned": (Moves(b"first", [Given(b"then", 1, 2)]), 2),
    "lock": (pool_layout.Lock(b"o", 1.0, 2.0, 3, "host", 4), 6),
    "submissions": (pending.Totals(1, 2), 2),
}


@pytest.mark.parametrize("name", FULL)
def test_no_field_may_be_missing(name: str) -> None:
    row, size = FULL[name]
    fields: list[Any] = msgspec.msgpack.decode(pack(row))
    assert len(fields) == len(row.__struct_fields__) >= size
    for count in range(size):
        with pytest.raises(Damaged, match=r"^the row cannot be read: "):
            open_row(type(row), sealed(fields[:count]), "the row")
    assert seal_row(row) == sealed(fields)
    assert open_row(type(row), sealed(fields), "the row") == row
    assert open_row(type(row), sealed([*fields, "more"]), "the row") == row  # rows grow at the end


@pytest.mark.parametrize("name", FULL)
def test_no_bit_may_change(name: str) -> None:
    row = seal_row(FULL[name][0])
    for at in range(len(row)):
        for changed in (row[:at], row[:at] + bytes([row[at] ^ 1 << at % 8]) + row[at + 1 :]):
            with pytest.raises(Damaged, match=r"^the row does not have the checksum"):
                open_row(type(FULL[name][0]), changed, "the row")


def sealed(fields: list[Any]) -> bytes:
    body = msgspec.msgpack.encode(fields)
    return body + zlib.crc32(body).to_bytes(4, "little")


ORIGIN = sealed([[1, 2, 3, 4]])  # a state without its last fields


def test_what_the_store_reads_is_whole(tmp_path: Path) -> None:
    with open_chain(tmp_path) as chain:
        store = chain.store
        feed(chain, made_block(None))
        reads: list[tuple[str, str, bytes, Callable[[Txn], object]]] = [
            (META, "the list of runs of block", b"runs:block", lambda txn: manifest(txn, store.meta, "block")),
            (BLOCK, "block 1", U32.pack(1), lambda txn: store.block_at(txn, 1)),
            (META, "the state", STATE, store.state),
        ]
        for table, what, key, read in reads:
            whole = rows(store, table)[key]
            for raw in (
                sealed(msgspec.msgpack.decode(whole[:-4])[:3]),
                whole[:-1],
                whole[:4] + b"\x7f" + whole[5:],
                b"",
            ):
                store.disk.write(lambda txn: txn.put(key, raw, db=store.disk.tables[table]))  # noqa: B023
                with store.disk.read() as txn, pytest.raises(Damaged, match=f"^{what} "):
                    read(txn)


@pytest.mark.parametrize("state", [ORIGIN, b"\x90"])
def test_a_state_that_is_not_whole_stops_the_daemon(tmp_path: Path, state: bytes) -> None:
    """Read as defaults it would be the origin, and new blocks would be written over the old ones."""
    why = "the state cannot be read" if state == ORIGIN else "the state does not have the checksum"
    with home(tmp_path) as daemon:
        daemon.start()
        with daemon.client() as client:
            assert {answer["status"] for answer in client.feed(chain(3))} == {"applied"}
        assert daemon.term() == 0
        with Disk(daemon.folder / "data" / "lmdb", TABLES) as disk:
            disk.write(lambda txn: txn.put(STATE, state, db=disk.tables[META]))
        daemon.spawn()
        assert daemon.wait() == 3
        assert why in daemon.log_text()
        for command in ("status", "verify"):
            done = daemon.run(command)
            assert done.returncode == 3 and why in (done.stderr + done.stdout).decode(), done
