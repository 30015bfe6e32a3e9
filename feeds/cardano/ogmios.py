"""Follows the chain of an Ogmios server: first the blocks that the daemon lacks, then new blocks and rollbacks.

Where the daemon is, once it has carried out all that was sent, is known here; so a connection that is lost is opened
again, the newest of those points that is still on the chain is found, and the rest follows from that.
"""

from __future__ import annotations

from collections import deque
from collections.abc import AsyncGenerator, Callable

import anyio
from msgspec import Struct

from feeds.cardano.avvm import BEFORE_ALLEGRA
from feeds.cardano.eras import ALLEGRA, BYRON, NAMES, Network
from feeds.cardano.nesting import TooDeep, thoroughly
from feeds.cardano.ogmios_blocks import decode_block
from feeds.cardano.ogmios_json import At, Backward, Forward, MessageError, Origin, ServerFault, Tip, unhex
from feeds.cardano.ogmios_session import Away, Session, opened, shown
from feeds.cardano.ogmios_vouchers import VoucherHistory
from feeds.errors import FeedError, SourceError
from handlers.events import BlockApplied, GenesisOutputs, Hello, Inbound, NetworkTip, Rollback, RollbackPoint, Welcome

_KEPT = 4320  # points; no node rolls back more than 2160 blocks
_ALL_OF = 32  # the newest points are offered; of those before, fewer and fewer
_RENEW_S = 5.0
_MOST_TURNS = 100  # back, without getting further than before
_PAUSES_S = (0.2, 0.5, 1, 2, 5, 10, 15, 30)


class Place(Struct, frozen=True, gc=False):
    """A block's place in the chain, as far as it is known: the daemon's points have no era, a server's no height."""

    slot: int
    hash: bytes
    height: int | None = None
    era: str | None = None


class Trail:
    """Where the daemon is, once it has carried out what was sent, and the newest points before that."""

    def __init__(self, welcome: Welcome) -> None:
        points = welcome.points or ([] if welcome.tip is None else [welcome.tip])
        self._places = deque((Place(each.slot, each.hash, each.height) for each in reversed(points)), _KEPT)
        self._to_origin = welcome.tip is None or welcome.rollback_floor is None

    @property
    def here(self) -> Place | None:
        """Return the newest place; None is the origin."""
        return self._places[-1] if self._places else None

    @property
    def earlier(self) -> Place | None:
        """Return the place before that, if it is known."""
        return self._places[-2] if len(self._places) > 1 else None

    def grow(self, place: Place) -> None:
        """Continue to the next block."""
        self._to_origin &= len(self._places) < _KEPT
        self._places.append(place)

    def back_to(self, place: Place | None) -> Place | None:
        """Go back to a place before this one, and return what is known of it."""
        if place is None:
            self._places.clear()
            return None
        while self._places and self._places[-1].hash != place.hash and self._places[-1].slot >= place.slot:
            self._places.pop()
        if not self._places or self._places[-1].hash != place.hash:
            self._places.append(place)
        return self._places[-1]

    def points(self) -> list[At | Origin]:
        """Return points to search for on another's chain, newest first."""
        newest_first = [At(place.slot, place.hash.hex()) for place in reversed(self._places)]
        found: list[At | Origin] = []
        back = 0
        while back < len(newest_first) - 1:
            found.append(newest_first[back])
            back += 1 if back < _ALL_OF else back // 8
        found += newest_first[-1:]
        return [*found, "origin"] if self._to_origin else found


