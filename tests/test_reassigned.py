"""Outputs that were given to other owners, over the socket and HTTP: whose they are at each height, and how long."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from time import sleep
from typing import Any

import pytest
from daemons import Client, Message, utxod
from patience import until
from questions import Api, running_api, short_folder
from scenarios import address, at, back_to, block, digest, output, tx
from stores import ALL_TABLES, OnDisk
from tx_messages import done, submit

from handlers.addresses import codec
from storage.disk import Disk, Txn
from storage.pool_layout import Record
from storage.reassigned import Moves, ReassignedStore

DELAY = 2
PAGE = 3
TABLES: Message = {
    "transactions": {"reassign_delay": DELAY, "batch_size": PAGE, "block_height_retention": 2},
    "utxo": {"index": {"stake_credential": True, "policy": True, "asset": True}},
    "pruner": {"unmined_retention": 1, "parent_preservation_blocks": 3},
}
POLICY, NAME = b"p" * 28, b"gold"
GOLD = {"assets": [[POLICY, NAME, 5]]}


@pytest.fixture
def api() -> Iterator[Api]:
    """Yield a daemon whose store is sound at the end."""
    with short_folder() as folder, running_api(folder, **TABLES) as api:
        yield api
        api.daemon.assert_sound()


@pytest.fixture
def client(api: Api) -> Iterator[Client]:
    with api.daemon.client() as client:
        yield client


def give(outpoint: list[Any], heir: bytes) -> list[Message]:
    return [
        {"type": "OutputsFrozen", "outpoints": [outpoint]},
        {"type": "OutputReassigned", "outpoint": outpoint, "address": heir},
    ]


def staked(name: str, stake: str) -> bytes:
    return b"\x01" + digest("credential", name, size=28) + digest("stake", stake, size=28)


def of(owner: str | bytes) -> str:
    return f"/api/v1/addresses/{(address(owner) if isinstance(owner, str) else owner).hex()}"


Row = tuple[str, int, int | None]


def row(outpoint: list[Any], given: int | None = None) -> Row:
    return outpoint[0].hex(), outpoint[1], given


def held(api: Api, where: str, *, more: str = "") -> list[Row]:
    """Return the content of a list; both orders, pages of one, the balance and CBOR must agree."""
    found = api.get(f"{where}/utxos?count=100{more}")
    rows = [(utxo["tx_hash"], utxo["output_index"], utxo.get("reassigned_at")) for utxo in found]
    if not more:
        for order, step in (("asc", 1), ("desc", -1)):
            assert [utxo for page in api.web.pages(f"{where}/utxos", 1, order) for utxo in page] == found[::step]
    if not more and not where.startswith("/api/v1/policies"):
        balance = api.get(f"{where}/balance")
        assert balance["utxo_count"] == len(rows)
        assert balance["lovelace_amount"] == sum(utxo["lovelace_amount"] for utxo in found)
    if where.startswith("/api/v1/addresses"):
        text = codec("cardano", "mainnet").write(bytes.fromhex(where.rsplit("/", 1)[1]))
        assert {utxo["owner_addr"] for utxo in found} <= {text}
    return rows


def single(api: Api, outpoint: list[Any]) -> tuple[str, int | None]:
    """Return the payment credential of an output's owner, and when it was given to them."""
    found = api.get(f"/api/v1/utxos/{outpoint[0].hex()}/{outpoint[1]}")
    return found["owner_payment_credential"], found.get("reassigned_at")


def owner(name: str, given: int | None = None) -> tuple[str, int | None]:
    return digest("credential", name, size=28).hex(), given


@contextmanager
def on_disk(api: Api) -> Iterator[tuple[Disk, Txn]]:
    with Disk(api.daemon.folder / "data" / "lmdb", ALL_TABLES, readonly=True) as disk, disk.read() as txn:
        yield disk, txn


def moves(api: Api, outpoint: list[Any]) -> Moves | None:
    with on_disk(api) as (disk, txn):
        return ReassignedStore(disk).find(txn, *outpoint)


def record(api: Api, name: str) -> Record | None:
    with on_disk(api) as (disk, txn):
        return OnDisk(disk).record(txn, digest("tx", name))


