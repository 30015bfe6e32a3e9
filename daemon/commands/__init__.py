"""Commands that query and print; `daemon.cli` has the whole list."""
