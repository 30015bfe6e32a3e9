"""What waits for a block, over HTTP and by the command line: which, in which order, page by page."""

from __future__ import annotations

import json
from collections.abc import Iterator
from random import Random
from typing import Any

import local_daemon
import msgspec
import pytest
from daemons import Message
from local_daemon import LocalClient, LocalDaemon
from questions import Api, failure, running_api, short_folder
from scenarios import at, back_to, block, digest, output, tx
from tx_messages import done, message_about
from tx_messages import spending as submit

from handlers import waiting
from handlers.waiting import Order, Place, Status, TooMuchToExamine, WaitingList, resumed

local, client = local_daemon.local, local_daemon.client

pytestmark = pytest.mark.configured(transactions={"batch_size": 4, "coinbase_maturity": 1})

TXS = "/api/v1/txs"
PAGE = 4
LIMITS = {"batch_size": PAGE, "coinbase_maturity": 1}


@pytest.fixture
def api() -> Iterator[Api]:
    with short_folder() as folder, running_api(folder, transactions=LIMITS) as api:
        yield api
        api.daemon.assert_sound()


def txid(name: object) -> str:
    return digest("tx", name).hex()


def walked(
    local: LocalDaemon,
    count: int = 1000,
    status: Status = "unmined",
    order: Order = "parents_first",
    most: int = waiting.EXAMINED,
) -> tuple[list[Any], int, int]:
    """Return a whole list, in how many pages it was read, and how often other work had a turn meanwhile."""
    found, pages, turns, place = list[Any](), 0, 0, None
    while True:
        with local.store.disk.read() as txn:
            walk = WaitingList(local.tx_blocks.transactions.view(txn), status, order)
            turns += sum(1 for _ in walk.search(place, 0, count, most))
            page = [msgspec.to_builtins(each) for each in walk.waiting()]
        assert len(page) <= count
        found, pages, place = found + page, pages + 1, walk.next
        if place is None:
            return found, pages, turns


def listed(
    local: LocalDaemon, count: int = 1000, status: Status = "unmined", order: Order = "parents_first"
) -> list[Any]:
    return walked(local, count, status, order)[0]


def ids(found: list[Any]) -> list[str]:
    return [each["txid"] for each in found]


def assert_parents_first(found: list[Any]) -> None:
    here, before = set(ids(found)), set[str]()
    assert len(here) == len(found)
    for each in found:
        parents = {spent["tx_hash"] for spent in each["tx_inpoints"]}
        assert parents & here <= before, each["txid"]
        before.add(each["txid"])


def family(seed: int, count: int) -> list[Message]:
    """Return submissions that build on each other at random, large ones among them."""
    random, free = Random(seed), [at("p", n) for n in range(4)]
    made: list[Message] = []
    for n in range(count):
        spends = [free.pop(random.randrange(len(free))) for _ in range(min(random.choice((1, 1, 2, 3)), len(free)))]
        outputs = random.choice((1, 2, 3, 2 * PAGE + 1))
        made.append(submit(n, *spends, outputs=outputs))
        if outputs <= PAGE:  # what is being created can't be spent
            free += [at(n, vout) for vout in range(outputs)]
    return made


FUND = block(None, tx("p", *(output("p") for _ in range(2 * PAGE))))


def test_parents_come_first_on_pages_of_any_size(local: LocalDaemon, client: LocalClient) -> None:
    """At one height the index has them by their ids: most are put off until their parents have come."""
    submissions = family(1, 80)
    done(client, FUND, *submissions)
    whole = listed(local)
    assert set(ids(whole)) == {each["tx"]["txid"].hex() for each in submissions}
    assert_parents_first(whole)
    for count in (1, 7, 79, 80):
        assert listed(local, count) == whole
    by_age = listed(local, 9, order="age")
    assert ids(by_age) == sorted(ids(whole))
    assert sorted(by_age, key=str) == sorted(whole, key=str)


