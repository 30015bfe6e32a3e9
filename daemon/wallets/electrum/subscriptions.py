"""The subscriptions of sessions, with the last status that was sent for each: a change is sent once.

A client may have very many subscriptions, so each takes little memory: a topic is one byte string, which all tables
share, and of a status, and of a script that an output belongs to, there is a number. These numbers are Python's hashes,
which no client can foresee. By chance two are equal in one of 2^60 cases: then a change is not reported, or a status is
computed without need.
"""

from __future__ import annotations

from collections.abc import Iterable
from functools import partial
from struct import Struct
from time import monotonic
from typing import TYPE_CHECKING, NamedTuple

import anyio

from daemon.wallets.electrum import jsonrpc
from daemon.wallets.electrum.multimap import Multimap
from daemon.wallets.errors import BAD_REQUEST, RpcFault
from daemon.wallets.later import Later, settled, then
from storage.errors import StoreError

if TYPE_CHECKING:
    from daemon.wallets.chain import ChainView
    from daemon.wallets.electrum.session import Session

Topic = bytes  # the SHA-256 of a script; or the id of a transaction, and the index of an output that may not exist yet
Sent = int | None  # the hash of a status, None for a script without a history and for an unknown output
_KEY = 32  # bytes of a script's topic
_INDEX = Struct(">I")
_BITS = (1 << 60) - 1  # a number of 60 bits takes 32 bytes
_ANSWERING = -1  # instead of the status of a topic while the answer to the subscription is being computed
_TURN_S = 0.005
_FORGOTTEN = 2_000  # subscriptions that are ended before others get a turn
_RESERVED, _FEW = 10, 1_000  # a tenth of the limit is for sessions that have only a few


def output_topic(txid: bytes, index: int) -> Topic:
    """Return the topic of an output."""
    return txid + _INDEX.pack(index)


def _output(topic: Topic) -> tuple[bytes, int]:
    return topic[:_KEY], _INDEX.unpack_from(topic, _KEY)[0]


def _number(name: bytes) -> int:
    return hash(name) & _BITS


class Status(NamedTuple):
    """A status as the client sees it, and what is kept of it."""

    shown: object
    sent: Sent


_NOTHING = Status(None, None)


