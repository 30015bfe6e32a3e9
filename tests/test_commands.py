"""The commands that look after a store: export, status, prune, reindex, config, and their exit codes."""

from __future__ import annotations

import json
import tomllib
from pathlib import Path
from typing import Any

from chains import INDEXES
from daemons import PATIENCE_S, Daemon, Message, home, piped, reason, running, statuses, utxod
from scenarios import at, back_to, block, chain, digest, expected, output, tx

from config.load import load
from daemon.store import open_query
from storage.history.output_keys import address_key, asset_key

SMALL: dict[str, Any] = {"utxo": {"rollback_window": 5, "prune_depth": 3}}


def feed(daemon: Daemon, messages: list[Message]) -> None:
    with daemon.client("frames") as client:
        assert all(answer["type"] == "Ack" for answer in client.feed(messages))


def test_export_is_in_chain_order(daemon: Daemon) -> None:
    seeds = {
        "type": "GenesisOutputs",
        "outputs": [{"txid": digest(n), "index": 9 - n, "output": output(n, n)} for n in range(3)],
    }
    messages = [seeds, *chain(30, outputs=3)]
    feed(daemon, messages)
    lines = daemon.export()
    assert lines == expected(messages)
    txid, index, value, address = lines[-1].split(",")
    assert (len(txid), index, value, len(address)) == (64, "2", "3002", 58)
    as_json = daemon.run("export", "--format", "jsonl").stdout.decode().splitlines()
    assert [f"{o['txid']},{o['index']},{o['value']},{o['address']}" for o in map(json.loads, as_json)] == lines
    assert daemon.term() == 0
    assert daemon.export() == lines


def test_a_reader_of_an_export_may_close_the_pipe(daemon: Daemon) -> None:
    messages = chain(40, outputs=250)
    feed(daemon, messages)
    assert daemon.export() == expected(messages)  # more than is written at once
    with piped("export", "--config", daemon.config) as process:
        assert process.stdout is not None and process.stderr is not None
        assert process.stdout.readline()
        process.stdout.close()
        assert process.stderr.read() == b""
        assert process.wait(PATIENCE_S) == 1


def test_commands_next_to_a_daemon_that_writes(daemon: Daemon) -> None:
    blocks = chain(200, outputs=30)
    daemon.term()
    daemon.configure(storage={"map_size": "1MiB"})
    daemon.start()
    with daemon.client("frames") as client:
        assert statuses(client.feed(blocks[:20])) == ["applied"] * 20
        client.send(*blocks[20:])
        tips = []
        for _ in range(4):
            assert daemon.run("verify", "--quick").stdout == b"sound\n"
            lines = daemon.export()
            tips.append(len(lines))
            assert len(lines) % 29 == 1  # each block adds twenty-nine
        assert client.hello()
    assert tips == sorted(tips)


COMMANDS = ("run", "status", "verify", "export", "prune", "reindex")


def test_commands_without_a_usable_store(tmp_path: Path) -> None:
    data = tmp_path / "data"
    with home(tmp_path) as daemon:
        for command in COMMANDS[1:]:
            done = daemon.run(command)
            assert (done.returncode, done.stdout) == (1, b""), command
            assert b"there is no store here" in done.stderr and b"Traceback" not in done.stderr
        assert not data.exists()  # only `run` creates a store
        (data / "lmdb" / "data.mdb").mkdir(parents=True)  # for root, only this cannot be opened
        for command in COMMANDS:
            done = daemon.run(command)
            assert done.returncode == 1, command
            assert b"Traceback" not in done.stderr and str(data / "lmdb").encode() in done.stderr, command
        daemon.configure(data_dir=str(tmp_path / "utxod.toml" / "data"))
        for command in COMMANDS:
            done = daemon.run(command)
            words = reason(done).encode() if command == "run" else done.stderr
            assert (done.returncode, done.stdout, words.rstrip().count(b"\n")) == (1, b"", 0), command
            assert str(tmp_path / "utxod.toml" / "data").encode() in words


def test_prune(tmp_path: Path) -> None:
    with running(tmp_path, pruner={"enabled": False}, **SMALL) as daemon:
        blocks = chain(60, outputs=2)
        feed(daemon, blocks)
        assert daemon.status()["prune_backlog_blocks"] > 50
        busy = daemon.run("prune")
        assert busy.returncode == 1 and b"another process has this store open for writing" in busy.stderr
        daemon.term()
        done = daemon.run("prune")
        # the undo logs of 54 blocks go, and what 53 of them spent
        assert done.returncode == 0
        assert done.stdout == b"pruned 53 spent outputs, 0 transactions, 54 undo logs\n"
        assert daemon.run("prune").stdout == b"pruned 0 spent outputs, 0 transactions, 0 undo logs\n"
        assert daemon.status()["rows"]["history_undo"] == 6
        assert daemon.export() == expected(blocks)
        daemon.assert_sound()
        daemon.start()
        with daemon.client() as client:
            assert client.ask(back_to(blocks[54]))["status"] == "rolled_back"
        assert daemon.export() == expected(blocks[:55])


