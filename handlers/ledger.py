"""What a block does to the set. Pure: a block and the outputs that it names go in, a `ChangeSet` comes out.

Order counts inside a block: an output may be created and spent in the same block and is then never live. A valid
transaction spends its inputs and creates its outputs; a phase-2-invalid one spends its collateral and creates only its
collateral return, at index `len(outputs)`. References are never spent. An input that is not live is missing: counted,
never a failure.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from msgspec import Struct

from handlers.events import BlockApplied, GenesisOutput, OutPoint, Output, Point, Tx
from storage import keys
from storage.change import ChangeSet
from storage.rows import MARK, SPENT, BlockFlag, BlockRow, Body, TxFlag, Undo, pack

REPLACED = keys.LAST_U32  # the input index of an output that a transaction with the same id replaced


class Connected(Struct, frozen=True):
    """What a block does, and what is told of it."""

    change: ChangeSet
    created: int
    spent: int
    missing: list[OutPoint]


class Known(Struct, frozen=True):
    """The outputs that a block may name: what waits in the batch first, then what is stored.

    `homes` are positions by transaction id, `rows` are rows by locator. A None row in the batch is gone.
    """

    batch_homes: Mapping[bytes, bytes | None] = {}
    batch_rows: Mapping[bytes, bytes | None] = {}
    homes: Mapping[bytes, bytes] = {}
    rows: Mapping[bytes, bytes] = {}


def consumed(tx: Tx) -> list[OutPoint]:
    """Return what a transaction spends, as listed: the same outpoint may stand there twice and is spent once."""
    return tx.inputs if tx.valid else tx.collateral


def named(block: BlockApplied) -> set[bytes]:
    """Return the ids of all transactions whose homes `connect` wants to know: those spent from, and the block's own."""
    txids = {txid for tx in block.txs for txid, _ in (tx.inputs if tx.valid else tx.collateral)}
    txids.update(tx.txid for tx in block.txs)
    return txids


def connect(block: BlockApplied, ordinal: int, known: Known, *, embed_bodies: bool) -> Connected:
    """Return what `block`, as the `ordinal`-th, does to the set, given every output that it may name."""
    run = _Run(ordinal, known, embed_bodies)
    for number, tx in enumerate(block.txs):
        run.take(number, tx)
    return run.close(block)


class _Run:
    """One block on its way through the rule, transaction by transaction."""

    def __init__(self, ordinal: int, known: Known, embed_bodies: bool) -> None:
        self.own = keys.u32(ordinal)
        self.known = known
        self.change = ChangeSet()
        self.spent: list[bytes] = []
        self.bodies: list[bytes] | None = [] if embed_bodies else None
        self.created: list[int] = []
        self.flags = bytearray()
        self.missing: list[OutPoint] = []
        self.replaced: list[tuple[bytes, bytes]] = []

    def take(self, number: int, tx: Tx) -> None:
        position = self.own + keys.u32(number)
        flags = 0 if tx.valid else TxFlag.INVALID
        if tx.coinbase:
            flags |= TxFlag.COINBASE
        self._spend(position, tx.inputs if tx.valid else tx.collateral)
        txid, homes = tx.txid, self.change.txids.after
        if txid in homes or txid in self.known.homes or txid in self.known.batch_homes:
            self._replace(position, txid)
        homes[txid] = position
        if tx.valid:
            self.created.append(self._create(position, tx.outputs))
        elif tx.collateral_return is not None:
            flags |= TxFlag.COLLATERAL_RETURN
            place = position + keys.u32(len(tx.outputs))
            self.change.outputs.after[place] = body(tx.collateral_return, collateral_return=True)
            self.created.append(1)
        else:
            self.created.append(0)
        self.flags.append(flags)
        self.change.txs.after[position] = txid + bytes((flags,))

    def _create(self, position: bytes, outputs: Iterable[Output]) -> int:
        rows, before, u32 = self.change.outputs.after, len(self.change.outputs.after), keys.u32
        for index, output in enumerate(outputs):
            if output.spendable:
                rows[position + u32(index)] = body(output)
        return len(rows) - before

    def _spend(self, position: bytes, outpoints: list[OutPoint]) -> None:
        known, homes = self.known, self.change.txids.after
        for number, outpoint in enumerate(outpoints):
            txid, index = outpoint
            home = homes.get(txid) or known.batch_homes.get(txid) or known.homes.get(txid)
            if home is None or not self._take_out(home + keys.u32(index), position, number):
                self.missing.append(outpoint)

    def _take_out(self, place: bytes, position: bytes, number: int) -> bool:
        """Mark an output as spent; return whether it was live, or is this transaction's already."""
        outputs = self.change.outputs
        row = outputs.after.get(place)
        if row is None:
            batch = self.known.batch_rows
            row = batch[place] if place in batch else self.known.rows.get(place)
            if row is None:
                return False
            if row[0] != SPENT:
                outputs.before[place] = row
        if row[0] == SPENT:
            return row[1:9] == position
        outputs.after[place] = MARK + position + keys.u32(number) + row
        self.spent.append(place)
        if self.bodies is not None:
            self.bodies.append(row)
        return True

    def _replace(self, position: bytes, txid: bytes) -> None:
        """Take the earlier outputs of a repeated transaction id out of the set; undo brings them back."""
        own, known = self.change.txids.after, self.known
        home = own.get(txid) or known.batch_homes.get(txid) or known.homes.get(txid)
        if home is None:
            return
        for rows in (self.change.outputs.after, known.batch_rows, known.rows):
            for place in [place for place in rows if place.startswith(home)]:
                row = self._row(place)
                if row is not None and row[0] != SPENT:
                    self._take_out(place, position, REPLACED)
        if txid not in own:
            self.change.txids.before[txid] = home
        if home[:4] != self.own:
            self.replaced.append((txid, home))

    def _row(self, place: bytes) -> bytes | None:
        own, batch = self.change.outputs.after, self.known.batch_rows
        if place in own:
            return own[place]
        return batch[place] if place in batch else self.known.rows.get(place)

    def close(self, block: BlockApplied) -> Connected:
        point, change = block.point, self.change
        change.blocks.after[self.own] = pack(BlockRow(point.height, point.slot, point.hash, block.time, block.epoch))
        change.hashes.after[point.hash] = self.own
        undo = Undo(
            hash=point.hash,
            created=self.created,
            spent=b"".join(self.spent),
            flags=BlockFlag.HAS_INVALID if any(flag & TxFlag.INVALID for flag in self.flags) else 0,
            tx_flags=bytes(self.flags) if any(self.flags) else b"",
            replaced=self.replaced,
            bodies=self.bodies,
        )
        change.undos.after[self.own] = pack(undo)
        return Connected(change, sum(self.created), len(self.spent), self.missing)


