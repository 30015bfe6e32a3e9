"""Backups of a running daemon: restored, they are the store of one moment, and feeding goes on from there."""

from __future__ import annotations

import hashlib
import json
import shutil
import subprocess
import sys
import tarfile
from collections.abc import Iterator
from pathlib import Path
from threading import Event, Thread
from typing import Any

import pytest
from daemons import PATIENCE_S, ROOT, Daemon, environment, home, log_lines, running, statuses, utxod
from scenarios import chain, digest, output, tx

from config.load import load
from daemon.backup import backup
from storage.blobs import Files
from storage.errors import StoreError
from storage.history.layout import FORMAT

BLOCKS = chain(240, outputs=12)
KEPT = {"externalize_all": True}


def submissions(count: int) -> list[dict[str, Any]]:
    return [
        {"type": "TxSubmitted", "tx": tx(f"s{n}", output("x"), spends=[[digest("tx", "120"), n]], raw=bytes([n]) * 200)}
        for n in range(1, count + 1)
    ]


@pytest.fixture(scope="module")
def source(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Daemon]:
    """Yield a daemon that runs, with blobs and recovery rows."""
    folder = tmp_path_factory.mktemp("source")
    with running(folder, transactions=KEPT) as daemon:
        with daemon.client("frames") as client:
            assert set(statuses(client.feed(BLOCKS[:120]))) == {"applied"}
            assert set(statuses(client.feed(submissions(10)))) == {"accepted"}
        yield daemon


