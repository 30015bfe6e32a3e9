"""How a daemon starts: its first log line, and that it creates a store only in a folder that was chosen."""

from __future__ import annotations

import signal
import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from importlib import import_module
from pathlib import Path
from typing import Any

import pytest
from chains import at, back_to, block, feed, open_chain, output, tx
from daemons import PATIENCE_S, ROOT, environment, log_lines, reason, running, utxod
from patience import until
from questions import serve_alone

from config.load import DEFAULT_FILE
from daemon import VERSION


@contextmanager
def started(folder: Path, **environ: str) -> Iterator[list[dict[str, Any]]]:
    command = [sys.executable, "-m", "daemon.cli", "run"]
    log = folder / "log"
    with log.open("wb") as file:
        variables = environment(UTXOD_HTTP__WORKERS="0", **environ)
        process = subprocess.Popen(command, stderr=file, env=variables, cwd=folder)
    try:
        until(lambda: "listening" in [line["event"] for line in log_lines(log.read_bytes())])
        yield log_lines(log.read_bytes())
        process.send_signal(signal.SIGTERM)
        assert process.wait(PATIENCE_S) == 0
    finally:
        process.kill()
        process.wait()


def first_line(text: str) -> dict[str, Any]:
    first = log_lines(text)[0]
    del first["timestamp"]
    return first


def test_the_first_line_names_the_version_and_the_settings(folder: Path) -> None:
    chain = {"family": "bitcoin", "network": "regtest"}
    http = {"workers": 1, "listen": f"unix:{folder}/http"}
    with running(folder, chain=chain, utxo={"store": "mmr"}, http=http) as daemon:
        first = first_line(daemon.log_text())
        expected = {
            "event": "starting",
            "level": "info",
            "version": VERSION,
            "config": str(daemon.config),
            "chain": "bitcoin/regtest",
            "store": "mmr",
            "data_dir": str(folder / "data"),
            "socket": str(daemon.socket),
            "http": f"unix:{folder}/http",
            "pid": daemon.process.pid,
        }
        assert first == expected
        with serve_alone(daemon) as alone:
            until(lambda: "http_listen_failed" in (folder / "serve.log").read_text(), why="it has logged nothing")
        assert first_line((folder / "serve.log").read_text()) == expected | {"pid": alone.pid}


needs_no_file = pytest.mark.skipif(DEFAULT_FILE.exists(), reason=f"{DEFAULT_FILE} is there")


@needs_no_file
@pytest.mark.parametrize("command", ["run", "serve"])
def test_without_a_configuration_no_store_is_created(command: str, folder: Path) -> None:
    """A variable that names no folder does not help either."""
    chosen: list[dict[str, Any]] = [{}, {"UTXOD_CHAIN__NETWORK": "preview"}]
    for variables in chosen:
        done = utxod(command, cwd=folder, **variables)
        assert done.returncode == 2
        assert f"{folder}/utxod-data does not exist" in reason(done) and "--config FILE" in reason(done)
        assert not [*folder.iterdir()]


@needs_no_file
@pytest.mark.parametrize("how", ["UTXOD_CONFIG", "STATE_DIRECTORY", "there"])
def test_a_folder_is_named_or_is_there(how: str, folder: Path) -> None:
    variables, place, config = dict[str, str](), folder / "utxod-data", "defaults"
    if how == "UTXOD_CONFIG":  # a file that names no folder, but was chosen
        config = "chosen.toml"
        (folder / config).write_text('[chain]\nnetwork = "preview"\n')
        variables = {how: config}
    elif how == "there":
        place.mkdir()
    else:
        place = folder / "elsewhere"
        variables = {how: str(place)}
    with started(folder, **variables) as lines:
        assert lines[0]["data_dir"] == str(place)
        assert (lines[0]["config"], lines[0]["http"]) == (config, None)
    assert (place / "lmdb" / "data.mdb").exists()
    assert (folder / "utxod-data").exists() == (place.name == "utxod-data")


def test_the_driver_of_postgresql_is_loaded_only_when_it_is_used() -> None:
    code = "import sys, daemon.app, daemon.http.worker; print('asyncpg' in sys.modules)"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, env=environment(), cwd=ROOT, check=True)
    assert done.stdout == b"False\n"


def test_a_start_reads_nothing_that_grows_with_the_store(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """What writing needs besides the state is read afterwards: in the background, or by the first write."""
    read = list[str]()
    for name in ("runs.Index", "values.Values", "bits.TableBits", "filters.Filter", "mmr_nodes.Nodes"):
        module, _, kind = name.partition(".")
        owner = getattr(import_module(f"storage.history.{module}"), kind)

        def counted(self: object, *args: object, load: Callable[..., object] = owner.load, kind: str = kind) -> object:
            read.append(kind)
            return load(self, *args)

        monkeypatch.setattr(owner, "load", counted)
    first = block(None, tx("a", output("ann", 5)))
    with open_chain(tmp_path, store="mmr") as chain:
        feed(chain, first)
    read.clear()
    with open_chain(tmp_path, store="mmr") as chain:
        assert (chain.height, chain.view.unspent, read) == (1, 1, [])
        chain.store.prepare()
        assert {"Index", "Values", "TableBits", "Filter", "Nodes"} == set(read)
        read.clear()
        chain.store.prepare()
        feed(chain, block(first, tx("b", output("bob", 5), spends=[at("a")])))
        assert (chain.view.unspent, read) == (1, [])
    with open_chain(tmp_path, store="mmr") as chain:
        chain.touch()
        assert read == []
        chain.rollback(back_to(first))  # which needs all of it, without preparation
        assert (chain.height, chain.view.unspent) == (1, 1) and read
