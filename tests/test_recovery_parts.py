"""Parts of the recovery service, each alone: leases, batches of results, the guard of a source, the cursor."""

from __future__ import annotations

from collections.abc import Sequence
from time import monotonic
from typing import Any, cast

import pytest
from recovering import Lab, least, tx

from config.settings import Recovery
from handlers.events import Point, RolledBack
from handlers.recovery.following import changes_of
from handlers.recovery.holding import Held, Holding
from handlers.recovery.numbers import Numbers
from handlers.recovery.outcome import Busy
from storage.recovery.rows import Claim, Cursor, Settlement


class Tables:
    """Tables that keep every claim, and remember the batches of results."""

    def __init__(self) -> None:
        self.batches = list[list[bytes]]()

    async def renew(self, claims: Sequence[Claim], _: float) -> set[bytes]:
        return {claim.txid for claim in claims}

    async def settle(self, settlements: Sequence[Settlement]) -> set[bytes]:
        self.batches.append([each.claim.txid for each in settlements])
        return set(self.batches[-1])


def claim(n: int, generation: int = 1) -> Claim:
    return Claim(tx(n), "me", generation, 0, 0, 0, 0.0, 0.0)


def holding(tables: Tables) -> Holding:
    return Holding(cast("Any", tables), Recovery(lease_duration=60.0), Numbers(), lambda: None, least)


@pytest.mark.anyio
async def test_a_renewed_lease_ends_later() -> None:
    places = holding(Tables())
    places.take(claim(1), monotonic() + 1.0)
    (held,) = places.renewable()
    await places.renew()
    assert held.until > monotonic() + 30.0


@pytest.mark.anyio
async def test_two_results_of_one_row_are_in_two_batches() -> None:
    tables = Tables()
    places = holding(tables)
    for n, generation in ((1, 1), (2, 1), (1, 2)):
        places.put(Held(claim(n, generation), 0.0), Busy())
    while not places.idle:
        await places.write()
    assert tables.batches == [[tx(1), tx(2)], [tx(1)]]


@pytest.mark.anyio
async def test_a_cursor_moves_only_from_where_it_was_read(lab: Lab) -> None:
    async with lab.storage() as storage:
        first, second, third = (Cursor(n, 0, 0, True) for n in (4, 6, 9))
        assert await storage.move("ours", None, first)
        assert await storage.move("ours", first, second)
        assert not await storage.move("ours", first, third)
        assert await storage.reached("ours") == second


def test_a_rollback_lowers_the_tip_that_confirms() -> None:
    below, above = (Point(height=height, slot=height, hash=bytes(32)) for height in (4, 9))
    assert changes_of([RolledBack(from_=above, to=below, blocks=5)], 9).tip == 4
    assert changes_of([RolledBack(from_=above, to="origin", blocks=9)], 9).tip == 0
