"""The conformance cases' ops as messages: each goes through the daemon's decoder, its consumer and a commit."""

from __future__ import annotations

import sys
from pathlib import Path

if (tests := str(Path(__file__).parents[1])) not in sys.path:  # a runner may only know this file
    sys.path.insert(0, tests)

import re
from collections.abc import Callable
from typing import Any

from conformance.case import DEFAULTS, OWN_BLOCK, Case, Refused, Spender
from conformance.creating import Creating
from conformance.faulty import KNOWN, Crash
from conformance.marking import Marking
from conformance.prunes import Pruning
from conformance.spending import Spending
from conformance.stored import poke
from conformance.words import Op
from structlog.testing import capture_logs

from handlers.events import Ack, Error, TxSubmitted
from storage.blobs import BlobFailed, Files


class Subject:
    """One daemon, its store empty at first, that is told the ops of a case."""

    def __init__(self) -> None:
        case = self.case = Case()
        self.daemon, self.words, self.faults, self.close = case.daemon, case.words, case.faults, case.close
        self._creating = Creating(case)
        groups = (self, self._creating, Spending(case), Marking(case), Pruning(case))
        self._ops: dict[str, Callable[[Op], Op | None]] = {
            name: getattr(group, name) for group in groups for name in dir(group) if name.startswith("op_")
        }

    def run(self, op: Op) -> Op:
        if op.get("afterSeconds"):
            self._creating.age_lock(op["afterSeconds"])
        try:
            with capture_logs() as self.case.logs:
                result = self._run(op)
        except Crash:
            result = {"result": "error", "code": "CRASH"}
        if self.faults.dead or op.get("thenRestart"):
            self.daemon.restart()
            if op.get("thenRestart"):
                result = {"result": "ok"}
        return result

    def _run(self, op: Op) -> Op:
        try:
            return {"result": "ok", **(self._ops[f"op_{op['op']}"](op) or {})}
        except Refused as refused:
            return refused.details
        except BlobFailed:
            return {"result": "error", "code": "STORAGE_ERROR"}

    def state(self, name: str) -> Any:
        """Return a record's fields by the cases' names: of the master, a page, a blob or the lock."""
        if name == "lockOwner":
            return self._creating.lock_owner()
        if name == "lock":
            return self.case.stored.lock(self.case.last)
        if name.startswith("blob:"):
            name = name.removeprefix("blob:")
            kind = self.case.stored.blob(name)
            return None if kind is None else {"kind": kind, "name": f"{name}.{kind}"}
        spender, state = self.case.spenders.get(name), self.case.stored.state(name)
        if spender is not None and not spender.created:  # the case has none of it
            return None
        if state is not None and OWN_BLOCK in state.get("blockIDs", ()):
            at = state["blockIDs"].index(OWN_BLOCK)
            for field in ("blockIDs", "blockHeights", "subtreeIdxs"):
                state[field] = state[field][:at] + state[field][at + 1 :]
        return state

    def op_config(self, op: Op) -> None:
        unknown = op.keys() - DEFAULTS.keys() - {"op"}
        if unknown:
            raise AssertionError(f"unknown configuration: {unknown}")
        self.case.config |= {key: value for key, value in op.items() if key != "op"}
        self.daemon.configure(self.case.rules())
        if op.get("persistedHeight"):
            self.case.persist(op["persistedHeight"])
            self.daemon.pruner.observe(self.daemon.turns.world())
            self.daemon.pruner.requests.finished(op["persistedHeight"])

    def op_setHeight(self, op: Op) -> None:
        self.case.config["blockHeight"] = op["h"]
        self.case.go()

    def op_fault(self, op: Op) -> None:
        kind, _, where = op["at"].partition(":")
        if not re.match(KNOWN, op["at"]):
            raise AssertionError(f"unknown step: {op['at']}")
        files = Files(self.case.folder / "blobs")
        if kind == "blob.missing":
            for suffix in ("tx", "outputs"):
                files.delete(f"{self.words.txid(where).hex()}.{suffix}")
        elif kind == "blob.exists":
            files.put(f"{self.words.txid(where).hex()}.tx", b"there already")
        else:
            self.faults.set.append(re.sub(r"^(processConflicting).*", r"\1", op["at"]))

    def op_poke(self, op: Op) -> None:
        self.daemon.disk.write(lambda txn: poke(txn, self.daemon.store, self.words, op))

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
            self.case.last, tx = op["tx"], self.words.tx(op)
            self.case.need_roots(tx, op["height"])
            self.words.made.setdefault(op["tx"], tx)
        else:
            self.case.go(op["height"] - 1)
            tx = self.case.filled(op["tx"], dict(enumerate(self.words.outpoints(op["ins"]))))
        spender = self.case.spenders.setdefault(op["tx"], Spender(tx, op["height"], created=op["op"] == "create"))
        return self.case.submission(spender.tx, op.get("hash"), locked=bool(op.get("locked")))

    def _answer(self, event: TxSubmitted, answer: Ack | Error) -> Op:
        try:
            status = self.case.accepted(answer, event.tx.inputs).status
        except Refused as refused:
            return refused.details
        made = self.words.name(event.tx.txid) in self.words.made
        return {"result": "error", "code": "TX_EXISTS"} if made and status == "duplicate" else {"result": "ok"}


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
