"""The bytes on disk: the LMDB environment, its tables, and the stores built on them."""
