"""The units: what systemd says of them, and the service as it is installed, under all that its unit forbids."""

from __future__ import annotations

import json
import re
import shutil
import subprocess
import sys
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from pathlib import Path
from time import gmtime, strftime
from typing import Any

import patience
import pytest
from daemons import ROOT, Message, as_hex, log_lines
from machine import ENVIRONMENT, Machine, machine
from packages import PURE, tree
from reader_processes import OURS
from scenarios import back_to, chain, output, tx

until = partial(patience.until, pause_s=0.1)  # most conditions start a process
UNITS = sorted(path for kind in ("service", "socket", "timer") for path in (ROOT / "systemd").glob(f"*.{kind}"))
SERVICES = [path for path in UNITS if path.suffix == ".service"]
PYTHON = Path(sys.base_prefix)
SOURCE = "/opt/source"
PACKAGES, INTERPRETER = "/opt/packages", "/opt/python"
DAEMON = "utxod.service"
# What is refused ends the process, so the tests know of it; mbind is a hint of numpy's allocator.
STRICTER = "SystemCallErrorNumber=kill\nSystemCallFilter=~mbind:EPERM"
HOLDING = """
import lmdb, time
from pathlib import Path
with lmdb.open("/var/lib/utxod/lmdb", max_dbs=4) as env, env.begin(write=True):
    while Path("/tmp/held").exists():
        time.sleep(0.01)
"""
# Of /proc/net/tcp: a connection to 10.9.9.9 that has sent SYN, and again because nothing came back.
TRIED_AGAIN = r" 0909090A:\w+ 02 \S+ \S+ 0*[1-9]"
STOPPED = "import os, signal" + OURS.replace("sys.stdin.read()", "os.kill(os.getpid(), signal.SIGSTOP)")


@pytest.mark.parametrize("unit", SERVICES, ids=lambda unit: unit.name)
def test_exposure_is_low(unit: Path) -> None:
    if shutil.which("systemd-analyze") is None:
        pytest.skip("systemd-analyze is missing: apt-get install systemd")
    words = ["systemd-analyze", "security", "--no-pager", "--offline=true", "--threshold=10", str(unit)]
    done = subprocess.run(words, capture_output=True, text=True)
    assert done.returncode == 0, done.stdout[-200:]


def files(here: Machine) -> set[str]:
    """Return every file and folder where an installation leaves something."""
    places = ["/etc", "/usr/local", "/opt", "/var/lib", "/var/backups"]
    ours = [word for place in (SOURCE, PACKAGES, INTERPRETER) for word in ("-path", place, "-prune", "-o")]
    return set(here.run("find", *places, *ours, "-print").stdout.splitlines())


INSTALLING = ENVIRONMENT | {"PIP_NO_INDEX": "1", "PYTHON": f"{INTERPRETER}/bin/python3"}  # packages are there already


def install(here: Machine, *words: str) -> str:
    return here.run(f"{SOURCE}/systemd/install.sh", *words, environ=INSTALLING).stdout


@pytest.fixture(scope="module")
def here(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Machine]:
    """A machine on which the service was installed as an operator does it, and is not started yet."""
    source = tree(tmp_path_factory.mktemp("source"))
    with machine({source: SOURCE, PURE: PACKAGES, PYTHON: INTERPRETER}) as here:
        here.file("/etc/ld.so.conf.d/python.conf").write_text(f"{INTERPRETER}/lib\n")
        here.run("ldconfig")
        here.run(f"{INTERPRETER}/bin/python3", "-m", "venv", "/opt/utxod")
        here.run("/opt/utxod/bin/pip", "uninstall", "-q", "-y", "setuptools")  # the version that comes with venv
        version = f"python{sys.version_info.major}.{sys.version_info.minor}"
        here.file(f"/opt/utxod/lib/{version}/site-packages/packages.pth").write_text(f"{PACKAGES}\n")
        assert "installed. Next:" in install(here)
        log = here.file("/etc/systemd/system/service.d/log.conf")  # there is no journal
        log.parent.mkdir(parents=True)
        log.write_text("[Service]\nStandardError=append:/var/log/%N.log\nStandardOutput=append:/var/log/%N.log\n")
        here.run("systemctl", "daemon-reload")
        here.run("ip", "link", "set", "lo", "up")
        for user in ("wallet", "stranger"):
            here.run("useradd", "--no-create-home", user)
        here.run("usermod", "-aG", "utxod", "wallet")
        yield here


