"""Walking an MMR store by its own rules: nodes over leaves, leaves of outputs, bits of live ones, what was let go."""

from __future__ import annotations

from collections.abc import Generator, Iterator
from itertools import zip_longest
from struct import unpack_from

from storage import keys, mmr
from storage.disk import Txn
from storage.errors import Damaged
from storage.mmr import CHUNK_BITS, CHUNK_BYTES, HASH_BYTES, U64, chunks
from storage.mmr_store import DEAD, MmrStore, leaf_of
from storage.rows import MARKED, SPENT, State, body_of
from storage.utxo import UtxoStore

_MARKED = HASH_BYTES + len(DEAD)


def mountains(store: UtxoStore, txn: Txn, state: State) -> Iterator[str]:
    """Yield what is wrong with the mountain ranges; nothing where there are none."""
    if store.mmr is None:
        return
    leaves = store.mmr.count(txn)
    waiting = set[int]()
    yield from _waiting(store.mmr, txn, leaves, waiting)
    standing = yield from _nodes(store, store.mmr, txn, leaves)
    bits = bytearray(chunks(leaves) * CHUNK_BYTES)
    kept = yield from _leaves(store, store.mmr, txn, leaves, bits, waiting)
    if standing != kept + len(waiting):
        yield (
            f"{standing} leaves of the mountain range have a node of their own, there should be {kept + len(waiting)}: "
            f"those of {kept} outputs, and {len(waiting)} that may be let go"
        )
    yield from _transactions(store, store.mmr, txn, leaves)
    yield from _undos(store, store.mmr, txn, state, leaves)
    yield from _bits(store, store.mmr, txn, bytes(bits))


def _waiting(kept: MmrStore, txn: Txn, leaves: int, waiting: set[int]) -> Iterator[str]:
    """Leaves that may be let go: each once, and still there."""
    for _, raw in txn.cursor(kept.dead):
        for (leaf,) in U64.iter_unpack(raw):
            if leaf in waiting or leaf >= leaves:
                yield f"leaf {leaf} may be let go, but waits for it twice or was never there"
            waiting.add(leaf)


def _nodes(store: UtxoStore, kept: MmrStore, txn: Txn, leaves: int) -> Generator[str, None, int]:
    """Nodes: a parent is the hash of its children, or, marked, stands without them; return how many leaves stand.

    In post-order the children of a node are the last two that were not taken by a parent yet.
    """
    size, standing, stack = mmr.size_of(leaves), 0, list[tuple[int, bytes]]()
    for key, node in store.scan(txn, kept.nodes):
        position = U64.unpack(key)[0]
        if position >= size:
            yield f"node {position} of the mountain range lies behind its end {size}"
            return standing
        if len(node) != HASH_BYTES and (len(node) != _MARKED or not node.endswith(DEAD)):
            yield f"node {position} of the mountain range cannot be read"
        height = mmr.peak_map(position)[1]
        if height == 0:
            standing += len(node) == HASH_BYTES
        else:
            below = {position - 1, position - (1 << height)}
            children = [stack.pop()[1] for _ in range(2) if stack and stack[-1][0] in below][::-1]
            yield from _family(position, node, children)
        stack.append((position, node))
    if [position for position, _ in stack] != mmr.peaks(size):
        odd = {position for position, _ in stack} ^ set(mmr.peaks(size))
        yield f"nodes of the mountain range are missing, below, above or at {', '.join(map(str, sorted(odd)[:5]))}"
    return standing


def _family(position: int, node: bytes, children: list[bytes]) -> Iterator[str]:
    if len(children) == 1 or (not children and len(node) == HASH_BYTES):
        yield f"node {position} of the mountain range has {len(children)} of its two children"
    elif children and mmr.node_hash(position, b"".join(each[:HASH_BYTES] for each in children)) != node[:HASH_BYTES]:
        yield f"node {position} of the mountain range is not the hash of its children"
    elif children and (len(node) == _MARKED or all(len(each) == _MARKED for each in children)):
        yield f"node {position} of the mountain range and what is below it contradict each other about what was let go"


