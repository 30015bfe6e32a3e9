"""Records of new transactions: their content, and their insertion into the store."""

from __future__ import annotations

from collections.abc import Sequence

from handlers import bodies, spending
from handlers.claims import spend
from handlers.events import Output, Tx
from handlers.spending import Rules, TxFault
from handlers.states import clear_creating, enter_child
from handlers.transactions import TxView
from storage.pool_layout import HIGHEST, NO_NAME, Body, Page, Record

_RECORD, _INPUT, _OUTPUT = 400, 80, 120  # bytes on disk, about: rows, their keys and their places in the indexes
_VALUE = 12  # with the lengths next to it


def size_of(tx: Tx) -> int:
    """Return about how many bytes a pending transaction takes on disk, with its blob."""
    size = _RECORD + _INPUT * len(tx.inputs) + _OUTPUT * len(tx.outputs)
    if tx.raw is not None:
        size += len(tx.raw)
    return size + sum(_VALUE + len(each[1]) for each in tx.previous if each is not None) if tx.previous else size


def known(view: TxView, tx: Tx) -> bool:
    """Return whether a transaction need not be created.

    Raises:
        TxFault: `TX_EXISTS`: it is being created right now; `PROCESSING`: it can't be.
    """
    if not tx.outputs:
        raise TxFault("PROCESSING", f"transaction {tx.txid.hex()} has no outputs")
    held = view.get(tx.txid)
    if held is not None and held.record.creating:
        raise TxFault("TX_EXISTS", f"transaction {tx.txid.hex()} is being created")
    return held is not None


def draft(rules: Rules, tx: Tx, height: int, *, at: int, locked: bool = False, conflicting: bool = False) -> Record:
    """Return the master of a new transaction, created `at` a time in milliseconds."""
    height = min(height, HIGHEST)
    record = Record(  # with more arguments by name, Python would make a dictionary of them
        0,
        0,
        total=len(tx.outputs),
        is_coinbase=tx.coinbase,
        external=external(rules, tx),
        partial=not (tx.inputs or tx.coinbase),
        locked=locked,
        born=height,
        created_at=at,
        unmined_since=height,
        spending_height=height + rules.maturity if tx.coinbase else None,
        fee=0 if tx.fee is None and not tx.inputs else tx.fee,
        size=len(tx.raw) if tx.size is None and tx.raw is not None else tx.size,
        version=tx.version,
        lock_time=tx.lock_time,
    )
    if conflicting:
        record.conflicting, record.delete_at = True, height + rules.retention if rules.retention else None
    if record.total > rules.batch_size:
        record.page_size, record.pages = rules.batch_size, (record.total - 1) // rules.batch_size
        record.spent_pages = _barren(tx, record) or None
    return record


def _barren(tx: Tx, record: Record) -> int:
    """Return how many further pages have nothing to spend."""
    return sum(not any(map(bodies.kept, _part(tx, record, number))) for number in range(1, record.pages + 1))


def _part(tx: Tx, record: Record, number: int) -> Sequence[Output]:
    """Return the outputs of one page."""
    if record.pages == 0:
        return tx.outputs
    size = record.page_size
    return tx.outputs[number * size : (number + 1) * size]


def large(rules: Rules, tx: Tx) -> bool:
    """Return whether a transaction takes more than one commit, or a blob before it."""
    return len(tx.outputs) > rules.batch_size or (tx.raw is not None and external(rules, tx))


def external(rules: Rules, tx: Tx) -> bool:
    """Return whether a transaction's bytes are kept as a blob."""
    is_long = tx.raw is not None and len(tx.raw) > rules.max_inline_bytes
    return is_long or rules.externalize_all or len(tx.outputs) > rules.batch_size


def put_page(
    view: TxView,
    tx: Tx,
    record: Record,
    number: int,
    *,
    creating: bool = False,
    is_new: bool = False,
) -> None:
    """Store one page of a new transaction, with its names; its bytes are a blob already, if they are to be one.

    `is_new` means that no part of the transaction is stored yet.
    """
    txid, rows = tx.txid, view.rows
    names = bodies.names(txid, _part(tx, record, number), number * record.page_size)
    page = Page(0, 0) if number else record
    page.outputs, page.recorded = len(names), len(names) - names.count(NO_NAME)
    if creating:
        page.creating = True
    elif not is_new:  # nothing may ever come that settles what has nothing to spend
        height = max(record.block_heights) if record.block_heights else view.height
        spending.settle(record, height, view.rules.retention)
    rows.put_names(txid, record, number, names)
    if number:
        rows.put_page(txid, number, page)
        return
    rows.put_body(txid, record, Body(tx.inputs, None if record.external else tx.raw, tx.previous))
    if record.unmined_since is not None:
        record.submission, record.weight = rows.next_number(), size_of(tx)
    if is_new:
        rows.add(txid, record)
    else:
        rows.put(txid, record)
    if record.conflicting:
        enter_child(view, txid, on=True)


def finish(
    view: TxView, txid: bytes, *, wanted: Sequence[bytes | None] | None = None, keeps_loser: bool = False
) -> bytes | None:
    """End a creation whose pages are complete: the inputs are spent and the master's flag is cleared at once.

    With `keeps_loser` it is conflicting when others have its inputs. Returns the first of these others.

    Raises:
        TxFault: `UTXO_ERROR`: an input can't be spent any more; `CREATING`: a page is missing. The caller's write
            transaction has to be given up then.
    """
    inputs, height = view.inputs(txid), view.height + 1
    rival = spend(view, txid, inputs, height, wanted=wanted, is_new=True, keeps_loser=keeps_loser)
    record = view.need(txid)
    clear_creating(view, txid, record)
    record.creating, record.conflicting = False, record.conflicting or rival is not None
    view.settle(txid, record, max(record.block_heights, default=view.height))
    if rival is not None:
        enter_child(view, txid, on=True)
    return rival
