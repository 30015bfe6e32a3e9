"""The commands that look after a store: export, status, prune, reindex, config, and their exit codes."""

from __future__ import annotations

import json
import subprocess
import sys
import tomllib
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import click
from chains import INDEXES
from daemons import Daemon, Message, environment, home, reason, running, statuses, utxod
from scenarios import at, back_to, block, chain, digest, expected, output, point, tx

from config.load import load
from daemon.cli import main
from daemon.store import open_query
from storage.history.output_keys import address_key, asset_key

SMALL: dict[str, Any] = {"utxo": {"rollback_window": 5, "prune_depth": 3}}


def feed(daemon: Daemon, messages: list[Message]) -> None:
    with daemon.client("frames") as client:
        assert all(answer["type"] == "Ack" for answer in client.feed(messages))


# --- export and status -----------------------------------------------------------------------------------------------


def test_export_is_in_chain_order(daemon: Daemon) -> None:
    """Genesis first, then by block, transaction and index; the same while the daemon runs and when it does not."""
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


def test_export_of_many(daemon: Daemon) -> None:
    """More than is written at once."""
    messages = chain(40, outputs=250)
    feed(daemon, messages)
    assert daemon.export() == expected(messages)


def test_export_to_a_reader_that_has_seen_enough(daemon: Daemon) -> None:
    feed(daemon, chain(40, outputs=250))
    command = [sys.executable, "-m", "daemon.cli", "export", "--config", str(daemon.config)]
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, env=environment()) as process:
        assert process.stdout is not None and process.stderr is not None
        assert process.stdout.readline()
        process.stdout.close()
        assert process.stderr.read() == b""
    assert process.returncode == 1


def test_status(tmp_path: Path) -> None:
    with running(tmp_path, **SMALL) as daemon:
        blocks = chain(20, outputs=2)
        feed(daemon, [*blocks, {"type": "BlockPersisted", "height": 17}])
        for alive in (True, False):
            facts = daemon.status()
            assert facts["chain"] == "cardano/mainnet"
            assert facts["tip"] == point(blocks[-1])
            assert facts["rollback_floor"] == point(blocks[14])
            assert facts["persisted_height"] == 17
            assert facts["unspent"] == len(expected(blocks)) and facts["rows"]["history_block"] == 20
            assert facts["prune_backlog_blocks"] == 0
            done = daemon.run("status")
            assert (done.returncode, done.stderr) == (0 if alive else 1, b"")
            text = done.stdout.decode()
            assert blocks[-1]["hash"].hex() in text and "cardano/mainnet" in text
            if alive:
                daemon.term()


def test_commands_beside_a_daemon_that_writes(daemon: Daemon) -> None:
    """Each looks at one block boundary, whatever is written meanwhile, even when the map grows under it."""
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


def test_there_is_no_store(tmp_path: Path) -> None:
    with home(tmp_path) as daemon:
        for command in ("export", "status", "verify", "prune", "reindex"):
            done = daemon.run(command)
            assert (done.returncode, done.stdout) == (1, b""), command
            assert b"there is no store here" in done.stderr and b"Traceback" not in done.stderr
        assert not (tmp_path / "data").exists()  # no command but `run` begins a store


def test_a_folder_that_cannot_be(tmp_path: Path) -> None:
    with home(tmp_path, data_dir=str(tmp_path / "utxod.toml" / "data")) as daemon:
        for command in ("run", "status", "verify", "export", "prune", "reindex"):
            done = daemon.run(command)
            words = reason(done).encode() if command == "run" else done.stderr
            assert (done.returncode, done.stdout, words.rstrip().count(b"\n")) == (1, b"", 0), command
            assert str(tmp_path / "utxod.toml" / "data").encode() in words


def test_a_file_that_cannot_be_opened(tmp_path: Path) -> None:
    """Most often it is somebody else's; to root only a folder in its place does the same."""
    with home(tmp_path) as daemon:
        (tmp_path / "data" / "lmdb" / "data.mdb").mkdir(parents=True)
        for command in ("run", "status", "verify", "export", "prune", "reindex"):
            done = daemon.run(command)
            assert done.returncode == 1, command
            assert b"Traceback" not in done.stderr and str(tmp_path / "data" / "lmdb").encode() in done.stderr, command


# --- prune -----------------------------------------------------------------------------------------------------------


def test_prune(tmp_path: Path) -> None:
    """What the daemon was not allowed to prune goes now, and nothing that is still needed."""
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


def test_prune_of_transactions_without_outputs(tmp_path: Path) -> None:
    with running(tmp_path, pruner={"enabled": False}, **SMALL) as daemon:
        with daemon.client() as client:
            for each in chain(30):  # one output each, and the next block spends it; a commit each
                client.ask(each)
        daemon.term()
        before = daemon.status()["rows"]
        assert b"0 transactions" not in daemon.run("prune").stdout
        rows = daemon.status()["rows"]
        for table in ("history_tx", "history_output"):
            assert rows[table] < before[table] // 2
        daemon.assert_sound()


