"""Promises hold under attack: power cuts."""

from attacking import attack

test_promises_hold_under_attack = attack("power")
