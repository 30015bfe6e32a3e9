"""The clients that subscribed to facts, in the order of the change log.

The facts of a commit are encoded once, for any number of subscribers. A client that requests earlier facts is sent
those of the log first, some at a time, and then joins the others: no fact is missing in between, and none comes twice.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from time import monotonic

import anyio
import structlog
from anyio import CapacityLimiter, to_thread
from msgspec import Struct

from daemon.outbox import Outbox
from handlers import wire
from handlers.change_log import ChangeLog, Gone, NotYet, read
from handlers.events import Fact
from handlers.refusal import Refusal, Refused
from storage.errors import StoreError

log = structlog.get_logger("socket")

_ROWS = 64  # of the log that a turn reads: some two thousand facts
_UNREAD = 64 << 10  # bytes that a client may leave unread before it is sent more of the log
_PATIENCE_S = 10.0  # for a client that takes nothing of them

Rows = list[tuple[bytes, bytes]]


class Subscription(Struct, eq=False):
    """What a client subscribed to. Until it is `live` it is sent what the log has from `next` on."""

    kinds: frozenset[str]
    next: int
    live: bool


class Subscribers:
    """Sends facts to the clients that subscribed to them."""

    def __init__(self) -> None:
        self.sent = 0  # the sequence of the last fact that was sent
        self._subscriptions: dict[Outbox, Subscription] = {}
        self._changes: ChangeLog | None = None
        self._writer: CapacityLimiter | None = None
        self._encoding, self._one_waits = CapacityLimiter(1), anyio.Lock()  # the writer lets one pass between turns

    def open(self, changes: ChangeLog, writer: CapacityLimiter) -> None:
        """Send what this log will contain from now on; `writer` admits one turn of the writer's thread at a time."""
        changes.take()
        self._changes, self._writer, self.sent = changes, writer, changes.newest()

    @property
    def newest(self) -> int | None:
        """Return the sequence of the last fact that was sent, None where there is no log."""
        return None if self._changes is None else self.sent

    def subscribe(self, outbox: Outbox, kinds: Iterable[str]) -> None:
        """Send a client the facts of these types from now on, and no others."""
        self._subscriptions[outbox] = Subscription(frozenset(kinds), self.sent + 1, live=True)

    async def subscribe_from(self, outbox: Outbox, kinds: Iterable[str], sequence: int) -> tuple[Subscription, Rows]:
        """Let a client wait for the facts of these types from a sequence on; return what `replay` takes.

        Raises:
            Refused: `gone`: the facts are no longer kept; `unknown_sequence`: it is in the future.
        """
        if self._changes is None:
            raise Refused("unavailable", "this daemon keeps no change log (utxo.enabled)")
        rows = await self._fetch(sequence)
        subscription = self._subscriptions[outbox] = Subscription(frozenset(kinds), sequence, live=False)
        return subscription, rows

    def leave(self, outbox: Outbox) -> None:
        """Send a client nothing more."""
        self._subscriptions.pop(outbox, None)

    def publish(self, facts: Sequence[Fact]) -> None:
        """Send each live client, in one piece, the facts that it subscribed to."""
        sent = _Encoded(facts)
        self.sent = facts[-1].sequence
        for outbox, subscription in tuple(self._subscriptions.items()):
            if not subscription.live:
                continue
            some = (
                sent
                if subscription.next <= facts[0].sequence
                else _Encoded([fact for fact in facts if fact.sequence >= subscription.next])
            )
            if message := some.message(outbox.encoding, subscription.kinds):
                outbox.put(message)

    # --- earlier facts ---------------------------------------------------------------------------------------------

    async def replay(self, outbox: Outbox, subscription: Subscription, rows: Rows) -> None:
        """Send a client what the log has, until it has caught up with the others. No other task waits for it."""
        try:
            while True:
                began = monotonic()
                facts = await to_thread.run_sync(read, rows, subscription.next, limiter=self._encoding)
                message = await to_thread.run_sync(
                    _Encoded(facts).message, outbox.encoding, subscription.kinds, limiter=self._encoding
                )
                if (
                    self._subscriptions.get(outbox) is not subscription
                ):  # it has disconnected, or has subscribed again meanwhile
                    return
                if message:
                    outbox.put(message)
                subscription.next = facts[-1].sequence + 1 if facts else subscription.next
                if subscription.next > self.sent:
                    subscription.live = True
                    return
                await anyio.sleep(monotonic() - began)  # the writer needs the interpreter too
                if not await outbox.drained_to(_UNREAD, _PATIENCE_S):
                    return
                rows = await self._fetch(subscription.next)
        except Refused as refused:
            self._end(outbox, subscription, refused.refusal)
        except StoreError as error:
            self._end(outbox, subscription, _unreadable(subscription.next, error))

    async def _fetch(self, sequence: int) -> Rows:
        """Return rows of the log, in a turn of the writer: it may grow the map, which no other thread may read then."""
        assert self._changes is not None
        try:
            async with self._one_waits:
                return await to_thread.run_sync(self._changes.fetch, sequence, _ROWS, limiter=self._writer)
        except Gone as gone:
            raise Refused("gone", str(gone), oldest=gone.oldest) from gone
        except NotYet as error:
            raise Refused("unknown_sequence", str(error), newest=error.newest) from error
        except StoreError as error:
            refusal = _unreadable(sequence, error)
            raise Refused(refusal.code, refusal.message) from error

    def _end(self, outbox: Outbox, subscription: Subscription, why: Refusal) -> None:
        if self._subscriptions.get(outbox) is subscription:
            self.leave(outbox)
            outbox.put(outbox.encoded(why.answer(None)))


def _unreadable(sequence: int, error: StoreError) -> Refusal:
    log.error("change_log_unreadable", sequence=sequence, error=str(error))
    return Refusal("STORAGE_ERROR", "the change log cannot be read: the daemon's log has the reason")


class _Encoded:
    """Facts as they are sent. Clients with the same subscription share the same bytes."""

    def __init__(self, facts: Sequence[Fact]) -> None:
        self._facts = facts
        self._each: dict[wire.Encoding, list[tuple[str, bytes]]] = {}
        self._messages: dict[tuple[wire.Encoding, frozenset[str]], bytes] = {}

    def message(self, encoding: wire.Encoding, kinds: frozenset[str]) -> bytes:
        if (encoding, kinds) not in self._messages:
            if encoding not in self._each:
                self._each[encoding] = [(type(fact).__name__, wire.encode(fact, encoding)) for fact in self._facts]
            wanted = [message for kind, message in self._each[encoding] if kind in kinds]
            self._messages[encoding, kinds] = b"".join(wanted)
        return self._messages[encoding, kinds]
