"""What `./run` feeds is a real chain, and every command that it tells a newcomer to paste says something about it."""

from __future__ import annotations

import os
import re
import signal
import subprocess
import sys
import tomllib
from collections.abc import Iterator
from pathlib import Path
from threading import Timer

import pytest
from daemons import PATIENCE_S, ROOT, Daemon, environment, running

SCRIPT = (ROOT / "run").read_text()
HINTS = re.findall(r"^  (utxod .+?)(?: +# .*)?$", SCRIPT, re.MULTILINE)
SAYS = {  # a part of what each command prints
    "query address": "130,065,200,000 satoshi",
    "query transactions": "725670808d3e3939e3a5734f86599d844b5bcb530091286092a25ca9d1cf86ec",
    "query tx": "687ad8acb253a26b56cfe74840c06d2a1d06fb78667e2f5c47262ae4b7c7220a input 0",
    "query utxo": "spent",
    "query block": "00000000e080223655db52d2c35a37f6aa17a3f2efefa6794fd9831374cff09f",
    "tail --from": "height=546",
    "export |": ",0,5000000000,",
    "verify": "sound",
}


def part_of_script(name: str) -> str:
    """Return what the script writes between two marks."""
    found = re.search(rf"<<{name}\n(.*?)\n{name}$", SCRIPT, re.DOTALL | re.MULTILINE)
    assert found
    return found[1]


def shell(daemon: Daemon, line: str) -> subprocess.Popen[str]:
    """Run a line as it is pasted into a shell."""
    script = f'utxod() {{ "{sys.executable}" -m daemon.cli "$@"; }}\n{line}'
    environ = environment(UTXOD_CONFIG=str(daemon.config))
    pipe = subprocess.PIPE
    return subprocess.Popen(["bash", "-c", script], stdout=pipe, stderr=pipe, text=True, env=environ, process_group=0)


@pytest.fixture(scope="module")
def daemon(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Daemon]:
    """Yield a daemon with the script's configuration that was fed by the script's command."""
    tables = tomllib.loads(part_of_script("TOML"))
    with running(tmp_path_factory.mktemp("run"), chain=tables["chain"], utxo=tables["utxo"]) as daemon:
        feed = re.search(r'^"\$utxod" (feed .+) --wait', SCRIPT, re.MULTILINE)
        chain = re.search(r"^chain=\"(\S+)\"", SCRIPT, re.MULTILINE)
        assert feed and chain
        words = feed[1].replace('"$chain"', str(ROOT / chain[1])).split()
        assert b"546 applied, height 546" in daemon.run(*words).stderr
        assert b"nothing to send" in daemon.run(*words).stderr  # when it is started again
        yield daemon


def test_every_kind_of_hint_is_known() -> None:
    assert [next((part for part in SAYS if hint.startswith(f"utxod {part}")), hint) for hint in HINTS] == list(SAYS)


@pytest.mark.parametrize("hint", HINTS)
def test_a_hint_works_as_pasted(hint: str, daemon: Daemon) -> None:
    wanted = next(text for part, text in SAYS.items() if hint.startswith(f"utxod {part}"))
    process = shell(daemon, hint)
    if hint.startswith("utxod tail"):  # does not end
        assert process.stdout is not None
        end = Timer(PATIENCE_S, os.killpg, (process.pid, signal.SIGKILL))
        end.start()
        seen = any(wanted in line for line in process.stdout)
        end.cancel()
        os.killpg(process.pid, signal.SIGKILL)
        process.communicate()
        assert seen
        return
    reported, errors = process.communicate(timeout=PATIENCE_S)
    assert process.returncode == 0, errors
    assert wanted in reported


def test_what_the_script_feeds_is_part_of_the_repository() -> None:
    chain = re.search(r"^chain=\"(\S+)\"", SCRIPT, re.MULTILINE)
    assert chain and Path(ROOT / chain[1]).is_file()
