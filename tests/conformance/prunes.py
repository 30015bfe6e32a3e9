"""Ops of the pruner."""

from __future__ import annotations

from typing import Any

from conformance.case import OWN_BLOCK, Case, Refused, mined_in
from conformance.in_process import PHASES
from conformance.words import Op

from config.settings import Pruner
from handlers.events import NodeState, TxStatusChanged
from handlers.prune_request import Request, Terms, held_back
from storage.blobs import Files

STATES = {"running": "running", "reorging": "reorganising", "stopped": "stopped", "idle": "stopped"}


class Pruning:
    def __init__(self, case: Case) -> None:
        self.case, self.daemon, self.words = case, case.daemon, case.words
        self._node: NodeState | None = None
        self._runs = 0

    def op_preserveParents(self, op: Op) -> Op:
        return self._pruned(op["height"]) | {"unminedRemaining": len(self.case.unmined())}

    def op_expirePreservations(self, op: Op) -> Op:
        self.case.near("prune, one phase")
        pruned = self._pruned(op["height"], old=False)
        return {"expired": pruned["expired"], "processed": pruned["expired"], "errors": pruned["errors"]}

    def op_safeHeight(self, op: Op) -> Op:
        self._persist_for(op)
        return {"safe": self._pruned(op["requested"], old=False)["safe"]}

    def _persist_for(self, op: Op) -> None:
        persisted = op.get("persisted") or 0
        if persisted > (self.daemon.chain.view.persisted_height or 0):
            self.case.persist(persisted)

    def op_prune(self, op: Op) -> Op:
        if op["height"] <= 0:
            self.case.near("prune at height 0")
            raise Refused("PROCESSING", deleted=[])
        self.case.near("prune, one phase")
        self._persist_for(op)
        return self._pruned(op["height"], old=False, defensive=op.get("defensive"))

    def _pruned(self, height: int, *, old: bool = True, defensive: bool | None = None) -> Op:
        """Let a cycle run, as `utxod prune` does at this height; with `old` also for what has waited long."""
        self._mine_spenders()
        self.case.go(height)
        config, before = self.case.config, set(self._blob_names())
        unmined_retention = config["unminedTxRetention"] if old else height
        settings = Pruner(
            parent_preservation_blocks=config["parentPreservationBlocks"],
            defensive=bool(config["defensive"] if defensive is None else defensive),
        )
        terms = Terms(settings, config["retention"], unmined_retention)
        failing = [phase for phase in PHASES if self.case.faults.hit(phase)]
        cycle, failed = self.daemon.prune(terms, Request(height, "applied"), failing)
        kept = [log["txid"] for log in self.case.logs if log["event"] == "transaction_kept"]
        removed = [fact.txid for fact in cycle.facts if isinstance(fact, TxStatusChanged)]
        names = [name for name in map(self.words.name, removed) if not name.startswith("root of ")]
        counts = cycle.job.counts
        reported = {
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
            raise Refused("STORAGE_ERROR", **reported)
        return reported

    def _mine_spenders(self) -> None:
        """Let a block have the transactions of which a case only says what they spend: nobody waits for them."""
        for spender in self.case.spenders.values():
            found = None if spender.created else self.daemon.transaction(spender.tx.txid)
            if found is not None and found.status == "unmined":
                self.case.do(mined_in(spender.tx.txid, {"block": OWN_BLOCK, "height": spender.height}))

    def op_assemblyState(self, op: Op) -> None:
        state: Any = STATES.get(op["state"], "catching_up")
        self._node = NodeState(state=state, height=op.get("height", self.daemon.chain.height))
        self.case.do(self._node)

    def op_notify(self, op: Op) -> Op:
        if op["type"] == "BlockPersisted":
            self.case.persist(op["height"])
        elif op.get("minedSet", True):
            self.case.go(op["height"])
        else:
            self.case.near("notify, minedSet false")
            return {"queued": None}
        self.daemon.pruner.observe(self.daemon.turns.world())
        queued = self.daemon.pruner.requests.queued
        return {"queued": None if queued is None else queued.height}

    def op_workerTake(self, op: Op) -> Op:
        request = self.daemon.pruner.requests.queued
        if request is None:
            return {"height": None, "runs": self._runs}
        return self._cycle(request) | {"height": request.height, "runs": self._runs}

    def op_pruneCycle(self, op: Op) -> Op:
        if op["height"] <= self.daemon.pruner.requests.done:
            return {"skipped": True, "deleted": []}
        return self._cycle(Request(op["height"], "applied"))

    def _cycle(self, request: Request) -> Op:
        """Run a cycle as the daemon does, unless something holds it back."""
        self.case.go(request.height)
        if self._node is not None:  # it says so again
            self.case.do(self._node)
        reason = held_back(self.daemon.turns.world(), request.height, self.case.config["unminedTxRetention"])
        if reason is not None:
            self.daemon.pruner.hold(request, reason)
            return {"skipped": True, "deleted": [], "reason": reason}
        self._runs += 1
        try:
            return self._pruned(request.height) | {"skipped": False}
        except Refused as refused:
            return refused.details | {"skipped": not refused.details["deleted"]}

    def _blob_names(self) -> list[str]:
        names = (name.partition(".") for name, _ in Files(self.case.folder / "blobs").names())
        return [f"{self.words.name(bytes.fromhex(txid))}.{kind}" for txid, _, kind in names]
