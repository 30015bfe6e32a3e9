"""`utxod bench feed`: decode Cardano chunk files, and send them to a socket that acknowledges and to a daemon."""

from __future__ import annotations

import gc
import io
import lzma
import os
import socket
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import cbor2
import click

from bench.daemon import running
from bench.feed_cbor2 import read_blocks
from feeds.cardano.block import decode_block
from feeds.cardano.chunks import chunk_files, read_chain
from feeds.cardano.eras import NETWORKS, Network
from handlers import wire
from handlers.events import Ack, BlockApplied, ChainName, Hello, Welcome

_TURNS = 5
_WELCOME = Welcome(
    protocol=1,
    version="0",
    chain=ChainName("raw", "none"),
    tip=None,
    points=[],
    rollback_floor=None,
    persisted_height=None,
)


@click.command("feed")
@click.argument("chunks", type=click.Path(exists=True, path_type=Path))
@click.option("--network", default="preview", show_default=True, type=click.Choice(sorted(NETWORKS)))
def feed(chunks: Path, network: str) -> None:
    """Measure a chain of chunk files: decoding alone, next to cbor2, the feed alone, and the whole way to the disk."""
    gc.set_threshold(100_000, 50, 100)
    blocks, txs, eras = 0, 0, set[str | None]()
    began = time.perf_counter()
    for block in read_chain(chunks, NETWORKS[network]):
        blocks, txs = blocks + 1, txs + len(block.txs)
        eras.add(block.era)
    _show("decoding alone", blocks, txs, time.perf_counter() - began)
    _show("cbor2, into lists and maps only", blocks, txs, _items_through_cbor2(chunks))
    if eras <= {"alonzo", "babbage"}:
        _compare_with_cbor2(chunks, NETWORKS[network])
    began = time.perf_counter()
    for block in read_chain(chunks, NETWORKS[network]):
        wire.encode(block, "frames")
    _show("decoding and encoding for the socket", blocks, txs, time.perf_counter() - began)
    with tempfile.TemporaryDirectory(prefix="utxod-bench-") as folder:
        with _sink(Path(folder) / "sink.sock") as path:
            _show("the feed alone, to a socket that acknowledges", blocks, txs, _run(chunks, network, path))
        with running(Path(folder) / "daemon", family="cardano", network=network) as daemon:
            path = daemon.folder / "utxod.sock"
            work = _processor_s(daemon.process.pid), os.times()
            took = _run(chunks, network, path)
            _show("end to end, committed with fsync", blocks, txs, took)
            fed, after = os.times(), _processor_s(daemon.process.pid)
            feed_s = fed.children_user + fed.children_system - work[1].children_user - work[1].children_system
            click.echo(f"processor time of it: feed {feed_s:.2f} s, daemon {after - work[0]:.2f} s")


def _show(what: str, blocks: int, txs: int, took: float) -> None:
    click.echo(f"{what}: {blocks / took:,.0f} blocks/s, {txs / took:,.0f} transactions/s ({took:.2f} s)")


def _compare_with_cbor2(chunks: Path, network: Network) -> None:
    """Print the processor time of our decoder and of a general one for the same events, from memory, in turns."""
    raws = [_content(file) for file in chunk_files(chunks)]
    ours = theirs = float("inf")
    ratios = []
    for _ in range(_TURNS):
        one, other = _work(_ours, raws, network), _work(read_blocks, raws, network)
        ours, theirs = min(ours, one), min(theirs, other)
        ratios.append(one / other)
    for raw in raws:
        if any(a != b for a, b in zip(_ours(raw, network), read_blocks(raw, network), strict=True)):
            raise click.ClickException("cbor2 leads to other events")
    click.echo(
        f"to the same events, best of {_TURNS} turns: ours {ours:.3f} s of processor, cbor2 unchecked {theirs:.3f} s; "
        f"ratio of each turn {min(ratios):.2f} to {max(ratios):.2f}"
    )


def _ours(raw: bytes, network: Network) -> Iterator[BlockApplied]:
    at = 0
    while at < len(raw):
        block, at = decode_block(raw, network, at)
        yield block


def _work(read: Callable[[bytes, Network], Iterator[BlockApplied]], raws: list[bytes], network: Network) -> float:
    began = time.process_time()
    for raw in raws:
        for _ in read(raw, network):
            pass
    return time.process_time() - began


def _items_through_cbor2(chunks: Path) -> float:
    """Return how long a general decoder takes for the items alone: no hash is taken, no event is made."""
    raws = [_content(file) for file in chunk_files(chunks)]
    began = time.perf_counter()
    for raw in raws:
        stream = io.BytesIO(raw)
        decode = cbor2.CBORDecoder(stream).decode
        while stream.tell() < len(raw):
            decode()
    return time.perf_counter() - began


def _processor_s(pid: int) -> float:
    """Return what a running process and its threads have used so far."""
    fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


def _content(file: Path) -> bytes:
    raw = file.read_bytes()
    return lzma.decompress(raw) if file.suffix == ".xz" else raw


def _run(chunks: Path, network: str, path: Path) -> float:
    command = [sys.executable, "-m", "daemon.cli", "feed", "--socket", str(path), "cardano-chunks", str(chunks)]
    began = time.perf_counter()
    subprocess.run([*command, "--network", network], check=True, stderr=subprocess.DEVNULL)
    return time.perf_counter() - began


@contextmanager
def _sink(path: Path) -> Iterator[Path]:
    """Listen on a socket, report an empty store, and acknowledge every message."""
    with socket.socket(socket.AF_UNIX) as listening:
        listening.bind(str(path))
        listening.listen()
        threading.Thread(target=_accept, args=(listening,), daemon=True).start()
        yield path


def _accept(listening: socket.socket) -> None:
    while True:
        try:
            client, _ = listening.accept()
        except OSError:  # the measurement is over
            return
        threading.Thread(target=_acknowledge, args=(client,), daemon=True).start()


def _acknowledge(client: socket.socket) -> None:
    with client, client.makefile("rb") as messages:
        while head := messages.read(wire.LENGTH.size):
            raw = messages.read(*wire.LENGTH.unpack(head))
            if wire.peek(raw, "frames") == Hello.__name__:
                client.sendall(wire.encode(_WELCOME, "frames"))
                continue
            seq = wire.sequence(raw, "frames")
            assert seq is not None
            client.sendall(wire.encode(Ack(seq=seq, status="applied", tip=None), "frames"))
