"""What all connections share: the feeder, the numbers, the subscribers, and what is known of the chain."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING

from config.settings import Config
from daemon.bus import Bus
from daemon.framing import Unfinished
from daemon.inbox import Inbox
from daemon.metrics import Numbers
from daemon.outbox import Unread
from daemon.rate import Rate
from daemon.submissions import Submissions
from daemon.subscribers import Subscribers
from daemon.turns import Turns
from handlers.events import Welcome
from handlers.points import View
from handlers.utxo import Committed

if TYPE_CHECKING:
    from daemon.connection import Connection

_OWN_A_SECOND = 2000  # of all clients together: the writer's thread needs the interpreter more than the loop does


class Hub:
    """What all connections share."""

    def __init__(self, bus: Bus, inbox: Inbox, welcome: Welcome, admins: frozenset[int], config: Config) -> None:
        self.bus = bus
        self.inbox = inbox
        self.welcome = welcome
        self.admins = admins
        self.max_bytes = config.socket.max_frame_bytes
        self.unfinished = Unfinished(inbox.capacity)
        self.unread = Unread(config.socket.max_unread_bytes)
        self.own_answers = Rate(_OWN_A_SECOND)
        self.turns = Turns()
        self.numbers = Numbers()
        self.feeder: Connection | None = None
        self.network_height: int | None = None  # as the last feeder reported it
        self.grace_s = config.http.ready_grace
        self._feeders: set[Connection] = set()  # connections that feed, or that report the height of the network
        self._feeder_left_at = time.monotonic()  # no feeder has connected yet: as if one had just disconnected
        self.view = View()
        self.subscribers = Subscribers()
        bus.follow(self.subscribers.publish)
        bus.follow(self.numbers.count)
        self.in_shard = config.cluster.shard is not None
        self.submissions = Submissions(self.numbers) if config.cluster.stream is not None else None

    def publish(self, committed: Committed) -> None:
        """Publish the result of a commit."""
        self.view = committed.view
        self.numbers.committed(committed)
        self.bus.publish(committed.carried_out)

    def feeds(self, connection: Connection) -> None:
        """Note that a client feeds the chain, or reports the height of the network."""
        self._feeders.add(connection)

    def left(self, connection: Connection) -> None:
        """Note that a client has disconnected."""
        if connection in self._feeders:
            self._feeders.remove(connection)
            self._feeder_left_at = time.monotonic()

    def feeder_away_s(self) -> float:
        """Return how long no feeder has been connected."""
        return 0.0 if self._feeders else round(time.monotonic() - self._feeder_left_at, 3)

    def known_network_height(self) -> int | None:
        """Return the height of the network; None once no client has reported it for the grace period."""
        return None if self.feeder_away_s() > self.grace_s else self.network_height

    @property
    def stream_sequence(self) -> int | None:
        """Return the sequence of the last message of the stream that was applied."""
        place = self.view.log_place
        return None if place is None or self.submissions is None else place.sequence

    async def expire(self) -> None:
        """Refuse submissions that have waited for too long, until cancelled."""
        if self.submissions is not None:
            await self.submissions.expire()

    def close(self) -> None:
        """Refuse submissions that wait: the daemon is stopping."""
        if self.submissions is not None:
            self.submissions.close()

    def current_numbers(self) -> Numbers:
        """Return the counters, with the present state of what the connections share."""
        numbers = self.numbers
        numbers.network_height, numbers.map_size = self.known_network_height(), self.view.map_size
        numbers.feeder_away_s = self.feeder_away_s()
        numbers.inbox_messages, numbers.inbox_bytes = len(self.inbox), self.inbox.reserved
        numbers.unread_bytes, numbers.listener_failures = self.unread.bytes, self.bus.failures
        if self.submissions is not None:
            numbers.stream_sequence, numbers.submissions_waiting = self.stream_sequence, len(self.submissions)
        return numbers

    def greet(self, seq: int | None) -> Welcome:
        """Return the answer to a Hello."""
        view, same, since = self.view, self.welcome, self.numbers.seconds_since_last_block()
        return Welcome(
            protocol=same.protocol,
            version=same.version,
            chain=same.chain,
            tip=view.tip,
            points=view.points,
            rollback_floor=view.floor,
            persisted_height=view.persisted_height,
            network_tip_height=self.known_network_height(),
            feeder_away_s=self.feeder_away_s(),
            store_id=same.store_id,
            newest_sequence=self.subscribers.newest,
            seconds_since_last_block=None if since is None else round(since, 3),
            stream_sequence=self.stream_sequence,
            stream_end=self.numbers.stream_end,
            seq=seq,
        )
