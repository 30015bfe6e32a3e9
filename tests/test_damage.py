"""Every command and every start reports a damaged store; none crashes again and again."""

from __future__ import annotations

import os
import re
import shutil
import signal
import struct
import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import suppress
from pathlib import Path
from time import monotonic
from typing import Any

import lmdb
import lmdb.verify
import msgspec
import pytest
from click.testing import CliRunner
from corruption import U32, Hand, harm
from daemons import PATIENCE_S, ROOT, Daemon, environment, home, running, statuses
from faults import full, lmdb_error
from scenarios import address, at, block, chain, digest, output, tx
from structlog.testing import capture_logs

from daemon.cli import main
from daemon.commands.common import store_errors
from daemon.commands.service import one_failure
from daemon.crash import refuse_after_crash
from daemon.store import TABLES
from storage import pool_layout
from storage.damage import damage
from storage.disk import META
from storage.errors import Damaged
from storage.history.layout import BLOCK, FILTER, LIVE, OUTPUT, RUN, STATE, TX, UNDO, seal
from storage.history.layout import TABLES as HISTORY_TABLES
from storage.history.mmr import NODE
from storage.history.mmr import TABLES as MMR_TABLES
from storage.pages import check_file, check_pages
from storage.precheck import precheck
from storage.rows import seal_bytes, seal_row

PAGE = 4096
BLOCKS = chain(700, outputs=6)
KINDS = ("classic", "mmr")


def settings(kind: str) -> dict[str, Any]:
    return {"utxo": {"rollback_window": 2000, "store": kind}, "storage": {"map_size": "64MiB"}}


