"""`utxod verify`, the command: what it says, and the copy on which it takes blocks back; nothing stays behind."""

from __future__ import annotations

import fcntl
import os
import shutil
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from tempfile import TemporaryDirectory
from time import sleep

import pytest
from chains import LEAVES
from corruption import U32, Hand, harm, opened
from daemons import PATIENCE_S, ROOT, Daemon, environment, home, running, statuses
from patience import until
from scenarios import chain, expected

from storage.copies import remove_stale, temporary
from storage.history.layout import BLOCK
from storage.history.verify import MOST, verify

BLOCKS = chain(700, outputs=6)
TABLES = {"utxo": {"rollback_window": 2000, "store": "mmr"}, "transactions": {"enabled": False}}


@pytest.fixture(scope="module")
def whole(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return the folder of a sound store; taking all its blocks back takes a while."""
    folder = tmp_path_factory.mktemp("whole")
    with running(folder, None, **TABLES) as daemon:
        with daemon.client("frames") as client:
            assert set(statuses(client.feed(BLOCKS))) == {"applied"}
        assert daemon.term() == 0
    return folder


@pytest.fixture
def store(whole: Path, tmp_path: Path) -> Iterator[Daemon]:
    with home(tmp_path, None, **TABLES) as daemon:
        shutil.copytree(whole / "data", tmp_path / "data")
        yield daemon


def lmdb_of(daemon: Daemon) -> Path:
    return daemon.folder / "data" / "lmdb"


def findings(daemon: Daemon, *, quick: bool) -> list[str]:
    with opened(lmdb_of(daemon)) as disk:
        return verify(disk, quick=quick, leaves=LEAVES)


# --- findings -------------------------------------------------------------------------------------------------------


def test_the_command_exits_3_with_what_is_wrong(store: Daemon) -> None:
    store.assert_sound()
    harm(lmdb_of(store), lambda hand: hand.change_state(unspent=hand.state.unspent + 1))
    for options in ([], ["--quick"]):
        done = store.run("verify", *options)
        assert (done.returncode, done.stdout) == (3, b"")
        assert b"outputs unspent, but the state counts" in done.stderr and b"Traceback" not in done.stderr
        assert done.stderr.endswith(b"restore a backup or synchronise again (a wrong index alone: `utxod reindex`)\n")
    assert copies(store.folder / "data") == []


def test_the_store_is_not_touched(store: Daemon) -> None:
    data = lmdb_of(store) / "data.mdb"
    before = data.read_bytes()
    store.assert_sound()
    assert data.read_bytes() == before
    assert copies(store.folder / "data") == []


def test_at_most_a_hundred_findings_are_printed(store: Daemon) -> None:
    def damage(hand: Hand) -> None:
        for ordinal in range(100, 400):
            hand.put(BLOCK, U32.pack(ordinal), b"nonsense")

    harm(lmdb_of(store), damage)
    assert len(findings(store, quick=True)) == len(findings(store, quick=False)) == MOST == 100
    assert len(store.run("verify").stderr.splitlines()) == MOST + 1


# --- the copy --------------------------------------------------------------------------------------------------------


def copies(place: Path) -> list[Path]:
    return [path for path in place.iterdir() if "verify" in path.name]


def command(daemon: Daemon, *options: str | Path) -> list[str]:
    return [sys.executable, "-m", "daemon.cli", "verify", "--config", str(daemon.config), *map(str, options)]


def interrupted(daemon: Daemon, number: signal.Signals) -> int:
    """Return the exit code of a `verify` that receives a signal while it has a copy; its child has ended then."""
    place = daemon.folder / "data"
    for _ in range(50):
        process = subprocess.Popen(
            command(daemon), stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL, env=environment()
        )
        while not (made := copies(place)) and process.poll() is None:
            sleep(0.001)
        children = Path(f"/proc/{process.pid}/task/{process.pid}/children").read_text().split() if made else []
        process.send_signal(number)
        code = process.wait(PATIENCE_S)
        if made and children and code != 0:  # else it was ready before the signal came
            ended([int(child) for child in children])
            return code
    raise AssertionError("it was never interrupted")


def ended(pids: list[int]) -> None:
    """Wait until processes that are not our children have ended."""
    for path in (Path(f"/proc/{pid}/stat") for pid in pids):
        until(lambda path=path: not path.exists() or ") Z " in path.read_text(), why=f"{path} is there")  # type: ignore[misc]


@pytest.mark.parametrize(
    ("number", "code"), [(signal.SIGTERM, 143), (signal.SIGHUP, 129), (signal.SIGQUIT, 131), (signal.SIGINT, 1)]
)
def test_a_verify_that_is_interrupted_leaves_nothing(store: Daemon, number: signal.Signals, code: int) -> None:
    assert interrupted(store, number) == code
    assert copies(store.folder / "data") == []


def test_the_copy_of_a_killed_verify_is_removed_by_the_next_one_or_a_daemon(store: Daemon) -> None:
    place = store.folder / "data"
    assert interrupted(store, signal.SIGKILL) == -signal.SIGKILL
    assert len(copies(place)) == 1
    store.assert_sound()
    assert copies(place) == []
    assert interrupted(store, signal.SIGKILL) == -signal.SIGKILL
    (left,) = copies(place)
    store.start()
    assert [line["folder"] for line in store.log_lines() if line["event"] == "stale_copy_removed"] == [str(left)]
    assert store.term() == 0
    assert copies(place) == []


def test_a_copy_that_is_in_use_stays(tmp_path: Path) -> None:
    with temporary(tmp_path) as used:
        stale = tmp_path / "utxod-verify-stale"
        stale.mkdir()
        (stale / "data.mdb").touch()
        assert remove_stale(tmp_path) == [stale]
        assert used.exists()
    assert list(tmp_path.iterdir()) == []


def test_the_copy_is_made_in_the_requested_folder(store: Daemon, tmp_path_factory: pytest.TempPathFactory) -> None:
    other = tmp_path_factory.mktemp("other")
    (store.folder / "data").chmod(0o555)
    seen = set[Path]()
    for _ in range(20):
        process = subprocess.Popen(
            command(store, "--copy-to", other), stdout=subprocess.PIPE, stderr=subprocess.STDOUT, env=environment()
        )
        while process.poll() is None:
            seen.update(copies(other))
            sleep(0.001)
        assert process.communicate()[0] == b"sound\n"
        if seen:
            break
    assert seen and copies(other) == []
    assert store.run("verify", "--copy-to", other / "nowhere").returncode == 2


# --- read-only and full disks -------------------------------------------------------------------------------------


def apart(script: str, *arguments: str | Path, **environ: str) -> subprocess.CompletedProcess[bytes]:
    """Run a shell script in a mount namespace of its own."""
    shell = ["unshare", "--map-root-user", "--mount", "sh", "-ec", script, "sh", *map(str, arguments)]
    if (
        shutil.which("unshare") is None
        or subprocess.run([*shell[:3], "true"], capture_output=True, check=False).returncode
    ):
        pytest.skip("nothing can be mounted here")
    return subprocess.run(shell, capture_output=True, env=environment(**environ), timeout=4 * PATIENCE_S, check=False)


def test_a_store_on_a_read_only_disk(store: Daemon, tmp_path_factory: pytest.TempPathFactory) -> None:
    """The copy is made among temporary files; the other commands that read work too."""
    spare = tmp_path_factory.mktemp("spare")
    mounted = 'mount --bind "$1" "$1"; mount -o remount,bind,ro "$1"; ! touch "$1/x" 2>/dev/null; shift; "$@"'
    done = apart(mounted, store.folder / "data", *command(store), TMPDIR=str(spare))
    assert (done.returncode, done.stdout, done.stderr) == (0, b"sound\n", b"")
    assert copies(spare) == []
    exported = apart(
        mounted, store.folder / "data", *("export" if word == "verify" else word for word in command(store))
    )
    assert exported.stderr == b""
    assert exported.stdout.decode().splitlines() == expected(BLOCKS)


def test_no_space_for_a_copy(store: Daemon, tmp_path_factory: pytest.TempPathFactory) -> None:
    """What fits is checked, and the unchecked undo logs are reported, also if the space runs out on the way."""
    small = tmp_path_factory.mktemp("small")
    used = (store.folder / "data" / "lmdb" / "data.mdb").stat().st_size
    for size in (used // 2, used + 8 * 4096):
        mounted = f'mount -t tmpfs -o size={size // 4096 * 4096} none "$1"; shift; "$@"'
        done = apart(mounted, small, *command(store, "--copy-to", small))
        assert done.returncode == 0, done.stderr
        note, sound = done.stdout.decode().splitlines()
        assert sound == "sound"
        assert note.startswith("the undo logs were not tried on a copy: ") and str(small) in note, note


READING = """
import os, sys
from pathlib import Path
from daemon.store import TABLES
from storage.disk import Disk
from storage.errors import StoreBusy
from storage.history.store import HistoryStore
if os.geteuid() == 0:
    os.setgid(65534)
    os.setuid(65534)
try:
    with Disk(Path(sys.argv[1]), TABLES, readonly=True) as disk, disk.read() as txn:
        print(HistoryStore(disk).state(txn).tip)
except StoreBusy as error:
    print(error)
"""


def test_a_user_with_read_permission_only(store: Daemon) -> None:
    """LMDB writes its lock file: without a writer this is not needed, with one it is."""
    with TemporaryDirectory(prefix="utxod-") as readable:
        folder = Path(readable) / "lmdb"
        shutil.copytree(store.folder / "data" / "lmdb", folder)
        for path in (folder.parent, folder, *folder.iterdir()):
            path.chmod(0o555 if path.is_dir() else 0o444)
        owner = os.open(folder / "owner", os.O_RDONLY)
        try:
            assert read_only(folder) == "700"
            fcntl.flock(owner, fcntl.LOCK_EX)
            assert "a daemon writes to this store" in read_only(folder)
        finally:
            os.close(owner)
            folder.parent.chmod(0o755)
            folder.chmod(0o755)


def read_only(folder: Path) -> str:
    reading = [sys.executable, "-c", READING, str(folder)]
    done = subprocess.run(reading, cwd=ROOT, env=environment(), capture_output=True, timeout=PATIENCE_S, check=False)
    assert done.stderr == b""
    return done.stdout.decode().strip()
