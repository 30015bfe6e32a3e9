"""Promises hold under attack: fuzzed requests."""

from attacking import attack

test_promises_hold_under_attack = attack("requests")
