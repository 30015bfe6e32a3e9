"""Ogmios' API: queries of outputs are answered from our store, all others by an Ogmios server."""
