"""Queries of Electrum clients to the store, each answered from one snapshot, in bounded turns of the event loop."""

from __future__ import annotations

from collections.abc import AsyncIterator, Awaitable, Callable, Container, Iterable, Iterator, Mapping
from hashlib import sha256
from typing import TypeVar

import anyio
import msgspec
from msgspec import Raw

from daemon.wallets.claims import Claims
from daemon.wallets.errors import BAD_REQUEST, RpcFault
from daemon.wallets.headers import hash_at, header_of, ordinal_at
from daemon.wallets.mempool import Mempool, MempoolTx
from daemon.wallets.upstream import ByteCache
from formats.transactions import TxOutput
from handlers import script_history
from handlers.boundary import Boundary, NoIndex, Torn
from handlers.events import Point
from handlers.query import Query, Snapshot
from handlers.script_history import Located
from storage.errors import SnapshotExpired
from storage.history.output_keys import address_key

_T = TypeVar("_T")
_Json = dict[str, object]
_Make = Callable[[Snapshot, bytes, list[MempoolTx]], Awaitable[object]]

_ANSWERS_BYTES = 64 << 20
_encode = msgspec.json.Encoder().encode


class ChainView:
    """The store and the mempool as Electrum's answers show them."""

    def __init__(self, query: Query, mempool: Mempool, claims: Claims) -> None:
        self._query, self.mempool, self.claims = query, mempool, claims
        self._boundary: Boundary | None = None
        self._answers = ByteCache(_ANSWERS_BYTES)  # as of that block boundary

    # --- scripts --------------------------------------------------------------------------------------------------

    async def history(self, key: bytes) -> Raw:
        """Return the transactions of a script: confirmed ones in chain order, then those of the mempool."""
        return await self._answer("history", key, self._history)

    async def status(self, key: bytes) -> str | None:
        """Return the status of a script: the hash of its history, None without one."""
        status: str | None = msgspec.json.decode(await self._answer("status", key, self._status))
        return status

    async def unspent(self, key: bytes) -> Raw:
        """Return the unspent outputs of a script, without those that the mempool spends and with those that it adds."""
        return await self._answer("unspent", key, self._unspent)

    async def balance(self, key: bytes) -> Raw:
        """Return the confirmed sum of a script, and by how much the mempool changes it."""
        return await self._answer("balance", key, self._balance)

    def in_mempool(self, key: bytes) -> list[_Json]:
        """Return the unconfirmed transactions of a script."""
        waiting = self.mempool.of_script(key)
        if not waiting:
            return []
        with self.snapshot() as shot:
            return [self._waiting(shot, each) for each in unconfirmed(shot, waiting)]

    async def _answer(self, kind: str, key: bytes, make: _Make) -> Raw:
        """Return an answer in JSON. Until the next block it is cached, unless the mempool has a part in it."""
        waiting = self.mempool.of_script(key)
        with self.snapshot() as shot:
            if waiting:
                return Raw(_encode(await make(shot, key, waiting)))
            if shot.boundary is not self._boundary:
                self._boundary, self._answers = shot.boundary, ByteCache(_ANSWERS_BYTES)
            answers, name = self._answers, kind.encode() + key
            if (known := answers.get(name)) is None:
                known = _encode(await make(shot, key, waiting))
                answers.put(name, known)
            return Raw(known)

    async def _history(self, shot: Snapshot, key: bytes, waiting: list[MempoolTx]) -> list[_Json]:
        found = list[_Json]()
        async for part in _in_turns(shot, script_history.history(shot, key)):
            found += [{"tx_hash": txid.hex(), "height": height} for txid, height in part]
        return found + [self._waiting(shot, each) for each in unconfirmed(shot, waiting)]

    def _waiting(self, shot: Snapshot, each: MempoolTx) -> _Json:
        """Return an unconfirmed transaction, with the others that claim an output which it spends."""
        entry: _Json = {"tx_hash": each.tx.txid.hex(), "height": each.height, "fee": each.fee}
        others = self.claims.others(shot, each.tx)
        return entry | {"claimed_by": others} if others else entry

    async def _status(self, shot: Snapshot, key: bytes, waiting: list[MempoolTx]) -> str | None:
        entries = list[tuple[bytes, int]]()
        async for part in _in_turns(shot, script_history.history(shot, key)):
            entries += part
        entries += [(each.tx.txid, each.height) for each in unconfirmed(shot, waiting)]
        text = "".join([f"{txid.hex()}:{height}:" for txid, height in entries])
        return sha256(text.encode()).hexdigest() if entries else None

    async def _unspent(self, shot: Snapshot, key: bytes, waiting: list[MempoolTx]) -> list[_Json]:
        found = list[_Json]()
        spent = {(one.txid, one.vout) for each in waiting for one in each.tx.inputs}
        async for part in _in_turns(shot, script_history.unspent(shot, key)):
            found += [_unspent(*output) for output in part if (output.txid, output.vout) not in spent]
        for each in unconfirmed(shot, waiting):
            for n, made in enumerate(each.tx.outputs):
                if (each.tx.txid, n) not in spent and address_key(made.script) == key:
                    found.append(_unspent(each.tx.txid, n, 0, made.value))
        return found

    async def _balance(self, shot: Snapshot, key: bytes, waiting: list[MempoolTx]) -> _Json:
        confirmed = change = 0
        for total in script_history.balance(shot, key):
            confirmed = total.value
            await turn(shot)
        for each in unconfirmed(shot, waiting):
            change += sum(made.value for made in each.tx.outputs if address_key(made.script) == key)
            change -= sum(used.value for used in each.spent if address_key(used.script) == key)
        return {"confirmed": confirmed, "unconfirmed": change}

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

    def changed_by(self, block_hash: bytes) -> tuple[set[bytes], list[bytes]]:
        """Return the keys of the scripts that a block touches, and its transactions; nothing if it was rolled back."""
        with self.snapshot() as shot:
            ordinal = shot.ordinal_of(block_hash)
            if ordinal is None or not shot.state.floor < ordinal <= shot.state.tip:
                return set(), []
            return script_history.touched_keys(shot, ordinal), script_history.transaction_ids(shot, ordinal) or []

    def snapshot(self) -> Guarded:
        """Read one block boundary; failures are errors of the protocols."""
        return Guarded(self._query)


class Guarded:
    """A snapshot whose failures reach the client as errors of the protocol."""

    def __init__(self, query: Query) -> None:
        self._manager = query.snapshot()

    def __enter__(self) -> Snapshot:
        return self._manager.__enter__()

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: object) -> bool | None:
        try:
            return self._manager.__exit__(kind, error, trace)  # type: ignore[arg-type]
        except NoIndex as missing:
            raise RpcFault(BAD_REQUEST, f"the index {missing} is not enabled: set utxo.index.{missing}") from missing
        except (Torn, SnapshotExpired) as moved:
            raise RpcFault(BAD_REQUEST, "the store changed while the answer was read: try again") from moved


async def _in_turns(shot: Snapshot, parts: Iterator[list[_T]]) -> AsyncIterator[list[_T]]:
    """Yield parts; other clients get a turn between two of them."""
    for number, part in enumerate(parts):
        if number:
            await turn(shot)
        yield part


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
