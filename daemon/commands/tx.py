"""`utxod query tx`: one transaction, its status, and the transactions that may spend its outputs."""

from __future__ import annotations

import sys
from datetime import UTC, datetime

import msgspec
from msgspec import UNSET, Struct
from rich.table import Table

from config.settings import Config
from daemon.commands.common import FAILED, Exit, pipe_may_close, show
from daemon.commands.lookup import heading, list_of, print_json, querying, readable, txid_of
from daemon.store import reading
from handlers.answers import Failure, TipAnswer, Utxo, to_tip
from handlers.query import Snapshot
from handlers.tx_query import Slot, Transaction, TxQuery

_SHOWN = {  # of a transaction's record, and how it is called on the screen; --json has all of it
    "status": "status",
    "tx_inpoints": "spends",
    "fee": "fee",
    "size_in_bytes": "size in bytes",
    "version": "version",
    "lock_time": "lock time",
    "is_coinbase": "coinbase",
    "spending_height": "spendable from height",
    "created_at": "first seen",
    "unmined_since": "unmined since height",
    "creating": "still being created",
    "locked": "outputs locked",
    "locked_by_operator": "locked by an operator",
    "conflicting": "lost a conflict",
    "frozen": "all outputs frozen",
    "reassignments": "reassigned outputs",
    "conflicting_children": "conflicting spenders",
    "deleted_children": "pruned spenders",
    "preserve_until": "record kept until height",
    "delete_at_height": "record deleted at height",
}


def tx(config: Config, text: str, count: int, page: int, *, as_json: bool) -> None:
    """Print a transaction's record, where it is, and a page of its slots with the outputs that the set keeps."""
    txid = txid_of(text)
    if not config.transactions.enabled:
        _outputs_of(config, txid, as_json=as_json)
        return
    with querying(config) as shot:
        answer = _answer(config, shot, txid, range((page - 1) * count, page * count))
    if answer is None:
        message = f"transaction {text} is not known: it was never received, or is pruned"
        if as_json:
            print_json(Failure("unknown_transaction", message))
            sys.exit(FAILED)
        raise Exit(message, FAILED)
    if as_json:
        print_json(answer)
        return
    left = answer.transaction.total_utxos - page * count
    more = [f"{left:,} more: --page {page + 1}"] if left > 0 else []
    with pipe_may_close():
        show(_fields(answer), "", _slots(answer), *more)


def _answer(config: Config, shot: Snapshot, txid: bytes, page: range) -> Answer | None:
    transactions, tip = reading(shot.store, config), shot.tip()
    query = TxQuery(transactions.view(shot.txn))
    held = query.find(txid)
    if held is None:
        return None
    home = transactions.chain.find(shot.txn, txid)
    block = shot.point(home.block) if home else None
    indexes = range(held.record.total)[page.start : page.stop]
    return Answer(
        tip=None if tip is None else to_tip(tip),
        block=None if block is None else to_tip(block),
        transaction=query.transaction(held),
        slots=query.slots(held, indexes),
        utxos=[utxo for index in indexes if (utxo := shot.find(txid, index)) is not None],
    )


def _outputs_of(config: Config, txid: bytes, *, as_json: bool) -> None:
    """Print what is kept of a transaction where transactions are not, and that it is not the transaction."""
    with querying(config) as shot:
        outputs = shot.of_transaction(txid)
    what = "the transaction store is not enabled (transactions.enabled)"
    if outputs:
        message = f"{what}; the UTXO store has {len(outputs)} of its outputs"
    else:
        message = f"{what}, and the UTXO store has no output of it"
    if as_json:
        print_json(msgspec.to_builtins(Failure("not_enabled", message)) | {"utxos": outputs})
        sys.exit(FAILED)
    if outputs:
        with pipe_may_close():
            show(list_of(outputs))
    raise Exit(message, FAILED)


class Answer(Struct, frozen=True):
    """A transaction: `block` is where the UTXO set has it, `utxos` are those of its `slots` that are kept there."""

    tip: TipAnswer | None
    block: TipAnswer | None
    transaction: Transaction
    slots: list[Slot]
    utxos: list[Utxo]


def _fields(answer: Answer) -> Table:
    """Return what is known of a transaction; fields without a value are left out."""
    table, record = Table.grid(padding=(0, 3)), answer.transaction
    table.add_column(style="bold")
    table.add_column(overflow="fold")
    table.add_row("transaction", record.txid)
    table.add_row("where", "in no block of the chain" if answer.block is None else heading(answer.block))
    if not record.has_record:
        table.add_row("record", "none: all that is known of it comes from its block")
    for name, label in _SHOWN.items():
        value = getattr(record, name)
        if name == "created_at" and value is not None:
            value = datetime.fromtimestamp(value / 1000, UTC).isoformat(" ", "seconds")
        if value not in (None, False, []):
            table.add_row(label, readable(value))
    if record.block_heights != ([] if answer.block is None else [answer.block.height]):  # reported by TxMined
        table.add_row("in blocks of height", readable(record.block_heights))
    spent = "" if record.spent_utxos is None else f", {record.spent_utxos:,} of them spent or claimed"
    table.add_row("outputs", f"{record.total_utxos:,}{spent}")
    return table


def _slots(answer: Answer) -> Table:
    """Return the possible spender of each output, and its content if that is known."""
    table = Table(box=None, header_style="bold", pad_edge=False)
    table.add_column("output", justify="right", no_wrap=True)
    for name in ("state", "spent by"):
        table.add_column(name, overflow="fold")
    table.add_column("amount", justify="right", no_wrap=True)
    table.add_column("owner", overflow="fold")
    utxos = {utxo.output_index: utxo for utxo in answer.utxos}
    for slot in answer.slots:
        spender = "" if slot.spending_tx_hash is None else f"{slot.spending_tx_hash} input {slot.spending_input_index}"
        utxo = utxos.get(slot.output_index)
        claimed = slot.status == "spent" and utxo is not None and utxo.spent_tx_hash is UNSET
        state = "claimed" if claimed else str(slot.status)
        if slot.spendable_in is not None:
            state += f", spendable from {slot.spendable_in:,}"
        amount = "" if utxo is None else f"{utxo.lovelace_amount:,} {utxo.amounts[0].unit}"
        table.add_row(str(slot.output_index), state, spender, amount, "" if utxo is None else utxo.owner_addr)
    return table
