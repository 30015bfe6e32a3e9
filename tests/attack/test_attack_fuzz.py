"""Promises hold under attack: fuzzed messages."""

from attacking import attack

test_promises_hold_under_attack = attack("fuzz")
