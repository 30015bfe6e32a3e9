"""One cycle of the pruner: its phases in order, as a row of bounded turns, each with what it did in one commit."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator
from itertools import islice
from time import monotonic, time
from typing import Literal, NamedTuple, Protocol, TypeVar

import msgspec
import structlog
from msgspec import Struct

from handlers.burial import Burial, Deleted, Expired, Place, Preserved
from handlers.change_log import ChangeLog
from handlers.events import TxStatusChanged
from handlers.prune_request import Trigger
from storage.blobs import BlobFailed
from storage.disk import Txn
from storage.jobs import Job, JobStore
from storage.windows import Gone

log = structlog.get_logger("pruner")

Phase = Literal["preserve", "expire", "transactions", "pages", "blobs", "undo"]
PHASES: tuple[Phase, ...] = ("preserve", "expire", "transactions", "pages", "blobs", "undo")
REASONS = ("preserved", "creating", "reassigned", "unmined_child", "unstable_child", "unreadable_child")
_ORPHAN_S = 3600.0  # age at which a blob without a record is nobody's: it is put before its record
_NAMES = 500  # blobs that are looked at in a turn
_DELETING_S = 0.02  # how long a turn deletes orphans

_T = TypeVar("_T")


class Terms(Struct, frozen=True):
    """What the configuration says of pruning."""

    trigger: Trigger = "auto"
    retention: int = 288
    unmined_retention: int = 144
    chunk_size: int = 1000
    batch_size: int = 500
    defensive: bool = False
    progress_every_s: float = 30.0
    job_timeout_s: float = 600.0
    history: int = 1000


class Rows(Protocol):
    """What no rollback can reach in the chain's own tables."""

    def due(self) -> bool:
        """Return whether there is some."""

    def step(self) -> Gone | None:
        """Remove a bounded number of them; None while blocks wait for their commit."""


class NoRows:
    """Without a UTXO store there are none."""

    def due(self) -> bool:
        """Return that there are none."""
        return False

    def step(self) -> Gone | None:
        """Remove nothing."""
        return Gone()


class Turn(NamedTuple):
    """A piece of a cycle's work. What only speaks to the blob store keeps off the writer's thread."""

    work: Callable[[], None]
    writes: bool = True


