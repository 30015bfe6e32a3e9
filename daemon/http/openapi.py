"""The contract as OpenAPI, from the same types that encode the answers."""

from __future__ import annotations

from typing import Any

import msgspec

from daemon import VERSION
from daemon.http.events import TYPES as EVENT_TYPES
from handlers.answers import Balance, Failure, Health, MmrRoot, Status, TipAnswer, Utxo
from handlers.blocks import BlockFacts
from handlers.changes import Change
from handlers.datums import Datum
from handlers.deltas import BlockDelta
from handlers.proofs import MmrProof
from handlers.prune_report import PrunerJob
from handlers.touched import AddressTx
from handlers.tx_query import Raw, Slot, Transaction
from handlers.waiting import EXAMINED, ORDERS, Waiting
from handlers.waiting import STATUSES as WAITING
from storage.recovery.rows import STATUSES, Recovering, RecoveringWhole

_TYPES = (
    Utxo,
    Balance,
    TipAnswer,
    Status,
    Health,
    Failure,
    Transaction,
    Raw,
    Slot,
    Waiting,
    PrunerJob,
    Recovering,
    RecoveringWhole,
    MmrRoot,
    MmrProof,
    BlockDelta,
    Change,
    AddressTx,
    BlockFacts,
    Datum,
)
_UNIT = "^([0-9a-fA-F]{2}){28,60}$"
_LIST = (
    ("count", {"type": "integer", "minimum": 1, "maximum": 1000, "default": 100}, "How many."),
    ("order", {"type": "string", "enum": ["asc", "desc"], "default": "asc"}, "Order, by place in the chain."),
    (
        "page",
        {"type": "integer", "minimum": 1, "maximum": 1 << 32, "default": 1},
        "Page number. The pages before it are read too.",
    ),
    ("cursor", {"type": "string"}, "`X-Next-Cursor` of the previous page. It cannot be combined with `page`."),
    (
        "asset",
        {"type": "string", "pattern": _UNIT},
        "Only outputs that hold this `unit`; without an index by asset or policy all outputs of the list are read.",
    ),
)
_PATHS: dict[str, tuple[str, dict[str, Any]]] = {
    "address": ("Bech32, base58, or hex of the raw bytes.", {"type": "string"}),
    "credential": ("A payment credential: 56 hex digits, bech32, or an address that has one.", {"type": "string"}),
    "tx_hash": ("A transaction id.", {"type": "string", "pattern": "^[0-9a-fA-F]{64}$"}),
    "txid": ("A transaction id.", {"type": "string", "pattern": "^[0-9a-fA-F]{64}$"}),
    "index": ("Index of the output.", {"type": "integer", "minimum": 0, "maximum": 0xFFFFFFFF}),
    "policy": ("A policy id.", {"type": "string", "pattern": "^[0-9a-fA-F]{56}$"}),
    "unit": ("An asset: its policy id and its name.", {"type": "string", "pattern": _UNIT}),
    "datum_hash": ("The hash of a datum.", {"type": "string", "pattern": "^[0-9a-fA-F]{64}$"}),
    "script_hash": ("The hash of a script.", {"type": "string", "pattern": "^[0-9a-fA-F]{56}$"}),
    "block": (
        "Height or hash of a block. If several blocks have one height, it is the first.",
        {"type": "string", "pattern": "^([0-9]{1,10}|[0-9a-fA-F]{64})$"},
    ),
    "stake": (
        "A stake address, its credential (56 hex digits, bech32), or an address that delegates.",
        {"type": "string"},
    ),
}
_JSON, _CBOR, _TEXT, _HTML = "application/json", "application/cbor", "text/plain", "text/html"
_OCTETS = "application/octet-stream"
_NUMBER, _HASH = "^(origin|[0-9]+)$", "^(origin|[0-9a-f]{64})$"
_TIP = {
    "X-Tip-Height": ("Height of the block as of which the answer is; `origin` before the first.", _NUMBER),
    "X-Tip-Slot": ("Its slot.", _NUMBER),
    "X-Tip-Hash": ("Its hash.", _HASH),
}
_TOKEN: dict[str, Any] = {
    "type": "http",
    "scheme": "bearer",
    "description": "The value of `http.token`. If it is not set, no token is required.",
}
_RECORDS = "Canonical CBOR with integer keys: a record, a list of `[[transaction id, index], record]`, or a delta."
_DESCRIPTION = (
    "Queries of the UTXO state. Every answer of a route names its tip. A request may be refused before that, "
    "with a `Failure` of status 400, 405, 408, 413, 414, 421, 431, 503 or 505, and without the headers of the tip."
)
_TAG = "Changes with the tip and with the body. Send it as `If-None-Match`."
_POINT = "^(origin|[0-9]+[.][0-9a-f]{64})$"
_FROM: dict[str, Any] = {"type": "string", "pattern": "^(origin|[0-9]{1,19}([.][0-9a-fA-F]{64})?)$"}
_FROM_TEXT = "Last known block as `{height}.{hash}`, sequence of the last known fact, or `origin`."
_NEXT_FROM = "On the last page: `from` of the next request."
_HISTORY_FROM = "Height of the first block whose transactions are all listed."
_CURSOR = "`cursor` of the next page; absent on the last page."
Object = dict[str, Any]


