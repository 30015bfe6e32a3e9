"""Queries of Electrum clients to the store, each answered from one snapshot, in bounded turns of the event loop."""

from __future__ import annotations

from collections.abc import Callable, Container, Generator, Iterable, Mapping
from contextlib import AbstractContextManager
from functools import partial
from hashlib import sha256
from time import monotonic

import anyio
import msgspec

from daemon.wallets.claims import Claims
from daemon.wallets.headers import hash_at, header_of, ordinal_at
from daemon.wallets.later import Later
from daemon.wallets.mempool import Mempool, MempoolTx
from daemon.wallets.snapshots import Snapshots
from daemon.wallets.upstream import ByteCache
from formats.transactions import TxOutput
from handlers import script_history
from handlers.boundary import Boundary
from handlers.events import Point
from handlers.query import Query, Snapshot
from handlers.script_history import Located
from storage.history.output_keys import address_key

_Json = dict[str, object]
_Steps = Generator[None, None, bytes]  # yields where other clients may have a turn, and returns an answer
_Make = Callable[[Snapshot, bytes, list[MempoolTx]], _Steps]

_ANSWERS_BYTES = 64 << 20
_LONG_ANSWERS = 50  # that are computed at once: the snapshot of each takes a reader of the store, which has 1,024
_TURN_S = 0.005
_encode = msgspec.json.Encoder().encode


