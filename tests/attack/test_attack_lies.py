"""Promises hold under attack: lies."""

from __future__ import annotations

from pathlib import Path

from attacking import promises_hold


def test_promises_hold_under_attack(folder: Path) -> None:
    promises_hold("lies", folder)
