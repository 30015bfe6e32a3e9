"""Transactions that nothing happened to but being in a block: the UTXO store's rows tell all of them.

They need no record of their own, so following a chain writes none: position, spenders and flags are there already, and
`tx_block` has what is not. A record is made of it the first time that something happens which these rows can't tell.
"""

from __future__ import annotations

from collections.abc import Iterator

from msgspec import Struct

from storage import keys
from storage.disk import Txn
from storage.errors import Damaged
from storage.rows import MARKED, SPENT, TxFlag, spender_of
from storage.transactions import HIGHEST, OutPoint, Record, TxStore, claim, output_hash
from storage.utxo import UtxoStore

NOTHING: OutPoint = (bytes(32), keys.LAST_U32)  # in place of an input that was missing, or listed twice
_MOST_INPUTS = 1 << 24  # of a transaction: its block would not fit into a message
_NOBODY = bytes(32)  # a spender whose own rows are pruned, or the hash of an output whose body is


class Buried(Struct, frozen=True):
    """A transaction of the chain: where it is."""

    txid: bytes
    position: bytes
    flags: int

    @property
    def ordinal(self) -> int:
        """Return its block's ordinal."""
        return keys.number(self.position)

    @property
    def number(self) -> int:
        """Return its place in the block."""
        return keys.number(self.position[4:])


