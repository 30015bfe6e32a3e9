"""`python -m bench.soak KIND FOLDER SEED`: one round in a separate process; prints JSON, exits with 1 on a failure."""

from __future__ import annotations

import sys
from pathlib import Path

import msgspec

from bench.soak import LONGER, one_round
from bench.soak.target import Broken

kind, folder, seed = sys.argv[1:]
try:
    longer = {"times": LONGER[kind]} if kind in LONGER else {}
    met = one_round(kind, Path(folder), int(seed), **longer)
except Broken as broken:
    sys.exit(str(broken))
sys.stdout.buffer.write(msgspec.json.encode([dict(met), met.peaks]))
