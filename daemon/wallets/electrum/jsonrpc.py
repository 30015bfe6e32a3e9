"""Messages of JSON-RPC 2.0 as the server sends them."""

from __future__ import annotations

import msgspec

from daemon.wallets.errors import RpcFault

encode = msgspec.json.Encoder().encode


def result(number: object, value: object) -> bytes:
    """Return the answer with a result; bytes are JSON already."""
    encoded = value if type(value) is bytes else encode(value)
    return b'{"jsonrpc":"2.0","id":%b,"result":%b}' % (encode(number), encoded)


def error(number: object, fault: RpcFault) -> bytes:
    """Return the answer with an error."""
    return encode({"jsonrpc": "2.0", "id": number, "error": {"code": fault.code, "message": fault.message}})


def notification(method: str, params: list[object]) -> bytes:
    """Return a notification."""
    return encode({"jsonrpc": "2.0", "method": method, "params": params})
