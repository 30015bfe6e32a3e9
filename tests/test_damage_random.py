"""Whatever happens to the file of a stopped store, every command gives an answer: never a traceback, never a signal."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
from collections import Counter
from pathlib import Path
from typing import Any

import pytest
from daemons import PATIENCE_S, ROOT, environment, running, statuses
from random_damage import DAMAGES
from scenarios import at, back_to, block, chain, digest, output, tx

KINDS: dict[str, dict[str, Any]] = {
    "classic": {"utxo": {"rollback_window": 30}, "transactions": {"enabled": False}},
    "mmr": {"utxo": {"rollback_window": 30, "store": "mmr"}, "transactions": {"enabled": False}},
    "transactions": {"utxo": {"rollback_window": 30}, "transactions": {"batch_size": 4}},
}
COUNT = 56  # damaged stores of each kind
SEED = os.environ.get("UTXOD_TEST_SEED", "2026")
READING = {"status", "export", "query", "prune"}


@pytest.fixture(scope="module", params=KINDS)
def base(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return the folder of a sound store: blocks, a fork that was rolled back, pruned ones, pending transactions."""
    folder = tmp_path_factory.mktemp(request.param)
    blocks = chain(40, outputs=20)
    more = chain(3, blocks[-1], outputs=2)
    last = block(more[-1], tx("last", output("ann"), spends=[at(40, n) for n in range(5, 15)]))
    story = [*blocks, *chain(2, blocks[-1], branch="given up"), back_to(blocks[-1]), *more, last]
    with running(folder, **KINDS[request.param]) as daemon:
        with daemon.client("frames") as client:
            assert set(statuses(client.feed(story))) == {"applied", "rolled_back"}
            if request.param == "transactions":
                pending = [tx(f"p{n}", *(output("ann") for _ in range(n)), spends=[at(30, n)]) for n in range(1, 7)]
                submitted = [{"type": "TxSubmitted", "tx": each} for each in pending]
                assert set(statuses(client.feed(submitted))) == {"accepted"}
        assert daemon.term() == 0
        daemon.assert_sound()
    return folder


def damaged(base: Path, *commands: str, seed: str = SEED, count: int = COUNT) -> list[dict[str, Any]]:
    program = [
        sys.executable,
        str(Path(__file__).with_name("random_damage.py")),
        str(base),
        seed,
        str(count),
        *commands,
    ]
    paths = os.pathsep.join([str(ROOT), str(ROOT / "tests")])
    done = subprocess.run(
        program, capture_output=True, timeout=10 * PATIENCE_S, env=environment(PYTHONPATH=paths), check=False
    )
    assert (done.returncode, done.stderr) == (0, b""), done.stderr.decode()
    return [json.loads(line) for line in done.stdout.splitlines()]


def test_every_command_answers(base: Path) -> None:
    """`verify` finds whatever is changed in a row.

    An export is the set that was there, or fails.
    """
    address, txid = b"\x61" + digest("credential", "40/7", size=28), digest("tx", 40)
    reading = ["status", "export", f"query address {address.hex()}", f"query utxo {txid.hex()}#7", "prune status"]
    found, met = damaged(base, "verify", "run", "run", "prune now", "reindex", *reading), Counter[tuple[str, bool]]()
    for case in found:
        met[case["command"], case["code"] == 3] += 1
        assert "Traceback" not in case["said"], (SEED, case)
        allowed = {0, 1, 3} if case["command"] in READING else {0, 3}  # 1: an output, or a table, is not there
        assert case["code"] in allowed, (SEED, case)
        assert case["code"] in {0, 1} or re.search(r"Error: |process_failed", case["said"]), (SEED, case)
        if case["damage"] != "meta_bit":  # which may lose the last commit: what was before it is a sound store
            assert not case.get("changed"), (SEED, case)
            assert not case.get("another_set"), (SEED, case)
    for command in ("verify", "run"):
        assert met[command, False] and met[command, True], (SEED, met)
    assert len(met) > 8, (SEED, met)
    assert {case["damage"] for case in found} == {damage.__name__ for damage in DAMAGES}, SEED
