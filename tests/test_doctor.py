"""`utxod doctor` finds what it is for, and says what to do; `utxod init` writes what `utxod config check` accepts."""

from __future__ import annotations

import json
import os
import resource
import shutil
import socket
import stat
import tomllib
from pathlib import Path
from time import time
from typing import Any, NamedTuple

import pytest
from daemons import Daemon, background, home, running, statuses, utxod
from patience import until
from scenarios import block, chain
from terminal import on_a_terminal

from config.load import load
from config.show import starter, template
from daemon import doctor, machine

Findings = dict[str, dict[str, Any]]


def examined(daemon: Daemon, *more: str) -> tuple[int, Findings]:
    done = daemon.run("doctor", "--json", *more)
    assert done.stderr == b"", done.stderr
    return done.returncode, {found["check"]: found for found in json.loads(done.stdout)}


def test_a_healthy_daemon_has_no_findings(tmp_path: Path) -> None:
    with running(tmp_path) as daemon, daemon.client("frames") as client:
        (tmp_path / "data").chmod(0o750)
        assert set(statuses(client.feed(chain(3)))) == {"applied"}
        fresh = block(chain(3)[-1], time=int(time()) - 60)
        assert statuses(client.feed([fresh])) == ["applied"]
        code, found = examined(daemon)
        wrong = [each for each in found.values() if each["state"] == "wrong" and each["check"] not in ("disk", "fsync")]
        assert wrong == [] and code == (0 if found["disk"]["state"] != "wrong" != found["fsync"]["state"] else 1)
        assert found["last block"]["detail"].startswith("height 4, ") and found["last block"]["state"] == "ok"
        assert "answers" in found["socket"]["detail"] and found["store"]["state"] == "ok"
        text = daemon.run("doctor").stdout.decode()
        assert len([line for line in text.splitlines() if "->" not in line]) == len(found)


def test_problems_of_the_store_and_the_socket(tmp_path: Path) -> None:
    with home(tmp_path) as daemon:
        assert examined(daemon)[1]["store"]["detail"] == "there is none yet"
        daemon.start()
        with daemon.client() as client:
            old = chain(1)[0] | {"time": int(time()) - 90_000}
            assert statuses(client.feed([old])) == ["applied"]
        shutil.copytree(tmp_path / "data" / "lmdb", tmp_path / "copy")
        code, found = examined(daemon)
        assert found["last block"]["state"] == "warning" and "25.0 h old" in found["last block"]["detail"]
        daemon.kill()
        code, found = examined(daemon)
        assert (code, found["socket"]["state"], found["store"]["state"]) == (1, "wrong", "ok")
        assert "no daemon uses it" in found["socket"]["advice"]
        shutil.rmtree(tmp_path / "data" / "lmdb")
        shutil.copytree(tmp_path / "copy", tmp_path / "data" / "lmdb")
        found = examined(daemon)[1]
        assert found["store"]["state"] == "wrong" and "restore --adopt" in found["store"]["detail"]
        with (tmp_path / "data" / "lmdb" / "data.mdb").open("r+b") as file:
            file.truncate(2 * 4096)
        found = examined(daemon)[1]
        assert found["store"]["state"] == "wrong" and "damaged" in found["store"]["detail"]


def test_a_daemon_of_another_chain_is_reported(tmp_path: Path) -> None:
    with running(tmp_path) as daemon:
        daemon.configure(chain={"family": "bitcoin", "network": "regtest"})
        code, found = examined(daemon)
        assert code == 1 and "cardano/mainnet" in found["socket"]["detail"] and "--config" in found["socket"]["advice"]
        assert "is for cardano/mainnet" in found["store"]["detail"]


@pytest.mark.parametrize("url", ["http://u:secret@127.0.0.1:{port}", "ws://127.0.0.1:{port}"])
def test_a_node_that_does_not_answer_is_reported(tmp_path: Path, url: str) -> None:
    with socket.socket() as taken, home(tmp_path) as daemon:
        taken.bind(("127.0.0.1", 0))
        code, found = examined(daemon, "--node", url.format(port=taken.getsockname()[1]))
        assert code == 1 and found["node"]["state"] == "wrong" and "secret" not in str(found["node"])
        code, found = examined(daemon, "--node", "ftp://nowhere")
        assert found["node"]["state"] == "wrong"


class _Usage(NamedTuple):
    free: int