class BuriedStore:
    """The transaction store's view of the UTXO store."""

    def __init__(self, utxo: UtxoStore, store: TxStore, maturity: int) -> None:
        self.utxo, self.store, self.maturity = utxo, store, maturity

    def find(self, txn: Txn, txid: bytes) -> Buried | None:
        """Return a transaction of the chain, while the UTXO store has it."""
        position = txn.get(txid, db=self.utxo.txid)
        return None if position is None else self.at(txn, position)

    def at(self, txn: Txn, position: bytes) -> Buried:
        """Return the transaction at a position.

        Raises:
            Damaged: there is none.
        """
        raw = txn.get(position, db=self.utxo.tx)
        if raw is None:
            raise Damaged(f"transaction {keys.show(position)} has no row")
        return Buried(raw[:32], position, raw[32])

    def height(self, txn: Txn, buried: Buried) -> int:
        """Return the height of its block."""
        return min(self.utxo.block_at(txn, buried.ordinal).height, HIGHEST)

    def record(self, txn: Txn, buried: Buried) -> Record:
        """Return what decides about spending; the counters are `counted`'s to fill."""
        height = self.height(txn, buried)
        details = self.store.block_details(txn, buried.ordinal)
        number, coinbase = buried.number, bool(buried.flags & TxFlag.COINBASE)
        block_id = height if details is None or details.block_id is None else details.block_id
        return Record(
            outputs=0,
            recorded=0,
            total=details.outputs[number] if details else 0,
            partial=True,
            is_coinbase=coinbase,
            spending_height=height + self.maturity if coinbase else None,
            block_ids=[block_id],
            main_ids=[block_id],
            block_heights=[height],
            subtree_idxs=[details.subtrees[number] if details else None],
            fee=details.fees[number] if details else None,
            size=details.sizes[number] if details else None,
        )

    def counted(self, txn: Txn, buried: Buried, retention: int) -> tuple[Record, dict[int, bytes]]:
        """Return the whole record and its slots, with the claims that stand beside it.

        `delete_at` is when a record of its own would go: so long after the last spend in a block.
        """
        record, slots, last = self.record(txn, buried), dict[int, bytes](), 0
        for place, row in self.utxo.scan(txn, self.utxo.output, buried.position):
            index = keys.number(place[8:])
            slots[index] = self._slot(txn, buried.txid, index, row)
            if row[0] == SPENT:
                last = max(last, keys.number(row[1:5]))
        slots.update((index, row) for index, row in self.store.slots(txn, buried.txid) if index in slots)
        record.recorded = len(slots)
        record.spent = sum(_spent(row) for row in slots.values())
        record.total = record.outputs = max(record.total, max(slots, default=-1) + 1)
        if slots and record.all_spent and last:
            record.delete_at = self.utxo.block_at(txn, last).height + retention
        return record, slots

    def slots(self, txn: Txn, buried: Buried) -> dict[int, bytes]:
        """Return the slots that the UTXO store's rows tell of; claims beside them are not in it."""
        rows = self.utxo.scan(txn, self.utxo.output, buried.position)
        told = ((keys.number(place[8:]), row) for place, row in rows)
        return {index: self._slot(txn, buried.txid, index, row) for index, row in told}

    def slot(self, txn: Txn, buried: Buried, index: int) -> bytes | None:
        """Return a slot as a record would have it: a claim first, then the UTXO store's row."""
        told = self.told(txn, buried, index)
        beside = None if told is None else self.store.slot(txn, buried.txid, 0, index)
        return told if beside is None else beside

    def told(self, txn: Txn, buried: Buried, index: int) -> bytes | None:
        """Return a slot as the UTXO store's row tells of it, without a claim beside it."""
        row = self.utxo.row(txn, buried.position + keys.u32(index))
        return None if row is None else self._slot(txn, buried.txid, index, row)

    def _slot(self, txn: Txn, txid: bytes, index: int, row: bytes) -> bytes:
        spender, body = spender_of(row), row[MARKED:] if row[0] == SPENT else row
        name = output_hash(txid, index, body) if body else _NOBODY
        if spender is None:
            return name
        by = txn.get(spender[:8], db=self.utxo.tx)
        return name + claim(_NOBODY if by is None else by[:32], keys.number(spender[8:]))

    def inputs(self, txn: Txn, buried: Buried) -> list[OutPoint]:
        """Return what it spent, in order of its inputs, for as long as the undo record of its block is kept."""
        return self.inputs_of_block(txn, buried.ordinal).get(buried.position, [])

    def inputs_of_block(self, txn: Txn, ordinal: int) -> dict[bytes, list[OutPoint]]:
        """Return what each transaction of a block spent, by its position; an input that spent nothing is `NOTHING`."""
        undo = self.utxo.undo_at(txn, ordinal)
        if undo is None:
            return {}
        places = [undo.spent[at : at + 12] for at in range(0, len(undo.spent), 12)]
        found: dict[bytes, list[tuple[int, OutPoint]]] = {}
        for place, row in self.utxo.rows(txn, places).items():
            spender = spender_of(row)
            if spender is None or keys.number(spender) != ordinal or keys.number(spender[8:]) == _REPLACED:
                continue
            outpoint = (self.utxo.txid_at(txn, place), keys.number(place[8:]))
            found.setdefault(spender[:8], []).append((keys.number(spender[8:]), outpoint))
        return {position: in_order(spent) for position, spent in found.items()}

    def of_block(self, txn: Txn, ordinal: int) -> Iterator[Buried]:
        """Yield a block's transactions in order."""
        for position, raw in self.utxo.scan(txn, self.utxo.tx, keys.u32(ordinal)):
            yield Buried(raw[:32], position, raw[32])


def in_order(spent: list[tuple[int, OutPoint]]) -> list[OutPoint]:
    """Return outpoints at the places of their inputs.

    Raises:
        Damaged: no transaction has so many inputs.
    """
    last = max(spent)[0]
    if last >= _MOST_INPUTS:
        raise Damaged(f"output {spent[0][1][0].hex()}#{spent[0][1][1]} or another was spent by input {last}")
    inputs = [NOTHING] * (last + 1)
    for at, outpoint in spent:
        inputs[at] = outpoint
    return inputs


_REPLACED = keys.LAST_U32  # a later transaction of the same id took the output's place; nobody spent it


def _spent(row: bytes) -> bool:
    return len(row) > 32 and row[32:] != b"\xff" * 36
