"""The conformance cases' ops as messages: each goes through the daemon's decoder, its consumer and a commit.

What an op says is read from the answers (Ack, Error), from the facts that are published, and as `/txs` answers.
Blocks without transactions bring the tip to where an op wants it: a transaction is submitted at the tip's height, and
spends at the next. A transaction that a case only lets spend gets outputs of its own, and is submitted like any other;
one that names no inputs spends an output that a block brings along.

`UNREACHED` and `NEAREST` have the ops that no message means in these words; `Subject.nearest` says which of them came.
"""

from __future__ import annotations

import re
import shutil
import sys
import tempfile
import weakref
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from hashlib import blake2b
from pathlib import Path
from typing import Any
from unittest.mock import patch

if (tests := str(Path(__file__).parents[1])) not in sys.path:  # a runner may only know this file
    sys.path.insert(0, tests)

import msgspec
from conformance.faulty import KNOWN, Crash, Faults
from conformance.in_process import InProcess
from conformance.stored import Stored
from conformance.words import Op, Words, digest, split
from structlog.testing import capture_logs

from handlers.burial import Burial
from handlers.creation import release
from handlers.desk import Rules
from handlers.events import (
    Ack,
    BlockPersisted,
    Error,
    Inbound,
    NodeState,
    OutPoint,
    Output,
    OutputReassigned,
    OutputsFrozen,
    OutputsUnfrozen,
    Tx,
    TxConflicting,
    TxLocked,
    TxMined,
    TxPreserved,
    TxStatusChanged,
    TxSubmitted,
    TxUnlocked,
    TxWithdrawn,
    WinnersDecided,
)
from handlers.prune_cycle import Terms
from handlers.prune_request import Request, held_back
from storage.blobs import Files
from storage.errors import StoreFull
from storage.transactions import FROZEN, HASH, Record

# What nobody can ask of a daemon, and why; the answer that the cases want is given here.
UNREACHED = {
    "spend at height 0": "a submission spends at the height after the tip's, which is 1 at least",
    "prune at height 0": "the pruner and `utxod prune` begin with the first block",
    "unspend, frozen": "nobody spends what is frozen: there is nothing that could be withdrawn",
    "lockRelease": "who creates gives back its own lock, in its last step: that step alone is run",
    "notify, minedSet false": "a block comes with its transactions: there is none without them",
    "spend, other inputs": "an id stands for its inputs: the submission is withdrawn, and one with more of them sent",
    "markLongestChain, age": "what was submitted keeps its age; it begins anew when that is withdrawn and sent again",
}
# What no message means in these words, and which messages come nearest.
NEAREST = {
    "create, unfinished": "`store_full` is to be sent again; the cases tell pages that are missing from flags",
    "create, missing parent": "only a block may spend what is not there; it goes back, and its transaction waits",
    "create, createdAtMs": "the daemon's clock says it",
    "spend again": "a submission again changes nothing; the block that has it spends again, at its height",
    "spend, ignoring": "only a block may pass by locks and conflicts",
    "freeze, hash": "no message freezes by hash: whoever has one asks first, by a submission that can't succeed",
    "setMined, several": "a message is carried out for all of its transactions or none: each goes by itself",
    "markLongestChain": "a block's id is entered or removed: TxMined, with `longest` or `unset`",
    "incSpentExtra": "the store counts by itself: all outputs of a page are spent, or such a spender is withdrawn",
    "loadUnmined, bestBlocks": "which blocks are on the longest chain is told when they are: TxMined",
    "lockAcquire": "a large submission takes the lock; it stays when the process dies right after",
    "prune, one phase": "`utxod prune` runs whole cycles; phase 1 finds nothing when nothing is old enough for it",
    "counterConflicting": "WinnersDecided tells who gives way, and lets them",
    "conflictingChildren": "a walk along what `/txs` answers; TxConflicting and TxWithdrawn walk so by themselves",
    "lockChildren": "that walk, then TxLocked",
}

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
STATES = {"running": "running", "reorging": "reorganising", "stopped": "stopped", "idle": "stopped"}
LATE = 2_000_000_000  # the height at which a transaction is submitted that is mined when it is first heard of
OWN_BLOCK = 1 << 39  # the id of the block beside our chain that has what a case does not say to be in one
NOWHERE = digest("nowhere"), 0


class Input(dict[str, Any]):
    """What is said of an input that can't be spent. The cases name some by the code alone, and so it equals that."""

    spender = ""

    def __eq__(self, other: object) -> bool:
        return self["code"] == other if isinstance(other, str) else super().__eq__(other)

    def __ne__(self, other: object) -> bool:
        return not self == other

    __hash__ = None


class Spender(msgspec.Struct):
    """A transaction that was submitted, and since when it spends."""

    tx: Tx
    height: int
    fields: Op = {}  # of its submission
    created: bool = False  # by the case; else only a spend speaks of it
    spends: bool = False  # a spend speaks of it
    in_block: bool = False


class Refused(Exception):
    """An op that is refused, with what is said of it."""

    def __init__(self, code: str, **more: Any) -> None:
        super().__init__(code)
        self.said: Op = {"result": "error", "code": code, **more}


