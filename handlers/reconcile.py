"""Repair of records that contradict the chain: they are rewritten from the chain.

A submission may have another content than the block's transaction of its id, an id may be used again, a block may list
what is not there to be spent. What only a record knows (claims of what waits for a block, freezes, reassignments, ages,
bytes) is kept where the chain does not contradict it. Each function is defined for every state of a record.
"""

from __future__ import annotations

from collections.abc import Collection

import structlog
from msgspec import Struct
from msgspec.structs import replace

from handlers import bodies, spending
from handlers.claims import spend
from handlers.events import OutPoint, Tx
from handlers.new_records import external
from handlers.spending import TxFault
from handlers.states import enter_child, set_conflicting
from handlers.transactions import TxView
from storage.blobname import blob_name
from storage.blobs import BlobFailed
from storage.history.layout import TxFound
from storage.pool_layout import ALL_IN_ONE, HASH, NOTHING, Body, Record, claim, claimant, output_hash, pack_outpoints
from storage.reassigned import Reassignment

log = structlog.get_logger("transactions")


class Repair(Struct, frozen=True):
    """A record that contradicted the chain, and how. `losers` claimed what the chain does not leave them."""

    txid: bytes
    reason: str
    losers: list[bytes] = []


class _Stored(Struct):
    """What a record, or the claims next to the chain, have of outputs, by index."""

    rows: dict[int, bytes]
    moves: dict[int, list[Reassignment]] = {}
    spendable_in: dict[int, int] = {}
    pruned_spenders: set[bytes] = set()  # spenders that were pruned

    def name(self, index: int, name: bytes) -> bytes:
        """Return an output's hash: the chain's `name`, or the one that a reassignment gave it."""
        moves = self.moves.get(index)
        return self.rows[index][:HASH] if moves and moves[0].old_hash == name and index in self.rows else name


# --- with a block's transaction ---------------------------------------------------------------------------------------


def adopt(view: TxView, tx: Tx, record: Record) -> Repair | None:
    """Rewrite a record to match the transaction with its id in a block.

    What the record claims and the block's transaction does not spend is released.
    """
    if _alike(tx, record):
        return None
    body, stored = view.body(tx.txid), _stored(view, tx.txid, record)
    listed = set(body.inputs) <= {NOTHING, *tx.inputs}
    names = {
        index: stored.name(index, output_hash(tx.txid, index, bodies.body(output)))
        for index, output in enumerate(tx.outputs)
        if bodies.kept(output) or (output.spendable and index in stored.rows)
    }
    differs = record.total != len(tx.outputs) or {n: row[:HASH] for n, row in stored.rows.items()} != names
    if record.conflicting and not listed:
        enter_child(view, tx.txid, on=False)
    _release_unlisted(view, tx.txid, body.inputs, tx.inputs)
    if listed and not differs:
        if body.inputs != tx.inputs or (body.previous is None and tx.previous is not None):
            view.rows.put_body(tx.txid, record, Body(tx.inputs, body.raw, _previous(tx, body)))
            view.put(tx.txid, record)
        return None
    stored = _stored(view, tx.txid, record)
    right = {index: name + stored.rows.get(index, b"")[HASH:] for index, name in names.items()}
    keep_bytes(view, tx, record)
    _rewrite(view, tx.txid, record, stored, right, len(tx.outputs))
    reason = f"its {'outputs' if differs else 'inputs'} are not those of its block"
    return Repair(tx.txid, reason, _displaced(view, stored, right))


def _alike(tx: Tx, record: Record) -> bool:
    """Return whether a record of a few plain outputs agrees; False may be a false negative."""
    if tx.previous is not None or record.reassignments or not record.inline or record.total != len(tx.outputs):
        return False
    return record.packed == pack_outpoints(tx.inputs) and record.names == b"".join(bodies.names(tx.txid, tx.outputs))


def add_return(view: TxView, tx: Tx, record: Record) -> None:
    """Let the record of a transaction that failed have its collateral return, which is there to be spent."""
    back = bodies.returned(tx)
    if back is None:
        return
    index, stored = len(tx.outputs), _stored(view, tx.txid, record)
    name = output_hash(tx.txid, index, bodies.body(back, collateral_return=True))
    if stored.rows.get(index, b"")[:HASH] != name:
        right = stored.rows | {index: name}
        _rewrite(view, tx.txid, record, stored, right, max(record.total, index + 1))


