"""`python -m daemon` runs `utxod`."""

from daemon.cli import entry

if __name__ == "__main__":
    entry()
