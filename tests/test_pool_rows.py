"""What one write has changed of the pool's rows is what it reads, before it is on disk and after."""

from __future__ import annotations

from collections.abc import Iterator
from functools import partial
from pathlib import Path

import pytest
from chains import at, txid
from pruning import LocalStore, open_local_store, pay
from stores import submit

from handlers.transactions import TxView
from storage.pool_layout import BODY, Body, Record, claim


@pytest.fixture
def local(tmp_path: Path) -> Iterator[LocalStore]:
    with open_local_store(tmp_path) as local:
        local.write(lambda view: [submit(view, pay(name)) for name in ("waits", "mined", "old")])
        local.write(partial(mine, name="old"))
        yield local


def held(view: TxView, name: str) -> Record:
    record = view.rows.record(txid(name))
    assert record is not None
    return record


def mine(view: TxView, name: str) -> None:
    record = held(view, name)
    record.unmined_since, record.block_ids = None, (7,)
    view.put(txid(name), record)


def test_totals_do_not_count_what_this_write_has_mined(local: LocalStore) -> None:
    def work(view: TxView) -> None:
        assert view.rows.totals().count == 2
        mine(view, "mined")
        mine(view, "old")  # this one had left before
        assert view.rows.totals().count == 1

    local.write(work)


def test_the_row_of_a_long_body_is_deleted_when_the_body_becomes_short(local: LocalStore) -> None:
    def row() -> bytes | None:
        with local.disk.read() as txn:
            return txn.get(txid("waits") + BODY, db=local.transactions.pool.tx)

    def put(view: TxView, raw: bytes | None) -> None:
        record = held(view, "waits")
        view.rows.put_body(txid("waits"), record, Body([at("x")], raw))
        view.put(txid("waits"), record)

    assert row() is None
    for raw in (b"bytes", None):
        local.write(partial(put, raw=raw))
        assert (row() is None) == (raw is None)
        with local.disk.read() as txn:
            assert local.store.body(txn, txid("waits")) == Body([at("x")], raw)


def test_claims_on_a_removed_transaction_are_removed_at_once(local: LocalStore) -> None:
    def work(view: TxView) -> None:
        view.rows.put_claim(txid("waits"), 0, 0, claim(txid("spender"), 0))
        assert view.rows.claim(txid("waits"), 0, 0) == claim(txid("spender"), 0)
        view.remove(txid("waits"))
        assert view.rows.claim(txid("waits"), 0, 0) is None

    local.write(work)
