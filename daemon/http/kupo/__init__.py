"""Kupo's HTTP API over our store: its clients run on it unchanged."""
