"""Spending outputs for a transaction that is in no block: every input is checked before the first one is claimed."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from handlers import spending
from handlers.spending import Fault, TxFault
from handlers.transactions import Held, Slot, TxView, show
from storage.pool_layout import OutPoint, claim

UNKNOWN = Fault("TX_NOT_FOUND")


def spend(
    view: TxView,
    txid: bytes,
    outpoints: Sequence[OutPoint],
    height: int,
    *,
    wanted: Mapping[int, bytes] | None = None,
    ignore_locked: bool = False,
    ignore_conflicting: bool = False,
    is_new: bool = False,
    only_check: bool = False,
) -> None:
    """Spend outputs for `txid`, all or none; `wanted` are the hashes that the caller knows of them.

    `is_new` says that the spender has no record yet: then a parent that is gone can't be excused. With `only_check`
    nothing is changed.

    Raises:
        TxFault: `UTXO_ERROR` with every input that can't be spent, or `PROCESSING`.
    """
    if height <= 0:
        raise TxFault("PROCESSING", "nothing can be spent at height 0")
    parents, refused = dict[bytes, Held | None](), dict[bytes, Fault | None]()
    faults, taken, slots = dict[int, Fault](), dict[OutPoint, int](), dict[int, Slot]()
    claims = [claim(txid, n) for n in range(len(outpoints))]
    for n, outpoint in enumerate(outpoints):
        parent, index = outpoint
        if parent not in parents:
            parents[parent] = held = view.get(parent)
            refused[parent] = (
                None
                if held is None
                else spending.record_fault(
                    held.record, height, ignore_locked=ignore_locked, ignore_conflicting=ignore_conflicting
                )
            )
        if (held := parents[parent]) is None:
            faults[n] = Fault("CREATING") if parent in view.transactions.on_their_way else UNKNOWN
            continue
        fault = refused[parent]
        if fault is None:
            slots[n] = page, _, slot, row = view.slot(held, index)
            fault = spending.slot_fault(page, slot, row, claims[n], height, wanted.get(n) if wanted else None)
        if fault is None and (first := taken.setdefault(outpoint, n)) != n:
            fault = Fault("SPENT", (txid, first))
        if fault is not None:
            faults[n] = fault
    if UNKNOWN in faults.values() and not is_new and view.get(txid) is not None:
        faults = {n: fault for n, fault in faults.items() if fault != UNKNOWN}  # pruned, and the spender accepted
    if faults:
        what = ", ".join(f"{show(outpoints[n])} {fault.code}" for n, fault in list(faults.items())[:10])
        raise TxFault("UTXO_ERROR", f"transaction {txid.hex()} can't spend {what}", inputs=faults, outpoints=outpoints)
    if only_check:
        return
    for n, (parent, index) in enumerate(outpoints):
        if (held := parents[parent]) is not None:
            view.claim(held, index, claims[n], slots.get(n))
    for parent, held in parents.items():
        if held is not None and held.chain_tx is None:
            view.settle(parent, held.record, height)
