"""A subscriber: prints every fact that utxod commits, and resumes after an interruption.

Usage: python subscriber.py SOCKET BOOKMARK

The file BOOKMARK has the sequence of the last fact that was handled; the next start resumes after it.
"""

import json
import socket
import sys
from pathlib import Path


def handle(fact):
    """Handle one fact. A fact may be sent again after a crash between this and the bookmark."""
    match fact["type"]:
        case "BlockCommitted":
            print("block", fact["height"], fact["hash"], flush=True)
        case "RolledBack":
            print("rolled back to", fact["to"] if fact["to"] == "origin" else fact["to"]["height"], flush=True)
        case "TxStatusChanged":
            print("transaction", fact["txid"], fact["status"], (fact["cause"] or {}).get("type"), flush=True)


def main(path, bookmark):
    """Follow until the daemon disconnects."""
    new = bookmark.with_suffix(".new")
    with socket.socket(socket.AF_UNIX) as daemon:
        daemon.connect(path)
        request = {"type": "Subscribe", "seq": 1, "events": ["BlockCommitted", "RolledBack", "TxStatusChanged"]}
        request["from_sequence"] = int(bookmark.read_text()) + 1 if bookmark.exists() else 1
        daemon.sendall(json.dumps(request).encode() + b"\n")
        for line in daemon.makefile("r"):
            message = json.loads(line)
            if message["type"] == "Error":  # `gone`: read the state again, and subscribe from `detail.oldest`
                sys.exit(f"{message['code']}: {message['message']}")
            if message["type"] != "Ack":
                handle(message)
                new.write_text(str(message["sequence"]))
                new.replace(bookmark)  # atomic: a kill leaves the old file or the new one


if __name__ == "__main__":
    main(sys.argv[1], Path(sys.argv[2]))
