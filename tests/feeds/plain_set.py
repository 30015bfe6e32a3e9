"""The unspent outputs of a chain as a dict, with the sums and digests that expected figures are made of."""

from __future__ import annotations

import hashlib
from collections.abc import Iterable

from handlers.events import GenesisOutput, OutPoint, Output, Tx


def name(point: OutPoint) -> str:
    return f"{point[0].hex()}:{point[1]}"


def number(text: str) -> int:
    return int.from_bytes(hashlib.sha256(text.encode()).digest(), "big")


def digest(lines: Iterable[str]) -> str:
    return hashlib.sha256("".join(sorted(lines)).encode()).hexdigest()


class PlainSet:
    def __init__(self, genesis: Iterable[GenesisOutput] = ()) -> None:
        self.coins = {(each.txid, each.index): each.output for each in genesis}

    @property
    def value(self) -> int:
        return sum(output.value for output in self.coins.values())

    def apply(self, tx: Tx) -> list[OutPoint]:
        """Spend, then create; return the inputs that are unknown."""
        spent = tx.inputs if tx.valid else tx.collateral
        unknown = [point for point in spent if self.coins.pop(point, None) is None]
        created: list[tuple[int, Output | None]] = list(enumerate(tx.outputs))
        for index, output in created if tx.valid else [(len(tx.outputs), tx.collateral_return)]:
            if output is not None:
                self.coins[tx.txid, index] = output
        return unknown

    def digests(self) -> tuple[str, str]:
        lines = {f"{name(point)}:{output.value}": output.address.hex() for point, output in self.coins.items()}
        return digest(f"{line}\n" for line in lines), digest(f"{line}:{address}\n" for line, address in lines.items())
