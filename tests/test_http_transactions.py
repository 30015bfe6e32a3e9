"""Transactions and the jobs of the pruner over HTTP: every field, pages, bytes, and what was pruned."""

from __future__ import annotations

import shutil
from collections.abc import Iterator
from pathlib import Path
from time import sleep
from typing import Any

import pytest
from daemons import Message
from patience import until
from questions import TIP, Api, check_pages, failure, running_api, short_folder
from scenarios import address, at, back_to, block, digest, output, tx
from tx_messages import done, message_about, on_outputs, submit

PAGE = 4  # outputs of a record's page here
FROZEN = "ff" * 36
LONG = b"\x00\xff" * 60
OCTETS = {"Accept": "application/octet-stream"}
TRANSACTIONS = {"batch_size": PAGE, "max_inline_bytes": 100, "coinbase_maturity": 3}
FIELDS = {
    **{"txid": "", "status": "unmined", "has_record": True, "record_utxos": 1, "spent_utxos": 0, "total_utxos": 1},
    **dict.fromkeys(("total_extra_recs", "spent_extra_recs"), 0),
    **dict.fromkeys(("is_coinbase", "locked", "locked_by_operator", "creating", "conflicting", "frozen"), False),
    **dict.fromkeys(("external", "partial"), False),
    **dict.fromkeys(("unmined_since", "created_at", "preserve_until", "delete_at_height", "spending_height")),
    **{name: [] for name in ("block_ids", "block_heights", "subtree_idxs", "conflicting_children", "deleted_children")},
    **{"reassignments": [], "fee": None, "size_in_bytes": None, "version": None, "lock_time": None, "tx_inpoints": []},
}
DATA = {"address": b"\x6a", "value": 0, "spendable": False}
FIRST = block(
    None,
    tx("reward", output("miner", 50), coinbase=True),
    tx("p", output("p0"), output("p1"), DATA, output("p3"), fee=170, size=291, subtree_index=6),
    tx("q", output("q0"), output("q1")),
    tx("whole", output("whole"), raw=b"of a block"),
    time=1_700_000_000,
)
UNMINED = tx("a", output("a0", 5), output("a1", 6), spends=[at("p"), at("p", 1)], raw=b"\x00\xff", fee=7)
LOSER = tx("loser", output("x"), spends=[at("q")])
BIG = tx("big", *(output(f"big{n}") for n in range(3 * PAGE - 1)), spends=[at("q", 1)], raw=LONG)
SECOND = block(FIRST, tx("winner", output("w"), spends=[at("q")]), block_id=77)


def txid(name: object) -> str:
    return digest("tx", name).hex()


def path(name: object, more: str = "") -> str:
    return f"/api/v1/txs/{txid(name)}{more}"


def one_by_one(api: Api, *messages: Message) -> None:
    """Let each message be carried out before the next is sent: a block in the same batch would be before the others."""
    with api.daemon.client() as client:
        done(client, *messages)


def inpoints(*outpoints: list[Any]) -> list[Message]:
    """Return outputs of which the sender reported nothing else."""
    unknown = {"value": None, "script": None}
    return [{"tx_hash": txid.hex(), "output_index": index} | unknown for txid, index in outpoints]


def hash_of(api: Api, name: object, index: int = 0) -> str:
    [slot] = api.get(path(name, f"/utxos?count=1&page={index + 1}"))
    return str(slot["slot"][:64])


@pytest.fixture(scope="module")
def fed_api() -> Iterator[Api]:
    with short_folder() as folder, running_api(folder, transactions=TRANSACTIONS) as api:
        one_by_one(api, FIRST, submit(UNMINED), submit(LOSER), submit(BIG), SECOND)
        one_by_one(api, on_outputs("OutputsFrozen", at("big", 1), at("big", PAGE), at("p", 3)))
        one_by_one(api, {"type": "OutputReassigned", "outpoint": at("big", PAGE), "address": address("heir")})
        one_by_one(api, message_about("TxMined", "big", block_id=9, height=2, subtree_index=4))
        one_by_one(api, message_about("TxPreserved", "big", until=50))
        yield api


def record(api: Api, name: object, **fields: Any) -> None:
    """Check a whole answer, but for the time at which the record was created."""
    found = api.get(path(name))
    assert list(found) == list(FIELDS)
    assert (found["created_at"] is None) is not found["has_record"]
    assert found["created_at"] is None or found["created_at"] > 1_700_000_000_000
    assert found | {"created_at": None} == FIELDS | {"txid": txid(name)} | fields


