"""The witness sets of a block: the length of each, its datums and how many redeemers it has. Hot path of a catch-up.

Most sets have nothing but signatures. Those are skipped whole.
"""

from __future__ import annotations

from feeds.cardano.details import count_redeemers
from feeds.cardano.errors import BlockError
from feeds.cardano.shelley import after_set_tag
from formats.cbor import BREAK, INDEFINITE, array, close, mapping, skip, uint

_DATUMS, _REDEEMERS = 4, 5

Revealed = tuple[list[bytes], int]  # datums, and the number of redeemers


def read_witnesses(buf: bytes, at: int, sizes: list[int]) -> tuple[list[Revealed], int]:
    """Return the datums of each transaction, in their original bytes, with its redeemers, and where the list ends.

    How long each witness set is, is added to the size of its transaction.
    """
    count, at = array(buf, at)
    if count not in (INDEFINITE, len(sizes)):
        raise BlockError(f"{count} witness sets, but {len(sizes)} transactions", at)
    revealed: list[Revealed] = []
    found: Revealed
    for index in range(len(sizes)):
        if count < 0 and buf[at] == BREAK:
            raise BlockError(f"{index} witness sets, but {len(sizes)} transactions", at)
        if buf[at] == 0xA1 and buf[at + 1] < _DATUMS:  # one entry, and not that of the datums
            found, end = ([], 0), skip(buf, at)
        else:
            found, end = revealed_by(buf, at)
        revealed.append(found)
        sizes[index] += end - at
        at = end
    return revealed, close(buf, at, count, "the list of witnesses")


def revealed_by(buf: bytes, at: int) -> tuple[Revealed, int]:
    """Return the datums in a witness set, each once, with the number of its redeemers, and where it ends."""
    found: list[bytes] = []
    redeemers = 0
    count, at = mapping(buf, at)
    while count:
        if count < 0 and buf[at] == BREAK:
            at += 1
            break
        key, at = uint(buf, at)
        if key == _REDEEMERS:
            redeemers = count_redeemers(buf, at)
        at = _list(buf, at, found) if key == _DATUMS else skip(buf, at)
        count -= 1
    return (list(dict.fromkeys(found)), redeemers), at


def _list(buf: bytes, at: int, found: list[bytes]) -> int:
    """Add the items of an array, or of a set; return where it ends."""
    count, at = array(buf, at) if buf[at] >> 5 != 6 else array(buf, after_set_tag(buf, at))
    while count:
        if count < 0 and buf[at] == BREAK:
            return at + 1
        end = skip(buf, at)
        found.append(buf[at:end])
        at = end
        count -= 1
    return at
