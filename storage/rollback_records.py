"""Transactions of a block get records, all at once: the block goes back, and they can't become ghosts.

They have rows already, or failed, or are coinbases, or others have their ids, or spend of such.
"""

from __future__ import annotations

from collections.abc import Iterator
from time import time

from msgspec import Struct

from storage import keys
from storage.chain_txs import NOTHING, ChainTx, GoingBack, Paid, count, in_order, mined_record
from storage.disk import Txn
from storage.history.mined import MinedStore, RolledBack
from storage.reassigned_spent import mark_spent
from storage.rows import TxFlag, pack
from storage.touched_records import TouchedRecords
from storage.transactions import (
    BODY_PAGE,
    FROZEN,
    HASH,
    MASTER,
    Body,
    OutPoint,
    Record,
    claim,
    claimant,
    output_hash,
    slot_key,
)

_BODY = keys.u32(BODY_PAGE)


class Undone(Struct):
    """What blocks that go back leave to be settled when they are gone.

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


class RecordedBlock:
    """Some transactions of a block that goes back, with the records that they have, or have now.

    `back` is the whole rollback; what is to be settled when the block is gone is added to `undone`. `idle` says that
    there was no record at all before it. Nothing is written before `flush`.
    """

    def __init__(
        self, txn: Txn, chain: MinedStore, back: RolledBack, block: GoingBack, undone: Undone, *, idle: bool
    ) -> None:
        self._txn, self._chain, self._back, self._reused = txn, chain, back, back.reused
        self._block, self._undone = block, undone
        self._latest = {found.txid: found for found, _ in block.transactions}
        self._inputs = _inputs(block)
        self._touched = TouchedRecords(chain.store, txn)
        read = {spend.parent for spend in block.spends}.union(self._latest)
        self._touched.read(read & self._reused if idle else read, ())
        self.known: dict[ChainTx, Record] = {}
        self.reopened: list[Record] = []  # of outputs that were reassigned, and are not spent by a block any more
        for found, _ in block.transactions:
            if found.flags & TxFlag.COINBASE:
                undone.losers.append(found.txid)
            if found.failed:
                undone.failed.append(found.txid)
            if found.failed or found.txid in self._reused:
                undone.released.append((found.txid, self._inputs.get(found.number, [])))
        self._records(idle=idle)
        self._claims()
        self._reopen()

    def flush(self) -> None:
        """Write the records, their slots, and the claims."""
        self._touched.flush()

    def _records(self, *, idle: bool) -> None:
        now = int(time() * 1000)
        for found, details in self._block.transactions:
            record, paid = self._touched.records.get(found.txid), self._block.paid.get(found.number, [])
            if found.failed:  # with it goes what it gave back
                self._undone.losers += filter(None, (self._back.waits(each.by) for each in paid))
                if record is not None and not record.pages:
                    self._take_return(found.txid, record, [each.output for each in paid])
            if record is not None:
                self.known[found] = record
                self._touched.change(found.txid)
                self._doubt(found, self._chain.store.body(self._txn, found.txid).inputs)
            elif not found.failed and self._latest[found.txid] is found:
                quiet = idle and found.txid not in self._reused
                beside = {} if quiet else dict(self._chain.store.slots(self._txn, found.txid))
                slots = dict(self._slots(found.txid, paid, beside))
                maturity = self._chain.maturity if found.flags & TxFlag.COINBASE else None
                record = mined_record(self._block.height, self._block.block_id, details, maturity)
                record.created_at = now
                count(record, slots)
                inputs, front = self._inputs.get(found.number, []), found.txid + MASTER
                rows = [(front + keys.u32(index), row) for index, row in slots.items()]
                self._touched.add(found.txid, record, [*rows, (found.txid + _BODY, pack(Body(inputs)))])
                self.known[found] = record
                self._doubt(found, inputs)

    def _take_return(self, txid: bytes, record: Record, indexes: list[int]) -> None:
        """Remove the collateral return from the record of a transaction that failed; who claims it loses."""
        for index in indexes:
            key = slot_key(txid, 0, index)
            row = self._txn.get(key, db=self._chain.store.tx)
            if row is None or not self._touched.drop_slot(key):
                continue
            record.recorded -= 1
            if len(row) > HASH and row[HASH:] != FROZEN:
                record.spent -= 1
                self._undone.losers.append(claimant(row)[0])
            if index + 1 == record.total:
                record.total = record.outputs = record.total - 1

    def _doubt(self, found: ChainTx, inputs: list[OutPoint]) -> None:
        """Remember a transaction that failed, or that does not certainly hold what it lists."""
        if found.failed:
            self._undone.losers.append(found.txid)
            return
        spent = self._inputs.get(found.number, [])
        for n, outpoint in enumerate(inputs):
            if outpoint != NOTHING and (outpoint[0] in self._reused or spent[n : n + 1] != [outpoint]):
                self._undone.doubtful.append(found.txid)
                return

    def _slots(self, txid: bytes, outputs: list[Paid], beside: dict[int, bytes]) -> Iterator[tuple[int, bytes]]:
        """Yield the slots of a new record; claims of outputs that are not there end."""
        for index, body, spender, at in outputs:
            if index in beside:
                yield index, beside.pop(index)
                continue
            name = output_hash(txid, index, body)
            if (by := self._back.waits(spender)) is not None:  # else it failed, and lets go
                name += claim(by, at)
            yield index, name
        for index, row in beside.items():
            self._touched.drop_slot(slot_key(txid, 0, index))
            self._undone.losers.append(claimant(row)[0])

    def _claims(self) -> None:
        """Let what is unmined now go on claiming what it spent of transactions without a record.

        Where the parent has one, or gets one by this, its own slot says so.
        """
        for spender, at, parent, index, body in self._block.spends:
            by = self._back.waits(spender)
            if body is not None and by is not None and parent not in self._touched.records:
                self._touched.put_slot(slot_key(parent, 0, index), output_hash(parent, index, body) + claim(by, at))

    def _reopen(self) -> None:
        """Take back that this block spent outputs which were reassigned."""
        store = self._chain.store
        for spend in self._block.spends if store.reassigned.any(self._txn) else ():
            record = self._touched.records.get(spend.parent)
            if record and mark_spent(store, self._txn, spend.parent, record, spend.output, spent=False):
                self.reopened.append(record)
                self._touched.change(spend.parent)


def _inputs(block: GoingBack) -> dict[int, list[OutPoint]]:
    """Return what each transaction spent, by its number."""
    found: dict[int, list[tuple[int, OutPoint]]] = {}
    for spend in block.spends:
        found.setdefault(spend.by, []).append((spend.input, (spend.parent, spend.output)))
    return {number: in_order(spent) for number, spent in found.items()}
