"""`utxod status`, `query` and `completion` on a daemon with a small chain."""

from __future__ import annotations

import json
import os
import re
import socket
import subprocess
import sys
from collections.abc import Iterator
from hashlib import blake2b
from pathlib import Path
from tempfile import TemporaryDirectory
from time import monotonic
from typing import Any, NamedTuple

import pytest
import test_http as rich
from click.testing import CliRunner
from daemons import ROOT, Daemon, Message, environment, home, running
from patience import until
from questions import failure, outpoints, short_folder
from questions import running_api as answering
from scenarios import address, back_to, block, chain, digest, output, point, tx
from terminal import on_a_terminal

from daemon.cli import main
from handlers.addresses import codec

POLICY = b"\x07" * 28
TEXT = codec("cardano", "mainnet")
ANN, BOB = address("ann"), address("bob")
RICH: Message = {
    "assets": [[POLICY, b"gold", 7], [POLICY, b"", 2**63]],
    "inline_datum": b"\x01\x02",
    "script_ref": b"s",
}


def chain_of_payments() -> list[Message]:
    blocks = [
        block(None, tx("first", *(output("ann", n + 1) for n in range(29)), output("bob", 5)), time=1_700_000_000)
    ]
    blocks.append(block(blocks[-1], tx("rich", output("ann", 1000, **RICH), spends=[[digest("tx", "first"), 0]])))
    failed = tx("failed", output("ann", 3), valid=False, collateral=[[digest("tx", "first"), 29]])
    failed["collateral_return"] = output("bob", 4)
    blocks.append(block(blocks[-1], failed))
    return blocks


BLOCKS = chain_of_payments()
FIRST, RICH_ID, FAILED = (digest("tx", name).hex() for name in ("first", "rich", "failed"))


@pytest.fixture(scope="module")
def daemon() -> Iterator[Daemon]:
    with TemporaryDirectory(prefix="utxod-") as folder, running(Path(folder)) as daemon:
        with daemon.client() as client:
            client.hello(network_tip={"height": 5})
            client.feed(BLOCKS)
        yield daemon


class Result(NamedTuple):
    code: int
    out: str
    err: str

    def json(self, code: int = 0) -> Any:
        assert (self.code, self.err) == (code, ""), self
        return json.loads(self.out)

    def one_line(self, code: int) -> str:
        assert (self.code, self.out, self.err.count("\n")) == (code, "", 1), self
        assert self.err.startswith("Error: ")
        return self.err[len("Error: ") : -1]


def utxod(daemon: Daemon, *arguments: str) -> Result:
    done = CliRunner().invoke(main, ["--config", str(daemon.config), *arguments], catch_exceptions=False)
    return Result(done.exit_code, done.stdout, done.stderr)


def shell(daemon: Daemon, *arguments: str) -> Result:
    done = daemon.run(*arguments)
    return Result(done.returncode, done.stdout.decode(), done.stderr.decode())


def handlers(report: Message) -> dict[str, str]:
    return {handler["name"]: handler["state"] for handler in report["handlers"]}


def test_status_of_a_running_daemon(daemon: Daemon) -> None:
    report = shell(daemon, "status", "--json").json()
    assert report["tip"] == point(BLOCKS[-1]) and report["unspent"] == 30
    assert (report["chain"], report["blocks_applied"], report["rollback_floor"]) == ("cardano/mainnet", 3, None)
    assert report["rows"]["history_block"] == 3 and report["indexes"] == ["address_hash", "payment_credential"]
    assert report["map_size"] == 64 << 20 and 0 < report["bytes_used"] < report["disk_free"]
    shown = report["daemon"]
    assert (shown["running"], shown["problem"], shown["socket"]) == (True, None, str(daemon.socket))
    assert (shown["network_tip_height"], shown["lag_blocks"], shown["version"]) == (5, 2, "0.1.0")
    assert 0 < shown["seconds_since_last_block"] < 600 and 0 < shown["answer_ms"] < 5000
    states = {"socket": "ok", "utxo": "ok", "pruner": "ok", "http": "off", "transactions": "ok"}
    assert handlers(report) in (states | {"recovery": "ok"}, states | {"recovery": "waiting"})


