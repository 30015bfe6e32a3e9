"""Feeds: separate processes that convert blocks of a node, or of its files, to events on the daemon's socket."""