# --- reindex ---------------------------------------------------------------------------------------------------------


def listed(daemon: Daemon, index: str, key: bytes) -> list[tuple[str, int]]:
    """Return what an index lists under a key."""
    with open_query(load(daemon.config, {})) as query, query.snapshot() as shot:
        found = shot.page(shot.listed(index, key), 1000, "asc", 1, None).utxos
        return [(utxo.tx_hash, utxo.output_index) for utxo in found]


def test_reindex(tmp_path: Path) -> None:
    """An index that is switched on over data is refused until it is built; one that is switched off is dropped."""
    off = dict.fromkeys(INDEXES, False) | {"payment_credential": True}
    with running(tmp_path, utxo={"index": off}) as daemon:
        policy = digest("policy", size=28)
        base = b"\x01" + digest("key", size=28) + digest("stake", size=28)
        beside = {"address": base, "datum_hash": digest("datum"), "script_ref_hash": digest("script", size=28)}
        rich = output("ann", 1, assets=[[policy, b"a", 1], [policy, b"b", 2]]) | beside
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
        daemon.assert_sound()
        daemon.term()
        runs = daemon.status()["rows"]["history_run"]
        daemon.configure(utxo={"index": off})
        daemon.start()
        status = daemon.status()
        assert status["indexes"] == ["payment_credential"] and status["rows"]["history_run"] < runs
        daemon.assert_sound()


def test_reindex_beside_a_daemon_is_refused(daemon: Daemon) -> None:
    feed(daemon, chain(3))
    done = daemon.run("reindex")
    assert done.returncode == 1 and b"another process has this store open for writing" in done.stderr


# --- the configuration -----------------------------------------------------------------------------------------------


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
        assert (checked.returncode, checked.stdout) == (0, b"the configuration is sound\n")


def test_config_check_says_all_that_is_wrong(tmp_path: Path) -> None:
    with home(tmp_path, utxo={"prune_dept": 1}, batch={"max_bytes": "much"}) as daemon:
        for command in (["config", "check"], ["config", "show"], ["run"], ["status"], ["verify"], ["export"]):
            done = utxod(*command, "--config", daemon.config)
            assert (done.returncode, done.stdout) == (2, b""), command
            assert b"prune_dept" in done.stderr and b"max_bytes" in done.stderr


def test_where_the_configuration_comes_from(tmp_path: Path) -> None:
    """`--config` before or after the command, else the environment; a variable wins over the file."""
    with home(tmp_path, utxo={"prune_depth": 77}) as daemon:
        asked = [
            utxod("--config", daemon.config, "config", "show"),
            utxod("config", "show", UTXOD_CONFIG=str(daemon.config)),
            utxod("config", "show", UTXOD_CONFIG=str(daemon.config), UTXOD_UTXO__PRUNE_DEPTH="78"),
        ]
        depths = [tomllib.loads(done.stdout.decode())["utxo"]["prune_depth"] for done in asked]
        assert depths == [77, 77, 78]
    done = utxod("status", "--config", tmp_path / "nowhere.toml")
    assert done.returncode == 2 and b"this file does not exist" in done.stderr


# --- help and wrong use ----------------------------------------------------------------------------------------------


def commands(group: click.Group, name: tuple[str, ...] = ()) -> Iterator[tuple[tuple[str, ...], click.Command]]:
    yield name, group
    context = click.Context(group)
    for word in group.list_commands(context):
        command = group.get_command(context, word)
        assert command is not None
        if isinstance(command, click.Group) and word != "bench":  # its commands need packages of their own
            yield from commands(command, (*name, word))
        else:
            yield (*name, word), command


def test_every_command_explains_itself() -> None:
    found = dict(commands(main))
    promised = {("run",), ("feed", "file"), ("status",), ("verify",), ("export",), ("prune",), ("reindex",)}
    assert promised | {("config", "show"), ("config", "check")} <= set(found)
    for name, command in found.items():
        assert command.help and command.help[0].isupper() and command.get_short_help_str(), name
        if name != ("bench",):
            assert "Usage: utxod" in command.get_help(click.Context(command, info_name=" ".join(("utxod", *name))))
        for option in command.params:
            if isinstance(option, click.Option) and not option.hidden:
                assert option.help, (name, option.name)


def test_help_and_version_and_wrong_use() -> None:
    for words in (["--help"], ["-h"], ["run", "--help"], ["feed", "file", "--help"], ["config", "--help"]):
        done = utxod(*words)
        assert (done.returncode, done.stderr) == (0, b"") and b"Usage:" in done.stdout
    assert utxod("--version").stdout.startswith(b"utxod, version ")
    wrong = [["nonsense"], ["run", "--nonsense"], ["export", "--format", "xml"], ["feed", "file"], ["config", "x"]]
    for words in wrong:
        done = utxod(*words)
        assert (done.returncode, done.stdout) == (2, b""), words
        assert b"Error: " in done.stderr
