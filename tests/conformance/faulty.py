"""Faults that the conformance cases set: steps that fail, and steps at which the process dies. Each happens once."""

from __future__ import annotations

import re
from collections.abc import Callable
from contextlib import suppress
from functools import partial
from pathlib import Path
from threading import Lock as Mutex
from typing import NoReturn, TypeVar

from handlers.batch import Batch
from handlers.chain import Chain
from handlers.transactions import Transactions, TxView
from storage.blobs import BlobFailed, Files
from storage.disk import Txn
from storage.errors import StoreFull
from storage.pool_layout import Lock, Page, Record
from storage.pool_rows import PoolRows

_T = TypeVar("_T")

# Where a process may die while it creates a transaction: before or after a step, of one page if a number says which.
CRASHES: list[tuple[str, str, str]] = [
    (r"(before)?lock(acquire)?|start", "before", "lock.acquire"),
    (r"afterlock(acquired?)?|afteracquire|beforeblob|lock\.acquired?", "after", "lock.acquire"),
    (r"afterblob(write)?|beforerecords?|blob\.written", "before", "record.write"),
    (r"(after)?record(s|\.write)?:(?P<n>\d+)", "after", "record.write"),
    (r"afterrecords?|afterphase1|beforephase2|betweenphases|beforeclear(ing|creating)?", "before", "clearCreating"),
    (r"(after)?clear(creating|ed)?:(?P<n>\d+)", "after", "clearCreating"),
    (r"afterchild(ren)?(clear(ed)?)?|afterclear(ing)?child(ren)?|before(clear)?master(clear)?|betweenclears?", "before",
     "clearCreating:0"),
    (r"after(clear)?master(clear(ed)?)?|afterphase2|afterclear(ing|creating)?|before(lock)?release", "before",
     "lock.release"),
    (r"after(lock)?release", "after", "lock.release"),
]  # fmt: skip

# And by the word alone, where a case has a name of its own for it.
CRASH_WORDS = [
    ("release", "before", "lock.release"),
    ("master", "before", "clearCreating:0"),
    ("child", "before", "clearCreating:0"),
    ("clear", "before", "clearCreating:0"),
    ("record", "before", "clearCreating"),
    ("phase", "before", "clearCreating"),
    ("blob", "before", "record.write"),
    ("lock", "after", "lock.acquire"),
]

KNOWN = (
    r"crash\.|processConflicting|record\.(write|remove|update|delete)|clearCreating|parentUpdate|preserveParents"
    r"|lock\.(acquire|release)|blob\.(write|read|delete|missing|exists)|expirePreservations|prune$"
    r"|spend$|unspend$|setMined|setLocked|setConflicting|mark|freeze$|unfreeze$|reassign$|preserve"
)
_PRUNING = {"crash.blob": "blob|file", "crash.parent": "parent|marker", "crash.delete": "delete|record"}


class Crash(BaseException):
    """The process is gone: nothing may catch this, and no step runs after it."""


class Faults:
    """The faults that are set, and what the store has gone through."""

    def __init__(self, name: Callable[[bytes], str]) -> None:
        self.set: list[str] = []
        self.dead = self.pruning = False
        self.seen_creating: set[bytes] = set()
        self.seen_locks: set[bytes] = set()
        self._name, self._mutex = name, Mutex()

    def hit(self, step: str, where: str = "") -> bool:
        """Return whether a step is to fail, and take that fault. `where` is a number, or begins with a txid in hex."""
        names = {where, where.partition(".")[0]}
        with suppress(ValueError):
            names.add(self._name(bytes.fromhex(where.partition(".")[0])))
        return self._take(lambda kind, at: kind == step and (not at or at in names))

    def crashes(self, when: str, step: str) -> bool:
        """Return whether the process dies before or after a step of a creation."""
        here = {(when, step), (when, step.partition(":")[0])}
        return self._take(lambda kind, at: kind.startswith("crash.") and _point(f"{kind}:{at}" if at else kind) in here)

    def dies_pruning(self, step: str) -> None:
        """Die inside the pruner's commit, if a fault says so."""
        if self.pruning and self._take(lambda kind, _: kind.startswith("crash.") and _has(_PRUNING[step], kind)):
            self.die()

    def dies_in(self, step: str) -> bool:
        """Return whether the process dies in the one commit of an op."""
        return self._take(lambda kind, _: kind.lower().startswith(f"crash.{step.partition(':')[0]}".lower()))

    def _take(self, wanted: Callable[[str, str], bool]) -> bool:
        for fault in self.set:
            kind, _, at = fault.partition(":")
            if wanted(kind, at):
                self.set.remove(fault)
                return True
        return False

    def die(self) -> NoReturn:
        self.dead = True
        raise Crash

    def write(self, commit: Callable[[Callable[[TxView], _T]], _T], work: Callable[[TxView], _T], step: str = "") -> _T:
        """Commit one step, unless a fault is set for it: a failed step has changed nothing."""
        if self.dead or self.crashes("before", step):
            self.die()

        def watched(view: TxView) -> _T:
            result = work(view)
            if step and self.hit(*step.split(":")):
                raise StoreFull(f"{step} was not written")
            return result

        with self._mutex:
            result = commit(watched)
        if self.crashes("after", step):
            self.die()
        return result


