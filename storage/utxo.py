"""The UTXO store: outputs keyed by their place in the chain, thin indexes, undo records, and where the tip is.

It knows the tables and keeps them in step; what a block means is decided elsewhere (`handlers.ledger`) and arrives as a
`ChangeSet`. One writer. Every commit leaves a block boundary.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import cast

import msgspec

from storage import indexes, keys
from storage.change import ChangeSet, Diff
from storage.change_log import TABLES as LOG_TABLES
from storage.disk import Db, Disk, Txn
from storage.errors import Damaged, WrongFormat
from storage.mmr_store import Leaves, MmrStore
from storage.rows import MARKED, SPENT, BlockRow, State, Undo, pack, unpack

FORMAT = 1
TABLES = (
    "utxo_block",
    "utxo_block_hash",
    "utxo_tx",
    "utxo_txid",
    "utxo_output",
    "utxo_block_delta",
    "utxo_meta",
    "utxo_addr*",
    "utxo_cred*",
    "utxo_stake*",
    "utxo_policy*",
    "tx_block",
    *LOG_TABLES,
)
_FORMAT, _CHAIN, _INDEXES, _GENESIS, _STATE = b"format", b"chain", b"indexes", b"genesis", b"state"
_KIND, _CLASSIC, _MMR = b"store", "classic", "mmr"  # a classic store says nothing


def written_format(disk: Disk) -> int | None:
    """Return the format of the store on a disk, of whatever layout; None of one that was never run."""
    with disk.read() as txn:
        written = txn.get(_FORMAT, db=disk.tables["utxo_meta"])
    return None if written is None else int.from_bytes(written, "big")


class TxidsTaken(Exception):
    """Transactions of a change have the ids of stored ones, at `homes`."""

    def __init__(self, homes: dict[bytes, bytes]) -> None:
        super().__init__(f"{len(homes)} transaction ids are stored already")
        self.homes = homes


class UtxoStore:
    """The tables of the UTXO set on one disk, and those of its mountain ranges where it is an MMR store.

    Whoever applies blocks to one says with `leaves` what an output's leaf is.
    """

    def __init__(self, disk: Disk, leaves: Leaves | None = None) -> None:
        self.disk = disk
        self.leaves = leaves
        self.block, self.block_hash = disk.tables["utxo_block"], disk.tables["utxo_block_hash"]
        self.tx, self.txid = disk.tables["utxo_tx"], disk.tables["utxo_txid"]
        self.output, self.delta = disk.tables["utxo_output"], disk.tables["utxo_block_delta"]
        self.meta = disk.tables["utxo_meta"]
        self.details = disk.tables["tx_block"]
        self.indexes: tuple[tuple[Db, indexes.Keys], ...] = ()
        self.mmr = MmrStore(disk, self.meta, leaves) if self._written_kind() == _MMR else None

    # --- opening -------------------------------------------------------------------------------------------------

    def open(self, chain: str, wanted: Sequence[str], kind: str = _CLASSIC) -> None:
        """Check that this store is ours, or make it ours when it is new.

        `chain` names family and network; `wanted` are the indexes to keep; `kind` is "classic" or "mmr".

        Raises:
            WrongFormat: another version wrote it, it keeps another chain, is of another kind, or a wanted index is not
                complete.
        """
        with self.disk.read() as txn:
            new = txn.get(_FORMAT, db=self.meta) is None
        if new:
            self.mmr = MmrStore(self.disk, self.meta, self.leaves) if kind == _MMR else None
            self.disk.write(lambda txn: self._create(txn, chain, wanted, kind))
        self.check_format(chain)
        if self.kind != kind:
            raise WrongFormat(
                f'{self.disk.folder}: this is a {self.kind} store, the configuration says utxo.store = "{kind}": '
                f'say "{self.kind}", or apply the chain anew in another data_dir'
            )
        with self.disk.read() as txn:
            kept = self.kept_indexes(txn)
        missing = [name for name in wanted if name not in kept]
        if missing:
            raise WrongFormat(
                f"{self.disk.folder}: index {', '.join(missing)} was off while blocks were applied: "
                "build it with `utxod reindex`, or switch it off"
            )
        dropped = [name for name in kept if name not in wanted]
        if dropped:  # stop keeping it now: half an index would be worse than none
            self.disk.write(lambda txn: self._drop_indexes(txn, dropped, wanted))
        self.use_indexes(wanted)

    def check_format(self, chain: str | None = None) -> None:
        """Refuse a store of another format or chain.

        Raises:
            WrongFormat: it is.
        """
        with self.disk.read() as txn:
            written = txn.get(_FORMAT, db=self.meta)
            kept = txn.get(_CHAIN, b"", db=self.meta).decode(errors="replace")
        if written is None:
            raise WrongFormat(f"{self.disk.folder}: this store says no format; it was never run")
        if (version := int.from_bytes(written, "big")) != FORMAT:
            raise WrongFormat(f"{self.disk.folder}: written in format {version}, this utxod reads format {FORMAT}")
        if chain is not None and chain != kept:
            raise WrongFormat(f"{self.disk.folder}: this store keeps {kept}, the configuration says {chain}")

    @property
    def kind(self) -> str:
        """Return which kind of store this is."""
        return _MMR if self.mmr else _CLASSIC

    def _written_kind(self) -> str:
        with self.disk.read() as txn:
            return txn.get(_KIND, b"", db=self.meta).decode(errors="replace")

    def use_indexes(self, names: Iterable[str]) -> None:
        """Keep these indexes from now on."""
        self.indexes = tuple(
            (self.disk.tables[table], rule) for name, (table, rule) in indexes.TABLES.items() if name in set(names)
        )

    def kept_indexes(self, txn: Txn) -> list[str]:
        """Return the names of the indexes that are complete."""
        return [name for name in txn.get(_INDEXES, b"", db=self.meta).decode(errors="replace").split(",") if name]

    def chain(self, txn: Txn) -> str:
        """Return the family and network that this store keeps."""
        return txn.get(_CHAIN, b"", db=self.meta).decode()

    def _create(self, txn: Txn, chain: str, wanted: Sequence[str], kind: str) -> None:
        if self.mmr:
            txn.put(_KIND, kind.encode(), db=self.meta)
            self.mmr.create(txn)
        txn.put(_FORMAT, FORMAT.to_bytes(4, "big"), db=self.meta)
        txn.put(_CHAIN, chain.encode(), db=self.meta)
        txn.put(_INDEXES, ",".join(wanted).encode(), db=self.meta)
        txn.put(_STATE, pack(State()), db=self.meta)

    def _drop_indexes(self, txn: Txn, dropped: Sequence[str], wanted: Sequence[str]) -> None:
        for name in dropped:
            txn.drop(self.disk.tables[indexes.TABLES[name][0]], delete=False)
        txn.put(_INDEXES, ",".join(wanted).encode(), db=self.meta)

    # --- reading -------------------------------------------------------------------------------------------------

    def state(self, txn: Txn) -> State:
        """Return where the store is."""
        return unpack(State, txn.get(_STATE, b"", db=self.meta), "the state")

    def marks(self, txn: Txn) -> tuple[bytes | None, bytes | None]:
        """Return the bytes of what `state` and `kept_indexes` tell, for who only wants to know whether they changed."""
        return txn.get(_STATE, db=self.meta), txn.get(_INDEXES, db=self.meta)

    def genesis(self, txn: Txn) -> bytes | None:
        """Return the digest of the genesis outputs that were seeded."""
        return txn.get(_GENESIS, db=self.meta)

    def block_at(self, txn: Txn, ordinal: int) -> BlockRow:
        """Return the block of an ordinal that has a row.

        Raises:
            Damaged: it has none.
        """
        raw = txn.get(keys.u32(ordinal), db=self.block)
        if raw is None:
            raise Damaged(f"block {ordinal} has no row")
        return unpack(BlockRow, raw, f"block {ordinal}")

    def next_block(self, txn: Txn, ordinal: int) -> tuple[int, BlockRow] | None:
        """Return the first block at or after an ordinal that has a row, with its own ordinal."""
        cursor = txn.cursor(self.block)
        if not cursor.set_range(keys.u32(ordinal)):
            return None
        found = keys.number(cursor.key())
        return found, unpack(BlockRow, cursor.value(), f"block {found}")

    def ordinal_of(self, txn: Txn, block_hash: bytes) -> int | None:
        """Return the ordinal of a retained block."""
        raw = txn.get(block_hash, db=self.block_hash)
        return None if raw is None else keys.number(raw)

    def homes(self, txn: Txn, txids: Iterable[bytes]) -> dict[bytes, bytes]:
        """Return the positions of those transactions that the store has."""
        return dict(txn.cursor(self.txid).getmulti(sorted(txids)))

    def rows(self, txn: Txn, locators: Iterable[bytes]) -> dict[bytes, bytes]:
        """Return the rows of those outputs that the store has, live or spent."""
        return dict(txn.cursor(self.output).getmulti(sorted(locators)))

    def row(self, txn: Txn, place: bytes) -> bytes | None:
        """Return one output's row."""
        return txn.get(place, db=self.output)

    def txid_at(self, txn: Txn, place: bytes) -> bytes:
        """Return the id of the transaction that a position or locator belongs to.

        Raises:
            Damaged: there is no such transaction.
        """
        raw = txn.get(place[:8], db=self.tx)
        if raw is None:
            raise Damaged(f"transaction {keys.show(place[:8])} has no row")
        return raw[:32]

    def undo_at(self, txn: Txn, ordinal: int) -> Undo | None:
        """Return the undo record of a block, or None once it is pruned."""
        raw = txn.get(keys.u32(ordinal), db=self.delta)
        if raw is None:
            return None
        undo = unpack(Undo, raw, f"the undo record of block {ordinal}")
        if len(undo.spent) % 12 or (undo.bodies is not None and len(undo.bodies) * 12 != len(undo.spent)):
            raise Damaged(f"the undo record of block {ordinal} contradicts itself")
        return undo

    def scan(self, txn: Txn, db: Db, prefix: bytes = b"") -> Iterator[tuple[bytes, bytes]]:
        """Yield the rows of a table whose keys begin with `prefix`, in key order."""
        cursor = txn.cursor(db)
        if not cursor.set_range(prefix):
            return
        for key, value in cursor:
            if not key.startswith(prefix):
                return
            yield key, value

    def under(self, txn: Txn, db: Db, key: bytes) -> list[bytes]:
        """Return the locators that an index has under a key, in chain order."""
        return [place for _, place in txn.cursor(db).getmulti([key], dupdata=True, dupfixed_bytes=12)]

    # --- taking blocks back --------------------------------------------------------------------------------------

    def change_of(self, txn: Txn, ordinal: int, undone: ChangeSet) -> ChangeSet:
        """Return what the retained block `ordinal` did, read from its undo record and its rows.

        `undone` is what was taken back already in this rollback: its rows count, not the stored ones.

        Raises:
            Damaged: something that the way back needs is not there; it names the output and the block.
        """
        undo = self.undo_at(txn, ordinal)
        if undo is None:
            raise Damaged(f"block {ordinal} has no undo record")
        if self.mmr and undo.mmr != self.mmr.before(txn, ordinal):
            raise Damaged(f"block {ordinal} was applied to {undo.mmr} leaves, its transactions say otherwise")
        change, key = ChangeSet(), keys.u32(ordinal)
        change.undos.after[key] = change.blocks.after[key] = b""  # reversed: they go
        change.hashes.after[undo.hash] = key
        if txn.get(key, db=self.details) is not None:
            change.details.after[key] = b""
        for place, raw in self.scan(txn, self.tx, key):
            change.txs.after[place] = raw
            change.txids.after[raw[:32]] = place
        for txid, home in undo.replaced:
            if txn.get(home, db=self.tx) is not None:  # else all of it was spent, and is pruned
                change.txids.before[txid] = home
        stored = self.scan(txn, self.output, key)
        change.outputs.after.update((place, undone.outputs.after.get(place, row)) for place, row in stored)
        self._unspend(txn, ordinal, undo, undone, change.outputs)
        return change

    def _unspend(self, txn: Txn, ordinal: int, undo: Undo, undone: ChangeSet, outputs: Diff) -> None:
        own = keys.u32(ordinal)
        places = [undo.spent[at : at + 12] for at in range(0, len(undo.spent), 12)]
        stored = self.rows(txn, places)
        for n, place in enumerate(places):
            if place[:4] == own:  # born in this block: it goes with the created
                continue
            row = undone.outputs.after.get(place) if place in undone.outputs.after else stored.get(place)
            body = self._spent_body(row, own) if undo.bodies is None else undo.bodies[n]
            if body is None:
                name = f"{self.txid_at(txn, place).hex()}#{keys.number(place[8:])}"
                raise Damaged(f"block {ordinal} spent {name}, but its body is no longer there: it can't be taken back")
            outputs.before[place] = body
            outputs.after[place] = row

    @staticmethod
    def _spent_body(row: bytes | None, by: bytes) -> bytes | None:
        """Return the body of a row that block `by` spent, or None when it says otherwise."""
        if row is None or row[0] != SPENT or row[1:5] != by:
            return None
        return row[MARKED:] or None

    # --- writing -------------------------------------------------------------------------------------------------

    def write(self, txn: Txn, change: ChangeSet, state: State) -> State:
        """Put a change into an open transaction, indexes and counters with it; return the new state.

        Raises:
            TxidsTaken: ids that the change takes for new are stored already; abort, and tell the change.
        """
        _write(txn, self.output, change.outputs)
        _write(txn, self.tx, change.txs)
        _write_txids(txn, self.txid, change.txids)
        _write(txn, self.block, change.blocks)
        _write(txn, self.block_hash, change.hashes)
        _write(txn, self.delta, change.undos)
        _write(txn, self.details, change.details)
        born, gone = _turns(change.outputs)
        for db, rule in self.indexes:
            self._index(txn, db, rule, born, gone)
        if self.mmr:
            self.mmr.write(txn, change, born, gone)
        state = msgspec.structs.replace(state, unspent=state.unspent + len(born) - len(gone))
        self.put_state(txn, state)
        return state

    def put_state(self, txn: Txn, state: State) -> None:
        """Say where the store is."""
        txn.put(_STATE, pack(state), db=self.meta)

    def put_genesis(self, txn: Txn, digest: bytes) -> None:
        """Remember which genesis outputs were seeded."""
        txn.put(_GENESIS, digest, db=self.meta)

    def put_indexes(self, txn: Txn, names: Iterable[str]) -> None:
        """Remember which indexes are complete."""
        txn.put(_INDEXES, ",".join(names).encode(), db=self.meta)

    @staticmethod
    def _index(
        txn: Txn, db: Db, rule: indexes.Keys, born: list[tuple[bytes, bytes]], gone: list[tuple[bytes, bytes]]
    ) -> None:
        added = sorted((key, place) for place, body in born for key in rule(body))
        txn.cursor(db).putmulti(added)
        for key, place in sorted((key, place) for place, body in gone for key in rule(body)):
            if not txn.delete(key, place, db):
                raise Damaged(f"output {keys.show(place)} is not in the index under {key.hex()}")


