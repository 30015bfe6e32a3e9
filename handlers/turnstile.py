"""Answers in the order of the messages, though a large transaction among them takes commits of its own."""

from __future__ import annotations

from collections import deque

from handlers.delivery import Answer, Sender


class Turnstile:
    """Lets answers out in order: those behind an unanswered message of the same sender wait."""

    def __init__(self) -> None:
        self._queues: dict[Sender, deque[Answer | Gap]] = {}

    def say(self, answer: Answer) -> None:
        """Send an answer, now or behind what is not answered yet."""
        queue = self._queues.get(answer.sender)
        if queue is None:
            answer.send()
        else:
            queue.append(answer)

    def hold(self, sender: Sender) -> Gap:
        """Keep a place for an answer that will come later."""
        gap = Gap(sender)
        self._queues.setdefault(sender, deque()).append(gap)
        return gap

    def fill(self, gap: Gap, answers: list[Answer]) -> None:
        """Give the answers for a place that was kept, and let out what waited for it."""
        gap.answers = answers
        queue = self._queues[gap.sender]
        while queue:
            first = queue[0]
            if isinstance(first, Gap) and first.answers is None:
                return
            queue.popleft()
            for answer in [first] if isinstance(first, Answer) else first.answers or ():
                answer.send()
        del self._queues[gap.sender]


class Gap:
    """A place in a sender's answers."""

    def __init__(self, sender: Sender) -> None:
        self.sender = sender
        self.answers: list[Answer] | None = None
