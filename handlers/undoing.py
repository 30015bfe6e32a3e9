"""Transactions of a rolled-back block that cannot become ghosts: they get records, or lose the effects of the block.

They have rows already, or failed, or are coinbases, or others have their ids, or spend of such.
"""

from __future__ import annotations

from collections.abc import Sequence

from msgspec import Struct

from handlers import reconcile, spending
from handlers.transactions import TxView
from storage.history.layout import TxFound
from storage.history.mined import GoingBack, RolledBack
from storage.pool_layout import NOTHING, OutPoint, Record, claim, claimant, in_order
from storage.rows import TxFlag


class Undone(Struct):
    """Work that rolled-back blocks leave for after the rollback.

    `reused` are ids that several transactions have, `unmined` transactions that wait for a block again, `failed` those
    that failed. `released` are spends of transactions that do not wait for another block, or whose id another one has;
    `losers` do not wait themselves, or spend from one that does not; `doubtful` may not have got all that they list.
    """

    reused: set[bytes]
    unmined: list[bytes]
    failed: list[bytes] = []
    released: list[tuple[bytes, list[OutPoint]]] = []
    losers: list[bytes] = []
    doubtful: list[bytes] = []


def undo_some(view: TxView, back: RolledBack, block: GoingBack, undone: Undone) -> None:
    """Make some transactions of a rolled-back block unmined; work for after the rollback is added to `undone`."""
    spent = dict[int, list[tuple[int, OutPoint]]]()  # by the number of the spender
    for spend in block.spends:
        spent.setdefault(spend.by, []).append((spend.input, (spend.parent, spend.output)))
    latest = {found.txid: found for found in block.transactions}
    view.read_ahead({spend.parent for spend in block.spends}.union(latest), ())
    known = dict[TxFound, Record]()
    for found in block.transactions:
        inputs, record = in_order(spent.get(found.number, [])), view.record(found.txid)
        if found.flags & TxFlag.COINBASE or (found.failed and record is not None):
            undone.losers.append(found.txid)
        if found.failed:
            undone.failed.append(found.txid)
            returned = view.chain.slots(view.txn, found)[0]  # it is removed, and its spender becomes conflicting
            undone.losers += [claimant(row)[0] for row in returned.values() if spending.spent(row)]
            if record is not None and not record.pages:
                undone.losers += reconcile.take_return(view, found.txid, record, returned.keys())
        if found.failed or found.txid in back.reused:
            undone.released.append((found.txid, inputs))
        listed = inputs if record is None else view.inputs(found.txid)
        if record is None and not found.failed and latest[found.txid] is found:
            record = view.make_record(found, spent=inputs)
        if record is not None:
            known[found] = record
            if not found.failed and _are_uncertain(listed, inputs, back):
                undone.doubtful.append(found.txid)
    for spend in block.spends:
        by = back.waits(spend.by)
        if spend.apart and by is not None and view.record(spend.parent) is None:  # else its own slot reports it
            view.rows.put_claim(spend.parent, 0, spend.output, claim(by, spend.input))
    for spend in block.spends if view.pool.reassigned.any(view.txn) else ():
        record = view.record(spend.parent)
        if record is not None and view.mark_spent(spend.parent, record, spend.output, spent=False):
            view.settle(spend.parent, record)
    for found, record in known.items():
        spending.unmine(record, block.block_id, block.height)
        view.settle(found.txid, record)


def _are_uncertain(listed: Sequence[OutPoint], spent: list[OutPoint], back: RolledBack) -> bool:
    """Return whether a transaction may not have got all that it lists."""
    return any(
        outpoint != NOTHING and (outpoint[0] in back.reused or spent[n : n + 1] != [outpoint])
        for n, outpoint in enumerate(listed)
    )
