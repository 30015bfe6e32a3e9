"""The protocols of Bitcoin wallets, Electrum and Esplora: one process, which reads the store and queries a node."""
