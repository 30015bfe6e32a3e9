"""Promises hold under attack: lies."""

from attacking import attack

test_promises_hold_under_attack = attack("lies")
