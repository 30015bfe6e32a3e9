"""The gateway: the HTTP API over all shards of a chain."""
