"""Commands that query and print; `daemon.cli` lists all commands."""
