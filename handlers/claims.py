"""Claims of transactions that are in no block: spending, conflicts between them, and which of them lose.

Every input is checked before the first one is claimed.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Container, Sequence

from handlers import spending
from handlers.spending import Fault, TxFault
from handlers.states import refuse_if_in_chain, set_conflicting
from handlers.transactions import Held, Slot, TxView, show
from storage.pool_layout import FROZEN, HASH, OutPoint, claim, claimant

UNKNOWN = Fault("TX_NOT_FOUND")


def spend(
    view: TxView,
    txid: bytes,
    outpoints: Sequence[OutPoint],
    height: int,
    *,
    wanted: Sequence[bytes | None] | None = None,
    ignore_locked: bool = False,
    ignore_conflicting: bool = False,
    is_new: bool = False,
    only_check: bool = False,
    keeps_loser: bool = False,
) -> bytes | None:
    """Spend outputs for `txid`, all or none; `wanted` are their hashes, as far as the caller has them.

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
    claims: dict[OutPoint, tuple[int, Held, bytes, Slot]] = {}
    hashes = dict(enumerate(wanted)) if wanted else {}
    for n, outpoint in enumerate(outpoints):
        parent, index = outpoint
        if (held := parents.get(parent)) is None:
            if (held := view.get(parent)) is None:
                faults[n] = Fault("CREATING") if parent in view.transactions.on_their_way else UNKNOWN
                continue
            parents[parent] = held
            if fault := spending.record_fault(held.record, height, ignore_locked, ignore_conflicting):
                refused[parent] = fault
        if parent in refused:
            faults[n] = refused[parent]
            continue
        page, _, slot, row = found = view.slot(held, index)
        by = claim(txid, n)
        fault = spending.slot_fault(page, slot, row, by, height, hashes.get(n))
        if fault is None and outpoint in claims:
            fault = Fault("SPENT", (txid, claims[outpoint][0]))
        if fault is None:
            claims[outpoint] = n, held, by, found
        else:
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
    for (_, index), (_, held, by, found) in claims.items():
        view.claim(held, index, by, found)
    for parent, held in parents.items():
        if held.chain_tx is None:
            view.settle(parent, held.record, height)
    return None


# --- conflicts ---------------------------------------------------------------------------------------------------


def children(view: TxView, txid: bytes) -> list[bytes]:
    """Return the transactions that spend an output of one, or would: conflicting children and recorded spenders."""
    record = view.record(txid)
    found = dict.fromkeys(record.conflicting_children if record else [])
    for number in range(record.pages + 1 if record else 1):
        found.update(dict.fromkeys(by[:HASH] for by in view.claims(txid, number).values() if by != FROZEN))
    return list(found)


def descendants(view: TxView, txid: bytes, known: Container[bytes] = ()) -> list[bytes]:
    """Return the descendants of a transaction, nearest first, except those that are `known`."""
    found: dict[bytes, None] = {}
    waiting = deque(children(view, txid))
    while waiting:
        child = waiting.popleft()
        if child not in found and child != txid and child not in known:
            found[child] = None
            waiting += children(view, child)
    return list(found)


def _excluded(view: TxView, txid: bytes) -> list[bytes]:
    """Return a conflicting transaction itself and all that can't be true next to it.

    Raises:
        TxFault: `PROCESSING`: it names an output that does not exist, or conflicts with one that can't lose.
    """
    found = {txid: None}
    for n, outpoint in enumerate(view.inputs(txid)):
        row = view.row(outpoint)
        if row is None or spending.frozen(row):
            why = "does not exist" if row is None else "is frozen"
            raise TxFault("PROCESSING", f"input {n} of {txid.hex()} names {show(outpoint)}, which {why}")
        if spending.spent(row) and (loser := claimant(row)[0]) != txid:  # a transaction does not conflict with itself
            builds_on = descendants(view, loser)
            if txid in builds_on:
                raise TxFault(
                    "PROCESSING", f"transaction {txid.hex()} builds on {loser.hex()}, with which it conflicts"
                )
            found.update(dict.fromkeys([loser, *builds_on]))
    return list(found)


def decide(view: TxView, winners: Sequence[bytes], height: int) -> list[bytes]:
    """Make conflicting transactions win and those that exclude them lose; return the losers.

    Raises:
        TxFault: `PROCESSING`: a winner is not conflicting, or one that it conflicts with can't lose; `UTXO_ERROR`.
    """
    losers: dict[bytes, None] = {}
    for winner in winners:
        record = view.record(winner)
        if record is None or not record.conflicting:
            raise TxFault("PROCESSING", f"transaction {winner.hex()} is not conflicting, so it cannot win a conflict")
        refuse_if_in_chain(view, winner, "PROCESSING")
        losers.update(dict.fromkeys(_excluded(view, winner)))
    losing = [txid for txid in losers if txid not in winners]
    for txid in losing:
        _check_can_lose(view, txid)
    give_way(view, losing)
    for winner in winners:
        inputs = view.inputs(winner)
        spend(view, winner, inputs, height, ignore_locked=True, ignore_conflicting=True)
        set_conflicting(view, winner, on=False)
    return list(losers)


def _check_can_lose(view: TxView, txid: bytes) -> None:
    held = view.get(txid)
    if held is None:
        raise TxFault("PROCESSING", f"transaction {txid.hex()} spends here, but is not known")
    if held.record.mined:
        raise TxFault("PROCESSING", f"transaction {txid.hex()} is in block {held.record.block_heights[-1]}")
    for number in range(held.record.pages + 1):
        if FROZEN in view.claims(txid, number).values():
            raise TxFault("PROCESSING", f"transaction {txid.hex()} has frozen outputs")


def give_way(view: TxView, losers: Sequence[bytes]) -> None:
    """Make transactions conflicting, and what they spend unspent."""
    for txid in losers:
        if view.record(txid) is not None:
            set_conflicting(view, txid, on=True)
    for txid in losers:
        view.release_inputs(txid)


def condemn(view: TxView, txids: Sequence[bytes]) -> list[bytes]:
    """Make transactions conflicting, with all that builds on them, and release what they claim; return them all.

    Raises:
        TxFault: `TX_NOT_FOUND`; `CREATING`: it is not whole yet; `IN_CHAIN`: the active chain has it.
    """
    losing: dict[bytes, None] = {}
    for txid in txids:
        if view.need(txid).creating:
            raise TxFault("CREATING", f"transaction {txid.hex()} is being created")
        refuse_if_in_chain(view, txid)
        losing.update(dict.fromkeys([txid, *descendants(view, txid)]))
    condemned = [txid for txid in losing if view.chain.find(view.txn, txid) is None]
    give_way(view, condemned)
    return condemned


def readmit(view: TxView, txid: bytes, wanted: Sequence[bytes | None] | None = None) -> bool:
    """Make a conflicting transaction unmined again: it claims its inputs, all or none.

    `wanted` are hashes of what it spends, as far as they are known. Returns False if it is not conflicting.

    Raises:
        TxFault: `TX_NOT_FOUND`; `IN_CHAIN`: it failed in the active chain; `UTXO_ERROR` with every input it can't
        claim.
    """
    if not view.need(txid).conflicting:
        return False
    refuse_if_in_chain(view, txid)
    # A deleted parent was spent by others, so it is an error here too.
    spend(view, txid, view.inputs(txid), view.height + 1, wanted=wanted, is_new=True)
    set_conflicting(view, txid, on=False)
    return True
