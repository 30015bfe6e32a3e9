"""`BlockPersisted` as messages. `test_model` has its rules for any chain, rollback and restart."""

from __future__ import annotations

import local_daemon
import pytest
from daemons import Message, ack, error, statuses
from local_daemon import LocalClient, LocalDaemon
from scenarios import back_to, block, chain, point

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
