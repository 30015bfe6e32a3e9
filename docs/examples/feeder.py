"""A feeder: sends a chain to utxod, whatever part of it utxod has already. Usage: python feeder.py SOCKET

The chain is generated here. Replace CHAIN by the blocks of your node.
"""

import hashlib
import json
import socket
import sys

WINDOW = 100  # blocks that are sent ahead of their answers


def digest(text):
    """Return 32 bytes as hex, the same for the same text."""
    return hashlib.sha256(text.encode()).hexdigest()


def block(height):
    """Return a block of the generated chain: each spends the output that the one before created."""
    owner = "60" + digest(f"owner {height}")[:56]  # the raw address, as hex
    spent = [[digest(f"tx {height - 1}"), 0]] if height > 1 else []
    tx = {"txid": digest(f"tx {height}"), "inputs": spent, "outputs": [{"address": owner, "value": 1_000_000}]}
    return {
        "type": "BlockApplied",
        "height": height,
        "slot": 20 * height,
        "hash": digest(f"block {height}"),
        "prev_hash": digest(f"block {height - 1}"),
        "txs": [tx],
    }


CHAIN = [block(height) for height in range(1, 301)]


def messages(welcome):
    """Yield a rollback, if the daemon has blocks of another branch, and then the blocks that it does not have."""
    positions = {each["hash"]: n for n, each in enumerate(CHAIN)}
    common = next((point for point in welcome["points"] if point["hash"] in positions), None)
    if common is not None and common != welcome["tip"]:
        yield {"type": "Rollback", "to": common}
    elif common is None and welcome["tip"] is not None:
        yield {"type": "Rollback", "to": "origin"}
    yield from CHAIN[positions[common["hash"]] + 1 if common else 0 :]


def main(path):
    """Feed until the daemon has the whole chain."""
    with socket.socket(socket.AF_UNIX) as daemon:
        daemon.connect(path)
        answers = daemon.makefile("r")

        def send(message):
            daemon.sendall(json.dumps(message).encode() + b"\n")

        def acknowledged(seq):
            answer = json.loads(answers.readline() or sys.exit("utxod closed the connection: start again to resume"))
            if answer["type"] == "Error":
                sys.exit(f"{answer['code']}: {answer['message']}")  # nothing was changed by that message
            assert answer["seq"] == seq  # answers come in the order of the messages

        send({"type": "Hello", "client": "example/1.0", "network_tip": {"height": CHAIN[-1]["height"]}})
        welcome = json.loads(answers.readline())
        sent = 0
        for sent, message in enumerate(messages(welcome), 1):
            send({**message, "seq": sent})
            if sent > WINDOW:
                acknowledged(sent - WINDOW)
        for seq in range(max(sent - WINDOW, 0) + 1, sent + 1):
            acknowledged(seq)
        print(f"{sent} messages are on disk, the tip is {CHAIN[-1]['height']}")


if __name__ == "__main__":
    main(sys.argv[1])
