"""Large blocks go back to the system when they are freed, also after larger ones were."""

from __future__ import annotations

import ctypes
import os
import subprocess
import sys
from pathlib import Path

import pytest

import daemon.app
from config.settings import Config

MIB = 1 << 20
MEASURE = """
import ctypes
from daemon.heap import keep_heap_small

libc = ctypes.CDLL(None)
libc.malloc.restype, libc.malloc.argtypes, libc.free.argtypes = ctypes.c_void_p, [ctypes.c_size_t], [ctypes.c_void_p]

class Info(ctypes.Structure):
    _fields_ = [(name, ctypes.c_size_t) for name in "arena ordblks smblks hblks hblkhd usmblks".split()] + [
        (name, ctypes.c_size_t) for name in "fsmblks uordblks fordblks keepcost".split()
    ]

libc.mallinfo2.restype = Info
if {wanted}:
    keep_heap_small()
libc.free(libc.malloc({largest}))
before = libc.mallinfo2().hblkhd
block = libc.malloc({size})
print(libc.mallinfo2().hblkhd - before)
"""

pytestmark = pytest.mark.skipif(not hasattr(ctypes.CDLL(None), "mallinfo2"), reason="glibc 2.33 tells what is mapped")


def mapped(wanted: bool, size: int) -> int:
    """Return how much is mapped for a block, in a process in which a larger one was freed before."""
    environ = {name: value for name, value in os.environ.items() if not name.startswith(("MALLOC_", "GLIBC_", "LD_"))}
    script = MEASURE.format(wanted=wanted, largest=8 * MIB, size=size)
    command = [sys.executable, "-c", script]
    root = Path(__file__).resolve().parent.parent
    return int(subprocess.run(command, env=environ, cwd=root, check=True, capture_output=True).stdout)


def test_a_large_block_is_a_mapping_of_its_own() -> None:
    assert mapped(True, 4 * MIB) >= 4 * MIB
    assert mapped(True, MIB // 2) == 0


def test_else_a_freed_block_raises_the_threshold() -> None:
    """If this fails, the C library has changed and `keep_heap_small` may be superfluous."""
    assert mapped(False, 4 * MIB) == 0


def test_the_daemon_begins_with_it(monkeypatch: pytest.MonkeyPatch) -> None:
    class Announced(Exception):
        pass

    def announce(*_: object) -> None:
        raise Announced

    called = list[bool]()
    monkeypatch.setattr(daemon.app, "keep_heap_small", lambda: called.append(True))
    monkeypatch.setattr(daemon.app, "announce", announce)
    with pytest.raises(Announced):
        daemon.app.run(Config(), None)
    assert called
