"""The transactions of the chain as its tables tell of them: what `storage.chain_txs` describes is read here.

One snapshot serves a read or write transaction for as long as that is the last one asked with; whoever writes to the
chain's tables has to say so (`forget`).
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator

import msgspec
import numpy as np

from storage.chain_txs import ChainTx, Details, GoingBack, Paid, Spend, count, in_order, mined_record
from storage.disk import Txn
from storage.errors import Damaged
from storage.history.layout import (
    NO_FEE,
    REPLACED,
    UNDO,
    Block,
    Extra,
    Flags,
    Found,
    Numbers,
    Records,
    TxFound,
    outputs_in,
    words,
)
from storage.history.store import HistoryStore
from storage.history.stored import Stored, read_undo
from storage.rows import TxFlag, pack
from storage.transactions import HIGHEST, OutPoint, Record, TxStore, claim, output_hash

_FLAGS = TxFlag.INVALID | TxFlag.COLLATERAL_RETURN | TxFlag.COINBASE
_NO_NUMBERS = np.empty(0, np.int64)
_read_extra = msgspec.msgpack.Decoder(Extra).decode

Listed = tuple[ChainTx, Details]


class MinedStore:
    """The transaction store's view of the chain."""

    def __init__(self, blocks: HistoryStore, store: TxStore, maturity: int) -> None:
        self.blocks, self.store, self.maturity = blocks, store, maturity
        self._look: _Look | None = None
        self._resolved: dict[bytes, ChainTx | None] = {}

    def _at(self, txn: Txn) -> _Look:
        look = self._look
        if look is None or look.txn is not txn:
            look = self._look = _Look(txn, self.blocks)
        return look

    # --- on the writer's thread ----------------------------------------------------------------------------------

    def forget(self) -> None:
        """Drop what was read: the chain has changed, or may have."""
        self._look, self._resolved = None, {}

    def resolve(self, txn: Txn, txids: Iterable[bytes]) -> None:
        """Look up many transactions at once, with what the writer has in memory, for those that will be asked for."""
        names = sorted(set(txids))
        if not names:
            return
        history, ids, look = self.blocks.history, words(b"".join(names)), self._at(txn)
        first, _ = history.find_txs(txn, ids, history.prefixes(ids))
        self._resolved.update((names[at], None) for at in np.flatnonzero(first < 0).tolist())
        numbers = np.unique(first[first >= 0])
        for records in look.transactions(numbers):
            kept = records["number"] >= look.stored.reachable
            kept |= _any(history.live.has, records["number"], outputs_in(records["counts"]))
            self._resolved.update((found.txid, found) for found, _ in _listed(records[kept]))
        # What has no output that lives is left to `find`, which looks whether one may live again.

    # --- looking -------------------------------------------------------------------------------------------------

    def find(self, txn: Txn, txid: bytes) -> ChainTx | None:
        """Return a transaction, the latest of its id, while it has outputs that live or a rollback may reach it."""
        if txid in self._resolved:
            return self._resolved[txid]
        found = self._at(txn).stored.find_tx(txid)
        return None if found is None else ChainTx(txid, found.number, found.block, found.flags)

    def record(self, txn: Txn, tx: ChainTx) -> Record:
        """Return what decides about spending; the counters are `counted`'s to fill."""
        look = self._at(txn)
        block, found = look.block(tx.ordinal), look.stored.tx_of(tx.number)
        maturity = self.maturity if tx.flags & TxFlag.COINBASE else None
        returns = bool(found.flags & TxFlag.COLLATERAL_RETURN)
        details = Details(found.outputs - returns, found.fee, found.size, found.subtree)
        return mined_record(block.height, block.block_id, details, maturity)

    def counted(self, txn: Txn, tx: ChainTx, retention: int) -> tuple[Record, dict[int, bytes]]:
        """Return the whole record and its slots, with the claims that stand beside it.

        `delete_at` is when a record of its own would go: so long after the last spend in a block.
        """
        record, (slots, last) = self.record(txn, tx), self._slots(txn, tx)
        slots.update((index, row) for index, row in self.store.slots(txn, tx.txid) if index in slots)
        count(record, slots)
        if slots and record.all_spent and last:
            record.delete_at = self._at(txn).block(last).height + retention
        return record, slots

    def slots(self, txn: Txn, tx: ChainTx) -> dict[int, bytes]:
        """Return the slots that the chain tells of; claims beside them are not in it."""
        return self._slots(txn, tx)[0]

    def _slots(self, txn: Txn, tx: ChainTx) -> tuple[dict[int, bytes], int]:
        """Return the slots, and the last block that spent one."""
        look, first, last = self._at(txn), tx.number, 0
        end = first + look.stored.tx_of(first).outputs
        numbers = look.stored.outputs.within(first, end)
        live, bodies, slots = look.stored.live.has(numbers), look.stored.bodies(numbers), dict[int, bytes]()
        spenders = {} if live.all() else look.stored.spenders(first, end)
        for number, lives in zip(numbers.tolist(), live.tolist(), strict=True):
            if not lives and number not in spenders:
                continue
            row = output_hash(tx.txid, number - first, body_of(bodies[number]))
            if not lives:
                by = look.stored.tx_of(spenders[number])
                row, last = row + claim(by.txid, look.input_of(by, number)), max(last, by.block)
            slots[number - first] = row
        return slots, last

    def slot(self, txn: Txn, tx: ChainTx, index: int) -> bytes | None:
        """Return a slot as a record would have it: a claim first, then what the chain tells."""
        told = self.told(txn, tx, index)
        beside = None if told is None else self.store.slot(txn, tx.txid, 0, index)
        return told if beside is None else beside

    def told(self, txn: Txn, tx: ChainTx, index: int) -> bytes | None:
        """Return a slot as the chain tells of it, without a claim beside it."""
        look, number = self._at(txn), tx.number + index
        if index >= look.stored.tx_of(tx.number).outputs:
            return None
        lives = look.stored.live.is_set(number)
        by = None if lives else look.stored.spender(number)
        found = look.stored.body(number) if lives or by is not None else None
        if found is None:
            return None
        name = output_hash(tx.txid, index, body_of(found))
        return name if by is None else name + claim(by.txid, look.input_of(by, number))

    def paid(self, txn: Txn, tx: ChainTx, index: int) -> tuple[bytes, int]:
        """Return address and value of an output that has a slot."""
        found = self._at(txn).stored.body(tx.number + index)
        assert found is not None
        return found.address, found.value

    def inputs(self, txn: Txn, tx: ChainTx) -> list[OutPoint]:
        """Return what it spent, in order of its inputs, for as long as a rollback may reach its block."""
        look = self._at(txn)
        if not look.stored.state.floor < tx.ordinal <= look.stored.state.tip:
            return []
        own = tx.number - look.block(tx.ordinal).first
        undo = look.undo(tx.ordinal)
        spent = undo[(undo["spender"] == own) & (undo["input"] != REPLACED)]
        homes = look.stored.homes(np.unique(spent["number"]))
        fields = zip(spent["input"].tolist(), [homes[number] for number in spent["number"].tolist()], strict=True)
        return in_order([(at, (home.txid, home.output)) for at, home in fields])

    def of_block(self, txn: Txn, ordinal: int) -> list[ChainTx]:
        """Return a block's transactions in order."""
        look = self._at(txn)
        return [found for records in look.of_block(look.block(ordinal)) for found, _ in _listed(records)]

    # --- the way back --------------------------------------------------------------------------------------------

    def going_back(self, txn: Txn, tip: int, target: int) -> Iterator[GoingBack]:
        """Yield the blocks above `target` from the tip down, while all of them are there still."""
        look, spent_by = self._at(txn), dict[int, tuple[int, int]]()
        stays = look.block(target + 1).first
        for ordinal in range(tip, target, -1):
            block, undo = look.block(ordinal), look.undo(ordinal)
            spent = undo[undo["input"] != REPLACED]
            numbers, inputs = spent["number"].tolist(), spent["input"].tolist()
            by = (block.first + spent["spender"].astype(np.int64)).tolist()
            spent_by.update(zip(numbers, zip(by, inputs, strict=True), strict=True))
            homes = look.stored.homes(np.unique(spent["number"]))
            bodies = look.bodies(np.unique(spent["number"][spent["number"] < stays]))
            spends = [
                Spend(spender, at, *homes[number], bodies.get(number, b""))
                for spender, at, number in zip(by, inputs, numbers, strict=True)
            ]
            parts = list(look.of_block(block))
            yield GoingBack(
                min(block.height, HIGHEST),
                block.height if block.block_id is None else block.block_id,
                [each for records in parts for each in _listed(records)],
                _paid(look, block, parts, spent_by),
                spends,
                self._reused(txn, parts),
            )

    def _reused(self, txn: Txn, parts: list[Records]) -> set[bytes]:
        """Return the ids of transactions that earlier ones had too."""
        history, found = self.blocks.history, set[bytes]()
        for records in parts:
            ids = np.ascontiguousarray(records["id"])
            wanted = history.prefixes(ids)
            order = np.argsort(wanted)
            places, entries = history.index["txid"].find(txn, wanted[order])
            places = order[places]
            same = entries["check"] == ids[places, 3].astype(np.uint32)
            same &= entries["number"] < records["number"][places]
            found.update(ids[at].tobytes() for at in np.unique(places[same]).tolist())
        return found