def test_problems_of_the_machine(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "data" / "lmdb").mkdir(parents=True)
    (tmp_path / "data" / "lmdb" / "data.mdb").write_bytes(bytes(5000))
    config = load(None, {"UTXOD_DATA_DIR": str(tmp_path / "data"), "UTXOD_CONFIG": str(_empty(tmp_path))})
    for free, state in ((1 << 20, "wrong"), (1 << 40, "ok")):
        monkeypatch.setattr("shutil.disk_usage", lambda _, free=free: _Usage(free))
        assert machine.space(config).state == state
    monkeypatch.setattr(machine, "_filesystem", lambda _: "nfs4")
    assert "local disk" in str(machine.space(config).advice)
    for took, state in ((0.001, "ok"), (0.05, "warning"), (1.0, "wrong")):
        clock = iter(n * took for n in range(1000))
        with monkeypatch.context() as patched:
            patched.setattr("time.monotonic", lambda clock=clock: next(clock))
            assert machine.fsync(config).state == state
    for limit, state in ((64, "wrong"), (256, "warning"), (8192, "ok")):
        monkeypatch.setattr("resource.getrlimit", lambda _, limit=limit: (limit, limit))
        assert machine.open_files().state == state
    (tmp_path / "data").chmod(0o755)
    assert machine.data_folder(config).state == "warning"
    (tmp_path / "data").chmod(0o750)
    assert machine.data_folder(config).state == "ok"
    os.utime(tmp_path / "data", (time() + 900, time() + 900))
    assert "set back" in str(machine.clock(config).advice)
    monkeypatch.setattr("sqlite3.sqlite_version_info", (3, 30, 0))
    assert machine.libraries().state == "wrong"
    with (tmp_path / "data" / "lmdb" / "data.mdb").open("r+b") as file:
        file.truncate(config.storage.max_map_size - 1)  # sparse
    assert "LimitAS" in str(doctor._map(config).advice)
    monkeypatch.setattr("resource.getrlimit", lambda _: (resource.RLIM_INFINITY, resource.RLIM_INFINITY))
    assert "storage.max_map_size" in str(doctor._map(config).advice)


def _empty(folder: Path) -> Path:
    (folder / "empty.toml").write_text("")
    return folder / "empty.toml"


def test_init_writes_a_valid_file_once(tmp_path: Path) -> None:
    file = tmp_path / "new" / "utxod.toml"
    options = ["--family", "bitcoin", "--network", "testnet4", "--node", "http://u:p@127.0.0.1:48332"]
    done = utxod("init", file, *options, "--data-dir", tmp_path / "data", "--http", "127.0.0.1:9000")
    assert (done.returncode, done.stderr) == (0, b"")
    assert b"utxod run --config" in done.stdout and b"u:p" not in done.stdout
    assert utxod("config", "check", "--config", file).returncode == 0
    config = load(file, {})
    assert (config.chain.family, config.chain.network, config.data_dir) == ("bitcoin", "testnet4", tmp_path / "data")
    assert (config.http.listen, str(config.recovery.node_url)) == ("127.0.0.1:9000", "http://u:p@127.0.0.1:48332")
    assert stat.S_IMODE(file.stat().st_mode) == 0o640
    before = file.read_bytes()
    assert utxod("init", file, "--family", "raw").returncode == 2
    assert file.read_bytes() == before
    assert [path.name for path in file.parent.iterdir()] == ["utxod.toml"]


def test_init_refuses_wrong_options(tmp_path: Path) -> None:
    for options, why in (
        ([], "--family"),
        (["--family", "bitcoin", "--node", "ws://127.0.0.1:1337"], "http://127.0.0.1:8332"),
        (["--family", "cardano", "--node", "http://127.0.0.1:8332"], "ws://127.0.0.1:1337"),
        (["--family", "raw", "--node", "http://127.0.0.1"], "no node"),
        (["--family", "bitcoin", "--cookie", "/x"], "--node"),
        (["--family", "cardano", "--http", "nonsense"], "[http] listen"),
    ):
        done = utxod("init", tmp_path / "utxod.toml", *options)
        assert done.returncode == 2 and why in done.stderr.decode(), (options, done.stderr)
    assert list(tmp_path.iterdir()) == []


def test_the_starter_is_the_template_with_values(tmp_path: Path) -> None:
    assert starter({}) == template()
    path = tmp_path / "utxod.toml"
    path.write_text(starter({"data_dir": 'a "b"', "upstream.ogmios": "ws://h:1"}))
    assert tomllib.loads(path.read_text())["upstream"] == {"ogmios": "ws://h:1"}
    assert str(load(path, {}).data_dir) == 'a "b"'


def test_init_prompts_on_a_terminal(tmp_path: Path) -> None:
    answers = b"cardano\npreview\n" + str(tmp_path / "data").encode() + b"\nws://127.0.0.1:1337\n"
    text = on_a_terminal("init", "utxod.toml", answers=answers, enough=b"Next steps", cwd=tmp_path)
    assert all(question in text for question in ("Family", "Network", "Data folder", "Node"))
    config = load(tmp_path / "utxod.toml", {})
    assert (config.chain.network, str(config.upstream.ogmios)) == ("preview", "ws://127.0.0.1:1337")


def test_status_watch(tmp_path: Path) -> None:
    with running(tmp_path) as daemon:
        lines, objects = tmp_path / "lines", tmp_path / "objects"
        watching = [
            background(lines, "status", "--config", daemon.config, "--watch", "--every", "0.1"),
            background(objects, "status", "--config", daemon.config, "--watch", "--every", "0.1", "--json"),
        ]
        until(lambda: lines.read_text().count("running, the origin") > 1 and objects.read_text().count("\n") > 1)
        with daemon.client() as client:
            assert statuses(client.feed(chain(2))) == ["applied"] * 2
        until(lambda: "height 2" in lines.read_text())
        until(lambda: '"blocks_applied":2' in objects.read_text())
        assert daemon.term() == 0
        until(lambda: "no daemon: no process listens there" in lines.read_text())
        for process in watching:
            process.kill()
            process.wait()
        assert all(json.loads(line)["folder"] for line in objects.read_text().splitlines())
        words = ("status", "--config", daemon.config, "--watch", "--every", "0.1")
        assert "\x1b[?1049h" in on_a_terminal(*words, columns=200, enough=b"no process listens")  # a screen of its own
