"""The store: checks when it is opened, its blocks, and its state."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

import numpy as np
from msgspec.structs import replace

from storage import keys
from storage.disk import FORMAT_KEY, META, Disk, Txn
from storage.errors import WrongFormat
from storage.history import touches
from storage.history.history import History
from storage.history.kept import Kept
from storage.history.layout import (
    BLOCK,
    FORMAT,
    INDEXES,
    STATE,
    UNDO,
    Block,
    State,
    delete_from,
    meta_row,
    new_state,
    put_meta_row,
    read_indexes,
    stored_state,
)
from storage.history.mmr import TABLES as MMR_TABLES
from storage.history.mmr import Leaves, MountainRanges, StoredMmr
from storage.history.output_keys import RULES
from storage.history.shard import CHAIN, chain_of, read_chain
from storage.history.stored import Stored, read_block
from storage.rows import seal_row

_GENESIS = b"genesis"
_KIND, _MMR = b"store", b"mmr"  # a store of the kind "classic" has no such row


class HistoryStore:
    """The tables of the chain on one disk, and those of its Merkle mountain ranges where it has them.

    `history` is there once the store is open for writing. To apply blocks to a store with Merkle mountain ranges,
    `leaves` is needed: it makes the leaves of outputs.
    """

    def __init__(self, disk: Disk, leaves: Leaves | None = None) -> None:
        self.disk, self.leaves = disk, leaves
        self.meta, self.block = disk.tables[META], disk.tables[BLOCK]
        self.mmr = self._mmr() if self._written_kind() == _MMR else None
        self.shard = self._written_shard()
        self.history = self.history_of(())

    def _mmr(self) -> StoredMmr:
        self.disk.open_tables(MMR_TABLES)
        return StoredMmr(self.disk.tables)

    def _written_kind(self) -> bytes:
        with self.disk.read() as txn:
            return meta_row(txn, self.meta, _KIND) or b""

    def _written_shard(self) -> str | None:
        with self.disk.read() as txn:
            return read_chain(txn, self.meta)[1]

    def history_of(self, indexes: Sequence[str]) -> History:
        """Return what writes the tables with these indexes, in their own order; it is not loaded yet."""
        ranges = MountainRanges(self.disk.tables, self.leaves) if self.mmr else None
        kinds = [name for name in (*RULES, touches.KIND) if name in indexes]
        return History(self.disk.tables, kinds, ranges, sharded=self.shard is not None)

    # --- opening -------------------------------------------------------------------------------------------------

    @property
    def kind(self) -> str:
        """Return "mmr" or "classic"."""
        return "classic" if self.mmr is None else "mmr"

    def open(self, chain: str, wanted: Sequence[str], kind: str) -> None:
        """Check that this store has this chain and kind, or create it; a writer loads `history` then.

        `chain` is the name that `chain_of` returns; `wanted` are the indexes to keep; `kind` is "classic" or "mmr".

        Raises:
            WrongFormat: it keeps another chain or shard, is of another kind, or a wanted index is not complete.
        """
        with self.disk.read() as txn:
            new = txn.get(FORMAT_KEY, db=self.meta) is None
        if new:
            self.mmr = self._mmr() if kind == "mmr" else None
            self.disk.write(lambda txn: self._create(txn, chain, wanted))
            self.shard = self._written_shard()
        self.check_chain(chain)
        if kind != self.kind:
            raise WrongFormat(
                f'{self.disk.folder}: this is a {self.kind} store, the configuration says utxo.store = "{kind}": '
                f'set it to "{self.kind}", or feed the chain again into another data_dir'
            )
        with self.disk.read() as txn:
            kept, begun = self.kept_indexes(txn), touches.first_block(txn, self.meta) is not None
            bare = self.state(txn).next_number == 0
        there = [*kept, touches.KIND] if begun and touches.KIND not in kept else kept  # a `reindex` did not end
        missing = [name for name in wanted if name not in kept]
        if missing and bare:  # there is nothing that they could miss
            there = [*there, *missing]
            self.disk.write(lambda txn: self._begin_indexes(txn, there))
        elif missing:
            raise WrongFormat(
                f"{self.disk.folder}: index {', '.join(missing)} was off while blocks were applied: "
                "build it with `utxod reindex`, or switch it off"
            )
        self.history = self.history_of(there)
        dropped = [name for name in there if name not in wanted]
        if dropped:  # stop keeping it now: half an index would be worse than none
            self.disk.write(lambda txn: self._drop_indexes(txn, dropped, wanted))
            self.history = self.history_of(wanted)

    def check_chain(self, chain: str) -> None:
        """Refuse a store of another chain or shard, and one that was never run.

        Raises:
            WrongFormat: it is.
        """
        with self.disk.read() as txn:
            written = txn.get(FORMAT_KEY, db=self.meta)
            kept = chain_of(*read_chain(txn, self.meta))
        if written is None:
            raise WrongFormat(f"{self.disk.folder}: this store has no format; no daemon ever opened it")
        if chain != kept:
            raise WrongFormat(f"{self.disk.folder}: this store is for {kept}, but the configuration is for {chain}")

    def _create(self, txn: Txn, chain: str, wanted: Sequence[str]) -> None:
        txn.put(FORMAT_KEY, FORMAT.to_bytes(4, "big"), db=self.meta)
        put_meta_row(txn, self.meta, CHAIN, chain.encode())
        if self.mmr:
            put_meta_row(txn, self.meta, _KIND, _MMR)
        self._begin_indexes(txn, wanted)
        txn.put(STATE, seal_row(new_state()), db=self.meta)

    def _begin_indexes(self, txn: Txn, wanted: Sequence[str]) -> None:
        """Keep indexes from the first output on."""
        self.put_indexes(txn, wanted)
        if touches.KIND in wanted:
            touches.put_first_block(txn, self.meta, 0)

    def _drop_indexes(self, txn: Txn, dropped: Sequence[str], wanted: Sequence[str]) -> None:
        self.history.load(txn)
        for name in dropped:
            index = self.history.index[name]
            index.drop()
            while index.collect(txn, 1000):
                pass
            index.save(txn)
        if touches.KIND in dropped:  # no index needs the undo logs below the floor any more
            txn.delete(touches.FROM, db=self.meta)
            floor = self.history.state.floor
            delete_from(txn, self.disk.tables[UNDO], bytes(8), lambda key: int.from_bytes(key[:4], "big") <= floor)
        self.put_indexes(txn, wanted)

    def prepare(self) -> None:
        """Read what only writing needs. It grows with the store, so clients are served before it is read.

        Raises:
            Damaged: it can't be read.
        """
        with self.disk.read() as txn:
            self.history.complete(txn)

    # --- reading -------------------------------------------------------------------------------------------------

    def stored(self, txn: Txn, kept: Kept | None = None) -> Stored:
        """Return the tables at one commit; `kept` is the cache of a process that reads repeatedly."""
        return Stored(txn, self.disk.tables, kept)

    def kept_at(self, txn: Txn, kept: Kept, ordinal: int) -> Kept:
        """Return the cache for an earlier boundary, after a block below the tip that a rollback can return to."""
        stored, state = self.stored(txn, kept), kept.state
        blocks = [stored.block(each) for each in range(ordinal + 1, state.tip + 1)]
        spent = [stored.log(each)["number"] for each in range(ordinal + 1, state.tip + 1)]
        unspent = state.unspent - sum(each.created for each in blocks) + sum(each.spent for each in blocks)
        then = replace(state, tip=ordinal, unspent=unspent, next_number=blocks[0].first)
        earlier = Kept(then, kept, grown=True)
        earlier.revived = np.sort(np.concatenate(spent))
        return earlier

    def state(self, txn: Txn) -> State:
        """Return where the store is."""
        return stored_state(txn, self.meta)

    def marks(self, txn: Txn) -> tuple[bytes | None, bytes | None]:
        """Return the bytes of `state` and `kept_indexes`, to find out whether they have changed."""
        return txn.get(STATE, db=self.meta), txn.get(INDEXES, db=self.meta)

    def kept_indexes(self, txn: Txn) -> list[str]:
        """Return the names of the indexes that are complete."""
        return read_indexes(txn, self.meta)

    def put_indexes(self, txn: Txn, names: Iterable[str]) -> None:
        """Store which indexes are complete."""
        put_meta_row(txn, self.meta, INDEXES, ",".join(names).encode())

    def chain(self, txn: Txn) -> str:
        """Return the family and network that this store keeps."""
        return read_chain(txn, self.meta)[0]

    def format(self, txn: Txn) -> int:
        """Return the format that this store is written in."""
        return int.from_bytes(txn.get(FORMAT_KEY, b"", db=self.meta), "big")

    def genesis(self, txn: Txn) -> bytes | None:
        """Return the digest of the genesis outputs that were seeded."""
        return meta_row(txn, self.meta, _GENESIS)

    def put_genesis(self, txn: Txn, digest: bytes) -> None:
        """Store which genesis outputs were added."""
        put_meta_row(txn, self.meta, _GENESIS, digest)

    def block_at(self, txn: Txn, ordinal: int) -> Block:
        """Return a block.

        Raises:
            Damaged: it is missing.
        """
        return read_block(txn, self.block, ordinal)

    def block_row(self, txn: Txn, ordinal: int) -> bytes | None:
        """Return a block's row as it is stored, to be compared."""
        return txn.get(keys.u32(ordinal), db=self.block)

    def ordinal_at(self, txn: Txn, height: int, block_id: int) -> int | None:
        """Return the ordinal of a block of this height that has this id; one without an id has its height as id.

        Several blocks may have one height. Heights do not fall, or not every block is found.
        """
        low, tip = 1, self.state(txn).tip
        high = tip + 1
        while low < high:
            middle = (low + high) // 2
            low, high = (middle + 1, high) if self.block_at(txn, middle).height < height else (low, middle)
        while low <= tip and (block := self.block_at(txn, low)).height == height:
            if block_id == (height if block.block_id is None else block.block_id):
                return low
            low += 1
        return None

    def ordinal_of(self, txn: Txn, block_hash: bytes) -> int | None:
        """Return the ordinal of a block."""
        return self.stored(txn).ordinal_of(block_hash)
