"""Records that contradict the chain are rewritten so that they agree with it: the chain always wins.

A submission may have another content than the block's transaction of its id, an id may be used again, a block may list
what is not there to be spent. What only a record knows (claims of what waits for a block, freezes, reassignments, ages,
bytes) is kept where the chain does not contradict it. Each function is defined for every state of a record.
"""

from __future__ import annotations

import structlog
from msgspec import Struct
from msgspec.structs import replace

from handlers import bodies, spending
from handlers.events import OutPoint, Tx
from handlers.new_records import external
from handlers.spending import TxFault
from handlers.states import enter_child, set_conflicting
from handlers.transactions import Transactions, blob_name, kept
from storage.blobs import BlobFailed
from storage.chain_txs import NOTHING, ChainTx
from storage.disk import Txn
from storage.reassigned import Reassignment
from storage.reassigned_spent import mark_spent
from storage.transactions import ALL_IN_ONE, HASH, Body, Record, claim, claimant, output_hash

log = structlog.get_logger("transactions")


class Repair(Struct, frozen=True):
    """A record that contradicted the chain, and how. `losers` claimed what the chain does not leave them."""

    txid: bytes
    reason: str
    losers: list[bytes] = []


class _Said(Struct):
    """What a record, or the claims beside the chain, say of outputs, by index."""

    rows: dict[int, bytes]
    moves: dict[int, list[Reassignment]] = {}
    spendable_in: dict[int, int] = {}
    gone: set[bytes] = set()  # spenders that were pruned

    def name(self, index: int, name: bytes) -> bytes:
        """Return an output's hash: the chain's `name`, or the one that a reassignment gave it."""
        moves = self.moves.get(index)
        return self.rows[index][:HASH] if moves and moves[0].old_hash == name and index in self.rows else name