def test_records_of_each_kind(fed_api: Api) -> None:
    claims = inpoints(at("p"), at("p", 1))
    record(fed_api, "a", record_utxos=2, total_utxos=2, unmined_since=1, fee=7, size_in_bytes=2, tx_inpoints=claims)
    of_block: Message = {"status": "mined", "has_record": False, "partial": True}
    at_1: Message = of_block | {"block_ids": [1], "block_heights": [1], "subtree_idxs": [None]}
    counts = {"record_utxos": 3, "spent_utxos": 2, "total_utxos": 4}  # of 4 outputs one carries only data
    record(fed_api, "p", **at_1 | counts | {"subtree_idxs": [6], "fee": 170, "size_in_bytes": 291})
    at_2: Message = of_block | {"block_ids": [77], "block_heights": [2], "subtree_idxs": [None]}
    record(fed_api, "winner", tx_inpoints=inpoints(at("q")), **at_2)
    record(fed_api, "reward", is_coinbase=True, spending_height=4, **at_1)
    lost: Message = {"status": "conflicting", "conflicting": True, "unmined_since": 1, "delete_at_height": 290}
    record(fed_api, "loser", tx_inpoints=inpoints(at("q")), **lost)
    parent = fed_api.get(path("q"))
    assert (parent["status"], parent["has_record"]) == ("mined", True)
    assert parent["conflicting_children"] == [txid("loser")]


def test_a_large_transaction(fed_api: Api) -> None:
    heir = hash_of(fed_api, "big", PAGE)
    given = fed_api.get(path("big"))["reassignments"]
    assert given == [
        {"output_index": PAGE, "old_hash": given[0]["old_hash"], "new_hash": heir, "height": 2, "spendable_in": 1002}
    ]
    assert given[0]["old_hash"] != heir and len(given[0]["old_hash"]) == 64
    mined: Message = {"status": "mined", "block_ids": [9], "block_heights": [2], "subtree_idxs": [4]}
    sizes = {"record_utxos": PAGE, "total_utxos": 3 * PAGE - 1, "total_extra_recs": 2, "size_in_bytes": len(LONG)}
    more: Message = {"external": True, "preserve_until": 50, "reassignments": given}
    record(fed_api, "big", tx_inpoints=inpoints(at("q", 1)), **mined | sizes | more)


def test_version_lock_time_and_previous_outputs_of_a_submission(api: Api) -> None:
    previous = {"value": 7, "script": address("p0").hex()}
    full: Message = {"version": 2, "lock_time": 500_000_000, "previous": [[7, address("p0")], None]}
    names = ("both", "submitted", "block's")
    spends = {name: [at("first", n), at("first", n + 3)] for n, name in enumerate(names)}
    bare = {name: tx(name, output(name), spends=spends[name]) for name in names}
    first = block(None, tx("first", *(output(f"o{n}", 7) for n in range(6))))
    other: Message = {"version": -1, "lock_time": 2**64 - 1, "previous": [None, [1, b""]]}
    late = tx("chain only", output("x"), **full | {"previous": []})
    one_by_one(api, first, submit(bare["both"] | full), submit(bare["submitted"] | full), submit(bare["block's"]))
    one_by_one(api, block(first, bare["both"] | other, bare["submitted"], bare["block's"] | full, late))
    for name in names:
        found = api.get(path(name))
        assert (found["version"], found["lock_time"]) == (2, 500_000_000), name
        places = inpoints(*spends[name])
        assert found["tx_inpoints"] == [places[0] | previous, places[1]], name
    found = api.get(path("chain only"))
    assert (found["has_record"], found["version"], found["lock_time"]) == (False, None, None)
    again = {**bare["both"], "txid": digest("tx", "again"), "inputs": [at("both")], **other, "previous": [[1, b""]]}
    one_by_one(api, submit(again), back_to(first))
    found = api.get(path("again"))
    assert (found["version"], found["lock_time"]) == (-1, 2**64 - 1)
    assert found["tx_inpoints"] == [inpoints(at("both"))[0] | {"value": 1, "script": ""}]
    assert api.get(path("both"))["tx_inpoints"][0]["value"] == 7
    api.daemon.assert_sound()


