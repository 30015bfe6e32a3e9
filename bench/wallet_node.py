"""A stand-in for a Bitcoin node: a process that answers the calls of utxod and of ElectrumX from a chain in a file.

It has every block from the start, and shows them up to a height, which the call `show` raises.
"""

from __future__ import annotations

import asyncio
import socket
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from http.client import HTTPConnection
from pathlib import Path
from typing import Any

import msgspec
import uvloop

from bench.wallet_chain import read
from feeds.bitcoin.block import double_sha256

_encode, _decode = msgspec.json.Encoder().encode, msgspec.json.Decoder().decode
_FEE_RATE = 0.00001
_VERSION = 290_000  # of Bitcoin Core, as ElectrumX expects it


class Fault(Exception):
    """An error of JSON-RPC."""


class Chain:
    """The blocks and transactions of a file."""

    def __init__(self, path: Path, height: int) -> None:
        self._blocks = read(path)
        self._hashes = [double_sha256(each.raw[:80])[::-1].hex() for each in self._blocks]
        self._heights = {found: height for height, found in enumerate(self._hashes)}
        self._txs: dict[str, tuple[int, bytes]] = {}
        for at, block in enumerate(self._blocks):
            self._txs |= {double_sha256(tx)[::-1].hex(): (at, tx) for tx in block.txs}
        self._height = height

    def call(self, method: str, params: list[Any]) -> Any:
        """Answer one call.

        Raises:
            Fault: there is no such method, block or transaction.
        """
        match method, params:
            case "getblockcount", _:
                return self._height
            case "getbestblockhash", _:
                return self._hashes[self._height]
            case "getblockhash", [int(height)] if 0 <= height <= self._height:
                return self._hashes[height]
            case "getblock", [str(name), *_] if name in self._heights:
                return self.block(name).hex()
            case "getrawtransaction", [str(txid), *_] if self._txs.get(txid, (self._height + 1,))[0] <= self._height:
                return self._txs[txid][1].hex()
            case "getrawmempool", _:
                return []
            case "getnetworkinfo", _:
                return {"version": _VERSION, "subversion": "/stand-in/", "relayfee": _FEE_RATE}
            case "getblockchaininfo", _:
                return {"chain": "regtest", "blocks": self._height, "headers": self._height}
            case "getindexinfo", _:
                return {"txindex": {"synced": True, "best_block_height": self._height}}
            case "estimatesmartfee", _:
                return {"feerate": _FEE_RATE, "blocks": 6}
            case "show", [int(height)]:
                self._height = height
                return height
        raise Fault(f"{method} {params} has no answer")

    def block(self, name: str) -> bytes:
        """Return a block by its hash."""
        return self._blocks[self._heights[name]].raw


class Connection(asyncio.Protocol):
    """HTTP as far as clients of a node use it: POST with JSON-RPC, GET of a block's bytes."""

    def __init__(self, chain: Chain) -> None:
        self._chain, self._received = chain, b""

    def connection_made(self, transport: Any) -> None:
        """Remember where answers go."""
        self._out = transport

    def data_received(self, data: bytes) -> None:
        """Answer every request that is complete."""
        self._received += data
        while (end := self._received.find(b"\r\n\r\n")) >= 0:
            head = self._received[:end].decode("latin-1")
            fields = dict(line.lower().split(": ", 1) for line in head.split("\r\n")[1:])
            size = int(fields.get("content-length", 0))
            if len(self._received) < end + 4 + size:
                if "expect" in fields:
                    self._out.write(b"HTTP/1.1 100 Continue\r\n\r\n")
                return
            body, self._received = self._received[end + 4 : end + 4 + size], self._received[end + 4 + size :]
            if body:
                self._send("application/json", _encode(self._answer(_decode(body))))
            else:
                name = head.split()[1].rpartition("/")[2].partition(".")[0]
                self._send("application/octet-stream", self._chain.block(name))

    def _answer(self, call: Any) -> Any:
        if isinstance(call, list):
            return [self._answer(each) for each in call]
        try:
            result = self._chain.call(call["method"], list(call.get("params") or []))
        except Fault as fault:
            return {"id": call.get("id"), "result": None, "error": {"code": -5, "message": str(fault)}}
        return {"id": call.get("id"), "result": result, "error": None}

    def _send(self, kind: str, body: bytes) -> None:
        head = f"HTTP/1.1 200 OK\r\nContent-Type: {kind}\r\nContent-Length: {len(body)}\r\n\r\n"
        self._out.write(head.encode() + body)


class StandIn:
    """A node that runs in a process of its own."""

    def __init__(self, process: subprocess.Popen[bytes], port: int) -> None:
        self.process, self.port = process, port

    def url(self) -> str:
        """Return where its RPC is."""
        return f"http://bench:bench@127.0.0.1:{self.port}"

    def show(self, height: int) -> None:
        """Make blocks up to a height known."""
        connection = HTTPConnection("127.0.0.1", self.port, timeout=60)
        connection.request("POST", "/", _encode({"id": 0, "method": "show", "params": [height]}))
        assert _decode(connection.getresponse().read())["result"] == height
        connection.close()


@contextmanager
def stand_in(chain: Path, height: int) -> Iterator[StandIn]:
    """Run a node with the blocks of a file, of which those up to a height are known."""
    with socket.socket() as listening:
        listening.bind(("127.0.0.1", 0))
        listening.listen(128)
        command = [sys.executable, "-m", "bench.wallet_node", str(listening.fileno()), str(chain), str(height)]
        process = subprocess.Popen(command, pass_fds=(listening.fileno(),))
        port = listening.getsockname()[1]
    try:
        yield StandIn(process, port)
    finally:
        process.terminate()
        process.wait(30)


async def _serve(listening: socket.socket, chain: Chain) -> None:
    server = await asyncio.get_running_loop().create_server(lambda: Connection(chain), sock=listening)
    await server.serve_forever()


def main() -> None:
    """Serve until a signal ends the process."""
    number, path, height = sys.argv[1:]
    uvloop.run(_serve(socket.socket(fileno=int(number)), Chain(Path(path), int(height))))


if __name__ == "__main__":
    main()