def take_return(view: TxView, txid: bytes, record: Record, indexes: Collection[int]) -> list[bytes]:
    """Remove the collateral return from the record of a failed transaction; return who claimed it."""
    stored = _stored(view, txid, record)
    right = {index: row for index, row in stored.rows.items() if index not in indexes}
    _rewrite(view, txid, record, stored, right, record.total - (record.total - 1 in indexes))
    return [claimant(stored.rows[index])[0] for index in indexes if spending.spent(stored.rows.get(index))]


def keep_bytes(view: TxView, tx: Tx, record: Record) -> None:
    """Keep the inputs and the bytes of a block's transaction; its record, in hand, learns where they are.

    It learns version and lock time too.
    """
    record.version, record.lock_time = tx.version, tx.lock_time
    try:
        if record.external:  # those of another content: a blob that is there is not written again
            view.transactions.blobs.delete(blob_name(tx.txid, partial=record.partial))
        record.external = tx.raw is not None and external(view.rules, tx)
        record.partial = not tx.inputs and not tx.coinbase
        if record.external and tx.raw is not None:
            view.transactions.blobs.put(blob_name(tx.txid, partial=record.partial), tx.raw)
    except BlobFailed as error:  # the block is applied, even if storing the bytes fails
        log.error("blob_not_stored", txid=tx.txid.hex(), error=str(error))
    inputs, previous = (tx.inputs, tx.previous) if tx.valid else (tx.collateral, None)
    view.rows.put_body(tx.txid, record, Body(inputs, None if record.external else tx.raw, previous))


# --- with the chain ---------------------------------------------------------------------------------------------------


def agree(view: TxView, txid: bytes) -> Repair | None:
    """Make a transaction's record, or the claims next to the chain, agree with it."""
    record, found = view.record(txid), view.chain.find(view.txn, txid)
    stored = _stored(view, txid, record or Record(0, 0))
    if record is None:
        return _agree_claims(view, txid, found, stored)
    if record.creating:
        return None
    if found is None or found.failed:
        return _agree_unmined(view, txid, found, record, stored)
    return _agree_mined(view, found, record, stored)


def _agree_claims(view: TxView, txid: bytes, found: TxFound | None, stored: _Stored) -> Repair | None:
    """Remove claims and freezes of what the chain does not have to be spent."""
    right: dict[int, bytes] = {}
    for index, row in stored.rows.items():
        on_chain = None if found is None else view.chain.slot(view.txn, found, index)
        if on_chain is not None and len(on_chain) == HASH and _adds_to_chain(view, (txid, index), row):
            right[index] = on_chain + row[HASH:]
    if right == stored.rows:
        return None
    for index in stored.rows.keys() - right.keys():
        view.drop_claim(txid, index)
    return Repair(txid, "claims of what the chain does not have", _displaced(view, stored, right))


def _agree_mined(view: TxView, found: TxFound, record: Record, stored: _Stored) -> Repair | None:
    """Rewrite the record of a transaction in the active chain from the chain, if they differ."""
    right, there = _right(view, found, stored), view.chain.record(view.txn, found)
    in_step = record.mined and not record.conflicting and there.main_ids[0] in record.main_ids
    if right == stored.rows and in_step:
        return Repair(found.txid, "its reassigned outputs") if _agree_moved(view, found, record) else None
    names = {n: row[:HASH] for n, row in right.items()}
    if {n: row[:HASH] for n, row in stored.rows.items()} != names:  # inputs and bytes are of another content too
        spends, record.external = view.chain.inputs(view.txn, found), False
        record.version = record.lock_time = None
        _release_unlisted(view, found.txid, view.inputs(found.txid), spends)
        view.rows.put_body(found.txid, record, Body(list(spends)))
        stored = _stored(view, found.txid, view.record(found.txid) or record)
    if record.conflicting:
        set_conflicting(view, found.txid, on=False)
        record.conflicting = False
    locked = record.locked, record.locked_by_operator  # since it was mined
    at = there.main_ids[0], there.block_heights[0], there.subtree_idxs[0]
    spending.mine(record, *at, longest=True, certain=True)
    record.locked, record.locked_by_operator = locked
    _rewrite(view, found.txid, record, stored, right, max(there.total, max(right, default=-1) + 1))
    _agree_moved(view, found, record)
    return Repair(found.txid, "it is not what the chain has", _displaced(view, stored, right))