def _turns(outputs: Diff) -> tuple[list[tuple[bytes, bytes]], list[tuple[bytes, bytes]]]:
    """Return which outputs become live, and which stop being so, with their bodies."""
    before, after = outputs.before, outputs.after
    born = [
        (place, row)
        for place, row in after.items()
        if row is not None and row[0] != SPENT and ((was := before.get(place)) is None or was[0] == SPENT)
    ]
    gone = [
        (place, was)
        for place, was in before.items()
        if was[0] != SPENT and ((row := after[place]) is None or row[0] == SPENT)
    ]
    return born, gone


def _write_txids(txn: Txn, db: Db, diff: Diff) -> None:
    """Put the ids of transactions. New ones go in together, and must not be there."""
    before, after = diff.before, diff.after
    born = sorted([txid for txid, home in after.items() if home is not None and txid not in before])
    rows = cast("Mapping[bytes, bytes]", after)
    cursor = txn.cursor(db)
    count, added = cursor.putmulti(zip(born, map(rows.__getitem__, born), strict=True), overwrite=False)
    if added != count:
        raise TxidsTaken({txid: home for txid, home in cursor.getmulti(born) if home != after[txid]})
    if len(born) < len(after):
        _write(txn, db, Diff(before, {txid: after[txid] for txid in before}))


def _write(txn: Txn, db: Db, diff: Diff) -> None:
    """Put one table's part of a change, in key order; what lies above the table's last key is appended."""
    after = diff.after
    if not after:
        return
    kept = sorted(key for key, row in after.items() if row is not None)
    cursor = txn.cursor(db)
    top = bisect_right(kept, cursor.key()) if cursor.last() else 0
    rows = cast("Mapping[bytes, bytes]", after)  # at these keys
    below, above = kept[:top], kept[top:]
    cursor.putmulti(zip(below, map(rows.__getitem__, below), strict=True))
    if cursor.putmulti(zip(above, map(rows.__getitem__, above), strict=True), append=True)[1] != len(above):
        raise Damaged("rows above the last key of a table were there already")
    if len(kept) == len(after):
        return
    for key in sorted(key for key, row in after.items() if row is None and key in diff.before):
        if not txn.delete(key, db=db):
            raise Damaged(f"row {key.hex()} is not there to be removed")
