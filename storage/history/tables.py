"""The names of a history's tables, for who opens them without knowing more: the rest of this package takes numpy."""

from __future__ import annotations

BLOCK, TX, OUTPUT, LIVE = "history_block", "history_tx", "history_output", "history_live"
UNDO, RUN, FILTER = "history_undo", "history_run", "history_filter"
TABLES = (BLOCK, TX, OUTPUT, LIVE, UNDO, RUN, FILTER)
FORMAT = 2
INDEXES = ("asset", "datum", "script")  # beside those of a classic store; their rules are in `output_keys`
