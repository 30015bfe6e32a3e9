"""Errors that an Electrum client receives."""

from __future__ import annotations

PARSE_ERROR, INVALID_REQUEST, UNKNOWN_METHOD, INVALID_PARAMS, INTERNAL = -32700, -32600, -32601, -32602, -32603
BAD_REQUEST, NODE_ERROR, BUSY = 1, 2, -102


class RpcFault(Exception):
    """A request that gets an error: its code and message."""

    def __init__(self, code: int, message: str) -> None:
        super().__init__(message)
        self.code, self.message = code, message


def bad_params(message: str) -> RpcFault:
    """Return the error of a wrong parameter."""
    return RpcFault(INVALID_PARAMS, message)
