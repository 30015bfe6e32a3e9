"""The progress of a long command: a line that is redrawn on a terminal, otherwise a plain line at intervals."""

from __future__ import annotations

import sys
from collections.abc import Callable
from time import monotonic
from types import TracebackType

_REDRAW_S = 0.2
_LINE_EVERY_S = 10.0
_UNITS = ("B", "KiB", "MiB", "GiB", "TiB")


def in_bytes(count: float) -> str:
    """Return a number of bytes for a person."""
    power = 0
    while count >= 1024 and power < len(_UNITS) - 1:
        count, power = count / 1024, power + 1
    return f"{count:.{min(power, 1)}f} {_UNITS[power]}"


def in_numbers(count: float) -> str:
    """Return a plain number for a person."""
    return f"{count:,.0f}"


class Progress:
    """Reports on standard error how much of a total is done, if it is known; `shown` formats a number of `unit`."""

    def __init__(
        self, what: str, total: float | None, shown: Callable[[float], str] = in_bytes, unit: str = ""
    ) -> None:
        self._what, self._total, self._unit = what, total, unit
        self._shown, self._done, self._at = shown, 0.0, ""
        self._terminal = sys.stderr is not None and sys.stderr.isatty()
        self._began = self._shown_at = monotonic()
        self._drawn = False

    def __enter__(self) -> Progress:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self._drawn:
            sys.stderr.write("\r\x1b[K")
            sys.stderr.flush()

    def expect(self, total: float) -> None:
        """Set how much there is to do."""
        self._total = total

    def advance(self, more: float, at: str = "") -> None:
        """Add to what is done; `at` names the place."""
        self.reach(self._done + more, at)

    def reach(self, done: float, at: str = "") -> None:
        """Set what is done."""
        self._done, self._at = done, at
        now = monotonic()
        if now - self._shown_at < (_REDRAW_S if self._terminal else _LINE_EVERY_S):
            return
        self._shown_at = now
        if self._terminal:
            sys.stderr.write(f"\r{self.line(now)}\x1b[K")
            self._drawn = True
        else:
            sys.stderr.write(f"{self.line(now)}\n")
        sys.stderr.flush()

    def line(self, now: float) -> str:
        """Return where we are: share, amount, rate and time left, as far as they are known."""
        elapsed, unit = max(now - self._began, 1e-3), f" {self._unit}" if self._unit else ""
        rate = self._done / elapsed
        parts = [f"{self._shown(self._done)}{unit}", f"{self._shown(rate)}/s"]
        if self._total:
            share = min(self._done / self._total, 1.0)
            parts[0] = f"{share:.0%}, {self._shown(self._done)} of {self._shown(self._total)}{unit}"
            if rate:
                left = round(max(self._total - self._done, 0) / rate)
                parts.append(f"{left // 3600}:{left // 60 % 60:02}:{left % 60:02} left")
        return f"{self._what}: {', '.join(parts)}{f' ({self._at})' if self._at else ''}"