def test_it_is_the_new_owner_s_from_its_height_on(api: Api, client: Client) -> None:
    outputs = [output("ann", 10), output("ann", 11), output("bob", 12)]
    one = block(None, tx("p", *outputs), tx("q", output("bob", 13)))
    two = block(one)
    three = block(two)
    done(client, one, *give(at("p", 1), address("bob")))
    before = {"ann": [row(at("p")), row(at("p", 1))], "bob": [row(at("p", 2)), row(at("q"))]}
    after = {"ann": [row(at("p"))], "bob": [row(at("p", 1), 1), row(at("p", 2)), row(at("q"))]}
    for tip, expected in ((one, before), (two, before), (three, after)):
        if tip is not one:
            done(client, tip)
        assert {name: held(api, of(name)) for name in expected} == expected, tip["height"]
        whose = owner("bob", 1) if expected is after else owner("ann")
        assert single(api, at("p", 1)) == whose
        for name in expected:
            credential = f"/api/v1/credentials/{digest('credential', name, size=28).hex()}"
            assert held(api, credential) == expected[name]
    text = api.daemon.run("query", "address", address("bob").hex(), "--json").stdout.decode()
    assert '"reassigned_at": 1' in text or '"reassigned_at":1' in text
    assert api.daemon.run("query", "utxo", at("p", 1)[0].hex(), "1").stdout.decode().count("reassigned_at") == 1
    done(client, back_to(two))
    assert {name: held(api, of(name)) for name in before} == before
    done(client, back_to("origin"), one, two, three)
    assert {name: held(api, of(name)) for name in after} == after


@pytest.mark.parametrize("index", ["asset", "policy", None])
def test_what_outputs_hold(index: str | None) -> None:
    """A list by policy shows the new owner; a filter by asset, with an index or without, finds it under the new one."""
    indexes: Message = {"stake_credential": True, "policy": index == "policy", "asset": index == "asset"}
    with short_folder() as folder, running_api(folder, **TABLES | {"utxo": {"index": indexes}}) as api:
        with api.daemon.client() as client:
            what_outputs_hold(api, client, by_policy=index == "policy")
        api.daemon.assert_sound()


def what_outputs_hold(api: Api, client: Client, *, by_policy: bool) -> None:
    old, new = staked("ann", "north"), staked("heir", "south")
    given = {"address": old, "value": 9} | GOLD
    one = block(None, tx("p", given, output("x", 1)), tx("q", {"address": new, "value": 4} | GOLD))
    done(client, one, *give(at("p"), new), block(one), block(block(one)))
    unit = (POLICY + NAME).hex()
    both = [row(at("p"), 1), row(at("q"))]
    if by_policy:
        assert held(api, f"/api/v1/policies/{POLICY.hex()}") == both
    assert held(api, of(new), more=f"&asset={unit}") == both
    assert held(api, of(old), more=f"&asset={unit}") == []
    stakes = [f"/api/v1/stakes/{digest('stake', name, size=28).hex()}" for name in ("north", "south")]
    assert [held(api, stake) for stake in stakes] == [[], both]
    balance = api.get(f"{of(new)}/balance")
    assert [each["quantity"] for each in balance["amounts"]] == ["13", "10"]
    [created, *_] = api.get("/api/v1/blocks/1/delta")["created"]
    assert created["utxo"]["owner_payment_credential"] == owner("ann")[0] and "reassigned_at" not in created["utxo"]


def test_a_page_that_was_written_before_is_not_given_again(api: Api, client: Client) -> None:
    one = block(None, tx("p", {"address": address("ann"), "value": 9} | GOLD))
    two, three = block(one), block(block(one))
    done(client, one, *give(at("p"), address("heir")), two)
    where = f"/api/v1/policies/{POLICY.hex()}"
    for tip, whose in ((two, owner("ann")), (three, owner("heir", 1))):
        if tip is three:
            done(client, three)
        for _ in range(2):
            [found] = api.get(f"{where}/utxos")
            assert (found["owner_payment_credential"], found.get("reassigned_at")) == whose
    assert [held(api, of(name)) for name in ("ann", "heir")] == [[], [row(at("p"), 1)]]


