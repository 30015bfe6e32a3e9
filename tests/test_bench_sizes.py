"""`utxod bench sizes`: the sizes of a store add up, and what is no store is refused."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

from daemons import environment, running, statuses
from scenarios import chain

BLOCKS = 30


def sizes(*words: str | Path) -> subprocess.CompletedProcess[bytes]:
    command = [sys.executable, "-m", "daemon.cli", "bench", "sizes", *map(str, words)]
    return subprocess.run(command, capture_output=True, timeout=180, env=environment(), check=False)


def test_sizes_of_tables_and_indexes_are_those_of_the_store(tmp_path: Path) -> None:
    with running(tmp_path) as daemon, daemon.client() as client:
        assert set(statuses(client.feed(chain(BLOCKS)))) == {"applied"}
        lines = len(daemon.export())
        store = tmp_path / "data" / "lmdb"
        done = sizes(store, "--json")  # the daemon runs
    found = json.loads(done.stdout)
    tables = {table["name"]: table for table in found["tables"]}
    assert tables["history_block"]["entries"] == BLOCKS
    assert found["unspent"] == lines <= found["outputs"]
    assert sum(table["bytes"] for table in found["tables"]) <= found["file_bytes"]
    indexes = {index["name"]: index for index in found["indexes"]}
    assert found["transactions"] == indexes["index txid"]["entries"] > 0
    assert indexes["index txid"]["bytes"] >= 24 * indexes["index txid"]["entries"]
    shown = sizes(store).stdout.decode()
    assert "index txid" in shown and f"{found['outputs']:,} outputs" in shown


def test_a_folder_without_a_store_is_refused(tmp_path: Path) -> None:
    done = sizes(tmp_path)
    assert done.returncode == 1 and done.stderr.startswith(b"Error: ") and b"Traceback" not in done.stderr
