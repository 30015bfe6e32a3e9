"""Connections to one shard: requests, and whether it answers."""

from __future__ import annotations

from collections.abc import Mapping
from urllib.parse import urlsplit

import anyio
import msgspec
import structlog
from msgspec import Struct

from config.settings import Config
from daemon.http.reply import Problem
from feeds.bitcoin.http import Answer, Connection, Disconnected, NotHttp
from formats.shards import Shard
from handlers.events import Point

log = structlog.get_logger("gateway")

LONGEST = 256 << 20  # bytes of an answer of a shard
_POLL_S = 1.0
_IDLE = 32  # connections that are kept


class WrongShard(Exception):
    """A daemon that is not the shard that the configuration says."""


class Unavailable(Problem):
    """A shard that does not answer, or whose answer cannot be used."""

    def __init__(self, shard: Shard, url: str, reason: str) -> None:
        what = f"shard {shard} at {url} is not available: {reason}"
        super().__init__(503, "shard_unavailable", what, "try again later", {"shard": str(shard), "url": url})


class _Chain(Struct):
    family: str
    network: str
    shard: str | None = None
    network_tip_height: int | None = None
    lag_blocks: int | None = None
    seconds_since_last_block: float | None = None


class _Utxo(Struct):
    unspent: int


class ShardStatus(Struct):
    """What a gateway reads of the status of a shard."""

    chain: _Chain
    utxo: _Utxo


class _Health(Struct):
    status: str
    reason: str | None = None


_read_status = msgspec.json.Decoder(ShardStatus).decode
_read_health = msgspec.json.Decoder(_Health).decode


class ShardLink:
    """One shard. `failure` is why it is not available, None while it answers."""

    def __init__(self, shard: Shard, url: str, config: Config) -> None:
        self.shard, self.url, self._config = shard, url, config
        parts = urlsplit(url)
        self._tls, self._host = parts.scheme == "https", parts.hostname or ""
        self._port = parts.port or (443 if self._tls else 80)
        self._idle: list[Connection] = []
        token = config.http.token
        self._head = f"Host: {parts.netloc}\r\n" + (f"Authorization: Bearer {token}\r\n" if token else "")
        self.failure: str | None = None
        self.status: ShardStatus | None = None
        self.health = _Health("unknown")
        self.tip: Point | None = None
        self.requests = self.failures = 0

    async def ask(self, target: str, headers: Mapping[str, str]) -> Answer:
        """Return the answer to a request.

        Raises:
            Unavailable: the shard does not answer.
        """
        if self.failure is not None:
            raise Unavailable(self.shard, self.url, self.failure)
        self.requests += 1
        try:
            return await self._ask(target, headers)
        except (Disconnected, NotHttp, TimeoutError) as error:
            self.failures += 1
            raise Unavailable(self.shard, self.url, self._reason(error)) from error

    def _reason(self, error: Exception) -> str:
        timeout = f"no answer within {self._config.cluster.shard_timeout:g} s"
        return timeout if isinstance(error, TimeoutError) else str(error)

    async def _ask(self, target: str, headers: Mapping[str, str]) -> Answer:
        lines = "".join(f"{name}: {value}\r\n" for name, value in headers.items())
        request = f"GET {target} HTTP/1.1\r\n{self._head}{lines}\r\n".encode("latin-1")
        with anyio.fail_after(self._config.cluster.shard_timeout):
            while self._idle:
                kept = self._idle.pop()
                if not kept.reusable:
                    kept.close()
                    continue
                try:
                    return await self._on(kept, request)
                except Disconnected:  # it was closed while it was idle
                    continue
            return await self._on(await Connection.to(self._host, self._port, self._tls), request)

    async def _on(self, connection: Connection, request: bytes) -> Answer:
        try:
            connection.send(request)
            answer = await connection.receive(LONGEST)
        except BaseException:
            connection.close()
            raise
        if connection.reusable and len(self._idle) < _IDLE:
            self._idle.append(connection)
        else:
            connection.close()
        return answer

    # --- whether it answers --------------------------------------------------------------------------------------

    async def watch(self) -> None:
        """Ask the shard for its state now and then, until cancelled."""
        while True:
            await self.look()
            await anyio.sleep(_POLL_S)

    async def look(self) -> None:
        """Ask the shard for its state; one that is not the right one is not available."""
        try:
            await self.check()
        except WrongShard as error:
            self._fail(str(error))

    async def check(self) -> None:
        """Ask the shard for its state.

        Raises:
            WrongShard: it is not the shard that the configuration says.
        """
        try:
            answer = await self._ask("/api/v1/status", {})
            if answer.status != 200:
                raise NotHttp(f"/api/v1/status is answered with {answer.status} {answer.reason}")
            self.status = _read_status(answer.body)
            ready = await self._ask("/health/ready", {})
            self.health = _read_health(ready.body)
        except (Disconnected, NotHttp, TimeoutError, msgspec.MsgspecError) as error:
            self._fail(self._reason(error))
            return
        self._verify(self.status)
        self.tip = tip_of(answer.fields)
        if self.failure is not None:
            log.info("shard_available", shard=str(self.shard), url=self.url)
        self.failure = None

    def _verify(self, status: ShardStatus) -> None:
        chain, own = status.chain, self._config.chain
        if (chain.family, chain.network) != (own.family, own.network):
            what = f"it keeps {chain.family}/{chain.network}, but the gateway is for {own.family}/{own.network}"
            raise WrongShard(f"{self.url}: {what}")
        if chain.shard != str(self.shard):
            what = "is not a shard" if chain.shard is None else f"is shard {chain.shard}"
            raise WrongShard(f"{self.url}: the daemon {what}, but cluster.shards names it as shard {self.shard}")

    def _fail(self, reason: str) -> None:
        if self.failure is None:
            log.warning("shard_unavailable", shard=str(self.shard), url=self.url, reason=reason)
        self.failure, self.health = reason, _Health("unknown")
        while self._idle:
            self._idle.pop().close()


def tip_of(fields: Mapping[str, str]) -> Point | None:
    """Return the block that the headers of an answer name, None before the first block.

    Raises:
        KeyError, ValueError: they name none.
    """
    if fields["x-tip-hash"] == "origin":
        return None
    return Point(int(fields["x-tip-height"]), int(fields["x-tip-slot"]), bytes.fromhex(fields["x-tip-hash"]))
