"""Transactions in Esplora's format, with the outputs that they spend and their status."""

from __future__ import annotations

from typing import Any

from daemon.wallets.backend import Backend
from daemon.wallets.errors import RpcFault
from daemon.wallets.mempool import MempoolTx
from formats.script_asm import assembly, kind
from formats.transactions import Transaction, TxInput, TxOutput, parse_transaction
from handlers import script_history
from handlers.addresses import Codec
from handlers.query import Snapshot
from handlers.script_history import Located
from storage.history.layout import TxFound

Json = dict[str, Any]


class Transactions:
    """Writes transactions, whose bytes the node returns and whose previous outputs the store has."""

    def __init__(self, backend: Backend, codec: Codec) -> None:
        self._backend, self._codec = backend, codec

    async def find(self, txid: bytes) -> Json | None:
        """Return a transaction of the chain or of the mempool, None if neither has it.

        Raises:
            RpcFault: the node does not return its bytes.
        """
        waiting = self._backend.mempool.get(txid)
        where = self._backend.chain.locate(txid)
        if where is None and waiting is not None:
            return self._waiting(waiting)
        if where is None:
            return None
        return await self.confirmed(txid, where)

    async def confirmed(self, txid: bytes, where: Located) -> Json:
        """Return a transaction of the chain.

        Raises:
            RpcFault: the node does not return its bytes, or those of a transaction that it spends from.
        """
        tx = parse_transaction(await self._backend.upstream.raw_transaction(txid, where))
        spent = [] if tx.is_coinbase else [await self._previous(each) for each in tx.inputs]
        return self._json(tx, spent, where)

    def unconfirmed(self, txid: bytes) -> Json | None:
        """Return a transaction of the mempool."""
        waiting = self._backend.mempool.get(txid)
        return None if waiting is None else self._waiting(waiting)

    def _waiting(self, each: MempoolTx) -> Json:
        """Return a transaction of the mempool, with the others that claim an output which it spends."""
        found = self._json(each.tx, list(each.spent), None)
        with self._backend.chain.snapshot() as shot:
            others = self._backend.chain.claims.others(shot, each.tx)
        return found | {"claimed_by": others} if others else found

    def status_of(self, txid: bytes) -> Json:
        """Return where a transaction is; an unknown one is not confirmed either."""
        return status(self._backend.chain.locate(txid))

    def outspends(self, txid: bytes) -> list[Json] | None:
        """Return the spender of each output of a transaction; None if it is not known."""
        waiting = self._backend.mempool.get(txid)
        with self._backend.chain.snapshot() as shot:
            found = script_history.find_transaction(shot, txid)
            if found is None and waiting is None:
                return None
            count = found.outputs if found is not None else len(waiting.tx.outputs) if waiting else 0
            return [self._outspend(shot, found, txid, n) for n in range(count)]

    def _outspend(self, shot: Snapshot, found: TxFound | None, txid: bytes, index: int) -> Json:
        output = None if found is None else shot.stored.body(found.number + index)
        by = None if output is None else script_history.spender_of(shot, output)
        if by is not None:
            where = script_history.locate(shot, by.txid)
            return {"spent": True, "txid": by.txid.hex(), "vin": by.input, "status": status(where)}
        spender = self._backend.mempool.spender((txid, index))
        if spender is None:
            return {"spent": False}
        places = [(each.txid, each.vout) for each in spender.tx.inputs]
        vin = places.index((txid, index))
        return {"spent": True, "txid": spender.tx.txid.hex(), "vin": vin, "status": status(None)}

    async def _previous(self, spends: TxInput) -> TxOutput:
        """Return the output that an input spends: from the store, or else from the bytes of its transaction."""
        known = self._backend.chain.find_output(spends.txid, spends.vout)
        if known is not None:
            return known
        where = self._backend.chain.locate(spends.txid)
        made = parse_transaction(await self._backend.upstream.raw_transaction(spends.txid, where))
        if spends.vout >= len(made.outputs):
            raise RpcFault(2, f"transaction {spends.txid.hex()} has no output {spends.vout}")
        return made.outputs[spends.vout]

    def _json(self, tx: Transaction, spent: list[TxOutput], where: Located | None) -> Json:
        fee = sum(each.value for each in spent) - sum(each.value for each in tx.outputs) if spent else 0
        previous: list[TxOutput] | list[None] = spent or [None] * len(tx.inputs)
        return {
            "txid": tx.txid.hex(),
            "version": tx.version,
            "locktime": tx.lock_time,
            "vin": [self._input(*each) for each in zip(tx.inputs, previous, strict=True)],
            "vout": [self.output(each) for each in tx.outputs],
            "size": tx.size,
            "weight": tx.weight,
            "fee": fee,
            "status": status(where),
        }

    def _input(self, each: TxInput, previous: TxOutput | None) -> Json:
        found: Json = {
            "txid": each.txid.hex(),
            "vout": each.vout,
            "prevout": None if previous is None else self.output(previous),
            "scriptsig": each.script.hex(),
            "scriptsig_asm": assembly(each.script),
            "is_coinbase": previous is None,
            "sequence": each.sequence,
        }
        if each.witness:
            found["witness"] = [item.hex() for item in each.witness]
        return found

    def output(self, each: TxOutput) -> Json:
        """Return an output."""
        found: Json = {
            "scriptpubkey": each.script.hex(),
            "scriptpubkey_asm": assembly(each.script),
            "scriptpubkey_type": kind(each.script),
        }
        if (address := self._codec.write(each.script)) != each.script.hex():
            found["scriptpubkey_address"] = address
        return {**found, "value": each.value}


def status(where: Located | None) -> Json:
    """Return where a transaction is."""
    if where is None:
        return {"confirmed": False}
    return {
        "confirmed": True,
        "block_height": where.height,
        "block_hash": where.block_hash.hex(),
        "block_time": where.time,
    }


def located(shot: Snapshot, number: int) -> tuple[bytes, Located]:
    """Return a transaction's id and where it is, by its number."""
    tx = shot.stored.tx_of(number)
    found = script_history.located(shot, tx)
    return tx.txid, found
