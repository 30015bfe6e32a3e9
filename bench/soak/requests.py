"""Fuzzed HTTP requests next to a correct feeder: no response is a 500, no worker exits, `/health` always responds."""

from __future__ import annotations

import socket
import time
import urllib.error
import urllib.request
from pathlib import Path
from random import Random

import msgspec

from bench.soak.fuzz import Honest
from bench.soak.scenario import Scenario
from bench.soak.target import DEADLINE_S, Broken, Met, Target, memory_of
from daemon.http.openapi import document

REQUESTS = 3000  # in a round
_SETTINGS = "[utxo]\nrollback_window = 24\nstore = 'mmr'\n[utxo.index]\nstake_credential = true\npolicy = true\n"
_MOST_MEMORY = 128 << 20
_ODD = [
    "",
    "0",
    "1",
    "-1",
    "1000",
    "1001",
    "4294967295",
    "18446744073709551616",
    "1e9",
    "%00",
    "%ff",
    "..",
    "a" * 3000,
    "é",
]
_PARAMETERS = ["count", "order", "page", "cursor", "asset", "status", "height", "x", "count%00"]
_HEADERS = [
    "Accept: application/cbor",
    "Accept: */*;q=zzz, application/cbor;q=1",
    'If-None-Match: "x", W/"y", *',
    "If-None-Match: " + '"' * 500,
    "Range: bytes=0-1",
    "Content-Length: 0",
    "Authorization: Bearer \xff",
    "X-Long: " + "y" * 6000,
    "Cookie: " + "a=b; " * 200,
]


class Requests:
    """Makes requests that are nearly right, the same for the same seed."""

    def __init__(self, random: Random, scenario: Scenario) -> None:
        self._random = random
        self._paths = [*document()["paths"], "/nothing", "//", "/api/v1/%2e%2e/tip", "/api/v1/addresses//utxos", "*"]
        blocks = [tx for step in scenario.steps for tx in getattr(step.message, "txs", [])]
        self._known = {  # parameters that find something
            "tx": [tx.txid.hex() for tx in blocks],
            "address": [paid.address.hex() for tx in blocks for paid in tx.outputs],
            "index": ["0", "1", "7"],
            "block": ["1", "2", "100", "200"],
        }

    def request(self) -> bytes:
        """Return one request; the connection need not survive it."""
        random = self._random
        head = [f"{self._method()} {self._target()} HTTP/1.1", "Host: 127.0.0.1"]
        head += random.sample(_HEADERS, random.choice((0, 0, 0, 1, 2)))
        raw = ("\r\n".join(head) + "\r\n\r\n").encode("latin-1", "replace")
        if random.random() < 0.15:
            changed = bytearray(raw)
            for _ in range(random.randint(1, 5)):
                changed[random.randrange(len(changed))] = random.randrange(256)
            raw = bytes(changed)
        return raw

    def _method(self) -> str:
        return (
            "GET" if self._random.random() < 0.93 else self._random.choice(("HEAD", "POST", "OPTIONS", "get", "X" * 50))
        )

    def _target(self) -> str:
        random = self._random
        path = random.choice(self._paths)
        for name, values in self._known.items():
            for part in [part for part in path.split("/") if part.startswith("{") and name in part]:
                path = path.replace(part, random.choice(values if random.random() < 0.8 else _ODD))
        while "{" in path:
            begin, _, rest = path.partition("{")
            path = begin + random.choice(_ODD) + rest.partition("}")[2]
        names = random.choices(_PARAMETERS, k=random.choice((0, 0, 1, 2, 5)))
        query = "&".join(f"{name}={random.choice(_ODD)}" for name in names)
        return f"{path}?{query}".replace(" ", "+") if query else path


def round(folder: Path, seed: int, *, times: int = 1) -> Met:
    """Send fuzzed requests to one daemon's worker; return what was met."""
    random, met, scenario = Random(seed), Met(), Scenario(seed, 200)
    requests = Requests(random, scenario)
    with Target(folder, _SETTINGS, workers=1) as target:
        target.start()
        _wait_for_http(target)
        worker = target.workers()
        memory = memory_of(worker[0])
        with Honest(target, scenario) as honest:
            sent = 0
            while sent < REQUESTS * times:
                sent += _converse(target, requests, random, met)
                if sent % 500 < 20:
                    _check_health(target)
        honest.check()
        _check_health(target)
        if target.workers() != worker:
            raise Broken(f"the worker ended: {target.log_end()}")
        if memory_of(worker[0]) - memory > _MOST_MEMORY:
            raise Broken(f"the worker's memory rose from {memory} to {memory_of(worker[0])} bytes")
        target.stop()
        met["fuzzed requests"] += sent
    met["rounds of requests"] += 1
    return met


def _converse(target: Target, requests: Requests, random: Random, met: Met) -> int:
    """Send up to forty requests on a connection; return how many."""
    wished, sent = random.randint(1, 40), 0
    with socket.create_connection(("127.0.0.1", target.port), DEADLINE_S) as link:
        link.settimeout(DEADLINE_S)
        if random.random() < 0.05:  # half a request, then disconnect
            link.sendall(requests.request()[: random.randint(1, 40)])
            met["half requests"] += 1
            return 1
        while sent < wished:
            raw = requests.request()
            sent += 1
            try:
                link.sendall(raw)
                status = _read_answer(link, head_only=raw.startswith(b"HEAD "))
            except (ConnectionError, EOFError):
                met["connections ended by the worker"] += 1
                break
            except TimeoutError:
                break  # a changed head may announce a body that is never sent
            met[f"answered {status}"] += 1
            if status == 500:
                raise Broken(f"answered 500: {raw!r}")
    return sent


def _read_answer(link: socket.socket, *, head_only: bool) -> int:
    """Read one answer; an error has to be JSON in the one form."""
    link.settimeout(0.5)
    received = b""
    while b"\r\n\r\n" not in received:
        received += _more(link)
    head, _, body = received.partition(b"\r\n\r\n")
    status = int(head.split(b" ", 2)[1])
    lines = [line.lower() for line in head.split(b"\r\n")]
    length = next((int(line.split(b":")[1]) for line in lines if line.startswith(b"content-length:")), 0)
    while len(body) < length and not head_only and status != 304:
        body += _more(link)
    if status >= 400 and not head_only and b"content-type: application/json" in head.lower():
        failure = msgspec.json.decode(body[:length])
        if not isinstance(failure.get("error", failure.get("status")), str):  # readiness has a form of its own
            raise Broken(f"an error without its form: {body[:200]!r}")
    return status


def _more(link: socket.socket) -> bytes:
    more = link.recv(1 << 16)
    if not more:
        raise EOFError
    return more


def _check_health(target: Target) -> None:
    """Request the worker's liveness: it has to answer within a second."""
    began = time.monotonic()
    _request_health(target)
    if (took := time.monotonic() - began) > 1.0:
        raise Broken(f"/health/live took {took:.2f} s")


def _request_health(target: Target) -> None:
    with urllib.request.urlopen(f"http://127.0.0.1:{target.port}/health/live", timeout=DEADLINE_S) as answer:
        if answer.status != 200:
            raise Broken(f"/health/live answers {answer.status}")


def _wait_for_http(target: Target) -> None:
    until = time.monotonic() + DEADLINE_S
    while True:
        try:
            _request_health(target)
        except (urllib.error.URLError, ConnectionError):
            if time.monotonic() > until:
                raise Broken(f"HTTP does not answer: {target.log_end()}") from None
            time.sleep(0.02)
        else:
            return
