"""The Ogmios server, for queries that the set of outputs cannot answer."""

from __future__ import annotations

import asyncio
import itertools
from pathlib import Path
from typing import TYPE_CHECKING, Any

import msgspec
import structlog

from config.serving import Upstream as Settings
from feeds.cardano.errors import BlockError
from feeds.cardano.transaction import read_transaction
from handlers import wire
from handlers.events import Ack, Error, Hello, Tx, TxSubmitted

if TYPE_CHECKING:
    from websockets.asyncio.client import ClientConnection

log = structlog.get_logger("http")

_LONGEST = 64 << 20
_encode = msgspec.json.Encoder().encode
_ANSWER: msgspec.msgpack.Decoder[Any] = msgspec.msgpack.Decoder(Ack | Error)
NOT_SET = "this request needs an Ogmios server, and none is configured (upstream.ogmios)"


class UpstreamAway(Exception):
    """No server answers."""


class Fault(Exception):
    """The server refuses a request: `error` is its own JSON-RPC error."""

    def __init__(self, error: dict[str, Any]) -> None:
        super().__init__(str(error.get("message", "no reason given")))
        self.error = error
        self.code: int = error.get("code", 0)
        self.data = error.get("data")


async def connect(settings: Settings) -> ClientConnection:
    """Open a connection to the server.

    Raises:
        UpstreamAway: no server is configured, or it does not answer.
    """
    if settings.ogmios is None:
        raise UpstreamAway(NOT_SET)
    import websockets.asyncio.client
    from websockets.exceptions import WebSocketException

    try:
        return await websockets.asyncio.client.connect(
            settings.ogmios, compression=None, max_size=_LONGEST, open_timeout=settings.timeout, proxy=None
        )
    except (OSError, TimeoutError, ValueError, WebSocketException) as error:
        log.warning("upstream_away", error=str(error) or type(error).__name__)
        raise UpstreamAway("the Ogmios server (upstream.ogmios) does not answer") from error


