"""Unmined transactions, and submission of transactions to the node."""

from __future__ import annotations

from typing import Any
from uuid import uuid4

import msgspec

from daemon.http.blockfrost.details import Parsed, counts, deposit, metadata, parsed, redeemers
from daemon.http.blockfrost.rendering import Renderer, amounts, summed
from daemon.http.blockfrost.requests import BAD_PATH, Paging, Refused, hex_of, not_found, required
from daemon.http.facade import Site
from daemon.http.upstream import Fault, Upstream
from feeds.cardano.errors import BlockError
from feeds.cardano.transaction import read_transaction
from handlers.events import OutPoint, Output
from handlers.query import Snapshot
from handlers.rendering import data_hash, script_hash
from handlers.transactions import Held
from handlers.tx_query import TxQuery
from handlers.waiting import TooMuchToExamine, WaitingList
from storage.errors import BlobFailed
from storage.rows import Body

_EXAMINED = 2000  # transactions that are examined for an address
_PURPOSES = {"publish": "certificate", "withdraw": "withdrawal", "propose": "proposal", "vote": "vote"}
_encode = msgspec.json.Encoder().encode


class Pending:
    """Answers from the transaction store, and passes transactions on to the node."""

    def __init__(self, site: Site, renderer: Renderer, upstream: Upstream) -> None:
        self._site, self._renderer, self._upstream = site, renderer, upstream
        self._turns, self._transactions = site.turns, site.transactions

    # --- the mempool ---------------------------------------------------------------------------------------------

    async def _waiting(self, shot: Snapshot, skip: int, count: int) -> list[bytes]:
        if self._transactions is None:
            raise Refused(503, "This needs the transaction store (transactions.enabled), which is not kept.")
        walk = WaitingList(self._transactions.view(shot.txn), "unmined", "age")
        try:
            for _ in walk.search(None, skip, count):
                await self._turns.next()
                shot.check_age()
        except TooMuchToExamine as error:
            raise Refused(400, f"{error}: request an earlier page.") from error
        return walk.found

    async def mempool(self, shot: Snapshot, paging: Paging) -> list[dict[str, str]]:
        """Return the transactions that wait, the oldest first, or the newest with `desc`."""
        if paging.order == "asc":
            found = await self._waiting(shot, paging.skip, paging.count)
        else:
            found = paging.of(await self._waiting(shot, 0, _EXAMINED))
        return [{"tx_hash": txid.hex()} for txid in found]

    async def mempool_address(self, shot: Snapshot, address: bytes, paging: Paging) -> list[dict[str, str]]:
        """Return the transactions that wait and pay to an address, or spend from it, of the oldest 2,000."""
        found = list[str]()
        for txid in await self._waiting(shot, 0, _EXAMINED):
            known = self._known(shot, txid)
            if known is not None and (
                any(output.address == address for output in known.tx.outputs)
                or any((body := self._spent(shot, each)) and body.address == address for each in known.tx.inputs)
            ):
                found.append(txid.hex())
            await self._turns.next()
            shot.check_age()
        return [{"tx_hash": txid} for txid in paging.of(found)]

    def _spent(self, shot: Snapshot, outpoint: OutPoint) -> Body | None:
        """Return an output of the chain, or of another transaction that waits."""
        if (entry := shot.find_entry(*outpoint)) is not None:
            return entry.body
        known = self._known(shot, outpoint[0])
        outputs = [] if known is None else known.tx.outputs
        return _body(outputs[outpoint[1]]) if outpoint[1] < len(outputs) else None

    def _held(self, shot: Snapshot, txid: bytes) -> Held | None:
        return None if self._transactions is None else self._transactions.view(shot.txn).get(txid)

    def _raw(self, shot: Snapshot, held: Held) -> bytes | None:
        assert self._transactions is not None
        if held.record.external:
            try:
                return self._transactions.blob(held)
            except BlobFailed as error:
                raise Refused(503, f"The bytes cannot be read now: {error}") from error
        return TxQuery(self._transactions.view(shot.txn)).raw(held)

    def known(self, shot: Snapshot, text: str) -> Parsed | None:
        """Return what the bytes of a transaction contain, if they are kept."""
        return self._known(shot, hex_of(text, 32))

    def _known(self, shot: Snapshot, txid: bytes) -> Parsed | None:
        held = self._held(shot, txid)
        return None if held is None else parsed(self._raw(shot, held))

    def mempool_transaction(self, shot: Snapshot, text: str) -> dict[str, Any]:
        """Return a transaction that waits.

        Raises:
            Refused: it does not wait, or its bytes or one of its inputs are not known.
        """
        txid = hex_of(text, 32)
        held = self._held(shot, txid)
        if held is None or held.record.unmined_since is None:
            raise not_found()
        known = required(parsed(self._raw(shot, held)), "the bytes of the transaction")
        tx, details = known.tx, known.details
        bodies = [_body(output) for output in tx.outputs]
        spent = [required(self._spent(shot, each), f"the output {each[0].hex()}#{each[1]}") for each in tx.inputs]
        fee, created = tx.fee or 0, sum(body.value for body in bodies)
        deposited = deposit(details, sum(body.value for body in spent), created, fee) if tx.valid else "0"
        return {
            "tx": {
                "hash": txid.hex(),
                "output_amount": summed(bodies),
                "fees": str(fee),
                "deposit": deposited,
                "size": tx.size,
                "utxo_count": len(tx.inputs) + len(bodies),
                **counts(details),
                "valid_contract": tx.valid,
            },
            "inputs": [
                self._input(shot, outpoint, kind)
                for kind, outpoints in (
                    ("", tx.inputs),
                    ("collateral", tx.collateral),
                    ("reference", tx.references),
                )
                for outpoint in outpoints
            ],
            "outputs": [
                {
                    "address": self._renderer.address(output.address),
                    "amount": amounts(output.value, [*output.assets]),
                    "output_index": index,
                    "data_hash": None if (digest := data_hash(body)) is None else digest.hex(),
                    "inline_datum": None if output.inline_datum is None else output.inline_datum.hex(),
                    "collateral": False,
                    "reference_script_hash": None if (script := script_hash(body)) is None else script.hex(),
                }
                for index, (output, body) in enumerate(zip(tx.outputs, bodies, strict=True))
            ],
            "redeemers": redeemers(known),
        }

    def _input(self, shot: Snapshot, outpoint: OutPoint, kind: str) -> dict[str, Any]:
        body = self._spent(shot, outpoint)
        address = {} if body is None else {"address": self._renderer.address(body.address)}
        place = {"tx_hash": outpoint[0].hex(), "output_index": outpoint[1]}
        return {**address, **place, "collateral": kind == "collateral", "reference": kind == "reference"}

    def cbor(self, shot: Snapshot, text: str) -> dict[str, str]:
        """Return the bytes of a transaction in a block, if it was submitted through us and its record is kept.

        Clients request this repeatedly until the transaction is in a block.
        """
        return {"cbor": self._mined(shot, text).hex()}

    def metadata(self, shot: Snapshot, text: str) -> list[dict[str, str]]:
        """Return the metadata of a transaction in a block, if its bytes are kept. Clients wait with this, too."""
        if (known := parsed(self._mined(shot, text))) is None:
            raise not_found()
        return metadata(known)

    def _mined(self, shot: Snapshot, text: str) -> bytes:
        held = self._held(shot, hex_of(text, 32))
        if held is None or not held.record.mined or (raw := self._raw(shot, held)) is None:
            raise not_found()
        return raw

    # --- to the node ---------------------------------------------------------------------------------------------

    async def submit(self, body: bytes) -> str:
        """Submit a transaction; return its id."""
        try:
            tx = read_transaction(bytes_of(body))
        except BlockError as error:
            raise Refused(400, f"This is not a transaction: {error}") from error
        try:
            return await self._upstream.submit(tx)
        except Fault as fault:
            raise Refused(400, fault_text(fault)) from fault

    async def evaluate(self, body: bytes, query: bytes) -> dict[str, Any]:
        """Evaluate the scripts of a transaction, given as bytes or as hex."""
        return await self._evaluate(bytes_of(body), [], query)

    async def evaluate_with(self, body: bytes, query: bytes) -> dict[str, Any]:
        """Evaluate the scripts of a transaction with outputs that are not on the chain."""
        try:
            requested = msgspec.json.decode(body, type=dict[str, Any])
            cbor = bytes.fromhex(requested["cbor"])
            additional = [to_ogmios(each) for each in requested.get("additionalUtxoSet") or []]
        except (msgspec.DecodeError, KeyError, TypeError, ValueError, AttributeError, IndexError) as error:
            raise Refused(400, 'A JSON object is expected: {"cbor": hex, "additionalUtxoSet": []}') from error
        return await self._evaluate(cbor, additional, query)

    async def _evaluate(self, cbor: bytes, additional: list[Any], query: bytes) -> dict[str, Any]:
        newer = b"version=6" in query.split(b"&")
        try:
            found = await self._upstream.evaluate(cbor, additional)
        except Fault as fault:
            if newer:
                return {"jsonrpc": "2.0", "method": "evaluateTransaction", "error": fault.error, "id": None}
            failure = {"EvaluationFailure": {"ScriptFailures": fault.data if fault.data is not None else str(fault)}}
            return _wsp(failure)
        if newer:
            return {"jsonrpc": "2.0", "method": "evaluateTransaction", "result": found, "id": None}
        units = {}
        for each in found:
            validator, budget = each["validator"], each["budget"]
            if isinstance(validator, str):  # before Ogmios 6.0
                purpose, _, index = validator.partition(":")
            else:
                purpose, index = validator["purpose"], validator["index"]
            steps = budget.get("cpu", budget.get("steps"))
            units[f"{_PURPOSES.get(purpose, purpose)}:{index}"] = {"memory": budget["memory"], "steps": steps}
        return _wsp({"EvaluationResult": units})


