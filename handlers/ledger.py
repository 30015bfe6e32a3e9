"""What a block does to the set. Pure: a block and the outputs that it names go in, a `ChangeSet` comes out.

Order counts inside a block: an output may be created and spent in the same block and is then never live. A valid
transaction spends its inputs and creates its outputs; a phase-2-invalid one spends its collateral and creates only its
collateral return, at index `len(outputs)`. What nobody can spend takes an index and is never stored. References are
never spent. An input that is not live is missing: counted, never a failure.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from hashlib import blake2b

from msgspec import Struct, msgpack, structs

from handlers.events import BlockApplied, GenesisOutput, OutPoint, Output, Point, Tx
from storage import keys
from storage.change import ChangeSet
from storage.rows import MARK, SPENT, BlockDetails, BlockFlag, BlockRow, Body, TxFlag, Undo, pack, pack_undo, unpack

_REPLACED = keys.u32(keys.LAST_U32)  # the input index of an output that a transaction with the same id replaced
_FLAGS = tuple(bytes((flags,)) for flags in range(8))


class Connected(Struct, frozen=True):
    """What is told of a block that was applied."""

    created: int
    spent: int
    missing: list[OutPoint]
    reused: list[bytes]  # ids that an earlier transaction of the batch has


def named(block: BlockApplied) -> set[bytes]:
    """Return the ids of the transactions that a block spends from, outside itself."""
    txids = {txid for tx in block.txs for txid, _ in (tx.inputs if tx.valid else tx.collateral)}
    return txids.difference([tx.txid for tx in block.txs])


def places(block: BlockApplied, homes: Mapping[bytes, bytes]) -> set[bytes]:
    """Return the locators of the outputs that a block spends, of transactions whose homes are given."""
    return {
        home + keys.u32(index)
        for tx in block.txs
        for txid, index in (tx.inputs if tx.valid else tx.collateral)
        if (home := homes.get(txid)) is not None
    }


def connect(
    block: BlockApplied,
    ordinal: int,
    batch: ChangeSet,
    homes: Mapping[bytes, bytes],
    rows: Mapping[bytes, bytes],
    *,
    embed_bodies: bool,
    details: bool = False,
    leaves: int | None = None,
) -> Connected:
    """Add what `block`, as the `ordinal`-th, does to the set to what the `batch` before it does.

    `homes` and `rows` are what the store has of the transactions and outputs that the block spends from (`named`,
    `places`). Onto an empty batch this is the block's own change, and the changes of several blocks compose to the
    batch. `details` keeps what only the transaction store asks for; `leaves` are those that an MMR has before the
    block. A transaction id that the batch has used already replaces the earlier outputs; one that is stored is found
    when the batch is written (`take_over`).
    """
    run = _Run(ordinal, batch, homes, rows, embed_bodies)
    for number, tx in zip(keys.numbers(len(block.txs)), block.txs, strict=False):
        position = run.own + number
        if tx.valid and not tx.coinbase:
            run.spend(position, tx.inputs)
            run.appear(position, tx.txid, 0, run.create(position, tx.outputs))
        else:
            run.special(position, tx)
    if details:
        batch.details.after[run.own] = pack_details(block)
    return run.close(block, leaves)


def pack_details(block: BlockApplied) -> bytes:
    """Return the row of what the transaction store keeps of a block: the UTXO set's rows have all the rest."""
    txs = block.txs
    return pack(
        BlockDetails(
            block.block_id,
            [len(tx.outputs) for tx in txs],
            [tx.fee for tx in txs],
            [tx.size for tx in txs],
            [tx.subtree_index for tx in txs],
        )
    )


