"""Scripts of outputs by their hash."""

from __future__ import annotations

from collections.abc import Iterator

from msgspec import Struct

from formats.cbor import CborError
from formats.scripts import hash_of_reference, split_reference, unwrapped
from handlers.snapshot import Snapshot
from storage.history.layout import to_extra

_EXAMINED = 100  # outputs that are examined before others get a turn


class Script(Struct, frozen=True):
    """A script: its language, 0 for a native one, and its bytes; of a Plutus script what its byte string holds."""

    language: int
    code: bytes


def read_reference(reference: bytes) -> Script | None:
    """Return the script that an output carries, None if it is none."""
    try:
        return Script(*split_reference(unwrapped(reference)))
    except (CborError, IndexError):
        return None


def search_script(shot: Snapshot, script_hash: bytes) -> Iterator[Script | None]:
    """Search for the script with a hash: yield None now and then, so that others get a turn, and at last the script.

    It is available while an output contains it that is unspent, or was spent in the window.

    Raises:
        NoIndex: the index by script is not kept.
        Damaged: an output cannot be read.
    """
    shot.listed("script", script_hash)
    stored = shot.stored
    for numbers in stored.index("script").descending(stored.prefix(script_hash)):
        for at in range(0, len(numbers), _EXAMINED):
            for number in numbers[at : at + _EXAMINED].tolist():
                found = stored.output(number)
                reference = None if found is None else to_extra(found.extra).script_ref
                if reference is not None and hash_of_reference(reference) == script_hash:
                    yield read_reference(reference)
                    return
            yield None
