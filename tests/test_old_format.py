"""A store that an earlier version wrote is refused by every command that opens a store, and nothing in it changes."""

from __future__ import annotations

import shutil
from collections.abc import Iterator
from pathlib import Path

import click
import lmdb
import msgspec
import pytest
from click.testing import CliRunner
from daemons import Daemon, home, reason
from scenarios import digest

from daemon.cli import main
from daemon.store import TABLES
from storage.errors import Damaged, WrongFormat
from storage.precheck import precheck

TXID = digest("tx", 7)
ADDRESS = b"\x61" + digest("credential", "ann", size=28)
BODY = msgspec.msgpack.encode((ADDRESS, 1_000_000))
SENTENCE = "written in format 1, this version reads format 5: feed the chain again into another data_dir"
# Rows of format 1: a block with one transaction and one output, its ways in, and an undo record.
ROWS: dict[str, list[tuple[bytes, bytes]]] = {
    "utxo_meta": [
        (b"format", (1).to_bytes(4, "big")),
        (b"chain", b"cardano/mainnet"),
        (b"indexes", b"address_hash,payment_credential"),
        (b"state", msgspec.msgpack.encode((1, 1, 0, (1, 0), (1, 0)))),
    ],
    "utxo_block": [((1).to_bytes(4, "big"), msgspec.msgpack.encode((1, 20, digest("block", 1), None, None)))],
    "utxo_block_hash": [(digest("block", 1), (1).to_bytes(4, "big"))],
    "utxo_tx": [((1).to_bytes(4, "big") + bytes(4), TXID + b"\0")],
    "utxo_txid": [(TXID, (1).to_bytes(4, "big") + bytes(4))],
    "utxo_output": [((1).to_bytes(4, "big") + bytes(8), BODY)],
    "utxo_block_delta": [((1).to_bytes(4, "big"), msgspec.msgpack.encode((digest("block", 1), [1], b"")))],
    "utxo_addr": [(digest("address", size=28), (1).to_bytes(4, "big") + bytes(8))],
    "tx": [(TXID, b"\x90")],
    "change_log": [],
}
OPENING = {  # every command that opens a store, with what else it may be asked
    "backup": ["-"],
    "compact": [""],
    "export": ["", "--format jsonl"],
    "migrate": [""],
    "prune": ["", "now", "status"],
    "query": [f"address {ADDRESS.hex()}", f"balance {ADDRESS.hex()}", f"utxo {TXID.hex()}#0", f"tx {TXID.hex()}"],
    "reindex": ["", "--records"],
    "run": [],
    "serve": [],
    "status": ["", "--json"],
    "verify": ["", "--quick"],
}
OTHERS = {
    "gateway",
    "replica",
    "split",
    "bench",
    "completion",
    "config",
    "doctor",
    "feed",
    "init",
    "recovery",
    "restore",
    "send",
    "tail",
    "verify-proof",
    "wallets",
}


@pytest.fixture
def old(tmp_path: Path) -> Iterator[Daemon]:
    with home(tmp_path, http={"workers": 1, "listen": f"unix:{tmp_path}/http"}) as daemon:
        folder = tmp_path / "data" / "lmdb"
        folder.mkdir(parents=True)
        with lmdb.open(str(folder), max_dbs=20) as env:
            for name, rows in ROWS.items():
                pairs = name == "utxo_addr"
                db = env.open_db(name.encode(), dupsort=pairs, dupfixed=pairs)
                with env.begin(write=True) as txn:
                    for key, value in rows:
                        txn.put(key, value, db=db)
        (tmp_path / "data" / "blobs").mkdir()
        (tmp_path / "data" / "blobs" / TXID.hex()).write_bytes(b"a transaction")
        yield daemon


def files(daemon: Daemon) -> dict[str, bytes]:
    """Return what is in a data folder, but for the files that only lock."""
    folder, locks = daemon.folder / "data", {"lock.mdb", "owner"}
    found = [path for path in folder.rglob("*") if path.is_file() and path.name not in locks]
    return {str(path.relative_to(folder)): path.read_bytes() for path in found}


def test_every_command_is_known_here() -> None:
    assert {*main.list_commands(click.Context(main))} == {*OPENING} | OTHERS


def test_every_command_refuses_an_old_store(old: Daemon) -> None:
    before = files(old)
    for command, variants in OPENING.items():
        for options in variants:
            reported = CliRunner().invoke(main, [command, "--config", str(old.config), *options.split()])
            assert (reported.exit_code, reported.stdout) == (3, ""), (command, options, reported)
            assert reported.stderr == f"Error: {old.folder}/data/lmdb: {SENTENCE}\n", (command, options)
            assert files(old) == before, (command, options)


@pytest.mark.parametrize("written", [2, 3, 4, 6])
def test_every_other_format_is_refused(old: Daemon, written: int) -> None:
    with lmdb.open(str(old.folder / "data" / "lmdb"), max_dbs=20) as env, env.begin(write=True) as txn:
        txn.put(b"format", written.to_bytes(4, "big"), db=env.open_db(b"utxo_meta", txn))
    before, sentence = files(old), SENTENCE.replace("in format 1", f"in format {written}")
    done = old.run("run")
    assert (done.returncode, reason(done)) == (3, f"{old.folder}/data/lmdb: {sentence}")
    for command in ("verify", "migrate"):
        reported = CliRunner().invoke(main, [command, "--config", str(old.config)])
        assert (reported.exit_code, reported.stderr) == (3, f"Error: {old.folder}/data/lmdb: {sentence}\n"), command
    assert files(old) == before


@pytest.mark.parametrize("command", ["run", "serve"])
def test_a_service_does_not_start_on_an_old_store(old: Daemon, command: str) -> None:
    before = files(old)
    done = old.run(command)
    assert (done.returncode, reason(done)) == (3, f"{old.folder}/data/lmdb: {SENTENCE}")
    assert files(old) == before and not old.socket.exists() and not (old.folder / "http").exists()


def test_damage_is_reported_before_the_format(old: Daemon) -> None:
    path = old.folder / "data" / "lmdb"
    with pytest.raises(WrongFormat, match="written in format 1"):
        precheck(path, TABLES)
    shutil.copytree(path, old.folder / "cut")
    (old.folder / "cut" / "data.mdb").write_bytes((path / "data.mdb").read_bytes()[: 6 * 4096])
    with pytest.raises(Damaged, match="cut off"):
        precheck(old.folder / "cut", TABLES)
