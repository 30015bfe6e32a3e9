"""A submitter: claims an output for a transaction that waits for a block. Usage: python submitter.py SOCKET TXID#INDEX

It submits two transactions that spend the same output. The second is refused, and the answer names the transaction
that has claimed the output.
Then it withdraws the first, which only an operator or the feeder may do: the output can be claimed again.
"""

import hashlib
import json
import socket
import sys

ADDRESS = "60" + "cc" * 28  # the raw address, as hex


def transaction(text, outpoint):
    """Return a transaction that spends an output. Its id and its outputs come from your wallet."""
    txid = hashlib.sha256(text.encode()).hexdigest()
    return {"txid": txid, "inputs": [outpoint], "outputs": [{"address": ADDRESS, "value": 900_000}], "fee": 100_000}


def main(path, outpoint):
    """Submit two transactions for one output, and withdraw the first."""
    with socket.socket(socket.AF_UNIX) as daemon:
        daemon.connect(path)
        answers = daemon.makefile("r")

        def request(message):
            daemon.sendall(json.dumps({**message, "seq": 1}).encode() + b"\n")
            return json.loads(answers.readline() or sys.exit("utxod closed the connection"))

        for text in ("first", "second"):
            answer = request({"type": "TxSubmitted", "tx": transaction(text, outpoint)})
            if answer["type"] == "Ack":
                print(text, answer["status"])  # on disk: accepted, or duplicate if it was there already
            elif answer["code"] == "UTXO_ERROR":
                for fault in answer["detail"]["inputs"]:
                    print(text, fault["code"], *(["by", fault["spender"][0]] if "spender" in fault else []))
            else:
                print(text, answer["code"], "try again later" if answer["retryable"] else answer["message"])
        first = transaction("first", outpoint)["txid"]
        answer = request({"type": "TxWithdrawn", "txids": [first], "reason": "operator"})
        print("withdrawn", answer["status"] if answer["type"] == "Ack" else answer["code"])


if __name__ == "__main__":
    txid, _, index = sys.argv[2].partition("#")
    main(sys.argv[1], [txid, int(index)])
