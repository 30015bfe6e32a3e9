"""Systems that are measured in turns, so that other load affects all of them equally; medians and ratios."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator, Mapping
from statistics import median
from typing import Any

import click
import msgspec

from bench.peers import NotMeasured

Figures = dict[str, Any]
Results = dict[str, list[Figures]]


class Ratio(msgspec.Struct, frozen=True):
    """What is divided by what: a figure of one system by that of another, round by round."""

    name: str
    above: str
    below: str
    figure: str

    def of(self, results: Results) -> list[float]:
        """Return the ratio of each round; nothing where one of the two has no such figure."""
        turns = zip(results.get(self.above, []), results.get(self.below, []), strict=False)
        return [above[self.figure] / below[self.figure] for above, below in turns if self._has(above, below)]

    def _has(self, above: Figures, below: Figures) -> bool:
        return bool(above.get(self.figure)) and bool(below.get(self.figure))


def in_turns(systems: Mapping[str, Callable[[], Figures]], rounds: int) -> tuple[Results, dict[str, str]]:
    """Run every system once in each round; return its figures, and why those that cannot run here have none."""
    results, missing = Results(), dict[str, str]()
    for turn in range(1, rounds + 1):
        for name in [name for name in systems if name not in missing]:
            click.echo(f"round {turn} of {rounds}: {name} …", err=True)
            os.sync()  # what the system before has left to write would make this one wait
            try:
                results.setdefault(name, []).append(systems[name]())
            except NotMeasured as error:
                del results[name]
                missing[name] = str(error)
    return results, missing


def show(title: str, results: Results, missing: dict[str, str], ratios: list[Ratio]) -> None:
    """Print every system's figures and the ratios: the median, and with several rounds the least and the most."""
    click.echo(title)
    for name, turns in results.items():
        click.echo(f"\n{name}")
        for figure in turns[0]:
            click.echo(f"  {figure:28} {spread([turn[figure] for turn in turns])}")
    for name, why in missing.items():
        click.echo(f"\n{name} is not measured: {why}")
    click.echo("")
    for ratio in ratios:
        if found := ratio.of(results):
            click.echo(f"{ratio.name}: {spread([round(each, 2) for each in found])} times")


def lines(title: str, results: Results, missing: dict[str, str], ratios: list[Ratio]) -> Iterator[str]:
    """Yield the same as JSON, an object for each system and round, and one for each ratio."""
    for name, turns in results.items():
        for turn, figures in enumerate(turns, start=1):
            yield _json({"system": name, "round": turn, "workload": title, **figures})
    for name, why in missing.items():
        yield _json({"system": name, "not_measured": why})
    for ratio in ratios:
        if found := ratio.of(results):
            cut = {"median": median(found), "least": min(found), "most": max(found)}
            yield _json({"ratio": ratio.name, **{name: round(value, 3) for name, value in cut.items()}})


def spread(values: list[float]) -> str:
    """Return the median of some figures, and the least and the most when there are several."""
    middle = median(values)
    text = f"{middle:,.0f}" if abs(middle) >= 1000 else f"{middle:.4g}"
    return f"{text} ({min(values):g} to {max(values):g})" if len(values) > 1 else text


def _json(value: dict[str, Any]) -> str:
    return msgspec.json.encode(value).decode()