class _Look:
    """One snapshot of the chain's tables, with what was read of its blocks."""

    def __init__(self, txn: Txn, blocks: HistoryStore) -> None:
        self.txn, self._blocks = txn, blocks
        self.stored: Stored = blocks.stored(txn)
        self._undo: dict[int, Records] = {}

    def block(self, ordinal: int) -> Block:
        """Return a block."""
        return self.stored.block(ordinal)

    def undo(self, ordinal: int) -> Records:
        """Return what a block above the floor spent, in order."""
        if ordinal not in self._undo:
            self._undo[ordinal] = read_undo(self.txn, self._blocks.disk.tables[UNDO], ordinal)
        return self._undo[ordinal]

    def input_of(self, by: TxFound, number: int) -> int:
        """Return with which input a transaction spent an output, `REPLACED` when it took the place of its transaction.

        Raises:
            Damaged: the undo log of its block does not say so.
        """
        undo = self.undo(by.block)
        found = undo["input"][undo["number"] == number]
        if len(found) != 1:
            raise Damaged(f"the undo log of block {by.block} has output {number} {len(found)} times")
        return int(found[0])

    def bodies(self, numbers: Numbers) -> dict[int, bytes]:
        """Return the outputs of ascending numbers as their hashes have them.

        Raises:
            Damaged: one is not there.
        """
        found = {number: body_of(output) for number, output in self.stored.bodies(numbers).items()}
        if len(found) < len(numbers):
            raise Damaged(f"output {next(at for at in numbers.tolist() if at not in found)} is not there")
        return found

    def transactions(self, numbers: Numbers) -> Iterator[Records]:
        """Yield the records of transactions, by the ascending numbers of their first outputs."""
        for _, records, _ in self.stored.txs.many(numbers):
            yield records

    def of_block(self, block: Block) -> Iterator[Records]:
        """Yield the records of a block's transactions in order."""
        return self.transactions(self.stored.txs.within(block.first, block.first + block.numbers))


