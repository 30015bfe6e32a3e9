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
        self._guess_s = 0.0
        self._times = 2.0

    @property
    def expected_s(self) -> float:
        """Return how long the commit of what waits will take."""
        return self._guess_s * self._times

    def add(self, event: BlockApplied | TxMessage, size: int) -> None:
        """Count a message of `size` bytes that waits from now on."""
        match event:
            case TxSubmitted(tx=tx):
                self._guess_s += (1 + len(tx.inputs) + len(tx.outputs)) * _STEP_S
            case BlockApplied():
                self._guess_s += size * _BYTE_S
            case _:
                self._guess_s += size / _NAME_BYTES * _STEP_S

    def learn(self, took_s: float) -> None:
        """Compare with what a commit took."""
        ratio = took_s / (self._guess_s + _COMMIT_S)
        self._times = min(max(ratio, (ratio + self._times) / 2, _LEAST), _MOST)

    def begin(self) -> None:
        """Note that nothing waits any more."""
        self._guess_s = 0.0