def document() -> Object:
    """Return the whole contract."""
    _, components = msgspec.json.schema_components(_TYPES, ref_template="#/components/schemas/{name}")
    utxos, anything = {"type": "array", "items": _ref("Utxo")}, {"type": "array", "items": {"type": "object"}}
    paths = {
        "/api/v1/addresses/{address}/utxos": _list("Unspent outputs of an address.", utxos, "address"),
        "/api/v1/addresses/{address}/transactions": _touching(),
        "/api/v1/addresses/{address}/balance": _get("Balance of an address.", _ref("Balance"), "address"),
        "/api/v1/credentials/{credential}/utxos": _list("Unspent outputs of a credential.", utxos, "credential"),
        "/api/v1/credentials/{credential}/balance": _get(
            "Balance of a payment credential.", _ref("Balance"), "credential"
        ),
        "/api/v1/stakes/{stake}/utxos": _list("Unspent outputs with a stake credential.", utxos, "stake"),
        "/api/v1/stakes/{stake}/balance": _get("Balance of a stake credential.", _ref("Balance"), "stake"),
        "/api/v1/policies/{policy}/utxos": _list("Unspent outputs that contain assets of a policy.", utxos, "policy"),
        "/api/v1/assets/{unit}/utxos": _list("Unspent outputs that contain an asset.", utxos, "unit"),
        "/api/v1/datums/{datum_hash}": _datum(),
        "/api/v1/datums/{datum_hash}/utxos": _list("Unspent outputs with a datum, or its hash.", utxos, "datum_hash"),
        "/api/v1/scripts/{script_hash}/utxos": _list("Unspent outputs with a reference script.", utxos, "script_hash"),
        "/api/v1/utxos/{tx_hash}/{index}": _get(
            "One output, and the input that spent it while that is kept.",
            _ref("Utxo"),
            "tx_hash",
            "index",
            missing=True,
            cbor=True,
        ),
        "/api/v1/blocks/{block}": _get("Stored data of one block.", _ref("BlockFacts"), "block", missing=True),
        "/api/v1/blocks/{block}/delta": _get(
            "Outputs that one block above the rollback floor created and spent.",
            _ref("BlockDelta"),
            "block",
            missing=True,
            cbor=True,
        ),
        "/api/v1/tip": _get("The last block.", _ref("TipAnswer"), missing=True),
        "/api/v1/status": _get("The state of the chain, the store and the daemon, in one answer.", _ref("Status")),
        "/api/v1/changes": _changes(),
        "/api/v1/events": _events(anything),
        "/api/v1/txs": _waiting(),
        "/api/v1/txs/{txid}": _get("A transaction's record.", _ref("Transaction"), "txid", missing=True),
        "/api/v1/txs/{txid}/raw": _bytes(),
        "/api/v1/txs/{txid}/utxos": _slots(),
        "/api/v1/mmr/root": _get("State root of the MMR store.", _ref("MmrRoot")),
        "/api/v1/mmr/proof/{tx_hash}/{index}": _get(
            "A proof that an output was created, and whether it is unspent; `utxod verify-proof` checks it.",
            _ref("MmrProof"),
            "tx_hash",
            "index",
            missing=True,
        ),
        "/api/v1/recovery/transactions": _recovering(),
        "/api/v1/recovery/transactions/{txid}": _get(
            "One submitted transaction, with its latest attempts.", _ref("RecoveringWhole"), "txid", missing=True
        ),
        "/api/v1/pruner/jobs": _jobs(),
        "/health/live": _health("Whether this process answers."),
        "/health/ready": _health("Whether answers are fresh.", unready=True),
        "/metrics": _text("Metrics.", _TEXT),
        "/openapi.json": _get("This contract.", {"type": "object"}),
        "/messages.json": _get("The messages of the socket, as JSON Schema.", {"type": "object"}),
        "/docs": _text("Page that shows this API and can send requests.", _HTML),
        "/": _text("The operator's page.", _HTML),
    }
    info = {"title": "utxod", "version": VERSION, "description": _DESCRIPTION}
    components_of = {"schemas": components, "securitySchemes": {"token": _TOKEN}}
    return {"openapi": "3.1.0", "info": info, "paths": paths, "components": components_of}


