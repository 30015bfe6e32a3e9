"""What an MMR store keeps beside the UTXO set: a leaf for each output, and which of them are unspent.

utxo_mmr_nodes       position u64 → hash 32, and 0x01 behind it where everything below is dead for good
utxo_mmr_bits        chunk u64 → 1024 bits, the first on top: 1 for an unspent output, 0 behind the last leaf
utxo_mmr_bit_nodes   position u64 → hash 32 of a second mountain range, whose leaves are these chunks
utxo_mmr_tx          position of a transaction → number of its first leaf u64, runs
utxo_mmr_dead        number u64 → numbers of leaves, u64 each, that are dead for good and not yet let go

A transaction's leaves are its stored outputs in order. Where these are not 0, 1, 2, ... (an unspendable one was left
out, or only a collateral return came), `runs` say it: index u32, rank u32, for each output whose index does not follow
that of the one before.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from struct import Struct as Packed

from storage import keys, mmr
from storage.change import ChangeSet
from storage.disk import Db, Disk, Txn
from storage.errors import Damaged
from storage.mmr import CHUNK_BITS, CHUNK_BYTES, HASH_BYTES, U64, Path, Roots, chunks, state_root
from storage.rows import MARKED, SPENT, BlockRow, unpack

TABLES = ("utxo_mmr_nodes", "utxo_mmr_bits", "utxo_mmr_bit_nodes", "utxo_mmr_tx", "utxo_mmr_dead")
DEAD = b"\x01"  # behind the hash of a node
_COUNT = b"leaves"  # in utxo_meta
_RUN = Packed(">II")
_BITS = tuple(1 << n for n in reversed(range(CHUNK_BITS)))

Encode = Callable[[bytes, int, bytes], bytes]  # an output's transaction id, index and body → the data of its leaf
Leaves = Callable[[BlockRow], Encode]  # for the outputs that are born in a block
Rows = list[tuple[bytes, bytes]]


class MmrStore:
    """The tables of the mountain ranges, kept in step with the outputs by `UtxoStore.write`.

    Nothing of it is held in memory: a commit reads the peaks, and what was written is what is there.
    """

    def __init__(self, disk: Disk, meta: Db, leaves: Leaves | None) -> None:
        disk.open_tables(TABLES)
        self.nodes, self.bits, self.bit_nodes, self.tx, self.dead = (disk.tables[name] for name in TABLES)
        self.leaves = leaves
        self._meta = meta

    def create(self, txn: Txn) -> None:
        """Begin without leaves."""
        txn.put(_COUNT, U64.pack(0), db=self._meta)

    # --- reading -------------------------------------------------------------------------------------------------

    def count(self, txn: Txn) -> int:
        """Return how many leaves there are: as many as outputs were ever created on this chain."""
        raw = txn.get(_COUNT, b"", db=self._meta)
        if len(raw) != U64.size:
            raise Damaged("the number of leaves cannot be read")
        return _number(raw)

    def roots(self, txn: Txn) -> Roots:
        """Return the roots, and the one over both."""
        leaves = self.count(txn)
        size = mmr.size_of(leaves)
        outputs = mmr.root(size, lambda positions: self.read(txn, self.nodes, positions))
        bits = mmr.root(mmr.size_of(chunks(leaves)), lambda positions: self.read(txn, self.bit_nodes, positions))
        return Roots(size, leaves, outputs, bits, state_root(size, outputs, bits))

    def path(self, txn: Txn, place: bytes) -> Path:
        """Return the way from an output that has a row.

        Raises:
            Damaged: something of it is not there.
        """
        leaves, leaf = self.count(txn), self.locate(txn, [place])[0]
        siblings = mmr.prove(mmr.size_of(leaves), leaf, lambda positions: self.read(txn, self.nodes, positions))
        chunk = leaf // CHUNK_BITS
        bits = txn.get(U64.pack(chunk), db=self.bits)
        if bits is None:
            raise Damaged(f"the bits of leaves {chunk * CHUNK_BITS} and on are not there")
        size = mmr.size_of(chunks(leaves))
        return Path(leaf, siblings, bits, mmr.prove(size, chunk, lambda at: self.read(txn, self.bit_nodes, at)))

    def locate(self, txn: Txn, places: Sequence[bytes]) -> list[int]:
        """Return the leaves of outputs whose transactions have a row, in the same order.

        Raises:
            Damaged: one has none.
        """
        firsts = dict(txn.cursor(self.tx).getmulti(sorted({place[:8] for place in places})))
        try:
            return [leaf_of(firsts[place[:8]], place) for place in places]
        except KeyError as error:
            raise Damaged(f"transaction {keys.show(error.args[0])} has no first leaf") from error

    def before(self, txn: Txn, ordinal: int) -> int:
        """Return how many leaves there were before a block, as the transactions from there on say."""
        cursor = txn.cursor(self.tx)
        return _number(cursor.value()) if cursor.set_range(keys.u32(ordinal)) else self.count(txn)

    def read(self, txn: Txn, db: Db, positions: Sequence[int]) -> list[bytes]:
        """Return the hashes of nodes.

        Raises:
            Damaged: one is not there.
        """
        found = dict(txn.cursor(db).getmulti(sorted({U64.pack(position) for position in positions})))
        try:
            return [found[U64.pack(position)][:HASH_BYTES] for position in positions]
        except KeyError as error:
            raise Damaged(f"node {_number(error.args[0])} of a mountain range is not there") from error

    # --- writing -------------------------------------------------------------------------------------------------

    def write(self, txn: Txn, change: ChangeSet, born: Rows, gone: Rows) -> None:
        """Follow a change of the outputs; `born` become live by it, `gone` stop being so."""
        before = self.count(txn)
        kept = self._truncate(txn, change, before)
        after, live = self._grow(txn, change, kept)
        txs = change.txs.after  # of older transactions the outputs were leaves before, and stay so
        live += self.locate(txn, [place for place, _ in born if place[:8] not in txs])
        dead = self.locate(txn, [place for place, _ in gone if place[:8] not in txs])
        self._flip(txn, (before, kept, after), live, dead)
        if before != after:
            txn.put(_COUNT, U64.pack(after), db=self._meta)

    def _truncate(self, txn: Txn, change: ChangeSet, before: int) -> int:
        """Take the leaves of removed outputs away; return how many are left."""
        removed = sorted(home for home, row in change.txs.after.items() if row is None)
        if not removed:
            return before
        kept = self.locate(txn, [removed[0] + bytes(4)])[0]
        outputs = sum(
            1 for place, row in change.outputs.after.items() if row is None and place in change.outputs.before
        )
        if before - kept != outputs:
            raise Damaged(
                f"{outputs} outputs are taken back from {keys.show(removed[0])} on, but {before - kept} leaves"
            )
        for home in removed:
            txn.delete(home, db=self.tx)
        _cut(txn, self.nodes, mmr.size_of(kept))
        _cut(txn, self.bits, chunks(kept))
        _cut(txn, self.bit_nodes, mmr.size_of(chunks(kept)))
        return kept

    def _grow(self, txn: Txn, change: ChangeSet, kept: int) -> tuple[int, list[int]]:
        """Append a leaf for each new output; return how many there are then, and which of the new ones are live."""
        rows, before = change.outputs.after, change.outputs.before
        added = sorted([place for place, row in rows.items() if row is not None and place not in before])
        txs = sorted([home for home, row in change.txs.after.items() if row is not None])
        if not txs:
            return kept, []
        if txn.cursor(self.tx).putmulti(_firsts(txs, added, kept), append=True)[1] != len(txs):
            raise Damaged("transactions above the last one had their first leaves already")
        tops = self.read(txn, self.nodes, mmr.peaks(mmr.size_of(kept)))
        nodes = mmr.append(kept, tops, self._data(change, added))
        if txn.cursor(self.nodes).putmulti(nodes, append=True)[1] != len(nodes):
            raise Damaged("nodes above the last one of the mountain range were there already")
        return kept + len(added), [n for n, place in enumerate(added, kept) if rows[place][0] != SPENT]  # type: ignore[index]

    def _data(self, change: ChangeSet, added: list[bytes]) -> Iterator[bytes]:
        """Yield the leaves of new outputs."""
        assert self.leaves is not None, "whoever writes to an MMR store has to say what its leaves are"
        rows, txs, blocks, number = change.outputs.after, change.txs.after, change.blocks.after, keys.number
        own = home = b""
        for place in added:
            if place[:8] != home:
                home = place[:8]
                txid = (txs[home] or b"")[:32]
                if home[:4] != own:
                    own = home[:4]
                    encode = self.leaves(unpack(BlockRow, blocks[own] or b"", f"block {number(own)}"))
            row = rows[place] or b""
            yield encode(txid, number(place[8:]), row if row[0] != SPENT else row[MARKED:])

    def _flip(self, txn: Txn, counts: tuple[int, int, int], live: Iterable[int], dead: Iterable[int]) -> None:
        """Set and clear bits, and hash what is above them anew."""
        before, kept, after = counts
        ones, zeros = _masks(live), _masks(dead)
        touched = {*ones, *zeros, *range(kept // CHUNK_BITS, chunks(after))} if after > kept else {*ones, *zeros}
        if kept < before and kept % CHUNK_BITS:
            touched.add(kept // CHUNK_BITS)
            zeros[kept // CHUNK_BITS] = zeros.get(kept // CHUNK_BITS, 0) | _BITS[kept % CHUNK_BITS - 1] - 1
        chosen = sorted(touched)
        stored = dict(txn.cursor(self.bits).getmulti([U64.pack(chunk) for chunk in chosen]))
        changed: dict[int, bytes] = {}
        for chunk in chosen:
            raw = stored.get(U64.pack(chunk), b"")
            if len(raw) != (CHUNK_BYTES if chunk < chunks(kept) else 0):
                raise Damaged(f"the bits of leaves {chunk * CHUNK_BITS} and on cannot be read")
            was = int.from_bytes(raw, "big")
            bits = (was | ones.get(chunk, 0)) & ~zeros.get(chunk, 0)
            changed[chunk] = bits.to_bytes(CHUNK_BYTES, "big")
        made = mmr.rehash(chunks(after), changed, lambda positions: self.read(txn, self.bit_nodes, positions))
        txn.cursor(self.bits).putmulti([(U64.pack(chunk), bits) for chunk, bits in changed.items()])
        txn.cursor(self.bit_nodes).putmulti([(U64.pack(position), node) for position, node in sorted(made.items())])

    # --- forgetting ----------------------------------------------------------------------------------------------

    def forget(self, txn: Txn, places: Sequence[bytes]) -> None:
        """Remember that outputs whose rows are about to go are dead for good: nothing can bring them back."""
        if places:
            cursor = txn.cursor(self.dead)
            number = _number(cursor.key()) + 1 if cursor.last() else 0
            txn.put(U64.pack(number), b"".join(map(U64.pack, sorted(self.locate(txn, places)))), db=self.dead)

    def forget_tx(self, txn: Txn, position: bytes) -> None:
        """Let go of a transaction that has no output row left."""
        txn.delete(position, db=self.tx)

    def anything_dead(self, txn: Txn) -> bool:
        """Return whether there are leaves that may be let go."""
        return txn.cursor(self.dead).first()

    def prune(self, txn: Txn, budget: int) -> int:
        """Let go of at most `budget` leaves that are dead for good; return how many nodes went.

        A dead node has a mark behind its hash. Two such siblings go, and their parent is marked: what is left of a dead
        tree is its top, which the proofs of its neighbours need. A root never changes by it.
        """
        leaves, removed, cursor = self.count(txn), 0, txn.cursor(self.dead)
        while budget > 0 and cursor.first():
            key, raw = cursor.item()
            part, rest = raw[: budget * U64.size], raw[budget * U64.size :]
            for (leaf,) in U64.iter_unpack(part):
                removed += self._let_go(txn, leaf, leaves)
            budget -= len(part) // U64.size
            if rest:
                txn.put(key, rest, db=self.dead)
            else:
                txn.delete(key, db=self.dead)
        return removed

    def _let_go(self, txn: Txn, leaf: int, leaves: int) -> int:
        pack, db = U64.pack, self.nodes
        height, index, removed = 0, leaf, 0
        key = pack(mmr.node_at(0, leaf))
        node = txn.get(key, db=db)
        if node is None or len(node) != HASH_BYTES:
            raise Damaged(f"leaf {leaf} is to be let go, but is not there, or was before")
        while (index >> 1) + 1 << height + 1 <= leaves:  # there is a parent
            sibling = pack(mmr.node_at(height, index ^ 1))
            if len(txn.get(sibling, b"", db=db)) != HASH_BYTES + len(DEAD):
                break
            txn.delete(sibling, db=db)
            txn.delete(key, db=db)
            height, index, removed = height + 1, index >> 1, removed + 2
            key = pack(mmr.node_at(height, index))
            node = txn.get(key, b"", db=db)
        txn.put(key, node + DEAD, db=db)
        return removed


def leaf_of(first: bytes, place: bytes) -> int:
    """Return the leaf of an output, by what is kept of its transaction."""
    leaf, index = _number(first), keys.number(place[8:])
    for at in range(len(first) - _RUN.size, U64.size - 1, -_RUN.size):
        begin, rank = _RUN.unpack_from(first, at)
        if begin <= index:
            return int(leaf + rank + index - begin)
    return leaf + index


def is_set(bits: bytes, leaf: int) -> bool:
    """Return whether a leaf's bit is set in its chunk."""
    return bool(bits[leaf % CHUNK_BITS // 8] & 0x80 >> leaf % 8)


def _firsts(txs: list[bytes], added: list[bytes], leaf: int) -> Rows:
    """Return what is kept of new transactions."""
    rows, at, total = [], 0, len(added)
    for home in txs:
        began = at
        while at < total and added[at].startswith(home):
            at += 1
        indexes = added[began:at]
        straight = not indexes or indexes[-1][8:] == keys.u32(len(indexes) - 1)
        rows.append((home, U64.pack(leaf + began) + (b"" if straight else _runs(indexes))))
    if at != total:
        raise Damaged(f"output {keys.show(added[at])} comes without its transaction")
    return rows


def _runs(places: Iterable[bytes]) -> bytes:
    runs, following = b"", -1
    for rank, place in enumerate(places):
        index = keys.number(place[8:])
        if index != following:
            runs += _RUN.pack(index, rank)
        following = index + 1
    return runs


def _masks(leaves: Iterable[int]) -> dict[int, int]:
    """Return the bits of leaves, by chunk."""
    masks: dict[int, int] = {}
    for leaf in leaves:
        chunk = leaf // CHUNK_BITS
        masks[chunk] = masks.get(chunk, 0) | _BITS[leaf % CHUNK_BITS]
    return masks


def _cut(txn: Txn, db: Db, first: int) -> None:
    """Remove everything from a number on."""
    cursor = txn.cursor(db)
    there = cursor.set_range(U64.pack(first))
    while there:
        there = cursor.delete() and bool(cursor.key())


def _number(raw: bytes) -> int:
    value: int = U64.unpack_from(raw)[0]
    return value
