"""An estimate of the duration of a commit, from the waiting messages and the duration of the last commits."""

from __future__ import annotations

from handlers.events import BlockApplied, TxMessage, TxSubmitted

_BYTE_S = 50e-9  # of a block
_STEP_S = 50e-6  # of a message about transactions, and of each input or output in it
_NAME_BYTES = 32  # of each transaction or output that a message names
_COMMIT_S = 0.005  # of the smallest commit
_LEAST, _MOST = 0.1, 100.0  # times what is guessed


class Pace:
    """Watches what waits for the next commit.

    A commit that takes longer than guessed counts at once, a faster one half: to expect too much costs little.
    """

    def __init__(self) -> None:
        self.expected_s = 0.0  # how long the commit of what waits will take
        self._times = 2.0

    def add(self, event: BlockApplied | TxMessage, size: int) -> None:
        """Count a message of `size` bytes that waits from now on."""
        if isinstance(event, TxSubmitted):
            guess_s = (1 + len(event.tx.inputs) + len(event.tx.outputs)) * _STEP_S
        elif isinstance(event, BlockApplied):
            guess_s = size * _BYTE_S
        else:
            guess_s = size / _NAME_BYTES * _STEP_S
        self.expected_s += guess_s * self._times

    def learn(self, took_s: float) -> None:
        """Compare with what a commit took."""
        ratio = took_s / (self.expected_s / self._times + _COMMIT_S)
        self._times = min(max(ratio, (ratio + self._times) / 2, _LEAST), _MOST)

    def begin(self) -> None:
        """Note that nothing waits any more."""
        self.expected_s = 0.0