def listed(daemon: Daemon, index: str, key: bytes) -> list[tuple[str, int]]:
    with open_query(load(daemon.config, {})) as query, query.snapshot() as shot:
        found = shot.page(shot.listed(index, key), 1000, "asc", 1, None).utxos
        return [(utxo.tx_hash, utxo.output_index) for utxo in found]


def test_reindex(tmp_path: Path) -> None:
    off = dict.fromkeys(INDEXES, False) | {"payment_credential": True}
    with running(tmp_path, utxo={"index": off}) as daemon:
        policy = digest("policy", size=28)
        base = b"\x01" + digest("key", size=28) + digest("stake", size=28)
        parts = {"address": base, "datum_hash": digest("datum"), "script_ref_hash": digest("script", size=28)}
        rich = output("ann", 1, assets=[[policy, b"a", 1], [policy, b"b", 2]]) | parts
        blocks = [block(None, tx("rich", rich, rich, output("bob")))]
        blocks += [block(blocks[0], tx("more", rich, spends=[at("rich", 1)]))]
        feed(daemon, blocks)
        daemon.term()
        daemon.configure(utxo={"index": dict.fromkeys(INDEXES, True)})
        done = daemon.run("run")
        assert done.returncode == 3
        missing = ", ".join(name for name in INDEXES if name != "payment_credential")
        assert f"index {missing} was off while blocks were applied".encode() in done.stderr
        assert b"`utxod reindex`" in done.stderr
        done = daemon.run("reindex")
        assert (done.returncode, done.stdout.decode()) == (0, f"indexed 4 outputs by {', '.join(INDEXES)}\n")
        live = [(digest("tx", "rich").hex(), 0), (digest("tx", "more").hex(), 0)]
        keys = {
            "address_hash": address_key(base),
            "payment_credential": digest("key", size=28),
            "stake_credential": digest("stake", size=28),
            "policy": policy,
            "asset": asset_key(policy, b"b"),
            "datum": digest("datum"),
            "script": digest("script", size=28),
        }
        for index in INDEXES:
            assert listed(daemon, index, keys[index]) == live, index
            assert listed(daemon, index, digest("nothing")) == []
        daemon.start()
        feed(daemon, chain(5, blocks[-1]))
        done = daemon.run("reindex")
        assert done.returncode == 1 and b"another process has this store open for writing" in done.stderr
        daemon.assert_sound()
        daemon.term()
        runs = daemon.status()["rows"]["history_run"]
        daemon.configure(utxo={"index": off})
        daemon.start()
        status = daemon.status()
        assert status["indexes"] == ["payment_credential"] and status["rows"]["history_run"] < runs
        daemon.assert_sound()


def test_config_show_and_check(tmp_path: Path) -> None:
    with home(tmp_path, utxo={"prune_depth": 77}) as daemon:
        shown = utxod("config", "show", "--config", daemon.config)
        assert (shown.returncode, shown.stderr) == (0, b"")
        tree = tomllib.loads(shown.stdout.decode())
        assert tree["utxo"]["prune_depth"] == 77 and tree["batch"]["max_bytes"] == "64MiB"
        (tmp_path / "again.toml").write_bytes(shown.stdout)
        again = utxod("config", "show", "--config", tmp_path / "again.toml")
        assert again.stdout == shown.stdout
        checked = utxod("config", "check", "--config", daemon.config)
        assert (checked.returncode, checked.stdout) == (0, b"the configuration is valid\n")


def test_config_check_reports_every_problem(tmp_path: Path) -> None:
    with home(tmp_path, utxo={"prune_dept": 1}, batch={"max_bytes": "much"}) as daemon:
        for command in (["config", "check"], ["config", "show"], ["run"], ["status"], ["verify"], ["export"]):
            done = utxod(*command, "--config", daemon.config)
            assert (done.returncode, done.stdout) == (2, b""), command
            assert b"prune_dept" in done.stderr and b"max_bytes" in done.stderr


def test_version_and_wrong_use() -> None:
    assert utxod("-h").stdout.startswith(b"Usage: ")
    assert utxod("--version").stdout.startswith(b"utxod, version ")
    wrong = [["nonsense"], ["run", "--nonsense"], ["export", "--format", "xml"], ["feed", "file"], ["config", "x"]]
    for words in wrong:
        done = utxod(*words)
        assert (done.returncode, done.stdout) == (2, b""), words
        assert b"Error: " in done.stderr