def log(here: Machine, unit: str = DAEMON) -> str:
    return here.file(f"/var/log/{unit.removesuffix('.service')}.log").read_text()


def send(here: Machine, *messages: Message, user: str = "utxod") -> list[dict[str, Any]]:
    lines = b"".join(json.dumps(as_hex(message)).encode() + b"\n" for message in messages)
    done = here.run("utxod", "send", "--keep-going", "-", user=user, stdin=lines, check=False)
    assert done.stdout, done.stderr
    return [json.loads(line) for line in done.stdout.splitlines()]


def test_every_unit_is_valid(here: Machine) -> None:
    names = [unit.name.replace("@.", "@example.") for unit in UNITS]
    done = here.run("systemd-analyze", "verify", *names, check=False)
    assert (done.returncode, done.stdout, done.stderr) == (0, "", "")


def status(here: Machine, name: str) -> str:
    text = here.file(f"/proc/{here.show(DAEMON, 'MainPID')}/status").read_text()
    return next(line.split(":", 1)[1].strip() for line in text.splitlines() if line.startswith(f"{name}:"))


def drop_in(here: Machine, *lines: str, unit: str = DAEMON, name: str = "test") -> None:
    """Put lines into the section [Service] of a unit, in place of those before."""
    place = here.file(f"/etc/systemd/system/{unit}.d/{name}.conf")
    place.parent.mkdir(exist_ok=True)
    place.write_text("\n".join(["[Service]", *lines, ""]))
    here.run("systemctl", "daemon-reload")


def get(here: Machine, path: str) -> dict[str, Any]:
    code = f"import urllib.request as u; print(u.urlopen('http://127.0.0.1:8410{path}').read().decode())"
    requests = until(
        lambda: here.run("/opt/utxod/bin/python", "-c", code, check=False), lambda done: done.returncode == 0
    )
    answer: dict[str, Any] = json.loads(requests.stdout)
    return answer


def test_the_service_works_under_every_restriction(here: Machine) -> None:
    short = "Environment=UTXOD_STORE__MAX_READER_AGE=1s UTXOD_UTXO__ROLLBACK_WINDOW=5 UTXOD_UTXO__PRUNE_DEPTH=5"
    drop_in(here, short, STRICTER)
    here.run("systemctl", "enable", "--now", "utxod.socket", DAEMON)
    assert here.show(DAEMON, "ActiveState") == "active", log(here)
    assert (status(here, "NoNewPrivs"), status(here, "Seccomp"), status(here, "CapBnd")) == ("1", "2", "0" * 16)
    blocks = chain(20, outputs=3)
    answers = send(here, *blocks, {"type": "TxSubmitted", "tx": tx("waits", output("ann"))})
    assert [answer.get("status") for answer in answers] == ["applied"] * 20 + ["accepted"], log(here)
    branch = chain(3, blocks[16], branch="other")
    answers = send(here, back_to(blocks[16]), *branch)
    assert [answer.get("status") for answer in answers] == ["rolled_back", *["applied"] * 3]
    assert get(here, "/api/v1/status")["tip"]["height"] == 20
    until(lambda: here.run("utxod", "recovery", "list", "--json", user="utxod").stdout.splitlines(), why=log(here))
    assert here.run("utxod", "verify", user="utxod").stdout == "sound\n"
    until(lambda: here.show(DAEMON, "StatusText"), lambda text: text.startswith("height 20, "), why=log(here))

    reader = ["bash", "-c", '"$@" & wait $!', "bash", "/opt/utxod/bin/python", "-c", STOPPED, "/etc/utxod/utxod.toml"]
    with ThreadPoolExecutor(1) as pool:  # it is killed once it has stopped and is older than the blocks that follow
        stopped = pool.submit(here.run, *reader, check=False, user="utxod")
        following = iter(chain(300, branch[-1]))
        until(lambda: send(here, next(following)) and stopped.done(), why=log(here))
    until(lambda: "reader_killed" in log(here))
    assert [line["event"] for line in log_lines(log(here))].count("reader_killed") == 1

    here.run("systemctl", "reload", DAEMON)
    until(lambda: "config_reloaded" in log(here))
    here.run("systemctl", "kill", "--kill-whom=main", "--signal=KILL", DAEMON)
    until(lambda: (here.show(DAEMON, "NRestarts"), here.show(DAEMON, "ActiveState")), ("1", "active").__eq__)
    assert get(here, "/api/v1/status")["tip"]["height"] > 20
    here.run("systemctl", "stop", DAEMON)
    assert (here.show(DAEMON, "Result"), here.show(DAEMON, "ExecMainStatus")) == ("success", "0"), log(here)
    events = [line["event"] for line in log_lines(log(here))]
    assert events[-1] == "stopped" and "Traceback" not in log(here)


