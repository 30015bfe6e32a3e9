"""Processes of their own that turn a real node, or its files, into events on the daemon's socket."""
