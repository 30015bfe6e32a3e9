"""Commands that ask and show; `daemon.cli` has the whole list."""
