"""Promises hold under attack: paused readers."""

from attacking import attack

test_promises_hold_under_attack = attack("readers")
