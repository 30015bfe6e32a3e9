"""Walking every table by its own rules. Reads one consistent state, changes nothing, and names what is wrong."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager, nullcontext
from functools import partial
from pathlib import Path

from storage import change_log, indexes, keys
from storage.change import ChangeSet
from storage.change_log import LogStore
from storage.copies import temporary
from storage.damage import UNREADABLE
from storage.disk import Db, Disk, Txn
from storage.errors import Damaged, StoreError, StoreFull
from storage.jobs import TABLES as JOB_TABLES
from storage.mmr_store import Leaves
from storage.mmr_verify import check_copy, mountains
from storage.pages import check_pages
from storage.precheck import contradictions
from storage.prune import Windows, taken_back
from storage.rows import MARKED, SPENT, BlockRow, Body, State, body_of, spender_of, unpack
from storage.transactions import TABLES as TX_TABLES
from storage.utxo import TABLES, UtxoStore

Tell = Callable[[str, int, bytes], None]  # the table, how many rows of it were read, the key of the last one

MOST = 100  # findings that are reported


class Watched(UtxoStore):
    """A store that tells which row it reads: whoever listens knows how far a walk came that killed its process."""

    def __init__(self, disk: Disk, leaves: Leaves | None, tell: Tell) -> None:
        super().__init__(disk, leaves)
        self._tell = tell
        self._names = {db: name for name, db in disk.tables.items()}

    def scan(self, txn: Txn, db: Db, prefix: bytes = b"") -> Iterator[tuple[bytes, bytes]]:
        """See `UtxoStore`."""
        name, tell = self._names[db], self._tell
        tell(name, 0, prefix)
        for row, item in enumerate(super().scan(txn, db, prefix), 1):
            tell(name, row, item[0])
            yield item


def silent(_: str, __: int, ___: bytes) -> None:
    """Tell nobody."""


def verify(
    store: UtxoStore,
    windows: Windows,
    *,
    quick: bool = False,
    also: Callable[[UtxoStore], list[str]] = lambda _: [],
    copy_to: Path | None = None,
    tell: Tell = silent,
) -> list[str]:
    """Return what is wrong with the store, at most a hundred findings; nothing for a sound one.

    Everything is read from a copy, which takes one read transaction for as long as it is made; `quick` reads the store
    itself in one. On the copy undo is tried: every retained block is taken back, down to the floor, and the copy is
    walked again. `also` looks at the same tables before that and returns further findings. The copy is made in the
    folder `copy_to`, else beside the store. `tell` is called before each step, with the row that was read last.

    Raises:
        StoreFull: there is no room for the copy.
    """
    findings, others = list[str](), list[str]()
    in_place = nullcontext(Watched(store.disk, store.leaves, tell))
    try:
        with in_place if quick else _copied(store, copy_to or store.disk.folder.parent, tell) as seen:
            with seen.disk.read() as txn:
                state = seen.state(txn)
                _collect(findings, _walk(seen, txn, state))
                _collect(findings, _changes(seen, txn, state, tell))
            others = also(seen)
            if not findings and not quick:
                _collect(findings, _undo(seen, windows))
    except StoreFull:
        raise
    except StoreError as error:
        findings.append(str(error))
    return findings + others


def _collect(findings: list[str], found: Iterator[str]) -> None:
    for finding in found:
        findings.append(finding)
        if len(findings) >= MOST:
            return


def _walk(store: UtxoStore, txn: Txn, state: State) -> Iterator[str]:
    found = list(contradictions(store, txn, state))
    yield from found
    if found:  # what follows believes these numbers: it has a bit in memory for every leaf
        return
    spent: Counter[int] = Counter()  # outputs that each block spent, as their rows say
    walks = {
        "blocks": _blocks(store, txn, state),
        "transactions": _transactions(store, txn),
        "outputs": _outputs(store, txn, state, spent),
        "indexes": _indexes(store, txn),
        "undo records": _undos(store, txn, state, spent),
        "mountain ranges": mountains(store, txn, state),
    }
    for what, findings in walks.items():
        try:
            yield from findings
        except UNREADABLE as error:
            yield f"the {what} can't be read to the end: {type(error).__name__}: {error}"


def _changes(store: UtxoStore, txn: Txn, state: State, tell: Tell) -> Iterator[str]:
    """The change log: readable, without a gap, and at its end where the chain is."""
    try:
        tip = None
        if state.tip != keys.GENESIS:
            row = txn.get(keys.u32(min(state.tip, keys.LAST_U32)), db=store.block)
            if row is None:  # that was said
                return
            tip = unpack(BlockRow, row, f"block {state.tip}").hash
        yield from change_log.contradictions(LogStore(store.disk), txn, tip, partial(tell, "change_log"))
    except UNREADABLE as error:
        yield f"the change log can't be read to the end: {type(error).__name__}: {error}"


def _blocks(store: UtxoStore, txn: Txn, state: State) -> Iterator[str]:
    """Blocks: none above the tip, retained ones without a gap and found by their hash, others not."""
    retained = lowest = max(state.floor, 1)  # the next one that has to have a row
    for key, raw in store.scan(txn, store.block):
        ordinal = keys.number(key)
        row = unpack(BlockRow, raw, f"block {ordinal}")
        for missing in range(retained, ordinal):
            yield f"block {missing} is retained, but has no row"
        if ordinal >= lowest and txn.get(row.hash, db=store.block_hash) != key:
            yield f"block {ordinal} is not found by its hash {row.hash.hex()}"
        retained = max(retained, ordinal + 1)
    for name, key in store.scan(txn, store.block_hash):
        ordinal = keys.number(key)
        if not state.floor <= ordinal <= state.tip or store.block_at(txn, ordinal).hash != name:
            yield f"hash {name.hex()} leads to block {ordinal}, which is not that block or not retained"


def _transactions(store: UtxoStore, txn: Txn) -> Iterator[str]:
    """Transactions: each in a block that has a row; ids and positions lead to each other."""
    own = None
    for place, raw in store.scan(txn, store.tx):
        if place[:4] != own:
            own = place[:4]
            if txn.get(own, db=store.block) is None:
                yield f"transaction {keys.show(place)} is in a block that has no row"
        home = txn.get(raw[:32], db=store.txid)
        if home is None or home < place:
            yield f"transaction {keys.show(place)} is not found by its id {raw[:32].hex()}"
    for txid, place in store.scan(txn, store.txid):
        row = txn.get(place, db=store.tx)
        if row is None or row[:32] != txid:
            yield f"id {txid.hex()} leads to transaction {keys.show(place)}, which is another or gone"


def _outputs(store: UtxoStore, txn: Txn, state: State, spent: Counter[int]) -> Iterator[str]:
    """Outputs: readable, of a transaction that has a row, spent by one that has a row; the live ones are counted."""
    unspent, home = 0, b""
    for place, row in store.scan(txn, store.output):
        if row[0] != SPENT or len(row) > MARKED:
            unpack(Body, body_of(row), f"output {keys.show(place)}")
        elif keys.number(row[1:]) >= state.spent_cursor[0] + (state.spent_cursor[1] > 0):
            yield f"output {keys.show(place)} has lost its body too early"
        if place[:8] != home:
            home = place[:8]
            if txn.get(home, db=store.tx) is None:
                yield f"output {keys.show(place)} is of a transaction that has no row"
        spender = spender_of(row)
        if spender is None:
            unspent += 1
            continue
        spent[keys.number(spender)] += 1
        if txn.get(spender[:8], db=store.tx) is None:
            yield f"output {keys.show(place)} was spent by transaction {keys.show(spender[:8])}, which has no row"
        elif spender[:8] < home or keys.number(spender) > state.tip:
            yield f"output {keys.show(place)} was spent by transaction {keys.show(spender[:8])}, before it was created"
    if unspent != state.unspent:
        yield f"{unspent} outputs are unspent, the counter says {state.unspent}"


def _indexes(store: UtxoStore, txn: Txn) -> Iterator[str]:
    """Each kept index holds exactly the live outputs under their keys; one that is not kept is empty."""
    kept = store.kept_indexes(txn)
    for name, (table, rule) in indexes.TABLES.items():
        db = store.disk.tables[table]
        entries = txn.stat(db)["entries"]
        if name not in kept:
            if entries:
                yield f"index {name} is not kept, but has {entries} entries"
            continue
        expected = 0
        cursor = txn.cursor(db)
        for place, row in store.scan(txn, store.output):
            if row[0] == SPENT:
                continue
            for key in rule(row):
                expected += 1
                if not cursor.set_key_dup(key, place):
                    yield f"index {name} misses output {keys.show(place)} under {key.hex()}"
        if entries != expected:
            yield f"index {name} has {entries} entries, there should be {expected}"


def _undos(store: UtxoStore, txn: Txn, state: State, spent: Counter[int]) -> Iterator[str]:
    """Undo records: one for each block that may be taken back, agreeing with its rows."""
    for ordinal in range(state.floor + 1, state.tip + 1):
        undo = store.undo_at(txn, ordinal)
        if undo is None:
            yield f"block {ordinal} can't be taken back: it has no undo record"
        elif undo.hash != store.block_at(txn, ordinal).hash:
            yield f"the undo record of block {ordinal} is of another block, {undo.hash.hex()}"
        elif len(undo.created) != sum(1 for _ in store.scan(txn, store.tx, keys.u32(ordinal))):
            yield f"the undo record of block {ordinal} counts other transactions than its rows"
        elif len(undo.spent) < 12 * spent[ordinal]:  # fewer rows than that show when the block is taken back
            listed = len(undo.spent) // 12
            yield f"the undo record of block {ordinal} has {listed} spent outputs, their rows say {spent[ordinal]}"
    for key, _ in store.scan(txn, store.delta):
        if keys.number(key) > state.tip:
            yield f"there is an undo record of block {keys.number(key)}, above the tip {state.tip}"


@contextmanager
def _copied(store: UtxoStore, place: Path, tell: Tell) -> Iterator[UtxoStore]:
    """Give a copy of the store that may be written to, and throw it away."""
    with temporary(place) as folder:
        store.disk.copy(folder)
        for finding in check_pages(folder / "data.mdb"):
            raise Damaged(finding)
        tables = (*TABLES, *TX_TABLES, *JOB_TABLES)
        with Disk(folder, tables, map_size=store.disk.map_size(), durable=False, shared=False) as disk:
            yield Watched(disk, store.leaves, tell)


def _undo(copy: UtxoStore, windows: Windows) -> Iterator[str]:
    """Take every retained block back on a copy; what is left must be sound too."""
    with copy.disk.read() as txn:
        state = copy.state(txn)
        copy.use_indexes(copy.kept_indexes(txn))
    floor = windows.floor(state)
    for ordinal in range(state.tip, floor, -1):
        copy.disk.write(lambda txn, ordinal=ordinal: _take_back(copy, txn, ordinal))  # type: ignore[misc]
    with copy.disk.read() as txn:
        for finding in _walk(copy, txn, copy.state(txn)):
            yield f"after taking blocks back to {floor}: {finding}"


def _take_back(store: UtxoStore, txn: Txn, ordinal: int) -> None:
    undo, undone = store.undo_at(txn, ordinal), store.change_of(txn, ordinal, ChangeSet()).reversed()
    store.write(txn, undone, taken_back(store.state(txn), ordinal - 1))
    if undo is not None and undo.mmr is not None:
        check_copy(store, txn, undo.mmr)