class ChainView:
    """The store and the mempool as Electrum's answers show them."""

    def __init__(self, query: Query, mempool: Mempool, claims: Claims) -> None:
        self._snapshots, self.mempool, self.claims = Snapshots(query), mempool, claims
        self._boundary: Boundary | None = None
        self._answers = ByteCache(_ANSWERS_BYTES)  # as of that block boundary
        self.long_answers = anyio.Semaphore(_LONG_ANSWERS)

    # --- scripts --------------------------------------------------------------------------------------------------

    def history(self, key: bytes) -> bytes | Later[bytes]:
        """Return the transactions of a script in JSON: confirmed ones in chain order, then those of the mempool."""
        return self._answer(b"history", key, self._history)

    def status(self, key: bytes) -> bytes | Later[bytes]:
        """Return the status of a script: the SHA-256 of its history, nothing without one."""
        return self._answer(b"status", key, self._status)

    def unspent(self, key: bytes) -> bytes | Later[bytes]:
        """Return the unspent outputs of a script in JSON: without those that the mempool spends, with its own."""
        return self._answer(b"unspent", key, self._unspent)

    def balance(self, key: bytes) -> bytes | Later[bytes]:
        """Return in JSON the confirmed sum of a script, and by how much the mempool changes it."""
        return self._answer(b"balance", key, self._balance)

    def in_mempool(self, key: bytes) -> list[_Json]:
        """Return the unconfirmed transactions of a script."""
        waiting = self.mempool.of_script(key)
        if not waiting:
            return []
        with self.snapshot() as shot:
            return [self._waiting(shot, each) for each in unconfirmed(shot, waiting)]

    def _answer(self, kind: bytes, key: bytes, make: _Make) -> bytes | Later[bytes]:
        """Return an answer. Until the next block it is cached, unless the mempool has a part in it.

        One that takes longer than a turn is begun again, with a snapshot of its own.
        """
        name, waiting, end = kind + key, self.mempool.of_script(key), monotonic() + _TURN_S
        with self.snapshot() as shot:
            answers = self._answers_at(shot)
            if not waiting and (known := answers.get(name)) is not None:
                return known
            work = make(shot, key, waiting)
            try:
                while monotonic() < end:
                    next(work)
            except StopIteration as done:
                return _kept(answers, name, done.value, waiting)
        return partial(self._answer_in_turns, name, key, make)

    async def _answer_in_turns(self, name: bytes, key: bytes, make: _Make) -> bytes:
        async with self.long_answers:
            waiting = self.mempool.of_script(key)
            with self.snapshot() as shot:
                answers, work = self._answers_at(shot), make(shot, key, waiting)
                while True:
                    try:
                        next(work)
                    except StopIteration as done:
                        return _kept(answers, name, done.value, waiting)
                    await turn(shot)

    def _answers_at(self, shot: Snapshot) -> ByteCache:
        if shot.boundary is not self._boundary:
            self._boundary, self._answers = shot.boundary, ByteCache(_ANSWERS_BYTES)
        return self._answers

    def _history(self, shot: Snapshot, key: bytes, waiting: list[MempoolTx]) -> _Steps:
        found = list[_Json]()
        for part in script_history.history(shot, key):
            found += [{"tx_hash": txid.hex(), "height": height} for txid, height in part]
            yield
        return _encode(found + [self._waiting(shot, each) for each in unconfirmed(shot, waiting)])

    def _waiting(self, shot: Snapshot, each: MempoolTx) -> _Json:
        """Return an unconfirmed transaction, with the others that claim an output which it spends."""
        entry: _Json = {"tx_hash": each.tx.txid.hex(), "height": each.height, "fee": each.fee}
        others = self.claims.others(shot, each.tx)
        return entry | {"claimed_by": others} if others else entry

    def _status(self, shot: Snapshot, key: bytes, waiting: list[MempoolTx]) -> _Steps:
        history = sha256()
        empty = True
        for part in script_history.history(shot, key):
            history.update("".join([f"{txid.hex()}:{height}:" for txid, height in part]).encode())
            empty = False
            yield
        for each in unconfirmed(shot, waiting):
            history.update(f"{each.tx.txid.hex()}:{each.height}:".encode())
            empty = False
        return b"" if empty else history.digest()

    def _unspent(self, shot: Snapshot, key: bytes, waiting: list[MempoolTx]) -> _Steps:
        found = list[_Json]()
        spent = {(one.txid, one.vout) for each in waiting for one in each.tx.inputs}
        for part in script_history.unspent(shot, key):
            found += [_unspent(*output) for output in part if (output.txid, output.vout) not in spent]
            yield
        for each in unconfirmed(shot, waiting):
            for n, made in enumerate(each.tx.outputs):
                if (each.tx.txid, n) not in spent and address_key(made.script) == key:
                    found.append(_unspent(each.tx.txid, n, 0, made.value))
        return _encode(found)

    def _balance(self, shot: Snapshot, key: bytes, waiting: list[MempoolTx]) -> _Steps:
        confirmed = change = 0
        for total in script_history.balance(shot, key):
            confirmed = total.value
            yield
        for each in unconfirmed(shot, waiting):
            change += sum(made.value for made in each.tx.outputs if address_key(made.script) == key)
            change -= sum(used.value for used in each.spent if address_key(used.script) == key)
        return _encode({"confirmed": confirmed, "unconfirmed": change})

    # --- transactions ---------------------------------------------------------------------------------------------

    def locate(self, txid: bytes) -> Located | None:
        """Return where a transaction is in the chain."""
        with self.snapshot() as shot:
            return script_history.locate(shot, txid)

    def hashes_of_blocks(self, heights: Mapping[bytes, int]) -> dict[bytes, bytes | None]:
        """Return the hash of the block of each transaction, whose height is that of an earlier answer.

        It is None for one that was in the mempool, and for one whose block is no longer there.
        """
        with self.snapshot() as shot:
            hashes = {height: hash_at(shot, height) for height in set(heights.values())}
        return {txid: hashes[height] for txid, height in heights.items()}

    def find_output(self, txid: bytes, index: int) -> TxOutput | None:
        """Return an output of the chain, spent or not, as long as it is on disk."""
        with self.snapshot() as shot:
            found = script_history.output_of(shot, txid, index)
        return None if found is None else TxOutput(found.value, found.address)

    def script_of(self, txid: bytes, index: int) -> bytes | None:
        """Return the SHA-256 of an output's script, None while no transaction with this output is known."""
        waiting = self.mempool.get(txid)
        if waiting is not None:
            return address_key(waiting.tx.outputs[index].script) if index < len(waiting.tx.outputs) else None
        found = self.find_output(txid, index)
        return None if found is None else address_key(found.script)

    def outpoint_status(self, txid: bytes, index: int) -> _Json:
        """Return the heights of the transactions that create and spend an output, if they exist.

        The mempool is read before the snapshot begins, as by `unconfirmed`.
        """
        waiting, spender = self.mempool.get(txid), self.mempool.spender((txid, index))
        with self.snapshot() as shot:
            found = script_history.find_transaction(shot, txid)
            if found is None:
                if waiting is None or index >= len(waiting.tx.outputs):
                    return {}
                return {"funder_height": waiting.height} | _spent_by(spender)
            if index >= found.outputs:
                return {}
            status: _Json = {"funder_height": script_history.located(shot, found).height}
            by = script_history.spender_of_output(shot, found.number + index)
            if by is None:
                return status | _spent_by(spender)
            return status | {"spender_txhash": by.txid.hex(), "spender_height": shot.block(by.block).height}

    def transaction_ids(self, height: int, known: Container[bytes]) -> tuple[bytes, list[bytes] | None]:
        """Return the hash of a block and the ids of its transactions.

        Instead of the ids it returns None where not all of them are kept, and for a block whose hash is in `known`.

        Raises:
            RpcFault: there is no block of this height.
        """
        with self.snapshot() as shot:
            ordinal = ordinal_at(shot, height)
            block_hash = shot.block(ordinal).hash
            return block_hash, None if block_hash in known else script_history.transaction_ids(shot, ordinal)

    # --- headers --------------------------------------------------------------------------------------------------

    def tip(self) -> tuple[Point, bytes] | None:
        """Return the last block with its header; None before the first block."""
        with self.snapshot() as shot:
            point = shot.tip()
            return None if point is None else (point, header_of(shot, shot.state.tip))

    def headers(self, start: int, count: int) -> list[bytes]:
        """Return headers from a height on, as many as there are.

        Raises:
            RpcFault: headers are not kept.
        """
        with self.snapshot() as shot:
            tip = shot.tip()
            if tip is None or start > tip.height or count == 0:
                return []
            first = ordinal_at(shot, start)
            return [header_of(shot, ordinal) for ordinal in range(first, min(first + count, shot.state.tip + 1))]

    def first_height(self) -> int:
        """Return the height from which on histories are complete."""
        with self.snapshot() as shot:
            return script_history.history_begins_at(shot) or 0

    # --- blocks ---------------------------------------------------------------------------------------------------

    def changed_by(self, block_hash: bytes) -> tuple[set[bytes], list[bytes] | None]:
        """Return the keys of the scripts that a block touches, and its transactions; nothing if it was rolled back.

        Instead of the transactions it returns None where not all of them are kept.
        """
        with self.snapshot() as shot:
            ordinal = shot.ordinal_of(block_hash)
            if ordinal is None or not shot.state.floor < ordinal <= shot.state.tip:
                return set(), []
            return script_history.touched_keys(shot, ordinal), script_history.transaction_ids(shot, ordinal)

    # --- snapshots ------------------------------------------------------------------------------------------------

    def snapshot(self) -> AbstractContextManager[Snapshot]:
        """Read one block boundary; failures are errors of the protocols."""
        return self._snapshots.one()

    def turn(self) -> AbstractContextManager[None]:
        """Answer everything from one snapshot. Nothing may be awaited meanwhile."""
        return self._snapshots.turn()


def _kept(answers: ByteCache, name: bytes, answer: bytes, waiting: list[MempoolTx]) -> bytes:
    """Cache an answer in which the mempool has no part; not that there is nothing, of which there is no end."""
    if not waiting and len(answer) > len(b"[]"):
        answers.put(name, answer)
    return answer


async def turn(shot: Snapshot) -> None:
    """Yield to other clients.

    Raises:
        SnapshotExpired: the snapshot has reached its greatest age.
    """
    await anyio.lowlevel.checkpoint()
    shot.check_age()


def unconfirmed(shot: Snapshot, waiting: Iterable[MempoolTx]) -> list[MempoolTx]:
    """Return the transactions that are in no block of this snapshot.

    The mempool is read before the snapshot begins: a transaction that a block takes meanwhile is in both, never in
    neither.
    """
    return [each for each in waiting if script_history.find_transaction(shot, each.tx.txid) is None]


def _spent_by(spender: MempoolTx | None) -> _Json:
    return {} if spender is None else {"spender_txhash": spender.tx.txid.hex(), "spender_height": spender.height}


def _unspent(txid: bytes, index: int, height: int, value: int) -> _Json:
    return {"tx_hash": txid.hex(), "tx_pos": index, "height": height, "value": value}
