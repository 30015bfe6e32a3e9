"""Blobs in folders and buckets: a blob is complete or missing after kills, full disks and failing servers."""

from __future__ import annotations

import errno
import os
import re
import resource
import secrets
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from random import Random
from typing import Any
from urllib.request import Request, urlopen

import obstore
import pytest
from daemons import PATIENCE_S, running

import storage.blobname
import storage.blobs
import storage.bucket
from config.units import BLOB_STORE
from storage.blobs import BlobFailed, Blobs, Files, open_blobs
from storage.bucket import Bucket
from storage.errors import PackageMissing

MIB = 1 << 20
A, B, C, D = (f"{digit * 64}.{kind}" for digit, kind in zip("abcd", ["tx", "outputs", "tx", "tx"], strict=True))
HOURS = 7200.0


# --- where blobs are -----------------------------------------------------------------------------------------------

SERVER = """
from moto.moto_server.werkzeug_app import DomainDispatcherApplication, create_backend_app
from werkzeug.serving import make_server
server = make_server("127.0.0.1", 0, DomainDispatcherApplication(create_backend_app), threaded=True)
print(server.port, flush=True)
server.serve_forever()
"""


@pytest.fixture(scope="module")
def s3() -> Iterator[str]:
    log = subprocess.DEVNULL
    with subprocess.Popen([sys.executable, "-c", SERVER], stdout=subprocess.PIPE, stderr=log, text=True) as server:
        try:
            assert server.stdout
            endpoint = f"http://127.0.0.1:{int(server.stdout.readline())}"
            with urlopen(Request(f"{endpoint}/box", method="PUT"), timeout=30) as answer:
                assert answer.status == 200
            yield endpoint
        finally:
            server.kill()