def test_status_fits_one_screen(daemon: Daemon) -> None:
    shown = on_a_terminal("status", "--config", daemon.config)
    plain = re.sub(r"\x1b\[[0-9;]*m", "", shown)
    assert shown != plain  # colours
    assert len(plain.splitlines()) <= 24 and max(map(len, plain.splitlines())) <= 100
    for part in (
        "running for",
        "cardano/mainnet",
        "height 3, slot 60",
        "2 blocks behind the network",
        "30 unspent outputs",
    ):
        assert part in plain, plain
    words = utxod(daemon, "status").out
    assert "\x1b" not in words and BLOCKS[-1]["hash"].hex() in words  # whole lines where nobody looks


def test_status_has_rates_of_the_last_commits(tmp_path: Path) -> None:
    with running(tmp_path) as daemon, daemon.client() as client:
        assert utxod(daemon, "status", "--json").json()["rates"] is None
        blocks = chain(60)
        began = monotonic()
        for sent in blocks:
            client.ask(sent)
        rates = until(
            lambda: utxod(daemon, "status", "--json").json()["rates"], lambda found: found and found["commits"] >= 31
        )
        assert rates["commits"] == 31  # and the one before them, when they began
        assert 0 < rates["over_s"] <= monotonic() - began + 0.1
        assert rates["blocks_per_s"] == pytest.approx(31 / rates["over_s"], rel=0.5)
        assert rates["txs_per_s"] == pytest.approx(rates["blocks_per_s"], rel=0.1)
        assert "over the last 31 commits" in utxod(daemon, "status").out


def test_status_without_a_daemon(tmp_path: Path) -> None:
    with home(tmp_path) as daemon:
        assert "there is no store here" in shell(daemon, "status").one_line(1)
        daemon.start()
        with daemon.client() as client:
            client.feed(chain(4))
        daemon.term()
        report = utxod(daemon, "status", "--json").json(1)
        assert report["tip"]["height"] == 4
        assert report["daemon"]["running"] is False and "no process listens" in report["daemon"]["problem"]
        assert (report["daemon"]["lag_blocks"], report["rates"]) == (None, None)
        assert handlers(report) | {"http": ""} == handlers(report) | {
            "socket": "away",
            "utxo": "stopped",
            "pruner": "stopped",
            "http": "",
        }
        words = utxod(daemon, "status").out
        assert words.startswith("daemon") and "no daemon answers" in words and "height 4" in words


def test_status_of_a_daemon_that_does_not_answer(daemon: Daemon, tmp_path: Path) -> None:
    with TemporaryDirectory(prefix="utxod-") as folder, socket.socket(socket.AF_UNIX) as deaf:
        deaf.bind(f"{folder}/deaf")
        deaf.listen()
        began = monotonic()
        report = utxod(daemon, "status", "--json", "--socket", f"{folder}/deaf").json(1)
        assert 1.5 < monotonic() - began < 10
    assert handlers(report)["socket"] == "silent" and "did not answer" in report["daemon"]["problem"]
    assert report["tip"]["height"] == 3


def test_status_when_behind_and_when_pruning_waits(tmp_path: Path) -> None:
    with running(tmp_path, utxo={"rollback_window": 1, "prune_depth": 1}) as daemon, daemon.client() as client:
        client.ask({"type": "NodeState", "state": "catching_up", "height": 1})
        client.feed(chain(6))
        client.hello(network_tip={"height": 17})
        report = until(
            lambda: utxod(daemon, "status", "--json").json(), lambda found: handlers(found)["pruner"] == "waiting"
        )
        assert handlers(report)["utxo"] == "behind" and report["daemon"]["lag_blocks"] == 11
        assert report["prune_backlog_blocks"] == 4
        assert report["pruner_job"]["state"] == "queued" and report["pruner_job"]["reason"]
        done = utxod(daemon, "status").out
        assert f"4 blocks due, job {report['pruner_job']['number']} at height 6 queued: " in done


def test_status_queries_the_http_workers(tmp_path: Path) -> None:
    with TemporaryDirectory(prefix="utxod-") as folder:
        listen = f"unix:{folder}/http"
        with running(Path(folder), http={"workers": 1, "listen": listen}) as daemon:
            done = until(lambda: utxod(daemon, "status", "--json"), lambda done: not done.code)
            assert handlers(done.json())["http"] == "ok"
            daemon.term()
            (away,) = [each for each in utxod(daemon, "status", "--json").json(1)["handlers"] if each["name"] == "http"]
            assert away["state"] == "away" and listen in away["detail"]


