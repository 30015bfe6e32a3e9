"""A block's transactions get records, all at once: the block goes back, and its UTXO rows with it.

Reads in bulk and in key order, a block at a time from the tip down, because a rollback of many blocks waits for this.
"""

from __future__ import annotations

from collections.abc import Iterator
from time import time

from storage import keys
from storage.buried import NOTHING, Buried, BuriedStore, in_order
from storage.disk import Txn
from storage.rows import MARKED, SPENT, TxFlag, pack, spender_of
from storage.sheaf import Sheaf
from storage.transactions import (
    BODY_PAGE,
    FROZEN,
    HASH,
    HIGHEST,
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


class Unearthed:
    """The transactions of the block `ordinal`, with the records that they have, or have now.

    `target` is the ordinal that stays; outputs of it and of those below go on being claimed by what is unmined now.
    `names` has the transactions of the blocks above, by position, and learns this block's. `reused` are the ids that
    more than one transaction had so far, and learns this block's. `idle` says that there was no record at all before
    this rollback. Nothing is written before `flush`.

    What is to be settled when the block is gone: `released` are spends of transactions that do not wait for another
    block, or whose id another one has; `losers` do not wait themselves, or spend from one that does not; `doubtful`
    may not have got all that they list.
    """

    def __init__(
        self,
        txn: Txn,
        buried: BuriedStore,
        ordinal: int,
        target: int,
        names: dict[bytes, bytes],
        reused: set[bytes],
        *,
        idle: bool,
    ) -> None:
        self._txn, self._buried, self._target, self._names, self._reused = txn, buried, target, names, reused
        store, block = buried.store, buried.utxo.block_at(txn, ordinal)
        self.height = min(block.height, HIGHEST)
        self.details = store.block_details(txn, ordinal)
        known_as = None if self.details is None else self.details.block_id
        self.block_id = block.height if known_as is None else known_as
        self.transactions = list(buried.of_block(txn, ordinal))
        self._latest = {found.txid: found for found in self.transactions}
        names.update((found.position, found.txid) for found in self.transactions if not found.flags & TxFlag.INVALID)
        undo = buried.utxo.undo_at(txn, ordinal)
        if undo is not None:
            reused.update(txid for txid, _ in undo.replaced)
        reused.update(found.txid for found in self.transactions if self._latest[found.txid] is not found)
        self._spent = [] if undo is None else self._spends(ordinal, undo.spent)
        self.inputs = self._inputs()
        self._sheaf = Sheaf(store, txn)
        read = {txid for spent in self.inputs.values() for txid, _ in spent}.union(self._latest)
        self._sheaf.read(read & reused if idle else read, ())
        self.known: dict[Buried, Record] = {}
        self.losers = [found.txid for found in self.transactions if found.flags & TxFlag.COINBASE]
        self.doubtful: list[bytes] = []
        self.released = [
            (found.txid, self.inputs.get(found.position, []))
            for found in self.transactions
            if found.flags & TxFlag.INVALID or found.txid in reused
        ]
        self._records(ordinal, idle=idle)
        self._claims()

    def flush(self) -> None:
        """Write the records, their slots, and the claims."""
        self._sheaf.flush()

    def _spends(self, ordinal: int, spent: bytes) -> list[tuple[bytes, bytes]]:
        """Return the rows of the outputs that the block spent."""
        places = [spent[at : at + 12] for at in range(0, len(spent), 12)]
        own, rows = keys.u32(ordinal), self._buried.utxo.rows(self._txn, places)
        return [(place, row) for place, row in rows.items() if row[0] == SPENT and row[1:5] == own]

    def _inputs(self) -> dict[bytes, list[OutPoint]]:
        """Return what each transaction spent, by its position."""
        utxo, homes = self._buried.utxo, sorted({place[:8] for place, _ in self._spent})
        parents = {home: raw[:HASH] for home, raw in self._txn.cursor(utxo.tx).getmulti(homes)}
        found: dict[bytes, list[tuple[int, OutPoint]]] = {}
        for place, row in self._spent:
            at = keys.number(row[9:MARKED])
            if at != keys.LAST_U32:  # else a transaction of the same id took its place
                found.setdefault(row[1:9], []).append((at, (parents[place[:8]], keys.number(place[8:]))))
        return {position: in_order(spent) for position, spent in found.items()}

    def _records(self, ordinal: int, *, idle: bool) -> None:
        outputs: dict[bytes, list[tuple[bytes, bytes]]] = {}
        for place, row in self._buried.utxo.scan(self._txn, self._buried.utxo.output, keys.u32(ordinal)):
            outputs.setdefault(place[:8], []).append((place[8:], row))
        now = int(time() * 1000)
        for found in self.transactions:
            record, paid = self._sheaf.records.get(found.txid), outputs.get(found.position, [])
            if found.flags & TxFlag.INVALID:  # with it goes what it gave back
                self.losers += filter(None, (self._spender(row) for _, row in paid))
                if record is not None and not record.pages:
                    self._take_return(found.txid, record, [index for index, _ in paid])
            if record is not None:
                self.known[found] = record
                self._sheaf.change(found.txid)
                self._doubt(found, self._buried.store.body(self._txn, found.txid).inputs)
            elif not found.flags & TxFlag.INVALID and self._latest[found.txid] is found:
                quiet = idle and found.txid not in self._reused
                slots = list(self._slots(found.txid, paid, {} if quiet else self._beside(found.txid)))
                record = self._record(found, slots, now)
                inputs = self.inputs.get(found.position, [])
                self._sheaf.add(found.txid, record, [*slots, (found.txid + _BODY, pack(Body(inputs)))])
                self.known[found] = record
                self._doubt(found, inputs)

    def _take_return(self, txid: bytes, record: Record, indexes: list[bytes]) -> None:
        """Remove the collateral return from the record of a transaction that failed; who claims it loses."""
        for index in indexes:
            row = self._txn.get(txid + MASTER + index, db=self._buried.store.tx)
            if row is None or not self._sheaf.drop_slot(txid + MASTER + index):
                continue
            record.recorded -= 1
            if len(row) > HASH and row[HASH:] != FROZEN:
                record.spent -= 1
                self.losers.append(claimant(row)[0])
            if keys.number(index) + 1 == record.total:
                record.total = record.outputs = record.total - 1

    def _doubt(self, found: Buried, inputs: list[OutPoint]) -> None:
        """Remember a transaction that failed, or that does not certainly hold what it lists."""
        if found.flags & TxFlag.INVALID:
            self.losers.append(found.txid)
            return
        spent = self.inputs.get(found.position, [])
        for n, outpoint in enumerate(inputs):
            if outpoint != NOTHING and (outpoint[0] in self._reused or spent[n : n + 1] != [outpoint]):
                self.doubtful.append(found.txid)
                return

    def _spender(self, row: bytes) -> bytes | None:
        """Return who spent an output, if that waits for a block now."""
        spender = spender_of(row)
        replaced = spender is not None and keys.number(spender[8:]) == keys.LAST_U32  # by one of the same id
        return None if spender is None or replaced else self._names.get(spender[:8])

    def _beside(self, txid: bytes) -> dict[bytes, bytes]:
        """Return the claims and freezes that stand beside a transaction's rows."""
        return {keys.u32(index): row for index, row in self._buried.store.slots(self._txn, txid)}

    def _slots(
        self, txid: bytes, outputs: list[tuple[bytes, bytes]], beside: dict[bytes, bytes]
    ) -> Iterator[tuple[bytes, bytes]]:
        """Yield the slots of a new record; claims of outputs that are not there end."""
        front = txid + MASTER
        for index, row in outputs:
            if index in beside:
                yield front + index, beside.pop(index)
                continue
            body = row[MARKED:] if row[0] == SPENT else row
            name = output_hash(txid, keys.number(index), body) if body else bytes(HASH)
            if (by := self._spender(row)) is not None:  # else it failed, and lets go
                name += claim(by, keys.number(row[9:MARKED]))
            yield front + index, name
        for index, row in beside.items():
            self._sheaf.drop_slot(front + index)
            self.losers.append(claimant(row)[0])

    def _record(self, found: Buried, slots: list[tuple[bytes, bytes]], now: int) -> Record:
        details, number = self.details, found.number
        coinbase = bool(found.flags & TxFlag.COINBASE)
        last = keys.number(slots[-1][0][36:]) + 1 if slots else 0
        total = max(last, details.outputs[number]) if details else last
        return Record(
            outputs=total,
            recorded=len(slots),
            spent=sum(len(row) > HASH and row[HASH:] != FROZEN for _, row in slots),
            total=total,
            partial=True,
            is_coinbase=coinbase,
            created_at=now,
            spending_height=self.height + self._buried.maturity if coinbase else None,
            block_ids=[self.block_id],
            block_heights=[self.height],
            subtree_idxs=[details.subtrees[number] if details else None],
            main_ids=[self.block_id],
            fee=details.fees[number] if details else None,
            size=details.sizes[number] if details else None,
        )

    def _claims(self) -> None:
        """Let what is unmined now go on claiming what it spent of the blocks that stay.

        Where the parent has a record, or its block goes too, its own slot says so.
        """
        for place, row in self._spent:
            spender, index = self._spender(row), keys.number(row[9:MARKED])
            if keys.number(place) > self._target or spender is None:
                continue
            parent = self.inputs[row[1:9]][index][0]
            if parent not in self._sheaf.records:
                body, at = row[MARKED:], keys.number(place[8:])
                name = output_hash(parent, at, body) if body else bytes(HASH)
                self._sheaf.put_slot(slot_key(parent, 0, at), name + claim(spender, index))