def _leaves(
    store: UtxoStore, kept: MmrStore, txn: Txn, leaves: int, bits: bytearray, waiting: set[int]
) -> Generator[str, None, int]:
    """Leaves of outputs: there, unmarked, in chain order, the hash of the output.

    Sets the bits of live ones, and returns how many outputs have a row.
    """
    count, last, home, first, txid, encode = 0, -1, b"", b"", b"", None
    for place, row in store.scan(txn, store.output):
        if place[:8] != home:
            if place[:4] != home[:4] and store.leaves is not None:
                encode = store.leaves(store.block_at(txn, keys.number(place)))
            home, first, txid = place[:8], txn.get(place[:8], b"", db=kept.tx), store.txid_at(txn, place)
            if len(first) % U64.size or not first:
                yield f"transaction {keys.show(home)} has no first leaf"
        if not first:
            continue
        count, leaf = count + 1, leaf_of(first, place)
        if not last < leaf < leaves or leaf in waiting:
            yield f"output {keys.show(place)} has leaf {leaf}, which is another's, or is none"
            continue
        last, node = leaf, txn.get(U64.pack(mmr.node_at(0, leaf)), b"", db=kept.nodes)
        if len(node) != HASH_BYTES:
            yield f"leaf {leaf} of output {keys.show(place)} was let go, or is not there"
        elif encode is not None and len(row) != MARKED:
            data = encode(txid, keys.number(place[8:]), body_of(row))
            if mmr.node_hash(mmr.node_at(0, leaf), data) != node:
                yield f"leaf {leaf} is not the hash of output {keys.show(place)}"
        if row[0] != SPENT:
            bits[leaf // 8] |= 0x80 >> leaf % 8
    return count


def _transactions(store: UtxoStore, kept: MmrStore, txn: Txn, leaves: int) -> Iterator[str]:
    """First leaves: one for each transaction, in chain order."""
    last = 0
    for (place, _), (home, first) in zip_longest(
        store.scan(txn, store.tx), store.scan(txn, kept.tx), fillvalue=(b"", b"")
    ):
        if place != home:
            yield f"transactions {keys.show(place)} and {keys.show(home)}: one has a row, the other a first leaf"
            return
        leaf = unpack_from(">Q", first)[0]
        if not last <= leaf <= leaves:
            yield f"the first leaf of transaction {keys.show(place)} is {leaf}, after {last} and before {leaves}"
        last = leaf


def _undos(store: UtxoStore, kept: MmrStore, txn: Txn, state: State, leaves: int) -> Iterator[str]:
    """Undo records: each begins with the leaves that the one before it left, and its transactions say so too."""
    following = None
    for ordinal in range(state.floor + 1, state.tip + 1):
        undo = store.undo_at(txn, ordinal)
        if undo is None or undo.mmr is None:
            yield f"the undo record of block {ordinal} does not say how many leaves there were"
            return
        if undo.mmr != kept.before(txn, ordinal) or following not in (None, undo.mmr):
            yield f"the undo record of block {ordinal} says that there were {undo.mmr} leaves, others say otherwise"
        following = undo.mmr + sum(undo.created)
    if following not in (None, leaves):
        yield f"there are {leaves} leaves, the last undo record leaves {following}"


def _bits(store: UtxoStore, kept: MmrStore, txn: Txn, expected: bytes) -> Iterator[str]:
    """Bits: exactly those of the live outputs; the mountain range over them is that of these chunks."""
    stored = list[bytes]()
    for key, raw in store.scan(txn, kept.bits):
        chunk = U64.unpack(key)[0]
        if chunk != len(stored) or len(raw) != CHUNK_BYTES:
            yield f"chunk {chunk} of the bits of leaves is not the one after {len(stored) - 1}, or cannot be read"
            return
        if raw != expected[chunk * CHUNK_BYTES : (chunk + 1) * CHUNK_BYTES]:
            yield f"the bits of leaves {chunk * CHUNK_BITS} and on are not those of the live outputs"
        stored.append(raw)
    if len(stored) * CHUNK_BYTES != len(expected):
        yield f"there are {len(stored)} chunks of bits, there should be {len(expected) // CHUNK_BYTES}"
    nodes = mmr.append(0, [], stored)
    for made, there in zip_longest(nodes, store.scan(txn, kept.bit_nodes)):
        if made != there:
            position = U64.unpack((made or there or (b"",))[0])[0]
            yield f"node {position} over the bits of leaves is not the hash of what is below it"
            return


def check_copy(store: UtxoStore, txn: Txn, leaves: int) -> None:
    """Check, after a block was taken back, that so many leaves are left, and that the roots can be had.

    Raises:
        Damaged: it is not so.
    """
    if store.mmr and (roots := store.mmr.roots(txn)).leaves != leaves:
        raise Damaged(f"{roots.leaves} leaves are left, there should be {leaves}")
