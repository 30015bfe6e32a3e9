"""Ops that create, and those on the lock of a creation."""

from __future__ import annotations

from contextlib import nullcontext
from typing import Any

import msgspec
from conformance.case import Case, Refused, Spender, faults_of, mined_in
from conformance.faulty import Crash
from conformance.words import Op

from handlers.events import (
    Ack,
    Error,
    OutputsFrozen,
    OutputsUnfrozen,
    Tx,
    TxConflicting,
    TxLocked,
    TxSubmitted,
    TxWithdrawn,
)

LATE = 2_000_000_000  # the height at which a transaction is submitted that is mined when it is first heard of


class Creating:
    def __init__(self, case: Case) -> None:
        self.case, self.daemon, self.words = case, case.daemon, case.words

    def op_create(self, op: Op) -> None:
        name, mined, conflicting = op["tx"], op.get("mined") or [], bool(op.get("conflicting"))
        tx, self.case.last = self.words.tx(op), name
        before = self.case.spenders.get(name)
        before = None if before is None or before.created else before
        if before is not None:  # a case that lets it spend first says now what it is
            self.case.ask(TxWithdrawn(txids=[tx.txid], reason="replaced"))
        self.daemon.configure(self.case.rules(external=op.get("external", self.case.config["external"])))
        late = bool(mined) and not (op.get("ins") or op.get("coinbase") or conflicting)
        fields: Op = {"locked": bool(op.get("locked")), "on_spent": "record" if conflicting else "refuse"}
        self.case.need_roots(tx, LATE if late else op["height"])
        self.words.made.setdefault(name, tx)
        if "createdAtMs" in op:
            self.case.near("create, createdAtMs")
        with self.daemon.clock(op["createdAtMs"]) if "createdAtMs" in op else nullcontext():
            answer = self._submit(TxSubmitted(tx=tx, **fields), conflicting=conflicting)
        if self._created(answer, tx) == "duplicate":
            raise Refused("TX_EXISTS")
        self.case.spenders[name] = Spender(tx, self.daemon.chain.height + 1, fields, created=True)
        if conflicting and not self.case.read(name).conflicting:
            self.case.do(TxConflicting(txids=[tx.txid]))
        for at in mined:
            self.case.do(mined_in(tx.txid, at))
        if mined and fields["locked"]:
            self.case.do(TxLocked(txids=[tx.txid]))
        if before is not None and set(before.tx.inputs) & set(tx.inputs):
            self.case.go(before.height - 1)
            self.case.accepted(self.case.claim_again(self.case.spenders[name]))

    def _submit(self, event: TxSubmitted, *, conflicting: bool) -> Ack | Error:
        """Submit what a case creates, whatever it spends."""
        answer = self.case.ask(event, "" if self.daemon.large(event.tx) else "record.write:0")
        faults, name = faults_of(answer), self.words.name(event.tx.txid)
        codes = {fault["code"] for fault in faults.values()}
        if codes & {"TX_NOT_FOUND", "UTXO_NOT_FOUND"}:
            self.case.near("create, missing parent")
            self.daemon.block_and_back(event.tx)
            if event.locked:
                self.case.do(TxLocked(txids=[event.tx.txid]))
            return Ack(seq=0, status="accepted", tip=None)
        if conflicting and codes == {"CONFLICTING"}:  # it is submitted before its parents lose
            parents = list(dict.fromkeys(txid for txid, _ in faults))
            self.case.do(TxConflicting(txids=parents, value=False))
            answer = self.case.ask(event)
            self.case.do(TxConflicting(txids=parents))
        if conflicting and codes == {"FROZEN"}:  # and before its inputs are frozen
            self.case.do(OutputsUnfrozen(outpoints=list(faults)))
            answer = self.case.ask(event)
            self.case.do(TxConflicting(txids=[event.tx.txid]))
            self.case.do(OutputsFrozen(outpoints=list(faults)))
        if codes == {"INVALID_SPEND"} and event.tx.inputs == [(self.words.root(name).txid, 0)]:  # it was pruned
            tx = self.case.filled(name, {0: (self.words.root(f"{name} again").txid, 0)}, event.tx)
            self.case.need_roots(tx, self.daemon.chain.height)
            answer = self.case.ask(msgspec.structs.replace(event, tx=tx))
        return answer

    def _created(self, answer: Ack | Error, tx: Tx) -> str:
        if isinstance(answer, Error) and answer.code == "store_full" and self.daemon.large(tx):
            self.case.near("create, unfinished")
            found = self.case.stored.state(self.words.name(tx.txid))
            if found is None or found["records"] <= found["totalExtraRecs"]:
                raise Refused("PROCESSING")
            return "accepted"
        return self.case.accepted(answer, tx.inputs).status

    def op_lockTTL(self, op: Op) -> Op:
        self._take_lock("timed", op["records"])
        lock = self.case.stored.lock("timed")
        assert lock is not None
        return {"ttlSeconds": lock["ttlSeconds"]}

    def op_lockAcquire(self, op: Op) -> Op:
        self.case.last = op["tx"]
        try:
            self._take_lock(op["tx"], op.get("records", 1))
        except Refused as refused:
            return refused.details | {"lockOwner": self.lock_owner()}
        with self.daemon.disk.read() as txn:
            lock = self.daemon.store.lock(txn, self.words.txid(op["tx"]))
        assert lock is not None
        self.words.owners[lock.owner] = op.get("owner", "another")
        return {"lockOwner": self.lock_owner()}

    def _take_lock(self, name: str, records: int) -> None:
        """Submit a transaction of so many records, and die when it has its lock."""
        self.case.near("lockAcquire")
        self.daemon.configure(self.case.rules(batchSize=1, external=True))
        tx = self.words.tx({"tx": name, "outs": records})
        self.case.need_roots(tx, self.daemon.chain.height)
        self.case.faults.set.append("crash.afterLock")
        try:
            self.case.accepted(self.case.ask(TxSubmitted(tx=tx)))
        except Crash:
            self.daemon.restart()
        finally:
            self.case.faults.set = [fault for fault in self.case.faults.set if fault != "crash.afterLock"]
            self.daemon.configure(self.case.rules())

    def op_lockRelease(self, op: Op) -> Op:
        self.case.near("lockRelease")
        self.case.last, txid = op["tx"], self.words.txid(op["tx"])
        owner = next((token for token, name in self.words.owners.items() if name == op["owner"]), b"nobody")
        released = self.daemon.end_creation(txid, owner)
        return {"lockOwner": self.lock_owner(), "released": released}

    def lock_owner(self) -> str | None:
        lock = self.case.stored.lock(self.case.last)
        return None if lock is None else str(lock["owner"])

    def age_lock(self, seconds: float) -> None:
        """Let time pass: the lock of the transaction last named is older."""
        store, txid = self.daemon.store, self.words.txid(self.case.last)

        def work(txn: Any) -> None:
            if lock := store.lock(txn, txid):
                created, expires = lock.created_at - seconds, lock.expires_at - seconds
                store.put_lock(txn, txid, msgspec.structs.replace(lock, created_at=created, expires_at=expires))

        self.daemon.disk.write(work)