def test_status_without_a_utxo_store(tmp_path: Path) -> None:
    with running(tmp_path, utxo={"enabled": False}) as daemon:
        report = utxod(daemon, "status", "--json").json()
        assert report["daemon"]["running"] and "tip" not in report
        assert handlers(report)["utxo"] == handlers(report)["pruner"] == "off"
        assert "utxo.enabled" in utxod(daemon, "query", "tx", FIRST).one_line(1)


def test_query_address(daemon: Daemon) -> None:
    answer = shell(daemon, "query", "address", TEXT.write(ANN), "--json").json()
    assert answer["tip"] == point(BLOCKS[-1]) and answer["next_cursor"] is None
    assert outpoints(answer["utxos"]) == [(FIRST, n) for n in range(1, 29)] + [(RICH_ID, 0)]
    rich = answer["utxos"][-1]
    assert rich["owner_addr"] == TEXT.write(ANN) and rich["owner_payment_credential"] == ANN[1:].hex()
    gold = POLICY.hex() + b"gold".hex()
    amounts = [(amount["unit"], amount["quantity"]) for amount in rich["amounts"]]
    assert amounts == [("lovelace", "1000"), (gold, "7"), (POLICY.hex(), str(2**63))]
    assert rich["data_hash"] == blake2b(b"\x01\x02", digest_size=32).hexdigest()
    assert "spent_tx_hash" not in rich and rich["block"] == 2 and answer["utxos"][0]["block_time"] == 1_700_000_000
    for owner in (ANN.hex(), ANN.hex().upper(), ANN[1:].hex()):
        assert utxod(daemon, "query", "address", owner, "--json").json()["utxos"] == answer["utxos"]
    for order in ("asc", "desc"):
        seen: list[Message] = []
        more: list[str] = []
        for _ in range(3):
            words = ("query", "address", ANN.hex(), "--count", "10", "--order", order, "--json", *more)
            page = utxod(daemon, *words).json()
            seen += page["utxos"]
            more = ["--cursor", page["next_cursor"]]
        assert page["next_cursor"] is None
        assert seen == (answer["utxos"] if order == "asc" else answer["utxos"][::-1])


def test_query_address_as_a_table(daemon: Daemon) -> None:
    words = utxod(daemon, "query", "address", ANN.hex(), "--order", "desc", "--count", "2").out
    lines = words.splitlines()
    assert lines[0].split() == ["height", "slot", "output", "amount", "assets", "with", "spent", "by"]
    assert f"{RICH_ID}#0" in lines[1] and "1,000 lovelace" in lines[1] and "datum, script" in lines[1]
    assert f"7 {POLICY.hex()}{b'gold'.hex()}" in words and f"{2**63:,} {POLICY.hex()}" in words
    assert lines[-1].startswith("there are more: --cursor ")
    assert utxod(daemon, "query", "address", ANN.hex(), "--cursor", lines[-1].split()[-1]).code == 2  # of another order
    assert utxod(daemon, "query", "address", address("unknown").hex()).out.splitlines()[-1] == "no unspent outputs"
    shown = on_a_terminal(*("query", "address", ANN.hex(), "--count", "1"), "--config", daemon.config, columns=60)
    _, *rows, more = re.sub(r"\x1b\[[0-9;]*m", "", shown).splitlines()
    assert max(map(len, rows)) <= 60
    assert "".join(re.findall(r"\b([0-9a-f]{3,})", "\n".join(rows))) == FIRST  # folded, not cut
    assert utxod(daemon, "query", "address", ANN.hex(), "--json", "--cursor", more.split()[-1]).json()["utxos"]


def test_a_cursor_whose_block_was_rolled_back(tmp_path: Path) -> None:
    with running(tmp_path) as daemon, daemon.client() as client:
        blocks = [block(None, tx("one", *(output("ann", n) for n in range(5))))]
        blocks.append(block(blocks[0]))
        client.feed(blocks)
        command = ("query", "address", ANN.hex(), "--count", "2", "--json")
        cursor = utxod(daemon, *command).json()["next_cursor"]
        assert len(utxod(daemon, *command, "--cursor", cursor).json()["utxos"]) == 2
        client.ask(back_to(blocks[0]))
        assert "start again" in utxod(daemon, *command, "--cursor", cursor).one_line(1)


