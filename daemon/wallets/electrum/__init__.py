"""The Electrum protocol: JSON-RPC lines over TCP and TLS."""