def step_name(step: Callable[[TxView], object]) -> str:
    """Return the name that the cases have for a step of a creation; empty if it is none."""
    bound, numbers = (step.func, step.args) if isinstance(step, partial) else (step, ())
    names = {
        "begin": "lock.acquire",
        "page": "record.write:{}",
        "clear": "clearCreating:{}",
        "clear_master": "clearCreating:0",
        "remove": "record.remove:{}",
        "end": "lock.release",
    }
    return names.get(bound.__name__, "").format(*numbers)


def _has(words: str, fault: str) -> bool:
    return re.search(words, fault, re.IGNORECASE) is not None


def _point(fault: str) -> tuple[str, str] | None:
    """Return at which step of a creation a process dies, and whether before or after it."""
    name = fault.removeprefix("crash.").removeprefix("create.")
    for pattern, moment, where in CRASHES:
        if found := re.fullmatch(pattern, name, re.IGNORECASE):
            number = found.groupdict().get("n")
            return moment, where if number is None else f"{where}:{number}"
    return next(((moment, where) for word, moment, where in CRASH_WORDS if word in name.lower()), None)


class FaultyFiles(Files):
    """Blobs as files; a call that a fault is meant for fails."""

    def __init__(self, root: Path, faults: Faults) -> None:
        super().__init__(root)
        self._faults = faults

    def put(self, name: str, data: bytes) -> None:
        if self._faults.dead:
            raise Crash
        if self._faults.hit("blob.write", name):
            raise BlobFailed(f"{name} was not written")
        super().put(name, data)

    def get(self, name: str) -> bytes | None:
        if self._faults.hit("blob.read", name):
            raise BlobFailed(f"{name} was not read")
        return super().get(name)

    def delete(self, name: str) -> bool:
        if self._faults.hit("blob.delete", name):
            raise BlobFailed(f"{name} was not deleted")
        found = super().delete(name)
        self._faults.dies_pruning("crash.blob")
        return found


class FaultyRows(PoolRows):
    """The rows of a write; a change of a record that a fault is meant for fails."""

    faults: Faults

    def put(self, txid: bytes, record: Record) -> None:
        self._watch(txid, 0, record)
        super().put(txid, record)
        self.faults.dies_pruning("crash.parent")

    def add(self, txid: bytes, record: Record) -> None:
        self._watch(txid, 0, record)
        super().add(txid, record)

    def put_page(self, txid: bytes, number: int, page: Page) -> None:
        self._watch(txid, number, page)
        super().put_page(txid, number, page)
        self.faults.dies_pruning("crash.parent")

    def _watch(self, txid: bytes, number: int, page: Page) -> None:
        if page.creating:
            self.faults.seen_creating.add(txid)
        updates = self.faults.pruning and self.faults.hit("parentUpdate", txid.hex())
        if updates or self.faults.hit("record.update", txid.hex()):
            raise StoreFull(f"page {number} of {txid.hex()} was not written")

    def put_lock(self, txid: bytes, lock: Lock | None) -> None:
        if lock is not None:
            self.faults.seen_locks.add(txid)
        super().put_lock(txid, lock)

    def remove(self, txid: bytes, number: int | None = None) -> None:
        if number is None and self.faults.hit("record.delete", txid.hex()):
            raise StoreFull(f"{txid.hex()} was not removed")
        super().remove(txid, number)
        if number is None:
            self.faults.dies_pruning("crash.delete")


class FaultyTransactions(Transactions):
    """Transactions whose views change faulty rows."""

    faults: Faults

    def view(self, txn: Txn, tip: int | None = None) -> TxView:
        view = super().view(txn, tip)
        view.rows = FaultyRows(self.pool, txn)
        view.rows.faults = self.faults
        return view


class FaultyChain(Chain):
    """A chain whose commits fail, or are the last of the process, where a fault is set for them."""

    faults: Faults
    named = ""

    def _take_steps(self, txn: Txn, batch: Batch) -> None:
        super()._take_steps(txn, batch)
        if not self.named:
            return
        if self.faults.hit(*self.named.split(":")):
            raise StoreFull(f"{self.named} was not written")
        if self.faults.crashes("before", self.named) or self.faults.dies_in(self.named):
            self.faults.die()

    def commit(self) -> None:
        super().commit()
        if self.named and self.faults.crashes("after", self.named):
            self.faults.die()

    def write_alone(self, step: Callable[[TxView], _T]) -> _T:
        result: _T = self.faults.write(super().write_alone, step, step_name(step))
        return result
