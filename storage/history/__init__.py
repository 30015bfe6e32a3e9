"""The tables of the chain: numbered outputs, blocks as immutable values, one bitmap, sorted runs as indexes."""
