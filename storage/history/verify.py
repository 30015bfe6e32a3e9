"""The check of every table of the store by its own rules, in one consistent state, with a finding for each error.

Values are examined one by one first. Then tables are compared, in bounded memory: a few bits for each number, and
sums over ranges of numbers (`tally`); what differs is collected by a second pass.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, nullcontext
from functools import partial
from itertools import islice
from pathlib import Path

from storage import change_log
from storage.change_log import TABLES as LOG_TABLES
from storage.change_log import LogStore
from storage.copies import temporary
from storage.damage import UNREADABLE
from storage.disk import META, Disk, Txn
from storage.errors import Damaged, StoreError, StoreFull
from storage.history import check_runs, consistency
from storage.history.check_places import check_places
from storage.history.integrity import check_meta, check_values
from storage.history.layout import TABLES
from storage.history.mmr import Leaves
from storage.history.mmr_verify import ranges
from storage.history.store import HistoryStore
from storage.history.tally import BitSet, Sieve
from storage.history.view import Progress, View
from storage.jobs import TABLES as JOB_TABLES
from storage.page_copy import copy_pages
from storage.pages import check_pages
from storage.pool import TABLES as TX_TABLES

MOST = 100  # findings that are reported
_BACK = 200  # blocks that are rolled back in one commit

Walk = Callable[[], Iterator[str]]


def silent(_: str, __: int, ___: bytes) -> None:
    """Report no progress."""


def verify(
    disk: Disk,
    *,
    quick: bool = False,
    also: Callable[[Disk], list[str]] = lambda _: [],
    copy_to: Path | None = None,
    progress: Progress = silent,
    most: int = MOST,
    leaves: Leaves | None = None,
) -> list[str]:
    """Return what is wrong with the store, at most `most` findings; an empty list if it is sound.

    Everything is read from a copy, which takes one read transaction for as long as it is made; `quick` reads the store
    itself in one. On the copy undo is tried: every block above the floor is rolled back, and the copy is walked again.
    `also` examines the same tables before that, if these are sound, and returns further findings. The copy is made in
    the folder `copy_to`, else next to the store. `progress` is called with each row before it is read. `leaves` makes
    the leaves of outputs, where there are Merkle mountain ranges; without it these are not compared.

    Raises:
        StoreFull: there is no space for the copy.
    """
    findings, others = list[str](), list[str]()
    try:
        with nullcontext(disk) if quick else _copied(disk, copy_to or disk.folder.parent) as seen:
            view = _walk(seen, progress, findings, most, leaves)
            others = [] if findings else also(seen)
            if not findings and not quick:
                findings += islice(_undo(seen, progress, view, leaves), most)
    except StoreFull:
        raise
    except StoreError as error:
        findings.append(str(error))
    return (findings + others)[:most]


@contextmanager
def _copied(disk: Disk, place: Path) -> Iterator[Disk]:
    """Return a copy of the store that may be written to; it is deleted at the end."""
    with temporary(place) as folder:
        copy_pages(disk, folder / "data.mdb")
        for finding in check_pages(folder / "data.mdb"):
            raise Damaged(finding)
        tables = (META, *TABLES, *LOG_TABLES, *TX_TABLES, *JOB_TABLES)
        with Disk(folder, tables, map_size=disk.map_size(), durable=False, shared=False) as copy:
            yield copy


def _walk(disk: Disk, progress: Progress, findings: list[str], most: int, leaves: Leaves | None) -> View:
    """Collect what is wrong; return what was seen. Later checks rely on values, so these are checked first."""
    store = HistoryStore(disk, leaves)
    with disk.read() as txn:
        view = View(txn, disk.tables, progress)
        values = _each({"state": partial(check_meta, txn, view), "values": partial(check_values, view)})
        findings += islice(values, most)
        if not findings:
            findings += islice(_tables(view), most)
            if not findings:
                findings += islice(_each({"mountain ranges": partial(ranges, store, txn)}), most)
            findings += islice(_each({"change log": partial(_changes, disk, view, progress)}), most)
        return view


def _each(walks: Mapping[str, Walk]) -> Iterator[str]:
    for what, walk in walks.items():
        try:
            yield from walk()
        except UNREADABLE as error:
            yield f"the {what} cannot be read to the end: {type(error).__name__}: {error}"


def _tables(view: View) -> Iterator[str]:
    view.believe_state()
    for walks in (
        {"blocks": partial(consistency.check_blocks, view), "runs": partial(check_runs.check_lists, view)},
        {
            "unspent bits": partial(consistency.check_live, view),
            "order of transactions": partial(consistency.check_tx_order, view),
            "positions of transactions": partial(check_places, view),
        },
    ):
        found = False
        for finding in _each(walks):
            found = True
            yield finding
        if found:  # what follows finds transactions and blocks by their numbers
            return
    yield from _compared(view)


def _compared(view: View) -> Iterator[str]:
    kinds = ["txid", "block", "spender", *check_runs.kept(view)]
    sinks, merging = check_runs.tallies(view, kinds), check_runs.tallies(view, kinds)
    wanted = consistency.walks(view, kinds[3:], sinks)
    wrong = False
    for finding in _each(wanted):
        wrong = True
        yield finding
    for kind in kinds:
        yield from _each({f"index {kind}": partial(check_runs.check_entries, view, kind, sinks[kind], merging[kind])})
    yield from _each({"filters": partial(check_runs.check_filters, view)})
    if wrong:  # an index cannot be compared with what is wrong itself
        return
    for kind in kinds:
        if len(ranges := sinks[kind].different()):
            sieve = Sieve(ranges)
            others = dict.fromkeys(kinds, check_runs.NOTHING) | {kind: sieve}
            view.spent = BitSet(view.state.next_number)
            for _ in _each(consistency.walks(view, kinds[3:], others)):
                pass
            for _ in check_runs.check_entries(view, kind, sieve, check_runs.NOTHING):
                pass
            yield from check_runs.explained(view, kind, sieve)
        elif len(merging[kind].different()):
            yield f"the merge of {kind} has written entries that differ from those of its runs"


def _changes(disk: Disk, view: View, progress: Progress) -> Iterator[str]:
    """The change log: readable, without a gap, and at its end where the chain is."""
    tip = None if view.state.tip == 0 else view.stored.block(view.state.tip).hash
    yield from change_log.contradictions(LogStore(disk), view.txn, tip, partial(progress, "change_log"))


def _undo(copy: Disk, progress: Progress, before: View, leaves: Leaves | None) -> Iterator[str]:
    """Roll back every block above the floor on a copy; the result must be sound, and agree with the undo logs."""
    floor, expected, store = before.state.floor, before.revivable.below(before.reachable), HistoryStore(copy, leaves)
    with copy.read() as txn:
        kinds = check_runs.kept(View(txn, copy.tables, progress))
    for target in range(before.state.tip - 1, floor - 1, -_BACK):
        copy.write(partial(_roll_back, store, kinds, range(target, max(target - _BACK, floor - 1), -1)))
    with copy.read() as txn:
        after = View(txn, copy.tables, progress)
        for finding in _each({"tables": partial(_tables, after), "mountain ranges": partial(ranges, store, txn)}):
            yield f"after rolling blocks back to {floor}: {finding}"
        if after.live != expected:
            yield f"after rolling blocks back to {floor}: the unspent outputs differ from those in the undo logs"


def _roll_back(store: HistoryStore, kinds: list[str], targets: range, txn: Txn) -> None:
    history = store.history_of(kinds)
    history.load(txn)
    for target in targets:
        history.rollback(txn, target)
    history.save(txn)