def test_the_socket_starts_the_service_for_its_group(here: Machine) -> None:
    here.run("systemctl", "stop", DAEMON)  # a test before this one may have left it running
    here.run("systemctl", "start", "utxod.socket")
    assert here.show(DAEMON, "ActiveState") == "inactive"
    given = ["--config", "/dev/null", "--socket", "/run/utxod/utxod.sock"]
    refused = here.run("utxod", "send", *given, "-", user="stranger", check=False)
    assert refused.returncode == 2 and "'/run/utxod/utxod.sock' is not readable" in refused.stderr, refused
    assert here.show(DAEMON, "ActiveState") == "inactive"
    (answer,) = send(here, {"type": "TxSubmitted", "tx": tx("other", output("bob"))}, user="wallet")
    assert answer["status"] == "accepted"
    until(lambda: here.show(DAEMON, "ActiveState"), "active".__eq__)  # it answers before systemd reads READY=1


def test_operators_of_their_own_need_a_drop_in(here: Machine) -> None:
    uid = here.run("id", "-u", "wallet").stdout.strip()
    variable = f"Environment=UTXOD_SOCKET__ADMIN_UIDS={uid}"
    lock: Message = {"type": "TxLocked", "txids": [tx("theirs", output("bob"))["txid"]]}
    drop_in(here, variable)
    here.run("systemctl", "restart", DAEMON)
    submitted: Message = {"type": "TxSubmitted", "tx": tx("theirs", output("bob"))}
    assert [answer["status"] for answer in send(here, submitted, lock)] == ["accepted", "accepted"]
    assert send(here, lock, user="root")[0]["status"] == "accepted"
    assert send(here, lock, user="wallet")[0]["code"] == "not_permitted"
    (line,) = [line for line in log_lines(log(here)) if line["event"] == "admin_uids_hidden"]
    assert line["uids"] == [int(uid)]
    drop_in(here, variable, "PrivateUsers=no")
    here.run("systemctl", "restart", DAEMON)
    assert send(here, lock, user="wallet")[0]["status"] == "accepted"


def test_a_blocked_writer_is_restarted(here: Machine) -> None:
    drop_in(here, "WatchdogSec=1")
    here.run("systemctl", "restart", DAEMON)
    held = here.file("/tmp/held")
    held.touch()
    with ThreadPoolExecutor(1) as pool:
        holder = pool.submit(here.run, "/opt/utxod/bin/python", "-c", HOLDING, user="utxod")
        until(lambda: here.show(DAEMON, "Result") == "watchdog" or int(here.show(DAEMON, "NRestarts")), why=log(here))
        held.unlink()
        holder.result()
    until(lambda: here.show(DAEMON, "ActiveState"), "active".__eq__)
    assert here.run("utxod", "verify", user="utxod").stdout == "sound\n"


