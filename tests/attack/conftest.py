"""What all attacks need."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
from questions import short_folder


@pytest.fixture
def folder() -> Iterator[Path]:
    """Give a folder with a short name: paths of sockets are bounded."""
    with short_folder() as name:
        yield name