def _agree_moved(view: TxView, found: TxFound, record: Record) -> bool:
    """Make reassigned outputs agree with the chain: their first owners, and whether it spends them.

    Returns whether that changed anything.
    """
    changed = False
    for index, moves in view.pool.reassigned.of(view.txn, found.txid):
        on_chain = view.chain.slot(view.txn, found, index)
        if on_chain is None:
            continue
        first = view.chain.paid(view.txn, found, index)[0]
        if moves.first != first:
            view.pool.reassigned.put(view.txn, found.txid, index, replace(moves, first=first))
            changed = True
        changed |= view.mark_spent(found.txid, record, index, spent=len(on_chain) > HASH)
    if changed and not record.locked:
        spending.settle(record, max(view.height, 1), view.rules.retention)
    if changed:
        view.put(found.txid, record)
    return changed


def _right(view: TxView, found: TxFound, stored: _Stored) -> dict[int, bytes]:
    """Return the slots that the record of a transaction in the active chain should have."""
    right: dict[int, bytes] = {}
    for index, row in view.chain.slots(view.txn, found)[0].items():
        own, tail = stored.rows.get(index), row[HASH:]
        if own is None:
            address, value = view.chain.paid(view.txn, found, index)
            if tail or not spending.data_output(value, address):
                right[index] = row
            continue
        if not tail and _adds_to_chain(view, (found.txid, index), own):
            tail = own[HASH:]
        right[index] = stored.name(index, row[:HASH]) + tail
    for index, row in stored.rows.items():
        if index not in right and _is_gone(view, row):
            right[index] = row  # the chain does not have it any more
    return right


def _agree_unmined(view: TxView, txid: bytes, failed: TxFound | None, record: Record, stored: _Stored) -> Repair | None:
    """Free what no transaction claims, and let a transaction that waits for a block hold what it spends, or lose."""
    if record.mined or record.conflicting:  # long ago, or its spenders are those of its collateral return
        return None
    claims = {index: row for index, row in stored.rows.items() if spending.spent(row)}
    unknown = {by for by, _ in map(claimant, claims.values()) if view.get(by) is None} - stored.pruned_spenders
    strays = {index: row[:HASH] for index, row in claims.items() if claimant(row)[0] in unknown}
    if strays:
        _rewrite(view, txid, record, stored, stored.rows | strays, record.total)
    if failed is not None:
        return Repair(txid, "it failed in its block", [txid])
    if _holds(view, txid):
        return Repair(txid, "spenders that are not known") if strays else None
    try:
        spend(view, txid, view.inputs(txid), view.height + 1, ignore_locked=True)
    except TxFault:
        return Repair(txid, "its inputs are claimed or spent by others", [txid])
    return Repair(txid, "it did not claim its inputs")


def forget_failed(view: TxView, txid: bytes) -> bool:
    """Remove the record of a failed transaction whose block was undone, if it was never submitted; return whether."""
    record = view.record(txid)
    if record is None or record.born is not None or record.block_ids or view.chain.find(view.txn, txid) is not None:
        return False
    enter_child(view, txid, on=False)
    view.remove(txid)
    return True


def release_spent(view: TxView, txid: bytes, spent: list[OutPoint]) -> None:
    """Release what a transaction spent in a block that was rolled back, except the claims of its submission."""
    _release_unlisted(view, txid, spent, view.inputs(txid) if _waits(view, txid) else [])


def _release_unlisted(view: TxView, txid: bytes, claims: list[OutPoint], inputs: list[OutPoint]) -> None:
    """Release what a transaction claims and does not list at the same place among its inputs."""
    for n, outpoint in enumerate(claims):
        if inputs[n : n + 1] != [outpoint]:
            view.release(outpoint, claim(txid, n))