@pytest.mark.configured(transactions=TRANSACTIONS)
def test_a_transaction_is_frozen_when_all_of_it_is(api: Api) -> None:
    first = block(None, tx("chain", output("x"), output("y"), DATA), tx("spent", output("x"), output("y")))
    large = tx("large", *(output(f"o{n}") for n in range(PAGE + 2)))
    everything = [at("chain"), at("chain", 1), *(at("large", n) for n in range(PAGE + 2)), at("spent", 1)]
    one_by_one(api, first, submit(large), submit(tx("c", output("z"), spends=[at("spent")])))
    one_by_one(api, on_outputs("OutputsFrozen", *everything))
    frozen = {"chain": True, "large": True, "spent": False, "c": False}
    assert {name: api.get(path(name))["frozen"] for name in frozen} == frozen
    one_by_one(api, on_outputs("OutputsUnfrozen", at("large", PAGE + 1), at("chain", 1)))
    assert [api.get(path(name))["frozen"] for name in frozen] == [False] * 4


def test_a_genesis_transaction(api: Api) -> None:
    seeded = [{"txid": digest("genesis"), "index": 7, "output": output("seed")}]
    api.feed({"type": "GenesisOutputs", "outputs": seeded})
    for empty_block in (block(None), block(block(None))):
        found = api.get(f"/api/v1/txs/{digest('genesis').hex()}")
        assert (found["status"], found["block_heights"], found["record_utxos"]) == ("mined", [0], 1)
        slots = api.get(f"/api/v1/txs/{digest('genesis').hex()}/utxos")
        assert [each["status"] for each in slots] == ["none"] * 7 + ["unspent"]
        api.feed(empty_block)


def slot(index: int, status: str, text: str | None, *by: Any, spendable_in: int | None = None) -> Message:
    spender = dict(zip(("spending_tx_hash", "spending_input_index"), by or (None, None), strict=True))
    return {"output_index": index, "status": status, "slot": text, **spender, "spendable_in": spendable_in}


def test_slots_of_a_record(fed_api: Api) -> None:
    names = [hash_of(fed_api, "big", index) for index in range(3 * PAGE - 1)]
    expected = [slot(index, "unspent", name) for index, name in enumerate(names)]
    expected[1] = slot(1, "frozen", names[1] + FROZEN)
    expected[PAGE] = slot(PAGE, "unspent", names[PAGE], spendable_in=1002)
    found = fed_api.get(path("big", "/utxos"))
    assert found == expected and list(found[0]) == list(expected[0])
    assert len(set(names)) == len(names) and {len(name) for name in names} == {64}


def test_slots_of_a_transaction_without_a_record(fed_api: Api) -> None:
    names = [hash_of(fed_api, "p", index) for index in (0, 1, 3)]
    by = [(txid("a"), index) for index in (0, 1)]
    assert fed_api.get(path("p", "/utxos")) == [
        slot(0, "spent", names[0] + txid("a") + "00000000", *by[0]),
        slot(1, "spent", names[1] + txid("a") + "01000000", *by[1]),
        slot(2, "none", None),
        slot(3, "frozen", names[2] + FROZEN),
    ]
    assert fed_api.get(path("q", "/utxos"))[0]["spending_tx_hash"] == txid("winner")


@pytest.mark.parametrize("order", ["asc", "desc"])
@pytest.mark.parametrize("count", [1, PAGE, 3 * PAGE - 2, 3 * PAGE - 1])
def test_pages_of_slots(fed_api: Api, order: str, count: int) -> None:
    whole = fed_api.get(path("big", f"/utxos?order={order}"))
    assert [each["output_index"] for each in whole] == sorted(range(3 * PAGE - 1), reverse=order == "desc")
    check_pages(fed_api.web, path("big", "/utxos"), whole, count, order)


