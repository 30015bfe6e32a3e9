"""Transactions that wait for finality: one row each, claimed by one owner at a time, in SQLite or PostgreSQL."""
