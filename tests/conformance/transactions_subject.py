"""The conformance cases' words, carried out by the real transaction store on a real disk.

Every op runs the code that the daemon runs, in write transactions of a real LMDB environment and with files as blobs.
Letters become txids. A fault is a step that fails, or after which the process is gone: then the disk is closed and
opened again, and nothing that was only in memory is left.
"""

from __future__ import annotations

import asyncio
import re
import shutil
import tempfile
import weakref
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from functools import partial
from hashlib import blake2b
from pathlib import Path
from threading import Lock as Mutex
from typing import Any, TypeVar

from houses import ALL_TABLES, chain_txs, create, look, open_store
from pruning import run_through

from handlers import conflicts, new_records, spending, states, tx_startup
from handlers.bodies import body
from handlers.creation import Creation, acquire, lock_ttl, release
from handlers.deletion import Deletion, safe_height
from handlers.events import OutPoint, Output, Tx, TxStatusChanged
from handlers.prune_cycle import Cycle, Terms
from handlers.prune_request import Node, Request, Requests, World, held_back
from handlers.pruner import Pruner
from handlers.spending import Fault, TxFault
from handlers.transactions import PLACEHOLDER, Mined, Rules, Transactions, blob_name
from handlers.waiting import WaitingList
from storage.blobs import BlobFailed, Files
from storage.disk import Disk, Txn
from storage.errors import StoreError, StoreFull
from storage.ghost_records import GhostTxStore
from storage.jobs import JobStore
from storage.transactions import FROZEN, HASH, HIGHEST, Page, Record, claim, claimant, output_hash

Op = dict[str, Any]
_T = TypeVar("_T")

DEFAULTS: Op = {
    "batchSize": 128,
    "retention": 10,
    "coinbaseMaturity": 100,
    "blockHeight": 0,
    "persistedHeight": 0,
    "defensive": False,
    "unminedTxRetention": 5,
    "parentPreservationBlocks": 1440,
    "reassignDelay": 1000,
    "inlineLimit": 1 << 20,
    "external": False,
}
POKED = {  # a field of the cases → of a page
    "spentUtxos": "spent",
    "recordUtxos": "recorded",
    "totalUtxos": "total",
    "totalExtraRecs": "pages",
    "spentExtraRecs": "spent_pages",
    "deleteAtHeight": "delete_at",
    "preserveUntil": "preserve_until",
    "unminedSince": "unmined_since",
    "blockIDs": "block_ids",
    "blockHeights": "block_heights",
    "subtreeIdxs": "subtree_idxs",
    "spendingHeight": "spending_height",
    "isCoinbase": "is_coinbase",
    "createdAt": "created_at",
    "creating": "creating",
    "locked": "locked",
    "conflicting": "conflicting",
    "external": "external",
    "fee": "fee",
    "size": "size",
}
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

FAULTS = (
    r"crash\.|processConflicting|record\.(write|remove|update|delete)|clearCreating|parentUpdate|preserveParents"
    r"|lock\.(acquire|release)|blob\.(write|read|delete|missing|exists)|expirePreservations|prune$"
    r"|spend$|unspend$|setMined|setLocked|setConflicting|mark|freeze$|unfreeze$|reassign$|preserve"
)


class Crash(BaseException):
    """The process is gone: nothing may catch this, and no step runs after it."""


class Input(dict[str, Any]):
    """What is said of an input that can't be spent. The cases name some by the code alone, and so it equals that."""

    def __eq__(self, other: object) -> bool:
        return self["code"] == other if isinstance(other, str) else super().__eq__(other)

    def __ne__(self, other: object) -> bool:
        return not self == other

    __hash__ = None


class FaultyFiles(Files):
    """Blobs as files; a call that a fault is meant for fails."""

    def __init__(self, root: Path, hit: Callable[..., bool]) -> None:
        super().__init__(root)
        self._hit = hit

    def put(self, name: str, data: bytes) -> None:
        if self._hit("blob.write", name):
            raise BlobFailed(f"{name} was not written")
        super().put(name, data)

    def get(self, name: str) -> bytes | None:
        if self._hit("blob.read", name):
            raise BlobFailed(f"{name} was not read")
        return super().get(name)

    def delete(self, name: str) -> bool:
        if self._hit("blob.delete", name):
            raise BlobFailed(f"{name} was not deleted")
        found = super().delete(name)
        self._hit("crash.blob", name)
        return found


class FaultyStore(GhostTxStore):
    """The tables; a write of a record that a fault is meant for fails."""

    def __init__(self, disk: Disk, hit: Callable[..., bool]) -> None:
        super().__init__(disk)
        self._hit = hit

    def put_page(self, txn: Txn, txid: bytes, number: int, page: Page) -> None:
        if self._hit("parentUpdate", txid.hex()) or self._hit("record.update", txid.hex()):
            raise StoreFull(f"page {number} of {txid.hex()} was not written")
        super().put_page(txn, txid, number, page)
        self._hit("crash.parent", txid.hex())

    def remove(self, txn: Txn, txid: bytes) -> int:
        if self._hit("record.delete", txid.hex()):
            raise StoreFull(f"{txid.hex()} was not removed")
        pages = super().remove(txn, txid)
        self._hit("crash.delete", txid.hex())
        return pages


def txid_of(name: str) -> bytes:
    return PLACEHOLDER if name in ("COINBASE_PLACEHOLDER", "FROZEN") else digest(f"tx {name}")


def digest(name: str) -> bytes:
    return blake2b(name.encode(), digest_size=HASH).digest()


def split(out: str) -> tuple[str, int]:
    name, _, number = out.rpartition(":")
    return name, int(number)


