"""The contract as OpenAPI, from the same types that encode the answers."""

from __future__ import annotations

from typing import Any

import msgspec

from daemon import VERSION
from handlers.answers import Balance, Failure, Health, Status, TipAnswer, Utxo

_TYPES = (Utxo, Balance, TipAnswer, Status, Health, Failure)
_LIST = (
    ("count", {"type": "integer", "minimum": 1, "maximum": 1000, "default": 100}, "How many outputs."),
    ("order", {"type": "string", "enum": ["asc", "desc"], "default": "asc"}, "By place in the chain."),
    (
        "page",
        {"type": "integer", "minimum": 1, "maximum": 1 << 32, "default": 1},
        "Page number; costs those before it.",
    ),
    ("cursor", {"type": "string"}, "`X-Next-Cursor` of the answer before; excludes `page`."),
)
_PATHS: dict[str, tuple[str, dict[str, Any]]] = {
    "address": ("Bech32, base58, or hex of the raw bytes.", {"type": "string"}),
    "credential": ("A payment credential.", {"type": "string", "pattern": "^[0-9a-fA-F]{56}$"}),
    "tx_hash": ("A transaction id.", {"type": "string", "pattern": "^[0-9a-fA-F]{64}$"}),
    "txid": ("A transaction id.", {"type": "string", "pattern": "^[0-9a-fA-F]{64}$"}),
    "index": ("The output's index.", {"type": "integer", "minimum": 0, "maximum": 0xFFFFFFFF}),
}


def document() -> dict[str, Any]:
    """Return the whole contract."""
    _, components = msgspec.json.schema_components(_TYPES, ref_template="#/components/schemas/{name}")
    utxos = {"type": "array", "items": _ref("Utxo")}
    anything = {"type": "array", "items": {"type": "object"}}
    paths = {
        "/api/v1/addresses/{address}/utxos": _get("Live outputs of an address.", utxos, ("address",), listed=True),
        "/api/v1/addresses/{address}/balance": _get("What an address holds.", _ref("Balance"), ("address",)),
        "/api/v1/credentials/{credential}/utxos": _get(
            "Live outputs of a payment credential.", utxos, ("credential",), listed=True
        ),
        "/api/v1/credentials/{credential}/balance": _get(
            "What a payment credential holds.", _ref("Balance"), ("credential",)
        ),
        "/api/v1/utxos/{tx_hash}/{index}": _get(
            "One output, with what spent it while that is kept.", _ref("Utxo"), ("tx_hash", "index"), missing=True
        ),
        "/api/v1/tip": _get("The last block.", _ref("TipAnswer"), missing=True),
        "/api/v1/status": _get("Everything that an operator asks first.", _ref("Status")),
        "/api/v1/events": _get("Recent facts, newest first.", anything),
        "/health/live": _get("Whether this process answers.", _ref("Health")),
        "/health/ready": _get("Whether answers are fresh.", _ref("Health"), unready=True),
    }
    for path in ("/api/v1/txs/{txid}", "/api/v1/txs/{txid}/raw", "/api/v1/txs/{txid}/utxos"):
        paths[path] = _absent("The transaction store.", ("txid",))
    paths["/api/v1/mmr/root"] = _absent("The root of the MMR store.")
    paths["/api/v1/mmr/proof/{tx_hash}/{index}"] = _absent("A proof from the MMR store.", ("tx_hash", "index"))
    paths["/api/v1/recovery/transactions"] = _absent("Pending transactions.")
    paths["/api/v1/recovery/transactions/{txid}"] = _absent("One pending transaction.", ("txid",))
    paths["/api/v1/pruner/jobs"] = _absent("The pruner's jobs.")
    info = {"title": "utxod", "version": VERSION, "description": "Reading the UTXO state. Every answer names its tip."}
    return {"openapi": "3.1.0", "info": info, "paths": paths, "components": {"schemas": components}}


def _ref(name: str) -> dict[str, Any]:
    return {"$ref": f"#/components/schemas/{name}"}


def _get(
    summary: str,
    schema: dict[str, Any],
    path: tuple[str, ...] = (),
    *,
    listed: bool = False,
    missing: bool = False,
    unready: bool = False,
) -> dict[str, Any]:
    responses: dict[str, Any] = {"200": _content("The answer.", schema), "401": _failure("The token is missing.")}
    responses["304"] = {"description": "The client has this answer: `If-None-Match` is its `ETag`."}
    if path:
        responses["400"] = _failure("A parameter is malformed; it is named.")
        responses["503"] = _failure("The index that this needs is not kept.")
    if listed:
        responses["409"] = _failure("The cursor's block was rolled back.")
    if missing:
        responses["404"] = _failure("There is none.")
    if unready:
        responses["503"] = _content("Answers are old, or there are none.", schema)
    parameters = [_path(name) for name in path]
    if listed:
        parameters += [{"name": name, "in": "query", "schema": kind, "description": text} for name, kind, text in _LIST]
    return {"get": {"summary": summary, "parameters": parameters, "responses": responses}}


def _absent(summary: str, path: tuple[str, ...] = ()) -> dict[str, Any]:
    responses = {"503": _failure("This daemon does not keep it."), "401": _failure("The token is missing.")}
    return {"get": {"summary": summary, "parameters": [_path(name) for name in path], "responses": responses}}


def _path(name: str) -> dict[str, Any]:
    text, schema = _PATHS[name]
    return {"name": name, "in": "path", "required": True, "schema": schema, "description": text}


def _content(description: str, schema: dict[str, Any]) -> dict[str, Any]:
    return {"description": description, "content": {"application/json": {"schema": schema}}}


def _failure(description: str) -> dict[str, Any]:
    return _content(description, _ref("Failure"))