@pytest.fixture(scope="module")
def saved(source: Daemon, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return a backup of it; tests copy it before they change it."""
    folder = tmp_path_factory.mktemp("saved") / "backup"
    done = source.run("backup", folder)
    assert (done.returncode, done.stderr) == (0, b""), done.stderr
    assert b"backup of cardano/mainnet at height 120" in done.stdout
    return folder


def manifest_of(folder: Path) -> dict[str, Any]:
    found: dict[str, Any] = json.loads((folder / "manifest.json").read_text())
    return found


def restored(source: Path, folder: Path, **tables: Any) -> Any:
    """Restore a backup; return a daemon on it that is not started."""
    done = utxod("restore", source, folder / "data")
    assert done.returncode == 0, done.stderr
    return home(folder, transactions=KEPT, **tables)


def test_the_manifest_names_every_file_with_its_digest(saved: Path) -> None:
    manifest = manifest_of(saved)
    there = {str(path.relative_to(saved)) for path in saved.rglob("*") if path.is_file()} - {"manifest.json"}
    assert {file["name"] for file in manifest["files"]} == there
    for file in manifest["files"]:
        content = (saved / file["name"]).read_bytes()
        assert (file["size"], file["sha256"]) == (len(content), hashlib.sha256(content).hexdigest())
    assert {"lmdb/data.mdb", "recovery.db"} <= there and sum(name.startswith("blobs/") for name in there) == 10
    assert manifest["tip"] == {"height": 120, "slot": 2400, "hash": BLOCKS[119]["hash"].hex()}
    assert (manifest["chain"], manifest["format"], manifest["not_included"]) == ("cardano/mainnet", FORMAT, [])


def test_a_restored_store_is_the_same_and_feeding_continues(source: Daemon, saved: Path, tmp_path: Path) -> None:
    with restored(saved, tmp_path) as daemon:
        daemon.assert_sound()
        assert daemon.export() == source.export()
        daemon.start()
        with daemon.client("frames") as client:
            assert client.hello()["tip"]["height"] == 120
            assert set(statuses(client.feed(BLOCKS[120:140]))) == {"applied"}
        for n in range(1, 11):
            name = digest("tx", f"s{n}").hex()
            found = json.loads(daemon.run("query", "tx", name, "--json").stdout)
            assert found["transaction"]["status"] == "unmined"
            assert (tmp_path / "data" / "blobs" / name[:2] / f"{name}.tx").read_bytes() == bytes([n]) * 200
        assert daemon.term() == 0
        daemon.assert_sound()


def test_a_restored_store_without_blobs_can_be_backed_up_before_its_daemon_starts(tmp_path: Path) -> None:
    with running(tmp_path) as daemon:
        assert daemon.run("backup", tmp_path / "first").returncode == 0
    shutil.rmtree(tmp_path / "data")
    with restored(tmp_path / "first", tmp_path) as daemon:
        done = daemon.run("backup", tmp_path / "second")
        assert (done.returncode, done.stderr) == (0, b"")
        (tmp_path / "data" / "blobs").rmdir()
        for target in (tmp_path / "third", "-"):  # in an interpreter of its own, which has to end without a traceback
            done = utxod("--config", daemon.config, "backup", target, PYTHONDONTWRITEBYTECODE="1")
            assert done.returncode == 1 and done.stderr.decode().splitlines() == [
                f"Error: {tmp_path}/data/blobs: the blob store failed: No such file or directory"
            ]


def test_a_backup_made_while_blocks_come_is_of_one_block(tmp_path: Path) -> None:
    (tmp_path / "live").mkdir()
    with running(tmp_path / "live", transactions=KEPT, batch={"max_delay_ms": 0}) as live:
        enough = Event()

        def feed() -> None:
            with live.client("frames") as client:
                for n, block in enumerate(BLOCKS):
                    assert client.ask(block)["status"] == "applied"
                    if n > 40 and not enough.is_set():
                        enough.wait(0.05)

        feeder = Thread(target=feed)
        feeder.start()
        heights = []
        for n in range(3):
            done = live.run("backup", tmp_path / f"b{n}")
            assert done.returncode == 0, done.stderr
            heights.append(manifest_of(tmp_path / f"b{n}")["tip"])
        enough.set()
        feeder.join()
        final = live.export()
    assert len({tip and tip["height"] for tip in heights}) > 1, "no block came between the backups"
    for n, tip in enumerate(heights):
        (tmp_path / f"r{n}").mkdir()
        with restored(tmp_path / f"b{n}", tmp_path / f"r{n}") as daemon:
            daemon.start()
            with daemon.client("frames") as client:
                assert client.hello()["tip"] == tip
                assert set(statuses(client.feed(BLOCKS[tip["height"] if tip else 0 :]))) == {"applied"}
            assert daemon.term() == 0
            assert daemon.export() == final
            daemon.assert_sound()


def test_a_stream_is_the_same_as_a_folder(source: Daemon, tmp_path: Path) -> None:
    done = source.run("backup", "-")
    assert done.returncode == 0 and b"backup of cardano/mainnet" in done.stderr
    (tmp_path / "backup.tar").write_bytes(done.stdout)
    with tarfile.open(tmp_path / "backup.tar") as archive:
        assert archive.getnames()[-2:] == ["lmdb/data.mdb", "manifest.json"]
    assert utxod("restore", tmp_path / "backup.tar", tmp_path / "file" / "data").returncode == 0
    assert utxod("restore", "-", tmp_path / "stream" / "data", "--verify", stdin=done.stdout).returncode == 0
    for name in ("file", "stream"):
        with home(tmp_path / name, transactions=KEPT) as daemon:
            assert daemon.export() == source.export()


def test_a_damaged_backup_is_refused_and_the_file_named(saved: Path, tmp_path: Path) -> None:
    files = [file["name"] for file in manifest_of(saved)["files"]]
    for number, name in enumerate(["lmdb/data.mdb", "recovery.db", next(file for file in files if "blobs" in file)]):
        shutil.copytree(saved, tmp_path / str(number))
        path = tmp_path / str(number) / name
        content = bytearray(path.read_bytes())
        content[len(content) // 2] ^= 1
        path.write_bytes(content)
        refused(tmp_path / str(number), tmp_path / "new", f"{name} is damaged")
        path.write_bytes(content[:-1])
        refused(tmp_path / str(number), tmp_path / "new", f"{name} has {len(content) - 1} bytes")
        path.unlink()
        refused(tmp_path / str(number), tmp_path / "new", f"{name} is missing")
    (tmp_path / "0" / "manifest.json").write_text("{}")
    refused(tmp_path / "0", tmp_path / "new", "manifest.json has version None")
    (tmp_path / "0" / "manifest.json").unlink()
    refused(tmp_path / "0", tmp_path / "new", "there is no manifest.json")
    text = (saved / "manifest.json").read_text()
    (tmp_path / "0" / "manifest.json").write_text(text.replace(f'"format": {FORMAT}', '"format": 9'))
    refused(
        tmp_path / "0",
        tmp_path / "new",
        f"a backup of a store of format 9, this version of utxod reads format {FORMAT}",
    )
    (tmp_path / "0" / "manifest.json").write_text(text.replace("recovery.db", "../../evil"))
    refused(tmp_path / "0", tmp_path / "new", "are not those of a backup")


def refused(source: Path, folder: Path, why: str, stdin: bytes = b"") -> None:
    done = utxod("restore", source, folder, stdin=stdin)
    assert (done.returncode, done.stdout) == (3, b""), done
    assert why in done.stderr.decode()
    assert not folder.exists() or not any(folder.iterdir())


def test_an_archive_that_was_cut_off_is_refused(source: Daemon, tmp_path: Path) -> None:
    whole = source.run("backup", "-").stdout
    ends = [0, 100, 512, 5000, len(whole) // 2, len(whole) - 12_000, whole.rindex(b"manifest.json") - 600]
    for end in ends:
        refused(Path("-"), tmp_path / "new", "cut off", stdin=whole[: max(end, 0)])
    flipped = bytearray(whole)
    flipped[whole.index(b"lmdb/data.mdb") + 60_000] ^= 4
    refused(Path("-"), tmp_path / "new", "lmdb/data.mdb is damaged", stdin=bytes(flipped))
    for name in ("../escaped", "blobs/aa/other", "lmdb/lock.mdb"):
        with tarfile.open(tmp_path / "other.tar", "w") as archive:
            archive.addfile(tarfile.TarInfo(name))
        refused(tmp_path / "other.tar", tmp_path / "new", f"{name!r} is not a file of a backup")


def test_a_folder_that_is_not_empty_is_refused(saved: Path, tmp_path: Path) -> None:
    (tmp_path / "data").mkdir()
    (tmp_path / "data" / "mine").write_text("mine")
    done = utxod("restore", saved, tmp_path / "data")
    assert done.returncode == 2 and b"not empty (mine)" in done.stderr
    assert [path.name for path in (tmp_path / "data").iterdir()] == ["mine"]


def test_a_backup_replaces_nothing(source: Daemon, saved: Path) -> None:
    before = (saved / "manifest.json").read_bytes()
    done = source.run("backup", saved)
    assert done.returncode == 1 and b"it exists already" in done.stderr
    assert (saved / "manifest.json").read_bytes() == before


def test_a_store_that_grows_too_much_meanwhile_ends_the_backup(tmp_path: Path) -> None:
    with running(tmp_path) as daemon, daemon.client("frames") as client:
        assert set(statuses(client.feed(BLOCKS[:20]))) == {"applied"}
        rest = iter(BLOCKS[20:])

        def tell(_: int) -> None:
            for block in [next(rest) for _ in range(50)]:
                client.ask(block)

        with pytest.raises(StoreError, match="has grown by more than 4,096 bytes"):
            backup(load(daemon.config, {}), tmp_path / "b", 4096, tell)
        assert not (tmp_path / "b").exists() and not (tmp_path / "b.partial").exists()


def test_parts_that_are_not_included_are_named(tmp_path: Path) -> None:
    with home(tmp_path) as daemon:
        daemon.start()
        assert daemon.term() == 0
        daemon.configure(
            recovery={"store": "postgresql", "dsn": "postgresql://nobody@localhost/none"},
            transactions={"blob_store": "s3://bucket/prefix"},
        )
        done = daemon.run("backup", tmp_path / "b")
        assert done.returncode == 0, done.stderr
        reported = done.stderr.decode()
        assert "pg_dump" in reported and "s3://bucket/prefix" in reported
        manifest = manifest_of(tmp_path / "b")
        assert len(manifest["not_included"]) == 2 and [file["name"] for file in manifest["files"]] == ["lmdb/data.mdb"]


def test_a_daemon_does_not_start_on_half_a_restore(saved: Path, tmp_path: Path) -> None:
    with home(tmp_path, transactions=KEPT) as daemon:
        (tmp_path / "data" / "restoring" / "lmdb").mkdir(parents=True)
        shutil.copy(saved / "recovery.db", tmp_path / "data")
        done = daemon.run("run")
        assert done.returncode == 3
        assert "a restore into this folder did not end" in log_lines(done.stderr)[-1]["error"]
        assert utxod("restore", saved, tmp_path / "data").returncode == 0
        daemon.start()


def test_blobs_stay_while_they_are_copied(tmp_path: Path) -> None:
    blobs, name = Files(tmp_path / "blobs"), "ab" * 32 + ".tx"
    blobs.put(name, b"raw")
    with Files(tmp_path / "blobs").kept():
        assert not blobs.delete(name) and blobs.get(name) == b"raw"
    assert blobs.delete(name) and blobs.get(name) is None


def test_a_stalled_reader_ends_the_backup(source: Daemon, tmp_path: Path) -> None:
    (tmp_path / "utxod.toml").write_text(source.config.read_text() + '[store]\nmax_reader_age = "500ms"\n')
    command = [sys.executable, "-m", "daemon.cli", "backup", "-", "--config", str(tmp_path / "utxod.toml")]
    with subprocess.Popen(
        command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, env=environment(), cwd=ROOT
    ) as stuck:
        assert stuck.wait(PATIENCE_S) == 1
        assert stuck.stderr is not None and b"it was not read for 0.5 s" in stuck.stderr.read()


def test_a_full_disk_leaves_nothing(source: Daemon, saved: Path, tmp_path: Path) -> None:
    limited = ["bash", "-c", 'ulimit -f 100; exec "$@"', "-", sys.executable, "-m", "daemon.cli"]
    for words, left in (
        (["backup", tmp_path / "new", "--config", source.config], tmp_path / "new"),
        (["restore", saved, tmp_path / "data"], tmp_path / "data"),
    ):
        command = [*limited, *map(str, words)]
        done = subprocess.run(command, env=environment(), cwd=ROOT, capture_output=True, check=False)
        assert done.returncode == 1 and b"data.mdb: File too large" in done.stderr, done.stderr
        assert not left.exists() or not any(left.iterdir())
    assert [path.name for path in tmp_path.iterdir()] in ([], ["data"])
    assert utxod("restore", saved, tmp_path / "data").returncode == 0
