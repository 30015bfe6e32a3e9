"""The transactions of the chain as the classic rows tell of them: `storage.chain_txs` over `storage.utxo`."""

from __future__ import annotations

from collections.abc import Iterator

from storage import keys
from storage.chain_txs import (
    NOBODY,
    REPLACED,
    Buried,
    Details,
    GoingBack,
    Paid,
    Spend,
    count,
    in_order,
    mined_record,
)
from storage.disk import Txn
from storage.errors import Damaged
from storage.rows import MARKED, SPENT, BlockDetails, Body, TxFlag, body_of, spender_of, unpack
from storage.transactions import HASH, HIGHEST, OutPoint, Record, TxStore, claim, output_hash
from storage.utxo import UtxoStore


class BuriedStore:
    """The transaction store's view of the UTXO store."""

    def __init__(self, utxo: UtxoStore, store: TxStore, maturity: int) -> None:
        self.blocks, self.store, self.maturity = utxo, store, maturity

    def find(self, txn: Txn, txid: bytes) -> Buried | None:
        """Return a transaction of the chain, while the UTXO store has it.

        Raises:
            Damaged: its row is not there.
        """
        position = txn.get(txid, db=self.blocks.txid)
        if position is None:
            return None
        raw = txn.get(position, db=self.blocks.tx)
        if raw is None:
            raise Damaged(f"transaction {keys.show(position)} has no row")
        return _buried(position, raw)

    def record(self, txn: Txn, buried: Buried) -> Record:
        """Return what decides about spending; the counters are `counted`'s to fill."""
        whole = self._block_details(txn, buried.ordinal)
        details = _details(whole, buried)
        return mined_record(
            self.blocks.block_at(txn, buried.ordinal).height,
            None if whole is None else whole.block_id,
            details,
            self.maturity if buried.flags & TxFlag.COINBASE else None,
        )

    def _block_details(self, txn: Txn, ordinal: int) -> BlockDetails | None:
        """Return what was kept of a block's transactions."""
        raw = txn.get(keys.u32(ordinal), db=self.blocks.details)
        return None if raw is None else unpack(BlockDetails, raw, f"the details of block {ordinal}")

    def counted(self, txn: Txn, buried: Buried, retention: int) -> tuple[Record, dict[int, bytes]]:
        """Return the whole record and its slots, with the claims that stand beside it.

        `delete_at` is when a record of its own would go: so long after the last spend in a block.
        """
        record, slots, last = self.record(txn, buried), dict[int, bytes](), 0
        for place, row in self.blocks.scan(txn, self.blocks.output, buried.key):
            index = keys.number(place[8:])
            slots[index] = self._slot(txn, buried.txid, index, row)
            if row[0] == SPENT:
                last = max(last, keys.number(row[1:5]))
        slots.update((index, row) for index, row in self.store.slots(txn, buried.txid) if index in slots)
        count(record, slots)
        if slots and record.all_spent and last:
            record.delete_at = self.blocks.block_at(txn, last).height + retention
        return record, slots

    def slots(self, txn: Txn, buried: Buried) -> dict[int, bytes]:
        """Return the slots that the UTXO store's rows tell of; claims beside them are not in it."""
        rows = self.blocks.scan(txn, self.blocks.output, buried.key)
        told = ((keys.number(place[8:]), row) for place, row in rows)
        return {index: self._slot(txn, buried.txid, index, row) for index, row in told}

    def slot(self, txn: Txn, buried: Buried, index: int) -> bytes | None:
        """Return a slot as a record would have it: a claim first, then the UTXO store's row."""
        told = self.told(txn, buried, index)
        beside = None if told is None else self.store.slot(txn, buried.txid, 0, index)
        return told if beside is None else beside

    def told(self, txn: Txn, buried: Buried, index: int) -> bytes | None:
        """Return a slot as the UTXO store's row tells of it, without a claim beside it."""
        row = self.blocks.row(txn, buried.key + keys.u32(index))
        return None if row is None else self._slot(txn, buried.txid, index, row)

    def _slot(self, txn: Txn, txid: bytes, index: int, row: bytes) -> bytes:
        spender, body = spender_of(row), row[MARKED:] if row[0] == SPENT else row
        name = output_hash(txid, index, body) if body else NOBODY
        if spender is None:
            return name
        by = txn.get(spender[:8], db=self.blocks.tx)
        return name + claim(NOBODY if by is None else by[:HASH], keys.number(spender[8:]))

    def paid(self, txn: Txn, buried: Buried, index: int) -> tuple[bytes, int]:
        """Return address and value of an output that has a row."""
        row = self.blocks.row(txn, buried.key + keys.u32(index))
        assert row is not None
        output = unpack(Body, body_of(row), f"output {index} of {buried.txid.hex()}")
        return output.address, output.value

    def inputs(self, txn: Txn, buried: Buried) -> list[OutPoint]:
        """Return what it spent, in order of its inputs, for as long as the undo record of its block is kept."""
        spends = self._spends(txn, buried.ordinal, buried.ordinal)
        return in_order([(each.input, (each.parent, each.output)) for each in spends if each.by == buried.key])

    def of_block(self, txn: Txn, ordinal: int) -> Iterator[Buried]:
        """Yield a block's transactions in order."""
        for position, raw in self.blocks.scan(txn, self.blocks.tx, keys.u32(ordinal)):
            yield _buried(position, raw)

    # --- the way back --------------------------------------------------------------------------------------------

    def going_back(self, txn: Txn, tip: int, target: int) -> Iterator[GoingBack]:
        """Yield the blocks above `target` from the tip down, while all of them are there still."""
        for ordinal in range(tip, target, -1):
            block, whole = self.blocks.block_at(txn, ordinal), self._block_details(txn, ordinal)
            transactions = list(self.of_block(txn, ordinal))
            undo = self.blocks.undo_at(txn, ordinal)
            paid: dict[bytes, list[Paid]] = {}
            for place, row in self.blocks.scan(txn, self.blocks.output, keys.u32(ordinal)):
                paid.setdefault(place[:8], []).append(_paid(keys.number(place[8:]), row))
            yield GoingBack(
                min(block.height, HIGHEST),
                block.height if whole is None or whole.block_id is None else whole.block_id,
                [(found, _details(whole, found)) for found in transactions],
                paid,
                self._spends(txn, ordinal, target),
                set() if undo is None else {txid for txid, _ in undo.replaced},
            )

    def _spends(self, txn: Txn, ordinal: int, target: int) -> list[Spend]:
        """Return what a block spent, as far as its undo record tells.

        Raises:
            Damaged: the transaction of a spent output has no row.
        """
        undo, own = self.blocks.undo_at(txn, ordinal), keys.u32(ordinal)
        if undo is None:
            return []
        rows = self.blocks.rows(txn, [undo.spent[at : at + 12] for at in range(0, len(undo.spent), 12)])
        spent = [item for item in rows.items() if item[1][0] == SPENT and item[1][1:5] == own]
        homes = sorted({place[:8] for place, _ in spent})
        parents = {home: raw[:HASH] for home, raw in txn.cursor(self.blocks.tx).getmulti(homes)}
        found = list[Spend]()
        for place, row in spent:
            if (at := keys.number(row[9:MARKED])) != REPLACED:  # else a transaction of the same id took its place
                if (parent := parents.get(place[:8])) is None:
                    raise Damaged(f"transaction {keys.show(place[:8])} has no row")
                home, index = keys.number(place), keys.number(place[8:])
                body = row[MARKED:] if home <= target else b""
                found.append(Spend(row[1:9], at, parent, index, home, body))
        return found

    # --- checking ------------------------------------------------------------------------------------------------

    def findings(self, txn: Txn) -> Iterator[str]:
        """Check that the details of a block are of a block that is there, and tell of each of its transactions."""
        last = txn.cursor(self.blocks.tx)
        for own, raw in self.blocks.scan(txn, self.blocks.details):
            ordinal = keys.number(own)
            details = unpack(BlockDetails, raw, f"the details of block {ordinal}")
            number = len(details.outputs)
            if txn.get(own, db=self.blocks.block) is None:
                yield f"there are details of block {ordinal}, which has no row"
            if not number == len(details.fees) == len(details.sizes) == len(details.subtrees):
                yield f"the details of block {ordinal} contradict themselves"
            if last.set_range(own + keys.u32(number)) and last.key().startswith(own):
                yield f"the details of block {ordinal} tell of {number} transactions, there are more"


def _buried(position: bytes, raw: bytes) -> Buried:
    return Buried(raw[:HASH], position, keys.number(position), raw[HASH])


def _details(whole: BlockDetails | None, buried: Buried) -> Details:
    if whole is None:
        return Details()
    number = keys.number(buried.key[4:])
    return Details(whole.outputs[number], whole.fees[number], whole.sizes[number], whole.subtrees[number])


def _paid(index: int, row: bytes) -> Paid:
    spender = spender_of(row)
    body = row[MARKED:] if row[0] == SPENT else row
    if spender is None or (at := keys.number(spender[8:])) == REPLACED:
        return Paid(index, body)
    return Paid(index, body, spender[:8], at)
