"""A machine to throw away: systemd as the first process of its own namespaces, on a copy-on-write copy of our files."""

from __future__ import annotations

import os
import shutil
import subprocess
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from tempfile import TemporaryDirectory

import pytest
from patience import patience, until

ENVIRONMENT = {"PATH": "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin", "LC_ALL": "C.UTF-8"}
_GROUPS = (Path("/sys/fs/cgroup/unified"), Path("/sys/fs/cgroup"))
_NEEDED = ("unshare", "nsenter", "systemctl", "systemd-analyze", "systemd-sysusers")
# Units that the host has enabled are not started: the machine has what a test installs.
_BOOT = r"""
group=$1 scratch=$2
mount --make-rprivate /
echo $$ > "$group/cgroup.procs"
exec unshare --cgroup bash -euc '
mount -t tmpfs tmpfs "$0"
mkdir "$0"/{upper,work,root}
mount -t overlay overlay -o "lowerdir=/,upperdir=$0/upper,workdir=$0/work" "$0/root"
cd "$0/root"
rm -rf etc/systemd/system/* lib/systemd/system/*.wants lib/systemd/system-generators/* usr/local/lib/systemd
for both in "${@}"; do mkdir -p ".${both#*=}"; mount --bind "${both%%=*}" ".${both#*=}"; done
mount -t proc proc proc
mount -t sysfs -o ro sysfs sys
mount -t cgroup2 cgroup2 sys/fs/cgroup
mount -t tmpfs tmpfs run
mount -t tmpfs tmpfs dev
for name in null zero full random urandom tty; do touch dev/$name; mount --bind /dev/$name dev/$name; done
mkdir -p dev/shm dev/pts old
ln -s pts/ptmx dev/ptmx
ln -s /proc/self/fd dev/fd
pivot_root . old
cd /
umount -l old
exec env -i PATH="$PATH" container=other /lib/systemd/systemd --system --unit=basic.target \
  --log-target=null --show-status=false --crash-shell=false
' "$scratch" "${@:3}"
"""


class Machine:
    """What runs; `pid` is its first process, as we see it."""

    def __init__(self, pid: int) -> None:
        self.pid = pid

    def run(
        self,
        *words: object,
        check: bool = True,
        user: str | None = None,
        stdin: bytes = b"",
        environ: Mapping[str, str] = ENVIRONMENT,
    ) -> subprocess.CompletedProcess[str]:
        plain = [*map(str, words)]
        enter = ["nsenter", f"--target={self.pid}", "--all", "--root", "--wd", "--"]
        become = ["setpriv", f"--reuid={user}", f"--regid={user}", "--init-groups"] if user else []
        done = subprocess.run(
            [*enter, *become, *plain],
            capture_output=True,
            input=stdin,
            env=environ,
            timeout=patience(60),
        )
        decoded = subprocess.CompletedProcess(
            [*map(str, words)], done.returncode, done.stdout.decode(), done.stderr.decode()
        )
        assert not check or decoded.returncode == 0, f"{plain}: {decoded.stdout}{decoded.stderr}"
        return decoded

    def show(self, unit: str, what: str) -> str:
        return self.run("systemctl", "show", "--value", "-p", what, unit).stdout.strip()

    def file(self, path: str) -> Path:
        """Return where we find a file of it."""
        return Path(f"/proc/{self.pid}/root{path}")


def _group() -> Path | None:
    return next((path for path in _GROUPS if (path / "cgroup.procs").exists()), None)


def _missing() -> str | None:
    if os.geteuid() != 0:
        return "only root can start a machine"
    if missing := [name for name in _NEEDED if shutil.which(name) is None]:
        return f"a machine needs {', '.join(missing)}"
    if not Path("/lib/systemd/systemd").exists():
        return "a machine needs systemd: apt-get install systemd"
    if _group() is None:
        return "a machine needs control groups of version 2"
    if "\toverlay\n" not in Path("/proc/filesystems").read_text():
        return "a machine needs overlay filesystems"
    return None


@contextmanager
def machine(folders: Mapping[Path, str]) -> Iterator[Machine]:
    """Start a machine that sees folders of ours in other places too; skip where that is impossible."""
    if reason := _missing():
        pytest.skip(reason)
    parent = _group()
    assert parent is not None
    with TemporaryDirectory(prefix="utxod-machine-") as scratch:
        group = parent / Path(scratch).name
        group.mkdir()
        apart = ["--mount", "--pid", "--fork", "--uts", "--ipc", "--net", "--kill-child"]
        log = Path(scratch, "log")
        with log.open("wb") as decoded:
            words = ["unshare", *apart, "bash", "-euc", _BOOT, "boot", group, f"{scratch}/files"]
            words += [f"{ours}={theirs}" for ours, theirs in folders.items()]
            Path(scratch, "files").mkdir()
            process = subprocess.Popen([*map(str, words)], stdout=decoded, stderr=decoded, env=ENVIRONMENT)
        try:
            yield _booted(process, log)
        finally:
            process.kill()
            process.wait()
            until(lambda: "populated 0" in (group / "cgroup.events").read_text(), why="processes are left")
            for inner in sorted(group.rglob("*/"), reverse=True):
                inner.rmdir()
            group.rmdir()


def _booted(process: subprocess.Popen[bytes], log: Path) -> Machine:
    children = Path(f"/proc/{process.pid}/task/{process.pid}/children")

    def state() -> Machine | None:
        if process.poll() is not None:
            pytest.skip(f"no machine can be started here: {log.read_text().strip().splitlines()[-1:]}")
        if not (pids := children.read_text().split()):
            return None
        here = Machine(int(pids[0]))
        if Path(f"/proc/{here.pid}/comm").read_text().strip() != "systemd":
            return None
        return here if here.run("systemctl", "is-active", "basic.target", check=False).returncode == 0 else None

    found = until(state, why="systemd did not start")
    assert found is not None
    return found