@pytest.fixture(autouse=True)
def environment(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in [name for name in os.environ if name.startswith("AWS_") or name.lower().endswith("_proxy")]:
        monkeypatch.delenv(name)
    monkeypatch.setenv("AWS_ACCESS_KEY_ID", "ann")
    monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", "open sesame")
    monkeypatch.setenv("AWS_ALLOW_HTTP", "true")


@pytest.fixture(params=["file", "s3"])
def where(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> str:
    if request.param == "file":
        return "file:blobs"
    monkeypatch.setenv("AWS_ENDPOINT_URL", request.getfixturevalue("s3"))
    return f"s3://box/{secrets.token_hex(8)}/blobs"


@pytest.fixture
def blobs(where: str, tmp_path: Path) -> Blobs:
    return open_blobs(where, tmp_path)


def later(monkeypatch: pytest.MonkeyPatch, seconds: float) -> None:
    real = time.time
    monkeypatch.setattr(time, "time", lambda: real() + seconds)


# --- what both kinds do --------------------------------------------------------------------------------------------


def test_blobs_are_put_read_listed_and_deleted(blobs: Blobs, where: str, tmp_path: Path) -> None:
    for data in (b"", b"\0", bytes(range(256)) * 12_001):
        assert blobs.get(A) is None
        blobs.put(A, data)
        blobs.put(A, b"not written: there is one")
        assert (blobs.get(A), blobs.get(A.replace(".tx", ".outputs"))) == (data, None)
        blobs.put(B, b"b")
        assert {(name, age < 60) for name, age in blobs.names()} == {(A, True), (B, True)}
        assert open_blobs(where, tmp_path).get(A) == data
        assert [blobs.delete(A), blobs.delete(A), blobs.delete(C)] == [True, False, False]
        assert [name for name, _ in blobs.names()] == [B]
    blobs.check()
    assert [name for name, _ in blobs.names()] == [B]


def test_putting_a_blob_again_renews_its_age(blobs: Blobs, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """An orphaned blob that gets a record again must not be deleted."""
    blobs.put(A, b"a")
    if isinstance(blobs, Files):
        path = tmp_path / "blobs" / "aa" / A
        os.utime(path, (time.time() - HOURS,) * 2)
        assert [age >= HOURS - 1 for _, age in blobs.names()] == [True]
        blobs.put(A, b"a")
        assert [age < 60 for _, age in blobs.names()] == [True]
        assert blobs.get(A) == b"a"
    else:
        later(monkeypatch, storage.bucket.FRESH_S / 2)
        blobs.put(A, b"not written")
        assert blobs.get(A) == b"a"
        later(monkeypatch, HOURS)
        blobs.put(A, b"written")
        assert blobs.get(A) == b"written"


def test_names_lists_all_blobs_with_their_ages(blobs: Blobs, monkeypatch: pytest.MonkeyPatch) -> None:
    names = {f"{number:02x}" * 32 + kind for number in range(0, 256, 15) for kind in (".tx", ".outputs")}
    for name in names:
        blobs.put(name, name.encode())
    assert {name for name, _ in blobs.names()} == names
    later(monkeypatch, HOURS)
    assert all(HOURS - 2 <= age < HOURS + 60 for _, age in blobs.names())
    later(monkeypatch, -2 * HOURS)
    assert {age for _, age in blobs.names()} == {0.0}


NAME = "a" * 64
HOSTILE = [
    *("", ".tx", NAME, f"{NAME[1:]}.tx", f"a{NAME}.tx", f"{NAME.upper()}.tx", f"{NAME}.TX", f"{NAME}.tx\n"),
    *(f"{NAME}.tx.part", f"{NAME}.tx\0", f"{NAME}.tx/../../x.tx", f"../{NAME}.tx", f"/{NAME}.tx", f"aa/{NAME}.tx"),
    *("٠" * 64 + ".tx", "\udcff" * 64 + ".tx", f".{NAME}.tx.0123456789abcdef.part"),
]


def test_any_other_name_is_refused(blobs: Blobs, tmp_path: Path) -> None:
    before = sorted(tmp_path.rglob("*"))
    for name in HOSTILE:
        for call in (partial(blobs.put, name, b"x"), partial(blobs.get, name), partial(blobs.delete, name)):
            with pytest.raises(ValueError, match="is not the name of a blob"):
                call()
    assert sorted(tmp_path.rglob("*")) == before
    assert list(blobs.names()) == []


def test_old_leftovers_of_interrupted_calls_are_deleted(
    blobs: Blobs, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    blobs.put(A, b"a")
    if isinstance(blobs, Files):
        folder = tmp_path / "blobs"
        left = [folder / "aa" / storage.blobname.leftover(A), folder / storage.blobname.leftover("check")]
        foreign = [folder / "aa" / "note.txt", folder / "aa" / B, folder / "zz.part", folder / "aa" / ".x.part"]
        for path in [*left, *foreign]:
            path.write_bytes(b"half")
        assert [name for name, _ in blobs.names()] == [A]
        assert all(path.exists() for path in left)
        later(monkeypatch, HOURS)
        assert [name for name, _ in blobs.names()] == [A]
        assert [path.exists() for path in left] == [False, False]
        assert all(path.read_bytes() == b"half" for path in foreign)
    else:
        probe, foreign_key = storage.blobname.leftover("check"), "note.txt"
        assert isinstance(blobs, Bucket)
        for key in (probe, foreign_key):
            obstore.put(blobs._store, key, b"half")
        assert [name for name, _ in blobs.names()] == [A]
        assert obstore.head(blobs._store, probe)["size"] == 4
        later(monkeypatch, HOURS)
        assert [name for name, _ in blobs.names()] == [A]
        with pytest.raises(FileNotFoundError):
            obstore.head(blobs._store, probe)
        assert obstore.head(blobs._store, foreign_key)["size"] == 4


# --- files: a disk that is full, broken, gone ----------------------------------------------------------------------


def files_below(folder: Path) -> list[Path]:
    return sorted(path for path in folder.rglob("*") if not path.is_dir())


def test_a_full_disk_is_an_error_and_leaves_nothing(tmp_path: Path) -> None:
    """The kernel refuses to let the file grow in the middle of a write."""
    blobs = Files(tmp_path)
    blobs.put(A, b"a")
    limits = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (MIB, limits[1]))
    try:
        with pytest.raises(BlobFailed) as caught:
            blobs.put(B, bytes(3 * MIB))
        assert str(caught.value) == f"{tmp_path}/bb/{B}: there is no space: File too large"
        assert files_below(tmp_path) == [tmp_path / "aa" / A]
        blobs.put(C, b"small")
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, limits)
    blobs.put(B, bytes(3 * MIB))
    assert {name for name, _ in blobs.names()} == {A, B, C}


class Calls:
    """Records system calls, and fails the one numbered `at`, if any."""

    def __init__(self, patch: pytest.MonkeyPatch, at: int | None, code: int) -> None:
        self.seen: list[str] = []
        for name in ("mkdir", "open", "write", "fsync", "replace", "utime"):
            patch.setattr(os, name, self._watched(name, getattr(os, name), at, code))

    def _watched(self, name: str, real: Callable[..., Any], at: int | None, code: int) -> Callable[..., Any]:
        def call(*args: Any, **options: Any) -> Any:
            self.seen.append(name)
            if len(self.seen) == at:
                raise OSError(code, os.strerror(code))
            return real(*args, **options)

        return call


@pytest.mark.parametrize("code", [errno.ENOSPC, errno.EDQUOT, errno.EIO])
@pytest.mark.parametrize("there", [False, True])
def test_a_fault_at_any_call_is_reported_and_the_next_put_succeeds(there: bool, code: int, tmp_path: Path) -> None:
    data, reasons = b"data" * 1000, set[str]()
    with pytest.MonkeyPatch.context() as patch:
        calls = Calls(patch, None, code)
        Files(tmp_path / "whole").put(A, data)
        steps = list(calls.seen)
    assert steps.count("fsync") >= 3
    for number in range(1, 20):
        root = tmp_path / str(number)
        blobs = Files(root)
        if there:
            blobs.put(A, data)
        with pytest.MonkeyPatch.context() as patch:
            calls = Calls(patch, number, code)
            try:
                blobs.put(A, data)
            except BlobFailed as failed:
                reasons.add(str(failed).removeprefix(str(root)))
            else:
                break
        assert blobs.get(A) in (None, data)
        assert files_below(root) in ([], [root / "aa" / A])
        blobs.put(A, data)
        assert blobs.get(A) == data
    assert number > (3 if there else 6)
    problem = "the blob store failed" if code == errno.EIO else "there is no space"
    assert reasons == {f"/aa/{A}: {problem}: {os.strerror(code)}"}


def test_bytes_are_synced_before_the_name_and_the_name_before_the_answer(tmp_path: Path) -> None:
    blobs, folder, file, name = Files(tmp_path), ["open", "fsync"], ["open", "write", "fsync"], ["replace"]
    for put, expected in [
        (A, ["mkdir", *folder, *file, *name, *folder]),  # the folder itself is new, and has to stay
        (A.replace(".tx", ".outputs"), [*file, *name, *folder]),
        (A, ["utime", *folder]),
    ]:
        with pytest.MonkeyPatch.context() as patch:
            calls = Calls(patch, None, 0)
            blobs.put(put, b"a")
        assert calls.seen == expected


def test_a_partial_write_is_continued(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    write = os.write
    monkeypatch.setattr(os, "write", lambda file, data: write(file, data[:1000]))
    blobs, data = Files(tmp_path), secrets.token_bytes(12_345)
    blobs.put(A, data)
    assert blobs.get(A) == data


def test_a_missing_folder_is_an_error(tmp_path: Path) -> None:
    root = tmp_path / "blobs"
    blobs = Files(root)
    blobs.put(A, b"a")
    root.rename(tmp_path / "away")
    for call in (lambda: blobs.get(A), lambda: blobs.delete(A), lambda: list(blobs.names()), blobs.check):
        with pytest.raises(BlobFailed, match=re.escape(str(root))):
            call()
    with pytest.raises(BlobFailed):
        blobs.put(B, b"b")
    assert not root.exists()
    (tmp_path / "away").rename(root)
    assert blobs.get(A) == b"a"


def test_files_at_the_places_of_folders_are_reported(tmp_path: Path) -> None:
    (tmp_path / "plain").write_text("")
    with pytest.raises(BlobFailed, match=f"^{re.escape(str(tmp_path))}/plain: the blob store failed: File exists$"):
        open_blobs("file:plain", tmp_path)
    blobs = Files(tmp_path / "blobs")
    (tmp_path / "blobs" / "aa").write_text("")
    (tmp_path / "blobs" / "bb" / B).mkdir(parents=True)
    for call in (lambda: blobs.put(A, b""), lambda: blobs.get(A), lambda: blobs.delete(A), lambda: blobs.put(B, b"")):
        with pytest.raises(BlobFailed, match="the blob store failed"):
            call()
    assert files_below(tmp_path / "blobs") == [tmp_path / "blobs" / "aa"]


# --- files: kill -9 ------------------------------------------------------------------------------------------------

KILLED_AT_EVERY_STEP = """
import os, signal, sys
from pathlib import Path
from storage.blobs import Files
root, name, data = Path(sys.argv[1]), sys.argv[2], bytes(range(256)) * 40
def killed_at(number):
    seen, real_write = 0, os.write
    def watched(real):
        def call(*args, **options):
            nonlocal seen
            seen += 1
            if seen == number:
                if real is real_write:
                    real(args[0], args[1][:len(args[1]) // 2])
                os.kill(os.getpid(), signal.SIGKILL)
            return real(*args, **options)
        return call
    for call in ("mkdir", "open", "write", "fsync", "close", "replace"):
        setattr(os, call, watched(getattr(os, call)))
    Files(root / str(number)).put(name, data)
    os._exit(0)
for number in range(1, 100):
    pid = os.fork() or killed_at(number)
    if os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) == 0:
        print(number)
        break
"""


def python(script: str, *args: object) -> list[str]:
    return [sys.executable, "-W", "error", "-c", script, *map(str, args)]


ROOM = {"PYTHONPATH": str(Path(storage.blobs.__file__).parents[1])}


def test_a_kill_at_any_step_leaves_the_whole_blob_or_none(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    data = bytes(range(256)) * 40
    child = subprocess.run(
        python(KILLED_AT_EVERY_STEP, tmp_path, A), env=os.environ | ROOM, capture_output=True, text=True, timeout=60
    )
    assert child.returncode == 0, child.stderr
    steps = int(child.stdout)
    assert steps > 12
    later(monkeypatch, HOURS)
    found, left = [], 0
    for number in range(1, steps):
        root = tmp_path / str(number)
        left += len([path for path in files_below(root) if path.name != A])
        blobs = Files(root)
        found.append(blobs.get(A))
        assert [name for name, _ in blobs.names()] == [A] * (found[-1] is not None)
        assert files_below(root) == [root / "aa" / A] * (found[-1] is not None)
        blobs.put(A, data)
        assert blobs.get(A) == data
    assert set(found) == {None, data}
    assert left >= 3  # some were killed with the file half written, and names() has swept it


# --- buckets: servers that are away, stand still, or answer wrongly --------------------------------------------------

Answer = Callable[[BaseHTTPRequestHandler], None]


@contextmanager
def serving(answer: Answer, monkeypatch: pytest.MonkeyPatch) -> Iterator[list[str]]:
    """Run a server that answers every request with `answer`; yield the requests."""
    requests: list[str] = []

    class Handler(BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"

        def handle_one_request(self) -> None:
            self.raw_requestline = self.rfile.readline(65537)
            if not self.raw_requestline or not self.parse_request():
                self.close_connection = True
                return
            requests.append(f"{self.command} {self.headers.get('If-None-Match', '')}".strip())
            self.close_connection = True
            answer(self)
            self.wfile.flush()

        def log_message(self, format: str, *args: object) -> None:
            pass

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.01})
    thread.start()
    monkeypatch.setenv("AWS_ENDPOINT_URL", f"http://127.0.0.1:{server.server_port}")
    try:
        yield requests
    finally:
        server.shutdown()
        thread.join()
        server.server_close()


def reply(request: BaseHTTPRequestHandler, status: int, body: bytes = b"", length: int | None = None) -> None:
    request.send_response(status)
    request.send_header("Content-Length", str(len(body) if length is None else length))
    request.send_header("Last-Modified", "Wed, 18 Nov 2026 10:00:00 GMT")
    request.send_header("ETag", '"x"')
    request.send_header("Connection", "close")
    request.end_headers()
    if request.command != "HEAD":
        request.wfile.write(body)


def body_of(request: BaseHTTPRequestHandler) -> bytes:
    return request.rfile.read(int(request.headers.get("Content-Length") or 0))


def fails_in_one_line(calls: dict[str, Callable[[], object]], seconds: float) -> dict[str, str]:
    reasons = {}
    for name, call in calls.items():
        begin = time.monotonic()
        with pytest.raises(BlobFailed) as caught:
            call()
        assert time.monotonic() - begin < seconds
        reasons[name] = str(caught.value)
        assert reasons[name].isprintable()
        assert len(reasons[name]) < 500
        assert "open sesame" not in reasons[name]
        assert reasons[name].startswith("s3://box/p: cannot "), reasons[name]
    return reasons


def all_calls(blobs: Blobs) -> dict[str, Callable[[], object]]:
    return {
        "put": lambda: blobs.put(A, b"a"),
        "get": lambda: blobs.get(A),
        "delete": lambda: blobs.delete(A),
        "names": lambda: list(blobs.names()),
        "check": blobs.check,
    }


@pytest.mark.parametrize("listens", [False, True])
def test_a_server_that_is_away_or_does_not_answer(listens: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    with socket.socket() as server:
        server.bind(("127.0.0.1", 0))
        if listens:
            server.listen(16)
        monkeypatch.setenv("AWS_ENDPOINT_URL", f"http://127.0.0.1:{server.getsockname()[1]}")
        calls = all_calls(Bucket("box", "p", patience_s=0.15 if listens else 5))
        reasons = fails_in_one_line({name: calls[name] for name in (("put", "get", "names") if listens else calls)}, 20)
    assert all(("it took too long" if listens else "Connection refused") in line for line in reasons.values())


@pytest.mark.parametrize(
    ("status", "code"), [(403, "AccessDenied"), (400, "ExpiredToken"), (404, "NoSuchBucket"), (503, "SlowDown")]
)
def test_refusals_of_the_server_are_in_the_error(status: int, code: str, monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(request: BaseHTTPRequestHandler) -> None:
        body_of(request)
        reply(
            request, status, f"<?xml version='1.0'?>\n<Error><Code>{code}</Code><Message>No.</Message></Error>".encode()
        )

    with serving(refuse, monkeypatch):
        calls = all_calls(Bucket("box", "p", patience_s=5))
        del calls["delete"]  # asks with HEAD, and an answer to that has no body
        reasons = fails_in_one_line(calls, 20)
    assert all(line.endswith(f"{code}: No.") for line in reasons.values()), reasons


def test_a_daemon_logs_at_its_start_that_it_has_no_blobs(
    s3: str, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setenv("AWS_ENDPOINT_URL", s3)
    with running(tmp_path, transactions={"blob_store": "s3://other/p"}) as daemon, daemon.client() as client:
        assert client.ask({"type": "BlockApplied", "height": 1, "hash": bytes(32)})["status"] == "applied"
        until = time.monotonic() + PATIENCE_S
        while not (reasons := [line for line in daemon.log_lines() if line["event"] == "blob_store_unusable"]):
            assert time.monotonic() < until
            time.sleep(0.01)
        assert "The specified bucket does not exist" in reasons[0]["error"]
        assert daemon.term() == 0
        daemon.configure(transactions={"blob_store": "s3://box/p"})
        daemon.start()
        assert daemon.term() == 0
        assert len([line for line in daemon.log_lines() if line["event"] == "blob_store_unusable"]) == 1


@pytest.mark.parametrize("sent", [0, 1, 999])
def test_an_incomplete_answer_is_an_error(sent: int, monkeypatch: pytest.MonkeyPatch) -> None:
    with serving(lambda request: reply(request, 200, b"x" * sent, length=1000), monkeypatch):
        fails_in_one_line({"get": lambda: Bucket("box", "p", patience_s=0.3).get(A)}, 20)


@pytest.mark.parametrize("disabled", [False, True])
def test_a_server_without_conditional_put_is_written_to_all_the_same(
    disabled: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    kept: dict[str, bytes] = {}

    def old(request: BaseHTTPRequestHandler) -> None:
        data = body_of(request)
        if request.command == "PUT" and request.headers.get("If-None-Match"):
            reply(request, 501, b"<Error><Code>NotImplemented</Code><Message>A header.</Message></Error>")
        elif request.command == "PUT":
            kept[request.path] = data
            reply(request, 200)
        else:
            reply(request, 200, kept[request.path]) if request.path in kept else reply(request, 404)

    if disabled:
        monkeypatch.setenv("AWS_CONDITIONAL_PUT", "disabled")
    with serving(old, monkeypatch) as requests:
        blobs = Bucket("box", "p")
        blobs.put(A, b"a")
        blobs.put(A, b"a")
        blobs.put(B, b"b")
        puts = [line for line in requests if line.startswith("PUT")]
        assert (blobs.get(A), blobs.get(B), blobs.get(C)) == (b"a", b"b", None)
    assert puts[-3:] == ["PUT"] * 3
    assert set(puts[:-3]) == (set() if disabled else {"PUT *"})


def test_a_long_blob_is_uploaded_in_parts(s3: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("AWS_ENDPOINT_URL", s3)
    monkeypatch.setattr(storage.bucket, "PART", 5 * MIB)
    blobs, data = Bucket("box", secrets.token_hex(8)), Random(1).randbytes(12 * MIB + 1)
    blobs.put(A, data)
    assert blobs.get(A) == data
    tag = obstore.head(blobs._store, A)["e_tag"]
    assert tag and tag.endswith('-3"')
    blobs.put(A, bytes(6 * MIB))
    assert blobs.get(A) == data


@pytest.mark.parametrize(
    ("name", "value", "reasons"),
    [
        ("AWS_ENDPOINT_URL", "garbage", "AWS_ENDPOINT_URL is not an http or https URL: 'garbage'"),
        ("AWS_ENDPOINT", "ftp://host", "AWS_ENDPOINT is not an http or https URL: 'ftp://host'"),
        ("AWS_ENDPOINT", "http://", "AWS_ENDPOINT is not an http or https URL: 'http://'"),
        ("AWS_ENDPOINT", "http://a b", "AWS_ENDPOINT is not an http or https URL: 'http://a b'"),
        ("AWS_ENDPOINT", "http://h:99999", "AWS_ENDPOINT is not an http or https URL: 'http://h:99999'"),
        ("AWS_ENDPOINT_URL_S3", "http://[", "AWS_ENDPOINT_URL_S3 is not an http or https URL: 'http://['"),
        (
            "AWS_CONDITIONAL_PUT",
            "maybe",
            'cannot open: Generic Config error: Failed to parse "maybe" as S3PutConditional',
        ),
    ],
)
def test_a_wrong_environment_is_an_error(name: str, value: str, reasons: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(name, value)
    with pytest.raises(BlobFailed, match=f"^{re.escape(f's3://box/p: {reasons}')}$"):
        open_blobs("s3://box/p", Path("/"))


def test_missing_credentials_are_named(monkeypatch: pytest.MonkeyPatch) -> None:
    """The error would otherwise only mention the address of the metadata service."""
    monkeypatch.delenv("AWS_ACCESS_KEY_ID")
    monkeypatch.delenv("AWS_SECRET_ACCESS_KEY")
    with socket.socket() as closed:
        closed.bind(("127.0.0.1", 0))
        monkeypatch.setenv("AWS_METADATA_ENDPOINT", f"http://127.0.0.1:{closed.getsockname()[1]}")
        reasons = fails_in_one_line({"check": Bucket("box", "p").check}, 20)
    assert reasons["check"].endswith("(AWS_ACCESS_KEY_ID is not set)")


@pytest.mark.parametrize("allow", [None, "false", "0"])
def test_plain_http_has_to_be_allowed(allow: str | None, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("AWS_ENDPOINT_URL", "http://127.0.0.1:9")
    monkeypatch.delenv("AWS_ALLOW_HTTP") if allow is None else monkeypatch.setenv("AWS_ALLOW_HTTP", allow)
    with pytest.raises(BlobFailed, match="AWS_ENDPOINT_URL is not https: set AWS_ALLOW_HTTP=true if this is intended"):
        open_blobs("s3://box", Path("/"))
    monkeypatch.setenv("AWS_ENDPOINT_URL", "https://127.0.0.1:9")
    assert isinstance(open_blobs("s3://box", Path("/")), Bucket)


# --- what `blob_store` may be ----------------------------------------------------------------------------------------

FOLDERS = {
    "file:blobs": "DATA/blobs",
    "file:a/b/": "DATA/a/b",
    "file:./a//b": "DATA/a/b",
    "file:...": "DATA/...",
    "file:a b/ü": "DATA/a b/ü",
    "file:/TOP/x": "TOP/x",
    "file:///TOP/x": "TOP/x",
}
REFUSED = [
    *("", "blobs", "file:", "file:.", "file:./", "file:/", "file:..", "file:../x", "file:a/../../x", "file:a/.."),
    *("file://host/x", "file:a\0b", "file:a\n", "FILE:a", "memory:", "http://host/x", "s3:", "s3://", "s3:///x"),
    *("s3://.", "s3://user@box", "s3://box:80/x", "s3://box/a//b", "s3://box/../x", "s3://box/./x", "s3://box/a?b"),
    *("s3://box/a b", "s3://box/ü", "s3://box/x\n"),
]


def test_a_folder_is_below_the_data_folder_or_absolute(tmp_path: Path) -> None:
    data_dir = tmp_path / "data"
    for text, expected in FOLDERS.items():
        where = text.replace("/TOP", str(tmp_path / "top"))
        BLOB_STORE.parse(where)
        blobs = open_blobs(where, data_dir)
        assert isinstance(blobs, Files) and blobs.root.is_dir()
        expected = expected.replace("DATA", str(data_dir)).replace("TOP", str(tmp_path / "top"))
        assert Path(os.path.normpath(blobs.root)) == Path(expected)


def test_malformed_places_are_refused_by_the_configuration_and_the_store(tmp_path: Path) -> None:
    for text in REFUSED:
        with pytest.raises(ValueError, match=r"expected file:folder or s3://bucket/prefix$"):
            BLOB_STORE.parse(text)
        with pytest.raises(BlobFailed, match=r"is not a blob store: expected file:folder or s3://bucket/prefix$"):
            open_blobs(text, tmp_path)
    assert list(tmp_path.iterdir()) == []


def test_prefixes_keep_stores_apart(s3: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("AWS_ENDPOINT_URL", s3)
    top = f"s3://box/{secrets.token_hex(8)}"
    one, other, above = (open_blobs(where, Path("/")) for where in (f"{top}/a", f"{top}/ab", top))
    one.put(A, b"one")
    other.put(A, b"other")
    assert (one.get(A), other.get(A), above.get(A)) == (b"one", b"other", None)
    assert [[name for name, _ in blobs.names()] for blobs in (one, other, above)] == [[A], [A], []]


def test_without_obstore_only_a_bucket_is_refused(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.delitem(sys.modules, "storage.bucket")
    monkeypatch.setitem(sys.modules, "obstore", None)
    with pytest.raises(PackageMissing, match=r"= 's3://box' needs obstore, .* pip install 'utxod\[s3\]'$"):
        open_blobs("s3://box", tmp_path)
    open_blobs("file:blobs", tmp_path).check()


def test_a_blob_that_is_deleted_during_a_put_is_written(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    files = Files(tmp_path)
    files.put(A, b"a")
    utime = os.utime

    def too_late(path: Path) -> None:
        path.unlink()
        utime(path)

    monkeypatch.setattr(os, "utime", too_late)
    files.put(A, b"a")
    assert files.get(A) == b"a"