def test_given_on_and_back(api: Api, client: Client) -> None:
    """It may be frozen again, before or after the first height; to the same credential; and back to who had it."""
    one = block(None, tx("p", output("ann", 1), output("ann", 2)))
    blocks = [one]
    for _ in range(6):
        blocks.append(block(blocks[-1]))
    heir = b"\x71" + address("ann")[1:]  # another address with the same credential
    done(client, one, *give(at("p"), address("bob")), *give(at("p", 1), heir), blocks[1])
    done(client, *give(at("p"), address("cid")), blocks[2])
    assert single(api, at("p")) == owner("bob", 1) and held(api, of("bob")) == [row(at("p"), 1)]
    same = f"/api/v1/credentials/{owner('ann')[0]}"
    assert held(api, same) == [row(at("p", 1), 1)] == held(api, of(heir)) and held(api, of("ann")) == []
    done(client, blocks[3])
    assert [held(api, of(name)) for name in ("ann", "bob", "cid")] == [[], [], [row(at("p"), 2)]]
    done(client, *give(at("p"), address("ann")), blocks[4], blocks[5])
    assert [held(api, of(name)) for name in ("ann", "bob", "cid")] == [[row(at("p"), 4)], [], []]
    found = api.get(f"/api/v1/txs/{digest('tx', 'p').hex()}")["reassignments"]
    assert sorted((each["output_index"], each["height"], each["spendable_in"]) for each in found) == [
        *((0, 1, 3), (0, 2, 4), (0, 4, 6), (1, 1, 3))
    ]


def test_what_no_block_has_yet(api: Api, client: Client) -> None:
    one = block(None)
    small = tx("small", output("ann", 3))
    large = tx("large", *(output(name, n + 1) for n, name in enumerate(["x", "x", "x", "ann", "x"])))
    done(client, one, submit(small), submit(large))
    done(client, *give(at("small"), address("bob")), *give(at("large", 3), address("bob")))
    assert held(api, of("bob")) == [] and moves(api, at("large", 3)) is not None
    two = block(one, small, large)
    done(client, two)
    assert [held(api, of(name)) for name in ("ann", "bob")] == [[row(at("small")), row(at("large", 3))], []]
    api.daemon.assert_sound()
    three = block(two)
    done(client, three)
    given = [row(at("small"), 1), row(at("large", 3), 1)]
    assert [held(api, of(name)) for name in ("ann", "bob")] == [[], given]
    done(client, back_to(one))
    assert [held(api, of(name)) for name in ("ann", "bob")] == [[], []]
    api.daemon.assert_sound()
    done(client, block(one, large, branch="x"), block(block(one, large, branch="x"), small, branch="x"))
    assert [held(api, of(name)) for name in ("ann", "bob")] == [[], [row(at("large", 3), 1), row(at("small"), 1)]]


def apply_until_deleted(api: Api, client: Client, name: str, tip: Message) -> None:
    """Apply blocks until a record is deleted."""

    def deleted() -> bool:
        nonlocal tip
        tip = block(tip)
        done(client, tip)
        return record(api, name) is None

    until(deleted, pause_s=0.02)


@pytest.mark.parametrize("size", [2, PAGE + 2])
def test_a_block_that_spends_it_ends_it(api: Api, client: Client, size: int) -> None:
    """The record may be deleted from then on, a rollback takes that back, and the new owner is who spent it."""
    one = block(None)
    made = tx("p", *(output("ann", n + 1) for n in range(size)))
    spends = [at("p", n) for n in range(size)]
    done(client, one, submit(made), *give(at("p", size - 1), address("bob")))
    two = block(one, made)
    three = block(two)
    done(client, two, three)
    claim = tx("c", output("x"), spends=spends)
    done(client, submit(claim))
    kept = record(api, "p")
    assert kept is not None and kept.delete_at is None  # no block has spent it yet
    four = block(three, claim)
    done(client, four)
    kept = record(api, "p")
    assert kept is not None and kept.delete_at == 4 + 2
    assert single(api, at("p", size - 1)) == owner("bob", 1) and held(api, of("bob")) == []
    api.daemon.assert_sound()
    done(client, back_to(three))
    kept = record(api, "p")
    assert kept is not None and kept.delete_at is None
    assert held(api, of("bob")) == [row(at("p", size - 1), 1)]
    api.daemon.assert_sound()
    thief = tx("t", output("x"), spends=spends[:-1])
    done(client, block(three, thief, branch="x"))
    api.daemon.assert_sound()
    assert held(api, of("bob")) == [row(at("p", size - 1), 1)]


