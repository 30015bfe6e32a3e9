"""The era of a block, and the epoch and time of a slot number.

A network has had at most two kinds of slots: Byron's until a given epoch, and those of all later eras. The constants
of the known networks are facts; those of any other come from its genesis files (`genesis.Genesis.network`).
"""

from __future__ import annotations

from msgspec import Struct

BYRON_BOUNDARY, BYRON, SHELLEY, ALLEGRA, MARY, ALONZO, BABBAGE, CONWAY = range(8)
NAMES = ("byron", "byron", "shelley", "allegra", "mary", "alonzo", "babbage", "conway")


class Network(Struct, frozen=True):
    """How slots count on one network. `start` is slot 0 in unix seconds; Byron lasts for `byron_epochs` epochs.

    `magic` is the number that a node keeps its peers and databases of other networks away by.
    """

    name: str
    start: int
    byron_epochs: int = 0
    byron_epoch_slots: int = 21_600
    byron_slot_s: float = 20
    epoch_slots: int = 432_000
    slot_s: float = 1
    magic: int | None = None

    def epoch(self, slot: int) -> int:
        """Return the epoch of a slot; a Byron block contains its own."""
        later = slot - self.byron_epochs * self.byron_epoch_slots
        if later < 0:
            return slot // self.byron_epoch_slots
        return self.byron_epochs + later // self.epoch_slots

    def time(self, slot: int) -> int:
        """Return when a slot begins, in whole unix seconds."""
        byron = self.byron_epochs * self.byron_epoch_slots
        if slot < byron:
            return int(self.start + slot * self.byron_slot_s)
        return int(self.start + byron * self.byron_slot_s + (slot - byron) * self.slot_s)


MAINNET = Network("mainnet", start=1_506_203_091, byron_epochs=208, magic=764_824_073)
PREPROD = Network("preprod", start=1_654_041_600, byron_epochs=4, magic=1)
PREVIEW = Network("preview", start=1_666_656_000, epoch_slots=86_400, magic=2)
NETWORKS = {network.name: network for network in (MAINNET, PREPROD, PREVIEW)}
