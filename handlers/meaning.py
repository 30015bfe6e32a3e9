"""The meaning of a field of a message, in addition to its type.

The reference of messages (`daemon.reference`) and the JSON Schema (`handlers.schema`) are made from it.
"""

from __future__ import annotations

from msgspec import Meta

FIRST = "0.1.0"


def about(meaning: str, since: str = FIRST) -> Meta:
    """Return what a field means, and the first version that has it. It costs nothing when messages are decoded."""
    return Meta(description=meaning, extra={"since": since})
