"""kill -9 at random moments: after a restart, everything acknowledged is present, and the store is valid."""

from __future__ import annotations

import time
from pathlib import Path
from random import Random

from bench.soak.scenario import Scenario, digest_of
from bench.soak.target import Answer, Broken, Link, Met, Target, any_kind
from handlers.events import Ack, Error, TxSubmitted

_BLOCKS = 70
_THOROUGH = 4  # one life in this many ends with a walk through the whole store


class Life:
    """One store and its feeder, which resumes after every kill."""

    def __init__(self, target: Target, random: Random, scenario: Scenario) -> None:
        self.target, self.random, self.scenario = target, random, scenario
        self.acknowledged = 0  # messages
        self.sent = 0
        self.submitted: list[int] = []  # accepted submissions that no block was sent for yet
        self.met = Met()

    def start(self) -> Link:
        """Start the daemon and find the place where to continue: nothing that was acknowledged may be missing."""
        self.target.start()
        link = self.target.link()
        tip = link.welcome().tip
        found = self.scenario.places(tip.hash if tip else None, self.acknowledged, self.sent)
        if not found:
            raise Broken(f"after {self.acknowledged} acknowledged of {self.sent} sent messages the tip is {tip}")
        self.acknowledged = self.sent = found[0]
        return link

    def check_submissions(self, link: Link) -> None:
        """Send accepted submissions again: the daemon has to have each of them already."""
        for n in self.submitted:
            answer = link.request(self.scenario.numbered(n))
            if not (isinstance(answer, Ack) and answer.status == "duplicate"):
                raise Broken(f"submission {n} was accepted before the kill and is now answered {answer}")
            self.met["submissions found again"] += 1

    def feed(self, link: Link, upto: int) -> None:
        """Send messages and wait for their answers."""
        self._send(link, upto)
        while self.acknowledged < self.sent:
            answer = link.receive()
            if answer is None:
                raise Broken(f"the connection ended: {self.target.log_end()}")
            self._received(answer)

    def feed_and_kill(self, link: Link) -> None:
        """Send a burst, kill the daemon in its middle, and read the answers that it still gave."""
        began = time.monotonic()
        self.feed(link, min(self.sent + 1, len(self.scenario)))
        took = time.monotonic() - began
        upto = min(self.sent + self.random.randint(0, 30), len(self.scenario))
        burst = upto - self.sent
        self._send(link, upto)
        time.sleep(self.random.uniform(0, took + 0.0004 * burst))
        self.target.kill()
        while (answer := link.receive()) is not None:
            self._received(answer)
        self.met["kills"] += 1
        self.met["kills with messages unanswered"] += self.acknowledged < self.sent

    def _send(self, link: Link, upto: int) -> None:
        link.send(*(self.scenario.numbered(n) for n in range(self.sent, upto)))
        if any(not isinstance(self.scenario.steps[n].message, TxSubmitted) for n in range(self.sent, upto)):
            self.submitted.clear()
        self.sent = upto

    def _received(self, answer: Answer) -> None:
        """Note one answer: they come in the order of the messages. A refused submission is an answer too."""
        message = self.scenario.steps[self.acknowledged].message
        refused = isinstance(answer, Error) and isinstance(message, TxSubmitted) and answer.seq == self.acknowledged
        if not refused and not (isinstance(answer, Ack) and answer.seq == self.acknowledged):
            raise Broken(f"message {self.acknowledged} was answered {answer}")
        if isinstance(answer, Ack) and isinstance(message, TxSubmitted) and self.sent == self.acknowledged + 1:
            self.submitted.append(self.acknowledged)
        self.acknowledged += 1


def round(folder: Path, seed: int) -> Met:
    """Feed one chain through as many kills as it takes; return what was met."""
    random = Random(seed)
    settings = any_kind(random)
    with Target(folder, settings) as target:
        life = Life(target, random, Scenario(seed, _BLOCKS, submissions="enabled = false" not in settings))
        number = 0
        while life.sent < len(life.scenario):
            number += 1
            if random.random() < 0.15:  # a kill in the middle of the start
                target.spawn()
                time.sleep(random.uniform(0, 0.6))
                target.kill()
                life.met["kills during the start"] += 1
                life.met["kills"] += 1
            with life.start() as link:
                life.check_submissions(link)
                life.feed_and_kill(link)
            if number % _THOROUGH == 0:
                _check(life)
        life.start().socket.close()
        with target.link() as link:
            life.feed(link, len(life.scenario))
        _check(life)
        target.stop()
    life.met["rounds of kills"] += 1
    return life.met


def _check(life: Life) -> None:
    """Walk the whole store, and compare the live set with the scenario's."""
    life.target.verify()
    digest = digest_of(life.target.live_set())
    if digest not in {life.scenario.digest(n) for n in range(life.acknowledged, life.sent + 1)}:
        raise Broken(f"the live set is that of no message from {life.acknowledged} to {life.sent}")
    life.met["walks after a kill"] += 1