ACCEPTED = "accepted are bech32 (addr1…), base58 of Byron, and hex of the raw bytes"
WRONG_USE = [
    *(("--count", ["address", ANN.hex(), "--count", count]) for count in ("0", "1001", "many")),
    *(("--cursor", ["address", ANN.hex(), "--cursor", cursor]) for cursor in ("nonsense", "AAAA", "")),
    *(
        ("is not a policy id: expected 56 hex digits", ["policy", text])
        for text in ("", "07", "zz" * 28, "07 " * 18 + "07")
    ),
    ("is not a policy id: expected 56 hex digits", ["policy", POLICY.hex() + "00"]),
    *((f"write it as {FIRST}#3", ["utxo", f"{FIRST}{sign}3"]) for sign in ":./"),
    (f"{FIRST}#3 is one of its outputs", ["tx", f"{FIRST}#3"]),
    (f"{FIRST}#0 is its first", ["utxo", FIRST]),
    *(("", ["utxo", *words.split()]) for words in ("nonsense#0", f"{FIRST}#", f"{FIRST}#x", f"{FIRST} -")),
    *(("", ["utxo", *words.split()]) for words in (f"{FIRST} {2**32}", f"{FIRST}00#0")),
    ("64 hex digits", ["tx", "nonsense"]),
    *(("malformed", [command, text]) for command in ("address", "balance") for text in ("nonsense", "")),
    ("bad checksum", ["address", TEXT.write(ANN)[:-1] + "q"]),
    ("another network", ["balance", codec("cardano", "preview").write(b"\x60" + ANN[1:])]),
    ("another kind", ["address", "stake1u9ylzsgxaa6xctf4juup682ar3juj85n8tx3hthnljg47zctvm3rc"]),
    *((ACCEPTED, [command, "hello"]) for command in ("address", "balance", "transactions")),
]


@pytest.mark.parametrize(("message", "words"), WRONG_USE)
def test_wrong_use_is_one_error_line(daemon: Daemon, message: str, words: list[str]) -> None:
    done = utxod(daemon, "query", *words)
    assert done.code == 2 and message in done.err and not done.out, done


def test_a_missing_index_is_named(tmp_path: Path) -> None:
    with running(tmp_path, utxo={"index": {"payment_credential": False}}) as daemon:
        line = utxod(daemon, "query", "balance", ANN[1:].hex()).one_line(1)
        assert "utxo.index.payment_credential" in line and "utxod reindex" in line
        line = utxod(daemon, "query", "policy", POLICY.hex()).one_line(1)
        assert "utxo.index.policy switches it on" in line and "utxod reindex" in line
        assert utxod(daemon, "query", "balance", ANN.hex(), "--json").json()["utxo_count"] == 0


def test_query_by_asset_datum_policy_and_script(tmp_path: Path) -> None:
    index = dict.fromkeys(("asset", "datum", "policy", "script"), True)
    datum, script, gold = digest("datum").hex(), digest("script", size=28).hex(), f"{rich.POLICY}676f6c64"
    with short_folder() as folder, answering(folder, utxo={"index": index}) as api:
        api.feed(rich.GENESIS, rich.FIRST, rich.SECOND)
        for path, kind, key, name, output_index in (
            ("datums", "datum", datum, "datum", 1),
            ("datums", "datum", rich.DATUM_HASH, "datum", 0),
            ("scripts", "script", script, "script", 0),
        ):
            found = api.get(f"/api/v1/{path}/{key}/utxos")
            assert outpoints(found) == [(digest("tx", name).hex(), output_index)]
            assert utxod(api.daemon, "query", "by", kind, key, "--json").json()["utxos"] == found
            assert api.get(f"/api/v1/{path}/{'ab' * (len(key) // 2)}/utxos") == []
            failure(api.ask(f"/api/v1/{path}/{key}ab/utxos"), 400, "bad_parameter", kind)
        by_asset = utxod(api.daemon, "query", "by", "asset", gold, "--json").json()["utxos"]
        assert outpoints(by_asset) == [(digest("tx", "assets").hex(), 0)]
        assert by_asset == api.get(f"/api/v1/addresses/{rich.VECTORS['base'][0]}/utxos?asset={gold}")
        assert "is not a datum hash: expected 64 hex digits" in utxod(
            api.daemon, "query", "by", "datum", "ab"
        ).one_line(2)
        assert "is not an asset: expected 56 to 120 hex digits" in utxod(
            api.daemon, "query", "by", "asset", "ab" * 28 + "  "
        ).one_line(2)
        by_policy = utxod(api.daemon, "query", "policy", rich.POLICY.upper(), "--json").json()
        assert by_policy["utxos"] == api.get(f"/api/v1/policies/{rich.POLICY}/utxos")
        assert outpoints(by_policy["utxos"]) == [(digest("tx", "assets").hex(), 0)] and by_policy["next_cursor"] is None
        assert f" {rich.POLICY}" in utxod(api.daemon, "query", "policy", rich.POLICY).out
        nothing = utxod(api.daemon, "query", "policy", "77" * 28)
        assert nothing.code == 0 and nothing.out.splitlines()[-1] == "no unspent outputs"


