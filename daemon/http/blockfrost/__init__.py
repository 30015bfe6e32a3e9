"""The part of Blockfrost's HTTP API that concerns outputs, over our store, for existing clients of Blockfrost."""
