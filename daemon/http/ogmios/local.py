"""Queries that are answered from the store: the tip, and outputs by address or reference."""

from __future__ import annotations

from typing import Any

from daemon.http.facade import Site
from formats.cbor import CborError
from formats.plutus import native_json
from handlers.addresses import AddressError
from handlers.matches import Matches, Row, Wanted
from handlers.query import NoIndex, Snapshot
from handlers.rendering import data_hash
from handlers.scripts import read_reference
from storage.history.layout import to_extra

TIP, UTXO = "queryNetwork/tip", "queryLedgerState/utxo"
_LANGUAGES = ("native", "plutus:v1", "plutus:v2", "plutus:v3")
_MOST = 100_000  # outputs in one answer: some 40 MB
_MOST_REQUESTED = 10_000  # addresses or references in one question
_ID_BYTES, _MOST_INDEX = 32, 65_535
INVALID, TOO_LARGE, NOT_HERE = -32602, -32001, -32000


class Failed(Exception):
    """A question that is answered with an error."""

    def __init__(self, code: int, message: str) -> None:
        super().__init__(message)
        self.error = {"code": code, "message": message}


class Local:
    """Answers questions from one store."""

    def __init__(self, site: Site) -> None:
        self._query, self._codec, self._turns = site.query, site.codec, site.turns

    def takes(self, request: dict[str, Any]) -> bool:
        """Return whether a request is answered here. Queries for the whole set are left to the node."""
        if request.get("method") == TIP:
            return True
        params = request.get("params")
        return request.get("method") == UTXO and isinstance(params, dict) and len(params) == 1

    async def answer(self, request: dict[str, Any]) -> dict[str, Any]:
        """Return the answer to a request."""
        answer: dict[str, Any] = {"jsonrpc": "2.0", "method": request["method"]}
        try:
            with self._query.snapshot() as shot:
                if request["method"] == TIP:
                    tip = shot.tip()
                    answer["result"] = "origin" if tip is None else {"slot": tip.slot, "id": tip.hash.hex()}
                else:
                    answer["result"] = await self._utxo(shot, request["params"])
        except Failed as failed:
            answer["error"] = failed.error
        except NoIndex as missing:
            answer["error"] = {"code": NOT_HERE, "message": f"this needs the index utxo.index.{missing}"}
        return answer | ({"id": request["id"]} if "id" in request else {})

    async def _utxo(self, shot: Snapshot, params: dict[str, Any]) -> list[dict[str, Any]]:
        (name, requested), found = next(iter(params.items())), list[dict[str, Any]]()
        if name not in ("addresses", "outputReferences"):
            raise Failed(INVALID, f"{name} is neither addresses nor outputReferences")
        if not isinstance(requested, list) or len(requested) > _MOST_REQUESTED:
            raise Failed(INVALID, f"{name} is not a list of at most {_MOST_REQUESTED:,} entries")
        for each in requested:
            matches = Matches(shot, self._wanted(shot, name, each))
            for rows in matches.rows(matches.numbers()):
                found += [self._output(row) for row in rows]
                if len(found) > _MOST:
                    raise Failed(TOO_LARGE, f"more than {_MOST:,} outputs: request fewer addresses, or use Kupo's API")
                await self._turns.next()
                shot.check_age()
        return found

    def _wanted(self, shot: Snapshot, name: str, each: Any) -> Wanted:
        try:
            if name == "addresses":
                return Wanted(lists=(shot.by_address(self._codec.read(each)),), spent=False, order="asc")
            txid, index = bytes.fromhex(each["transaction"]["id"]), each["index"]
            if len(txid) != _ID_BYTES or type(index) is not int or not 0 <= index <= _MOST_INDEX:
                raise ValueError
        except AddressError as error:
            raise Failed(INVALID, f"{each!r} is not an address: {error}") from error
        except (KeyError, TypeError, ValueError, AttributeError) as error:
            raise Failed(INVALID, f"{name} has an invalid entry: {str(each)[:200]}") from error
        return Wanted(txid=txid, index=index, spent=False, order="asc")

    def _output(self, row: Row) -> dict[str, Any]:
        extra = to_extra(row.extra)
        value: dict[str, dict[str, int]] = {"ada": {"lovelace": row.value}}
        for policy, asset, quantity in extra.assets:
            value.setdefault(policy.hex(), {})[asset.hex()] = quantity
        found: dict[str, Any] = {
            "transaction": {"id": row.txid},
            "index": row.output,
            "address": self._codec.write(row.address),
            "value": value,
        }
        if extra.inline_datum is not None:
            found["datum"] = extra.inline_datum.hex()
        elif (digest := data_hash(extra.body(b"", 0))) is not None:
            found["datumHash"] = digest.hex()
        script = None if extra.script_ref is None else read_reference(extra.script_ref)
        if script is not None and script.language < len(_LANGUAGES):
            found["script"] = {"language": _LANGUAGES[script.language], "cbor": script.code.hex()}
            if script.language == 0:
                found["script"]["json"] = _native(native_json(_checked(script.code)))
        return found


def _checked(code: bytes) -> bytes:
    try:
        native_json(code)
    except CborError as error:
        raise Failed(NOT_HERE, f"a native script cannot be written as JSON: {error}") from error
    return code


def _native(native: dict[str, Any]) -> dict[str, Any]:
    """Return a native script in Ogmios' words."""
    match native["type"]:
        case "sig":
            return {"clause": "signature", "from": native["keyHash"]}
        case "after":
            return {"clause": "after", "slot": native["slot"]}
        case "before":
            return {"clause": "before", "slot": native["slot"]}
    inside = [_native(each) for each in native["scripts"]]
    if native["type"] == "atLeast":
        return {"clause": "some", "atLeast": native["required"], "from": inside}
    return {"clause": native["type"], "from": inside}