class Subject:
    """One daemon, its store empty at first, that is told the ops of a case."""

    def __init__(self) -> None:
        self.folder = Path(tempfile.mkdtemp(prefix="utxod-case-"))
        self.config = dict(DEFAULTS)
        self.words = Words()
        self.faults = Faults(self.words.name)
        self.daemon = InProcess(self.folder, self.faults, self._rules())
        self.nearest: set[str] = set()
        self.spenders: dict[str, Spender] = {}
        self.page_spenders: dict[str, list[str]] = {}  # of a transaction, by incSpentExtra
        self.node: NodeState | None = None
        self.last, self.runs, self._probes = "", 0, 0
        self.logs: Sequence[Mapping[str, Any]] = ()
        weakref.finalize(self, shutil.rmtree, self.folder, ignore_errors=True)

    def close(self) -> None:
        self.daemon.disk.close()
        shutil.rmtree(self.folder, ignore_errors=True)

    @property
    def stored(self) -> Stored:
        return Stored(self.daemon.store, self.daemon.files, self.words, self.faults)

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

    # --- messages ----------------------------------------------------------------------------------------------------

    def run(self, op: Op) -> Op:
        """Carry out one op and return what it says."""
        if op.get("afterSeconds"):
            self._age_lock(op["afterSeconds"])
        try:
            with capture_logs() as self.logs:
                result = self._run(op)
        except Crash:
            result = {"result": "error", "code": "CRASH"}
        if self.faults.dead or op.get("thenRestart"):
            self.daemon.restart()
            if op.get("thenRestart"):
                result = {"result": "ok"}
        return result

    def _run(self, op: Op) -> Op:
        work: Callable[[Op], Op | None] = getattr(self, f"op_{op['op']}")
        try:
            return {"result": "ok", **(work(op) or {})}
        except Refused as refused:
            return refused.said

    def _ask(self, event: Inbound, step: str = "") -> Ack | Error:
        return self.daemon.ask(event, step=step)[0]

    def _do(self, event: Inbound, step: str = "") -> Ack:
        """Send a message that is to be accepted.

        Raises:
            Refused: it is not.
        """
        return self._accepted(self._ask(event, step))

    def _accepted(self, answer: Ack | Error, outpoints: Sequence[OutPoint] = ()) -> Ack:
        """Return an acknowledgement; of a refusal `outpoints` are what is told of."""
        if isinstance(answer, Ack):
            return answer
        code = {"store_full": "STORAGE_ERROR", "malformed": "INVALID_PARAMETER"}.get(answer.code, answer.code)
        if code == "UTXO_ERROR":
            left, told = _inputs(answer), dict[str, str | Input]()
            for n, outpoint in reversed(list(enumerate(outpoints))):  # of one that is named twice, the first is spent
                found = next((fault for fault in reversed(left) if tuple(fault["outpoint"]) == outpoint), None)
                left = [fault for fault in left if fault is not found]
                told[str(n)] = self._input(found)
            raise Refused(code, perInput=dict(reversed(told.items())))
        spender = next(iter(_faults(answer).values()), {}).get("spender")
        raise Refused(code, existing=self.words.out(spender)) if spender else Refused(code)

    def _input(self, fault: Op | None) -> str | Input:
        if fault is None:
            return "ok"
        if "spender" not in fault:
            return str(fault["code"])
        told = Input(code=fault["code"], conflictingTx=self.words.name(fault["spender"][0]))
        told.spender = self.words.out(fault["spender"])
        return told

    def _go(self, height: int | None = None) -> None:
        """Let the tip be where the next op wants it: by itself, at the store's own height."""
        self.daemon.go(self.config["blockHeight"] if height is None else max(height, 0))

    def _txid(self, name: str) -> bytes:
        return self.words.txid(name)

    def _near(self, name: str) -> None:
        assert name in NEAREST or name in UNREACHED
        self.nearest.add(name)

    # --- the case's setting ------------------------------------------------------------------------------------------

    def op_config(self, op: Op) -> None:
        unknown = op.keys() - DEFAULTS.keys() - {"op"}
        if unknown:
            raise AssertionError(f"unknown configuration: {unknown}")
        self.config |= {key: value for key, value in op.items() if key != "op"}
        self.daemon.transactions.rules = self._rules()
        self.daemon.transactions.chain.maturity = self.config["coinbaseMaturity"]
        if op.get("persistedHeight"):
            self._persist(op["persistedHeight"])
            self.daemon.pruner.look(self.daemon.turns.world())
            self.daemon.pruner.requests.finished(op["persistedHeight"])

    def _persist(self, height: int) -> None:
        self._go(height)
        tip = self.daemon.chain.tip
        self._do(BlockPersisted(height=height, hash=tip.hash if tip else None))

    def op_setHeight(self, op: Op) -> None:
        self.config["blockHeight"] = op["h"]
        self._go()

    def op_fault(self, op: Op) -> None:
        kind, _, where = op["at"].partition(":")
        if not re.match(KNOWN, op["at"]):
            raise AssertionError(f"unknown step: {op['at']}")
        files = Files(self.folder / "blobs")
        if kind == "blob.missing":
            for suffix in ("tx", "outputs"):
                files.delete(f"{self._txid(where).hex()}.{suffix}")
        elif kind == "blob.exists":
            files.put(f"{self._txid(where).hex()}.tx", b"there already")
        else:
            self.faults.set.append(re.sub(r"^(processConflicting).*", r"\1", op["at"]))

    def op_poke(self, op: Op) -> None:
        """Write raw state: what a case sets by hand."""
        txid, number, fields, store = self._txid(op["tx"]), op.get("rec", 0), op["fields"], self.daemon.store

        def work(txn: Any) -> None:
            page = store.page(txn, txid, number)
            assert page is not None
            for field, value in fields.items():
                if field == "deletedChildren":
                    page.deleted_children = [self._txid(name) for name in value or []]
                elif field == "conflictingChildren" and isinstance(page, Record):
                    page.conflicting_children = [self._txid(name) for name in value or []]
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
            store.put_page(txn, txid, number, page)

        self.daemon.disk.write(work)

    def _poke_slots(self, txn: Any, txid: bytes, number: int, slots: list[str | None]) -> None:
        store = self.daemon.store
        for slot, value in enumerate(slots):
            row = store.slot(txn, txid, number, slot)
            if value is None:
                store.drop_slot(txn, txid, number, slot)
            elif row is not None:
                end = b"" if value == "unspent" else FROZEN if value == "frozen" else self.words.by(value)
                store.put_slot(txn, txid, number, slot, row[:HASH] + end)

    # --- creating ----------------------------------------------------------------------------------------------------

    def _needs_roots(self, tx: Tx, height: int) -> None:
        """Let the tip be at a height, with the outputs that a transaction spends of which the case does not speak."""
        names = [self.words.name(txid) for txid, _ in tx.inputs]
        roots = [name.removeprefix("root of ") for name in names if name.startswith("root of ")]
        made = [root for name in dict.fromkeys(roots) if not self.daemon.knows((root := self.words.root(name)).txid)]
        if made:
            self.daemon.block(max(height, 0), *made)
        self._go(height)

    def _submission(self, tx: Tx, hash: str | None = None, **fields: Any) -> TxSubmitted:
        hashes = [self.words.hash(outpoint, hash) for outpoint in tx.inputs]
        return TxSubmitted(tx=tx, input_hashes=hashes if any(hashes) else None, **fields)

    def op_create(self, op: Op) -> None:
        name, mined, conflicting = op["tx"], op.get("mined") or [], bool(op.get("conflicting"))
        tx, self.last = self.words.tx(op), name
        before = self.spenders.get(name)
        before = None if before is None or before.created else before
        if before is not None:  # a case that lets it spend first says now what it is
            self._ask(TxWithdrawn(txids=[tx.txid], reason="replaced"))
        self.daemon.transactions.rules = self._rules(external=op.get("external", self.config["external"]))
        late = bool(mined) and not (op.get("ins") or op.get("coinbase") or conflicting)
        fields: Op = {"locked": bool(op.get("locked")), "on_spent": "record" if conflicting else "refuse"}
        self._needs_roots(tx, LATE if late else op["height"])
        self.words.made.setdefault(name, tx)
        with self._clock(op.get("createdAtMs")):
            answer = self._submit(TxSubmitted(tx=tx, **fields), conflicting=conflicting)
        if self._created(answer, tx) == "duplicate":
            raise Refused("TX_EXISTS")
        self.spenders[name] = Spender(tx, self.daemon.chain.height + 1, fields, created=True)
        if conflicting and not self._read(name).conflicting:
            self._do(TxConflicting(txids=[tx.txid]))
        for at in mined:
            self._do(_mined(tx.txid, at))
        if mined and fields["locked"]:
            self._do(TxLocked(txids=[tx.txid]))
        if before is not None and set(before.tx.inputs) & set(tx.inputs):
            self._go(before.height - 1)
            self._accepted(self._claim_anew(self.spenders[name]))

    @contextmanager
    def _clock(self, time_ms: int | None) -> Iterator[None]:
        if time_ms is None:
            yield
            return
        self._near("create, createdAtMs")
        with patch("handlers.births.now", lambda: time_ms):
            yield

    def _submit(self, event: TxSubmitted, *, conflicting: bool) -> Ack | Error:
        """Submit what a case creates, whatever it spends."""
        answer = self._ask(event, "" if self.daemon.transactions.large(event.tx) else "record.write:0")
        faults, name = _faults(answer), self.words.name(event.tx.txid)
        codes = {fault["code"] for fault in faults.values()}
        if codes & {"TX_NOT_FOUND", "UTXO_NOT_FOUND"}:
            self._near("create, missing parent")
            self.daemon.block_and_back(event.tx)
            if event.locked:
                self._do(TxLocked(txids=[event.tx.txid]))
            return Ack(seq=0, status="accepted", tip=None)
        if conflicting and codes == {"CONFLICTING"}:  # it is submitted before its parents lose
            parents = list(dict.fromkeys(txid for txid, _ in faults))
            self._do(TxConflicting(txids=parents, value=False))
            answer = self._ask(event)
            self._do(TxConflicting(txids=parents))
        if conflicting and codes == {"FROZEN"}:  # and before its inputs are frozen
            self._do(OutputsUnfrozen(outpoints=list(faults)))
            answer = self._ask(event)
            self._do(TxConflicting(txids=[event.tx.txid]))
            self._do(OutputsFrozen(outpoints=list(faults)))
        if codes == {"INVALID_SPEND"} and event.tx.inputs == [(self.words.root(name).txid, 0)]:  # it was pruned
            tx = self._filled(name, {0: (self.words.root(f"{name} anew").txid, 0)}, event.tx)
            self._needs_roots(tx, self.daemon.chain.height)
            answer = self._ask(msgspec.structs.replace(event, tx=tx))
        return answer

    def _created(self, answer: Ack | Error, tx: Tx) -> str:
        """Return the status of a submission."""
        if isinstance(answer, Error) and answer.code == "store_full" and self.daemon.transactions.large(tx):
            self._near("create, unfinished")
            found = self.stored.state(self.words.name(tx.txid))
            if found is None or found["records"] <= found["totalExtraRecs"]:
                raise Refused("PROCESSING")
            return "accepted"
        return self._accepted(answer, tx.inputs).status

    def _read(self, name: str) -> Any:
        """Return what is answered of a transaction.

        Raises:
            Refused: it is not known.
        """
        found = self.daemon.transaction(self._txid(name))
        if found is None:
            raise Refused("TX_NOT_FOUND")
        return found

    # --- the lock of a creation --------------------------------------------------------------------------------------

    def op_lockTTL(self, op: Op) -> Op:
        self._take_lock("timed", op["records"])
        lock = self.stored.lock("timed")
        assert lock is not None
        return {"ttlSeconds": lock["ttlSeconds"]}

    def op_lockAcquire(self, op: Op) -> Op:
        self.last = op["tx"]
        try:
            self._take_lock(op["tx"], op.get("records", 1))
        except Refused as refused:
            return refused.said | {"lockOwner": self._lock_owner()}
        with self.daemon.disk.read() as txn:
            lock = self.daemon.store.lock(txn, self._txid(op["tx"]))
        assert lock is not None
        self.words.owners[lock.owner] = op.get("owner", "somebody")
        return {"lockOwner": self._lock_owner()}

    def _take_lock(self, name: str, records: int) -> None:
        """Submit a transaction of so many records, and die when it has its lock."""
        self._near("lockAcquire")
        self.daemon.transactions.rules = self._rules(batchSize=1, external=True)
        tx = self.words.tx({"tx": name, "outs": records})
        self._needs_roots(tx, self.daemon.chain.height)
        self.faults.set.append("crash.afterLock")
        try:
            self._accepted(self._ask(TxSubmitted(tx=tx)))
        except Crash:
            self.daemon.restart()
        finally:
            self.faults.set = [fault for fault in self.faults.set if fault != "crash.afterLock"]
            self.daemon.transactions.rules = self._rules()

    def op_lockRelease(self, op: Op) -> Op:
        self._near("lockRelease")
        self.last, txid = op["tx"], self._txid(op["tx"])
        owner = next((token for token, name in self.words.owners.items() if name == op["owner"]), b"nobody")
        step = self.daemon.chain.write_alone
        released = step(lambda txn: release(self.daemon.transactions, txn, txid, owner))
        return {"lockOwner": self._lock_owner(), "released": released}

    def _lock_owner(self) -> str | None:
        lock = self.stored.lock(self.last)
        return None if lock is None else str(lock["owner"])

    def _age_lock(self, seconds: float) -> None:
        """Let time pass: the lock of the transaction last named is older."""
        store, txid = self.daemon.store, self._txid(self.last)

        def work(txn: Any) -> None:
            if lock := store.lock(txn, txid):
                created, expires = lock.created_at - seconds, lock.expires_at - seconds
                store.put_lock(txn, txid, msgspec.structs.replace(lock, created_at=created, expires_at=expires))

        self.daemon.disk.write(work)

    # --- spending ----------------------------------------------------------------------------------------------------

    def op_spend(self, op: Op) -> Op:
        return self._spend(op, dict(enumerate(self.words.outpoints(op["ins"]))))

    def op_spendRaw(self, op: Op) -> Op:
        try:
            return self._spend(op, {op["vin"]: self.words.outpoint(op["out"])})
        except Refused as refused:
            told = refused.said.get("perInput", {}).get("0")
            if told is None:
                raise
            more = {"existing": told.spender} if isinstance(told, Input) else {}
            raise Refused(told["code"] if isinstance(told, Input) else told, **more) from None

    def _spend(self, op: Op, named: dict[int, OutPoint]) -> Op:
        """Let a transaction spend outputs, at a height, as the inputs of these numbers."""
        if op["height"] <= 0:
            self._near("spend at height 0")
            raise Refused("PROCESSING")
        self._go(op["height"] - 1)
        with self._signals({txid for txid, _ in named.values()}) as signals:
            answer = self._claim(op, named)
            if isinstance(answer, Error) and (told := self._beside_flags(op, answer)) is not None:
                answer = told
            self._accepted(answer, list(named.values()))
        if op["tx"] in self.spenders:
            self.spenders[op["tx"]].spends = True
        return signals

    def _claim(self, op: Op, named: dict[int, OutPoint]) -> Ack | Error:
        """Submit a transaction with what it is to spend; what it spends already is spent again."""
        name, spender = op["tx"], self.spenders.get(op["tx"])
        known = self.daemon.transaction(self._txid(name)) is not None
        has = {} if spender is None else dict(enumerate(spender.tx.inputs))
        if spender is None or not known or not named.items() <= has.items():
            if known and not any(self.daemon.transaction(txid) for txid, _ in named.values()):
                return self._ask(self._submission(self._filled(name, named)))
            return self._grow(op, named, spender if known else None)
        if spender.spends:
            return self._spend_again(op["height"], spender)
        if spender.height != op["height"] and spender.created:
            return self._claim_anew(spender)
        return self._ask(self._submission(spender.tx, op.get("hash")), "spend")

    def _claim_anew(self, spender: Spender) -> Ack | Error:
        """Let a transaction spend at the height after the tip's, not when it was submitted."""
        spender.height, txids = self.daemon.chain.height + 1, [spender.tx.txid]
        self._do(TxConflicting(txids=txids))
        return self._ask(TxConflicting(txids=txids, value=False), "spend")

    def _filled(self, name: str, named: Mapping[int, OutPoint], like: Tx | None = None) -> Tx:
        """Return a transaction that spends what is named; inputs of which nobody speaks are filled in."""
        inputs = [named.get(n, (self.words.root(f"{name} {n}").txid, 0)) for n in range(max(named, default=-1) + 1)]
        like = like or Tx(self._txid(name), outputs=[Output(b"\x51", 1)])
        return msgspec.structs.replace(like, inputs=inputs)

    def _grow(self, op: Op, named: dict[int, OutPoint], spender: Spender | None) -> Ack | Error:
        """Submit a transaction that spends what is named, beside what it has spent before."""
        name, made = op["tx"], self.words.made.get(op["tx"])
        before = dict(enumerate(spender.tx.inputs)) if spender else {}
        before = {n: at for n, at in before.items() if not self.words.name(at[0]).startswith("root of ")}
        taken = {n if before.get(n, at) == at else max([*before, *named]) + 1 + n: at for n, at in named.items()}
        tx = self._filled(name, before | taken, made)
        self._needs_roots(tx, op["height"] - 1)
        if spender is not None:
            self._near("spend, other inputs")
            withdrawn = self._ask(TxWithdrawn(txids=[tx.txid], reason="replaced"))
            if isinstance(withdrawn, Error):  # a block has it: and what it spends
                self.daemon.block(op["height"], tx)
                self.spenders[name] = Spender(tx, op["height"], created=spender.created, in_block=True)
                return Ack(seq=0, status="applied", tip=None)
        fields = spender.fields if spender else {}
        answer = self._ask(self._submission(tx, op.get("hash"), **fields), "spend")
        if isinstance(answer, Ack) or self._ignored(op, answer):
            self.spenders[name] = Spender(tx, op["height"], fields, created=made is not None)
        elif spender is not None:
            self._go(spender.height - 1)
            self._do(self._submission(spender.tx, **fields))
        return answer

    def _spend_again(self, height: int, spender: Spender) -> Ack | Error:
        if spender.in_block:
            return self._ask(TxSubmitted(tx=spender.tx))
        self._near("spend again")
        self.daemon.block(height, spender.tx)
        spender.in_block = True
        return Ack(seq=0, status="applied", tip=None)

    def _ignored(self, op: Op, answer: Error) -> bool:
        """Return whether only what an op ignores is said against it."""
        flags = {"LOCKED": op.get("ignoreLocked"), "CONFLICTING": op.get("ignoreConflicting")}
        faults = _faults(answer)
        return bool(faults) and all(flags.get(fault["code"]) for fault in faults.values())

    def _beside_flags(self, op: Op, answer: Error) -> Ack | Error | None:
        """Return what is said when a block has what only an ignored flag was against; None if anything else is."""
        if not self._ignored(op, answer):
            return None
        self._near("spend, ignoring")
        behind: list[Op] = []
        for outpoint in _faults(answer):
            slot, found = self.daemon.output(outpoint), self.daemon.transaction(outpoint[0])
            if found is not None and found.locked and not op.get("ignoreLocked"):
                behind.append({"outpoint": outpoint, "code": "LOCKED"})
            elif found is not None and (found.spending_height or 0) > op["height"]:
                behind.append({"outpoint": outpoint, "code": "COINBASE_IMMATURE"})
            elif slot is not None and slot.status == "frozen":
                behind.append({"outpoint": outpoint, "code": "FROZEN"})
            elif slot is not None and slot.spending_tx_hash is not None:
                by = bytes.fromhex(slot.spending_tx_hash), slot.spending_input_index
                behind.append({"outpoint": outpoint, "code": "SPENT", "spender": by})
        if behind:
            return Error(code="UTXO_ERROR", message="", retryable=False, detail={"inputs": behind}, seq=0)
        self.daemon.block(op["height"], self.spenders[op["tx"]].tx)
        self.spenders[op["tx"]].in_block = True
        return Ack(seq=0, status="applied", tip=None)

    def op_unspend(self, op: Op) -> Op:
        outpoint = self.words.outpoint(op["out"])
        slot = self.daemon.output(outpoint)
        if slot is not None and slot.status == "frozen":
            self._near("unspend, frozen")
            raise Refused("FROZEN")
        name, number = split(op["by"])
        spender = self.spenders.get(name)
        self._go(op.get("height"))
        with self._signals({outpoint[0]}) as signals:
            if spender is None:
                answer = self._ask(TxWithdrawn(txids=[self._txid(name)], reason="operator"), "unspend")
                if isinstance(answer, Error) and answer.code != "TX_NOT_FOUND":
                    self._accepted(answer)
            elif spender.tx.inputs[number : number + 1] == [outpoint]:
                self._give_back(name, number, spender)
        if slot is None:
            raise Refused("TX_NOT_FOUND" if self.daemon.transaction(outpoint[0]) is None else "UTXO_NOT_FOUND")
        return signals

    def _give_back(self, name: str, number: int, spender: Spender) -> None:
        """Withdraw a transaction; with what else it spends it is submitted again."""
        self._do(TxWithdrawn(txids=[spender.tx.txid], reason="operator"), "unspend")
        left = {n: at for n, at in enumerate(spender.tx.inputs) if n != number}
        if not left and not spender.created:
            del self.spenders[name]
            return
        height = self.daemon.chain.height
        tx = self._filled(name, left or {0: (self.words.root(name).txid, 0)}, spender.tx)
        self._needs_roots(tx, spender.height - 1)
        self._do(self._submission(tx, **spender.fields))
        self.spenders[name] = Spender(tx, spender.height, spender.fields, spender.created, bool(left))
        self._go(height)

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
        store = self.daemon.store
        with self.daemon.disk.read() as txn:
            record = store.record(txn, txid)
            if record is None:
                return None
            pages = [store.page(txn, txid, number) for number in range(1, record.pages + 1)]
        return record.delete_at, [page is not None and page.all_spent for page in pages], record.external

    def op_incSpentExtra(self, op: Op) -> Op:
        """Let pages become all spent, or stop being so."""
        self._near("incSpentExtra")
        name, _, number = op["tx"].partition("#")
        if number:
            self._do(TxUnlocked(txids=[self._txid(name) + int(number).to_bytes(4, "big")]))
        spenders = self.page_spenders.setdefault(name, [])
        with self._signals({self._txid(name)}) as signals:
            for _ in range(abs(op["by"])):
                if op["by"] > 0:
                    self._spend_page(name, op["height"], spenders)
                    continue
                self._read(name)
                gone = self._txid(spenders.pop() if spenders else f"nobody spends a page of {name}")
                if isinstance(self._ask(TxWithdrawn(txids=[gone], reason="operator")), Error):
                    raise Refused("INVALID_PARAMETER")
        return signals if "childCount" in signals else {"signal": None}

    def _spend_page(self, name: str, height: int, spenders: list[str]) -> None:
        """Spend what is left of the first further page of which something is left."""
        self._go(height - 1)
        txid, size = self._txid(name), self.config["batchSize"]
        slots = [slot.output_index for slot in self.daemon.outputs(txid)[size:] if slot.status == "unspent"]
        if not slots and self.daemon.transaction(txid):
            raise Refused("INVALID_PARAMETER")
        spenders.append(f"{len(spenders)}th spender of {name}")
        spends = [(txid, n) for n in slots if n // size == slots[0] // size] or [(txid, 0)]
        answer = self._ask(TxSubmitted(tx=self._filled(spenders[-1], dict(enumerate(spends)))))
        if isinstance(answer, Error):
            raise Refused(next(iter(_faults(answer).values()))["code"])

    # --- the state of transactions -----------------------------------------------------------------------------------

    def _each(self, op: Op, message: Callable[[bytes], Inbound], step: str) -> tuple[list[str], Op]:
        """Send a message about each transaction; the first refusal is told, when all were tried."""
        done: list[str] = []
        refusal: Op = {}
        with self._signals({self._txid(name) for name in op["txs"]}) as signals:
            for name in op["txs"]:
                try:
                    self._do(message(self._txid(name)), f"{step}:{name}")
                    done.append(name)
                except Refused as refused:
                    refusal = refusal or refused.said
        return done, signals | refusal

    def op_setMined(self, op: Op) -> Op:
        self._go()
        if len(op["txs"]) > 1:
            self._near("setMined, several")
        how = {"longest": op.get("longest", True), "unset": bool(op.get("unset"))}
        done, more = self._each(op, lambda txid: _mined(txid, op, **how), "setMined")
        found = {name: self.daemon.transaction(self._txid(name)) for name in done}
        blocks = {name: told.block_ids for name, told in found.items() if told is not None}
        return {"blockIDs": {name: ids for name, ids in blocks.items() if ids or not how["unset"]}, **more}

    def op_setLocked(self, op: Op) -> Op:
        self._go()
        kind = TxLocked if op["value"] else TxUnlocked
        done, more = self._each(op, lambda txid: kind(txids=[txid]), "setLocked")
        return more | {"childCount": self._read(done[0]).total_extra_recs if done else None}

    def op_setConflicting(self, op: Op) -> Op:
        op = op | {"txs": [name for name in op["txs"] if name != "COINBASE_PLACEHOLDER"]}
        children = [child for name in op["txs"] for child in self._children(self._txid(name), recorded=True)]
        value = op["value"]
        for child in map(self.words.name, children if value else []):
            if child in self.spenders and not self.spenders[child].created:  # it does not lose with its parent
                self._spend_again(self.spenders[child].height, self.spenders[child])
        self._go(op.get("height"))
        _, more = self._each(op, lambda txid: TxConflicting(txids=[txid], value=value), "setConflicting")
        spends = [point for name in op["txs"] for point in self._inpoints(name)]
        return more | {
            "txs": [self.words.name(txid) for txid in dict.fromkeys(children)],
            "affectedSpends": [self.words.out(point) for point in spends],
        }

    def _inpoints(self, name: str) -> list[OutPoint]:
        found = self.daemon.transaction(self._txid(name))
        return [(bytes.fromhex(at.tx_hash), at.output_index) for at in found.tx_inpoints] if found else []

    def op_markLongestChain(self, op: Op) -> Op:
        self._near("markLongestChain")
        refusal: Op = {}
        with self._signals({self._txid(name) for name in op["txs"]}) as signals:
            for name in op["txs"]:
                try:
                    self._mark(name, on=op["on"])
                except Refused as refused:
                    refusal = refusal or refused.said
        return signals | refusal

    def _mark(self, name: str, *, on: bool) -> None:
        txid, found = self._txid(name), self._read(name)
        heights = zip(found.block_ids, found.block_heights, found.subtree_idxs, strict=True)
        blocks = [{"block": block, "height": height, "subtree": subtree} for block, height, subtree in heights]
        self._go()
        if on:
            for at in blocks or [{"block": OWN_BLOCK, "height": self.daemon.chain.height}]:
                self._do(_mined(txid, at), f"mark:{name}")
        elif found.unmined_since is None:
            self._go(self.config["blockHeight"] - 1)  # it waits from the next height on
            for at in blocks:
                self._do(_mined(txid, at, unset=True), f"mark:{name}")
            for at in blocks:
                if at["block"] != OWN_BLOCK:
                    self._do(_mined(txid, at, longest=False))
            self._go()
            self._begin_age(name)

    def _begin_age(self, name: str) -> None:
        """Let a transaction wait from now on."""
        found, spender = self._read(name), self.spenders[name]
        if found.unmined_since < self.config["blockHeight"] and not found.block_ids:
            self._near("markLongestChain, age")
            self._do(TxWithdrawn(txids=[self._txid(name)], reason="replaced"))
            self._do(self._submission(spender.tx, **spender.fields))

    def op_freeze(self, op: Op) -> None:
        self._on_output(op, lambda outpoint: OutputsFrozen(outpoints=[outpoint]))

    def op_unfreeze(self, op: Op) -> None:
        self._on_output(op, lambda outpoint: OutputsUnfrozen(outpoints=[outpoint]))

    def op_reassign(self, op: Op) -> None:
        outpoint, address = self.words.outpoint(op["out"]), f"owner {op['newHash']}".encode()
        slot = self.daemon.output(outpoint)
        self._on_output(op, lambda outpoint: OutputReassigned(outpoint=outpoint, address=address))
        assert slot is not None and slot.slot is not None
        before = bytes.fromhex(slot.slot)[:HASH]
        new = blake2b(before + address, digest_size=HASH).digest()
        self.words.new_hashes[outpoint, op["newHash"]] = new

    def _on_output(self, op: Op, message: Callable[[OutPoint], Inbound]) -> None:
        self._go()
        outpoint = self.words.outpoint(op["out"])
        if "hash" in op:
            self._near("freeze, hash")
            self._check_hash(outpoint, op["hash"])
        self._do(message(outpoint), op["op"])

    def _check_hash(self, outpoint: OutPoint, named: str) -> None:
        """Ask whether an output has a hash: by a submission that can't succeed, as nobody knows its second input.

        Raises:
            Refused: it has another.
        """
        self._probes += 1
        tx = Tx(digest(f"probe {self._probes}"), [outpoint, NOWHERE], [Output(b"\x51", 1)])
        answer = self._ask(TxSubmitted(tx=tx, input_hashes=[self.words.hash(outpoint, named), None]))
        assert isinstance(answer, Error)
        if _faults(answer).get(outpoint, {}).get("code") == "UTXO_HASH_MISMATCH":
            raise Refused("UTXO_HASH_MISMATCH")

    def op_preserve(self, op: Op) -> Op:
        self._go()
        done, more = self._each(op, lambda txid: TxPreserved(txids=[txid], until=op["until"]), "preserve")
        for name in done:
            found = self.daemon.transaction(self._txid(name))
            if found is not None and found.external:
                more |= {"signal": "PRESERVE", "childCount": found.total_extra_recs}
        return more

    # --- conflicts ---------------------------------------------------------------------------------------------------

    def op_processConflicting(self, op: Op) -> Op:
        self._go(op["height"] - 1)
        return {"losers": self._decide(op["winners"], "processConflicting")}

    def _decide(self, winners: list[str], step: str = "") -> list[str]:
        """Decide for transactions; return those that were told of."""
        before = len(self.daemon.facts)
        self._do(WinnersDecided(txids=[self._txid(name) for name in winners]), step)
        told = [fact.txid for fact in self.daemon.facts[before:] if isinstance(fact, TxStatusChanged)]
        return [self.words.name(txid) for txid in dict.fromkeys(told)]

    def op_counterConflicting(self, op: Op) -> Op:
        self._near("counterConflicting")
        self._go()
        return {"txs": self._decide([op["tx"]])}

    def op_conflictingChildren(self, op: Op) -> Op:
        self._near("conflictingChildren")
        return {"txs": [self.words.name(txid) for txid in self._walk(self._txid(op["tx"]))]}

    def op_lockChildren(self, op: Op) -> Op:
        self._near("lockChildren")
        txid = self._txid(op["tx"])
        txids = [txid, *self._walk(txid, recorded=True)]
        self._do(TxLocked(txids=txids))
        return {"txs": [self.words.name(txid) for txid in txids]}

    def _walk(self, txid: bytes, *, recorded: bool = False) -> list[bytes]:
        """Return what builds on a transaction, nearest first; `recorded` leaves out those that claim nothing of it."""
        found: dict[bytes, None] = {}
        waiting = self._children(txid, recorded=recorded)
        while waiting:
            child = waiting.pop(0)
            if child not in found and child != txid:
                found[child] = None
                waiting += self._children(child, recorded=recorded)
        return list(found)

    def _children(self, txid: bytes, *, recorded: bool) -> list[bytes]:
        told = self.daemon.transaction(txid)
        losing = [] if told is None or recorded else told.conflicting_children
        spending = [slot.spending_tx_hash for slot in self.daemon.outputs(txid) if slot.spending_tx_hash]
        return [bytes.fromhex(child) for child in dict.fromkeys([*losing, *spending])]

    # --- what waits --------------------------------------------------------------------------------------------------

    def op_loadUnmined(self, op: Op) -> Op:
        """Start the daemon again, and list what waits."""
        self._go()
        for name in self.spenders:
            if found := self.daemon.transaction(self._txid(name)):
                for block, height in zip(found.block_ids, found.block_heights, strict=True):
                    if block in (op.get("bestBlocks") or ()):
                        self._near("loadUnmined, bestBlocks")
                        self._do(_mined(self._txid(name), {"block": block, "height": height}))
        self.daemon.restart()
        names = [self.words.name(txid) for txid in self.daemon.lives.wake(self.daemon.chain.height)]
        return {"txs": names, "order": names}

    def op_queryOldUnmined(self, op: Op) -> Op:
        return {"txs": [self.words.name(txid) for since, txid in self._unmined() if since <= op["cutoff"]]}

    def _unmined(self) -> list[tuple[int, bytes]]:
        """Return what waits for a block, or has lost a conflict, and since when."""
        waiting = [*self.daemon.waiting("unmined"), *self.daemon.waiting("conflicting")]
        return sorted((each.unmined_since, bytes.fromhex(each.txid)) for each in waiting)

    # --- pruning -----------------------------------------------------------------------------------------------------

    def op_preserveParents(self, op: Op) -> Op:
        return self._pruned(op["height"]) | {"unminedRemaining": len(self._unmined())}

    def op_expirePreservations(self, op: Op) -> Op:
        self._near("prune, one phase")
        pruned = self._pruned(op["height"], old=False)
        return {"expired": pruned["expired"], "processed": pruned["expired"], "errors": pruned["errors"]}

    def op_safeHeight(self, op: Op) -> Op:
        self._persist_for(op)
        return {"safe": self._pruned(op["requested"], old=False)["safe"]}

    def _persist_for(self, op: Op) -> None:
        persisted = op.get("persisted") or 0
        if persisted > (self.daemon.chain.view.persisted_height or 0):
            self._persist(persisted)

    def op_prune(self, op: Op) -> Op:
        if op["height"] <= 0:
            self._near("prune at height 0")
            raise Refused("PROCESSING", deleted=[])
        self._near("prune, one phase")
        self._persist_for(op)
        return self._pruned(op["height"], old=False, defensive=op.get("defensive"))

    def _pruned(self, height: int, *, old: bool = True, defensive: bool | None = None) -> Op:
        """Let a cycle run, as `utxod prune` does at this height; with `old` also for what has waited long."""
        self._mine_spenders()
        self._go(height)
        config, before = self.config, set(self._blob_names())
        unmined_retention = config["unminedTxRetention"] if old else height
        terms = Terms(
            retention=config["retention"],
            unmined_retention=unmined_retention,
            defensive=bool(config["defensive"] if defensive is None else defensive),
        )
        burial = Burial(self.daemon.transactions, unmined_retention, config["parentPreservationBlocks"])
        for step, name in (("preserveParents", "preserve_step"), ("expirePreservations", "expire_preservations")):
            if self.faults.hit(step):
                setattr(burial, name, _fails)
        if self.faults.hit("prune"):
            setattr(burial, "delete_due", _fails)  # noqa: B010 - a method
        cycle, failed = self.daemon.prune(terms, burial, Request(height, "applied"))
        kept = [log["txid"] for log in self.logs if log["event"] == "transaction_kept"]
        gone = [fact.txid for fact in cycle.facts if isinstance(fact, TxStatusChanged)]
        names = [name for name in map(self.words.name, gone) if not name.startswith("root of ")]
        counts = cycle.job.counts
        told = {
            "deleted": sorted(names),
            "skipped": sorted(self.words.name(bytes.fromhex(txid)) for txid in kept),
            "processed": counts.get("old_unmined", 0),
            "expired": counts.get("preservations_ended", 0),
            "recordsDeleted": counts.get("records_deleted", 0),
            "parentsUpdated": counts.get("parents_updated", 0),
            "errors": counts.get("errors", 0),
            "blobDeleted": sorted(before - set(self._blob_names())),
            "safe": cycle.job.safe_height,
        }
        if failed is not None:
            raise Refused("STORAGE_ERROR", **told)
        return told

    def _mine_spenders(self) -> None:
        """Let a block have the transactions of which a case only says what they spend: nobody waits for them."""
        for spender in self.spenders.values():
            found = None if spender.created else self.daemon.transaction(spender.tx.txid)
            if found is not None and found.status == "unmined":
                self._do(_mined(spender.tx.txid, {"block": OWN_BLOCK, "height": spender.height}))

    def op_assemblyState(self, op: Op) -> None:
        state: Any = STATES.get(op["state"], "catching_up")
        self.node = NodeState(state=state, height=op.get("height", self.daemon.chain.height))
        self._do(self.node)

    def op_notify(self, op: Op) -> Op:
        """Ring the pruner's bell."""
        if op["type"] == "BlockPersisted":
            self._persist(op["height"])
        elif op.get("minedSet", True):
            self._go(op["height"])
        else:
            self._near("notify, minedSet false")
            return {"queued": None}
        self.daemon.pruner.look(self.daemon.turns.world())
        queued = self.daemon.pruner.requests.queued
        return {"queued": None if queued is None else queued.height}

    def op_workerTake(self, op: Op) -> Op:
        request = self.daemon.pruner.requests.queued
        if request is None:
            return {"height": None, "runs": self.runs}
        return self._cycle(request) | {"height": request.height, "runs": self.runs}

    def op_pruneCycle(self, op: Op) -> Op:
        if op["height"] <= self.daemon.pruner.requests.done:
            return {"skipped": True, "deleted": []}
        return self._cycle(Request(op["height"], "applied"))

    def _cycle(self, request: Request) -> Op:
        """Run a cycle as the daemon does, unless something holds it back."""
        self._go(request.height)
        if self.node is not None:  # it says so again
            self._do(self.node)
        reason = held_back(self.daemon.turns.world(), request.height, self.config["unminedTxRetention"])
        if reason is not None:
            self.daemon.pruner.hold(request, reason)
            return {"skipped": True, "deleted": [], "reason": reason}
        self.runs += 1
        try:
            return self._pruned(request.height) | {"skipped": False}
        except Refused as refused:
            return refused.said | {"skipped": not refused.said["deleted"]}

    def _blob_names(self) -> list[str]:
        names = (name.partition(".") for name, _ in Files(self.folder / "blobs").names())
        return [f"{self.words.name(bytes.fromhex(txid))}.{kind}" for txid, _, kind in names]

    # --- looking -----------------------------------------------------------------------------------------------------

    def op_get(self, op: Op) -> Op:
        self._read(op["tx"])
        slots = self.stored.slots(op["tx"])
        spent = [None if slot in (None, "unspent") else slot for slot in slots]
        return {
            **(self.stored.state(op["tx"]) or {}),
            "slots": slots,
            "spendingData": spent,
            "spendingDatas": spent,
            "hasData": self.daemon.raw(self._txid(op["tx"])) is not None,
        }

    def op_getSpend(self, op: Op) -> Op:
        self._go()
        outpoint = self.words.outpoint(op["out"])
        found, slot = self.daemon.transaction(outpoint[0]), self.daemon.output(outpoint)
        if found is None or slot is None or slot.slot is None:
            return {"status": "NOT_FOUND", "spender": None}
        if "hash" in op:
            self._check_hash(outpoint, op["hash"])
        status, spender = "OK", None
        if slot.spending_tx_hash is not None:
            status = "SPENT"
            spender = f"{self.words.name(bytes.fromhex(slot.spending_tx_hash))}:{slot.spending_input_index}"
        height = self.daemon.chain.height
        if (slot.spendable_in or 0) > height or (found.spending_height or 0) > height + 1:
            status = "IMMATURE"
        if slot.status == "frozen":
            status, spender = "FROZEN", f"FROZEN:{outpoint[1]}"
        status = "CONFLICTING" if found.conflicting else status
        return {"status": "LOCKED" if found.locked else status, "spender": spender}

    def state(self, name: str) -> Any:
        """Return a record's fields by the cases' names: of the master, a page, a blob or the lock."""
        if name == "lockOwner":
            return self._lock_owner()
        if name == "lock":
            return self.stored.lock(self.last)
        if name.startswith("blob:"):
            name = name.removeprefix("blob:")
            kind = self.stored.blob(name)
            return None if kind is None else {"kind": kind, "name": f"{name}.{kind}"}
        spender, state = self.spenders.get(name), self.stored.state(name)
        if spender is not None and not spender.created:  # the case has none of it
            return None
        if state is not None and OWN_BLOCK in state.get("blockIDs", ()):
            at = state["blockIDs"].index(OWN_BLOCK)
            for field in ("blockIDs", "blockHeights", "subtreeIdxs"):
                state[field] = state[field][:at] + state[field][at + 1 :]
        return state

    # --- many --------------------------------------------------------------------------------------------------------

    def op_bulk(self, op: Op) -> Op:
        jobs = self._jobs(op)
        return _many(jobs, [self._run(job) for job in jobs])

    def op_concurrent(self, op: Op) -> Op:
        """Send the messages of all ops at once: they wait together."""
        jobs = self._jobs(op)
        if not all(job["op"] in ("create", "spend") for job in jobs):
            return _many(jobs, [self._run(job) for job in jobs])
        events = [self._message(job) for job in jobs]
        return _many(jobs, [self._answer(*each) for each in zip(events, self.daemon.ask(*events), strict=True)])

    def _jobs(self, op: Op) -> list[Op]:
        if "pre" in op:
            self._run(op["pre"])
        each = op.get("mix") or op.get("ops") or op.get("do")
        each = each if isinstance(each, list) else [each]
        return [_numbered(one, n) for n in range(op["n"]) for one in each]

    def _message(self, op: Op) -> TxSubmitted:
        """Return the submission that an op is, which is new or the same as before."""
        if op["op"] == "create":
            self.last, tx = op["tx"], self.words.tx(op)
            self._needs_roots(tx, op["height"])
            self.words.made.setdefault(op["tx"], tx)
        else:
            self._go(op["height"] - 1)
            tx = self._filled(op["tx"], dict(enumerate(self.words.outpoints(op["ins"]))))
        spender = self.spenders.setdefault(op["tx"], Spender(tx, op["height"], created=op["op"] == "create"))
        return self._submission(spender.tx, op.get("hash"), locked=bool(op.get("locked")))

    def _answer(self, event: TxSubmitted, answer: Ack | Error) -> Op:
        try:
            status = self._accepted(answer, event.tx.inputs).status
        except Refused as refused:
            return refused.said
        made = self.words.name(event.tx.txid) in self.words.made
        return {"result": "error", "code": "TX_EXISTS"} if made and status == "duplicate" else {"result": "ok"}


def _inputs(answer: Ack | Error) -> list[Op]:
    """Return what a refusal says of inputs, in their order."""
    inputs: Any = answer.detail.get("inputs", []) if isinstance(answer, Error) else []
    return list(inputs)


def _faults(answer: Ack | Error) -> dict[OutPoint, Op]:
    return {tuple(fault["outpoint"]): fault for fault in _inputs(answer)}


def _mined(txid: bytes, at: Op, **how: Any) -> TxMined:
    return TxMined(txids=[txid], block_id=at["block"], height=at["height"], subtree_index=at.get("subtree"), **how)


def _fails(*_: object, **__: object) -> None:
    raise StoreFull("the disk is full")


def _poked(field: str, value: Any) -> Any:
    if value is None and field in ("creating", "locked", "conflicting", "external", "isCoinbase"):
        return False
    if value is None and field in ("blockIDs", "blockHeights", "subtreeIdxs"):
        return []
    return value


def _numbered(op: Op, number: int) -> Op:
    """Return an op with `{i}` in its words replaced by which repetition this is."""
    return {key: value.replace("{i}", str(number)) if isinstance(value, str) else value for key, value in op.items()}


def _many(jobs: list[Op], answers: list[Op]) -> Op:
    """Sum up what many ops said."""
    codes = [_short(answer) for answer in answers]
    others = sorted({code for code in codes if code != "ok"})
    by_tx: dict[str, set[str]] = {}
    for job, code in zip(jobs, codes, strict=True):
        by_tx.setdefault(job.get("tx", ""), set()).add(code)
    return {
        "successes": codes.count("ok"),
        "failures": len(codes) - codes.count("ok"),
        "others": others[0] if len(others) == 1 else others or None,
        "allOf": {tx: min(found) if len(found) == 1 else sorted(found) for tx, found in by_tx.items()},
    }


def _short(answer: Op) -> str:
    """Return an answer in a word: a failed spend by the first input that failed."""
    if answer["result"] == "ok":
        return "ok"
    inputs = [fault for fault in answer.get("perInput", {}).values() if fault != "ok"]
    first = inputs[0] if inputs else answer["code"]
    return str(first["code"] if isinstance(first, dict) else first)
