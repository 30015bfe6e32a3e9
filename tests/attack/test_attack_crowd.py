"""Promises hold under attack: crowds of clients."""

from attacking import attack

test_promises_hold_under_attack = attack("crowd")
