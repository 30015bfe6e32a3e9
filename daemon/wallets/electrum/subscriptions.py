"""Which sessions want to know of which scripts, and what they were told last: a change is sent once."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable
from typing import TYPE_CHECKING

import anyio

from daemon.wallets.errors import BAD_REQUEST, RpcFault

if TYPE_CHECKING:
    from daemon.wallets.chain import ChainView
    from daemon.wallets.electrum.session import Session


ANSWERING = ""  # the status of a script while the answer to the subscription is being computed


class Subscriptions:
    """Scripts with the sessions that subscribed to them."""

    def __init__(self, chain: ChainView, most: int, most_each: int) -> None:
        self._chain, self._most, self._most_each = chain, most, most_each
        self._sessions: dict[bytes, set[Session]] = {}
        self._versions = Counter[bytes]()  # how often a subscribed script has changed
        self._reporting = anyio.Lock()  # otherwise an older status could be sent after a newer one
        self.count = 0

    def add(self, session: Session, key: bytes) -> None:
        """Subscribe a session to a script.

        Raises:
            RpcFault: the session, or all of them together, have too many.
        """
        if key in session.statuses:
            return
        if len(session.statuses) >= self._most_each:
            raise RpcFault(BAD_REQUEST, f"a session may subscribe to {self._most_each} scripts")
        if self.count >= self._most:
            raise RpcFault(BAD_REQUEST, f"the server has its {self._most} subscriptions")
        session.statuses[key] = None
        self._sessions.setdefault(key, set()).add(session)
        self.count += 1

    def remove(self, session: Session, key: bytes) -> bool:
        """End a subscription; return whether there was one."""
        if key not in session.statuses:
            return False
        del session.statuses[key]
        self.count -= 1
        others = self._sessions[key]
        others.discard(session)
        if not others:
            del self._sessions[key]
            self._versions.pop(key, None)
        return True

    def forget(self, session: Session) -> None:
        """End all subscriptions of a session."""
        for key in list(session.statuses):
            self.remove(session, key)

    async def current(self, session: Session, key: bytes) -> str | None:
        """Return the status of a script that a session has subscribed to; it counts as sent.

        A status that changes while it is computed is computed again: otherwise the change would be reported before
        the answer, and the client would keep the older of the two.
        """
        session.statuses[key] = ANSWERING
        while True:
            before = self._versions[key]
            status = await self._chain.status(key)
            if key not in session.statuses or self._versions[key] == before:
                break
        if key in session.statuses:
            session.statuses[key] = status
        return status

    async def report(self, touched: Iterable[bytes] | None) -> None:
        """Send each session the new statuses of scripts that it subscribed to; None stands for all scripts."""
        wanted = list(self._sessions) if touched is None else [key for key in touched if key in self._sessions]
        for key in wanted:
            self._versions[key] += 1
        async with self._reporting:
            for key in wanted:
                await self._report_one(key)
                await anyio.lowlevel.checkpoint()

    async def _report_one(self, key: bytes) -> None:
        if key not in self._sessions:  # its last session has left meanwhile
            return
        status = await self._chain.status(key)
        for session in tuple(self._sessions.get(key, ())):
            if session.statuses[key] not in (status, ANSWERING):
                session.statuses[key] = status
                session.notify("blockchain.scripthash.subscribe", [key[::-1].hex(), status])