def _wsp(result: dict[str, Any]) -> dict[str, Any]:
    """Return an answer as Ogmios 5 gave it, which is what clients of Blockfrost read."""
    kind = {"type": "jsonwsp/response", "version": "1.0", "servicename": "ogmios", "methodname": "EvaluateTx"}
    return {**kind, "result": result, "reflection": {"id": str(uuid4())}}


def fault_text(fault: Fault) -> str:
    """Return the node's reason for a refusal."""
    return str(fault) if fault.data is None else f"{fault} {_encode(fault.data).decode()}"


def bytes_of(body: bytes) -> bytes:
    """Return the bytes of a transaction that is sent as it is, or as hex.

    Raises:
        Refused: there are none.
    """
    text = body.strip()
    if not text:
        raise Refused(400, BAD_PATH if body else "A transaction is expected in the body.")
    try:
        return bytes.fromhex(text.decode("ascii"))
    except (UnicodeDecodeError, ValueError):
        return body


def to_ogmios(each: Any) -> dict[str, Any]:
    """Return an output that is not on the chain as Ogmios 6 takes it; clients write it as Ogmios 5 did."""
    if isinstance(each, dict):
        return each
    reference, output = each
    value: dict[str, dict[str, int]] = {"ada": {"lovelace": int(output["value"]["coins"])}}
    for unit, quantity in (output["value"].get("assets") or {}).items():
        policy, _, name = unit.partition(".")
        value.setdefault(policy, {})[name] = int(quantity)
    made = {
        "transaction": {"id": reference.get("txId") or reference["transaction"]["id"]},
        "index": reference["index"],
        "address": output["address"],
        "value": value,
    }
    made |= {new: output[old] for old, new in (("datumHash", "datumHash"), ("datum", "datum")) if output.get(old)}
    for language, code in (output.get("script") or {}).items():
        made["script"] = {"language": language, "json" if isinstance(code, dict) else "cbor": code}
    return made


def _body(output: Output) -> Body:
    return Body(
        output.address,
        output.value,
        [*output.assets],
        output.datum_hash,
        output.inline_datum,
        output.script_ref,
        output.script_ref_hash,
    )
