"""A block's transactions get records, all at once: the block goes back, and its UTXO rows with it.

Reads in bulk and in key order, a block at a time from the tip down, because a rollback of many blocks waits for this.
"""

from __future__ import annotations

from collections.abc import Iterator
from time import time

from storage import keys
from storage.buried import Buried, BuriedStore, in_order
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
    output_hash,
    slot_key,
)

_BODY = keys.u32(BODY_PAGE)


class Unearthed:
    """The transactions of the block `ordinal`, with the records that they have, or have now.

    `target` is the ordinal that stays; outputs of it and of those below go on being claimed by what is unmined now.
    `names` has the transactions of the blocks above, by position, and learns this block's. `idle` says that there was
    no record at all before this rollback. Nothing is written before `flush`.
    """

    def __init__(
        self, txn: Txn, buried: BuriedStore, ordinal: int, target: int, names: dict[bytes, bytes], *, idle: bool
    ) -> None:
        self._txn, self._buried, self._target, self._names = txn, buried, target, names
        store, block = buried.store, buried.utxo.block_at(txn, ordinal)
        self.height = min(block.height, HIGHEST)
        self.details = store.block_details(txn, ordinal)
        known_as = None if self.details is None else self.details.block_id
        self.block_id = block.height if known_as is None else known_as
        self.transactions = list(buried.of_block(txn, ordinal))
        names.update((found.position, found.txid) for found in self.transactions if not found.flags & TxFlag.INVALID)
        self._spent = self._spends(ordinal)
        self.inputs = self._inputs()
        self.failed = [found for found in self.transactions if found.flags & TxFlag.INVALID]
        self._sheaf = Sheaf(store, txn)
        if not idle:
            parents = {txid for spent in self.inputs.values() for txid, _ in spent}
            self._sheaf.read(parents.union(found.txid for found in self.transactions), ())
        self.known: dict[Buried, Record] = {}
        self._records(ordinal, idle)
        self._claims()

    def flush(self) -> None:
        """Write the records, their slots, and the claims."""
        self._sheaf.flush()

    def _spends(self, ordinal: int) -> list[tuple[bytes, bytes]]:
        """Return the rows of the outputs that the block spent."""
        undo = self._buried.utxo.undo_at(self._txn, ordinal)
        if undo is None:
            return []
        places = [undo.spent[at : at + 12] for at in range(0, len(undo.spent), 12)]
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

    def _records(self, ordinal: int, idle: bool) -> None:
        outputs: dict[bytes, list[tuple[bytes, bytes]]] = {}
        for place, row in self._buried.utxo.scan(self._txn, self._buried.utxo.output, keys.u32(ordinal)):
            outputs.setdefault(place[:8], []).append((place[8:], row))
        now = int(time() * 1000)
        for found in self.transactions:
            record = self._sheaf.records.get(found.txid)
            if record is not None:
                self.known[found] = record
                self._sheaf.change(found.txid)
            elif not found.flags & TxFlag.INVALID:
                slots = list(self._slots(found.txid, outputs.get(found.position, []), idle))
                record = self._record(found, slots, now)
                body = Body(self.inputs.get(found.position, []))
                self._sheaf.add(found.txid, record, [*slots, (found.txid + _BODY, pack(body))])
                self.known[found] = record

    def _slots(self, txid: bytes, outputs: list[tuple[bytes, bytes]], idle: bool) -> Iterator[tuple[bytes, bytes]]:
        front = txid + MASTER
        for index, row in outputs:
            if not idle and (beside := self._txn.get(front + index, db=self._buried.store.tx)) is not None:
                yield front + index, beside
                continue
            spender = spender_of(row)
            body = row if spender is None else row[MARKED:]
            name = output_hash(txid, keys.number(index), body) if body else bytes(HASH)
            if spender is not None and (by := self._names.get(spender[:8])) is not None:  # else it failed, and lets go
                name += claim(by, keys.number(spender[8:]))
            yield front + index, name

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
        failed = {found.position for found in self.failed}
        for place, row in self._spent:
            spender, index = row[1:9], keys.number(row[9:MARKED])
            if keys.number(place) > self._target or spender in failed or index == keys.LAST_U32:
                continue
            parent = self.inputs[spender][index][0]
            if parent not in self._sheaf.records:
                body, at = row[MARKED:], keys.number(place[8:])
                name = output_hash(parent, at, body) if body else bytes(HASH)
                self._sheaf.put_slot(slot_key(parent, 0, at), name + claim(self._names[spender], index))
