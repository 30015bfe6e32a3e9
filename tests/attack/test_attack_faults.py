"""Promises hold under attack: failing disks."""

from attacking import attack

test_promises_hold_under_attack = attack("faults")