def test_parameters_of_slots_that_are_refused(fed_api: Api) -> None:
    cursor = fed_api.ask(path("big", "/utxos?count=2")).headers["x-next-cursor"]
    ann = fed_api.ask(f"/api/v1/addresses/{address('x').hex()}/utxos?cursor={cursor}")
    failure(ann, 400, "bad_parameter", "cursor", "another list")
    for query in ("asset=", "count=0", "count=1001", "count=1&count=2", "page=0", "order=up", "cursor=nonsense"):
        failure(fed_api.ask(path("big", f"/utxos?{query}")), 400, "bad_parameter", query.partition("=")[0])
    for query, named in ((f"cursor={cursor}&page=2", "page"), (f"cursor={cursor}&order=desc", "cursor")):
        failure(fed_api.ask(path("big", f"/utxos?{query}")), 400, "bad_parameter", named)
    failure(fed_api.ask(path("a", f"/utxos?cursor={cursor}")), 400, "bad_parameter", "another list")
    failure(fed_api.ask(path("nobody", "/utxos?count=0")), 400, "bad_parameter", "count")
    assert fed_api.get(path("a", "/utxos?unknown=1"))


@pytest.mark.configured(transactions=TRANSACTIONS)
def test_a_cursor_across_a_rollback(api: Api) -> None:
    one_by_one(api, FIRST, submit(BIG))
    kept = api.ask(path("big", "/utxos?count=2")).headers["x-next-cursor"]
    api.feed(SECOND)
    cut = api.ask(path("big", "/utxos?count=2")).headers["x-next-cursor"]
    assert [each["output_index"] for each in api.get(path("big", f"/utxos?count=2&cursor={kept}"))] == [2, 3]
    api.feed(back_to(FIRST))
    failure(api.ask(path("big", f"/utxos?cursor={cut}")), 409, "cursor_gone")
    failure(api.ask(path("big", f"/utxos?cursor={cut}"), **{"If-None-Match": "*"}), 409, "cursor_gone")
    assert [each["output_index"] for each in api.get(path("big", f"/utxos?count=2&cursor={kept}"))] == [2, 3]


@pytest.mark.parametrize(("name", "raw"), [("a", b"\x00\xff"), ("big", LONG), ("whole", b"of a block")])
def test_bytes_of_a_transaction(fed_api: Api, name: str, raw: bytes) -> None:
    assert fed_api.get(path(name, "/raw")) == {"txid": txid(name), "raw": raw.hex()}
    plain = fed_api.ask(path(name, "/raw"), **OCTETS)
    assert (plain.status_code, plain.content, plain.headers["content-type"]) == (200, raw, OCTETS["Accept"])
    as_json = fed_api.ask(path(name, "/raw"))
    assert plain.headers["vary"] == as_json.headers["vary"] == "Accept"
    assert plain.headers["etag"] != as_json.headers["etag"]
    assert [plain.headers[each] for each in TIP] == [as_json.headers[each] for each in TIP]
    same = fed_api.ask(path(name, "/raw"), **OCTETS, **{"If-None-Match": plain.headers["etag"]})
    assert (same.status_code, same.content, same.headers["vary"]) == (304, b"", "Accept")
    for accept in ("application/json, application/octet-stream", "Application/Octet-Stream"):
        assert fed_api.ask(path(name, "/raw"), Accept=accept).content == raw
    for accept in ("application/octet-stream;q=0.5, application/json", "application/octet-stream;q=nonsense"):
        assert fed_api.ask(path(name, "/raw"), Accept=accept).content == as_json.content


def test_bytes_that_are_not_kept(fed_api: Api) -> None:
    for name in ("p", "loser"):
        for accept in (OCTETS, {}):
            answer = fed_api.ask(path(name, "/raw"), **accept)
            failure(answer, 404, "no_bytes", txid(name))


@pytest.mark.configured(transactions=TRANSACTIONS)
def test_a_blob_store_that_is_away(api: Api, folder: Path) -> None:
    api.feed(FIRST, submit(BIG), submit(UNMINED))
    blobs = folder / "data" / "blobs"
    blobs.rename(folder / "away")
    failure(api.ask(path("big", "/raw")), 503, "blob_store_away", "blobs")
    assert api.get(path("big"))["external"] and api.get(path("a", "/raw"))
    assert not blobs.exists()  # reading does not create the folder
    (folder / "away").rename(blobs)
    assert api.ask(path("big", "/raw"), **OCTETS).content == LONG
    shutil.rmtree(blobs / txid("big")[:2])
    failure(api.ask(path("big", "/raw")), 404, "no_bytes")


