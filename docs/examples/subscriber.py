"""A subscriber: prints what utxod commits, and misses nothing. Usage: python subscriber.py SOCKET BOOKMARK

The file BOOKMARK keeps the sequence of the last fact that was dealt with: after any break it goes on behind it.
"""

import json
import socket
import sys
from pathlib import Path


def handle(fact):
    """Deal with one fact. A fact may come again after a crash between this and the bookmark."""
    match fact["type"]:
        case "BlockCommitted":
            print("block", fact["height"], fact["hash"], flush=True)
        case "RolledBack":
            print("back to", fact["to"] if fact["to"] == "origin" else fact["to"]["height"], flush=True)
        case "TxStatusChanged":
            print("transaction", fact["txid"], fact["status"], (fact["cause"] or {}).get("type"), flush=True)


def main(path, bookmark):
    """Follow until the daemon leaves."""
    fresh = bookmark.with_suffix(".new")
    with socket.socket(socket.AF_UNIX) as daemon:
        daemon.connect(path)
        wish = {"type": "Subscribe", "seq": 1, "events": ["BlockCommitted", "RolledBack", "TxStatusChanged"]}
        wish["from_sequence"] = int(bookmark.read_text()) + 1 if bookmark.exists() else 1
        daemon.sendall(json.dumps(wish).encode() + b"\n")
        for line in daemon.makefile("r"):
            heard = json.loads(line)
            if heard["type"] == "Error":  # `gone`: read the state again, and subscribe from `detail.oldest`
                sys.exit(f"{heard['code']}: {heard['message']}")
            if heard["type"] != "Ack":
                handle(heard)
                fresh.write_text(str(heard["sequence"]))
                fresh.replace(bookmark)  # at once: a kill leaves the old one or the new one


if __name__ == "__main__":
    main(sys.argv[1], Path(sys.argv[2]))