def test_a_feed_runs_as_a_service(here: Machine) -> None:
    tip = get(here, "/api/v1/status")["tip"]
    parent: Message = {"height": tip["height"], "hash": bytes.fromhex(tip["hash"]), "slot": tip["slot"], "txs": []}
    here.file("/srv/events.jsonl").write_text("".join(json.dumps(as_hex(each)) + "\n" for each in chain(5, parent)))
    here.file("/etc/utxod/feeds/example.conf").write_text('FEED="file /srv/events.jsonl"\n')
    feed = "utxod-feed@example.service"
    drop_in(here, STRICTER, unit=feed)
    here.run("systemctl", "start", feed)
    until(lambda: here.show(feed, "ActiveState"), "inactive".__eq__)
    assert here.show(feed, "Result") == "success", log(here, feed)
    assert get(here, "/api/v1/status")["tip"]["height"] == tip["height"] + 5


def test_a_feed_reaches_other_machines_only_with_a_drop_in(here: Machine) -> None:
    here.run("ip", "address", "add", "10.9.9.9/32", "dev", "lo")
    here.file("/etc/utxod/feeds/far.conf").write_text('FEED="ogmios ws://10.9.9.9:1337 --wait 1"\n')
    feed = "utxod-feed@far.service"
    here.run("systemctl", "start", feed)
    until(lambda: re.search(TRIED_AGAIN, here.file("/proc/1/net/tcp").read_text()), why=log(here, feed))
    drop_in(here, "IPAddressAllow=10.9.9.9", unit=feed)
    here.run("systemctl", "restart", feed)
    until(lambda: "refused" in log(here, feed), why=log(here, feed))  # nobody listens there
    here.run("systemctl", "stop", feed)


def test_backups_are_made_and_the_oldest_removed(here: Machine) -> None:
    backups = here.file("/var/backups/utxod")
    drop_in(here, STRICTER, "Environment=KEEP=2", unit="utxod-backup.service")
    for made in range(1, 4):
        here.run("systemctl", "start", "utxod-backup.service")
        assert len(list(backups.iterdir())) == min(made, 2), log(here, "utxod-backup.service")
        until(lambda: not (backups / strftime("%Y%m%dT%H%M%SZ", gmtime())).exists())  # names have whole seconds
    newest = f"/var/backups/utxod/{max(path.name for path in backups.iterdir())}"
    assert "restored" in here.run("utxod", "restore", newest, "/srv/restored").stdout


def test_every_command_of_the_page_runs(here: Machine) -> None:
    page = (ROOT / "docs" / "service.md").read_text()
    *blocks, last = re.findall(r"^```bash\n(.*?)^```", page, re.MULTILINE | re.DOTALL)
    here.run("groupadd", "--system", "bitcoin")
    for block in blocks:
        here.run("bash", "-euc", f"cd {SOURCE}; {block}", environ=INSTALLING)
    for unit in (DAEMON, "utxod-feed@ogmios.service"):
        assert here.show(unit, "ActiveState") == "active", log(here, unit)
    here.run("systemctl", "start", "utxod-feed@bitcoin.service", check=False)
    assert "were kept" in here.run("bash", "-euc", f"cd {SOURCE}; {last}").stdout
    assert here.show(DAEMON, "LoadState") == "not-found"
    assert {"/etc/utxod/utxod.toml", "/var/lib/utxod/lmdb"} <= files(here)
    assert install(here, "--remove", "--purge") == "removed\n"
    assert not [path for path in files(here) if "utxod" in path and not path.startswith("/etc/systemd/system/utxod")]
