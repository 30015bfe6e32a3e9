"""What is kept of every block, asked over HTTP and on the command line, also far below the rollback floor."""

from __future__ import annotations

from typing import Any

from questions import failure, running_api, short_folder
from scenarios import at, block, digest, output, tx
from test_cli_query import utxod

VKEY = digest("vkey")


def test_facts_of_old_and_new_blocks() -> None:
    paid = tx("paid", output("ann", 5), output("bob", 6))
    about: dict[str, Any] = {"prev_hash": digest("before"), "time": 1_700_000_000, "epoch": 7, "era": "babbage"}
    first = block(None, paid, header=bytes(range(80)), size=1234, issuer={"vkey": VKEY, "op_cert_counter": 3}, **about)
    blocks = [first, block(first, tx("spent", output("bob", 5), spends=[at("paid")]))]
    for _ in range(10):
        blocks.append(block(blocks[-1]))
    with short_folder() as folder, running_api(folder, utxo={"rollback_window": 2, "prune_depth": 2}) as api:
        api.feed(*blocks)
        whole = {
            **{"height": 1, "slot": 20, "hash": first["hash"].hex(), "previous_hash": digest("before").hex()},
            **{"time": 1_700_000_000, "epoch": 7, "era": "babbage", "size": 1234, "header": bytes(range(80)).hex()},
            "issuer": {"vkey": VKEY.hex(), "vrf_vkey": None, "op_cert": None, "op_cert_counter": 3},
            **{"transactions": 1, "created": 2, "spent": 0},
        }
        assert api.get("/api/v1/blocks/1") == api.get(f"/api/v1/blocks/{first['hash'].hex()}") == whole
        second = api.get("/api/v1/blocks/2")
        assert (second["previous_hash"], second["issuer"], second["spent"]) == (whole["hash"], None, 1)
        failure(api.ask("/api/v1/blocks/99"), 404, "unknown_block", "99")
        failure(api.ask(f"/api/v1/blocks/{'ab' * 32}"), 404, "unknown_block", "ab" * 32)
        failure(api.ask("/api/v1/blocks/x"), 400, "bad_parameter", "'x'")
        assert utxod(api.daemon, "query", "block", "1", "--json").json() == whole
        assert "babbage" in utxod(api.daemon, "query", "block", first["hash"].hex()).out
        assert "not in the chain" in utxod(api.daemon, "query", "block", "99").one_line(1)
