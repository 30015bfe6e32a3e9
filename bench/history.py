"""`python -m bench.history run --config FILE`: the daemon with a history as its store, to be measured beside others."""

from __future__ import annotations

import os

from daemon.cli import entry

os.environ["UTXOD_UTXO__STORE"] = "history"
entry()