class Subject:
    """One store, empty at first, that is told the ops of a case."""

    def __init__(self) -> None:
        self.folder = Path(tempfile.mkdtemp(prefix="utxod-case-"))
        self.config = dict(DEFAULTS)
        self.now = 1_700_000_000.0
        self.names: dict[bytes, str] = {PLACEHOLDER: "FROZEN"}
        self.made: dict[str, list[Output]] = {}
        self.had_creating: set[bytes] = set()
        self.had_lock: set[bytes] = set()
        self.last = ""
        self.faults: list[str] = []
        self.node: Op = {}  # what block assembly said last
        self.runs = 0  # of the pruner
        self._pruning = False
        self.blobs = FaultyFiles(self.folder / "blobs", self.hit)
        self._mutex = Mutex()
        self._dead = self._interleaved = False
        self._disks: list[Disk] = []
        self._open()
        weakref.finalize(self, _remove, self._disks, self.folder)

    def close(self) -> None:
        _remove(self._disks, self.folder)

    def _open(self) -> None:
        self.disk = Disk(self.folder / "lmdb", ALL_TABLES, map_size=1 << 26, durable=False)
        self._disks[:] = [self.disk]
        self.store = FaultyStore(self.disk, self.hit)
        blocks = open_store(self.disk, chain="bitcoin/mainnet")
        mined = chain_txs(blocks, self.config["coinbaseMaturity"], self.store)
        self.transactions = Transactions(mined, self.blobs, self._rules())
        self.transactions.height = self.config["blockHeight"]
        self.pruner = Pruner(self._terms(), JobStore(self.disk), self.deletion)
        self.pruner.begin()
        self.pruner.requests.spoken = bool(self.config["persistedHeight"])

    def _restart(self) -> None:
        self.disk.close()
        self._dead = False
        self._open()

    def _rules(self, **changed: Any) -> Rules:
        config = self.config | changed
        return Rules(
            batch_size=config["batchSize"],
            retention=config["retention"],
            maturity=config["coinbaseMaturity"],
            reassign_delay=config["reassignDelay"],
            max_inline_bytes=config["inlineLimit"],
            externalize_all=bool(config["external"]),
        )

    def _tick(self) -> int:
        """Return the time in milliseconds; one passes from op to op."""
        self.now += 0.001
        return round(self.now * 1000)

    # --- names -------------------------------------------------------------------------------------------------------

    def txid(self, name: str) -> bytes:
        txid = txid_of(name)
        self.names.setdefault(txid, name)
        return txid

    def name(self, txid: bytes) -> str:
        return self.names.get(txid, txid.hex())

    def outpoint(self, out: str) -> OutPoint:
        name, index = split(out)
        return self.txid(name), index

    def outpoints(self, ins: str | list[str]) -> list[OutPoint]:
        if isinstance(ins, str):
            name = ins.split()[-1]
            return [(self.txid(name), n) for n, output in enumerate(self.made[name]) if output.spendable]
        return [self.outpoint(out) for out in ins]

    def by(self, spender: str) -> bytes:
        if spender == "FROZEN":
            return FROZEN
        name, index = split(spender)
        return claim(self.txid(name), index)

    def spender(self, by: tuple[bytes, int] | None) -> str | None:
        return None if by is None else f"{self.name(by[0])}:{by[1]}"

    def hash(self, outpoint: OutPoint, named: str | None) -> bytes | None:
        """Return the hash that a case means: by itself, that of the output's first owner."""
        if named is not None and named not in ("old", "original", "right", "correct"):
            return digest(f"hash {named}")
        outputs = self.made.get(self.name(outpoint[0]), [])
        if outpoint[1] >= len(outputs):
            return None
        output = outputs[outpoint[1]]
        return output_hash(*outpoint, body(output))

    # --- writing, and what goes wrong --------------------------------------------------------------------------------

    def hit(self, *wanted: str) -> bool:
        """Return whether a fault is set for a step, and take it: a fault happens once."""
        step, where = wanted[0], wanted[1] if len(wanted) > 1 else ""
        if step.startswith("crash."):
            return self._crash_while_pruning(step)
        for fault in self.faults:
            kind, _, at = fault.partition(":")
            names = {where, where.partition(".")[0]}
            with suppress(ValueError):
                names.add(self.name(bytes.fromhex(where.partition(".")[0])))
            if kind == step and (not at or at in names):
                self.faults.remove(fault)
                return True
        return False

    def _crash_while_pruning(self, step: str) -> bool:
        """Die inside the pruner's one commit, if a fault says so."""
        if self._pruning:
            words = {"crash.blob": "blob|file", "crash.parent": "parent|marker", "crash.delete": "delete|record"}[step]
            for fault in self.faults:
                if fault.startswith("crash.") and re.search(words, fault, re.IGNORECASE):
                    self.faults.remove(fault)
                    self._die()
        return False

    def _crashes(self, when: str, step: str) -> bool:
        for fault in self.faults:
            if fault.startswith("crash.") and (point := _crash_point(fault)):
                moment, at = point
                if moment == when and at in (step, step.partition(":")[0]):
                    self.faults.remove(fault)
                    return True
        return False

    def write(self, work: Callable[[Txn], _T], step: str = "") -> _T:
        """Commit one step, unless a fault is set for it: a failed step has changed nothing."""
        if self._dead or self._crashes("before", step):
            self._die()

        def watched(txn: Txn) -> _T:
            result = work(txn)
            kind, _, number = step.partition(":")
            if step and self.hit(kind, number):
                raise StoreFull(f"{step} was not written")
            return result

        with self._mutex:
            result = self.disk.write(watched)
        if self._crashes("after", step):
            self._die()
        return result

    def _die(self) -> None:
        self._dead = True
        raise Crash

    async def write_step(self, step: Callable[[Txn], _T]) -> _T:
        """Commit a step of a creation; others get their turn between two."""
        name = _step(step)
        if not self._interleaved:
            return self.write(step, name)
        return await asyncio.to_thread(self.write, step, name)

    async def put_blob(self, name: str, data: bytes) -> None:
        if self._dead:
            self._die()
        self.blobs.put(name, data)

    # --- ops ---------------------------------------------------------------------------------------------------------

    def run(self, op: Op) -> Op:
        """Carry out one op and return what it says."""
        self.now += op.get("afterSeconds", 0)
        self._pruning = op["op"] in ("prune", "pruneCycle", "workerTake")
        try:
            result = asyncio.run(self._run(op))
        except Crash:
            result = {"result": "error", "code": "CRASH"}
        if self._dead or op.get("thenRestart"):
            self._restart()
            if op.get("thenRestart"):
                result = {"result": "ok"}
        return result

    async def _run(self, op: Op) -> Op:
        name = op["op"]
        try:
            if name == "create":
                await self._create(op)
                return {"result": "ok"}
            if name in ("concurrent", "bulk"):
                return await self._many(op, parallel=name == "concurrent")
            work: Callable[[Op], Op | None] = getattr(self, f"op_{name}")
            return {"result": "ok", **(work(op) or {})}
        except TxFault as fault:
            return self._refused(op, fault)
        except BlobFailed:
            return {"result": "error", "code": "STORAGE_ERROR"}
        except StoreError:
            return {"result": "error", "code": "STORAGE_ERROR"}

    def _refused(self, op: Op, fault: TxFault) -> Op:
        answer: Op = {"result": "error", "code": fault.code}
        if fault.code == "UTXO_ERROR":
            inputs = op.get("ins")
            count = len(self.outpoints(inputs)) if inputs else max(fault.inputs, default=-1) + 1
            answer["perInput"] = {str(n): self._input(fault.inputs.get(n)) for n in range(count)}
        elif 0 in fault.inputs:
            answer["existing"] = self.spender(fault.inputs[0].spender)
        return answer

    def _input(self, fault: Fault | None) -> str | Input:
        if fault is None:
            return "ok"
        if fault.spender is None:
            return fault.code
        return Input(code=fault.code, conflictingTx=self.name(fault.spender[0]))

    async def _many(self, op: Op, *, parallel: bool) -> Op:
        """Run ops many times. Parallel ones hop to threads of their own, and meet at the one writer."""
        if "pre" in op:
            await self._run(op["pre"])
        each = op.get("mix") or op.get("ops") or op.get("do")
        each = each if isinstance(each, list) else [each]
        jobs = [_numbered(one, n) for n in range(op["n"]) for one in each]
        if parallel:
            self._interleaved = True
            answers = await asyncio.gather(*map(self._one_of_many, jobs))
            self._interleaved = False
        else:
            answers = [await self._run(job) for job in jobs]
        codes = [_short(answer) for answer in answers]
        others = sorted({code for code in codes if code != "ok"})
        by_tx: dict[str, set[str]] = {}
        for job, code in zip(jobs, codes, strict=True):
            by_tx.setdefault(job.get("tx", ""), set()).add(code)
        return {
            "result": "ok",
            "successes": codes.count("ok"),
            "failures": len(codes) - codes.count("ok"),
            "others": others[0] if len(others) == 1 else others or None,
            "allOf": {tx: min(found) if len(found) == 1 else sorted(found) for tx, found in by_tx.items()},
        }

    async def _one_of_many(self, op: Op) -> Op:
        if op["op"] == "create":  # its steps hop by themselves
            return await self._run(op)
        return await asyncio.to_thread(lambda: asyncio.run(self._run(op)))

    def op_config(self, op: Op) -> None:
        unknown = op.keys() - DEFAULTS.keys() - {"op"}
        if unknown:
            raise AssertionError(f"unknown configuration: {unknown}")
        self.config |= {key: value for key, value in op.items() if key != "op"}
        if "persistedHeight" in op:
            self.pruner.requests = Requests("auto", self.pruner.requests.done, op["persistedHeight"])
        self.transactions.rules = self._rules()
        self.transactions.height = self.config["blockHeight"]
        self.transactions.chain.maturity = self.config["coinbaseMaturity"]

    def op_setHeight(self, op: Op) -> None:
        self.config["blockHeight"] = self.transactions.height = op["h"]

    def op_fault(self, op: Op) -> None:
        kind, _, where = op["at"].partition(":")
        if not re.match(FAULTS, op["at"]):
            raise AssertionError(f"unknown step: {op['at']}")
        if kind == "blob.missing":
            for suffix in ("tx", "outputs"):
                Files(self.folder / "blobs").delete(f"{self.txid(where).hex()}.{suffix}")
            return
        if kind == "blob.exists":
            Files(self.folder / "blobs").put(f"{self.txid(where).hex()}.tx", b"there already")
            return
        self.faults.append(op["at"])

    # --- creating ----------------------------------------------------------------------------------------------------

    def tx(self, op: Op) -> Tx:
        name, lacking = op["tx"], set(op.get("nilOuts") or [])
        data, plain = set(op.get("zeroData") or []), set(op.get("zeroPlain") or [])
        outputs = [
            Output(
                (b"\x6a", b"\x00\x6a")[n % 2] if n in data else b"\x76" + digest(f"{name} {n}")[:20],
                0 if n in data | plain else 1000 + n,
                spendable=n not in lacking,
            )
            for n in range(op["outs"])
        ]
        inputs = self.outpoints(op.get("ins") or [])
        if not inputs and not op.get("partial") and not op.get("coinbase"):
            inputs = [self._root(name)]
        raw = (digest(f"raw {name}") * (op.get("size", 100) // HASH + 1))[: op.get("size", 100)]
        return Tx(self.txid(name), inputs, outputs, coinbase=bool(op.get("coinbase")), size=op.get("size"), raw=raw)

    def _root(self, name: str) -> OutPoint:
        """Return what a transaction spends of which the case doesn't say it: an output mined long ago, never spent."""
        txid = self.txid(f"root of {name}")
        root = Tx(txid, coinbase=True, outputs=[Output(b"\x51", 1)])

        def make(txn: Txn) -> None:
            if self.transactions.hold(txn, txid) is None:
                create(
                    self.transactions, txn, root, -self.config["coinbaseMaturity"], mined=[Mined(0, 0)], created_at=0
                )

        self.write(make)
        return txid, 0

    async def _create(self, op: Op) -> None:
        tx, transactions = self.tx(op), self.transactions
        self.last = op["tx"]
        self.made.setdefault(op["tx"], tx.outputs)
        transactions.rules = self._rules(external=op.get("external", self.config["external"]))
        about: Op = {
            "mined": [Mined(at["block"], at["height"], at.get("subtree")) for at in op.get("mined") or []],
            "locked": bool(op.get("locked")),
            "conflicting": bool(op.get("conflicting")),
            "created_at": op.get("createdAtMs", self._tick()),
        }
        if len(tx.outputs) > transactions.rules.batch_size:
            creation = Creation(
                transactions,
                tx,
                new_records.draft(transactions.rules, tx, op["height"], **about),
                spends=bool(op.get("spends")),
                clock=lambda: self.now,
            )
            await creation.run(partial(self._noted, tx.txid), self.put_blob)
            return
        if new_records.external(transactions.rules, tx) and tx.outputs:
            await self.put_blob(blob_name(tx.txid, partial=not tx.inputs and not tx.coinbase), tx.raw or b"")

        def make(txn: Txn) -> None:
            create(transactions, txn, tx, op["height"], **about)

        if self._interleaved:
            await asyncio.to_thread(self.write, make, "record.write:0")
        else:
            self.write(make, "record.write:0")
        self._note(tx.txid)

    async def _noted(self, txid: bytes, step: Callable[[Txn], _T]) -> _T:
        result = await self.write_step(step)
        self._note(txid)
        return result

    def _note(self, txid: bytes) -> None:
        with self.disk.read() as txn:
            record = self.store.record(txn, txid)
            if record is not None and record.creating:
                self.had_creating.add(txid)
            if self.store.lock(txn, txid) is not None:
                self.had_lock.add(txid)

    def op_lockTTL(self, op: Op) -> Op:
        return {"ttlSeconds": lock_ttl(op["records"])}

    def op_lockAcquire(self, op: Op) -> Op:
        self.last = op["tx"]
        txid, owner = self.txid(op["tx"]), op.get("owner", "somebody").encode()
        try:
            self.write(
                lambda txn: acquire(self.transactions, txn, txid, owner, op.get("records", 1), self.now), "lock.acquire"
            )
        except TxFault as fault:
            return {"result": "error", "code": fault.code, "lockOwner": self._lock_owner(txid)}
        return {"lockOwner": self._lock_owner(txid)}

    def op_lockRelease(self, op: Op) -> Op:
        txid = self.txid(op["tx"])
        self.last = op["tx"]
        released = self.write(lambda txn: release(self.transactions, txn, txid, op["owner"].encode()), "lock.release")
        return {"lockOwner": self._lock_owner(txid), "released": released}

    def _lock_owner(self, txid: bytes) -> str | None:
        with self.disk.read() as txn:
            lock = self.store.lock(txn, txid)
        return None if lock is None else lock.owner.decode(errors="backslashreplace")

    # --- spending ----------------------------------------------------------------------------------------------------

    def op_spend(self, op: Op) -> Op:
        outpoints = self.outpoints(op["ins"])
        wanted = {n: self.hash(outpoint, op.get("hash")) for n, outpoint in enumerate(outpoints)}
        with self._signals({txid for txid, _ in outpoints}) as signals:
            self.write(
                lambda txn: self.transactions.spend(
                    txn,
                    self.txid(op["tx"]),
                    outpoints,
                    op["height"],
                    wanted={n: value for n, value in wanted.items() if value is not None},
                    ignore_locked=bool(op.get("ignoreLocked")),
                    ignore_conflicting=bool(op.get("ignoreConflicting")),
                ),
                "spend",
            )
        return signals

    def op_spendRaw(self, op: Op) -> Op:
        """Spend one output at any input index, by the same checks and the same write as a whole transaction's."""
        outpoint = self.outpoint(op["out"])
        by = claim(self.txid(op["tx"]), op["vin"])

        def work(txn: Txn) -> None:
            held = self.transactions.hold(txn, outpoint[0])
            if held is None:
                raise TxFault("TX_NOT_FOUND", "")
            page, _, slot, row = self.transactions.slot(txn, held, outpoint[1])
            fault = spending.record_fault(
                held.record,
                op["height"],
                ignore_locked=bool(op.get("ignoreLocked")),
                ignore_conflicting=bool(op.get("ignoreConflicting")),
            ) or spending.slot_fault(page, slot, row, by, op["height"], self.hash(outpoint, op.get("hash")))
            if fault is not None:
                raise TxFault(fault.code, "", inputs={0: fault})
            self.transactions.take(txn, held, outpoint[1], by, op["height"])

        with self._signals({outpoint[0]}) as signals:
            self.write(work)
        return signals

    def op_unspend(self, op: Op) -> Op:
        outpoint = self.outpoint(op["out"])
        with self._signals({outpoint[0]}) as signals:
            self.write(
                lambda txn: self.transactions.unspend(txn, outpoint, self.by(op["by"]), op.get("height")), "unspend"
            )
        return signals

    @contextmanager
    def _signals(self, txids: set[bytes]) -> Iterator[Op]:
        """Say what an op did to a large transaction: its deletion was set or unset, or a page's state moved."""
        before = {txid: self._watched(txid) for txid in txids}
        found: Op = {"signal": None}
        yield found
        for txid in sorted(txids):
            then, now = before[txid], self._watched(txid)
            if then is None or now is None:
                continue
            if any(now[1][n] and not was for n, was in enumerate(then[1])):
                found["signal"] = found["signal"] or "ALLSPENT"
            if any(was and not now[1][n] for n, was in enumerate(then[1])):
                found["signal"] = found["signal"] or "NOTALLSPENT"
            if then[0] != now[0] and now[2]:
                found |= {"signal": "DAHUNSET" if now[0] is None else "DAHSET", "childCount": len(now[1])}

    def _watched(self, txid: bytes) -> tuple[int | None, list[bool], bool] | None:
        with self.disk.read() as txn:
            record = self.store.record(txn, txid)
            if record is None:
                return None
            pages = [self.store.page(txn, txid, number) for number in range(1, record.pages + 1)]
        return record.delete_at, [page is not None and page.all_spent for page in pages], record.external

    # --- the state of transactions -----------------------------------------------------------------------------------

    def _each(self, op: Op, work: Callable[[Txn, bytes], _T], step: str) -> tuple[dict[str, _T], Op]:
        """Do something to each transaction in a commit of its own; the first refusal is told, when all were tried."""
        done: dict[str, _T] = {}
        refusal: Op = {}
        txids = [self.txid(name) for name in op["txs"]]
        with self._signals(set(txids)) as signals:
            for txid in txids:
                try:
                    done[self.name(txid)] = self.write(partial(_apply, work, txid), f"{step}:{self.name(txid)}")
                except TxFault as fault:
                    refusal = refusal or {"result": "error", "code": fault.code}
        return done, signals | refusal

    def op_setMined(self, op: Op) -> Op:
        at = Mined(op["block"], op["height"], op.get("subtree"))
        longest, unset = op.get("longest", True), bool(op.get("unset"))
        blocks, more = self._each(
            op,
            lambda txn, txid: states.set_mined(self.transactions, txn, txid, at, longest=longest, unset=unset),
            "setMined",
        )
        return {"blockIDs": {name: ids for name, ids in blocks.items() if ids or not unset}, **more}

    def op_setLocked(self, op: Op) -> Op:
        pages, more = self._each(
            op, lambda txn, txid: states.set_locked(self.transactions, txn, txid, on=op["value"]), "setLocked"
        )
        return more | {"childCount": next(iter(pages.values()), None)}

    def op_setConflicting(self, op: Op) -> Op:
        with self._at(op.get("height")):
            _, more = self._each(
                op,
                lambda txn, txid: states.set_conflicting(self.transactions, txn, txid, on=op["value"]),
                "setConflicting",
            )
        with self.disk.read() as txn:
            txids = [self.txid(name) for name in op["txs"]]
            records = {txid: self.store.record(txn, txid) for txid in txids}
            spenders = [by for txid in txids if txid in records for by in self._spenders(txn, txid, records[txid])]
            spends = [out for txid in txids for out in self.store.body(txn, txid).inputs]
        return more | {
            "txs": [self.name(txid) for txid in dict.fromkeys(spenders)],
            "affectedSpends": [f"{self.name(txid)}:{index}" for txid, index in spends],
        }

    def _spenders(self, txn: Txn, txid: bytes, record: Record | None) -> list[bytes]:
        return [] if record is None else self.store.spenders(txn, txid, record)

    @contextmanager
    def _at(self, height: int | None) -> Iterator[None]:
        before = self.transactions.height
        self.transactions.height = before if height is None else height
        try:
            yield
        finally:
            self.transactions.height = before

    def op_markLongestChain(self, op: Op) -> Op:
        return self._each(op, lambda txn, txid: states.mark_longest(self.transactions, txn, txid, on=op["on"]), "mark")[
            1
        ]

    def op_freeze(self, op: Op) -> None:
        self._frozen(op, states.freeze)

    def op_unfreeze(self, op: Op) -> None:
        self._frozen(op, states.unfreeze)

    def _frozen(self, op: Op, work: Callable[[Transactions, Txn, OutPoint, bytes | None], None]) -> None:
        outpoint = self.outpoint(op["out"])
        wanted = self.hash(outpoint, op["hash"]) if "hash" in op else None
        self.write(lambda txn: work(self.transactions, txn, outpoint, wanted), op["op"])

    def op_reassign(self, op: Op) -> None:
        outpoint = self.outpoint(op["out"])
        wanted = self.hash(outpoint, op["hash"]) if "hash" in op else None
        new = digest(f"hash {op['newHash']}")
        self.write(lambda txn: states.reassign(self.transactions, txn, outpoint, new, b"heir", wanted), "reassign")

    def op_preserve(self, op: Op) -> Op:
        kept, more = self._each(
            op, lambda txn, txid: states.preserve(self.transactions, txn, txid, op["until"]), "preserve"
        )
        with self.disk.read() as txn:
            for name in kept:
                record = self.store.record(txn, self.txid(name))
                if record is not None and record.external:
                    more |= {"signal": "PRESERVE", "childCount": record.pages}
        return more

    def op_incSpentExtra(self, op: Op) -> Op:
        if "#" in op["tx"]:  # there is no naming a page of a transaction from outside: it is no transaction's id
            return {"result": "error", "code": "INVALID_PARAMETER"}
        txid = self.txid(op["tx"])
        with self._signals({txid}) as signals:
            self.write(lambda txn: states.count_spent_page(self.transactions, txn, txid, op["by"], op["height"]))
        return signals

    # --- conflicts ---------------------------------------------------------------------------------------------------

    def op_processConflicting(self, op: Op) -> Op:
        winners = [self.txid(name) for name in op["winners"]]
        with self._failing_conflicts():
            losers = self.write(
                lambda txn: conflicts.decide(self.transactions, txn, winners, op["height"]), "processConflicting"
            )
        return {"losers": [self.name(txid) for txid in losers]}

    @contextmanager
    def _failing_conflicts(self) -> Iterator[None]:
        """Let the process die, or the store fail, where one step of deciding a conflict follows another."""
        faults = [fault for fault in self.faults if "processConflicting" in fault]
        if not faults:
            yield
            return
        self.faults.remove(faults[0])
        number = int((re.findall(r"\d+", faults[0]) or ["1"])[-1])
        name = {1: "give_way", 2: "release", 3: "spend", 4: "set_conflicting", 5: ""}[number]
        owner = conflicts if number in {1, 4} else self.transactions
        real = getattr(owner, name) if name else None

        def dying(*args: Any, **options: Any) -> Any:
            if number == 4 and options.get("on"):  # the losers are being marked
                assert real is not None
                return real(*args, **options)
            if faults[0].startswith("crash."):
                self._die()
            raise StoreFull("the disk is full")

        if not name:
            yield
            self._die()
        setattr(owner, name, dying)
        try:
            yield
        finally:
            setattr(owner, name, real)

    def op_counterConflicting(self, op: Op) -> Op:
        return self._names(lambda txn: conflicts.counter_conflicting(self.transactions, txn, self.txid(op["tx"])))

    def op_conflictingChildren(self, op: Op) -> Op:
        return self._names(lambda txn: conflicts.descendants(self.transactions, txn, self.txid(op["tx"])))

    def op_lockChildren(self, op: Op) -> Op:
        return self._names(lambda txn: conflicts.lock_children(self.transactions, txn, self.txid(op["tx"])))

    def op_loadUnmined(self, op: Op) -> Op:
        def work(txn: Txn) -> list[bytes]:
            tx_startup.end_locks(self.transactions, txn)
            waiting = WaitingList(self.transactions, txn, "unmined", "parents_first")
            list(waiting.look(None, 0, 1000))
            return waiting.found

        found = self._names(work)
        return found | {"order": found["txs"]}

    def _names(self, work: Callable[[Txn], Sequence[bytes]]) -> Op:
        return {"txs": [self.name(txid) for txid in self.write(work)]}

    # --- pruning -----------------------------------------------------------------------------------------------------

    @property
    def deletion(self) -> Deletion:
        return Deletion(self.transactions, self.config["unminedTxRetention"], self.config["parentPreservationBlocks"])

    def op_preserveParents(self, op: Op) -> Op:
        step = self.write(lambda txn: self.deletion.preserve_step(txn, op["height"], None, None), "preserveParents")
        with self.disk.read() as txn:
            return {"processed": step.processed, "unminedRemaining": len(list(self.store.recorded(txn, HIGHEST)))}

    def op_queryOldUnmined(self, op: Op) -> Op:
        return self._names(lambda txn: list(self.store.recorded(txn, op["cutoff"])))

    def op_expirePreservations(self, op: Op) -> Op:
        step = self.write(lambda txn: self.deletion.expire_preservations(txn, op["height"]), "expirePreservations")
        return {"expired": step.ended, "processed": step.ended, "errors": len(step.errors)}

    def op_safeHeight(self, op: Op) -> Op:
        return {"safe": self._safe(op["requested"], op)}

    def _safe(self, requested: int, op: Op) -> int:
        return safe_height(requested, op.get("persisted", self.config["persistedHeight"]), self.config["retention"])

    def op_prune(self, op: Op) -> Op:
        safe, defensive = self._safe(op["height"], op), bool(op.get("defensive", self.config["defensive"]))
        before = set(self._blob_names())
        try:
            step = self.write(lambda txn: self.deletion.delete_due(txn, safe, defensive=defensive), "prune")
        except StoreError:
            return {"result": "error", "code": "STORAGE_ERROR", "deleted": []}
        return {
            "deleted": sorted(map(self.name, step.deleted)),
            "skipped": sorted(map(self.name, step.skipped)),
            "recordsDeleted": step.records,
            "parentsUpdated": step.parents,
            "errors": len(step.errors),
            "blobDeleted": sorted(before - set(self._blob_names())),
        }

    def _terms(self) -> Terms:
        return Terms(
            retention=self.config["retention"],
            unmined_retention=self.config["unminedTxRetention"],
            defensive=bool(self.config["defensive"]),
        )

    def op_assemblyState(self, op: Op) -> None:
        self.node = op

    def op_notify(self, op: Op) -> Op:
        """Ring the pruner's bell; a block whose transactions are not mined yet is none that we have applied."""
        requests = self.pruner.requests
        if op["type"] == "BlockPersisted":
            self.config["persistedHeight"] = max(op["height"], self.config["persistedHeight"] or 0)
            requests.persisted(op["height"])
        elif op.get("minedSet", True):
            requests.applied(op["height"])
        return {"queued": None if requests.queued is None else requests.queued.height}

    def op_workerTake(self, op: Op) -> Op:
        request = self.pruner.requests.queued
        if request is None:
            return {"height": None, "runs": self.runs}
        return self._cycle(request) | {"height": request.height, "runs": self.runs}

    def op_pruneCycle(self, op: Op) -> Op:
        if op["height"] <= self.pruner.requests.done:
            return {"skipped": True, "deleted": []}
        return self._cycle(Request(op["height"], "applied"))

    def _cycle(self, request: Request) -> Op:
        """Run a whole cycle as the daemon does, turn by turn, unless something holds it back."""
        pruner, persisted, node = self.pruner, self.config["persistedHeight"], None
        if self.node:
            node = Node(self.node["state"], self.node.get("height", request.height), request.height)
        pruner.terms, pruner.deletion = self._terms(), self.deletion
        for step, name in (("preserveParents", "preserve_step"), ("expirePreservations", "expire_preservations")):
            if self.hit(step):
                setattr(pruner.deletion, name, _fails)
        reason = held_back(World(request.height, persisted, node), request.height, pruner.terms.unmined_retention)
        if reason is not None:
            pruner.hold(request, reason)
            return {"skipped": True, "deleted": [], "reason": reason}
        before = set(self._blob_names())
        self.runs += 1
        cycle = pruner.cycle(request, persisted)
        try:
            run_through(cycle)
        except (StoreError, TxFault) as error:
            pruner.fail(cycle, str(error))
            deleted = sorted(map(self.name, _pruned(cycle)))
            return {"result": "error", "code": "STORAGE_ERROR", "skipped": not deleted, "deleted": deleted}
        pruner.finish(cycle)
        return {
            "skipped": False,
            "deleted": sorted(map(self.name, _pruned(cycle))),
            "processed": cycle.job.counts.get("old_unmined", 0),
            "recordsDeleted": cycle.job.counts.get("records_deleted", 0),
            "errors": cycle.job.counts.get("errors", 0),
            "blobDeleted": sorted(before - set(self._blob_names())),
            "safe": cycle.job.safe_height,
        }

    def _blob_names(self) -> list[str]:
        names = (name.partition(".") for name, _ in Files(self.folder / "blobs").names())
        return [f"{self.name(bytes.fromhex(txid))}.{kind}" for txid, _, kind in names]

    # --- looking -----------------------------------------------------------------------------------------------------

    def op_get(self, op: Op) -> Op:
        txid = self.txid(op["tx"])
        with self.disk.read() as txn:
            held = self.transactions.hold(txn, txid)
            if held is None:
                raise TxFault("TX_NOT_FOUND", "")
            slots: list[str | None] = []
            for number in range(held.record.pages + 1):
                page = self.store.page(txn, txid, number)
                slots += self._slots(txn, txid, number, page) if page else []
            raw = self.store.body(txn, txid).raw
        if raw is None and held.record.external:
            raw = self.blobs.get(blob_name(txid, partial=held.record.partial))
        spending_data = [None if slot in (None, "unspent") else slot for slot in slots]
        return {
            **(self.state(op["tx"]) or {}),
            "slots": slots,
            "spendingData": spending_data,
            "spendingDatas": spending_data,
            "hasData": raw is not None,
        }

    def op_getSpend(self, op: Op) -> Op:
        outpoint = self.outpoint(op["out"])
        with self.disk.read() as txn:
            looked = look(self.transactions, txn, outpoint, self.hash(outpoint, op.get("hash")))
        return {"status": looked.status, "spender": self.spender(looked.spender)}

    def op_poke(self, op: Op) -> None:
        txid, number, fields = self.txid(op["tx"]), op.get("rec", 0), op["fields"]

        def work(txn: Txn) -> None:
            page = self.store.page(txn, txid, number)
            assert page is not None
            for field, value in fields.items():
                if field == "deletedChildren":
                    page.deleted_children = [self.txid(name) for name in value or []]
                elif field == "conflictingChildren" and isinstance(page, Record):
                    page.conflicting_children = [self.txid(name) for name in value or []]
                elif field == "lastSpentState":
                    continue  # nothing of ours: a page's state follows from its slots
                elif field == "slots":
                    self._poke_slots(txn, txid, number, value)
                elif field == "spendableIn":
                    page.spendable_in = {int(slot): height for slot, height in value.items()}
                else:
                    setattr(page, POKED[field], _poked(field, value))
            if isinstance(page, Record) and "blockIDs" in fields:
                page.main_ids = list(page.block_ids)
                page.block_heights = (page.block_heights + [0] * len(page.block_ids))[: len(page.block_ids)]
                page.subtree_idxs = (page.subtree_idxs + [0] * len(page.block_ids))[: len(page.block_ids)]
            self.store.put_page(txn, txid, number, page)

        self.write(work)

    def _poke_slots(self, txn: Txn, txid: bytes, number: int, slots: list[str | None]) -> None:
        for slot, value in enumerate(slots):
            row = self.store.slot(txn, txid, number, slot)
            if value is None:
                self.store.drop_slot(txn, txid, number, slot)
            elif row is not None:
                end = b"" if value == "unspent" else FROZEN if value == "frozen" else self.by(value)
                self.store.put_slot(txn, txid, number, slot, row[:HASH] + end)

    def state(self, name: str) -> Any:
        """Return a record's fields by the cases' names: of the master, a page, a blob or the lock."""
        if name == "lockOwner":
            return self._lock_owner(self.txid(self.last))
        if name == "lock":
            return self._lock_state(self.txid(self.last))
        if name.startswith("blob:"):
            txid = self.txid(name.removeprefix("blob:"))
            kind = self._blob(txid)
            return None if kind is None else {"kind": kind, "name": f"{self.name(txid)}.{kind}"}
        name, _, number = name.partition("#")
        txid = self.txid(name)
        with self.disk.read() as txn:
            record = self.store.record(txn, txid)
            if number and int(number):
                page = self.store.page(txn, txid, int(number))
                return None if page is None else self._page_state(txn, txid, int(number), page, record)
            if record is None:
                return None
            state = self._page_state(txn, txid, 0, record, record)
            pages = sum(self.store.page(txn, txid, n) is not None for n in range(record.pages + 1))
            raw = self.store.body(txn, txid).raw
        return state | {
            "records": pages,
            "totalUtxos": record.total,
            "totalExtraRecs": record.pages,
            "spentExtraRecs": record.spent_pages,
            "external": record.external,
            "inlineData": raw is not None,
            "blob": self._blob(txid),
            "lock": self._lock_state(txid),
            "unminedSince": record.unmined_since,
            "preserveUntil": record.preserve_until,
            "blockIDs": record.block_ids,
            "blockHeights": record.block_heights,
            "subtreeIdxs": record.subtree_idxs,
            "createdAt": record.created_at,
            "conflictingChildren": [self.name(child) for child in record.conflicting_children] or None,
            "everHadCreating": txid in self.had_creating,
            "everHadLock": txid in self.had_lock,
        }

    def _page_state(self, txn: Txn, txid: bytes, number: int, page: Page, record: Record | None) -> Op:
        state: Op = {
            "recordUtxos": page.counted,
            "spentUtxos": page.spent,
            "creating": page.creating or None,
            "slots": self._slots(txn, txid, number, page),
            "deletedChildren": [self.name(child) for child in page.deleted_children] or None,
            "reassignments": [
                {
                    "offset": each.slot,
                    "oldHash": each.old_hash.hex(),
                    "newHash": each.new_hash.hex(),
                    "height": each.height,
                }
                for each in page.reassignments
            ]
            or None,
            "spendableIn": {str(slot): height for slot, height in page.spendable_in.items()} or None,
        }
        if number:
            state["lastSpentState"] = "ALLSPENT" if page.all_spent else "NOTALLSPENT"
        if record is not None:
            state |= {
                "locked": record.locked,
                "conflicting": record.conflicting,
                "deleteAtHeight": record.delete_at,
                "spendingHeight": record.spending_height,
                "isCoinbase": record.is_coinbase,
                "fee": record.fee,
                "size": record.size,
            }
        return state

    def _slots(self, txn: Txn, txid: bytes, number: int, page: Page) -> list[str | None]:
        rows = dict(self.store.slots(txn, txid, number))
        return [self._slot(rows.get(slot)) for slot in range(page.outputs)]

    def _slot(self, row: bytes | None) -> str | None:
        if row is None:
            return None
        if len(row) == HASH:
            return "unspent"
        return "frozen" if spending.frozen(row) else self.spender(claimant(row))

    def _blob(self, txid: bytes) -> str | None:
        files = Files(self.folder / "blobs")
        return next((kind for kind in ("tx", "outputs") if files.get(f"{txid.hex()}.{kind}") is not None), None)

    def _lock_state(self, txid: bytes) -> Op | None:
        with self.disk.read() as txn:
            lock = self.store.lock(txn, txid)
        if lock is None:
            return None
        return {
            "owner": self._lock_owner(txid),
            "lockOwner": self._lock_owner(txid),
            "expectedRecs": lock.expected_records,
            "ttlSeconds": round(lock.expires_at - lock.created_at),
            "processId": lock.process_id,
            "hostname": lock.hostname,
        }


def _apply(work: Callable[[Txn, bytes], _T], txid: bytes, txn: Txn) -> _T:
    return work(txn, txid)


def _pruned(cycle: Cycle) -> list[bytes]:
    """Return the transactions that a cycle has deleted."""
    return [fact.txid for fact in cycle.facts if isinstance(fact, TxStatusChanged)]


def _fails(*_: object) -> None:
    raise StoreFull("the disk is full")


def _crash_point(fault: str) -> tuple[str, str] | None:
    """Return at which step of a creation a process dies, and whether before or after it."""
    name = fault.removeprefix("crash.").removeprefix("create.")
    for pattern, moment, where in CRASHES:
        if found := re.fullmatch(pattern, name, re.IGNORECASE):
            number = found.groupdict().get("n")
            return moment, where if number is None else f"{where}:{number}"
    return next(((moment, where) for word, moment, where in CRASH_WORDS if word in name.lower()), None)


def _step(step: Callable[[Txn], object]) -> str:
    """Return the name that the cases have for a step of a creation."""
    bound, number = (step.func, step.args[0]) if isinstance(step, partial) else (step, 0)
    names = {
        "begin": "lock.acquire",
        "page": f"record.write:{number}",
        "clear": f"clearCreating:{number}",
        "clear_master": "clearCreating:0",
        "remove": f"record.remove:{number}",
        "end": "lock.release",
    }
    return names[bound.__name__]


def _poked(field: str, value: Any) -> Any:
    if value is None and field in ("creating", "locked", "conflicting", "external", "isCoinbase"):
        return False
    if value is None and field in ("blockIDs", "blockHeights", "subtreeIdxs"):
        return []
    return value


def _numbered(op: Op, number: int) -> Op:
    """Return an op with `{i}` in its words replaced by which repetition this is."""
    return {key: value.replace("{i}", str(number)) if isinstance(value, str) else value for key, value in op.items()}


def _short(answer: Op) -> str:
    """Return an answer in a word: a failed spend by the first input that failed."""
    if answer["result"] == "ok":
        return "ok"
    inputs = [fault for fault in answer.get("perInput", {}).values() if fault != "ok"]
    first = inputs[0] if inputs else answer["code"]
    return str(first["code"] if isinstance(first, dict) else first)


def _remove(disks: list[Disk], folder: Path) -> None:
    while disks:
        disks.pop().close()
    shutil.rmtree(folder, ignore_errors=True)
