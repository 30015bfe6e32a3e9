"""Transactions of the chain that have no record: their outputs are claimed and frozen by a slot's row alone.

A record is made when something needs one. Either way the answers are the same.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import suppress
from dataclasses import dataclass
from functools import partial
from pathlib import Path

import pytest
from chains import at, back_to, block, dump, feed, output, rows, script, tx, txid
from messages import Listener, message, take
from msgspec import structs
from stores import ALL_TABLES, AtHeight, Looked, create, look, open_store, open_transactions, submit, write

from handlers import claims, new_records, states
from handlers.audit import Audited, audit
from handlers.bodies import body
from handlers.chain import Chain
from handlers.claims import spend
from handlers.columns import RawBlock
from handlers.creation import Creation
from handlers.events import OutPoint, Tx, TxSubmitted
from handlers.spending import Mined, Rules, TxFault
from handlers.transactions import TxView
from handlers.tx_blocks import TxBlocks
from handlers.utxo import Turns
from storage.disk import Disk
from storage.errors import Damaged
from storage.history.layout import OUTPUT
from storage.pool_layout import FROZEN, Record, claim, claim_key, output_hash
from storage.reassigned import Reassignment
from storage.rows import seal_bytes
from storage.windows import Windows

MATURITY, RETENTION = 5, 10
PAY = output(script("ann"), 7)
DATA = output(b"\x6a", 0, spendable=False)
COINBASE = tx("coinbase", PAY, coinbase=True, fee=None, size=90, subtree_index=0)
FUND = tx("fund", PAY, DATA, PAY, PAY, spends=[at("coinbase")], fee=3, size=250, subtree_index=1)
FIRST = block(None, COINBASE, block_id=70)
SECOND = block(FIRST, FUND, tx("spender", PAY, spends=[at("fund", 3)]), block_id=71)
HEIGHT = 2


@dataclass
class LocalStore:
    """A chain of two blocks: a coinbase, and a transaction that spends it and has one output spent in turn."""

    disk: Disk
    chain: Chain
    real: AtHeight

    def write(self, work: Callable[[TxView], object]) -> object:
        return write(self.real, work)

    def look(self, outpoint: OutPoint) -> Looked:
        with self.disk.read() as txn:
            return look(self.real.view(txn), outpoint)

    def rows(self) -> dict[bytes, bytes]:
        with self.disk.read() as txn:
            return dict(txn.cursor(self.real.pool.tx)) | dict(txn.cursor(self.real.pool.claim))

    def record(self, name: str) -> Record:
        with self.disk.read() as txn:
            held = self.real.view(txn).get(txid(name))
            assert held is not None
            return held.record


@pytest.fixture
def local(tmp_path: Path) -> Iterator[LocalStore]:
    with Disk(tmp_path / "lmdb", ALL_TABLES, durable=False) as disk:
        store = open_store(disk, chain="bitcoin/mainnet")
        rules = Rules(retention=RETENTION, maturity=MATURITY, reassign_delay=4)
        real = open_transactions(store, rules)
        chain = Chain(store, Windows(10, 10), 10, TxBlocks(real))
        assert chain.apply(FIRST, None)
        assert chain.apply(SECOND, None)
        chain.commit()
        real.height = HEIGHT
        local = LocalStore(disk, chain, real)
        assert local.rows() == {}, "following a chain writes no records"
        yield local


def refusal(local: LocalStore, work: Callable[[TxView], object]) -> tuple[str, dict[int, str]]:
    before = local.rows()
    with pytest.raises(TxFault) as caught:
        local.write(work)
    assert local.rows() == before
    return caught.value.code, {n: fault.code for n, fault in caught.value.inputs.items()}


def child(name: str, *spends: OutPoint) -> Tx:
    return tx(name, PAY, spends=spends)


def test_outputs_of_the_chain_without_a_record(local: LocalStore) -> None:
    name = output_hash(*at("fund"), body(PAY))
    assert local.look(at("fund")) == Looked("OK", name)
    spent = local.look(at("fund", 3))
    assert (spent.status, spent.spender) == ("SPENT", (txid("spender"), 0))
    assert [local.look(at("fund", index)).status for index in (1, 4)] == ["NOT_FOUND", "NOT_FOUND"]
    assert local.look(at("unknown")).status == "NOT_FOUND"
    record = local.record("fund")
    assert (record.block_ids, record.block_heights, record.subtree_idxs) == ((71,), (2,), (1,))
    assert (record.total, record.fee, record.size, record.is_coinbase, record.mined) == (4, 3, 250, False, True)
    assert local.record("coinbase").spending_height == 1 + MATURITY
    with pytest.raises(TxFault, match="not"), local.disk.read() as txn:
        look(local.real.view(txn), at("fund"), b"\xee" * 32)


def test_a_claim_is_one_row(local: LocalStore) -> None:
    local.write(lambda view: submit(view, child("child", at("fund"))))
    rows = local.rows()
    key = claim_key(txid("fund"), 0, 0)
    assert [at for at in rows if at.startswith(txid("fund"))] == [key]
    assert rows[key] == seal_bytes(claim(txid("child"), 0))
    assert local.look(at("fund")).spender == (txid("child"), 0)
    local.write(lambda view: spend(view, txid("child"), [at("fund")], 3))
    assert local.rows() == rows
    rival = child("rival", at("fund", 2), at("fund"))
    assert refusal(local, lambda view: submit(view, rival)) == ("UTXO_ERROR", {1: "SPENT"})
    local.write(lambda view: view.release(at("fund"), claim(txid("rival"), 0)))
    assert local.rows() == rows  # another's claim stays
    local.write(lambda view: view.release(at("fund"), claim(txid("child"), 0)))
    assert key not in local.rows()
    assert local.look(at("fund")).status == "OK"


@pytest.mark.parametrize("recorded", [False, True])
def test_inputs_that_cannot_be_spent_are_refused(local: LocalStore, recorded: bool) -> None:
    if recorded:
        for name in ("fund", "coinbase"):
            local.write(lambda view, name=name: view.need(txid(name)))  # type: ignore[misc]
    inputs = [at("fund", 3), at("fund", 1), at("fund", 9), at("unknown"), at("fund", 2), at("fund", 2), at("coinbase")]
    codes = ["SPENT", "UTXO_NOT_FOUND", "UTXO_NOT_FOUND", "TX_NOT_FOUND", "SPENT", "COINBASE_IMMATURE"]
    wanted = dict(zip([0, 1, 2, 3, 5, 6], codes, strict=True))
    assert refusal(local, lambda view: submit(view, child("child", *inputs))) == ("UTXO_ERROR", wanted)
    local.real.height = MATURITY  # the next block is ripe for it; but the output is spent in the chain
    late = child("late", at("coinbase"))
    assert refusal(local, lambda view: submit(view, late)) == ("UTXO_ERROR", {0: "SPENT"})


@pytest.mark.parametrize("recorded", [False, True])
def test_freezing(local: LocalStore, recorded: bool) -> None:
    if recorded:
        local.write(lambda view: view.need(txid("fund")))
    before, out = local.rows(), at("fund", 2)
    local.write(lambda view: states.freeze(view, out))
    assert local.rows()[claim_key(txid("fund"), 0, 2)] == seal_bytes(FROZEN)
    assert len(local.rows()) == len(before) + 1
    assert local.look(out).status == "FROZEN"
    frozen = refusal(local, lambda view: submit(view, child("child", out)))
    assert frozen == ("UTXO_ERROR", {0: "FROZEN"})
    assert refusal(local, lambda view: states.freeze(view, out))[0] == "ALREADY_FROZEN"
    local.write(lambda view: states.unfreeze(view, out))
    assert local.rows() == before
    assert refusal(local, lambda view: states.unfreeze(view, out))[0] == "UTXO_NOT_FROZEN"
    assert refusal(local, lambda view: states.freeze(view, at("fund", 3)))[0] == "SPENT"
    assert refusal(local, lambda view: states.freeze(view, at("fund", 1)))[0] == "UTXO_NOT_FOUND"
    assert refusal(local, lambda view: states.freeze(view, at("unknown")))[0] == "TX_NOT_FOUND"


def test_a_reassignment_needs_a_record(local: LocalStore) -> None:
    out, new = at("fund", 2), b"\xdd" * 32
    assert refusal(local, lambda view: states.reassign(view, out, new, b"heir"))[0] == "UTXO_NOT_FROZEN"
    local.write(lambda view: states.freeze(view, out))
    local.write(lambda view: submit(view, child("child", at("fund"))))
    local.write(lambda view: states.reassign(view, out, new, b"heir"))
    record = local.record("fund")
    assert (record.recorded, record.spent, record.counted) == (3, 2, 4)
    assert record.reassignments == (Reassignment(2, output_hash(*out, body(PAY)), new, HEIGHT, HEIGHT + 4),)
    assert local.look(out) == Looked("IMMATURE", new)
    assert local.look(at("fund")).spender == (txid("child"), 0), "the claim came along"
    early = refusal(local, lambda view: submit(view, child("heir", out)))
    assert early == ("UTXO_ERROR", {0: "FROZEN_UNTIL"})
    local.real.height = HEIGHT + 3
    local.write(lambda view: submit(view, child("heir", out)))
    assert local.record("fund").delete_at is None, "all of it is spent, but a reassigned output keeps it"


NEEDS: list[Callable[[TxView], object]] = [
    lambda view: states.set_mined(view, txid("fund"), Mined(71, 2)),
    lambda view: states.set_locked(view, txid("fund"), on=True),
    lambda view: states.preserve(view, txid("fund"), 99),
    lambda view: states.set_conflicting(view, txid("fund"), on=True),
]


@pytest.mark.parametrize("need", NEEDS)
def test_a_record_has_all_that_the_chain_has(need: Callable[[TxView], object], local: LocalStore) -> None:
    with local.disk.read() as txn:
        view = local.real.view(txn)
        found = view.chain.find(txn, txid("fund"))
        assert found
        counted, slots = view.counted(found)
    looked = [local.look(at("fund", index)) for index in range(5)]
    local.write(need)
    record = local.record("fund")
    assert (record.outputs, record.recorded, record.spent, record.total) == (4, 3, 1, 4)
    assert (counted.outputs, counted.recorded, counted.spent, counted.total) == (4, 3, 1, 4)
    assert (record.block_ids, record.main_ids, record.fee, record.size) == ((71,), (71,), 3, 250)
    with local.disk.read() as txn:
        view = local.real.view(txn)
        assert dict(view.slots(txid("fund"))) == slots
        assert view.inputs(txid("fund")) == [at("coinbase")]
    if not record.locked and not record.conflicting:
        assert [local.look(at("fund", index)) for index in range(5)] == looked


def test_deletion_is_due_after_the_last_spend(local: LocalStore) -> None:
    local.real.height = 7
    with local.disk.read() as txn:
        view = local.real.view(txn)
        found = view.chain.find(txn, txid("coinbase"))
        assert found
        counted, _ = view.counted(found)
        assert counted.delete_at == HEIGHT + RETENTION
    local.write(lambda view: view.need(txid("coinbase")))
    assert local.record("coinbase").delete_at == 7 + RETENTION


def test_submitting_a_mined_transaction_changes_nothing(local: LocalStore) -> None:
    assert local.write(lambda view: submit(view, FUND)) is False
    assert refusal(local, lambda view: create(view, FUND, 2))[0] == "TX_EXISTS"
    assert local.rows() == {}


def test_a_conflict_with_the_chain_cant_be_won(local: LocalStore) -> None:
    local.write(lambda view: create(view, child("wins", at("fund", 3)), 2, conflicting=True))
    assert local.record("fund").conflicting_children == [txid("wins")]
    refused = refusal(local, lambda view: claims.decide(view, [txid("wins")], 3))
    assert refused[0] == "PROCESSING"
    assert local.look(at("fund", 3)).spender == (txid("spender"), 0)


@pytest.mark.parametrize("recorded", [False, True])
def test_an_output_claimed_again_is_not_counted_twice(local: LocalStore, recorded: bool) -> None:
    """A block may spend an output that is claimed or frozen."""
    if recorded:
        local.write(lambda view: view.need(txid("fund")))
    local.write(lambda view: submit(view, child("child", at("fund"))))
    local.write(lambda view: states.freeze(view, at("fund", 2)))
    for index, name in ((0, "block"), (2, "block"), (2, "other")):

        def take(view: TxView, index: int = index, name: str = name) -> None:
            held = view.get(txid("fund"))
            assert held is not None
            view.claim(held, index, claim(txid(name), 1))
            if held.chain_tx is None:
                view.settle(held.txid, held.record, 3)

        local.write(take)
        assert local.look(at("fund", index)).spender == (txid(name), 1)
    local.write(lambda view: view.need(txid("fund")))
    record = local.record("fund")
    assert (record.recorded, record.spent) == (3, 3)


def test_a_released_claim_gives_an_output_back_to_its_spender_in_the_chain(local: LocalStore) -> None:
    def work(view: TxView) -> None:
        view.need(txid("fund"))
        held = view.get(txid("fund"))
        assert held is not None and held.chain_tx is None
        view.claim(held, 3, claim(txid("other"), 0))
        view.release(at("fund", 3), claim(txid("other"), 0))

    local.write(work)
    assert local.look(at("fund", 3)).spender == (txid("spender"), 0)
    assert local.record("fund").spent == 1


def test_a_block_cannot_spend_again_what_a_mined_transaction_has_spent(local: LocalStore) -> None:
    """Only the records know that both transactions are mined, since the chain has neither."""

    def work(view: TxView) -> None:
        submit(view, tx("parent", PAY))
        submit(view, child("child", at("parent")))
        for name in ("parent", "child"):
            states.set_mined(view, txid(name), Mined(60, 1))

    local.write(work)
    assert local.chain.tx_blocks is not None
    local.chain.tx_blocks.settle()
    feed(local.chain, block(SECOND, tx("late", PAY, spends=[at("parent")])))
    assert local.look(at("parent")).spender == (txid("child"), 0)
    assert (local.record("child").mined, local.record("child").conflicting) == (True, False)


@pytest.mark.parametrize("mined", [True, False])
def test_a_submission_and_its_block_in_one_commit(local: LocalStore, mined: bool) -> None:
    submitted, rival = child("child", at("fund")), child("rival", at("fund"))
    turns, sender = Turns(local.chain), Listener()
    third = message(block(SECOND, submitted if mined else rival), sender)
    assert isinstance(local.chain.decode(third.raw, third.encoding), RawBlock)
    take(turns, message(TxSubmitted(tx=submitted, seq=1), sender), third)
    assert sender.statuses() == [(1, "duplicate" if mined else "UTXO_ERROR")], (
        "the chain is ahead of what waits with it"
    )
    assert local.look(at("fund")).spender == (txid("child" if mined else "rival"), 0)
    assert local.rows() == {}


def test_a_block_in_bytes_mines_pending_transactions(local: LocalStore) -> None:
    """A block is decoded into objects only where it touches a record or a claim."""
    local.write(lambda view: submit(view, child("child", at("fund"))))
    local.write(lambda view: submit(view, child("loser", at("fund", 2))))
    assert local.chain.tx_blocks is not None
    local.chain.tx_blocks.settle()
    third = block(SECOND, child("child", at("fund")), child("rival", at("fund", 2)))
    take(Turns(local.chain), message(third, Listener()))
    record, loser = local.record("child"), local.record("loser")
    assert (record.mined, record.block_heights, record.conflicting) == (True, (3,), False)
    assert (loser.mined, loser.conflicting) == (False, True)
    assert local.look(at("fund", 2)).spender == (txid("rival"), 0)


def test_a_rollback_needs_the_outputs_of_blocks_that_stay(local: LocalStore) -> None:
    third = block(SECOND, child("child", at("fund")))
    assert local.chain.apply(third, None)
    local.chain.commit()
    before = dump(local.chain.store)
    outputs = rows(local.chain.store, OUTPUT)
    local.disk.write(lambda txn: [txn.delete(key, db=local.disk.tables[OUTPUT]) for key in outputs])
    with pytest.raises(Damaged, match="is missing"):
        local.chain.rollback(back_to(SECOND))
    local.disk.write(lambda txn: [txn.put(key, row, db=local.disk.tables[OUTPUT]) for key, row in outputs.items()])
    assert dump(local.chain.store) == before
    local.chain.rollback(back_to(SECOND))
    assert local.record("child").unmined_since == 3
    assert local.look(at("fund")).spender == (txid("child"), 0)


def test_children_of_several_losers_are_searched_once(local: LocalStore, monkeypatch: pytest.MonkeyPatch) -> None:
    length, requests, children = 30, Counter[bytes](), claims.children
    coinbases = [tx(f"coinbase {n}", PAY, coinbase=True) for n in range(length)]
    links = [tx(f"link {n}", PAY, spends=[at(f"coinbase {n}"), at(f"link {n - 1}")][: n + 1]) for n in range(length)]
    third = block(SECOND, *coinbases, block_id=72)
    feed(local.chain, third, block(third, *links, block_id=73))

    def counted(view: TxView, name: bytes) -> list[bytes]:
        requests[name] += 1
        return children(view, name)

    monkeypatch.setattr(claims, "children", counted)
    assert local.chain.rollback(back_to(SECOND))
    assert all(local.record(f"link {n}").conflicting for n in range(length))
    assert max(requests.values()) <= 2 and requests.total() <= 4 * length


@pytest.mark.parametrize("begun", range(5))
@pytest.mark.parametrize("waiting", range(3))
def test_a_record_that_is_made_while_its_block_waits(begun: int, waiting: int, local: LocalStore) -> None:
    """A large submission is stored in several commits, also between the arrival of a block and its commit."""
    paid = tx("paid", PAY, PAY, spends=[at("fund")], raw=b"raw")
    creation = Creation(
        local.real,
        TxSubmitted(tx=paid),
        new_records.draft(local.real.rules, paid, HEIGHT, at=1),
        created=lambda *_: None,
    )
    steps: list[Callable[[TxView], None]] = [
        creation.begin,
        partial(creation.page, 0),
        creation.clear_master,
        creation.end,
    ]
    third = block(SECOND, structs.replace(paid, raw=None), block_id=72)
    fourth = block(third, tx("child", PAY, spends=[at("paid", 1)]), block_id=73)

    def carry_out(some: list[Callable[[TxView], None]]) -> None:
        for step in some:
            with suppress(TxFault):  # the chain has the transaction already
                local.chain.write_alone(step)

    carry_out(steps[:begun])
    for number, each in enumerate((third, fourth)):
        if number == waiting:
            carry_out(steps[begun:])
        assert local.chain.apply(each, None)
    if waiting == 2:
        carry_out(steps[begun:])
    local.chain.commit()
    for blocks in ((), (block(SECOND, tx("rival", PAY, spends=[at("fund")]), block_id=74),)):
        if blocks:
            local.chain.rollback(back_to(SECOND))
            feed(local.chain, *blocks)
        assert audit(local.real) == Audited([], [])