def body(output: Output, *, collateral_return: bool = False) -> bytes:
    """Return an output as it is stored: a plain one is its address and value."""
    if (
        output.datum_hash is None
        and output.inline_datum is None
        and output.script_ref is None
        and output.script_ref_hash is None
        and not output.assets
        and not collateral_return
    ):
        return pack((output.address, output.value))
    return pack(
        Body(
            output.address,
            output.value,
            output.assets,
            output.datum_hash,
            output.inline_datum,
            output.script_ref,
            output.script_ref_hash,
            collateral_return,
        )
    )


def seed(outputs: Iterable[GenesisOutput]) -> ChangeSet:
    """Return what exists before the first block, as block 0 that no rollback reaches: it has no undo record.

    Raises:
        ValueError: an outpoint is listed twice; it names the place.
    """
    change, own = ChangeSet(), keys.u32(keys.GENESIS)
    homes, rows = change.txids.after, change.outputs.after
    for n, genesis in enumerate(outputs):
        home = homes.setdefault(genesis.txid, own + keys.u32(len(homes)))
        assert home is not None
        place = home + keys.u32(genesis.index)
        if place in rows:
            raise ValueError(f"$.outputs[{n}]: {genesis.txid.hex()}#{genesis.index} is listed twice")
        rows[place] = body(genesis.output)
        change.txs.after[home] = genesis.txid + bytes(1)
    change.blocks.after[own] = pack(BlockRow(0, 0, bytes(32)))
    return change


def follows(block: BlockApplied, tip: Point) -> bool:
    """Return whether a block continues the chain at `tip`; without a previous hash its height decides."""
    return block.height == tip.height + 1 if block.prev_hash is None else block.prev_hash == tip.hash


def elide(change: ChangeSet) -> ChangeSet:
    """Return what is left of a batch that no reorganisation can reach: live outputs, and the last block.

    Outputs born and spent in it leave no row, older ones that it spent are removed, and there is no way back.
    """
    kept, outputs = ChangeSet(), change.outputs
    for place, row in outputs.after.items():
        if row is not None and row[0] != SPENT:
            kept.outputs.after[place] = row
        elif place in outputs.before:
            kept.outputs.before[place] = outputs.before[place]
            kept.outputs.after[place] = None
    homes = {place[:8] for place, row in kept.outputs.after.items() if row is not None}
    kept.txs.after = {place: row for place, row in change.txs.after.items() if place in homes}
    kept.txids.after = {txid: home for txid, home in change.txids.after.items() if home in homes}
    tip = max(change.blocks.after)
    alive = {home[:4] for home in homes} | {tip}
    kept.blocks.after = {own: row for own, row in change.blocks.after.items() if own in alive}
    kept.hashes.after = {name: own for name, own in change.hashes.after.items() if own == tip}
    return kept