def _ref(name: str) -> Object:
    return {"$ref": f"#/components/schemas/{name}"}


def _list(summary: str, schema: Object, *path: str) -> Object:
    route = _get(summary, schema, *path, cbor=True)
    listed: Object = route["get"]
    listed["parameters"] += [
        {"name": name, "in": "query", "schema": kind, "description": text} for name, kind, text in _LIST
    ]
    listed["responses"]["409"] = _failure("The cursor's block was rolled back.")
    listed["responses"]["200"]["headers"]["X-Next-Cursor"] = _header(_CURSOR, required=False)
    return route


def _datum() -> Object:
    summary = "A datum that an output has, or that the witnesses of a block revealed."
    route = _get(summary, _ref("Datum"), "datum_hash", missing=True, cbor=True)
    route["get"]["responses"]["200"]["content"][_CBOR] = {"schema": {"description": "Original bytes of the datum."}}
    return route


def _bytes() -> Object:
    route = _get("Bytes of a transaction, if they were submitted.", _ref("Raw"), "txid", missing=True)
    content: Object = route["get"]["responses"]["200"]["content"]
    content[_OCTETS] = {"schema": {"type": "string", "format": "binary"}}
    return route


def _slots() -> Object:
    route = _list("Outputs of a transaction, and their states.", {"type": "array", "items": _ref("Slot")}, "txid")
    listed: Object = route["get"]
    _takes_no(listed, "asset")
    listed["responses"]["404"] = _failure("It does not exist.")
    return route


def _waiting() -> Object:
    route = _list(
        "Unmined transactions, or those that have lost a conflict.", {"type": "array", "items": _ref("Waiting")}
    )
    listed: Object = route["get"]
    _takes_no(listed, "asset")
    listed["parameters"] = [each for each in listed["parameters"] if each["name"] != "order"]
    for name, values, text in (("status", WAITING, "Which."), ("order", ORDERS, "Parents first, or the oldest first.")):
        schema = {"type": "string", "enum": list(values), "default": values[0]}
        listed["parameters"].append({"name": name, "in": "query", "schema": schema, "description": text})
    listed["description"] += (
        f" Each answer examines about {EXAMINED:,} transactions, inputs and outputs: it may have fewer than `count` "
        "transactions, or none, and still a cursor."
    )
    del listed["responses"]["409"]
    return route


def _jobs() -> Object:
    route = _list("The pruner's cycles, the latest first.", {"type": "array", "items": _ref("PrunerJob")})
    _takes_no(route["get"], "asset", "order")
    return route


def _touching() -> Object:
    route = _list(
        "All transactions that paid to an address or spent from it (index history).",
        {"type": "array", "items": _ref("AddressTx")},
        "address",
    )
    _takes_no(route["get"], "asset")
    route["get"]["responses"]["200"]["headers"]["X-History-From"] = _header(_HISTORY_FROM)
    return route


def _recovering() -> Object:
    route = _list("Submitted transactions by submission.", {"type": "array", "items": _ref("Recovering")})
    statuses = {"type": "string", "enum": list(STATUSES)}
    route["get"]["parameters"].append(
        {"name": "status", "in": "query", "schema": statuses, "description": "Only these."}
    )
    _takes_no(route["get"], "asset")
    return route


