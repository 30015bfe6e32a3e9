"""Claims of outputs by a transaction that is in no block: every input is checked before the first one is claimed."""

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
    keeps_loser: bool = False,
) -> bytes | None:
    """Spend outputs for `txid`, all or none; `wanted` are their hashes, if the caller has them.

    `is_new` means that the spender has no record yet: then a missing parent is an error. With `only_check`
    nothing is changed. With `keeps_loser` the spender may be recorded as conflicting: if others have all the outputs
    that it can't spend, it spends nothing, and the claimant of the first of them is returned.

    Raises:
        TxFault: `UTXO_ERROR` with every input that can't be spent, or `PROCESSING`.
    """
    if height <= 0:
        raise TxFault("PROCESSING", "nothing can be spent at height 0")
    parents: dict[bytes, Held] = {}
    refused: dict[bytes, Fault] = {}  # parents of which no output can be spent
    faults: dict[int, Fault] = {}
    numbers: dict[OutPoint, int] = {}  # of the inputs that can be spent
    claims: list[tuple[Held, int, bytes, Slot]] = []
    for n, outpoint in enumerate(outpoints):
        parent, index = outpoint
        if (held := parents.get(parent)) is None:
            if (held := view.get(parent)) is None:
                faults[n] = Fault("CREATING") if parent in view.transactions.on_their_way else UNKNOWN
                continue
            parents[parent] = held
            if fault := spending.record_fault(held.record, height, ignore_locked, ignore_conflicting):
                refused[parent] = fault
        fault = refused.get(parent) if refused else None
        if fault is None:
            page, _, slot, row = found = view.slot(held, index)
            by = claim(txid, n)
            claims.append((held, index, by, found))
            fault = spending.slot_fault(page, slot, row, by, height, wanted.get(n) if wanted else None)
        if fault is None and (first := numbers.setdefault(outpoint, n)) != n:
            fault = Fault("SPENT", (txid, first))
        if fault is not None:
            faults[n] = fault
    if faults and not is_new and view.get(txid) is not None:
        faults = {n: fault for n, fault in faults.items() if fault != UNKNOWN}  # pruned, and the spender accepted
    if faults:
        what = ", ".join(f"{show(outpoints[n])} ({fault.code})" for n, fault in list(faults.items())[:10])
        refusal = TxFault(
            "UTXO_ERROR", f"transaction {txid.hex()} cannot spend {what}", inputs=faults, outpoints=outpoints
        )
        rival = refusal.rival(txid) if keeps_loser else None
        if rival is None:
            raise refusal
        return rival
    if only_check:
        return None
    for held, index, by, found in claims:
        view.claim(held, index, by, found)
    for parent, held in parents.items():
        if held.chain_tx is None:
            view.settle(parent, held.record, height)
    return None