class Upstream:
    """Queries the server over one connection; answers are matched to requests by id."""

    def __init__(self, settings: Settings, socket: Path) -> None:
        self._settings, self._socket = settings, socket
        self._connection: ClientConnection | None = None
        self._opening = asyncio.Lock()
        self._reading: asyncio.Task[None] | None = None
        self._waiting: dict[int, asyncio.Future[dict[str, Any]]] = {}
        self._ids = itertools.count(1)
        self._parameters: tuple[object, dict[str, Any]] | None = None

    @property
    def is_set(self) -> bool:
        """Return whether a server is configured."""
        return self._settings.ogmios is not None

    async def call(self, method: str, params: object = None) -> Any:
        """Return the server's answer.

        Raises:
            UpstreamAway: the server does not answer, or not in time.
            Fault: the server refuses.
        """
        number = next(self._ids)
        request: dict[str, Any] = {"jsonrpc": "2.0", "method": method, "id": number}
        if params is not None:
            request["params"] = params
        answer = await self.relay(request, number)
        if "error" in answer:
            raise Fault(answer["error"])
        return answer.get("result")

    async def relay(self, request: dict[str, Any], number: int | None = None) -> dict[str, Any]:
        """Return the whole answer to a request, whose id is replaced on the way.

        Raises:
            UpstreamAway: the server does not answer, or not in time.
        """
        from websockets.exceptions import ConnectionClosed

        number = next(self._ids) if number is None else number
        connection = await self._opened()
        answered = self._waiting[number] = asyncio.get_running_loop().create_future()
        try:
            await connection.send(_encode({**request, "id": number}).decode())
            return await asyncio.wait_for(answered, self._settings.timeout)
        except ConnectionClosed as error:
            raise UpstreamAway("the Ogmios server (upstream.ogmios) closed the connection") from error
        except TimeoutError as error:
            raise UpstreamAway("the Ogmios server (upstream.ogmios) does not answer in time") from error
        finally:
            self._waiting.pop(number, None)

    async def _opened(self) -> ClientConnection:
        async with self._opening:
            if self._connection is None:
                self._connection = await connect(self._settings)
                self._reading = asyncio.create_task(self._read(self._connection))
            return self._connection

    async def _read(self, connection: ClientConnection) -> None:
        from websockets.exceptions import ConnectionClosed

        try:
            async for raw in connection:
                answer = msgspec.json.decode(raw)
                waiting = self._waiting.get(answer.get("id"))
                if waiting is not None and not waiting.done():
                    waiting.set_result(answer)
        except (ConnectionClosed, msgspec.DecodeError) as error:
            log.warning("upstream_away", error=str(error))
        finally:
            self._connection = None
            for waiting in self._waiting.values():
                if not waiting.done():
                    waiting.set_exception(UpstreamAway("the Ogmios server (upstream.ogmios) closed the connection"))
            await connection.close()

    # --- queries of facades --------------------------------------------------------------------------------------

    async def protocol_parameters(self, epoch: object) -> dict[str, Any]:
        """Return the protocol parameters, as Ogmios writes them; they are requested once in an epoch.

        Raises:
            UpstreamAway: the server does not answer, or the file cannot be read.
            Fault: the server refuses.
        """
        if self._parameters is None or self._parameters[0] != epoch:
            file = self._settings.protocol_parameters
            if file is None:
                found = await self.call("queryLedgerState/protocolParameters")
            else:
                found = _from_file(file)
            self._parameters = epoch, found
        return self._parameters[1]

    async def submit(self, tx: Tx) -> str:
        """Submit a transaction to the node; what it accepts is submitted to the daemon too. Return its id.

        Raises:
            UpstreamAway: the server does not answer.
            Fault: the node refuses it.
        """
        assert tx.raw is not None
        found = await self.call("submitTransaction", {"transaction": {"cbor": tx.raw.hex()}})
        await self._submit_here(tx)
        txid: str = found["transaction"]["id"]
        return txid

    async def submit_if_taken(self, request: dict[str, Any], answer: dict[str, Any]) -> None:
        """Submit a client's transaction to the daemon too, if the node has accepted it."""
        if request.get("method") != "submitTransaction" or "result" not in answer:
            return
        try:
            tx = read_transaction(bytes.fromhex(request["params"]["transaction"]["cbor"]))
        except (BlockError, KeyError, TypeError, ValueError) as error:
            log.warning("submission_not_told", error=str(error))
            return
        await self._submit_here(tx)

    async def _submit_here(self, tx: Tx) -> None:
        """Submit a transaction that the node has accepted to the daemon; a refusal does not affect the node."""
        try:
            async with asyncio.timeout(self._settings.timeout):
                reader, writer = await asyncio.open_unix_connection(self._socket)
                try:
                    writer.write(wire.encode(Hello(client="utxod-http/1"), "frames"))
                    writer.write(wire.encode(TxSubmitted(tx=tx, seq=1), "frames"))
                    await writer.drain()
                    while True:
                        (length,) = wire.LENGTH.unpack(await reader.readexactly(wire.LENGTH.size))
                        raw = await reader.readexactly(length)
                        if msgspec.msgpack.decode(raw).get("type") in ("Ack", "Error"):
                            break
                finally:
                    writer.close()
        except (OSError, TimeoutError, asyncio.IncompleteReadError) as error:
            log.warning("submission_not_told", txid=tx.txid.hex(), error=str(error) or type(error).__name__)
            return
        answer = _ANSWER.decode(raw)
        if isinstance(answer, Error):
            log.warning("submission_not_told", txid=tx.txid.hex(), code=answer.code, error=answer.message)

    async def evaluate(self, cbor: bytes, additional: list[Any]) -> list[dict[str, Any]]:
        """Return the execution units of a transaction's scripts, as Ogmios 6 reports them.

        Raises:
            UpstreamAway: the server does not answer.
            Fault: a script fails, or the bytes are not a transaction.
        """
        params: dict[str, Any] = {"transaction": {"cbor": cbor.hex()}}
        if additional:
            params["additionalUtxo"] = additional
        found: list[dict[str, Any]] = await self.call("evaluateTransaction", params)
        return found


def _from_file(file: Path) -> dict[str, Any]:
    try:
        content = msgspec.json.decode(file.read_bytes())
    except (OSError, msgspec.DecodeError) as error:
        raise UpstreamAway(f"upstream.protocol_parameters cannot be read: {error}") from error
    found: dict[str, Any] = content.get("result", content)
    return found
