"""HTTP over a damaged store: an answer that can't be given says why, and workers that die of it are explained."""

from __future__ import annotations

import os
import shutil
from collections.abc import Iterator
from pathlib import Path

import httpx
import pytest
from daemons import PATIENCE_S, Daemon, home, running, statuses
from patience import until
from questions import Web, failure, free_port, serve_alone
from scenarios import chain, digest

from config.load import load
from daemon.store import open_disk
from storage.disk import Disk, Txn
from storage.history.layout import OUTPUT, OUTPUT_RECORD, seal
from storage.history.stored import Stored
from storage.history.values import KEY, unpacked

BLOCKS = chain(200, outputs=5)


@pytest.fixture(scope="module")
def whole(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("whole")
    with running(folder) as daemon:
        with daemon.client("frames") as client:
            assert set(statuses(client.feed(BLOCKS))) == {"applied"}
        assert daemon.term() == 0
    return folder


@pytest.fixture
def served(whole: Path, tmp_path: Path) -> Iterator[tuple[Daemon, int]]:
    port = free_port()
    with home(tmp_path, http={"listen": f"127.0.0.1:{port}", "workers": 1}) as daemon:
        shutil.copytree(whole / "data", tmp_path / "data")
        yield daemon, port


def log_of(daemon: Daemon) -> str:
    return (daemon.folder / "serve.log").read_text()


def shorten_address(txn: Txn, disk: Disk, txid: bytes, index: int) -> None:
    """Write an address length of one byte to an output's record: the other bytes are read as the next field."""
    tx = Stored(txn, disk.tables).find_tx(txid)
    assert tx is not None
    cursor, number = txn.cursor(disk.tables[OUTPUT]), tx.number + index
    assert (cursor.set_range(KEY.pack(number + 1)) and cursor.prev()) or cursor.last()
    records, heap = unpacked(OUTPUT_RECORD, cursor.value(), 0)
    records = records.copy()
    records["address"][records["number"] == number] = 1
    txn.put(cursor.key(), seal(len(records), records.tobytes(), heap), db=disk.tables[OUTPUT])


def test_an_output_that_cannot_be_read(served: tuple[Daemon, int]) -> None:
    daemon, port = served
    with open_disk(load(daemon.config, {})) as disk:
        disk.write(lambda txn: shorten_address(txn, disk, digest("tx", 100), 3))
    with serve_alone(daemon), Web(port) as web:
        answer = web.ask(f"/api/v1/utxos/{digest('tx', 100).hex()}/3")
        failure(answer, 500, "store_damaged")
        assert web.ask(f"/api/v1/utxos/{digest('tx', 100).hex()}/2").status_code == 200
    assert '"store_damaged"' in log_of(daemon) and "cannot be read" in log_of(daemon)
    assert "Traceback" not in log_of(daemon)


def test_workers_that_die_of_the_store_are_explained(served: tuple[Daemon, int]) -> None:
    daemon, port = served
    with serve_alone(daemon), Web(port) as web:
        assert web.ask("/health/live").status_code == 200
        os.truncate(daemon.folder / "data" / "lmdb" / "data.mdb", 2 * 4096)
        with pytest.raises(httpx.RemoteProtocolError):  # the one that runs finds pages gone, those after it can't begin
            httpx.get(f"{web.url}/api/v1/utxos/{digest('tx', 100).hex()}/2", timeout=PATIENCE_S)
        until(lambda: '"store_damaged"' in log_of(daemon), why="nobody says what is wrong")
    assert "utxod verify" in log_of(daemon) and '"SIGBUS"' in log_of(daemon)