@pytest.mark.configured(transactions=TRANSACTIONS)
def test_the_etag_changes_with_the_record_at_an_unchanged_tip(api: Api) -> None:
    steps = [
        message_about("TxLocked", "a"),
        message_about("TxUnlocked", "a"),
        on_outputs("OutputsFrozen", at("a")),
        message_about("TxPreserved", "a", until=9),
        submit(tx("child", output("x"), spends=[at("a", 1)])),
    ]
    api.feed(FIRST, submit(UNMINED))
    for step in steps:
        before = {each: api.ask(path("a", each)) for each in ("", "/utxos", "/raw")}
        api.feed(step)
        for each, old in before.items():
            new = api.ask(path("a", each), **{"If-None-Match": old.headers["etag"]})
            assert [new.headers[name] for name in TIP] == [old.headers[name] for name in TIP]
            same = api.ask(path("a", each)).content == old.content
            assert new.status_code == (304 if same else 200), (step, each)
        slots, records = api.get(path("a", "/utxos")), api.get(path("a"))
        assert (slots, records) != (before["/utxos"].json(), before[""].json()), step
    assert api.ask(path("a"), **{"If-None-Match": "*"}).status_code == 304


@pytest.mark.parametrize("more", ["", "/raw", "/utxos"])
def test_a_transaction_that_is_not_there(fed_api: Api, more: str) -> None:
    failure(fed_api.ask(path("nobody", more)), 404, "unknown_transaction", txid("nobody"))
    failure(fed_api.ask(path("nobody", more), **{"If-None-Match": "*"}), 404, "unknown_transaction")
    for text in ("ab", txid("a") + "00", "zz" * 32, f"{'ab' * 31}%20a"):
        failure(fed_api.ask(f"/api/v1/txs/{text}{more}"), 400, "bad_parameter", "txid")
    assert fed_api.ask(f"/api/v1/txs/{txid('a').upper()}{more}").content == fed_api.ask(path("a", more)).content


def empty(last: Message, count: int) -> list[Message]:
    return [last := block(last) for _ in range(count)]


def removed(api: Api, name: str) -> None:
    api.web.until(path(name), 404)
    for more in ("", "/raw", "/utxos"):
        failure(api.ask(path(name, more)), 404, "unknown_transaction", txid(name))


SPENT = tx("a", output("a0"), spends=[at("p"), at("p", 1), at("p", 3)], raw=b"raw")
SPENDING = block(FIRST, SPENT)
LAST = block(SPENDING, tx("b", output("b0"), spends=[at("a")]))
SOON = {
    "transactions": TRANSACTIONS | {"block_height_retention": 3},
    "pruner": {"unmined_retention": 2, "parent_preservation_blocks": 5},
    "utxo": {"prune_depth": 50, "rollback_window": 50},
}


@pytest.mark.configured(**SOON)
def test_a_transaction_that_was_spent_long_ago_is_pruned(api: Api) -> None:
    one_by_one(api, FIRST, submit(SPENT), SPENDING, LAST)
    assert (api.get(path("a"))["delete_at_height"], api.get(path("p"))["delete_at_height"]) == (6, 5)
    more = empty(LAST, 3)
    api.feed(more[0])
    assert api.get(path("a"))["has_record"] is True and api.get(path("p"))["has_record"] is False
    api.feed(*more[1:])
    removed(api, "p")
    removed(api, "a")
    assert api.get(f"/api/v1/utxos/{txid('p')}/0")["spent_tx_hash"] == txid("a")  # its rows are kept
    assert api.get(path("b"))["status"] == "mined"
    api.feed(back_to(LAST))
    assert api.get(path("p"))["status"] == "mined"


@pytest.mark.configured(**SOON)
def test_a_transaction_is_found_while_a_submission_claims_its_last_output(api: Api) -> None:
    last = block(FIRST, tx("some", output("s0"), spends=[at("p"), at("p", 1)]))
    one_by_one(api, FIRST, last)
    api.feed(*empty(last, 6))
    one_by_one(api, submit(tx("waits", output("w0"), spends=[at("p", 3)])))
    found = api.get(path("p"))
    assert (found["has_record"], found["spent_utxos"], found["delete_at_height"]) == (False, 3, None)


