"""Ogmios' API: questions about outputs are answered from our store, everything else by an Ogmios server."""
