"""How long a block waits while a very large transaction is created."""

from __future__ import annotations

import tempfile
import threading
from hashlib import blake2b
from pathlib import Path
from statistics import quantiles

import click

from bench.daemon import Client, running
from handlers import wire
from handlers.events import BlockApplied, Output, Tx, TxSubmitted

_TXS = 200  # in a block


@click.command()
@click.option(
    "--outputs", default=1_000_000, show_default=True, type=click.IntRange(min=2), help="Outputs of the transaction."
)
@click.option("--work", type=click.Path(path_type=Path), help="Folder for the store; by default a temporary one.")
def large(outputs: int, work: Path | None) -> None:
    """Measure how long blocks wait while one large transaction is created."""
    with tempfile.TemporaryDirectory(dir=work) as parent, running(Path(parent) / "utxod") as daemon:
        feeder, submitter = Client(daemon.folder / "utxod.sock"), Client(daemon.folder / "utxod.sock")
        feeder.feed([_block(height) for height in range(1, 21)])
        alone = [feeder.feed([_block(height)]) for height in range(21, 121)]
        order = wire.encode(TxSubmitted(seq=0, tx=_tx(outputs)), "frames")
        took = [0.0]

        def submit() -> None:
            took[0] = submitter.feed([order])

        waits, height, thread = list[float](), 121, threading.Thread(target=submit)
        thread.start()
        while thread.is_alive():
            waits.append(feeder.feed([_block(height)]))
            height += 1
        thread.join()
        click.echo(f"a transaction of {outputs:,} outputs ({len(order) >> 20} MiB) was created in {took[0]:.1f} s")
        click.echo(f"blocks of {_TXS} transactions, alone:  {_summary(alone)}")
        click.echo(f"blocks of {_TXS} transactions, meanwhile: {_summary(waits)}, {len(waits)} of them")
        click.echo(f"peak memory {daemon.peak_mb:.0f} MB")
        feeder.close()
        submitter.close()


def _summary(waits: list[float]) -> str:
    cut = quantiles(waits, n=100, method="inclusive") if len(waits) > 1 else [waits[0]] * 99
    return f"p50 {cut[49] * 1000:.1f} ms, p99 {cut[98] * 1000:.1f} ms, longest {max(waits) * 1000:.1f} ms"


def _block(height: int) -> bytes:
    txs = [Tx(_txid(height, n), outputs=[Output(b"\x61" + n.to_bytes(28, "big"), 1)] * 2) for n in range(_TXS)]
    return wire.encode(BlockApplied(seq=height, height=height, hash=height.to_bytes(32, "big"), txs=txs), "frames")


def _tx(outputs: int) -> Tx:
    return Tx(
        _txid(0, 0),
        inputs=[(_txid(1, 0), 0)],
        outputs=[Output(b"\x61" + n.to_bytes(28, "big"), n) for n in range(outputs)],
    )


def _txid(height: int, n: int) -> bytes:
    """Return an id that is a digest, as the indexes expect: ids with most bytes alike share places in them."""
    return blake2b(b"%d %d" % (height, n), digest_size=32).digest()