@pytest.fixture(scope="module")
def whole(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    """Return the folders of sound stores of a megabyte or two: blocks, and transactions that wait for one."""
    folders = {kind: tmp_path_factory.mktemp(kind) for kind in KINDS}
    pending = [{"type": "TxSubmitted", "tx": tx(f"p{n}", output("ann"), spends=[at(n, 4)])} for n in range(1, 9)]
    for kind, folder in folders.items():
        with running(folder, None, **settings(kind)) as daemon:
            with daemon.client("frames") as client:
                assert set(statuses(client.feed([*BLOCKS, *pending]))) == {"applied", "accepted"}
            assert daemon.term() == 0
    return folders


@pytest.fixture
def store(whole: dict[str, Path], tmp_path: Path, request: pytest.FixtureRequest) -> Iterator[Daemon]:
    """Yield a copy to damage, by default of a classic store."""
    kind = getattr(request, "param", "classic")
    with home(tmp_path, None, **settings(kind)) as daemon:
        shutil.copytree(whole[kind] / "data", tmp_path / "data")
        yield daemon


both = pytest.mark.parametrize("store", KINDS, indirect=True)


def folder(daemon: Daemon) -> Path:
    return daemon.folder / "data" / "lmdb"


def file(daemon: Daemon) -> Path:
    return folder(daemon) / "data.mdb"


def overwrite(path: Path, at_byte: int, data: bytes) -> None:
    with path.open("r+b") as raw:
        raw.seek(at_byte)
        raw.write(data)


def refused(daemon: Daemon, command: str, words: str) -> None:
    """Check that a command ends with exit code 3 and a one-line error."""
    done = daemon.run(command)
    text = done.stderr.decode()
    assert done.returncode == 3, (command, text)
    assert "Traceback" not in text, text
    assert re.search(words, text), text


# --- what is damaged -------------------------------------------------------------------------------------------------


def root_of(path: Path, table: str) -> int:
    raw = path.read_bytes()
    found = [match.end() for match in re.finditer(re.escape(table.encode()), raw)]
    roots = {struct.unpack_from("=Q", raw, end + 40)[0] for end in found}
    page: int
    (page,) = {root for root in roots if 2 <= root < len(raw) // PAGE and newest(path, table, root)}
    return page


def newest(path: Path, table: str, root: int) -> bool:
    """Return whether a page is the current root of a table; older versions of its record name other roots."""
    raw = bytearray(path.read_bytes())
    raw[root * PAGE : (root + 1) * PAGE] = bytes(PAGE)
    copy = path.with_suffix(".try")
    copy.write_bytes(raw)
    try:
        return any(f"/{table} DB" in finding and f"page {root} " in finding for finding in check_pages(copy))
    finally:
        copy.unlink()


def drop(daemon: Daemon, table: str) -> None:
    with lmdb.open(str(folder(daemon)), max_dbs=64) as env:
        db = env.open_db(table.encode(), create=False)
        with env.begin(write=True) as txn:
            txn.drop(db)


AT_START: dict[str, tuple[Callable[[Daemon], object], str]] = {
    "cut": (lambda d: os.truncate(file(d), file(d).stat().st_size // 2), "was cut off"),
    "cut to nothing": (lambda d: os.truncate(file(d), 0), "cut off"),
    "zeros in a meta page": (
        lambda d: overwrite(file(d), PAGE, bytes(PAGE)),
        "the meta page at byte 4096 is not valid",
    ),
    "garbage in a meta page": (lambda d: overwrite(file(d), 16, b"\xa5" * 150), "the meta page at byte 0 is not valid"),
    "a map beyond all memory": (
        lambda d: overwrite(file(d), PAGE + 16 + 16, struct.pack("=Q", 1 << 62)),
        "in a map of 4611686018427387904 bytes",
    ),
    "zeros at the root of a table": (
        lambda d: overwrite(file(d), root_of(file(d), BLOCK) * PAGE, bytes(PAGE)),
        "MDB_CORRUPTED: Located page was wrong type",
    ),
    "a list of free pages that names what is not there": (
        lambda d: free_page_that_is_none(folder(d)),
        "the list of free pages cannot be read: an entry in page",
    ),
    "a table that is gone": (lambda d: drop(d, OUTPUT), f"the table {OUTPUT} is missing"),
    "a format that is gone": (
        lambda d: harm(folder(d), lambda hand: hand.delete(META, b"format")),
        "it has rows, but no format",
    ),
    "a tip that has no row": (
        lambda d: harm(folder(d), lambda hand: hand.change_state(tip=(1 << 32) - 1)),
        f"the last block is 700, but the tip is {(1 << 32) - 1}",
    ),
    "a way back that is gone": (
        lambda d: harm(folder(d), lambda hand: hand.delete(UNDO, U32.pack(700) + bytes(4))),
        "block 700 has no undo log",
    ),
}


@both
@pytest.mark.parametrize("kind", AT_START)
def test_damage_that_is_found_before_a_daemon_starts(store: Daemon, kind: str) -> None:
    damage, words = AT_START[kind]
    precheck(folder(store), TABLES)
    damage(store)
    with pytest.raises((Damaged, lmdb.Error), match=words):
        precheck(folder(store), TABLES)


@both
def test_both_ends_of_every_table_are_read(store: Daemon) -> None:
    met, raw = set[str](), file(store).read_bytes()
    with lmdb.open(str(folder(store)), max_dbs=64, readonly=True, lock=False) as env:
        with env.begin() as txn:
            names = [key.decode() for key, _ in txn.cursor()]
        tables = {name: env.open_db(name.encode(), create=False) for name in names}
        with env.begin() as txn:
            filled = [name for name, db in tables.items() if txn.stat(db)["entries"]]
    for table in filled:
        overwrite(file(store), root_of(file(store), table) * PAGE, bytes(PAGE))
        with pytest.raises(Damaged, match=r"MDB_CORRUPTED|is damaged|is missing"):
            precheck(folder(store), TABLES)
        file(store).write_bytes(raw)
        met.add(table)
    precheck(folder(store), TABLES)
    wanted = {META, *HISTORY_TABLES, "change_log", "tx", "tx_unmined", "tx_pending"}
    assert met >= wanted | ({*MMR_TABLES} if NODE in tables else set()), met


@both
def test_every_table_of_the_chain_has_to_be_there(store: Daemon) -> None:
    raw = file(store).read_bytes()
    for table in [table for table in (*HISTORY_TABLES, *MMR_TABLES) if table.encode() in raw]:
        drop(store, table)
        with pytest.raises(Damaged, match=f"the table {table} is missing$"):
            precheck(folder(store), TABLES)
        if table in (OUTPUT, NODE):
            refused(store, "verify", f"the table {table} is missing")
        file(store).write_bytes(raw)


@pytest.mark.parametrize("kind", ["cut", "zeros at the root of a table", "a tip that has no row"])
def test_a_daemon_does_not_start_on_it(store: Daemon, kind: str) -> None:
    damage, words = AT_START[kind]
    damage(store)
    refused(store, "run", f"{words}.*: keep a copy of the store and run `utxod verify`")
    refused(store, "verify", f"{BLOCK} DB: page" if "root" in kind else words)


def test_a_store_of_an_earlier_version_is_not_called_damaged(store: Daemon) -> None:
    """Only tables that exist since the format began must be there."""
    for table in ("pruner_left", "pruner_job", "tx_unmined"):
        drop(store, table)
    precheck(folder(store), TABLES)


def free_page_that_is_none(path: Path) -> None:
    """Let the last commit's list of free pages name a page behind the end."""
    with lmdb.open(str(path), max_dbs=64) as env, env.begin() as txn:
        last, commit = env.info()["last_pgno"], txn.id()
    raw, key = (path / "data.mdb").read_bytes(), b"\x08\x00" + struct.pack("=Q", commit)
    places = [found.end() for found in re.finditer(re.escape(key), raw)]
    assert places
    for place in places:
        overwrite(path / "data.mdb", place + 8, struct.pack("=Q", last + 1000))


def zeros_inside(table: str, kind: str | None = None) -> Callable[[Hand], None]:
    """Return the damage that a lost write does to values: zeros in the middle, but not at both ends of the table.

    LMDB writes a long value into pages of its own, and looks at none of its bytes. `kind` is that of runs.
    """

    def damage(hand: Hand) -> None:
        own, met = None if kind is None else {key for key, _ in hand.entries(kind)}, 0
        for key, value in hand.rows(table)[1:-1]:
            if own is None or key in own:
                third = len(value) // 3
                hand.put(table, key, value[:third] + bytes(third) + value[2 * third :])
                met += 1
        assert met

    return damage


@both
def test_zeros_in_the_middle(store: Daemon) -> None:
    """A disk that loses writes leaves zeros: every reader reports them, and nothing counts as missing."""
    harm(folder(store), zeros_inside(OUTPUT))
    refused(store, "verify", "the value of outputs from number .* does not have the checksum")
    refused(store, "export", "the value of number .* does not have the checksum")
    harm(folder(store), zeros_inside(RUN, "txid"))
    refused(store, "verify", r"the value of run \d+ from entry .* does not have the checksum")
    store.start()
    with store.client() as client:
        spends = [at(n, 3) for n in range(1, 700)]
        client.send({"seq": 1} | block(BLOCKS[-1], tx("late", output("ann"), spends=spends)))
        assert client.receive() is None
    assert store.wait() == 3
    (printed,) = [line for line in store.log_lines() if line["event"] == "process_failed"]
    assert printed["exit_code"] == 3 and "utxod verify" in printed["error"]
    assert re.search(r"the entries of run \d+ \(txid\) are not in order", printed["error"])


def test_an_export_from_which_a_value_is_missing(store: Daemon) -> None:
    """A page of an earlier commit is valid by itself, so the missing value is noticed only at the end."""
    harm(folder(store), lambda hand: hand.delete(OUTPUT, hand.rows(OUTPUT)[3][0]))
    reported = CliRunner().invoke(main, ["export", "--config", str(store.config)])
    assert reported.exit_code == 3
    assert re.search(r"\d+ unspent outputs have records, but the state counts 3501: .*`utxod verify`", reported.stderr)


def test_a_sound_file_may_be_shorter_than_in_its_meta_page(tmp_path: Path) -> None:
    """Pages that one commit allocated and freed were never written."""
    short = 0
    with lmdb.open(str(tmp_path), map_size=64 << 20, max_dbs=1, sync=False) as env:
        db = env.open_db(b"rows")
        for n in range(40):
            with env.begin(write=True) as txn:
                for key in range(400):
                    txn.put(bytes([n, key // 256, key % 256]), bytes((10, 3000, 9000)[key % 3]), db=db)
                for key in range(n, 400):
                    txn.delete(bytes([n, key // 256, key % 256]), db=db)
            path = tmp_path / "data.mdb"
            check_file(path)
            assert check_pages(path) == []
            pages = env.info()["last_pgno"] + 1
            short += path.stat().st_size < pages * PAGE
    assert short, "not one of these files was short"
    os.truncate(path, path.stat().st_size - PAGE * 40)
    with pytest.raises(Damaged, match="cut off"):
        check_file(path)


WRITING = """
import itertools, random, sys, lmdb
with lmdb.open(sys.argv[1], map_size=64 << 20, max_dbs=1, sync=False) as env:
    db = env.open_db(b"rows")
    for commit in itertools.count():
        with env.begin(write=True) as txn:
            for _ in range(200):
                txn.put(random.randrange(20_000).to_bytes(4, "big"), random.randbytes(80), db=db)
        if commit == 0:
            print("ready", flush=True)
"""


def test_pages_that_are_written_meanwhile_are_not_called_damaged(tmp_path: Path) -> None:
    """LMDB's verifier reports pages of two states; the number of the commit shows that."""
    path, give_up, met = tmp_path / "data.mdb", monotonic() + PATIENCE_S, 0
    with subprocess.Popen([sys.executable, "-c", WRITING, str(tmp_path)], stdout=subprocess.PIPE) as writer:
        try:
            assert writer.stdout is not None and writer.stdout.readline() == b"ready\n"
            while met < 10:
                assert monotonic() < give_up and writer.poll() is None, "the verifier was never disturbed"
                assert check_pages(path) == []
                check_file(path)
                with suppress(lmdb.verify.VerifyError):
                    met += bool(lmdb.verify.verify(str(path), subdir=False))  # type: ignore[no-untyped-call]
        finally:
            writer.kill()


def test_a_store_that_is_written_is_not_called_damaged(tmp_path: Path) -> None:
    with running(tmp_path, None, **settings("mmr")) as daemon, daemon.client("frames") as client:
        client.send(*BLOCKS)
        for _ in range(20):
            precheck(folder(daemon), TABLES)
            assert check_pages(file(daemon)) == []
        assert daemon.run("verify", "--quick").stdout == b"sound\n"


# --- signals ---------------------------------------------------------------------------------------------------------


def test_a_child_killed_while_reading_reports_its_place() -> None:
    code = (
        "import os, sys\n"
        "from daemon.child import Place, continue_in_child\n"
        "progress = Place()\n"
        "continue_in_child(progress)\n"
        "if sys.argv[1] != 'none': progress.note('history_output', int(sys.argv[1]), bytes.fromhex('00000007'))\n"
        "os.kill(os.getpid(), int(sys.argv[2]))\n"
    )
    for row, words in (("none", "before the first row was read"), ("0", "in history_output at its first row")):
        assert words in died(code, row, signal.SIGABRT)
    for number in (signal.SIGABRT, signal.SIGBUS, signal.SIGSEGV):
        words = f"reading it ended with {number.name} in history_output after row 1,234 (key 00000007): keep a copy"
        assert words in died(code, "1234", number)


def died(code: str, row: str, number: signal.Signals) -> str:
    script = f"import click\ntry:\n exec({code!r})\nexcept click.ClickException as error:\n error.show()"
    command = [sys.executable, "-W", "error", "-c", script, row, str(int(number))]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, env=environment(), timeout=PATIENCE_S, check=False)
    assert done.returncode == 3, done
    return done.stderr.decode()


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM, signal.SIGHUP, signal.SIGQUIT])
def test_a_signal_right_after_the_fork_ends_the_child_too(number: signal.Signals) -> None:
    """A child that continues for a short time would leave its copy."""
    script = (
        "import os, sys, time\n"
        "from daemon.child import continue_in_child\n"
        "fork = os.fork\n"
        "def forked():\n"
        "    if (pid := fork()):\n"
        "        os.kill(os.getpid(), int(sys.argv[1]))\n"
        "    return pid\n"
        "os.fork = forked\n"
        "try:\n"
        "    continue_in_child()\n"
        "    time.sleep(60)\n"
        "except (KeyboardInterrupt, SystemExit):\n"
        "    try:\n"
        "        os.waitpid(-1, os.WNOHANG)\n"
        "    except ChildProcessError:\n"
        "        print('gone')\n"
    )
    command = [sys.executable, "-W", "error", "-c", script, str(int(number))]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, env=environment(), timeout=PATIENCE_S, check=False)
    assert (done.stdout, done.stderr) == (b"gone\n", b"")


def test_a_page_that_is_not_there_ends_a_command_with_one_line(store: Daemon) -> None:
    os.truncate(file(store), 8 * PAGE)
    refused(store, "export", "the store is damaged: reading it ended with SIGBUS")
    refused(store, "reindex", "the store is damaged: reading it ended with SIGBUS")


def test_a_daemon_that_was_ended_by_its_store_is_not_started_again(store: Daemon) -> None:
    store.start()
    os.truncate(file(store), 8 * PAGE)
    with store.client() as client:
        client.send({"seq": 1} | block(BLOCKS[-1], tx("late", output("ann"), spends=[at(n, 3) for n in range(1, 700)])))
        assert client.receive() is None
    assert store.wait() == -signal.SIGBUS
    crash = folder(store) / "crash"
    text = crash.read_text()
    assert text.startswith("Fatal Python error: Bus error") and "storage/" in text
    refused(
        store, "run", r"/crash: the last daemon ended by 'Bus error' in storage/[\w/]+\.py:\d+, so the store is damaged"
    )
    assert store.spawn().wait(PATIENCE_S) == 3, "again and again"
    assert crash.read_text() == text


@pytest.mark.parametrize(
    ("frames", "refuses"),
    [
        (["storage/utxo.py", "storage/disk.py", "handlers/chain.py", "/usr/lib/python3/threading.py"], True),
        (["handlers/deletion.py", "handlers/pruner.py", "/usr/lib/python3/threading.py"], True),
        (["/usr/lib/python3/contextlib.py", "storage/disk.py", "daemon/app.py", "daemon/cli.py"], True),
        (["handlers/utxo.py", "/usr/lib/python3/asyncio/runners.py", "daemon/app.py", "daemon/cli.py"], False),
        (["storage/recovery/sqlite.py", "handlers/recovery/manager.py", "daemon/app.py", "daemon/cli.py"], False),
        (["/srv/storage/disk.py", "daemon/metrics.py", "daemon/cli.py"], False),
        ([], False),
    ],
)
def test_a_stack_shows_whether_the_store_was_used(frames: list[str], refuses: bool, tmp_path: Path) -> None:
    """The watchdog ends a stuck main thread, which never reads the store, with SIGABRT."""
    stack = "".join(f'  File "{ROOT / path}", line 7 in work\n' for path in frames)
    (tmp_path / "crash").write_text(f"Fatal Python error: Aborted\n\nStack (most recent call first):\n{stack}")
    if refuses:
        with pytest.raises(Damaged, match=r"the last daemon ended by 'Aborted' in (storage|handlers)/\w+.py:7"):
            refuse_after_crash(tmp_path)
    else:
        with capture_logs() as logs:
            refuse_after_crash(tmp_path)
        assert [line["event"] for line in logs] == ["crash_found"]


def test_a_signal_from_outside_is_only_logged(store: Daemon) -> None:
    store.start()
    with store.client() as client:
        client.hello()
    store.process.send_signal(signal.SIGABRT)
    assert store.wait() == -signal.SIGABRT
    store.start()
    (reported,) = [line for line in store.log_lines() if line["event"] == "crash_found"]
    assert reported["how"] == "Aborted" and "/storage/" not in reported["where"]
    assert store.term() == 0
    assert not (folder(store) / "crash").exists()


# --- exceptions ------------------------------------------------------------------------------------------------------

QUERIED = {  # what reads the rows of a table
    "status": ["status"],
    "export": ["export"],
    "output": ["query", "utxo", f"{digest('tx', 300).hex()}#5"],
    "address": ["query", "address", address("300/5").hex()],
    "changes": ["query", "delta", "300"],
}


def zeros_at_the_end(value: bytes) -> bytes:
    kept = min(100, len(value) // 2)
    return value[:kept] + bytes(len(value) - kept)


def every(table: str, change: Callable[[bytes], bytes]) -> Callable[[Hand], None]:
    def damage(hand: Hand) -> None:
        for key, value in hand.rows(table):
            hand.put(table, key, change(value))

    return damage


def meta(key: bytes, value: bytes) -> Callable[[Hand], None]:
    return lambda hand: hand.put(META, key, value)


NOTHING, A_MAP = b"", seal_row(msgspec.Raw(b"\x80"))  # type: ignore[arg-type]
CHANGES: dict[str, Callable[[bytes], bytes]] = {
    "no bytes": lambda _: NOTHING,
    "zeros": lambda value: bytes(len(value)),
    "another length": lambda _: seal(9, bytes(100)),
    "a map": lambda _: A_MAP,
}
ROWS: dict[str, tuple[Callable[[Hand], object], list[str]]] = {
    "a chain that is no text": (meta(b"chain", seal_bytes(b"\xff\xfe")), ["status", "export", "output"]),
    "a state of no bytes": (meta(STATE, NOTHING), [*QUERIED]),
    "a state that is an array of nothing": (meta(STATE, seal_row(msgspec.Raw(b"\x90"))), [*QUERIED]),  # type: ignore[arg-type]
    "a state that is one byte": (meta(STATE, b"\x90"), [*QUERIED]),
    "a state that is a map": (meta(STATE, A_MAP), [*QUERIED]),
    "a list of runs that is a map": (meta(b"runs:txid", A_MAP), ["output"]),
    "a list of runs of no bytes": (meta(b"runs:address_hash", NOTHING), ["address"]),
    "filters of zeros": (every(FILTER, lambda value: bytes(len(value))), ["output"]),
}
for table, queries in {
    BLOCK: ["status", "changes"],
    TX: ["export", "output", "address"],
    OUTPUT: ["export", "output", "address", "changes"],
    LIVE: ["export", "output", "address"],
    UNDO: ["changes"],
    RUN: ["output", "address"],
    FILTER: ["output"],
}.items():
    for name, change in CHANGES.items():
        ROWS[f"{table}: {name}"] = (every(table, change), queries)
for table in (TX, OUTPUT):
    ROWS[f"{table}: zeros at the end"] = (every(table, zeros_at_the_end), ["export"])
    ROWS[f"{table}: no records"] = (every(table, lambda _: seal(0)), ["export", "output"])


@pytest.mark.parametrize("kind", ROWS)
def test_an_unreadable_row_is_one_line(store: Daemon, kind: str) -> None:
    damage, requests = ROWS[kind]
    harm(folder(store), damage)
    for command, *arguments in (QUERIED[name] for name in requests):
        words = [command, *arguments[:1], "--config", str(store.config), *arguments[1:]]
        reported = CliRunner().invoke(main, words)
        assert reported.exit_code == 3, (command, reported.output)
        assert isinstance(reported.exception, SystemExit), reported.exception
        assert re.fullmatch("Error: .*(`utxod verify`|this store is for .*)\n", reported.stderr), reported.stderr
    reported = CliRunner().invoke(main, ["verify", "--quick", "--config", str(store.config)])
    assert reported.exit_code == 3 and isinstance(reported.exception, SystemExit), reported


def test_only_what_reads_rows_is_taken_for_damage(store: Daemon) -> None:
    raised = KeyError("state")
    try:
        raise raised
    except KeyError:
        assert damage(raised) is None
    for kind in (lmdb.MapFullError, lmdb.ReadersFullError, lmdb.TxnFullError):
        limit = kind("mdb_put")
        vars(limit)["code"] = -30792
        assert damage(limit) is None
    assert damage(full()) is None
    found = damage(lmdb_error(-30796, "MDB_CORRUPTED: Located page was wrong type"))
    assert found is not None and "the store is damaged: Error: mdb_put: MDB_CORRUPTED" in str(found)
    with pytest.raises(Damaged, match="this"), one_failure():
        raise BaseExceptionGroup("", [OSError(), BaseExceptionGroup("", [Damaged("this"), ValueError()])])
    with pytest.raises(OSError, match="alone"), one_failure():
        raise BaseExceptionGroup("", [BaseExceptionGroup("", [OSError("alone")])])
    with pytest.raises(BaseExceptionGroup), one_failure():
        raise BaseExceptionGroup("", [OSError(), ValueError()])


def test_a_bug_outside_of_the_store_is_not_taken_for_damage() -> None:
    """Commands and services are part of every traceback."""
    for raised in (ValueError("a bug"), BaseExceptionGroup("", [ValueError("a bug")])):
        with pytest.raises(ValueError, match="a bug"), store_errors(), one_failure():
            raise raised


def test_an_input_that_no_transaction_has_costs_no_memory() -> None:
    in_order = pool_layout.in_order
    assert in_order([(2, (b"a", 1)), (0, (b"b", 2))]) == [(b"b", 2), pool_layout.NOTHING, (b"a", 1)]
    with pytest.raises(Damaged, match="was spent by input 4294967294"):
        in_order([(2, (b"a", 1)), ((1 << 32) - 2, (b"b", 2))])