@pytest.mark.parametrize("owner", [TEXT.write(ANN), ANN[1:].hex()])
def test_query_balance(daemon: Daemon, owner: str) -> None:
    answer = utxod(daemon, "query", "balance", owner, "--json").json()
    assert answer == {
        "lovelace_amount": sum(range(2, 30)) + 1000,
        "utxo_count": 29,
        "amounts": [
            {"unit": "lovelace", "policy_id": None, "asset_name": None, "quantity": "1434"},
            {"unit": POLICY.hex(), "policy_id": POLICY.hex(), "asset_name": "", "quantity": str(2**63)},
            {"unit": f"{POLICY.hex()}676f6c64", "policy_id": POLICY.hex(), "asset_name": "676f6c64", "quantity": "7"},
        ],
    }
    words = utxod(daemon, "query", "balance", owner).out
    assert re.search(r"^ +1,434  lovelace$", words, re.MULTILINE) and words.endswith("in 29 unspent outputs\n")
    answer = utxod(daemon, "query", "balance", address("unknown").hex(), "--json").json()
    assert (answer["lovelace_amount"], answer["utxo_count"], len(answer["amounts"])) == (0, 0, 1)


@pytest.mark.parametrize("outpoint", [[f"{FIRST}#0"], [FIRST, "0"], [FIRST.upper(), "0"]])
def test_query_utxo(daemon: Daemon, outpoint: list[str]) -> None:
    spent = utxod(daemon, "query", "utxo", *outpoint, "--json").json()
    assert (spent["tx_hash"], spent["output_index"], spent["lovelace_amount"]) == (FIRST, 0, 1)
    assert (spent["spent_tx_hash"], spent["spent_at_block"]) == (RICH_ID, 2)
    words = utxod(daemon, "query", "utxo", *outpoint).out
    assert re.search(rf"^spent_tx_hash +{RICH_ID}$", words, re.MULTILINE)
    assert re.search(rf"^owner_addr +{TEXT.write(ANN)}$", words, re.MULTILINE)


def test_query_utxo_of_a_failed_or_unknown_transaction(daemon: Daemon) -> None:
    back = utxod(daemon, "query", "utxo", f"{FAILED}#1", "--json").json()
    assert back["is_collateral_return"] and back["lovelace_amount"] == 4
    assert "is_collateral_return" in utxod(daemon, "query", "utxo", f"{FAILED}#1").out
    for words in ([f"{FIRST}#30"], [digest("nobody").hex(), "0"]):
        assert "is not in the store" in utxod(daemon, "query", "utxo", *words).one_line(1)
        assert "is not in the store" in utxod(daemon, "query", "utxo", *words, "--json").one_line(1)


def test_an_error_names_the_accepted_forms_of_an_address(daemon: Daemon, monkeypatch: pytest.MonkeyPatch) -> None:
    assert "payment credentials" in utxod(daemon, "query", "address", "hello").one_line(2)
    assert "payment credentials" not in utxod(daemon, "query", "transactions", "hello").one_line(2)
    monkeypatch.setenv("UTXOD_CHAIN__NETWORK", "preview")
    assert "bech32 (addr_test1…)" in utxod(daemon, "query", "address", "hello").one_line(2)
    monkeypatch.setenv("UTXOD_CHAIN__FAMILY", "bitcoin")
    monkeypatch.setenv("UTXOD_CHAIN__NETWORK", "regtest")
    done = utxod(daemon, "query", "address", "hello").one_line(2)
    assert done.endswith("accepted are bech32 (bcrt1…), base58 (m…, n…, 2…), and hex of the locking script")


