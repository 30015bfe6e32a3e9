"""ZMQ notifications of a Bitcoin node: the mempool is read on each change, not only at each interval."""

from __future__ import annotations

from collections.abc import Callable

import anyio
import structlog

from daemon.wallets.errors import RpcFault
from daemon.wallets.upstream import Upstream

log = structlog.get_logger("wallets")

_TOPICS = ("sequence", "hashtx", "rawtx")  # the first that the node publishes is enough; `sequence` has removals too
_QUERY_S = 60.0  # between two queries for the endpoints of a node that has none
_ANY_HOST = ("0.0.0.0", "*", "[::]")
_LOOPBACK = ("127.0.0.1", "localhost", "[::1]", "::1")  # a URL has an IPv6 address in brackets, a host name none


def endpoint_of(offered: object, host: str) -> tuple[str, str] | None:
    """Return the topic and the endpoint to subscribe to, out of an answer to `getzmqnotifications`.

    The node answers with the addresses that it is bound to, so a wildcard is replaced by the host of its RPC server. An
    address that only programs on the node's own machine reach is skipped if the node is on another one.
    """
    found = dict[str, str]()
    for each in offered if isinstance(offered, list) else ():
        if isinstance(each, dict) and isinstance(each.get("type"), str) and isinstance(each.get("address"), str):
            found.setdefault(each["type"].removeprefix("pub"), each["address"])
    for topic in _TOPICS:
        transport, _, place = found.get(topic, "").partition("://")
        bound, _, port = place.rpartition(":")
        local = host in _LOOPBACK
        if transport == "tcp" and bound in _ANY_HOST:
            return topic, f"tcp://[{host}]:{port}" if ":" in host else f"tcp://{host}:{port}"
        if (transport == "tcp" and (local or bound not in _LOOPBACK)) or (transport == "ipc" and local):
            return topic, f"{transport}://{place}"
    return None


class Announcements:
    """Follows the notifications of a node that publishes them. Without them the mempool is polled at its interval."""

    def __init__(self, upstream: Upstream, on_change: Callable[[], None]) -> None:
        self._upstream, self._on_change = upstream, on_change
        self.pause_s = 0.0  # after a notification, for more of them: a poll then reads what all of them announced

    async def follow(self) -> None:
        """Call `on_change` after notifications, until cancelled."""
        topic, endpoint = await self._endpoint()
        try:
            from zmq import IPV6, SUB, SUBSCRIBE, ZMQError
            from zmq.asyncio import Context
        except ImportError:
            log.warning("zmq_not_installed", endpoint=endpoint)
            return
        with Context() as context, context.socket(SUB) as subscriber:
            subscriber.setsockopt(IPV6, 1)
            subscriber.setsockopt(SUBSCRIBE, topic.encode())
            try:
                subscriber.connect(endpoint)  # the library reconnects
            except ZMQError as error:
                log.warning("notifications_refused", endpoint=endpoint, error=str(error))
                return
            log.info("notifications_followed", topic=topic, endpoint=endpoint)
            while True:
                await subscriber.recv_multipart()
                await anyio.sleep(self.pause_s)
                while await subscriber.poll(0):
                    await subscriber.recv_multipart()
                self._on_change()

    async def _endpoint(self) -> tuple[str, str]:
        while True:
            try:
                found = endpoint_of(await self._upstream.call("getzmqnotifications"), self._upstream.host)
            except RpcFault as fault:  # a node without ZMQ does not have the method
                log.debug("notifications_unavailable", error=fault.message)
            else:
                if found is not None:
                    return found
            await anyio.sleep(_QUERY_S)
