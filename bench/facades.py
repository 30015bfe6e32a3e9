"""The facades compared with our own routes: small responses of Kupo's and Blockfrost's API, and a large address."""

from __future__ import annotations

import time
from http.client import HTTPConnection
from pathlib import Path

from msgspec import Struct

NAMES = ("kupo, all unspent of an address", "kupo, a page by limit", "blockfrost, a page")
ENVIRON = {"UTXOD_KUPO__ENABLED": "true", "UTXOD_BLOCKFROST__ENABLED": "true"}
_PIECE = 1 << 20
_MATCH = b'"transaction_index":'


def paths(address: str, count: int) -> dict[str, str]:
    """Return the paths to request for an address, by the name of the measurement."""
    matches = f"/kupo/matches/{address}?unspent"
    page = f"/blockfrost/mainnet/api/v0/addresses/{address}/utxos?count={count}"
    return dict(zip(NAMES, (matches, f"{matches}&limit={count}", page), strict=True))


class Streamed(Struct, frozen=True):
    """The results for a large address."""

    outputs: int
    seconds: float
    outputs_per_s: float
    first_byte_ms: float
    server_cpu_s: float
    memory_mb: float


def stream(port: int, worker: int, address: str) -> Streamed:
    """Request all matches of an address, and read them as they arrive."""
    connection, before = HTTPConnection("127.0.0.1", port), _own_mb(worker)
    cpu, began = _cpu_s(worker), time.perf_counter()
    connection.request("GET", f"/kupo/matches/{address}?unspent")
    answer = connection.getresponse()
    first = time.perf_counter() - began
    outputs, tail, most = 0, b"", 0.0
    while piece := answer.read(_PIECE):
        outputs += (tail + piece).count(_MATCH)
        tail = piece[-len(_MATCH) + 1 :]
        most = max(most, _own_mb(worker) - before)
    took = time.perf_counter() - began
    if answer.status != 200:
        raise RuntimeError(f"{answer.status} {tail!r}")
    used = _cpu_s(worker) - cpu
    figures = (round(took, 3), round(outputs / took), round(first * 1000, 1), round(used, 2), round(most, 1))
    return Streamed(outputs, *figures)


def _own_mb(process: int) -> float:
    lines = Path(f"/proc/{process}/status").read_text().splitlines()
    return next(int(line.split()[1]) / 1024 for line in lines if line.startswith("RssAnon"))


def _cpu_s(process: int) -> float:
    lines = Path(f"/proc/{process}/schedstat").read_text().split()
    return int(lines[0]) / 1e9
