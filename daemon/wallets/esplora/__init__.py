"""Esplora's HTTP API, which block explorers and wallets use."""
