"""Ops on the state of transactions and outputs, on conflicts, and questions about them."""

from __future__ import annotations

from collections.abc import Callable
from hashlib import blake2b

from conformance.case import OWN_BLOCK, Case, Refused, faults_of, mined_in
from conformance.words import Op, digest

from handlers.events import (
    Error,
    Inbound,
    OutPoint,
    Output,
    OutputReassigned,
    OutputsFrozen,
    OutputsUnfrozen,
    Tx,
    TxConflicting,
    TxLocked,
    TxPreserved,
    TxStatusChanged,
    TxSubmitted,
    TxUnlocked,
    TxWithdrawn,
    WinnersDecided,
)
from storage.pool_layout import HASH

NOWHERE = digest("nowhere"), 0


class Marking:
    def __init__(self, case: Case) -> None:
        self.case, self.daemon, self.words = case, case.daemon, case.words
        self._probes = 0

    def op_setMined(self, op: Op) -> Op:
        self.case.go()
        if len(op["txs"]) > 1:
            self.case.near("setMined, several")
        how = {"longest": op.get("longest", True), "unset": bool(op.get("unset"))}
        done, more = self._each(op, lambda txid: mined_in(txid, op, **how), "setMined")
        found = {name: self.daemon.transaction(self.words.txid(name)) for name in done}
        blocks = {name: reported.block_ids for name, reported in found.items() if reported is not None}
        return {"blockIDs": {name: ids for name, ids in blocks.items() if ids or not how["unset"]}, **more}

    def op_setLocked(self, op: Op) -> Op:
        self.case.go()
        kind = TxLocked if op["value"] else TxUnlocked
        done, more = self._each(op, lambda txid: kind(txids=[txid]), "setLocked")
        return more | {"childCount": self.case.read(done[0]).total_extra_recs if done else None}

    def op_setConflicting(self, op: Op) -> Op:
        op = op | {"txs": [name for name in op["txs"] if name != "COINBASE_PLACEHOLDER"]}
        children = [child for name in op["txs"] for child in self._children(self.words.txid(name), recorded=True)]
        value = op["value"]
        for child in map(self.words.name, children if value else []):
            if child in self.case.spenders and not self.case.spenders[child].created:  # it stays
                self.case.spend_again(self.case.spenders[child].height, self.case.spenders[child])
        self.case.go(op.get("height"))
        _, more = self._each(op, lambda txid: TxConflicting(txids=[txid], value=value), "setConflicting")
        spends = [point for name in op["txs"] for point in self._inpoints(name)]
        return more | {
            "txs": [self.words.name(txid) for txid in dict.fromkeys(children)],
            "affectedSpends": [self.words.out(point) for point in spends],
        }

    def _each(self, op: Op, message: Callable[[bytes], Inbound], step: str) -> tuple[list[str], Op]:
        """Send a message about each transaction; the first refusal is told, when all were tried."""
        done: list[str] = []
        refusal: Op = {}
        with self.case.signals({self.words.txid(name) for name in op["txs"]}) as signals:
            for name in op["txs"]:
                try:
                    self.case.do(message(self.words.txid(name)), f"{step}:{name}")
                    done.append(name)
                except Refused as refused:
                    refusal = refusal or refused.details
        return done, signals | refusal

    def _inpoints(self, name: str) -> list[OutPoint]:
        found = self.daemon.transaction(self.words.txid(name))
        return [(bytes.fromhex(at.tx_hash), at.output_index) for at in found.tx_inpoints] if found else []

    def op_markLongestChain(self, op: Op) -> Op:
        self.case.near("markLongestChain")
        refusal: Op = {}
        with self.case.signals({self.words.txid(name) for name in op["txs"]}) as signals:
            for name in op["txs"]:
                try:
                    self._mark(name, on=op["on"])
                except Refused as refused:
                    refusal = refusal or refused.details
        return signals | refusal

    def _mark(self, name: str, *, on: bool) -> None:
        txid, found = self.words.txid(name), self.case.read(name)
        heights = zip(found.block_ids, found.block_heights, found.subtree_idxs, strict=True)
        blocks = [{"block": block, "height": height, "subtree": subtree} for block, height, subtree in heights]
        self.case.go()
        if on:
            for at in blocks or [{"block": OWN_BLOCK, "height": self.daemon.chain.height}]:
                self.case.do(mined_in(txid, at), f"mark:{name}")
        elif found.unmined_since is None:
            self.case.go(self.case.config["blockHeight"] - 1)  # it waits from the next height on
            for at in blocks:
                self.case.do(mined_in(txid, at, unset=True), f"mark:{name}")
            for at in blocks:
                if at["block"] != OWN_BLOCK:
                    self.case.do(mined_in(txid, at, longest=False))
            self.case.go()
            self._begin_age(name)

    def _begin_age(self, name: str) -> None:
        """Let a transaction wait from now on."""
        found, spender = self.case.read(name), self.case.spenders[name]
        if found.unmined_since < self.case.config["blockHeight"] and not found.block_ids:
            self.case.near("markLongestChain, age")
            self.case.do(TxWithdrawn(txids=[self.words.txid(name)], reason="replaced"))
            self.case.do(self.case.submission(spender.tx, **spender.fields))

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
        self.case.go()
        outpoint = self.words.outpoint(op["out"])
        if "hash" in op:
            self.case.near("freeze, hash")
            self._check_hash(outpoint, op["hash"])
        self.case.do(message(outpoint), op["op"])

    def _check_hash(self, outpoint: OutPoint, named: str) -> None:
        """Return whether an output has a hash: by a submission that cannot succeed, as its second input is unknown."""
        self._probes += 1
        tx = Tx(digest(f"probe {self._probes}"), [outpoint, NOWHERE], [Output(b"\x51", 1)])
        answer = self.case.ask(TxSubmitted(tx=tx, input_hashes=[self.words.hash(outpoint, named), None]))
        assert isinstance(answer, Error)
        if faults_of(answer).get(outpoint, {}).get("code") == "UTXO_HASH_MISMATCH":
            raise Refused("UTXO_HASH_MISMATCH")

    def op_preserve(self, op: Op) -> Op:
        self.case.go()
        done, more = self._each(op, lambda txid: TxPreserved(txids=[txid], until=op["until"]), "preserve")
        for name in done:
            found = self.daemon.transaction(self.words.txid(name))
            if found is not None and found.external:
                more |= {"signal": "PRESERVE", "childCount": found.total_extra_recs}
        return more

    # --- conflicts ---------------------------------------------------------------------------------------------------

    def op_processConflicting(self, op: Op) -> Op:
        self.case.go(op["height"] - 1)
        return {"losers": self._decide(op["winners"], "processConflicting")}

    def _decide(self, winners: list[str], step: str = "") -> list[str]:
        """Decide for transactions; return those that were told of."""
        before = len(self.daemon.facts)
        self.case.do(WinnersDecided(txids=[self.words.txid(name) for name in winners]), step)
        reported = [fact.txid for fact in self.daemon.facts[before:] if isinstance(fact, TxStatusChanged)]
        return [self.words.name(txid) for txid in dict.fromkeys(reported)]

    def op_counterConflicting(self, op: Op) -> Op:
        self.case.near("counterConflicting")
        self.case.go()
        return {"txs": self._decide([op["tx"]])}

    def op_conflictingChildren(self, op: Op) -> Op:
        self.case.near("conflictingChildren")
        return {"txs": [self.words.name(txid) for txid in self._walk(self.words.txid(op["tx"]))]}

    def op_lockChildren(self, op: Op) -> Op:
        self.case.near("lockChildren")
        txid = self.words.txid(op["tx"])
        txids = [txid, *self._walk(txid, recorded=True)]
        self.case.do(TxLocked(txids=txids))
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
        reported = self.daemon.transaction(txid)
        losing = [] if reported is None or recorded else reported.conflicting_children
        spending = [slot.spending_tx_hash for slot in self.daemon.outputs(txid) if slot.spending_tx_hash]
        return [bytes.fromhex(child) for child in dict.fromkeys([*losing, *spending])]

    # --- looking -----------------------------------------------------------------------------------------------------

    def op_loadUnmined(self, op: Op) -> Op:
        """Start the daemon again, and list what waits: parents first, and the oldest first."""
        self.case.go()
        for name in self.case.spenders:
            if found := self.daemon.transaction(self.words.txid(name)):
                for block, height in zip(found.block_ids, found.block_heights, strict=True):
                    if block in (op.get("bestBlocks") or ()):
                        self.case.near("loadUnmined, bestBlocks")
                        self.case.do(mined_in(self.words.txid(name), {"block": block, "height": height}))
        self.daemon.start()
        waiting = sorted(self.daemon.waiting("unmined", "parents_first"), key=lambda each: each.created_at)
        names = [self.words.name(bytes.fromhex(each.txid)) for each in waiting]
        return {"txs": names, "order": names}

    def op_queryOldUnmined(self, op: Op) -> Op:
        return {"txs": [self.words.name(txid) for since, txid in self.case.unmined() if since <= op["cutoff"]]}

    def op_get(self, op: Op) -> Op:
        self.case.read(op["tx"])
        slots = self.case.stored.slots(op["tx"])
        spent = [None if slot in (None, "unspent") else slot for slot in slots]
        return {
            **(self.case.stored.state(op["tx"]) or {}),
            "slots": slots,
            "spendingData": spent,
            "spendingDatas": spent,
            "hasData": self.daemon.raw(self.words.txid(op["tx"])) is not None,
        }

    def op_getSpend(self, op: Op) -> Op:
        self.case.go()
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
