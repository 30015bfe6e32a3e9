"""Memory goes back to the system when it is freed, in a process whose blocks are mappings and in one with a heap."""

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
BEGIN = """
import ctypes
from pathlib import Path
from daemon.heap import Heap, give_back, keep_heap_ready, keep_heap_small

libc = ctypes.CDLL(None)
libc.malloc.restype, libc.malloc.argtypes, libc.free.argtypes = ctypes.c_void_p, [ctypes.c_size_t], [ctypes.c_void_p]

class Info(ctypes.Structure):
    _fields_ = [(name, ctypes.c_size_t) for name in "arena ordblks smblks hblks hblkhd usmblks".split()] + [
        (name, ctypes.c_size_t) for name in "fsmblks uordblks fordblks keepcost".split()
    ]

libc.mallinfo2.restype = Info
"""
MAPPED = """
{begin}
libc.free(libc.malloc({largest}))
before = libc.mallinfo2().hblkhd
block = libc.malloc({size})
print(libc.mallinfo2().hblkhd - before)
"""
HELD = """
def held():
    return int(Path("/proc/self/statm").read_text().split()[1]) * 4096

keep_heap_ready()
before, pairs = held(), [(libc.malloc(1 << 20), libc.malloc(1000)) for _ in range(100)]
for large, small in pairs:
    ctypes.memset(large, 1, 1 << 20), ctypes.memset(small, 1, 1000)
for large, _ in pairs:
    libc.free(large)
print(held() - before)
give_back()
print(held() - before)
"""

pytestmark = pytest.mark.skipif(not hasattr(ctypes.CDLL(None), "mallinfo2"), reason="glibc 2.33 tells what is mapped")


def run(script: str) -> list[int]:
    environ = {name: value for name, value in os.environ.items() if not name.startswith(("MALLOC_", "GLIBC_", "LD_"))}
    root = Path(__file__).resolve().parent.parent
    done = subprocess.run([sys.executable, "-c", script], env=environ, cwd=root, check=True, capture_output=True)
    return list(map(int, done.stdout.split()))


def mapped(begin: str, size: int) -> int:
    """Return how much is mapped for a block, in a process in which a larger one was freed before."""
    return run(BEGIN + MAPPED.format(begin=begin, largest=8 * MIB, size=size))[0]


def test_a_large_block_of_a_small_heap_is_a_mapping_of_its_own() -> None:
    assert mapped("keep_heap_small()", 4 * MIB) >= 4 * MIB
    assert mapped("keep_heap_small()", MIB // 2) == 0


def test_without_a_threshold_a_freed_block_raises_it() -> None:
    """If this fails, the C library has changed and `keep_heap_small` may be superfluous."""
    assert mapped("pass", 4 * MIB) == 0


def test_large_arrays_are_mapped_unless_the_daemon_catches_up() -> None:
    assert mapped("heap = Heap(); heap.committed(20)", 16 * MIB) == 0
    assert mapped("heap = Heap(); heap.committed(20)", 40 * MIB) >= 40 * MIB
    assert mapped("heap = Heap(); heap.committed(1)", 4 * MIB) >= 4 * MIB
    assert mapped("heap = Heap(); heap.committed(20); heap.committed(1)", 4 * MIB) >= 4 * MIB
    assert mapped("held = bytearray(b'1') * (300 << 20); heap = Heap(); heap.committed(20)", 4 * MIB) >= 4 * MIB


def test_free_pages_between_small_blocks_go_back() -> None:
    kept, left = run(BEGIN + HELD)
    assert kept > 90 * MIB
    assert left < 10 * MIB


def test_the_daemon_keeps_its_heap_small_from_the_start(monkeypatch: pytest.MonkeyPatch) -> None:
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