def test_nothing_is_deleted_while_the_node_reorganises() -> None:
    waits = tx("waits", output("w0"), spends=[at("q")], raw=b"raw")
    age = {"transactions": SOON["transactions"] | {"max_pending_age": "1s"}}
    with short_folder() as folder, running_api(folder, **SOON | age) as api:
        one_by_one(api, FIRST, submit(SPENT), SPENDING, {"type": "NodeState", "state": "reorganising", "height": 2})
        one_by_one(api, submit(waits), LAST)
        api.feed(*empty(LAST, 10))
        until(lambda: [job for job in api.get(JOBS) if job["reason"] == "reorganising"], why="no cycle was held back")
        sleep(1.5)
        assert api.get(path("a"))["delete_at_height"] == 6, "due for seven blocks"
        assert api.get(path("waits"))["status"] == "unmined", "older than it may be"
        one_by_one(api, {"type": "NodeState", "state": "running", "height": 13})
        removed(api, "a")
        removed(api, "waits")


JOBS = "/api/v1/pruner/jobs"


def settled(api: Api, height: int) -> list[Message]:
    jobs: list[Message] = until(
        lambda: api.get(JOBS), lambda jobs: jobs and (jobs[0]["height"], jobs[0]["state"]) == (height, "done")
    )
    return jobs


def feed_jobs(api: Api, count: int) -> list[Message]:
    """Feed blocks of which so many give the pruner something to do, a parent to preserve; return the blocks."""
    one_by_one(api, FIRST, submit(tx("waits", output("w0"), spends=[at("whole")])))
    assert api.get(JOBS) == [], "nothing to do is no job"
    fed = [FIRST, *empty(FIRST, count + 1)]
    for each in fed[1:]:
        api.feed(each)
        if each["height"] > 2:
            settled(api, each["height"])
    return fed


@pytest.fixture(scope="module")
def pruned() -> Iterator[Api]:
    with short_folder() as folder, running_api(folder, **SOON) as api:
        feed_jobs(api, 7)
        yield api


def test_jobs_are_listed_latest_first(pruned: Api) -> None:
    jobs = pruned.get(JOBS)
    assert [job["height"] for job in jobs] == list(range(9, 2, -1))
    numbers = [job["number"] for job in jobs]
    assert numbers == sorted(numbers, reverse=True) and len(set(numbers)) == 7
    for job in jobs:
        assert (job["state"], job["error"], job["reason"]) == ("done", None, None)
        assert (job["trigger"], job["safe_height"]) == ("applied", job["height"])
        assert job["passed_heights"] == 0 or job is jobs[-1], "before it nobody waited for a cycle"
        assert 1_700_000_000 < job["queued_at"] <= job["started_at"] <= job["finished_at"]
        assert 0 <= job["duration_seconds"] < 30
        assert all(seconds >= 0 for seconds in job["phase_seconds"].values())
        assert all(type(number) is int for number in [*job["counts"].values(), *job["skipped"].values()])
    assert any(job["counts"] and job["phase_seconds"] for job in jobs)


def test_pages_of_jobs(pruned: Api) -> None:
    whole = pruned.get(JOBS)
    for count in (1, 3, 7):
        check_pages(pruned.web, JOBS, whole, count)
    cursor = pruned.ask(f"{JOBS}?count=2").headers["x-next-cursor"]
    failure(pruned.ask(path("whole", f"/utxos?cursor={cursor}")), 400, "bad_parameter", "another list")
    failure(pruned.ask(f"{JOBS}?cursor={cursor}&page=1"), 400, "bad_parameter", "page")
    for query in ("order=asc", "order=desc", f"asset={'ab' * 28}", "count=0", "page=x", "cursor=x"):
        failure(pruned.ask(f"{JOBS}?{query}"), 400, "bad_parameter", query.partition("=")[0])


@pytest.mark.configured(**SOON)
def test_a_new_job_changes_the_tag_and_a_rollback_ends_a_cursor(api: Api) -> None:
    blocks = feed_jobs(api, 4)
    before = api.ask(f"{JOBS}?count=2")
    api.feed(back_to(blocks[-2]))
    failure(api.ask(f"{JOBS}?cursor={before.headers['x-next-cursor']}"), 409, "cursor_gone")
    api.feed(block(blocks[-2], branch="other"), block(block(blocks[-2], branch="other")))
    jobs = settled(api, 7)
    assert jobs[0]["number"] > before.json()[0]["number"]
    assert api.ask(f"{JOBS}?count=2").headers["etag"] != before.headers["etag"]


@pytest.mark.configured(pruner={"enabled": False})
def test_a_daemon_that_does_not_prune(api: Api) -> None:
    api.feed(FIRST)
    failure(api.ask(JOBS), 503, "not_enabled", "pruner.enabled")