class OgmiosChain:
    """The chain of a server, for one daemon."""

    def __init__(
        self,
        url: str,
        network: Network,
        *,
        genesis: GenesisOutputs | None = None,
        to_height: int | None = None,
        patience_s: float = 60.0,
        known_tip: int | None = None,
    ) -> None:
        self.height = 0
        self.tip_height: int | None = None
        self._notice: Callable[[str], None] = lambda _: None
        self._url = url
        self._name = shown(url)
        self._network = network
        self._genesis = genesis
        self._to = to_height
        self._patience_s = patience_s
        self._network_tip = known_tip or 0
        self._tip_id: str | None = None
        self._tip_reported_at = float("-inf")
        self._beyond = False  # the next block is above the height to stop at
        self._lost_at: float | None = None
        self._tries = 0
        self._met = False  # the next answer may repeat the intersection
        self._turns, self._furthest = 0, -1

    def notify(self, notice: Callable[[str], None]) -> None:
        """Pass messages for the operator to `notice` from now on."""
        self._notice = notice

    async def messages(self, welcome: Welcome) -> AsyncGenerator[Inbound, None]:
        """Yield what the daemon lacks; it ends at the height to stop at, or never.

        Raises:
            FeedError: the server is away for too long, sends something that is not understood, or is on a chain
                that shares no point with the daemon's.
        """
        self._trail = Trail(welcome)
        fresh = welcome.tip is None
        self._seed = self._genesis if fresh else None
        self._vouchers = VoucherHistory(() if self._genesis is None else self._genesis.outputs) if fresh else None
        if fresh and self._genesis is None:
            self._notice("without --genesis, outputs that exist before the first block are not known")
        while True:
            try:
                async with opened(self._url) as session:
                    for message in await self._meet(session):
                        yield message
                    while not self._arrived():
                        for message in await self._step(session):
                            yield message
                return
            except Away as away:
                error = away
            await self._pause(error)

    # --- messages of the server ----------------------------------------------------------------------------------

    async def _meet(self, session: Session) -> list[Inbound]:
        """Find the newest point that the daemon and the server share, and go back to it if there are newer ones."""
        points = self._trail.points()
        try:
            found = await session.intersect(points)
        except ServerFault as fault:
            raise self._nothing_shared(fault) from None
        self._lost_at, self._met = None, True
        return [*self._back_to(found.intersection, ".result.intersection"), *self._renewed(found.tip)]

    async def _step(self, session: Session) -> list[Inbound]:
        """Process the next event of the chain."""
        answer = await session.next()
        self._lost_at = None
        met, self._met = self._met, False
        if isinstance(answer, Backward):
            if not met:
                self._turn()
            return [*self._back_to(answer.point, ".result.point"), *self._renewed(answer.tip)]
        self._tries = 0
        messages = await self._forward(answer)
        return [*self._renewed(answer.tip), *messages]

    def _turn(self) -> None:
        """Follow a rollback of the chain, but not repeatedly without progress."""
        here = -1 if self._trail.here is None else self._trail.here.slot
        self._turns = self._turns + 1 if here <= self._furthest else 1
        self._furthest = max(self._furthest, here)
        if self._turns > _MOST_TURNS:
            raise SourceError(f"{self._name}: the chain has changed {_MOST_TURNS} times without progress")

    def _back_to(self, point: At | Origin, what: str) -> list[Inbound]:
        place = self._place(point, what)
        here = self._trail.here
        if (None if place is None else place.hash) == (None if here is None else here.hash):
            return []
        place = self._trail.back_to(place)
        if self._vouchers is not None:
            self._vouchers.back_to(*(None, None) if place is None else (place.slot, place.hash))
        if place is None:
            return [Rollback(to="origin")]
        return [Rollback(to=RollbackPoint(slot=place.slot, hash=place.hash, height=place.height))]

    async def _forward(self, answer: Forward) -> list[Inbound]:
        here = self._trail.here
        block = self._decode(answer, here)
        if here is not None and block.prev_hash != here.hash:
            raise SourceError(f"{self._name}: {_name(answer)} does not follow block {here.height} {here.hash.hex()}")
        if self._to is not None and block.height > self._to:
            self._beyond = True
            return []
        if self._vouchers is None:
            self._vouchers = await self._vouchers_before(block, here)
        if self._vouchers is not None:
            block = self._vouchers.follow(block)
        self._trail.grow(_place_of(block))
        self.height = block.height
        seed, self._seed = self._seed, None
        return [block] if seed is None else [seed, block]

    def _renewed(self, tip: Tip | Origin) -> list[Inbound]:
        """Report the network's height to the daemon now and then."""
        if tip == "origin":
            return []
        self._tip_id = tip.id
        now = anyio.current_time()
        if tip.height == self.tip_height or now - self._tip_reported_at < _RENEW_S:
            return []
        self.tip_height, self._tip_reported_at = tip.height, now
        return [Hello(network_tip=NetworkTip(max(tip.height, self._network_tip)))]

    def _arrived(self) -> bool:
        """Return whether the end was reached. In Byron a boundary block has the height of the one before it."""
        here = self._trail.here
        if self._to is None or self._beyond or here is None or here.height is None or here.height < self._to:
            return self._beyond
        return here.era != NAMES[BYRON] or here.hash.hex() == self._tip_id

    def _decode(self, answer: Forward, here: Place | None) -> BlockApplied:
        before = None if here is None else here.slot
        try:
            return thoroughly(lambda block: decode_block(block, self._network, before), answer.block)
        except MessageError as error:
            raise SourceError(f"{self._name}: {_name(answer)}: {error.inside('.result.block')}") from None
        except TooDeep as error:
            raise SourceError(f"{self._name}: {_name(answer)}: {error}") from None

    def _place(self, point: At | Origin, what: str) -> Place | None:
        if point == "origin":
            return None
        try:
            return Place(point.slot, unhex(point.id, f"{what}.id", 32))
        except MessageError as error:
            raise SourceError(f"{self._name}: {error}") from None

    # --- vouchers ------------------------------------------------------------------------------------------------

    async def _vouchers_before(self, block: BlockApplied, here: Place | None) -> VoucherHistory | None:
        """Return the vouchers that are unspent before a block; None after the boundary, where they do not matter.

        No server reports them, but the chain can be read once more.
        """
        if here is not None and block.era not in BEFORE_ALLEGRA:
            era = await self._era_of(here) if block.era == NAMES[ALLEGRA] else block.era
            if era is not None and era not in BEFORE_ALLEGRA:
                return None
        vouchers = VoucherHistory(() if self._genesis is None else self._genesis.outputs)
        if here is not None:
            self._notice(
                f"reading the chain up to height {here.height} again to find the vouchers that are unspent there"
            )
            await self._read_again(None, here, vouchers)
        return vouchers

    async def _era_of(self, here: Place) -> str | None:
        """Return the era of the place where we are; None when there is no earlier one to read it from."""
        earlier = self._trail.earlier
        if here.era is not None or earlier is None:
            return here.era
        return (await self._read_again(earlier, here, VoucherHistory())).era

    async def _read_again(self, start: Place | None, until: Place, vouchers: VoucherHistory) -> Place:
        """Read from a place up to another, over a connection of its own; the vouchers follow."""
        async with opened(self._url) as session:
            try:
                await session.intersect(["origin" if start is None else At(start.slot, start.hash.hex())])
            except ServerFault:
                raise Away(f"{self._name}: the chain changed before it was read") from None
            here = start
            while here is None or here.hash != until.hash:
                answer = await session.next()
                self._lost_at = None
                if isinstance(answer, Backward):
                    here = self._place(answer.point, ".result.point")
                    vouchers.back_to(*(None, None) if here is None else (here.slot, here.hash))
                    continue
                here = _place_of(vouchers.follow(self._decode(answer, here)))
                if here.slot > until.slot:
                    raise Away(f"{self._name}: the chain changed while it was read")
        return here

    # --- failures ------------------------------------------------------------------------------------------------

    async def _pause(self, away: Away) -> None:
        now = anyio.current_time()
        self._lost_at = now if self._lost_at is None else self._lost_at
        if now - self._lost_at > self._patience_s:
            raise FeedError(str(away))
        pause = _PAUSES_S[min(self._tries, len(_PAUSES_S) - 1)]
        self._tries += 1
        self._notice(f"{away}; trying again in {pause:g} s")
        await anyio.sleep(pause)

    def _nothing_shared(self, fault: ServerFault) -> SourceError:
        points = self._trail.points()
        here = self._trail.here
        at = "" if here is None else f" up to height {here.height}"
        return SourceError(
            f"{self._name}: the daemon is on another chain, or the server is far behind: "
            f"none of the daemon's {len(points)} points{at} is on the server's chain ({fault})"
        )


def _name(answer: Forward) -> str:
    return f"block {answer.block.height} {answer.block.id}"


def _place_of(block: BlockApplied) -> Place:
    return Place(block.point.slot, block.hash, block.height, block.era)