def test_query_tx_of_a_block(daemon: Daemon) -> None:
    answer = shell(daemon, "query", "tx", FIRST, "--json").json()
    assert (answer["tip"], answer["block"]) == (point(BLOCKS[-1]), point(BLOCKS[0]))
    record = answer["transaction"]
    assert (record["txid"], record["status"], record["has_record"]) == (FIRST, "mined", False)
    assert (record["total_utxos"], record["spent_utxos"], record["block_heights"]) == (30, 2, [1])
    assert [each["output_index"] for each in answer["slots"] if each["status"] == "spent"] == [0, 29]
    assert answer["slots"][0]["spending_tx_hash"] == RICH_ID
    assert [each["output_index"] for each in answer["utxos"]] == list(range(30))
    words = utxod(daemon, "query", "tx", FIRST).out
    assert (
        f"height 1, slot 20, {BLOCKS[0]['hash'].hex()}" in words
        and "all that is known of it comes from its block" in words
    )
    assert f"{RICH_ID} input 0" in words and "5 lovelace" in words and TEXT.write(BOB) in words
    page = utxod(daemon, "query", "tx", FIRST, "--count", "12", "--page", "3", "--json").json()
    assert [each["output_index"] for each in page["slots"]] == list(range(24, 30))
    assert page["utxos"] == answer["utxos"][24:]
    assert "18 more: --page 2" in utxod(daemon, "query", "tx", FIRST, "--count", "12").out


def test_query_tx_of_an_unmined_transaction(tmp_path: Path) -> None:
    with running(tmp_path, transactions={"externalize_all": True}) as daemon, daemon.client() as client:
        waits = tx("w", output("x", 5), output("y", 6), spends=[[digest("tx", "first"), 3]], fee=7, raw=b"raw")
        frozen: Message = {"type": "OutputsFrozen", "outpoints": [[digest("tx", "w"), 0], [digest("tx", "w"), 1]]}
        given: Message = {"type": "OutputReassigned", "outpoint": [digest("tx", "w"), 1], "address": ANN}
        for message in (BLOCKS[0], {"type": "TxSubmitted", "tx": waits}, frozen, given):
            assert client.ask(message)["status"] in {"applied", "accepted"}
        command = ("query", "tx", digest("tx", "w").hex())
        answer = utxod(daemon, *command, "--json").json()
        assert (answer["block"], answer["utxos"]) == (None, [])
        assert (answer["transaction"]["status"], answer["transaction"]["external"]) == ("unmined", True)
        assert [each["status"] for each in answer["slots"]] == ["frozen", "unspent"]
        words = utxod(daemon, *command).out
        for word in ("in no block of the chain", "unmined", f"{FIRST}#3", "frozen", "spendable from 1,001"):
            assert word in words
        assert "unmined since height" in words and "partial" not in words
        parent = utxod(daemon, "query", "tx", FIRST).out
        assert re.search(rf"^ +3  claimed +{digest('tx', 'w').hex()} input 0", parent, re.MULTILINE)
        assert "30, 1 of them spent or claimed" in parent
        report = utxod(daemon, "status", "--json").json()
        assert (report["unmined"], report["blobs"]) == (1, 1)
        assert "1 in no block (1 waiting, 0 conflicting), 1 blob in file:blobs" in utxod(daemon, "status").out


