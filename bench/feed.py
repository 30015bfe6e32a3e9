"""`utxod bench feed`: a chain of Cardano chunk files decoded, sent to nobody, and sent to a daemon."""

from __future__ import annotations

import gc
import io
import lzma
import socket
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import cbor2
import click

from bench.daemon import running
from bench.feed_cbor2 import read_blocks
from feeds.cardano.chunks import chunk_files, read_chain
from feeds.cardano.eras import NETWORKS, Network
from handlers import wire
from handlers.events import Ack, ChainName, Hello, Welcome

_NOBODY = Welcome(
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
    """Measure a chain of chunk files: decoding alone, beside cbor2, the feed alone, and the whole way to the disk."""
    gc.set_threshold(100_000, 50, 100)
    blocks, txs, eras = 0, 0, set[str | None]()
    began = time.perf_counter()
    for block in read_chain(chunks, NETWORKS[network]):
        blocks, txs = blocks + 1, txs + len(block.txs)
        eras.add(block.era)
    _tell("decoding alone", blocks, txs, time.perf_counter() - began)
    _tell("cbor2, into lists and maps only", blocks, txs, _items_through_cbor2(chunks))
    if eras <= {"alonzo", "babbage"}:
        _tell("cbor2 to the same events, unchecked", blocks, txs, _through_cbor2(chunks, NETWORKS[network]))
    began = time.perf_counter()
    for block in read_chain(chunks, NETWORKS[network]):
        wire.encode(block, "frames")
    _tell("decoding and encoding for the socket", blocks, txs, time.perf_counter() - began)
    with tempfile.TemporaryDirectory(prefix="utxod-bench-") as folder:
        with _sink(Path(folder) / "sink.sock") as path:
            _tell("the feed alone, to a socket that acknowledges", blocks, txs, _run(chunks, network, path))
        with running(Path(folder) / "daemon", family="cardano", network=network) as daemon:
            path = daemon.folder / "utxod.sock"
            _tell("end to end, committed with fsync", blocks, txs, _run(chunks, network, path))


def _tell(what: str, blocks: int, txs: int, took: float) -> None:
    click.echo(f"{what}: {blocks / took:,.0f} blocks/s, {txs / took:,.0f} transactions/s ({took:.2f} s)")


def _through_cbor2(chunks: Path, network: Network) -> float:
    """Return how long a general decoder takes to the same events."""
    raws = [_content(file) for file in chunk_files(chunks)]
    began = time.perf_counter()
    for raw in raws:
        for _ in read_blocks(raw, network):
            pass
    took = time.perf_counter() - began
    theirs = (block for raw in raws for block in read_blocks(raw, network))
    if any(one != other for one, other in zip(theirs, read_chain(chunks, network), strict=True)):
        raise click.ClickException("cbor2 leads to other events")
    return took


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
    """Listen on a socket, say that nothing is there yet, and acknowledge everything."""
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
                client.sendall(wire.encode(_NOBODY, "frames"))
                continue
            seq = wire.sequence(raw, "frames")
            assert seq is not None
            client.sendall(wire.encode(Ack(seq=seq, status="applied", tip=None), "frames"))
