"""The schema that Blockfrost publishes, and the fields that are null although it does not allow it, with reasons."""

from __future__ import annotations

import json
import re
from functools import cache
from typing import Any

import jsonschema_rs
from installed import modules

_REWARDS = "no block and no query of a node has the sums of what an account ever received"
_MINTS = "outputs do not determine which transactions minted or burned an asset"
NOT_KNOWN: dict[str, dict[str, str]] = {  # docs/clients.md lists them too
    "/accounts/{stake_address}": dict.fromkeys(
        ("rewards_sum", "withdrawals_sum", "reserves_sum", "treasury_sum"), _REWARDS
    ),
    "/assets/{asset}": dict.fromkeys(("initial_mint_tx_hash", "mint_or_burn_count"), _MINTS),
    "/network": {
        "circulating": "nodes report neither the sum of the rewards of all accounts nor that of all deposits",
        "locked": "there is no sum over the outputs at addresses of scripts, and adding them up reads the whole set",
        "live": "nodes report stake as of a snapshot at an epoch boundary",
        "active": "nodes report no sum of the snapshot that is in force",
    },
}


@cache
def _schemas() -> dict[str, Any]:
    found: dict[str, Any] = json.loads((modules() / "node_modules/@blockfrost/openapi/json-schema.json").read_text())
    return found


@cache
def _paths() -> list[tuple[str, re.Pattern[str]]]:
    """Return the paths, those with fewer parameters first."""
    paths = sorted(_schemas(), key=lambda path: path.count("{"))
    return [(path, re.compile(re.sub(r"{\w+}", "[^/]+", path))) for path in paths]


def named(path: str) -> str:
    """Return which path of the schema a request has."""
    return next(name for name, form in _paths() if form.fullmatch(path.partition("?")[0]))


def _read(schema: Any, nulls: set[str]) -> Any:
    """Return a schema of OpenAPI 3.0 as JSON Schema; fields that it does not name are not allowed in an answer."""
    if isinstance(schema, list):
        return [_read(each, nulls) for each in schema]
    if not isinstance(schema, dict):
        return schema
    made = {name: _read(value, nulls) for name, value in schema.items() if name not in ("example", "nullable")}
    if "properties" in made:
        properties = schema["properties"]
        made["properties"] = {
            name: _read(each | {"nullable": True} if name in nulls else each, nulls)
            for name, each in properties.items()
        }
        made.setdefault("additionalProperties", False)
    if schema.get("nullable"):
        made = {"anyOf": [made, {"type": "null"}]}
    return made


@cache
def _validator(name: str, status: int) -> Any:
    responses = _schemas()[name]["response"]
    found = responses.get(str(status), responses["500"])  # errors have one form
    return jsonschema_rs.validator_for(_read(found, {*NOT_KNOWN.get(name, {})}))


def check(path: str, status: int, content: Any) -> None:
    """Fail unless the schema allows an answer."""
    name = named(path)
    errors = [f"{error.instance_path}: {error.message}" for error in _validator(name, status).iter_errors(content)]
    assert not errors, (name, status, errors[:5])
