"""The subscriptions of sessions, with the last status that was sent for each: a change is sent once."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable
from typing import TYPE_CHECKING, NamedTuple

import anyio

from daemon.wallets.errors import BAD_REQUEST, RpcFault

if TYPE_CHECKING:
    from daemon.wallets.chain import ChainView
    from daemon.wallets.electrum.session import Session


class Script(NamedTuple):
    """A locking script, by its SHA-256."""

    key: bytes

    async def status(self, chain: ChainView) -> object:
        """Return the status: the hash of the history, None without one."""
        return await chain.status(self.key)

    def notify(self, session: Session, status: object) -> None:
        """Send a status."""
        session.notify("blockchain.scripthash.subscribe", [self.key[::-1].hex(), status])


class Outpoint(NamedTuple):
    """An output, which need not exist yet."""

    txid: bytes
    vout: int

    async def status(self, chain: ChainView) -> object:
        """Return the status: the heights of the transactions that create and spend it, if they are known."""
        return chain.outpoint_status(self.txid, self.vout)

    def notify(self, session: Session, status: object) -> None:
        """Send a status."""
        session.notify("blockchain.outpoint.subscribe", [self.txid.hex(), self.vout, status])


Topic = Script | Outpoint
ANSWERING = ""  # the status of a topic while the answer to the subscription is being computed


class Subscriptions:
    """Topics with the sessions that subscribed to them."""

    def __init__(self, chain: ChainView, most: int, most_each: int) -> None:
        self._chain, self._most, self._most_each = chain, most, most_each
        self._sessions: dict[Topic, set[Session]] = {}
        self._outpoints: dict[bytes | None, set[Outpoint]] = {}  # by script, None while their transaction is unknown
        self._script_of: dict[Outpoint, bytes | None] = {}
        self._versions = Counter[Topic]()  # how often a topic has changed
        self._reporting = anyio.Lock()  # otherwise an older status could be sent after a newer one
        self.count = 0

    def _add(self, session: Session, topic: Topic) -> None:
        if topic in session.statuses:
            return
        if len(session.statuses) >= self._most_each:
            raise RpcFault(BAD_REQUEST, f"this session already has {self._most_each} subscriptions, the limit")
        if self.count >= self._most:
            raise RpcFault(BAD_REQUEST, f"the server already has {self._most} subscriptions, the limit")
        session.statuses[topic] = None
        self._sessions.setdefault(topic, set()).add(session)
        self.count += 1
        if isinstance(topic, Outpoint) and topic not in self._script_of:
            self._place(topic)

    def _place(self, outpoint: Outpoint) -> None:
        """Record the script of an output: creating or spending the output affects that script."""
        key = self._script_of[outpoint] = self._chain.script_of(outpoint.txid, outpoint.vout)
        self._outpoints.setdefault(key, set()).add(outpoint)

    def _displace(self, outpoint: Outpoint) -> None:
        key = self._script_of.pop(outpoint)
        self._outpoints[key].discard(outpoint)
        if not self._outpoints[key]:
            del self._outpoints[key]

    def remove(self, session: Session, topic: Topic) -> bool:
        """End a subscription; return whether there was one."""
        if topic not in session.statuses:
            return False
        del session.statuses[topic]
        self.count -= 1
        others = self._sessions[topic]
        others.discard(session)
        if not others:
            del self._sessions[topic]
            self._versions.pop(topic, None)
            if isinstance(topic, Outpoint):
                self._displace(topic)
        return True

    def forget(self, session: Session) -> None:
        """End all subscriptions of a session."""
        for topic in list(session.statuses):
            self.remove(session, topic)

    async def subscribe(self, session: Session, topic: Topic) -> object:
        """Subscribe a session to a topic, and return its status, which counts as sent.

        A status that changes while it is computed is computed again: otherwise the change would be reported before
        the answer, and the client would keep the older of the two.

        Raises:
            RpcFault: there are too many subscriptions, or the status cannot be computed.
        """
        self._add(session, topic)
        session.statuses[topic] = ANSWERING
        try:
            while True:
                before = self._versions[topic]
                status = await topic.status(self._chain)
                if topic not in session.statuses or self._versions[topic] == before:
                    break
        except RpcFault:
            self.remove(session, topic)
            raise
        if topic in session.statuses:
            session.statuses[topic] = status
        return status

    def of_scripts(self, keys: Iterable[bytes]) -> set[Session]:
        """Return the sessions that subscribed to one of some scripts."""
        return {session for key in keys for session in self._sessions.get(Script(key), ())}

    async def report(self, touched: Iterable[bytes] | None) -> None:
        """Send each session the new statuses of what it subscribed to.

        `touched` are the keys of the scripts that a change affects; None means all of them.
        """
        wanted = self._touched(touched)
        for topic in wanted:
            self._versions[topic] += 1
        async with self._reporting:
            for topic in wanted:
                await self._report_one(topic)
                await anyio.lowlevel.checkpoint()

    def _touched(self, touched: Iterable[bytes] | None) -> list[Topic]:
        if touched is None:
            found = list(self._sessions)
        else:
            keys = list(touched)
            found = [script for script in map(Script, keys) if script in self._sessions]
            found += [outpoint for key in (*keys, None) for outpoint in self._outpoints.get(key, ())]
        for topic in found:
            if isinstance(topic, Outpoint) and (touched is None or self._script_of[topic] is None):
                self._displace(topic)
                self._place(topic)
        return found

    async def _report_one(self, topic: Topic) -> None:
        if topic not in self._sessions:  # its last session has left meanwhile
            return
        status = await topic.status(self._chain)
        for session in tuple(self._sessions.get(topic, ())):
            if session.statuses[topic] not in (status, ANSWERING):
                session.statuses[topic] = status
                topic.notify(session, status)
