"""Records of new transactions: what one says, how it gets into the store, and how the transaction claims its inputs."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from handlers import bodies, spending
from handlers.events import Output, Tx
from handlers.spending import TxFault
from handlers.states import clear_creating, enter_child
from handlers.transactions import Mined, Rules, Transactions, kept, now
from storage.disk import Txn
from storage.transactions import ALL_IN_ONE, HIGHEST, Body, Heights, OutPoint, Page, Record, output_hash

_RECORD, _INPUT, _OUTPUT = 400, 80, 120  # bytes on disk, about: rows, their keys and their places in the indexes
_VALUE = 12  # with the lengths beside it


def size_of(tx: Tx) -> int:
    """Return about how many bytes a pending transaction takes on disk, with its blob."""
    size = len(tx.raw or b"") + _RECORD + _INPUT * len(tx.inputs) + _OUTPUT * len(tx.outputs)
    return size + sum(_VALUE + len(each[1]) for each in tx.previous if each is not None) if tx.previous else size


def known(transactions: Transactions, txn: Txn, tx: Tx) -> bool:
    """Return whether a transaction need not be created.

    Raises:
        TxFault: `TX_EXISTS`: it is being created right now; `PROCESSING`: it can't be.
    """
    if not tx.outputs:
        raise TxFault("PROCESSING", f"transaction {tx.txid.hex()} has no outputs")
    held = transactions.hold(txn, tx.txid)
    if held is not None and held.record.creating:
        raise TxFault("TX_EXISTS", f"transaction {tx.txid.hex()} is being created")
    return held is not None


def claim_inputs(
    transactions: Transactions,
    txn: Txn,
    txid: bytes,
    inputs: Sequence[OutPoint],
    wanted: Mapping[int, bytes],
    *,
    keeps_loser: bool,
    is_new: bool = True,
    only_check: bool = False,
) -> bytes | None:
    """Spend what a new transaction spends, all or none; with `keeps_loser` it may be recorded as conflicting instead.

    `wanted` are hashes of what it spends, by the numbers of the inputs. Returns who has the first of the inputs then.

    Raises:
        TxFault: `UTXO_ERROR` with every input that can't be spent, or `PROCESSING`.
    """
    height = transactions.height + 1
    try:
        transactions.spend(txn, txid, inputs, height, wanted=wanted, is_new=is_new, only_check=only_check)
    except TxFault as fault:
        rival = fault.rival(txid) if keeps_loser else None
        if rival is None:
            raise
        return rival
    return None


def draft(
    rules: Rules,
    tx: Tx,
    height: int,
    *,
    mined: Sequence[Mined] = (),
    locked: bool = False,
    conflicting: bool = False,
    created_at: int | None = None,
) -> Record:
    """Return the master of a new transaction."""
    is_paged, height = len(tx.outputs) > rules.batch_size, min(height, HIGHEST)
    record = Record(
        outputs=0,
        recorded=0,
        total=len(tx.outputs),
        page_size=rules.batch_size if is_paged else ALL_IN_ONE,
        pages=(len(tx.outputs) - 1) // rules.batch_size,
        is_coinbase=tx.coinbase,
        external=external(rules, tx),
        partial=not tx.inputs and not tx.coinbase,
        locked=locked,
        conflicting=conflicting,
        born=None if mined else height,
        created_at=now() if created_at is None else created_at,
        unmined_since=None if mined else height,
        delete_at=height + rules.retention if conflicting and rules.retention else None,
        spending_height=height + rules.maturity if tx.coinbase else None,
        block_ids=[at.block_id for at in mined],
        block_heights=[at.height for at in mined],
        subtree_idxs=[at.subtree for at in mined],
        main_ids=[at.block_id for at in mined],
        fee=0 if tx.fee is None and not tx.inputs else tx.fee,
        size=tx.size if tx.size is not None else len(tx.raw) if tx.raw is not None else None,
        version=tx.version,
        lock_time=tx.lock_time,
    )
    if is_paged:  # nothing will ever spend what holds nothing
        barren = sum(not any(map(kept, _part(tx, record, number))) for number in range(1, record.pages + 1))
        record.spent_pages = barren or None
    return record


def _part(tx: Tx, record: Record, number: int) -> Sequence[Output]:
    """Return the outputs of one page."""
    size = record.page_size
    return tx.outputs[number * size : (number + 1) * size]


def large(rules: Rules, tx: Tx) -> bool:
    """Return whether a transaction takes more than one commit, or a blob before it."""
    return len(tx.outputs) > rules.batch_size or (tx.raw is not None and external(rules, tx))


def external(rules: Rules, tx: Tx) -> bool:
    """Return whether a transaction's bytes are kept as a blob."""
    long = tx.raw is not None and len(tx.raw) > rules.max_inline_bytes
    return rules.externalize_all or len(tx.outputs) > rules.batch_size or long


def put_page(
    transactions: Transactions,
    txn: Txn,
    tx: Tx,
    record: Record,
    number: int,
    *,
    creating: bool = False,
    was: Heights | None = None,
) -> None:
    """Store one page of a new transaction, with its slots; its bytes are a blob already, if they are to be one.

    `was` is `NOWHERE` if it is known that there is no record yet.
    """
    store, outputs = transactions.store, _part(tx, record, number)
    first = number * record.page_size
    rows = [
        (slot, output_hash(tx.txid, first + slot, bodies.body(output)))
        for slot, output in enumerate(outputs)
        if kept(output)
    ]
    page = record if number == 0 else Page(0, 0)
    page.outputs, page.recorded, page.creating = len(outputs), len(rows), creating
    if not creating:  # nothing may ever come that settles what has nothing to spend
        spending.settle(record, max(record.block_heights, default=transactions.height), transactions.rules.retention)
    store.put_page(txn, tx.txid, number, page, was)
    store.put_slots(txn, tx.txid, number, rows)
    if number == 0:
        store.put_body(txn, tx.txid, Body(tx.inputs, None if record.external else tx.raw, tx.previous))
        if record.unmined_since is not None:
            store.pending.add(txn, tx.txid, size_of(tx), record.created_at)
        if record.conflicting:
            enter_child(transactions, txn, tx.txid, on=True)


def finish(
    transactions: Transactions,
    txn: Txn,
    txid: bytes,
    *,
    spends: bool,
    wanted: Mapping[int, bytes] | None = None,
    keeps_loser: bool = False,
) -> bytes | None:
    """End a creation whose pages are all there: the inputs are spent and the master's flag goes, in one.

    With `keeps_loser` it is conflicting when others have its inputs. Returns the first of these others.

    Raises:
        TxFault: `UTXO_ERROR`: an input can't be spent any more; `CREATING`: a page is missing. The caller's write
            transaction has to be given up then.
    """
    inputs, rival = transactions.store.body(txn, txid).inputs, None
    if spends:
        rival = claim_inputs(transactions, txn, txid, inputs, wanted or {}, keeps_loser=keeps_loser)
    record = transactions.need(txn, txid)
    clear_creating(transactions, txn, txid, record)
    record.creating, record.conflicting = False, record.conflicting or rival is not None
    transactions.settle(txn, txid, record, max(record.block_heights, default=transactions.height))
    if rival is not None:
        enter_child(transactions, txn, txid, on=True)
    return rival
