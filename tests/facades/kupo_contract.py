"""docs/kupo.yaml, our contract of Kupo's API."""

from __future__ import annotations

from functools import cache
from typing import Any

import jsonschema_rs
import schemathesis
from daemons import ROOT

SCHEMA: Any = schemathesis.openapi.from_path(ROOT / "docs" / "kupo.yaml")
DOCUMENT: dict[str, Any] = SCHEMA.raw_schema
_ROUTES = {  # of a path, by its first segment: the route without and with more
    name: (f"/{name}" if f"/{name}" in DOCUMENT["paths"] else None, longer)
    for name, longer in ((path.split("/")[1], path if "{" in path else None) for path in DOCUMENT["paths"])
}


@cache
def _validator(route: str, status: int) -> Any:
    answer = DOCUMENT["paths"][route]["get"]["responses"][str(status)]
    if "$ref" in answer:
        answer = DOCUMENT["components"]["responses"][answer["$ref"].rpartition("/")[2]]
    schema = answer["content"]["application/json"]["schema"]
    return jsonschema_rs.Draft202012Validator({**schema, "components": DOCUMENT["components"]})


def check(path: str, status: int, content: Any) -> None:
    """Fail unless the contract allows an answer."""
    name, *segments = path.partition("?")[0].removeprefix("/v1").strip("/").split("/")
    alone, longer = _ROUTES[name]
    route = longer if segments else alone
    assert route is not None
    errors = [f"{error.instance_path}: {error.message}" for error in _validator(route, status).iter_errors(content)]
    assert not errors, (path, errors[:3])