def body_of(found: Found) -> bytes:
    """Return an output as its hash has it: a plain one is its address and value."""
    if not found.extra:
        return pack((found.address, found.value))
    return pack(_read_extra(found.extra).body(found.address, found.value))


def _any(has: Callable[[Numbers], Flags], first: Numbers, counts: Numbers) -> Flags:
    """Return of which ranges of numbers at least one is set."""
    some, found = np.flatnonzero(counts > 0), np.zeros(len(first), np.bool_)
    if len(some):
        starts = np.cumsum(counts[some]) - counts[some]
        numbers = np.arange(int(counts[some].sum())) + np.repeat(first[some] - starts, counts[some])
        found[some] = np.logical_or.reduceat(has(numbers), starts)
    return found


def _listed(records: Records) -> list[Listed]:
    """Return transactions with what their block said of them."""
    ids, counts = records["id"].tobytes(), records["counts"]
    flags = (counts & np.uint32(_FLAGS)).tolist()
    columns = [records[name].tolist() for name in ("block", "fee", "size", "subtree")]
    fields = zip(records["number"].tolist(), flags, outputs_in(counts).tolist(), *columns, strict=True)
    return [
        (
            ChainTx(ids[n * 32 : n * 32 + 32], number, block, flag),
            Details(
                outputs - bool(flag & TxFlag.COLLATERAL_RETURN),
                None if fee == NO_FEE else fee,
                None if size < 0 else size,
                None if subtree < 0 else subtree,
            ),
        )
        for n, (number, flag, outputs, block, fee, size, subtree) in enumerate(fields)
    ]


def _paid(
    look: _Look, block: Block, parts: list[Records], spent_by: dict[int, tuple[int, int]]
) -> dict[int, list[Paid]]:
    """Return a block's outputs by the numbers of their transactions; `spent_by` has who spent them, by theirs."""
    numbers = look.stored.outputs.within(block.first, block.first + block.numbers)
    firsts = np.concatenate([_NO_NUMBERS, *(records["number"] for records in parts)])
    home = firsts[np.searchsorted(firsts, numbers, "right") - 1]
    bodies, paid = look.bodies(numbers), dict[int, list[Paid]]()
    for number, index, tx in zip(numbers.tolist(), (numbers - home).tolist(), home.tolist(), strict=True):
        paid.setdefault(tx, []).append(Paid(index, bodies[number], *spent_by.get(number, (None, 0))))
    return paid
