"""A prototype of the history as values: numbered outputs, one bitmap, sorted runs as indexes, undo as lists of numbers.

It keeps the set behind the real socket, so that `utxod bench gate` can compare it with the store of this version. It
has what decides the cost: commits with fsync, the window with its undo log, the lookup of spenders, merges that can be
resumed, and garbage collection. It has no transaction store, HTTP or verify.
"""
