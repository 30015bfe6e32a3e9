"""Fuzzed messages on the socket: each is answered or ends its connection, and other clients are not affected.

In a round either an honest feeder works next to the fuzz, and its answers may not wait; or the fuzz feeds the chain.
"""

from __future__ import annotations

import select
import socket
import threading
import time
from pathlib import Path
from random import Random

import msgspec

from bench.soak.mutation import Mutator, corpus
from bench.soak.scenario import Scenario, digest_of
from bench.soak.target import Broken, Met, Target, any_kind
from handlers.events import Ack, Error, TxSubmitted

MESSAGES = 40_000  # in a round
_AT_ONCE = 200
_LONGEST_WAIT_S = 5.0  # of an honest client, on a machine that is busy with other work; the soak reports the peak
_MOST_MEMORY = 256 << 20
_QUIET_S, _STALLED_S = 0.02, 0.5
_VARIETY = 3000  # different messages in a round: the daemon is tried, not the generator


class Honest:
    """A feeder next to an attack: it feeds a scenario, one message at a time, and notes the longest wait."""

    def __init__(self, target: Target, scenario: Scenario) -> None:
        self._target, self._scenario = target, scenario
        self._ending, self._feeding = threading.Event(), threading.Event()
        self._thread = threading.Thread(target=self._feed)
        self.done, self.longest_s, self.failure = 0, 0.0, None if scenario else ""

    def __enter__(self) -> Honest:
        """Begin to feed; from now on no one else can."""
        self._thread.start()
        self._feeding.wait()
        return self

    def __exit__(self, *_: object) -> None:
        """Feed the rest."""
        self._ending.set()
        self._thread.join()

    def check(self) -> None:
        """Fail where a message was refused, or had to wait too long."""
        if self.failure:
            raise Broken(self.failure)
        if self.longest_s > _LONGEST_WAIT_S:
            raise Broken(f"an honest feeder waited {self.longest_s:.2f} s for an answer")

    def _feed(self) -> None:
        try:
            with self._target.link() as link:
                while self.done < len(self._scenario):
                    began = time.monotonic()
                    answer = link.request(self._scenario.numbered(self.done))
                    self.longest_s = max(self.longest_s, time.monotonic() - began)
                    submitted = isinstance(self._scenario.steps[self.done].message, TxSubmitted)
                    if not isinstance(answer, Ack) and not (submitted and isinstance(answer, Error)):
                        self.failure = f"an honest message was answered {answer}"
                        return
                    self.done += 1
                    self._feeding.set()
                    self._ending.wait(0.01)
                self._ending.wait()
        except Broken as error:
            self.failure = f"an honest feeder failed: {error}"
        finally:
            self._feeding.set()


def round(folder: Path, seed: int, *, times: int = 1) -> Met:
    """Send fuzzed messages to one daemon; return what was met."""
    random, met = Random(seed), Met()
    with_feeder = bool(random.randrange(2))
    scenario = Scenario(seed, 60)
    with Target(folder, any_kind(random)) as target:
        target.start()
        if with_feeder:
            with Honest(target, scenario) as honest:
                _attack(target, random, scenario, MESSAGES * times, met)
            honest.check()
            met["honest messages"] += honest.done
            met.highest("fuzz: longest wait of a feeder, ms", honest.longest_s * 1000)
        else:
            _attack(target, random, scenario, MESSAGES * times, met)
        target.check_alive()
        met.highest("fuzz: memory, MiB", target.memory() / (1 << 20))
        if target.memory() > _MOST_MEMORY:
            raise Broken(f"the daemon took {target.memory() >> 20} MiB")
        target.kill()
        target.start()  # what was written under attack can be opened again
        target.stop()
        target.verify(records_may_differ=True)
        if with_feeder and digest_of(target.live_set()) != scenario.digest(len(scenario)):
            raise Broken("the live set is another than that of the honest feeder")
    met["fuzz rounds next to an honest feeder" if with_feeder else "fuzz rounds that feed"] += 1
    return met


def _attack(target: Target, random: Random, scenario: Scenario, messages: int, met: Met) -> None:
    """Send messages in both encodings, over as many connections as it takes."""
    mutator = Mutator(random, corpus(scenario))
    lines = [mutator.line() for _ in range(_VARIETY)]
    frames = [mutator.frame() for _ in range(_VARIETY)]
    sent = 0
    while sent < messages:
        variety, json = random.choice(((lines, True), (frames, False)))
        received = bytearray()  # of an incomplete answer
        with target.link() as link:
            for n in range(random.randint(1, 20)):
                burst = random.choices(variety, k=_AT_ONCE)
                json = burst[0][:1] == b"{" if n == 0 else json  # the first byte chooses the encoding of the answers
                sent += len(burst)
                if not _exchange(link.socket, b"".join(burst), received, json=json, met=met):
                    met["connections ended by the daemon"] += 1
                    break
        met["fuzzed connections"] += 1
    met["fuzzed messages"] += sent


def _exchange(link: socket.socket, out: bytes, received: bytearray, *, json: bool, met: Met) -> bool:
    """Send while reading the answers; return whether the connection is still open.

    A daemon that waits for the rest of a frame whose length was changed is left alone: the client disconnects.
    """
    view, moved_at = memoryview(out), time.monotonic()
    link.setblocking(False)
    while view or time.monotonic() - moved_at < _QUIET_S:
        readable, writable, _ = select.select([link], [link] if view else [], [], _QUIET_S)
        if readable or writable:
            moved_at = time.monotonic()
        elif view and time.monotonic() - moved_at > _STALLED_S:
            met["fuzzed connections given up"] += 1
            return False
        try:
            if writable:
                view = view[link.send(view[: 1 << 16]) :]
            if readable:
                more = link.recv(1 << 18)
                if not more:
                    return False
                received += more
        except BlockingIOError:
            continue
        except ConnectionError:
            return False
    if json:  # frames are cut by the client that reads them; lines can be checked as they come
        whole = received[: received.rfind(b"\n") + 1]
        del received[: len(whole)]
        for line in whole.splitlines():
            met[f"answered {msgspec.json.decode(line).get('code', 'otherwise')}"] += 1
    return True
