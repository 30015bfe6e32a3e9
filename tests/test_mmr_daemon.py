"""A daemon with an MMR store: roots and proofs over HTTP, `utxod verify-proof`, and damage."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path

import msgspec
import pytest
from corruption import harm
from daemons import home, reason, utxod
from questions import Api, Web, failure, running_api, short_folder
from scenarios import at, back_to, block, chain, digest, output, tx

from handlers.proofs import Contradiction, MmrProof, check
from storage import mmr
from storage.history.mmr import BIT_NODE

FIRST = block(None, tx("many", *(output("ann", n) for n in range(40))), time=1, epoch=2)
SECOND = block(
    FIRST,
    tx("spend", output("bob"), output("cid"), spends=[at("many", 0), at("many", 1)]),
    tx("inside", output("dan"), spends=[at("spend", 0)]),
    tx("failed", output("eve"), valid=False, collateral=[at("many", 2)], collateral_return=output("ann", 3)),
)
ROOT, PROOF = "/api/v1/mmr/root", "/api/v1/mmr/proof/{}/{}"
POINT = ("height", "slot", "hash")


@pytest.fixture(scope="module")
def service() -> Iterator[Api]:
    with (
        short_folder() as folder,
        running_api(folder, utxo={"store": "mmr", "prune_depth": 2, "rollback_window": 2}) as api,
    ):
        api.feed(FIRST, SECOND, *chain(1, SECOND, branch="gone"), back_to(SECOND))
        yield api


def proof_path(name: str, index: int = 0) -> str:
    return PROOF.format(digest("tx", name).hex(), index)


def test_roots_move_with_the_chain_and_back(service: Api) -> None:
    before = service.ask(ROOT)
    root = before.json()
    assert root["leaves"] == 40 + 2 + 1 + 2
    assert root["size"] == mmr.size_of(45)
    assert (root["height"], root["hash"]) == (2, SECOND["hash"].hex()) == (2, before.headers["x-tip-hash"])
    assert service.ask(ROOT, **{"If-None-Match": before.headers["etag"]}).status_code == 304
    third = block(SECOND, tx("third", output("fay"), spends=[at("many", 5)]))
    service.feed(third)
    moved = service.get(ROOT)
    assert moved["leaves"] == 46
    assert moved["root"] != root["root"] and moved["bitmap_root"] != root["bitmap_root"]
    service.feed(back_to(SECOND))
    assert service.get(ROOT) == root


def test_a_proof_is_checked_without_a_store(service: Api, tmp_path: Path) -> None:
    root = service.get(ROOT)["root"]
    for name, index, unspent in (("many", 7, True), ("spend", 1, True), ("failed", 1, True), ("many", 0, False)):
        answer = service.ask(proof_path(name, index))
        proof = answer.json()
        assert proof["unspent"] == unspent and proof["root"] == root
        (tmp_path / "proof").write_bytes(answer.content)
        for arguments in ([tmp_path / "proof"], [tmp_path / "proof", "--root", root], ["-", "--root", root.upper()]):
            done = utxod("verify-proof", *arguments, stdin=answer.content)
            assert (done.returncode, done.stderr) == (0, b"")
            text = done.stdout.decode()
            assert f"{digest('tx', name).hex()}#{index}" in text and proof["hash"] in text and root in text
            assert ("still unspent at block 2" in text) == unspent
            assert ("according to the proof" in text) == ("--root" not in arguments)
    assert service.get(f"/api/v1/utxos/{digest('tx', 'spend').hex()}/0")["spent_at_block"] == 2
    born_and_spent = service.get(proof_path("spend", 0))
    assert not born_and_spent["unspent"]


def test_the_step_that_fails_is_named(service: Api, tmp_path: Path) -> None:
    proof, file = service.get(proof_path("many", 7)), tmp_path / "proof"
    other = service.get(proof_path("many", 8))
    wrong = {
        "outpoint": {"output_index": 8},
        "position": {"leaf": 8},
        "size": {"size": 2},
        "chunk": {"chunk": 1},
        "bits_size": {"bits_size": 3},
        "unspent": {"unspent": False},
        "output_root": {"path": proof["path"][:-1]},
        "bitmap_root": {"bits": "f" * 256},
        "root": {"root": "00" * 32},
    }
    for step, fields in wrong.items():
        file.write_text(json.dumps(proof | fields))
        done = utxod("verify-proof", file)
        assert done.returncode == 3 and f"is not a valid proof: {step}: " in done.stderr.decode(), done.stderr
    file.write_text(json.dumps(proof))
    done = utxod("verify-proof", file, "--root", "00" * 32)
    assert done.returncode == 3 and f"it is {proof['root']}, not {'00' * 32}" in done.stderr.decode()
    for field in ("path", "data", "leaf", "position"):
        with pytest.raises(Contradiction):
            check(msgspec.convert(proof | {field: other[field]}, MmrProof))


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("{", b"is not a proof: Input data was truncated"),
        ("{}", b"missing required field `height`"),
        ('{"leaf": -1}', b"$.leaf"),
        ('{"path": ["ab"]}', b"$.path[0]"),
        ('{"rooot": "ab"}', b"unknown field `rooot`"),
        ("\udcff", b"is not a proof"),
    ],
)
def test_malformed_proofs_are_refused(text: str, words: bytes, tmp_path: Path) -> None:
    (tmp_path / "proof").write_bytes(text.encode(errors="surrogateescape"))
    done = utxod("verify-proof", tmp_path / "proof")
    assert done.returncode == 2 and words in done.stderr and b"Traceback" not in done.stderr, done.stderr


def test_wrong_arguments(tmp_path: Path) -> None:
    assert utxod("verify-proof", tmp_path / "absent").returncode == 2
    assert b"64 hex digits" in utxod("verify-proof", "-", "--root", "abc").stderr


def test_any_single_changed_byte_is_detected(service: Api) -> None:
    """The block is not hashed: it comes with the root from a trusted source."""
    raw = service.ask(proof_path("many", 7)).content
    proof = json.loads(raw)
    free = set[int]()
    for field in POINT:
        begin = raw.index(json.dumps({field: proof[field]}, separators=(",", ":"))[1:-1].encode())
        free |= set(range(begin + len(field) + 3, raw.index(b",", begin)))
    accepted = []
    for place, was in enumerate(raw):
        for now in {was ^ 1, was ^ 0x20, ord("0") if was != ord("0") else ord("1")}:
            try:
                check(msgspec.json.decode(raw[:place] + bytes((now,)) + raw[place + 1 :], type=MmrProof))
            except (Contradiction, msgspec.DecodeError, UnicodeDecodeError):
                continue
            accepted.append(place)
    assert set(accepted) <= free and len(raw) > 1000


def test_wrong_requests(service: Api) -> None:
    for path, status, code, *named in (
        (PROOF.format("ab", 0), 400, "bad_parameter", "tx_hash"),
        (PROOF.format("ab" * 32, "x"), 400, "bad_parameter", "index"),
        (PROOF.format("ab" * 32, 0), 404, "unknown_output", "never created"),
        (proof_path("failed", 0), 404, "unknown_output"),
    ):
        failure(service.ask(path), status, code, *named)


def test_status_and_metrics_have_the_root(service: Api) -> None:
    root, status = service.get(ROOT), service.get("/api/v1/status")["utxo"]
    assert (status["store"], status["mmr"]) == ("mmr", root)
    printed = service.daemon.status()
    assert (printed["store"], printed["mmr"]) == ("mmr", root)
    assert f"leaves           {root['leaves']}, root {root['root']}".split() in [
        line.split() for line in service.daemon.run("status").stdout.decode().splitlines()
    ]
    assert f"utxod_mmr_leaves {root['leaves']}.0" in service.ask("/metrics").text


def test_pruned_outputs_have_no_proof() -> None:
    with (
        short_folder() as folder,
        running_api(folder, utxo={"store": "mmr", "prune_depth": 2, "rollback_window": 2}) as service,
    ):
        service.feed(FIRST, SECOND, *chain(6, SECOND))
        service.daemon.term()
        service.daemon.run("prune")
        service.daemon.assert_sound()
        service.daemon.start()
        failure(service.ask(proof_path("many", 0)), 404, "unknown_output", "so long ago")
        neighbour = service.get(proof_path("many", 3))
        check(msgspec.convert(neighbour, MmrProof))
        assert neighbour["unspent"]


def test_lost_nodes_stop_a_daemon_or_the_proofs_that_need_them(tmp_path: Path) -> None:
    """Roots would be written over a lost node at the end, so the daemon does not start."""
    utxo = {"rollback_window": 8, "prune_depth": 8, "store": "mmr"}
    with home(tmp_path, utxo=utxo, http={"workers": 1, "listen": f"unix:{tmp_path}/http"}) as daemon:
        daemon.start()
        first = block(None, tx("many", *(output("ann") for _ in range(400))))
        second = block(first, tx("spend", output("bob"), spends=[at("many", n) for n in range(300) if n != 7]))
        with daemon.client("frames") as client:
            client.feed([first, second, *chain(14, second, outputs=3)])
        assert daemon.term() == 0
        assert daemon.run("prune").returncode == 0
        folder = tmp_path / "data" / "lmdb"
        sound = (folder / "data.mdb").read_bytes()
        harm(folder, lambda hand: hand.delete(BIT_NODE, bytes(8)))
        done = daemon.run("verify")
        assert done.returncode == 3 and b"from node 0 on are not the hashes" in done.stderr
        assert "has nodes up to 0, expected 1" in reason(daemon.run("run"))
        (folder / "data.mdb").write_bytes(sound)
        harm(folder, lambda hand: hand.remove_node(10))  # next to the leaf of output 7
        daemon.start()
        with Web(tmp_path / "http") as web:
            failure(web.ask(proof_path("many", 7)), 500, "store_damaged")
            check(msgspec.convert(web.get(proof_path("many", 350)), MmrProof))