def test_transactions_that_a_rollback_returned(local: LocalDaemon, client: LocalClient) -> None:
    """A child may wait for longer than its parent: submitted at the height that stayed, on what had been above."""
    chained = [tx(f"c{n}", output("x"), spends=[at(f"c{n - 1}") if n else at("p")]) for n in range(30)]
    two = block(FUND, tx("reward", output("m"), coinbase=True), *chained)
    done(client, FUND, submit("old", at("p", 1)), two, block(two), back_to(FUND))
    done(client, submit("child", at("c29"), at("old")), submit("another", at("p", 2)))
    whole = listed(local, 5)
    assert_parents_first(whole)
    assert set(ids(whole)) == {txid(name) for name in (*(f"c{n}" for n in range(30)), "old", "child", "another")}
    since = {each["txid"]: each["unmined_since"] for each in whole}
    assert since[txid("child")] < since[txid("c29")]  # or this test shows nothing
    assert ids(listed(local, order="age")) == [name for _, name in sorted((at, name) for name, at in since.items())]


def test_the_fields_of_each_transaction(api: Api) -> None:
    a = submit("a", at("p"), at("p", 1), outputs=9)
    api.feed(FUND, a | {"tx": a["tx"] | {"fee": 7, "size": 99}})
    api.feed(submit("b", at("a"), locked=True), block(FUND))
    a, b = api.get(TXS)
    assert a.pop("created_at") > 1_700_000_000_000 and b.pop("created_at") >= 1_700_000_000_000
    inputs = [{"tx_hash": txid("p"), "output_index": n, "value": None, "script": None} for n in range(2)]
    assert a == {
        "txid": txid("a"),
        "status": "unmined",
        "locked": False,
        "unmined_since": 1,
        "fee": 7,
        "size_in_bytes": 99,
        "total_utxos": 9,
        "tx_inpoints": inputs,
    }
    assert (b["txid"], b["locked"], b["fee"], b["tx_inpoints"]) == (
        txid("b"),
        True,
        None,
        [{"tx_hash": txid("a"), "output_index": 0, "value": None, "script": None}],
    )


def test_which_are_listed(local: LocalDaemon, client: LocalClient) -> None:
    two = block(FUND, tx("w", output("x"), spends=[at("p")]), tx("reward", output("m"), coinbase=True))
    done(client, FUND, submit("l", at("p")), submit("child", at("l")))
    done(client, submit("grandchild", at("child"), at("p", 1)), submit("a", at("p", 2)), submit("mined", at("p", 3)))
    done(client, two, message_about("TxMined", "mined", block_id=9, height=2))
    done(client, {**submit("recorded", at("p", 2)), "on_spent": "record"})
    assert ids(listed(local)) == [txid("a")]
    lost = listed(local, 1, status="conflicting")
    assert set(ids(lost)) == {txid(name) for name in ("l", "child", "grandchild", "recorded")}
    assert_parents_first(lost)
    assert {each["status"] for each in lost} == {"conflicting"}
    assert set(ids(listed(local, status="conflicting", order="age"))) == set(ids(lost))
    done(client, back_to(FUND), message_about("TxWithdrawn", "a", reason="evicted"))
    assert ids(listed(local)) == [txid("w")]


def test_a_page_continues_after_removals(api: Api) -> None:
    """A cursor is a place: what was listed before stays listed, what comes later is where it belongs."""
    assert api.get(TXS) == []
    api.feed(FUND)
    answer = api.ask(TXS)
    assert answer.json() == [] and "x-next-cursor" not in answer.headers and answer.headers["x-tip-height"] == "1"
    api.feed(*(submit(n, at("p", n)) for n in range(6)))
    names = sorted(txid(n) for n in range(6))
    first = api.ask(f"{TXS}?count=3")
    assert ids(first.json()) == names[:3]
    last, removed = bytes.fromhex(names[2]), bytes.fromhex(names[4])
    api.feed({"type": "TxWithdrawn", "txids": [last, removed], "reason": "evicted"})
    assert ids(api.get(f"{TXS}?count=3&cursor={first.headers['x-next-cursor']}")) == [names[3], names[5]]