def test_a_block_that_comes_before_the_new_owner(api: Api, client: Client) -> None:
    """No other submission can spend the output then; the chain can, and the old owner did."""
    one = block(None, tx("p", output("ann", 1)), tx("q", output("ann", 2)))
    spend = tx("c", output("x"), spends=[at("p")])
    done(client, one, *give(at("p"), address("bob")), *give(at("q"), address("bob")))
    answer = client.ask(submit(spend))
    assert [each["code"] for each in answer["detail"]["inputs"]] == ["FROZEN_UNTIL"]
    two = block(one, spend)
    three = block(two)
    done(client, two, three, block(three))
    assert single(api, at("p")) == owner("ann")
    assert held(api, of("bob")) == [row(at("q"), 1)] and held(api, of("ann")) == []
    api.daemon.assert_sound()
    done(client, submit(tx("d", output("x"), spends=[at("q")])))


def test_what_the_chain_commits_to_stays() -> None:
    """The leaf of an MMR store has the first owner; a record in CBOR has the new one, and since when."""
    tables: Message = TABLES | {"utxo": {"store": "mmr"}}
    with short_folder() as folder, running_api(folder, **tables) as api, api.daemon.client() as client:
        one = block(None, tx("p", output("ann", 1)))
        done(client, one, *give(at("p"), address("bob")), block(one), block(block(one)))
        where = f"{at('p')[0].hex()}/0"
        proof = api.ask(f"/api/v1/mmr/proof/{where}")
        assert address("ann") in bytes.fromhex(proof.json()["data"])
        (folder / "proof").write_bytes(proof.content)
        root = api.get("/api/v1/mmr/root")["root"]
        checked = utxod("verify-proof", folder / "proof", "--root", root)
        assert checked.returncode == 0, checked.stderr
        cbor = {"Accept": "application/cbor"}
        for path in (f"/api/v1/utxos/{where}", f"{of('bob')}/utxos"):
            raw = api.ask(path, **cbor).content
            assert address("bob") in raw and address("ann") not in raw and raw.endswith(b"\x10\x01")
        api.daemon.assert_sound()


def test_the_record_is_deleted_when_no_rollback_can_restore_the_output() -> None:
    """Nothing of it is left then; before, a rollback finds the new owner again."""
    tables: Message = TABLES | {"utxo": {"prune_depth": 1, "rollback_window": 6}}
    with short_folder() as folder, running_api(folder, **tables) as api, api.daemon.client() as client:
        one = block(None, tx("p", output("ann", 1)))
        two, three = block(one), block(block(one))
        four = block(three, tx("c", output("x"), spends=[at("p")]))
        done(client, one, *give(at("p"), address("bob")), two, three, four)
        tip = four
        for _ in range(4):
            tip = block(tip)
            done(client, tip)
        assert api.daemon.run("prune", "now").returncode in {0, 1}
        sleep(0.3)
        kept = record(api, "p")
        assert kept is not None and kept.delete_at is not None and kept.delete_at <= tip["height"]
        done(client, back_to(three))
        assert held(api, of("bob")) == [row(at("p"), 1)] and held(api, of("ann")) == []
        api.daemon.assert_sound()
        done(client, four)
        apply_until_deleted(api, client, "p", four)
        assert moves(api, at("p")) is None
        api.daemon.assert_sound()


def test_many_outputs_of_which_a_few_were_reassigned(api: Api, client: Client) -> None:
    names = ["ann", "bob"]
    one = block(None, *(tx(f"t{n}", *(output(names[(n + m) % 2], n * 10 + m) for m in range(3))) for n in range(12)))
    given = [at(f"t{n}", m) for n, m in ((0, 0), (3, 2), (5, 1), (11, 2), (11, 1))]
    for outpoint in given:
        n = int(one["txs"][[made["txid"] for made in one["txs"]].index(outpoint[0])]["outputs"][outpoint[1]]["value"])
        heir = names[1 - (n // 10 + n % 10) % 2]
        done(client, *([one] if outpoint is given[0] else []), *give(outpoint, address(heir)))
    done(client, block(one), block(block(one)))
    at_all = [(f"t{n}", m, names[(n + m) % 2]) for n in range(12) for m in range(3)]
    moved = {(outpoint[0].hex(), outpoint[1]) for outpoint in given}
    for name in names:
        wanted = []
        for tx_name, m, whose in at_all:
            removed = (at(tx_name)[0].hex(), m) in moved
            if (whose == name) != removed:
                wanted.append(row(at(tx_name, m), 1 if removed else None))
        assert held(api, of(name)) == wanted
