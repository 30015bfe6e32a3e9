"""Application of the change log to the recovery tables: most transactions become final this way.

Each fact is applied once: the cursor moves in the transaction that writes the rows. After a crash, an outage or a lost
answer the log is read on from the cursor. Where that is not possible, a survey compares everything.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Iterable, Sequence, Set
from functools import partial
from itertools import groupby
from operator import itemgetter
from typing import Literal

import anyio
import structlog
from msgspec import Struct, field, structs

from config.settings import Recovery
from handlers.change_log import ChangeLog, Gone, NotYet, read
from handlers.events import BlockCommitted, Fact, RolledBack, TxStatusChanged
from handlers.recovery.records import CONFLICTING, Turn
from handlers.recovery.survey import GIVEN_UP, HAS_IT, WAITS
from handlers.states import BY_FACT
from storage.change_log import read_row
from storage.recovery.rows import FINAL, Cursor, Status, StoreAway
from storage.recovery.tables import Storage, Verbs

log = structlog.get_logger("recovery")

_GATHER_S = 0.05  # submissions that come close together share a commit
_AGAIN_S = 1.0
_ROWS = 64  # of the log, that are read at a time: some thousand facts
_DEEP = 5_000  # transactions that are confirmed at a time
_HIGHEST = (1 << 63) - 1  # that a database can keep
BACK = "its block was rolled back"

NewState = int | Literal["waits", "lost", "gone"]  # a number is the height at which it is mined
_UNMINED: tuple[NewState, ...] = ("waits", "lost", "gone")


class Changes(Struct):
    """What some facts change: the latest state of each transaction, and which of them a rollback has released."""

    tip: int
    last: dict[bytes, NewState] = field(default_factory=dict)
    back: set[bytes] = field(default_factory=set)


def changes_of(facts: Iterable[Fact], tip: int) -> Changes:
    """Return what some facts change; they follow a tip at this height."""
    found = Changes(tip)
    for fact in facts:
        if isinstance(fact, TxStatusChanged):  # most are: a class pattern takes longer
            # A final status that recovery itself published is in no move.
            row = move.row if (move := BY_FACT.get((fact.status, type(fact.cause)))) else None  # type: ignore[arg-type]
            if row == "reopens":
                found.back.add(fact.txid)
            if row is not None:
                found.last[fact.txid] = fact.height or 0 if row == "mined" else "waits" if row == "reopens" else row
            continue
        match fact:
            case BlockCommitted(height=height):
                found.tip = min(height, _HIGHEST)
            case RolledBack(to=to):
                found.tip = 0 if to == "origin" else min(to.height, _HIGHEST)
    return found


class Follower:
    """Reads the change log of one store."""

    def __init__(
        self,
        storage: Storage,
        changes: ChangeLog,
        store: str,
        turn: Turn,
        survey: Callable[..., Awaitable[None]],
        settings: Recovery,
        *,
        wait_for_facts: Callable[[], Awaitable[None]],
        decides: Callable[[], bool],
        tip: Callable[[], int],
        wrote: Callable[[], None],
    ) -> None:
        """Take both sides; the log is read in turns on the writer's thread.

        `wait_for_facts` returns when there may be more facts, `wrote` is called when rows may be final now. Final
        rows are compared with the chain here, whose tip is at the height `tip`, once that `decides`: it does not
        while it is behind another chain that may have confirmed rows.
        """
        self._storage, self._changes, self._store, self._turn, self._survey = storage, changes, store, turn, survey
        self._wait_for_facts, self._decides, self._tip, self._wrote = wait_for_facts, decides, tip, wrote
        self._ttl_s, self._scan_s, self._confirmations = settings.ttl, settings.scan_interval, settings.confirmations
        self._cursor: Cursor | None = None
        self._since: Cursor | None = None  # from where on the log is read after a first survey

    async def begin(self) -> None:
        """Note the current end of the log: after a first survey, the log is read from there."""
        self._since = await self._end()

    async def follow(self) -> None:
        """Apply the log, until cancelled."""
        while True:
            try:
                cursor = self._cursor = await self._catch_up()
            except StoreAway as error:
                log.warning("recovery_facts_wait", why=str(error))
                self._cursor = None  # it may have moved all the same
                await anyio.sleep(_AGAIN_S)
                continue
            with anyio.move_on_after(None if cursor.compared else self._scan_s):
                await self._wait_for_facts()
            await anyio.sleep(_GATHER_S)

    async def _catch_up(self) -> Cursor:
        """Read the log to its end; return the cursor."""
        cursor = self._cursor or await self._find()
        await self._confirm(cursor)  # a crash may have come between the facts and this
        while True:
            try:
                rows = await self._turn(partial(self._changes.fetch, cursor.next, _ROWS))
            except (Gone, NotYet) as error:
                cursor = await self._begin(str(error))
                continue
            if facts := read(rows, cursor.next):
                moved = Cursor(facts[-1].sequence + 1, read_row(*rows[-1]).at, 0, cursor.compared)
                cursor = await self._write(cursor, moved, facts)
            elif not cursor.compared and self._decides():
                await self._survey(decides=True)
                compared = structs.replace(cursor, compared=True)
                cursor = compared if await self._storage.move(self._store, cursor, compared) else await self._find()
            else:
                return cursor

    async def _find(self) -> Cursor:
        cursor = await self._storage.reached(self._store)
        if cursor is None:
            return await self._begin("the change log of this store has not been read yet")
        at = await self._logged_at(cursor.next - 1)
        if at not in (None, cursor.at):
            return await self._begin("the change log is not the one that was read before")
        self._since = None
        return cursor

    async def _begin(self, why: str) -> Cursor:
        """Compare everything, and continue with the facts that come after the beginning of that."""
        log.info("recovery_survey_started", reason=why)
        since, decides = self._since or await self._end(), self._decides()
        await self._survey(decides=decides)
        cursor = structs.replace(since, tip=min(since.tip, self._tip()), compared=decides)
        await self._storage.move(self._store, None, cursor)
        self._since = None
        self._wrote()
        log.info("recovery_survey_done", next=cursor.next)
        return cursor

    async def _end(self) -> Cursor:
        tip, newest = min(self._tip(), _HIGHEST), await self._turn(self._changes.newest)
        return Cursor(newest + 1, await self._logged_at(newest) or 0, tip, False)

    async def _logged_at(self, sequence: int) -> int | None:
        return await self._turn(lambda: self._changes.logged_at(sequence))

    # --- writing -------------------------------------------------------------------------------------------------

    async def _write(self, cursor: Cursor, moved: Cursor, facts: Sequence[Fact]) -> Cursor:
        """Write facts, and move the cursor with them."""
        found = changes_of(facts, cursor.tip)
        moved = structs.replace(moved, tip=found.tip)

        async def steps(verbs: Verbs) -> bool:
            if not await verbs.move(self._store, cursor, moved):
                return False
            await self._rows(verbs, found)
            return True

        if not await self._storage.transact(steps):
            return await self._find()
        await self._confirm(moved)
        self._wrote()
        return moved

    async def _rows(self, verbs: Verbs, found: Changes) -> None:
        """Write what happened to transactions. Each gets a row, if its submission could not make one."""
        mined = {txid: last for txid, last in found.last.items() if isinstance(last, int)}
        waits, lost, gone = ({txid for txid, last in found.last.items() if last == state} for state in _UNMINED)
        await self._pending(verbs, found.back - gone, BACK, FINAL)
        # A confirmed row stays: another instance, which is further ahead, may have confirmed it.
        await self._pending(verbs, waits - found.back, WAITS, GIVEN_UP)
        if await verbs.add(mined, self._ttl_s) < len(mined):
            await verbs.reopen(mined, HAS_IT, GIVEN_UP)
        await verbs.mine(self._store, mined)
        await verbs.unmine(self._store, waits | lost | gone)
        await verbs.add(lost, self._ttl_s)
        await verbs.conclude(lost, "deleted", CONFLICTING)
        await verbs.drop(gone)

    async def _pending(self, verbs: Verbs, txids: Set[bytes], why: str, statuses: Sequence[Status]) -> None:
        """Make rows, or make those pending again that have one of some statuses, and void what was found out before."""
        if await verbs.add(txids, self._ttl_s) < len(txids):
            await verbs.revoke(txids)
            await verbs.reopen(txids, why, statuses)

    async def _confirm(self, cursor: Cursor) -> None:
        """Confirm what is deep enough at the cursor, in parts."""
        while deep := await self._storage.mined(self._store, cursor.tip + 1 - self._confirmations, _DEEP):
            await self._storage.transact(partial(self._conclude, deep))

    async def _conclude(self, deep: Sequence[tuple[bytes, int]], verbs: Verbs) -> None:
        for height, some in groupby(deep, itemgetter(1)):
            txids = [txid for txid, _ in some]
            await verbs.reopen(txids, HAS_IT, GIVEN_UP)  # another instance may have seen another branch
            await verbs.conclude(txids, "confirmed", f"mined at height {height}")
            await verbs.unmine(self._store, txids)
