"""Promises hold under attack: kills."""

from attacking import attack

test_promises_hold_under_attack = attack("kills")