class Subscriptions:
    """Topics with the sessions that subscribed to them."""

    def __init__(self, chain: ChainView, most: int, most_each: int) -> None:
        self._chain, self._most, self._most_each = chain, most, most_each
        self._sessions = Multimap[Topic, "Session"]()
        self._outputs = Multimap[int, Topic]()  # by the hash of the script, or of the transaction while it is unknown
        self._script_of: dict[Topic, int] = {}  # the hash, of outputs of known transactions
        self._computing: dict[Topic, list[int]] = {}  # how many sessions wait for its status, how often it has changed
        self._reporting = anyio.Lock()  # otherwise an older status could be sent after a newer one
        self.count = 0

    def _add(self, session: Session, topic: Topic) -> None:
        if topic in session.statuses:
            return
        own = len(session.statuses)
        if own >= self._most_each:
            raise RpcFault(BAD_REQUEST, f"this session already has {self._most_each} subscriptions, the limit")
        if self.count >= self._most:
            raise RpcFault(BAD_REQUEST, f"the server already has {self._most} subscriptions, the limit")
        if own >= _FEW and self.count >= self._most - self._most // _RESERVED:
            what = f"the server already has {self.count} subscriptions"
            raise RpcFault(BAD_REQUEST, f"{what}: only sessions with fewer than {_FEW} may add more")
        session.statuses[topic] = _ANSWERING
        self._sessions.add(topic, session)
        self.count += 1

    def _list(self, topic: Topic) -> None:
        """List an output under its script, which is affected when the output is created or spent."""
        txid, index = _output(topic)
        script = self._chain.script_of(txid, index)
        self._unlist(topic)
        if script is not None:
            self._script_of[topic] = _number(script)
        self._outputs.add(_number(script or txid), topic)

    def _unlist(self, topic: Topic) -> None:
        number = self._script_of.pop(topic, None)
        self._outputs.discard(_number(topic[:_KEY]) if number is None else number, topic)

    def remove(self, session: Session, topic: Topic) -> bool:
        """End a subscription; return whether there was one."""
        if topic not in session.statuses:
            return False
        del session.statuses[topic]
        self._end(session, topic)
        return True

    def _end(self, session: Session, topic: Topic) -> None:
        self.count -= 1
        self._sessions.discard(topic, session)
        if len(topic) > _KEY and topic not in self._sessions:
            self._unlist(topic)

    async def forget(self, session: Session) -> None:
        """End all subscriptions of a session, in turns."""
        while session.statuses:
            for _ in range(min(_FORGOTTEN, len(session.statuses))):
                topic, _ = session.statuses.popitem()
                self._end(session, topic)
            await anyio.lowlevel.checkpoint()
        session.statuses = {}  # an empty dictionary is as large as it ever was

    # --- statuses -------------------------------------------------------------------------------------------------

    def subscribe(self, session: Session, topic: Topic) -> object | Later[object]:
        """Subscribe a session to a topic, and return its status, which counts as sent.

        Raises:
            RpcFault: there are too many subscriptions, or the status cannot be computed.
        """
        before = session.statuses.get(topic, _ANSWERING)
        self._add(session, topic)
        try:
            if len(topic) > _KEY:
                self._list(topic)
            found = self._status(topic)
        except Exception:
            self._restore(session, topic, before)
            raise
        if isinstance(found, partial):
            session.statuses[topic] = _ANSWERING
            return partial(self._subscribe_later, session, topic, before)
        session.statuses[topic] = found.sent
        return found.shown

    def _restore(self, session: Session, topic: Topic, before: Sent) -> None:
        """End a subscription whose answer failed; one that existed before continues."""
        if before == _ANSWERING:
            self.remove(session, topic)
        elif topic in session.statuses:
            session.statuses[topic] = before

    async def _subscribe_later(self, session: Session, topic: Topic, before: Sent) -> object:
        """Compute a status that takes several turns.

        If it changes meanwhile, it is computed again: otherwise the change would be reported before the answer, and the
        client would keep the older of the two.
        """
        computing = self._computing.setdefault(topic, [0, 0])
        computing[0] += 1
        try:
            while True:
                before = computing[1]
                found = await settled(self._status(topic))
                if topic not in session.statuses or computing[1] == before:
                    break
        except Exception:
            self._restore(session, topic, before)
            raise
        finally:
            computing[0] -= 1
            if not computing[0]:
                del self._computing[topic]
        if topic in session.statuses:
            session.statuses[topic] = found.sent
        return found.shown

    def _status(self, topic: Topic) -> Status | Later[Status]:
        if len(topic) == _KEY:
            return then(self._chain.status(topic), _status_of_script)
        status = self._chain.outpoint_status(*_output(topic))
        return Status(status, _number(jsonrpc.encode(status)) if status else None)

    def of_scripts(self, keys: Iterable[bytes]) -> set[Session]:
        """Return the sessions that subscribed to one of some scripts."""
        return {session for key in keys for session in self._sessions.get(key)}

    # --- reports --------------------------------------------------------------------------------------------------

    async def report(self, touched: Iterable[bytes] | None) -> None:
        """Send each session the new statuses of what it subscribed to.

        `touched` are the keys of the scripts that a change affects, and the transactions that came or went; None means
        all of them.

        Raises:
            RpcFault, StoreError: a status could not be computed; the others are reported nevertheless.
        """
        failure: Exception | None = None
        wanted = self._touched(touched)
        for topic in self._computing.keys() & wanted:
            self._computing[topic][1] += 1
        async with self._reporting:
            while wanted:
                try:
                    waiting = self._report_some(wanted)
                    if waiting is not None:
                        topic, found = waiting
                        self._send(topic, await found())
                except (RpcFault, StoreError) as error:
                    failure = error
                await anyio.lowlevel.checkpoint()
        if failure is not None:
            raise failure

    def _touched(self, touched: Iterable[bytes] | None) -> list[Topic]:
        if touched is None:
            return list(self._sessions)
        keys = list(touched)
        found = [key for key in keys if key in self._sessions]
        return found + [topic for key in keys for topic in self._outputs.get(_number(key))]

    def _report_some(self, wanted: list[Topic]) -> tuple[Topic, Later[Status]] | None:
        """Take topics and report their statuses for one turn; return the status that takes longer."""
        end = monotonic() + _TURN_S
        with self._chain.turn():
            while wanted and monotonic() < end:
                topic = wanted.pop()
                if topic not in self._sessions:  # its last session has left meanwhile
                    continue
                if len(topic) > _KEY and topic not in self._script_of:  # it may be known now
                    self._list(topic)
                found = self._status(topic)
                if isinstance(found, partial):
                    return topic, found
                self._send(topic, found)
        return None

    def _send(self, topic: Topic, status: Status) -> None:
        message = b""
        for session in self._sessions.get(topic):
            if session.statuses[topic] not in (status.sent, _ANSWERING):
                session.statuses[topic] = status.sent
                message = message or _notification(topic, status.shown)
                session.notify(message)


def _status_of_script(digest: bytes) -> Status:
    return Status(digest.hex(), _number(digest)) if digest else _NOTHING


def _notification(topic: Topic, status: object) -> bytes:
    if len(topic) == _KEY:
        return jsonrpc.notification("blockchain.scripthash.subscribe", [topic[::-1].hex(), status]) + b"\n"
    txid, index = _output(topic)
    return jsonrpc.notification("blockchain.outpoint.subscribe", [txid.hex(), index, status]) + b"\n"
