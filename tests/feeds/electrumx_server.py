"""ElectrumX next to a bcoin node; it is installed once, where CLIENTS_FOLDER says.

ElectrumX expects the version of Bitcoin Core as a number, and an answer about indexes: a proxy gives them.
"""

from __future__ import annotations

import os
import subprocess
import sys
from base64 import b64encode
from collections.abc import Iterator
from contextlib import contextmanager
from http.client import HTTPConnection
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from threading import Thread
from typing import Any

import msgspec
from bcoin_node import KEY, BcoinNode, free_ports

ROOT = Path(__file__).resolve().parents[2]
FOLDER = os.environ.get("CLIENTS_FOLDER")
_CORE = 290_000
_HEADERS = {"Authorization": "Basic " + b64encode(f"bitcoinrpc:{KEY}".encode()).decode()}


def installed() -> Path:
    """Return the folder with ElectrumX's programs, made if its requirements have changed."""
    wanted, folder = ROOT / "requirements" / "electrumx.txt", Path(str(FOLDER)).expanduser() / "electrumx"
    stamp = folder / "installed.txt"
    if not stamp.exists() or stamp.read_text() != wanted.read_text():
        subprocess.run([sys.executable, "-m", "venv", "--clear", folder], check=True)
        subprocess.run([folder / "bin" / "python", "-m", "pip", "install", "-q", "-r", wanted], check=True)
        stamp.write_text(wanted.read_text())
    return folder / "bin"


def _answered(request: dict[str, Any], answer: dict[str, Any]) -> dict[str, Any]:
    if request["method"] == "getnetworkinfo":
        answer["result"] |= {"version": _CORE, "subversion": "/bcoin/"}
    elif request["method"] == "getindexinfo":
        answer |= {"result": {"txindex": {"synced": True, "best_block_height": 0}}, "error": None}
    return answer


@contextmanager
def _proxy(node: BcoinNode) -> Iterator[int]:
    class Handler(BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"

        def do_POST(self) -> None:
            body = self.rfile.read(int(self.headers["Content-Length"]))
            requests = msgspec.json.decode(body)
            connection = HTTPConnection("127.0.0.1", node.port)
            connection.request("POST", "/", body, _HEADERS)
            reply = connection.getresponse()
            answers = msgspec.json.decode(reply.read())
            connection.close()
            if isinstance(requests, list):
                answers = [_answered(*each) for each in zip(requests, answers, strict=True)]
            else:
                answers = _answered(requests, answers)
            found = msgspec.json.encode(answers)
            self.send_response(reply.status)
            self.send_header("Content-Type", "application/json")
            self.send_header("Content-Length", str(len(found)))
            self.end_headers()
            self.wfile.write(found)

        def log_message(self, *_: object) -> None:
            pass

    with ThreadingHTTPServer(("127.0.0.1", 0), Handler) as server:
        thread = Thread(target=server.serve_forever)
        thread.start()
        try:
            yield server.server_address[1]
        finally:
            server.shutdown()
            thread.join()


@contextmanager
def electrumx(node: BcoinNode, folder: Path) -> Iterator[int]:
    (port,) = free_ports(1)
    with _proxy(node) as upstream, (folder / "electrumx.log").open("wb") as log:
        settings = {
            "COIN": "Bitcoin",
            "NET": "regtest",
            "DB_DIRECTORY": str(folder),
            "DAEMON_URL": f"http://{KEY}:{KEY}@127.0.0.1:{upstream}",
            "SERVICES": f"tcp://127.0.0.1:{port}",
            "PEER_DISCOVERY": "",
            "ALLOW_ROOT": "1",
            "COST_SOFT_LIMIT": "0",
            "COST_HARD_LIMIT": "0",
        }
        process = subprocess.Popen(
            [installed() / "electrumx_server"], env={"PATH": os.environ["PATH"]} | settings, stdout=log, stderr=log
        )
        try:
            yield port
        finally:
            process.terminate()
            process.wait(30)
