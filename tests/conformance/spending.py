"""Ops that spend, and give back what is spent."""

from __future__ import annotations

from conformance.case import Case, Input, Refused, Spender, faults_of
from conformance.words import Op, split

from handlers.events import Ack, Error, OutPoint, TxSubmitted, TxUnlocked, TxWithdrawn


class Spending:
    def __init__(self, case: Case) -> None:
        self.case, self.daemon, self.words = case, case.daemon, case.words
        self._page_spenders: dict[str, list[str]] = {}  # of a transaction, by incSpentExtra

    def op_spend(self, op: Op) -> Op:
        return self._spend(op, dict(enumerate(self.words.outpoints(op["ins"]))))

    def op_spendRaw(self, op: Op) -> Op:
        try:
            return self._spend(op, {op["vin"]: self.words.outpoint(op["out"])})
        except Refused as refused:
            reported = refused.details.get("perInput", {}).get("0")
            if reported is None:
                raise
            more = {"existing": reported.spender} if isinstance(reported, Input) else {}
            raise Refused(reported["code"] if isinstance(reported, Input) else reported, **more) from None

    def _spend(self, op: Op, named: dict[int, OutPoint]) -> Op:
        """Let a transaction spend outputs, at a height, as the inputs of these numbers."""
        if op["height"] <= 0:
            self.case.near("spend at height 0")
            raise Refused("PROCESSING")
        self.case.go(op["height"] - 1)
        with self.case.signals({txid for txid, _ in named.values()}) as signals:
            answer = self._claim(op, named)
            if isinstance(answer, Error) and (reported := self._ignoring_flags(op, answer)) is not None:
                answer = reported
            self.case.accepted(answer, list(named.values()))
        if op["tx"] in self.case.spenders:
            self.case.spenders[op["tx"]].spends = True
        return signals

    def _claim(self, op: Op, named: dict[int, OutPoint]) -> Ack | Error:
        """Submit a transaction with what it is to spend; what it spends already is spent again."""
        name, spender = op["tx"], self.case.spenders.get(op["tx"])
        known = self.daemon.transaction(self.words.txid(name)) is not None
        has = {} if spender is None else dict(enumerate(spender.tx.inputs))
        if spender is None or not known or not named.items() <= has.items():
            if known and not any(self.daemon.transaction(txid) for txid, _ in named.values()):
                return self.case.ask(self.case.submission(self.case.filled(name, named)))
            return self._grow(op, named, spender if known else None)
        if spender.spends:
            return self.case.spend_again(op["height"], spender)
        if spender.height != op["height"] and spender.created:
            return self.case.claim_again(spender)
        return self.case.ask(self.case.submission(spender.tx, op.get("hash")), "spend")

    def _grow(self, op: Op, named: dict[int, OutPoint], spender: Spender | None) -> Ack | Error:
        """Submit a transaction that spends what is named and what it has spent before."""
        name, made = op["tx"], self.words.made.get(op["tx"])
        before = dict(enumerate(spender.tx.inputs)) if spender else {}
        before = {n: at for n, at in before.items() if not self.words.name(at[0]).startswith("root of ")}
        taken = {n if before.get(n, at) == at else max([*before, *named]) + 1 + n: at for n, at in named.items()}
        tx = self.case.filled(name, before | taken, made)
        self.case.need_roots(tx, op["height"] - 1)
        if spender is not None:
            self.case.near("spend, other inputs")
            withdrawn = self.case.ask(TxWithdrawn(txids=[tx.txid], reason="replaced"))
            if isinstance(withdrawn, Error):  # a block has it: and what it spends
                self.daemon.block(op["height"], tx)
                self.case.spenders[name] = Spender(tx, op["height"], created=spender.created, in_block=True)
                return Ack(seq=0, status="applied", tip=None)
        fields = spender.fields if spender else {}
        answer = self.case.ask(self.case.submission(tx, op.get("hash"), **fields), "spend")
        if isinstance(answer, Ack) or self._ignored(op, answer):
            self.case.spenders[name] = Spender(tx, op["height"], fields, created=made is not None)
        elif spender is not None:
            self.case.go(spender.height - 1)
            self.case.do(self.case.submission(spender.tx, **fields))
        return answer

    def _ignored(self, op: Op, answer: Error) -> bool:
        """Return whether only what an op ignores is said against it."""
        flags = {"LOCKED": op.get("ignoreLocked"), "CONFLICTING": op.get("ignoreConflicting")}
        faults = faults_of(answer)
        return bool(faults) and all(flags.get(fault["code"]) for fault in faults.values())

    def _ignoring_flags(self, op: Op, answer: Error) -> Ack | Error | None:
        """Return what is said when a block has what only an ignored flag was against; None if anything else is."""
        if not self._ignored(op, answer):
            return None
        self.case.near("spend, ignoring")
        behind: list[Op] = []
        for outpoint in faults_of(answer):
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
        self.daemon.block(op["height"], self.case.spenders[op["tx"]].tx)
        self.case.spenders[op["tx"]].in_block = True
        return Ack(seq=0, status="applied", tip=None)

    def op_unspend(self, op: Op) -> Op:
        outpoint = self.words.outpoint(op["out"])
        slot = self.daemon.output(outpoint)
        if slot is not None and slot.status == "frozen":
            self.case.near("unspend, frozen")
            raise Refused("FROZEN")
        name, number = split(op["by"])
        spender = self.case.spenders.get(name)
        self.case.go(op.get("height"))
        with self.case.signals({outpoint[0]}) as signals:
            if spender is None:
                answer = self.case.ask(TxWithdrawn(txids=[self.words.txid(name)], reason="operator"), "unspend")
                if isinstance(answer, Error) and answer.code != "TX_NOT_FOUND":
                    self.case.accepted(answer)
            elif spender.tx.inputs[number : number + 1] == [outpoint]:
                self._give_back(name, number, spender)
        if slot is None:
            raise Refused("TX_NOT_FOUND" if self.daemon.transaction(outpoint[0]) is None else "UTXO_NOT_FOUND")
        return signals

    def _give_back(self, name: str, number: int, spender: Spender) -> None:
        """Withdraw a transaction; with what else it spends it is submitted again."""
        self.case.do(TxWithdrawn(txids=[spender.tx.txid], reason="operator"), "unspend")
        left = {n: at for n, at in enumerate(spender.tx.inputs) if n != number}
        if not left and not spender.created:
            del self.case.spenders[name]
            return
        height = self.daemon.chain.height
        tx = self.case.filled(name, left or {0: (self.words.root(name).txid, 0)}, spender.tx)
        self.case.need_roots(tx, spender.height - 1)
        self.case.do(self.case.submission(tx, **spender.fields))
        self.case.spenders[name] = Spender(tx, spender.height, spender.fields, spender.created, bool(left))
        self.case.go(height)

    def op_incSpentExtra(self, op: Op) -> Op:
        """Let pages become all spent, or stop being so."""
        self.case.near("incSpentExtra")
        name, _, number = op["tx"].partition("#")
        if number:
            self.case.do(TxUnlocked(txids=[self.words.txid(name) + int(number).to_bytes(4, "big")]))
        spenders = self._page_spenders.setdefault(name, [])
        with self.case.signals({self.words.txid(name)}) as signals:
            for _ in range(abs(op["by"])):
                if op["by"] > 0:
                    self._spend_page(name, op["height"], spenders)
                    continue
                self.case.read(name)
                removed = self.words.txid(spenders.pop() if spenders else f"nobody spends a page of {name}")
                if isinstance(self.case.ask(TxWithdrawn(txids=[removed], reason="operator")), Error):
                    raise Refused("INVALID_PARAMETER")
        return signals if "childCount" in signals else {"signal": None}

    def _spend_page(self, name: str, height: int, spenders: list[str]) -> None:
        """Spend what is left of the first further page of which something is left."""
        self.case.go(height - 1)
        txid, size = self.words.txid(name), self.case.config["batchSize"]
        slots = [slot.output_index for slot in self.daemon.outputs(txid)[size:] if slot.status == "unspent"]
        if not slots and self.daemon.transaction(txid):
            raise Refused("INVALID_PARAMETER")
        spenders.append(f"{len(spenders)}th spender of {name}")
        spends = [(txid, n) for n in slots if n // size == slots[0] // size] or [(txid, 0)]
        answer = self.case.ask(TxSubmitted(tx=self.case.filled(spenders[-1], dict(enumerate(spends)))))
        if isinstance(answer, Error):
            raise Refused(next(iter(faults_of(answer).values()))["code"])
