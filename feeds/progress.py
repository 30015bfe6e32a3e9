"""The progress of a feed: a bar with rate, height and remaining time on a terminal, otherwise lines at intervals."""

from __future__ import annotations

import sys
from collections.abc import Callable
from datetime import timedelta
from time import monotonic
from types import TracebackType

from rich.console import Console
from rich.progress import BarColumn, Progress, ProgressColumn, Task, TextColumn, TimeRemainingColumn
from rich.text import Text

_LINE_EVERY_S = 10.0


class _Rate(ProgressColumn):
    def render(self, task: Task) -> Text:
        """Return messages a second."""
        rate = task.fields["messages"] / max(task.elapsed or 0.0, 0.001)
        return Text(f"{rate:,.0f}/s")


class FeedProgress:
    """Counts acknowledged messages; `place` is how far the source is, of `total`, which may change."""

    def __init__(self, name: str, place: Callable[[], float], total: float | Callable[[], float | None] | None) -> None:
        self._place = place
        self._total = total if callable(total) else lambda: total
        self._console = Console(file=sys.stderr)
        self._began = self._shown_at = monotonic()
        self.counts: dict[str, int] = {}
        self.transactions = 0  # where they are counted
        self.height: int | None = None
        self._start: tuple[float, float] | None = None  # when and where the first message was acknowledged
        self._bar: Progress | None = None
        if self._console.is_terminal:
            self._bar = Progress(
                TextColumn("{task.description}"),
                BarColumn(),
                TextColumn("height {task.fields[height]}"),
                _Rate(),
                TimeRemainingColumn(),
                console=self._console,
            )
            self._task = self._bar.add_task(name, total=self._total(), height="–", messages=0)

    def __enter__(self) -> FeedProgress:
        if self._bar is not None:
            self._bar.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self._bar is not None:
            self._bar.stop()
        if error is None or self.counts:
            self._print(self.summary())

    def show(self, line: str) -> None:
        """Print one line for the operator."""
        self._print(line)

    def count(self, status: str, height: int | None) -> None:
        """Count an acknowledged message."""
        self.counts[status] = self.counts.get(status, 0) + 1
        self.height = height if height is not None else self.height
        if self._start is None:
            self._start = monotonic(), self._place()
        if self._bar is not None:
            done = sum(self.counts.values())
            self._bar.update(
                self._task, completed=self._place(), total=self._total(), height=self.height, messages=done
            )
        elif monotonic() - self._shown_at > _LINE_EVERY_S:
            self._shown_at = monotonic()
            self._print(self.summary() + self._left())

    def _left(self) -> str:
        """Return how long the rest will take at the rate so far, where an end is known."""
        total, place = self._total(), self._place()
        if total is None or self._start is None or place <= self._start[1]:
            return ""
        began, at = self._start
        seconds = max(total - place, 0) * (monotonic() - began) / (place - at)
        return f", {timedelta(seconds=round(seconds))} left"

    def _print(self, line: str) -> None:
        self._console.print(line, highlight=False, markup=False, soft_wrap=True)

    def summary(self) -> str:
        """Return one line: what was acknowledged, and how fast."""
        elapsed = max(monotonic() - self._began, 0.001)
        done = sum(self.counts.values())
        if not done:
            return "nothing to send: the daemon has all blocks"
        counts = ", ".join(f"{count} {status}" for status, count in sorted(self.counts.items()))
        at = "" if self.height is None else f", height {self.height}"
        txs = f", {self.transactions} transactions ({self.transactions / elapsed:,.0f}/s)" if self.transactions else ""
        return f"{done} messages in {elapsed:.1f} s ({done / elapsed:,.0f}/s): {counts}{txs}{at}"
