"""`BlockPersisted`: accepted for a block of our chain only, revoked by a rollback below it, and remembered."""

from __future__ import annotations

import local_daemon
import pytest
from daemons import Message, ack, error, statuses
from local_daemon import LocalClient, LocalDaemon
from scenarios import back_to, block, chain, digest, point

pytestmark = pytest.mark.configured(utxo={"prune_depth": 3, "rollback_window": 10})

local, client = local_daemon.local, local_daemon.client


def persisted(of: Message | int, **fields: object) -> Message:
    place = {"height": of} if isinstance(of, int) else {"height": of["height"], "hash": of["hash"]}
    return {"type": "BlockPersisted"} | place | fields


def test_above_the_tip_is_a_gap(local: LocalDaemon, client: LocalClient) -> None:
    blocks = chain(5)
    for what in (0, 6, 2**63, 2**64 - 1):
        assert error(client.ask(persisted(what)), "gap", retryable=True) == {"tip": None}
    client.feed(blocks)
    for what in (6, 7, 2**63, 2**64 - 1):
        for message in (persisted(what), persisted(what, hash=blocks[4]["hash"])):
            answer = client.ask(message)
            assert error(answer, "gap", retryable=True) == {"tip": point(blocks[4])}
            assert str(what) in answer["message"] and "send BlockPersisted again" in answer["message"]
    assert local.persisted is None
    ack(client.ask(persisted(blocks[4])), "accepted", point(blocks[4]))
    assert local.persisted == 5


def test_another_chains_block_is_unknown(local: LocalDaemon, client: LocalClient) -> None:
    blocks, others = chain(5), chain(5, branch="other")
    client.feed(blocks)
    for wrong in (persisted(others[2]), persisted(3, hash=blocks[3]["hash"]), persisted(others[4])):
        assert error(client.ask(wrong), "unknown_point") == {"tip": point(blocks[4])}
    assert local.persisted is None
    assert statuses(client.feed([persisted(blocks[2]), persisted(others[2]), persisted(blocks[1]), persisted(2)])) == [
        "accepted",
        "unknown_point",
        "duplicate",
        "duplicate",
    ]
    assert local.persisted == 3


def test_height_alone(local: LocalDaemon, client: LocalClient) -> None:
    first = block(None, height=100)
    second = block(first, height=102)
    client.feed([first, second])
    assert statuses(client.feed(map(persisted, (99, 100, 102, 103)))) == ["accepted", "accepted", "accepted", "gap"]
    error(client.ask(persisted(101)), "unknown_point")
    assert local.persisted == 102


def test_boundary_blocks_share_a_height(local: LocalDaemon, client: LocalClient) -> None:
    one = block(None)
    boundary = block(one, height=1, slot=21)
    two = block(boundary, height=2, slot=22)
    client.feed([one, boundary, two])
    messages = [persisted(one), persisted(boundary), persisted(1), persisted(1, hash=two["hash"]), persisted(two)]
    assert statuses(client.feed(messages)) == ["accepted", "duplicate", "duplicate", "unknown_point", "accepted"]
    ack(client.ask(back_to(boundary)), "rolled_back", point(boundary))
    assert local.persisted == 1


def test_blocks_that_wait_for_the_same_commit(local: LocalDaemon, client: LocalClient) -> None:
    blocks, others = chain(40), chain(40, branch="other")
    messages: list[Message] = []
    for ours, theirs in zip(blocks, others, strict=True):
        messages += [ours, persisted(ours["height"] + 1), persisted(theirs), persisted(ours)]
    assert statuses(client.feed(messages)) == ["applied", "gap", "unknown_point", "accepted"] * 40
    assert local.persisted == 40
    local.restart()
    assert local.persisted == 40


def test_a_rollback_revokes_it(local: LocalDaemon, client: LocalClient) -> None:
    blocks = chain(8)
    other = chain(5, blocks[3], branch="other")
    client.feed([*blocks, persisted(blocks[6])])
    ack(client.ask(back_to(blocks[6])), "rolled_back", point(blocks[6]))
    assert local.persisted == 7  # it stays
    ack(client.ask(back_to(blocks[3])), "rolled_back", point(blocks[3]))
    assert local.persisted == 4
    local.restart()
    assert local.persisted == 4
    error(client.ask(persisted(blocks[6])), "gap", retryable=True)
    client.feed(other)
    error(client.ask(persisted(blocks[6])), "unknown_point")
    ack(client.ask(persisted(other[2])), "accepted", point(other[4]))
    assert local.persisted == 7


def test_a_rollback_between_messages_that_wait(local: LocalDaemon, client: LocalClient) -> None:
    blocks = chain(6)
    other = chain(3, blocks[2], branch="other")
    messages = [*blocks, persisted(blocks[5]), back_to(blocks[2]), persisted(blocks[2]), persisted(blocks[4]), *other]
    messages += [persisted(blocks[4]), persisted(other[1]), back_to("origin"), persisted(1)]
    assert statuses(client.feed(messages)) == [
        *["applied"] * 6,
        *("accepted", "rolled_back", "duplicate", "gap"),
        *["applied"] * 3,
        *("unknown_point", "accepted", "rolled_back", "gap"),
    ]
    assert local.persisted is None


def test_blocks_below_the_rollback_floor(local: LocalDaemon, client: LocalClient) -> None:
    """They are known by their hashes forever, whatever of their outputs is left."""
    kept = [block(None)]
    for n in range(1, 26):  # every fourth block pays nothing
        kept.append(block(kept[-1], *chain(1, branch=f"pays {n}")[0]["txs"]) if n % 4 else block(kept[-1]))
    client.feed(kept)
    floor = local.chain.view.floor
    assert floor is not None and floor.height > 10
    paid, empty = kept[6], kept[8]
    assert (len(paid["txs"]), len(empty["txs"])) == (1, 0)
    for stranger in (7, 9):
        error(client.ask(persisted(stranger, hash=digest("another"))), "unknown_point")
    messages = [persisted(paid), persisted(empty), persisted(paid), persisted(10)]
    assert statuses(client.feed(messages)) == ["accepted", "accepted", "duplicate", "accepted"]


def test_far_below_the_networks_tip(local: LocalDaemon, client: LocalClient) -> None:
    """No rollback reaches them, and a persister that follows a few blocks behind is believed all the same."""
    blocks = chain(60)
    client.network_height = 1_000_000
    messages: list[Message] = []
    for n, each in enumerate(blocks):
        messages += [each] if n < 6 else [each, persisted(blocks[n - 6])]
    assert set(statuses(client.feed(messages))) == {"applied", "accepted"}
    floor = local.chain.view.floor
    assert floor is not None and (local.persisted, floor.hash) == (54, blocks[59]["hash"])
    messages = [persisted(blocks[55]), persisted(30, hash=digest("another")), persisted(61)]
    assert statuses(client.feed(messages)) == ["accepted", "unknown_point", "gap"]