class Cycle:
    """One cycle: `turns` are to be run one after the other; what they did is in `job`."""

    def __init__(
        self,
        terms: Terms,
        jobs: JobStore,
        changes: ChangeLog,
        burial: Burial | None,
        rows: Rows,
        job: Job,
        *,
        sweeps: bool = False,
    ) -> None:
        self.terms, self.jobs, self.changes, self.burial, self.rows, self.job = terms, jobs, changes, burial, rows, job
        self.sweeps = sweeps
        self.deleted: list[bytes] = []  # since somebody took them
        self.waits = False  # blocks go first: look again in a moment
        self._more = True
        self._after: Place | None = None
        self._burdened: list[tuple[Place, str]] = []
        self._free: list[Place] = []
        self._logged: set[bytes] = set()
        self._names: Iterator[tuple[str, float]] = iter(())
        self._old: list[str] = []

    def turns(self) -> Iterator[Turn]:
        """Yield the cycle's work in order. What raises ends the cycle."""
        burial, job = self.burial, self.job
        if burial is not None and self._anything(burial):
            yield from self._phase("preserve", self._preserve)
            yield from self._phase("expire", self._expire)
            began = monotonic()
            for turn in self._phase("transactions", self._delete):
                yield turn
                if self._burdened:
                    yield Turn(self._delete_blobs, writes=False)
                    yield Turn(self._delete_freed)
            self._took("transactions", monotonic() - began)
            if self._left():
                yield from self._phase("pages", self._sweep)
        if burial is not None and self.sweeps:
            yield from self._sweep_blobs(burial)
        if self.rows.due():
            yield from self._phase("undo", self._prune)
        self.job = job = msgspec.structs.replace(self.job, state="done", phase=None, finished_at=time())
        yield Turn(lambda: self.jobs.disk.write(lambda txn: self.jobs.put(txn, job, self.terms.history)))

    def _phase(self, phase: Phase, step: Callable[[], None]) -> Iterator[Turn]:
        self.job = msgspec.structs.replace(self.job, phase=phase)
        self._more, self._after, began = True, None, monotonic()
        while self._more:
            yield Turn(step)
        self._took(phase, monotonic() - began)

    def _took(self, phase: Phase, seconds: float) -> None:
        self.job = msgspec.structs.replace(self.job, seconds={**self.job.seconds, phase: round(seconds, 6)})

    def _anything(self, burial: Burial) -> bool:
        """Return whether transactions have to be looked at; most cycles at the tip find none and cost one commit."""
        with self.jobs.disk.read() as txn:
            return burial.busy(txn, self.job.height, self.job.safe_height or 0) or self.jobs.anything_left(txn)

    def _left(self) -> bool:
        with self.jobs.disk.read() as txn:
            return self.jobs.anything_left(txn)

    def _write(self, step: Callable[[Txn], _T], account: Callable[[Job, _T], Job]) -> _T:
        """Commit a step together with the job that says what it did."""

        def work(txn: Txn) -> tuple[_T, Job]:
            done = step(txn)
            job = account(self.job, done)
            self.jobs.put(txn, job, self.terms.history)
            return done, job

        done, self.job = self.changes.write(work)
        return done

    def _preserve(self) -> None:
        burial = self._burial()

        def account(job: Job, step: Preserved) -> Job:
            return counted(job, old_unmined=step.processed, parents_preserved=step.parents)

        step = self._write(
            lambda txn: burial.preserve_step(txn, self.job.height, self.terms.batch_size, self._after), account
        )
        self._after, self._more = step.next, step.next is not None

    def _expire(self) -> None:
        burial = self._burial()

        def account(job: Job, step: Expired) -> Job:
            return counted(job, preservations_ended=step.ended, errors=len(step.errors))

        step = self._write(
            lambda txn: burial.expire_preservations(txn, self.job.height, self.terms.batch_size, self._after), account
        )
        self._complain("expire", step.errors)
        self._after, self._more = step.next, step.next is not None

    def _delete(self) -> None:
        burial, terms, safe = self._burial(), self.terms, self.job.safe_height or 0
        if safe <= 0:
            self._more = False
            return

        def step(txn: Txn) -> Deleted:
            done = burial.delete_due(
                txn,
                safe,
                terms.chunk_size,
                defensive=terms.defensive,
                after=self._after,
                max_rows=terms.batch_size,
                blobs=False,
            )
            return self._deleted(txn, done)

        done = self._write(step, _deleted)
        self._take(done)
        self._burdened = done.burdened
        self._after, self._more = done.next, done.next is not None

    def _delete_blobs(self) -> None:
        """Delete blobs. One that can't be keeps its record, for the next cycle."""
        burdened, self._burdened, self._free = self._burdened, [], []
        errors: dict[bytes, str] = {}
        for place, name in burdened:
            try:
                self._burial().transactions.blobs.delete(name)
            except BlobFailed as error:
                errors[place.txid] = str(error)
            else:
                self._free.append(place)
        self.job = counted(self.job, errors=len(errors))
        self._complain("blobs", errors)

    def _delete_freed(self) -> None:
        burial, free, safe = self._burial(), self._free, self.job.safe_height or 0

        def step(txn: Txn) -> Deleted:
            return self._deleted(txn, burial.delete_these(txn, free, safe, defensive=self.terms.defensive))

        self._take(self._write(step, _deleted))

    def _deleted(self, txn: Txn, done: Deleted) -> Deleted:
        """Remember what is left of deleted transactions, and tell of them."""
        self.jobs.leave(txn, done.left)
        for txid in done.deleted:
            self.changes.tell(TxStatusChanged(txid=txid, status="pruned", height=self.job.height))
        return done

    def _take(self, done: Deleted) -> None:
        self.deleted += done.deleted
        self._complain("transactions", done.errors)
        for txid, why in done.skipped.items():
            log.debug("transaction_kept", txid=txid.hex(), reason=why)

    def _sweep(self) -> None:
        """Remove one page that a large transaction has left."""
        burial = self._burial()

        def step(txn: Txn) -> int:
            if (page := self.jobs.next_left(txn)) is None:
                return 0
            burial.sweep_page(txn, *page)
            return 1

        self._more = self._write(step, lambda job, pages: counted(job, pages_removed=pages)) > 0

    def _sweep_blobs(self, burial: Burial) -> Iterator[Turn]:
        """Delete blobs that an interruption has left without a record."""
        self.job = msgspec.structs.replace(self.job, phase="blobs")
        began, self._more, self._names = monotonic(), True, burial.transactions.blobs.names()
        while self._more:
            yield Turn(self._list_blobs, writes=False)
            while self._old:
                yield Turn(self._delete_orphans)
        self._took("blobs", monotonic() - began)

    def _list_blobs(self) -> None:
        try:
            names = list(islice(self._names, _NAMES))
        except BlobFailed as error:
            self.job, names = counted(self.job, errors=1), []
            log.warning("blobs_not_swept", error=str(error))
        self._more = bool(names)
        self._old = [name for name, age in names if age > _ORPHAN_S]

    def _delete_orphans(self) -> None:
        """Delete some of those that no record speaks of, in the writer's turn: so none can come between."""
        burial, until = self._burial(), monotonic() + _DELETING_S
        with self.jobs.disk.read() as txn:
            orphans = [name for name in self._old if not burial.transactions.speaks_of(txn, bytes.fromhex(name[:64]))]
        deleted = failed = 0
        while orphans and (monotonic() < until or not deleted + failed):
            try:
                deleted += burial.transactions.blobs.delete(orphans.pop())
            except BlobFailed as error:
                failed += 1
                log.warning("blobs_not_swept", error=str(error))
        self._old = orphans
        self.job = counted(self.job, orphans_deleted=deleted, errors=failed)

    def _prune(self) -> None:
        gone = self.rows.step()
        self.waits = gone is None
        if gone is not None:
            self.job = counted(
                self.job,
                outputs_removed=gone.spent_outputs,
                chain_transactions_removed=gone.transactions,
                undo_records_removed=gone.undo_records,
                mmr_nodes_removed=gone.mmr_nodes,
            )
            self._more = self.rows.due()

    def _burial(self) -> Burial:
        assert self.burial is not None
        return self.burial

    def _complain(self, during: str, errors: dict[bytes, str]) -> None:
        """Say once a turn what could not be done, with one sample."""
        new = {txid: why for txid, why in errors.items() if txid not in self._logged}
        self._logged.update(new)
        if new:
            txid, why = next(iter(new.items()))
            log.error("records_skipped", during=during, count=len(new), first=txid.hex(), error=why)


def _deleted(job: Job, done: Deleted) -> Job:
    skipped = Counter(job.skipped)
    skipped.update(done.skipped.values())
    return counted(
        msgspec.structs.replace(job, skipped=dict(skipped)),
        transactions_deleted=len(done.deleted),
        records_deleted=done.records,
        parents_updated=done.parents,
        blobs_deleted=len(done.blobs),
        errors=len(done.errors),
    )


def counted(job: Job, **more: int) -> Job:
    """Return a job that has done so much more."""
    counts = dict(job.counts)
    for name, count in more.items():
        if count:
            counts[name] = counts.get(name, 0) + count
    return msgspec.structs.replace(job, counts=counts)
