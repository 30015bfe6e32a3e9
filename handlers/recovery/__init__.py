"""Bringing pending transactions to finality when their notification was lost."""
