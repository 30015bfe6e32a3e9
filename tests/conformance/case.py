"""What the ops of a case have in common: one daemon, what was said to it, and how its answers read."""

from __future__ import annotations

import shutil
import tempfile
import weakref
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import msgspec
from conformance.faulty import Faults
from conformance.in_process import InProcess
from conformance.reach import NEAREST, UNREACHED
from conformance.stored import Stored
from conformance.words import Op, Words

from handlers.events import (
    Ack,
    BlockPersisted,
    Error,
    Inbound,
    OutPoint,
    Output,
    Tx,
    TxConflicting,
    TxMined,
    TxSubmitted,
)
from handlers.spending import Rules

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

OWN_BLOCK = 1 << 39  # the id of a block of another chain that has what a case does not say to be in one


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
        self.details: Op = {"result": "error", "code": code, **more}


class Case:
    """One daemon, its store empty at first, and what a case has said so far."""

    def __init__(self) -> None:
        self.folder = Path(tempfile.mkdtemp(prefix="utxod-case-"))
        self.config = dict(DEFAULTS)
        self.words = Words()
        self.faults = Faults(self.words.name)
        self.daemon = InProcess(self.folder, self.faults, self.rules())
        self.nearest: set[str] = set()
        self.spenders: dict[str, Spender] = {}
        self.last = ""  # what was created, or locked for that, last
        self.logs: Sequence[Mapping[str, Any]] = ()
        self.close = weakref.finalize(self, _remove, self.daemon, self.folder)

    @property
    def stored(self) -> Stored:
        return Stored(self.daemon.store, self.daemon.files, self.words, self.faults)

    def rules(self, **changed: Any) -> Rules:
        config = self.config | changed
        return Rules(
            batch_size=config["batchSize"],
            retention=config["retention"],
            maturity=config["coinbaseMaturity"],
            reassign_delay=config["reassignDelay"],
            max_inline_bytes=config["inlineLimit"],
            externalize_all=bool(config["external"]),
        )

    def ask(self, event: Inbound, step: str = "") -> Ack | Error:
        return self.daemon.ask(event, step=step)[0]

    def do(self, event: Inbound, step: str = "") -> Ack:
        return self.accepted(self.ask(event, step))

    def accepted(self, answer: Ack | Error, outpoints: Sequence[OutPoint] = ()) -> Ack:
        """Return an acknowledgement; of a refusal `outpoints` are what is told of."""
        if isinstance(answer, Ack):
            return answer
        code = {"store_full": "STORAGE_ERROR", "malformed": "INVALID_PARAMETER"}.get(answer.code, answer.code)
        if code == "UTXO_ERROR":
            left, reported = inputs_of(answer), dict[str, str | Input]()
            for n, outpoint in reversed(list(enumerate(outpoints))):  # of one that is named twice, the first is spent
                found = next((fault for fault in reversed(left) if tuple(fault["outpoint"]) == outpoint), None)
                left = [fault for fault in left if fault is not found]
                reported[str(n)] = self._input(found)
            raise Refused(code, perInput=dict(reversed(reported.items())))
        spender = next(iter(faults_of(answer).values()), {}).get("spender")
        raise Refused(code, existing=self.words.out(spender)) if spender else Refused(code)

    def _input(self, fault: Op | None) -> str | Input:
        if fault is None:
            return "ok"
        if "spender" not in fault:
            return str(fault["code"])
        reported = Input(code=fault["code"], conflictingTx=self.words.name(fault["spender"][0]))
        reported.spender = self.words.out(fault["spender"])
        return reported

    def go(self, height: int | None = None) -> None:
        """Let the tip be where the next op wants it: by itself, at the store's own height."""
        self.daemon.go(self.config["blockHeight"] if height is None else max(height, 0))

    def near(self, name: str) -> None:
        """Remember that an op came up that no message means in its words."""
        assert name in NEAREST or name in UNREACHED
        self.nearest.add(name)

    def read(self, name: str) -> Any:
        found = self.daemon.transaction(self.words.txid(name))
        if found is None:
            raise Refused("TX_NOT_FOUND")
        return found

    def unmined(self) -> list[tuple[int, bytes]]:
        """Return what waits for a block, or has lost a conflict, and since when."""
        waiting = [*self.daemon.waiting("unmined"), *self.daemon.waiting("conflicting")]
        return sorted((each.unmined_since, bytes.fromhex(each.txid)) for each in waiting)

    def persist(self, height: int) -> None:
        self.go(height)
        tip = self.daemon.chain.tip
        self.do(BlockPersisted(height=height, hash=tip.hash if tip else None))

    @contextmanager
    def signals(self, txids: set[bytes]) -> Iterator[Op]:
        """Return what an op did to a large transaction: its deletion was set or unset, or a page's state moved."""
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

    def submission(self, tx: Tx, hash: str | None = None, **fields: Any) -> TxSubmitted:
        """Return the submission of a transaction, with the hashes that a case means of what it spends."""
        hashes = [self.words.hash(outpoint, hash) for outpoint in tx.inputs]
        return TxSubmitted(tx=tx, input_hashes=hashes if any(hashes) else None, **fields)

    def filled(self, name: str, named: Mapping[int, OutPoint], like: Tx | None = None) -> Tx:
        """Return a transaction that spends what is named; inputs of which nobody speaks are filled in."""
        inputs = [named.get(n, (self.words.root(f"{name} {n}").txid, 0)) for n in range(max(named, default=-1) + 1)]
        like = like or Tx(self.words.txid(name), outputs=[Output(b"\x51", 1)])
        return msgspec.structs.replace(like, inputs=inputs)

    def need_roots(self, tx: Tx, height: int) -> None:
        """Let the tip be at a height, with the outputs that a transaction spends of which the case does not speak."""
        names = [self.words.name(txid) for txid, _ in tx.inputs]
        roots = [name.removeprefix("root of ") for name in names if name.startswith("root of ")]
        made = [root for name in dict.fromkeys(roots) if not self.daemon.knows((root := self.words.root(name)).txid)]
        if made:
            self.daemon.block(max(height, 0), *made)
        self.go(height)

    def claim_again(self, spender: Spender) -> Ack | Error:
        """Let a transaction spend at the height after the tip's, not when it was submitted."""
        spender.height, txids = self.daemon.chain.height + 1, [spender.tx.txid]
        self.do(TxConflicting(txids=txids))
        return self.ask(TxConflicting(txids=txids, value=False), "spend")

    def spend_again(self, height: int, spender: Spender) -> Ack | Error:
        """Let a block have a transaction, once."""
        if spender.in_block:
            return self.ask(TxSubmitted(tx=spender.tx))
        self.near("spend again")
        self.daemon.block(height, spender.tx)
        spender.in_block = True
        return Ack(seq=0, status="applied", tip=None)


def inputs_of(answer: Ack | Error) -> list[Op]:
    inputs: Any = answer.detail.get("inputs", []) if isinstance(answer, Error) else []
    return list(inputs)


def faults_of(answer: Ack | Error) -> dict[OutPoint, Op]:
    return {tuple(fault["outpoint"]): fault for fault in inputs_of(answer)}


def mined_in(txid: bytes, at: Op, **how: Any) -> TxMined:
    return TxMined(txids=[txid], block_id=at["block"], height=at["height"], subtree_index=at.get("subtree"), **how)


def _remove(daemon: InProcess, folder: Path) -> None:
    daemon.disk.close()
    shutil.rmtree(folder, ignore_errors=True)
