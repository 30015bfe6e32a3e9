"""Kupo's HTTP API over our store, for existing clients of Kupo."""