BAD = {
    "status=mined": "unmined, conflicting",
    "status=": "unmined, conflicting",
    "status=unmined&status=unmined": "status is given more than once",
    "order=asc": "parents_first, age",
    "order=age&order=age": "order is given more than once",
    **{"count=0": "count", "count=1001": "count", "page=0": "page", "asset=00": "asset", "cursor=x": "cursor"},
    "page=1&cursor=x": "page and cursor",
}


def test_bad_parameters_and_cursors_of_other_lists(api: Api) -> None:
    for query, named in BAD.items():
        failure(api.ask(f"{TXS}?{query}"), 400, "bad_parameter", named)
    api.feed(FUND, *(submit(n, at("p", n)) for n in range(3)))
    cursor = api.ask(f"{TXS}?count=1").headers["x-next-cursor"]
    for query in ("status=conflicting", "order=age"):
        failure(api.ask(f"{TXS}?{query}&cursor={cursor}"), 400, "bad_parameter", "of another list")
    failure(api.ask(f"{TXS}?cursor={cursor[:-3]}"), 400, "bad_parameter", "cursor")


def test_without_a_transaction_store() -> None:
    with short_folder() as folder, running_api(folder, transactions={"enabled": False}) as api:
        failure(api.ask(TXS), 503, "not_enabled", "transactions.enabled")
        queried = api.daemon.run("query", "txs")
        assert queried.returncode == 1 and b"transactions.enabled" in queried.stderr


# --- limits of one answer --------------------------------------------------------------------------------------------


def test_a_page_ends_early(local: LocalDaemon, client: LocalClient, monkeypatch: pytest.MonkeyPatch) -> None:
    done(client, FUND, *(submit(n, at(n - 1) if n % 10 else at("p", n // 10)) for n in range(60)))
    whole, pages, turns = walked(local)
    assert (len(whole), pages, turns) == (60, 1, 0)
    monkeypatch.setattr(waiting, "_TURN", 10)
    found, pages, turns = walked(local, most=25)
    assert found == whole and pages > 3 and turns > 10
    none, pages, _ = walked(local, status="conflicting", most=5)
    assert none == [] and pages > 10


def test_a_package_that_is_too_large(local: LocalDaemon, client: LocalClient, monkeypatch: pytest.MonkeyPatch) -> None:
    """An answer that would take too long is none; in order of age there is one."""
    done(client, FUND, *(submit(n, at(n - 1) if n else at("p")) for n in range(60)))
    monkeypatch.setattr(waiting, "MOST_EXAMINED", 50)
    monkeypatch.setattr(waiting, "_TURN", 5)
    with pytest.raises(TooMuchToExamine, match="more than 50 transactions"):
        walked(local, most=20)
    assert len(walked(local, order="age", most=20)[0]) == 60


# --- the command -----------------------------------------------------------------------------------------------------


def test_the_command(api: Api) -> None:
    submissions = family(7, 30)
    api.feed(FUND, *submissions)
    whole = api.get(f"{TXS}?count=1000")
    assert api.get(f"{TXS}?count=7&page=2") == whole[7:14]
    queried = api.daemon.run("query", "txs", "--json", "--count", "20")
    first = json.loads(queried.stdout)
    assert first["transactions"] == whole[:20] and first["tip"]["height"] == 1
    assert resumed(first["next_cursor"], "unmined", "parents_first") >= Place(0, b"")
    rest = api.daemon.run("query", "txs", "--json", "--cursor", first["next_cursor"])
    assert json.loads(rest.stdout) == {"tip": first["tip"], "transactions": whole[20:], "next_cursor": None}
    shown = api.daemon.run("query", "txs", "--status", "unmined", "--count", "20").stdout.decode()
    assert [line.split()[1] for line in shown.splitlines()[1:21]] == ids(whole[:20]) and "--cursor" in shown
    aged = json.loads(api.daemon.run("query", "txs", "--json", "--order", "age").stdout)
    assert ids(aged["transactions"]) == sorted(ids(whole))
    assert json.loads(api.daemon.run("query", "txs", "--json", "--status", "conflicting").stdout)["transactions"] == []
    bad = api.daemon.run("query", "txs", "--cursor", "x")
    assert (bad.returncode, bad.stdout) == (2, b"") and b"--cursor" in bad.stderr