class Reconciler:
    """Makes the records of transactions agree with the chain."""

    def __init__(self, transactions: Transactions) -> None:
        self.transactions, self.store, self.chain = transactions, transactions.store, transactions.chain

    # --- with a block's transaction ------------------------------------------------------------------------------

    def adopt(self, txn: Txn, tx: Tx, record: Record) -> Repair | None:
        """Let a record say what the block's transaction of its id says.

        What the record claims and the block's transaction does not spend is released.
        """
        body, said = self.store.body(txn, tx.txid), self._said(txn, tx.txid, record)
        listed = set(body.inputs) <= {NOTHING, *tx.inputs}
        names = {
            index: said.name(index, output_hash(tx.txid, index, bodies.body(output)))
            for index, output in enumerate(tx.outputs)
            if kept(output) or (output.spendable and index in said.rows)
        }
        differs = record.total != len(tx.outputs) or said.rows.keys() != names.keys()
        differs = differs or any(row[:HASH] != names[index] for index, row in said.rows.items())
        if record.conflicting and not listed:
            enter_child(self.transactions, txn, tx.txid, on=False)
        self._release_unlisted(txn, tx.txid, body.inputs, tx.inputs)
        if listed and not differs:
            if body.inputs != tx.inputs or (body.previous is None and tx.previous is not None):
                self.store.put_body(txn, tx.txid, Body(tx.inputs, body.raw, _previous(tx, body)))
            return None
        said = self._said(txn, tx.txid, record)
        right = {index: name + said.rows.get(index, b"")[HASH:] for index, name in names.items()}
        self.keep_bytes(txn, tx, record)
        self._rewrite(txn, tx.txid, record, said, right, len(tx.outputs))
        reason = f"its {'outputs' if differs else 'inputs'} are not those of its block"
        return Repair(tx.txid, reason, self._displaced(txn, said, right))

    def add_return(self, txn: Txn, tx: Tx, record: Record) -> None:
        """Let the record of a transaction that failed have its collateral return, which is there to be spent."""
        back = bodies.returned(tx)
        if back is None:
            return
        index, said = len(tx.outputs), self._said(txn, tx.txid, record)
        name = output_hash(tx.txid, index, bodies.body(back, collateral_return=True))
        if said.rows.get(index, b"")[:HASH] != name:
            right = said.rows | {index: name}
            self._rewrite(txn, tx.txid, record, said, right, max(record.total, index + 1))

    def keep_bytes(self, txn: Txn, tx: Tx, record: Record) -> None:
        """Keep the inputs and the bytes of a block's transaction; its record, in hand, learns where they are.

        It learns version and lock time too.
        """
        record.version, record.lock_time = tx.version, tx.lock_time
        try:
            if record.external:  # those of another content: a blob that is there is not written again
                self.transactions.blobs.delete(blob_name(tx.txid, partial=record.partial))
            record.external = tx.raw is not None and external(self.transactions.rules, tx)
            record.partial = not tx.inputs and not tx.coinbase
            if record.external and tx.raw is not None:
                self.transactions.blobs.put(blob_name(tx.txid, partial=record.partial), tx.raw)
        except BlobFailed as error:  # the block stands, whatever becomes of the bytes
            log.error("blob_not_stored", txid=tx.txid.hex(), error=str(error))
        inputs, previous = (tx.inputs, tx.previous) if tx.valid else (tx.collateral, None)
        self.store.put_body(txn, tx.txid, Body(inputs, None if record.external else tx.raw, previous))

    # --- with the chain ------------------------------------------------------------------------------------------

    def agree(self, txn: Txn, txid: bytes) -> Repair | None:
        """Make a transaction's record, or the claims beside the chain, agree with it."""
        record, found = self.store.record(txn, txid), self.chain.find(txn, txid)
        said = self._said(txn, txid, record or Record(0, 0))
        if record is None:
            return self._agree_beside(txn, txid, found, said)
        if record.creating:
            return None
        if found is None or found.failed:
            return self._agree_unmined(txn, txid, found, record, said)
        return self._agree_mined(txn, found, record, said)

    def _agree_beside(self, txn: Txn, txid: bytes, found: ChainTx | None, said: _Said) -> Repair | None:
        """Remove claims and freezes of what the chain does not have to be spent."""
        right: dict[int, bytes] = {}
        for index, row in said.rows.items():
            told = None if found is None else self.chain.told(txn, found, index)
            if told is not None and len(told) == HASH and self._stands(txn, (txid, index), row):
                right[index] = told + row[HASH:]
        for index, row in said.rows.items():
            if index not in right:
                self.store.drop_slot(txn, txid, 0, index)
            elif right[index] != row:
                self.store.put_slot(txn, txid, 0, index, right[index])
        if right == said.rows:
            return None
        return Repair(txid, "claims of what the chain does not have", self._displaced(txn, said, right))

    def _agree_mined(self, txn: Txn, found: ChainTx, record: Record, said: _Said) -> Repair | None:
        """Rewrite the record of a transaction in our chain as the chain has it, if it says anything else."""
        right, there = self._right(txn, found, said), self.chain.record(txn, found)
        in_step = record.mined and not record.conflicting and there.main_ids[0] in record.main_ids
        if right == said.rows and in_step:
            return Repair(found.txid, "its reassigned outputs") if self._agree_moved(txn, found, record) else None
        if _names(right) != _names(said.rows):  # its inputs and bytes are those of another content too
            spends, record.external = self.chain.inputs(txn, found), False
            record.version = record.lock_time = None
            self._release_unlisted(txn, found.txid, self.store.body(txn, found.txid).inputs, spends)
            self.store.put_body(txn, found.txid, Body(spends))
            said = self._said(txn, found.txid, self.store.record(txn, found.txid) or record)
        if record.conflicting:
            set_conflicting(self.transactions, txn, found.txid, on=False)
            record.conflicting = False
        locked = record.locked, record.locked_by_operator  # since it was mined
        at = there.main_ids[0], there.block_heights[0], there.subtree_idxs[0]
        spending.mine(record, *at, longest=True, certain=True)
        record.locked, record.locked_by_operator = locked
        self._rewrite(txn, found.txid, record, said, right, max(there.total, max(right, default=-1) + 1))
        self._agree_moved(txn, found, record)
        return Repair(found.txid, "it is not what the chain has", self._displaced(txn, said, right))

    def _agree_moved(self, txn: Txn, found: ChainTx, record: Record) -> bool:
        """Let what is said of reassigned outputs agree with the chain: who had them first, and whether it spends them.

        Returns whether that changed anything.
        """
        changed = False
        for index, moves in self.store.reassigned.of(txn, found.txid):
            told = self.chain.told(txn, found, index)
            if told is None:
                continue
            first = self.chain.paid(txn, found, index)[0]
            if moves.first != first:
                self.store.reassigned.put(txn, found.txid, index, replace(moves, first=first))
                changed = True
            changed |= mark_spent(self.store, txn, found.txid, record, index, spent=len(told) > HASH)
        if changed and not record.locked:
            spending.settle(record, max(self.transactions.height, 1), self.transactions.rules.retention)
        if changed:
            self.store.put_record(txn, found.txid, record)
        return changed

    def _right(self, txn: Txn, found: ChainTx, said: _Said) -> dict[int, bytes]:
        """Return the slots that the record of a transaction in our chain should have."""
        right: dict[int, bytes] = {}
        for index, row in self.chain.slots(txn, found).items():
            own, tail = said.rows.get(index), row[HASH:]
            if own is None:
                if tail or not self._is_data(txn, found, index):
                    right[index] = row
                continue
            if not tail and self._stands(txn, (found.txid, index), own):
                tail = own[HASH:]
            right[index] = said.name(index, row[:HASH]) + tail
        for index, row in said.rows.items():
            if index not in right and spending.spent(row) and not self._waits(txn, claimant(row)[0]):
                right[index] = row  # the chain does not have it any more
        return right

    def _agree_unmined(
        self, txn: Txn, txid: bytes, failed: ChainTx | None, record: Record, said: _Said
    ) -> Repair | None:
        """Free what nobody claims, and let a transaction that waits for a block hold what it spends, or lose."""
        if record.mined or record.conflicting:  # long ago, or its spenders are those of its collateral return
            return None
        strays = {index: row for index, row in said.rows.items() if self._is_stray(txn, said, row)}
        if strays:
            right = said.rows | {index: row[:HASH] for index, row in strays.items()}
            self._rewrite(txn, txid, record, said, right, record.total)
        if failed is not None:
            return Repair(txid, "it failed in its block", [txid])
        return self._claim_inputs(txn, txid) or (Repair(txid, "spenders that are not known") if strays else None)

    def _claim_inputs(self, txn: Txn, txid: bytes) -> Repair | None:
        """Let a transaction that waits for a block hold what it spends, or lose."""
        if self._holds(txn, txid):
            return None
        try:
            inputs = self.store.body(txn, txid).inputs
            self.transactions.spend(txn, txid, inputs, self.transactions.height + 1, ignore_locked=True)
        except TxFault:
            return Repair(txid, "its inputs are claimed or spent by others", [txid])
        return Repair(txid, "it did not claim its inputs")

    def forget_failed(self, txn: Txn, txid: bytes) -> None:
        """Remove the record of a transaction that failed in a block that is gone, if nobody ever submitted it."""
        record = self.store.record(txn, txid)
        if record is None or record.born is not None or record.block_ids:
            return
        if self.chain.find(txn, txid) is None:
            enter_child(self.transactions, txn, txid, on=False)
            self.store.remove(txn, txid)

    def let_go(self, txn: Txn, txid: bytes, spent: list[OutPoint]) -> None:
        """Release what a transaction spent in a block that is gone, but for what it claims while it waits."""
        inputs = self.store.body(txn, txid).inputs if self._waits(txn, txid) else []
        self._release_unlisted(txn, txid, spent, inputs)

    def _release_unlisted(self, txn: Txn, txid: bytes, claims: list[OutPoint], inputs: list[OutPoint]) -> None:
        """Release what a transaction claims and does not list at the same place among its inputs."""
        for n, outpoint in enumerate(claims):
            if inputs[n : n + 1] != [outpoint]:
                self.transactions.release(txn, outpoint, claim(txid, n))

    def _holds(self, txn: Txn, txid: bytes) -> bool:
        """Return whether a transaction claims each of its inputs whose transaction is known."""
        inputs = self.store.body(txn, txid).inputs
        for outpoint in inputs:
            held = None if outpoint == NOTHING else self.transactions.hold(txn, outpoint[0])
            if held is None:
                continue
            row = self.transactions.slot(txn, held, outpoint[1])[3]
            if row is None or not spending.spent(row):
                return False
            by, n = claimant(row)
            if by != txid or inputs[n : n + 1] != [outpoint]:  # another input may name it too
                return False
        return True

    # --- looking -------------------------------------------------------------------------------------------------

    def in_chain(self, txn: Txn, txid: bytes) -> bool:
        """Return whether our chain has a transaction, and not as one that failed."""
        found = self.chain.find(txn, txid)
        return found is not None and not found.failed

    def _said(self, txn: Txn, txid: bytes, record: Record) -> _Said:
        said = _Said({}, {}, {}, set())
        for number in range(record.pages + 1):
            page, first = self.store.page(txn, txid, number) if number else record, number * record.page_size
            if page is None:
                continue
            first = first if number else 0
            said.rows.update((first + slot, row) for slot, row in self.store.slots(txn, txid, number))
            for each in page.reassignments:
                said.moves.setdefault(first + each.slot, []).append(replace(each, slot=first + each.slot))
            said.spendable_in.update((first + slot, height) for slot, height in page.spendable_in.items())
            said.gone.update(page.deleted_children)
        return said

    def _stands(self, txn: Txn, outpoint: OutPoint, row: bytes) -> bool:
        """Return whether a slot says what the chain can't tell: a freeze, or a claim of what is in no block."""
        if not spending.spent(row):
            return spending.frozen(row)
        by, n = claimant(row)
        record = self.store.record(txn, by)
        if record is None or record.conflicting or self.chain.find(txn, by) is not None:
            return False
        return self.store.body(txn, by).inputs[n : n + 1] == [outpoint]

    def _waits(self, txn: Txn, txid: bytes) -> bool:
        """Return whether a transaction waits for a block."""
        record = self.store.record(txn, txid)
        waits = record is not None and not record.mined and not record.conflicting
        return waits and self.chain.find(txn, txid) is None

    def _is_gone(self, txn: Txn, row: bytes) -> bool:
        """Return whether a slot is spent by what does not wait for a block."""
        return spending.spent(row) and not self._waits(txn, claimant(row)[0])

    def _is_stray(self, txn: Txn, said: _Said, row: bytes) -> bool:
        """Return whether a slot is claimed by somebody of whom nothing is known."""
        by = claimant(row)[0]
        return spending.spent(row) and by not in said.gone and self.transactions.hold(txn, by) is None

    def _is_data(self, txn: Txn, found: ChainTx, index: int) -> bool:
        address, value = self.chain.paid(txn, found, index)
        return spending.data_output(value, address)

    # --- writing -------------------------------------------------------------------------------------------------

    def _displaced(self, txn: Txn, said: _Said, right: dict[int, bytes]) -> list[bytes]:
        """Return who claimed an output before and does no longer, if it waits for a block."""
        found: dict[bytes, None] = {}
        for index, row in said.rows.items():
            if (
                spending.spent(row)
                and right.get(index, b"")[HASH:] != row[HASH:]
                and self._waits(txn, claimant(row)[0])
            ):
                found[claimant(row)[0]] = None
        return list(found)

    def _rewrite(self, txn: Txn, txid: bytes, record: Record, said: _Said, right: dict[int, bytes], total: int) -> None:
        """Store a record with other slots, on one page; inputs and bytes stay."""
        body, given = self.store.body(txn, txid), self.store.reassigned.of(txn, txid)
        self.store.remove(txn, txid)
        record.page_size, record.pages, record.spent_pages = ALL_IN_ONE, 0, None
        record.outputs = record.total = total
        record.recorded, record.spent = len(right), sum(map(spending.spent, right.values()))
        spenders = {claimant(row)[0] for row in right.values() if spending.spent(row)}
        record.deleted_children = sorted(said.gone & spenders)
        moved = {
            index: moves
            for index, moves in said.moves.items()
            if index in right and right[index][:HASH] == said.rows[index][:HASH] == moves[-1].new_hash
        }
        record.reassignments = [
            replace(each, spent=self._is_gone(txn, right[index])) for index, moves in moved.items() for each in moves
        ]
        for index, moves in given:
            if index in moved:
                self.store.reassigned.put(txn, txid, index, moves)
        record.spendable_in = {index: height for index, height in said.spendable_in.items() if index in moved}
        if record.locked:
            record.delete_at = None
        else:
            spending.settle(record, max(self.transactions.height, 1), self.transactions.rules.retention)
        self.store.put_record(txn, txid, record)
        self.store.put_body(txn, txid, body)
        self.store.put_slots(txn, txid, 0, sorted(right.items()))


def _names(rows: dict[int, bytes]) -> dict[int, bytes]:
    return {index: row[:HASH] for index, row in rows.items()}


def _previous(tx: Tx, body: Body) -> list[tuple[int, bytes] | None] | None:
    """Return what is known of the outputs that a block's transaction spends: what its submission said may help."""
    if tx.previous is not None or body.previous is None:
        return tx.previous
    known = dict(zip(body.inputs, body.previous, strict=True))
    return [known.get(outpoint) for outpoint in tx.inputs]
