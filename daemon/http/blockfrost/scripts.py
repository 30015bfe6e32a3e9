"""Scripts and datums by their hash."""

from __future__ import annotations

from typing import Any

from daemon.http.blockfrost.requests import hex_of, not_found
from daemon.turns import Turns
from formats.plutus import native_json
from handlers.datums import search_datum
from handlers.query import Snapshot
from handlers.scripts import Script, search_script

_KINDS = ("timelock", "plutusV1", "plutusV2", "plutusV3")


async def script(shot: Snapshot, turns: Turns, text: str) -> Script:
    """Return a script.

    Raises:
        Refused: it is not known.
    """
    for found in search_script(shot, hex_of(text, 28)):
        if found is not None and found.language < len(_KINDS):
            return found
        await turns.next()
        shot.check_age()
    raise not_found()


def script_facts(text: str, found: Script) -> dict[str, Any]:
    """Return hash, type and size of a script."""
    return {
        "script_hash": text.lower(),
        "type": _KINDS[found.language],
        "serialised_size": len(found.code) if found.language else None,
    }


def script_json(found: Script) -> dict[str, Any]:
    """Return a native script as JSON; others have none."""
    return {"json": native_json(found.code) if found.language == 0 else None}


def script_cbor(found: Script) -> dict[str, Any]:
    """Return a Plutus script's bytes; a native one has its JSON."""
    return {"cbor": found.code.hex() if found.language else None}


async def datum(shot: Snapshot, turns: Turns, text: str) -> bytes:
    """Return a datum.

    Raises:
        Refused: it is not known.
    """
    for found in search_datum(shot, hex_of(text, 32)):
        if found is not None:
            return found
        await turns.next()
        shot.check_age()
    raise not_found()
