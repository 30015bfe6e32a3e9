"""Rows with missing fields: a default in place of a lost field would be a wrong answer, so they are damage."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import msgspec
import pytest
from daemons import home
from msgspec import Struct
from storage.utxo import TABLES
from stories import chain

from storage import pending, transactions
from storage.disk import Disk
from storage.errors import Damaged
from storage.jobs import Job
from storage.rows import BlockDetails, BlockRow, Body, State, Undo, pack, unpack

FULL: dict[str, tuple[Struct, set[int]]] = {  # a row, and with how many fields it may be written
    "state": (State(5, 6, 7, (2, 1), (3, 1), 4), {6}),
    "block": (BlockRow(1, 2, b"h", 3, 4), {5}),
    "plain body": (Body(b"a", 1), {2, 8}),
    "body": (Body(b"a", 1, [(b"p", b"n", 1)], b"d", b"i", b"s", b"h", is_collateral_return=True), {2, 8}),
    "undo": (Undo(b"h", [1], b"s", 1, b"f", [(b"a", b"b")], [b"body"], 9), {7, 8}),
    "details": (BlockDetails(1, [2], [3], [4], [5]), {5}),
    "job": (Job(1, 2, "applied", "done", 1.5), {15}),
    "page": (transactions.Page(3, 2, 1), {7}),
    "record": (transactions.Record(3, 2, 1, total=3, block_ids=[1], fee=5, size=6), {29}),
    "inputs": (transactions.Body([(b"t", 1)], b"raw"), {2}),
    "lock": (transactions.Lock(b"o", 1.0, 2.0, 3, "host", 4), {6}),
    "submission": (pending.Entry(1, 2, 3), {3}),
    "submissions": (pending.Totals(1, 2), {2}),
}


@pytest.mark.parametrize("name", FULL)
def test_no_field_may_be_missing(name: str) -> None:
    row, allowed = FULL[name]
    fields: list[Any] = msgspec.msgpack.decode(pack(row))
    for count in range(len(fields) + 1):
        raw = msgspec.msgpack.encode(fields[:count])
        if count in allowed:
            unpack(type(row), raw, "the row")
        else:
            with pytest.raises(Damaged, match=r"^the row cannot be read: "):
                unpack(type(row), raw, "the row")
    assert unpack(type(row), pack(row), "the row") == row
    assert unpack(type(row), msgspec.msgpack.encode([*fields, "more"]), "the row") == row  # rows grow at the end


@pytest.mark.parametrize("state", [b"\x90", b"\x93\x03\x03\x00", b""])
def test_a_state_that_is_not_whole_stops_the_daemon(tmp_path: Path, state: bytes) -> None:
    """Read as defaults it would be the origin, and new blocks would be written over the old ones."""
    with home(tmp_path) as daemon:
        daemon.start()
        with daemon.client() as client:
            assert {answer["status"] for answer in client.feed(chain(3))} == {"applied"}
        assert daemon.term() == 0
        with Disk(daemon.folder / "data" / "lmdb", TABLES) as disk:
            disk.write(lambda txn: txn.put(b"state", state, db=disk.tables["utxo_meta"]))
        daemon.spawn()
        assert daemon.wait() == 3
        assert "the state cannot be read" in daemon.log_text()
        for command in ("status", "verify"):
            done = daemon.run(command)
            assert done.returncode == 3 and b"the state cannot be read" in done.stderr + done.stdout, done