def test_query_tx_without_the_transaction_store(daemon: Daemon, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("UTXOD_TRANSACTIONS__ENABLED", "false")
    done = utxod(daemon, "query", "tx", FIRST, "--json")
    answer = json.loads(done.out)
    assert (done.code, done.err, answer["error"]) == (1, "", "not_enabled")
    assert "not enabled" in answer["message"] and "30 of its outputs" in answer["message"]
    assert [utxo["output_index"] for utxo in answer["utxos"]] == list(range(30))
    assert [utxo["output_index"] for utxo in answer["utxos"] if "spent_tx_hash" in utxo] == [0, 29]
    words = utxod(daemon, "query", "tx", FIRST)
    assert words.code == 1 and words.out.count(f"{FIRST}#") == 30 and RICH_ID in words.out
    assert words.err.count("\n") == 1 and "not enabled" in words.err


def test_query_tx_that_is_unknown(daemon: Daemon) -> None:
    assert "never received, or is pruned" in utxod(daemon, "query", "tx", digest("nobody").hex()).one_line(1)
    done = utxod(daemon, "query", "tx", digest("nobody").hex(), "--json")
    assert (done.code, json.loads(done.out)["error"]) == (1, "unknown_transaction")


def test_pruned_outputs_are_unknown(tmp_path: Path) -> None:
    with running(tmp_path, utxo={"rollback_window": 2, "prune_depth": 1}) as daemon, daemon.client() as client:
        client.feed(chain(4, outputs=2))
        client.feed(chain(8, outputs=2)[4:])
        done = json.loads(utxod(daemon, "query", "tx", digest("tx", "2").hex(), "--json").out)
        assert [utxo["output_index"] for utxo in done["utxos"]] == [1]
        assert "is not in the store" in utxod(daemon, "query", "utxo", f"{digest('tx', '2').hex()}#0").one_line(1)


def test_query_works_without_a_daemon_and_on_another_chain(tmp_path: Path) -> None:
    script = bytes.fromhex("76a914") + bytes(20) + bytes.fromhex("88ac")
    with home(tmp_path, chain={"family": "bitcoin", "network": "mainnet"}) as daemon:
        assert "there is no store here" in utxod(daemon, "query", "address", script.hex()).one_line(1)
        daemon.start()
        with daemon.client() as client:
            client.feed([block(None, tx("pay", {"address": script, "value": 50}))])
        daemon.term()
        for owner in (script.hex(), "1111111111111111111114oLvT2"):
            answer = utxod(daemon, "query", "balance", owner, "--json").json()
            assert answer["amounts"] == [{"unit": "satoshi", "policy_id": None, "asset_name": None, "quantity": "50"}]
        odd = "6a" * 28  # 28 bytes are a script here, no credential
        assert utxod(daemon, "query", "balance", odd, "--json").json()["utxo_count"] == 0
        assert "50 satoshi" in utxod(daemon, "query", "address", script.hex()).out
        daemon.configure(chain={"family": "cardano"})
        assert "is for bitcoin/mainnet" in utxod(daemon, "query", "tx", FIRST).one_line(3)


def test_query_on_an_unknown_network(tmp_path: Path) -> None:
    script = bytes.fromhex("76a914") + bytes(20) + bytes.fromhex("88ac")
    with running(tmp_path, chain={"family": "bitcoin", "network": "private"}) as daemon, daemon.client() as client:
        client.feed([block(None, tx("pay", {"address": script, "value": 50}))])
        done = utxod(daemon, "query", "address", script.hex(), "--json")
        [found] = json.loads(done.out)["utxos"]
        assert (done.code, found["owner_addr"]) == (0, script.hex())
        assert done.err.startswith("Warning: bitcoin has no network 'private'") and done.err.count("\n") == 1
        text = utxod(daemon, "query", "balance", "1111111111111111111114oLvT2")
        assert text.code == 2 and "malformed" in text.err


def test_a_reader_may_close_the_pipe(daemon: Daemon) -> None:
    command = f"{sys.executable} -m daemon.cli query tx {FIRST} --config {daemon.config} | head -n 1"
    done = subprocess.run(command, shell=True, capture_output=True, env=environment(), check=False)
    assert done.stdout.split()[0] == b"transaction" and b"Traceback" not in done.stderr


@pytest.fixture
def bin_folder(tmp_path: Path) -> Path:
    script = tmp_path / "utxod"
    script.write_text(f"#!{sys.executable}\nfrom daemon.cli import main\nmain()\n")
    script.chmod(0o755)
    return tmp_path


def test_completion_in_bash(bin_folder: Path) -> None:
    lines = """
    source <(utxod completion bash)
    complete -p utxod
    ask() { COMP_WORDS=("$@"); COMP_CWORD=$(($# - 1)); COMPREPLY=(); _utxod_completion utxod; echo "${COMPREPLY[@]}"; }
    ask utxod query ""
    ask utxod st
    ask utxod tail --event R
    ask utxod completion ""
    """
    environ = environment(PATH=f"{bin_folder}:{os.environ['PATH']}")
    done = subprocess.run(["bash", "-c", lines], capture_output=True, env=environ, text=True, check=True)
    first, *shown = done.stdout.splitlines()
    assert first.endswith("-F _utxod_completion utxod") and done.stderr == ""
    assert shown == [
        "address balance block by datum delta policy transactions tx txs utxo",
        "status",
        "RolledBack",
        "bash zsh fish",
    ]


def test_commands_start_without_what_only_some_need() -> None:
    code = (
        "import sys, daemon.cli; print(*sorted(m for m in sys.modules if m in "
        + repr(["lmdb", "daemon.metrics", "handlers.query", "starlette", "prometheus_client", "daemon.app", "rich"])
        + "))"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, env=environment(), cwd=ROOT, check=True)
    assert done.stdout.strip() == b""