def _changes() -> Object:
    route = _list("Outputs that blocks created and spent since a point.", {"type": "array", "items": _ref("Change")})
    listed: Object = route["get"]
    _takes_no(listed, "asset", "order", "page")
    listed["parameters"].append({"name": "from", "in": "query", "schema": _FROM, "description": _FROM_TEXT})
    listed["description"] += (
        " In chain order: of each block first the outputs that it created, by place, then those that it spent, by "
        "input. Changes are available down to the rollback floor. Either `from` or `cursor` is required."
    )
    listed["responses"]["404"] = _failure(
        "`unknown_point`: the point was never in the chain. `gone`: it, or the changes since then, are no longer kept; "
        "`detail.oldest` is the first available block or sequence (null is the origin)."
    )
    listed["responses"]["409"] = _failure(
        "`point_removed`: a rollback removed the point, or the block of the cursor; `detail.ancestor` is the last "
        "block that both chains have (null is the origin)."
    )
    listed["responses"]["200"]["headers"]["X-Next-From"] = _header(_NEXT_FROM, _POINT, required=False)
    return route


def _events(facts: Object) -> Object:
    route = _get("Recent facts of the change log, newest first.", facts)
    schema = {"type": "array", "items": {"type": "string", "enum": list(EVENT_TYPES)}}
    text = "Only facts of this type. It may be repeated."
    route["get"]["parameters"].append({"name": "type", "in": "query", "schema": schema, "description": text})
    route["get"]["responses"]["400"] = _failure("A parameter is malformed; the error names it.")
    return route


def _takes_no(listed: Object, *names: str) -> None:
    """Take parameters off a list that refuses them, and CBOR, which is for outputs."""
    listed["parameters"] = [each for each in listed["parameters"] if each["name"] not in names]
    listed["description"] = f"Refuses {' and '.join(f'`{name}`' for name in names)} with 400."
    listed["responses"]["400"] = _failure("The error names a parameter that is malformed or not supported.")
    listed["responses"]["200"]["content"].pop(_CBOR)


def _get(summary: str, schema: Object, *path: str, missing: bool = False, cbor: bool = False) -> Object:
    kinds = {_JSON: schema, _CBOR: {"description": _RECORDS}} if cbor else {_JSON: schema}
    responses = _responses("The answer.", kinds)
    responses["503"] = _failure("The request needs an index or a store that is not enabled or not available.")
    if path:
        responses["400"] = _failure("A parameter is malformed; the error names it.")
    if missing:
        responses["404"] = _failure("It does not exist.")
    return _route(summary, responses, path)


def _health(summary: str, *, unready: bool = False) -> Object:
    responses = _responses("Healthy.", {_JSON: _ref("Health")})
    if unready:
        responses["503"] = _content("Not ready; `reason` has the cause.", {_JSON: _ref("Health")})
    return _route(summary, responses, (), guarded=False)


def _text(summary: str, kind: str) -> Object:
    return _route(summary, _responses("The text.", {kind: {"type": "string"}}), (), guarded=kind != _HTML)


def _route(summary: str, responses: Object, path: tuple[str, ...], *, guarded: bool = True) -> Object:
    route: Object = {"summary": summary, "parameters": [_path(name) for name in path], "responses": responses}
    if guarded:
        asks = {"WWW-Authenticate": _header("`Bearer`.")}
        responses["401"] = {**_failure("The token is missing."), "headers": asks}  # no tip without the token
        route["security"] = [{"token": []}, {}]
    return {"get": route}


def _responses(description: str, kinds: Object) -> Object:
    answer = _content(description, kinds)
    same = {
        "description": "The answer is current: `If-None-Match` is its `ETag`.",
        "headers": answer["headers"],
    }
    return {"200": answer, "304": {**same, "headers": dict(answer["headers"])}}


def _path(name: str) -> Object:
    text, schema = _PATHS[name]
    return {"name": name, "in": "path", "required": True, "schema": schema, "description": text}


def _content(description: str, kinds: Object) -> Object:
    return {
        "description": description,
        "headers": {name: _header(*of) for name, of in _TIP.items()} | {"ETag": _header(_TAG)},
        "content": {kind: {"schema": schema} for kind, schema in kinds.items()},
    }


def _failure(description: str) -> Object:
    return _content(description, {_JSON: _ref("Failure")})


def _header(description: str, pattern: str | None = None, *, required: bool = True) -> Object:
    schema = {"type": "string"} if pattern is None else {"type": "string", "pattern": pattern}
    return {"description": description, "required": required, "schema": schema}