class _Run:
    """One block on its way through the rule. `spend` and `create` are the hot path: no object for each output."""

    def __init__(
        self,
        ordinal: int,
        batch: ChangeSet,
        homes: Mapping[bytes, bytes],
        rows: Mapping[bytes, bytes],
        embed_bodies: bool,
    ) -> None:
        self.own = keys.u32(ordinal)
        self.change = batch
        self.stored_homes, self.stored_rows = homes, rows
        self.rows, self.before = batch.outputs.after, batch.outputs.before
        self.homes, self.txs = batch.txids.after, batch.txs.after
        self.spent: list[bytes] = []
        self.bodies: list[bytes] | None = [] if embed_bodies else None
        self.created: list[int] = []
        self.flags = bytearray()
        self.missing: list[OutPoint] = []
        self.replaced: list[tuple[bytes, bytes]] = []
        self.reused: list[bytes] = []

    def spend(self, position: bytes, outpoints: list[OutPoint]) -> None:
        """Mark what a transaction spends; what is not live is missing, what it lists twice is spent once."""
        rows, homes, stored_homes, small = self.rows, self.homes, self.stored_homes, keys.SMALL
        mark = MARK + position
        for number, outpoint in zip(keys.numbers(len(outpoints)), outpoints, strict=False):
            txid, index = outpoint
            home = homes.get(txid) or stored_homes.get(txid)
            if home is None:
                self.missing.append(outpoint)
                continue
            place = home + (small[index] if index < len(small) else keys.u32(index))
            row = rows.get(place)
            if row is None:
                row = self.stored_rows.get(place)
                if row is None or row[0] == SPENT:
                    self.missing.append(outpoint)
                    continue
                self.before[place] = row
            elif row[0] == SPENT:
                if row[1:9] != position:
                    self.missing.append(outpoint)
                continue
            rows[place] = mark + number + row
            self.spent.append(place)
            if self.bodies is not None:
                self.bodies.append(row)

    def create(self, position: bytes, outputs: list[Output]) -> int:
        """Add what a transaction creates; return how many outputs are kept."""
        rows, before = self.rows, len(self.rows)
        for index, output in zip(keys.numbers(len(outputs)), outputs, strict=False):
            if output.spendable:
                rows[position + index] = body(output)
        return len(rows) - before

    def appear(self, position: bytes, txid: bytes, flags: int, created: int) -> None:
        """Add the transaction itself."""
        if txid in self.homes:
            self._replace(position, txid)
        self.homes[txid] = position
        self.txs[position] = txid + _FLAGS[flags]
        self.flags.append(flags)
        self.created.append(created)

    def special(self, position: bytes, tx: Tx) -> None:
        """Take a coinbase, or a transaction that failed phase 2: its collateral goes, its collateral return comes."""
        flags = TxFlag.COINBASE if tx.coinbase else 0
        if tx.valid:
            self.spend(position, tx.inputs)
            self.appear(position, tx.txid, flags, self.create(position, tx.outputs))
            return
        self.spend(position, tx.collateral)
        flags, created = flags | TxFlag.INVALID, 0
        if tx.collateral_return is not None:
            flags |= TxFlag.COLLATERAL_RETURN  # it had one, stored or not
        if (back := returned(tx)) is not None:
            created = 1
            self.rows[position + keys.u32(len(tx.outputs))] = body(back, collateral_return=True)
        self.appear(position, tx.txid, flags, created)

    def _replace(self, position: bytes, txid: bytes) -> None:
        """Take the outputs of an earlier transaction of the same id, in this batch, out of the set."""
        home = self.homes[txid]
        assert home is not None
        self.reused.append(txid)
        earlier = [(place, row) for place, row in self.rows.items() if place.startswith(home)]
        for place, row in earlier:
            if row is not None and row[0] != SPENT:
                self.rows[place] = MARK + position + _REPLACED + row
                self.spent.append(place)
                if self.bodies is not None:
                    self.bodies.append(row)
        if home[:4] != self.own:
            self.replaced.append((txid, home))

    def close(self, block: BlockApplied, leaves: int | None) -> Connected:
        """Add the block's own rows."""
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
            mmr=leaves,
        )
        change.undos.after[self.own] = pack_undo(undo)
        return Connected(sum(self.created), len(self.spent), self.missing, self.reused)


def coinbases(change: ChangeSet) -> set[bytes]:
    """Return the ids of a batch's coinbases: nothing else can have the id of an earlier transaction in a sound chain.

    Another one would spend the same outputs a second time.
    """
    rows = change.txs.after.values()
    return {row[:32] for row in rows if row is not None and row[32] & TxFlag.COINBASE}


def take_over(change: ChangeSet, txid: bytes, home: bytes, stored: Mapping[bytes, bytes]) -> None:
    """Let a batch's transaction replace a stored one of the same id: what is live of it leaves the set.

    `stored` are the rows of the earlier transaction, at `home`. Undo brings them back.
    """
    position = next(place for place, row in change.txs.after.items() if row is not None and row[:32] == txid)
    outputs, own = change.outputs, position[:4]
    live = {place: row for place, row in stored.items() if place not in outputs.after and row[0] != SPENT}
    for place, row in live.items():
        outputs.before[place] = row
        outputs.after[place] = MARK + position + _REPLACED + row
    change.txids.before[txid] = home
    raw = change.undos.after[own]
    assert raw is not None
    undo = unpack(Undo, raw, "an undo record")
    change.undos.after[own] = pack_undo(
        structs.replace(
            undo,
            spent=undo.spent + b"".join(live),
            replaced=[*undo.replaced, (txid, home)],
            bodies=None if undo.bodies is None else [*undo.bodies, *live.values()],
        )
    )


def returned(tx: Tx) -> Output | None:
    """Return what a transaction that failed phase 2 creates; what nobody can spend is never stored."""
    back = tx.collateral_return
    return back if back is not None and back.spendable else None


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
    change, own, listed = ChangeSet(), keys.u32(keys.GENESIS), set[OutPoint]()
    homes, rows = change.txids.after, change.outputs.after
    for n, genesis in enumerate(outputs):
        if (genesis.txid, genesis.index) in listed:
            raise ValueError(f"$.outputs[{n}]: {genesis.txid.hex()}#{genesis.index} is listed twice")
        listed.add((genesis.txid, genesis.index))
        if not genesis.output.spendable:
            continue
        home = homes.setdefault(genesis.txid, own + keys.u32(len(homes)))
        assert home is not None
        rows[home + keys.u32(genesis.index)] = body(genesis.output)
        change.txs.after[home] = genesis.txid + bytes(1)
    change.blocks.after[own] = pack(BlockRow(0, 0, bytes(32)))
    return change


def genesis_digest(outputs: Iterable[GenesisOutput]) -> bytes:
    """Return what the store remembers of its genesis outputs; fields with default values count too."""
    whole = [{**structs.asdict(genesis), "output": structs.asdict(genesis.output)} for genesis in outputs]
    return blake2b(msgpack.encode(whole), digest_size=32).digest()


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
    kept.txids.before = {txid: home for txid, home in change.txids.before.items() if txid in kept.txids.after}
    tip = max(change.blocks.after)
    alive = {home[:4] for home in homes} | {tip}
    kept.blocks.after = {own: row for own, row in change.blocks.after.items() if own in alive}
    kept.hashes.after = {name: own for name, own in change.hashes.after.items() if own == tip}
    return kept
