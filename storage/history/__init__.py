"""The UTXO set as a history: numbered outputs, blocks as immutable values, one bitmap, sorted runs as indexes."""