def _holds(view: TxView, txid: bytes) -> bool:
    """Return whether a transaction claims each of its inputs whose transaction is known."""
    inputs = view.inputs(txid)
    for outpoint in inputs:
        held = None if outpoint == NOTHING else view.get(outpoint[0])
        if held is None:
            continue
        row = view.slot(held, outpoint[1])[3]
        if row is None or not spending.spent(row):
            return False
        by, n = claimant(row)
        if by != txid or inputs[n : n + 1] != [outpoint]:  # another input may name it too
            return False
    return True


def in_chain(view: TxView, txid: bytes) -> bool:
    """Return whether the active chain has a transaction, and not as one that failed."""
    return (found := view.chain.find(view.txn, txid)) is not None and not found.failed


def _stored(view: TxView, txid: bytes, record: Record) -> _Stored:
    stored = _Stored({})
    for number in range(record.pages + 1):
        page, first = view.rows.page(txid, number) if number else record, number * record.page_size
        if page is None:
            continue
        stored.rows.update((first + slot, row) for slot, row in view.slots(txid, number))
        for each in page.reassignments:
            stored.moves.setdefault(first + each.slot, []).append(replace(each, slot=first + each.slot))
        stored.spendable_in.update((first + slot, height) for slot, height in page.spendable_in.items())
        stored.pruned_spenders.update(page.deleted_children)
    return stored


def _adds_to_chain(view: TxView, outpoint: OutPoint, row: bytes) -> bool:
    """Return whether a slot has what the chain does not: a freeze, or a claim of a transaction that is in no block."""
    if not spending.spent(row):
        return spending.frozen(row)
    by, n = claimant(row)
    record = view.record(by)
    if record is None or record.conflicting or view.chain.find(view.txn, by) is not None:
        return False
    return view.inputs(by)[n : n + 1] == [outpoint]


def _waits(view: TxView, txid: bytes) -> bool:
    """Return whether a transaction waits for a block."""
    record = view.record(txid)
    waits = record is not None and not record.mined and not record.conflicting
    return waits and view.chain.find(view.txn, txid) is None


def _is_gone(view: TxView, row: bytes) -> bool:
    """Return whether a slot is spent by what does not wait for a block."""
    return spending.spent(row) and not _waits(view, claimant(row)[0])


def _displaced(view: TxView, stored: _Stored, right: dict[int, bytes]) -> list[bytes]:
    """Return the unmined transaction that has lost its claim on an output, if there is one."""
    lost = [row for index, row in stored.rows.items() if right.get(index, b"")[HASH:] != row[HASH:]]
    spenders = dict.fromkeys(claimant(row)[0] for row in lost if spending.spent(row))
    return [txid for txid in spenders if _waits(view, txid)]


def _rewrite(view: TxView, txid: bytes, record: Record, stored: _Stored, right: dict[int, bytes], total: int) -> None:
    """Store a record with other slots, on one page; inputs and bytes stay."""
    body, given = view.body(txid), view.pool.reassigned.of(view.txn, txid)
    view.remove(txid)
    record.page_size, record.pages, record.spent_pages = ALL_IN_ONE, 0, None
    record.outputs = record.total = total
    record.recorded, record.spent = len(right), sum(map(spending.spent, right.values()))
    spenders = {claimant(row)[0] for row in right.values() if spending.spent(row)}
    record.deleted_children = sorted(stored.pruned_spenders & spenders)
    moved = {
        index: moves
        for index, moves in stored.moves.items()
        if index in right and right[index][:HASH] == stored.rows[index][:HASH] == moves[-1].new_hash
    }
    record.reassignments = tuple(
        [replace(each, spent=_is_gone(view, right[index])) for index, moves in moved.items() for each in moves]
    )
    for index, moves in given:
        if index in moved:
            view.pool.reassigned.put(view.txn, txid, index, moves)
    record.spendable_in = {index: height for index, height in stored.spendable_in.items() if index in moved}
    if record.locked:
        record.delete_at = None
    else:
        spending.settle(record, max(view.height, 1), view.rules.retention)
    view.enter(txid, record, right, body)
    view.flush()  # it has its number as a submission again before another one gets a number


def _previous(tx: Tx, body: Body) -> list[tuple[int, bytes] | None] | None:
    """Return what is known of the outputs that a block's transaction spends: its submission may have them."""
    if tx.previous is not None or body.previous is None:
        return tx.previous
    known = dict(zip(body.inputs, body.previous, strict=True))
    return [known.get(outpoint) for outpoint in tx.inputs]
