"""The calls in a line of a client, and the answers to them."""

from __future__ import annotations

from collections.abc import Generator
from functools import partial
from typing import TYPE_CHECKING, Any, TypeAlias, TypeVar

import msgspec
import structlog

from daemon.wallets.electrum import jsonrpc
from daemon.wallets.electrum.methods import METHODS
from daemon.wallets.errors import (
    BUSY,
    INTERNAL,
    INVALID_PARAMS,
    INVALID_REQUEST,
    PARSE_ERROR,
    UNKNOWN_METHOD,
    RpcFault,
)
from daemon.wallets.later import Later
from storage.errors import StoreError

if TYPE_CHECKING:
    from daemon.wallets.electrum.session import Session

log = structlog.get_logger("wallets")

_T = TypeVar("_T")
_MOST_CALLS = 10_000  # in one list
_NESTED = list, dict
_decode = msgspec.json.Decoder().decode

Work: TypeAlias = Generator[Later[object] | None, Any, _T]
"""Yields a result to wait for, which is sent to it once it is there; and None where other clients get a turn."""


class NotJson(Exception):
    """A line is not JSON."""


def answer_line(session: Session, line: bytes) -> Work[None]:
    """Send the answer to a line; that to a list of calls part by part.

    Raises:
        NotJson: the line is not JSON; the answer says why.
    """
    if not line or line.isspace():
        if session.turn_ended:
            yield None
        return
    try:
        message = _decode(line)
    except (msgspec.DecodeError, UnicodeError, RecursionError) as error:
        session.put(jsonrpc.error(None, RpcFault(PARSE_ERROR, f"the line is not JSON: {error}")) + b"\n")
        raise NotJson from error
    if not isinstance(message, list):
        answer = yield from _answer(session, message)
        if answer is not None:
            session.put(answer + b"\n")
    elif 1 <= len(message) <= _MOST_CALLS:
        yield from _answer_list(session, message)
    else:
        what = f"a list must have 1 to {_MOST_CALLS} calls, not {len(message)}"
        session.put(jsonrpc.error(None, RpcFault(INVALID_REQUEST, what)) + b"\n")
    if session.turn_ended:
        yield None


def _answer_list(session: Session, calls: list[object]) -> Work[None]:
    before = b"["
    for call in calls:
        answer = yield from _answer(session, call)
        if answer is not None:
            session.put(before + answer)
            before = b","
        if session.turn_ended:
            yield None
    if before == b",":
        session.put(b"]\n")


def _answer(session: Session, call: object) -> Work[bytes | None]:
    """Return the answer to one call, None for a notification."""
    if not isinstance(call, dict) or not isinstance(call.get("method"), str):
        return jsonrpc.error(None, RpcFault(INVALID_REQUEST, "a request is an object with a method"))
    number = call.get("id")
    if isinstance(number, _NESTED):
        return jsonrpc.error(None, RpcFault(INVALID_REQUEST, "an id is a number, a string or null"))
    try:
        found = _carry_out(session, call["method"], call.get("params") or [])
        if isinstance(found, partial):
            found = yield found
        answer = jsonrpc.result(number, found)
    except RpcFault as fault:
        answer = jsonrpc.error(number, fault)
    except StoreError as error:
        log.error("electrum_request_failed", method=call["method"], error=str(error))
        what = "the store could not be read: the log of the daemon has the reason"
        answer = jsonrpc.error(number, RpcFault(INTERNAL, what))
    except Exception:  # one request of one client: the others continue
        log.exception("electrum_request_failed", method=call["method"])
        what = "the request failed: the log of the daemon has the reason"
        answer = jsonrpc.error(number, RpcFault(INTERNAL, what))
    return answer if "id" in call else None


def _carry_out(session: Session, name: str, params: Any) -> object:
    found = METHODS.get(name)
    if found is None:
        raise RpcFault(UNKNOWN_METHOD, f"unknown method: {name[:80]}")
    method, least, most = found
    if not isinstance(params, list):
        raise RpcFault(INVALID_PARAMS, f"the parameters of {name} must be a list")
    if not least <= len(params) <= most:
        expected = f"{least}" if least == most else f"{least} to {most}"
        raise RpcFault(INVALID_PARAMS, f"{name} takes {expected} parameters, not {len(params)}")
    if session.server.stopping:
        raise RpcFault(BUSY, "the server is shutting down")
    return method(session, params)
