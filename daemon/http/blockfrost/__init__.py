"""The part of Blockfrost's HTTP API that is about outputs, over our store: its clients run on it unchanged."""
