"""Limits of one worker: connections and requests, which connection is closed for a new one, which request is next.

A full worker closes the connection that has waited longest for its client, so clients that send nothing, or read
nothing, cannot keep others out.
"""

from __future__ import annotations

import asyncio
from collections import Counter
from math import inf
from time import monotonic
from typing import NamedTuple, Protocol

import structlog

from daemon.metrics import Served

log = structlog.get_logger("http")

REASONS = (  # for which requests are refused before they are answered, and connections closed early
    "address_limit",
    "body_not_accepted",
    "evicted",
    "head_too_large",
    "length_required",
    "malformed_request",
    "method_not_allowed",
    "request_timeout",
    "send_timeout",
    "unknown_host",
    "unsent_limit",
    "uri_too_long",
    "version_not_supported",
)
_MOST_RUNNING = 64  # requests that are worked on at a time; each may hold a read transaction
_MOST_UNSENT = 64 << 20  # bytes of answers that wait for clients who do not read
_LONG_S = 0.02  # for the work on one request before others get a turn
_PAUSES = 5  # iterations of the loop
_LARGEST_BATCH = 8  # requests that start in one iteration, while they take little time
_CHECK_EVERY_S = 0.25
_WARN_EVERY_S = 60.0


class Limits(NamedTuple):
    """How much of a worker its clients may have."""

    connections: int
    connections_per_address: int  # 0 is any number
    head_timeout_s: float
    idle_timeout_s: float
    send_timeout_s: float


class Client(Protocol):
    """A connection, as seen from here."""

    address: str | None

    def start(self) -> asyncio.Task[None]:
        """Begin to answer its request."""
        ...

    def close_early(self, reason: str) -> None:
        """Close it without waiting for its client."""
        ...

    def check(self, now: float) -> None:
        """Close it if its client has had its time."""
        ...


class Capacity:
    """The connections of one worker, by what each of them waits for."""

    def __init__(self, limits: Limits, counts: Served) -> None:
        self.limits = limits
        self._counts = counts
        counts.connections = 0
        self._most_running = max(1, min(_MOST_RUNNING, limits.connections // 2))  # the others can be closed
        self._open: dict[Client, None] = {}
        self._by_address = Counter[str]()
        self._waiting: dict[Client, None] = {}  # for their client, the longest first
        self._unsent: dict[Client, int] = {}  # bytes that their client does not read, the longest first
        self._queued: dict[Client, None] = {}  # for their turn
        self._running = 0
        self._may_start = self._batch = 1  # requests that may start in this iteration of the loop, and in the next
        self._pauses = 0  # iterations in which none starts
        self._planned = self._checking = False  # is due in the loop
        self._planned_at = 0.0
        self._checked_at = inf
        self._evicted = 0  # since the last warning
        self._warned_at = -inf

    # --- connections ---------------------------------------------------------------------------------------------

    def enter(self, client: Client) -> None:
        """Take on a connection; where there are too many, one that waits is closed, or this one."""
        if not self._checking:
            self._checking, self._checked_at = True, inf
            asyncio.get_running_loop().call_later(_CHECK_EVERY_S, self._check)
        self._open[client] = None
        self._counts.connections = len(self._open)
        address, most = client.address, self.limits.connections_per_address
        if address is not None:
            self._by_address[address] += 1
            if most and self._by_address[address] > most:
                same = (each for each in self._waiting if each.address == address)
                next(same, client).close_early("address_limit")
        if len(self._open) > self.limits.connections:
            self._close_one()

    def _close_one(self) -> None:
        victim = next(iter(self._waiting), None) or next(iter(self._unsent), None) or next(reversed(self._queued), None)
        if victim is not None:
            self._evicted += 1
            victim.close_early("evicted")

    def leave(self, client: Client) -> None:
        """Remove a connection; a second call does nothing."""
        if client not in self._open:
            return
        del self._open[client]
        self._counts.connections = len(self._open)
        self.stop_waiting(client)
        self.sent(client)
        self._queued.pop(client, None)
        if client.address is not None:
            self._by_address[client.address] -= 1
            if not self._by_address[client.address]:
                del self._by_address[client.address]

    def wait(self, client: Client) -> None:
        """Note that a connection waits for its client from now on."""
        self._waiting.pop(client, None)
        self._waiting[client] = None

    def stop_waiting(self, client: Client) -> None:
        """Note that a connection does not wait for its client any more."""
        self._waiting.pop(client, None)

    def unsent(self, client: Client, size: int) -> None:
        """Note that a client reads more slowly than it is answered; of too many such clients, the first are closed."""
        self._unsent[client] = size
        while sum(self._unsent.values()) > _MOST_UNSENT and len(self._unsent) > 1:
            next(iter(self._unsent)).close_early("unsent_limit")

    def sent(self, client: Client) -> None:
        """Record that a client has read an answer."""
        self._unsent.pop(client, None)

    def refused(self, reason: str) -> None:
        """Count a request that was refused, or a connection that was closed early."""
        self._counts.refuse(reason)

    def _check(self) -> None:
        loop = asyncio.get_running_loop()
        now = loop.time()
        held_up = now - self._checked_at > 2 * _CHECK_EVERY_S  # input that clients have sent meanwhile was not read yet
        self._checked_at = inf if held_up else now  # so that two checks in a row are not skipped
        if not held_up:
            for client in [*self._open]:
                client.check(now)
        if self._evicted and now - self._warned_at > _WARN_EVERY_S:
            log.warning("http_connections_evicted", evicted=self._evicted, limit=self.limits.connections)
            self._evicted, self._warned_at = 0, now
        self._checking = bool(self._open)
        if self._checking:
            loop.call_later(_CHECK_EVERY_S, self._check)

    # --- requests ------------------------------------------------------------------------------------------------

    def queue(self, client: Client) -> None:
        """Let a connection wait for its turn to be answered, which may come at once."""
        self._queued[client] = None
        self._start()

    def _start(self) -> None:
        """Start as many requests as there are places for in this iteration of the loop."""
        while self._queued and self._may_start and self._running < self._most_running:
            client = next(iter(self._queued))
            del self._queued[client]
            self._running += 1
            self._may_start -= 1
            client.start().add_done_callback(self._done)
            self._plan()
        if self._queued and not self._may_start:
            self._plan()

    def _plan(self) -> None:
        if not self._planned:
            self._planned, self._planned_at = True, monotonic()
            asyncio.get_running_loop().call_soon(self._turn)

    def _turn(self) -> None:
        """Allow more requests in the next iteration: fewer after a long one, so that others are served in between.

        A new connection takes some iterations until its request is read, so a few are left free.
        """
        self._planned = False
        if self._pauses:
            self._pauses -= 1
        elif monotonic() - self._planned_at > _LONG_S:
            self._pauses, self._batch = _PAUSES, 1
        else:
            self._batch = min(self._batch * 2, _LARGEST_BATCH)
        self._may_start = 0 if self._pauses else self._batch
        self._start()

    def _done(self, _: asyncio.Task[None]) -> None:
        self._running -= 1
        self._start()
