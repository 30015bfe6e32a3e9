"""The command line of the feeds: `utxod feed …`."""

from __future__ import annotations

import time
from collections.abc import AsyncIterable, Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

import click
import msgspec

from feeds import run as runner
from feeds.bitcoin.commands import from_bitcoin_rpc
from feeds.chain import leading
from feeds.files import MessageFile, following
from feeds.run import Job, options
from handlers.events import BlockApplied, Inbound, Point, Welcome

_POLL_S = 1.0


@click.group()
def feed() -> None:
    """Turn a chain into events and send them to the daemon."""


@feed.command("file")
@click.argument("source", type=click.Path(exists=True, dir_okay=False, allow_dash=True))
@options
@click.pass_obj
def from_file(socket: Path, /, source: str, **shared: Any) -> None:
    """Send the events of SOURCE: JSON Lines or frames, `-` for standard input.

    Asks for the daemon's tip first and skips what it has. Reconnects, and resumes by itself.
    """
    file = MessageFile(None if source == "-" else Path(source))
    job = Job(socket, **shared)
    runner.run(job, file.name, lambda welcome: following(file, welcome), lambda: file.offset, file.size)


@feed.command("bitcoin-blocks")
@click.argument("source", type=click.Path(exists=True, path_type=Path))
@click.option("--network", default="mainnet", show_default=True, help="Magic, genesis and limits.")
@click.option("--to", type=click.IntRange(min=0), help="Stop after this height.")
@click.option("--skip-orphans", is_flag=True, help="Stop before a block whose parent is missing, instead of failing.")
@click.option("--keep-unspendable", is_flag=True, help="Keep outputs that nobody can spend, and the first coinbase.")
@options
@click.pass_obj
def from_bitcoin_blocks(
    socket: Path,
    /,
    source: Path,
    network: str,
    to: int | None,
    skip_orphans: bool,
    keep_unspendable: bool,
    **shared: Any,
) -> None:
    """Send the best chain of SOURCE: a folder of blk*.dat (with xor.dat), or raw blocks as hex, one a line."""
    from feeds.bitcoin.networks import NETWORKS
    from feeds.bitcoin.source import Chain, Options

    job = Job(socket, **shared)
    choice = Options(skip_orphans=skip_orphans, mark_unspendable=not keep_unspendable)
    with runner.speaking(), Chain(source, _pick(network, NETWORKS), choice) as chain:
        for note in chain.notes:
            click.echo(note, err=True)
        last = chain.tip.height if to is None else min(to, chain.tip.height)
        job = _known_tip(job, chain.tip.height)
        reader = _Heights(lambda points: chain.blocks(points, to))
        runner.run(job, str(source), lambda welcome: leading(welcome, reader.read), lambda: reader.height, last)


feed.add_command(from_bitcoin_rpc)


@feed.command("cardano-chunks")
@click.argument("source", type=click.Path(exists=True, path_type=Path))
@click.option("--network", default="mainnet", show_default=True, help="How slots count: epochs and times.")
@click.option(
    "--genesis",
    "genesis_files",
    multiple=True,
    type=click.Path(exists=True, dir_okay=False, path_type=Path),
    help="Byron or Shelley genesis file, for the outputs before the first block; may be given twice.",
)
@click.option("--to", type=click.IntRange(min=0), help="Stop after this height.")
@click.option("--follow", is_flag=True, help="Wait for new chunks instead of ending.")
@options
@click.pass_obj
def from_cardano_chunks(
    socket: Path,
    /,
    source: Path,
    network: str,
    genesis_files: tuple[Path, ...],
    to: int | None,
    follow: bool,
    **shared: Any,
) -> None:
    """Send the chain of SOURCE, a node's database: its folder, the immutable folder in it, or one chunk file."""
    from feeds.cardano.chunks import last_block, read_chain
    from feeds.cardano.eras import NETWORKS
    from feeds.cardano.genesis import read_genesis

    with runner.speaking():
        genesis = read_genesis(genesis_files).outputs if genesis_files else None
        chosen = _pick(network, NETWORKS)
        last = last_block(source, chosen)

    def blocks(points: Sequence[Point]) -> Iterator[BlockApplied]:
        born = genesis.outputs if genesis else ()
        wait = _pause if follow else None
        return read_chain(source, chosen, after=points, to_height=to, genesis=born, wait=wait)

    reader = _Heights(blocks)

    def messages(welcome: Welcome) -> AsyncIterable[Inbound]:
        return leading(welcome, reader.read, genesis, may_wait=follow)

    job = Job(socket, **shared)
    height = None if last is None else last.height
    total = height if to is None or height is None else min(to, height)
    runner.run(_known_tip(job, height), str(source), messages, lambda: reader.height, total)


@feed.command("ogmios")
@click.argument("url")
@click.option("--network", default="mainnet", show_default=True, help="How slots count: epochs and times.")
@click.option(
    "--genesis",
    "genesis_files",
    multiple=True,
    type=click.Path(exists=True, dir_okay=False, path_type=Path),
    help="Byron or Shelley genesis file, for the outputs before the first block; may be given twice.",
)
@click.option("--to", type=click.IntRange(min=0), help="Stop after this height, instead of never.")
@options
@click.pass_obj
def from_ogmios(
    socket: Path, /, url: str, network: str, genesis_files: tuple[Path, ...], to: int | None, **shared: Any
) -> None:
    """Follow the chain of the Ogmios server at URL (ws://… or wss://…): blocks and rollbacks, as they happen.

    Finds the newest point that daemon and server share, and again whenever a connection was lost; --wait is for both.
    """
    from feeds.cardano.eras import NETWORKS
    from feeds.cardano.genesis import read_genesis
    from feeds.cardano.ogmios import OgmiosChain
    from feeds.cardano.ogmios_session import shown

    job = Job(socket, **shared)
    with runner.speaking():
        genesis = read_genesis(genesis_files).outputs if genesis_files else None
    chosen = _pick(network, NETWORKS)
    patience_s = job.wait or float("inf")
    chain = OgmiosChain(url, chosen, genesis=genesis, to_height=to, patience_s=patience_s, known_tip=job.network_tip)
    total = (lambda: chain.tip_height) if to is None else to
    runner.run(job, shown(url), chain.messages, lambda: chain.height, total, chain.hear)


class _Heights:
    """Reads a chain and remembers how far it is."""

    def __init__(self, blocks: Callable[[Sequence[Point]], Iterator[BlockApplied]]) -> None:
        self._blocks = blocks
        self.height = 0

    def read(self, after: Sequence[Point]) -> Iterator[BlockApplied]:
        for block in self._blocks(after):
            self.height = block.height
            yield block


def _pick(name: str, networks: dict[str, Any]) -> Any:
    if name not in networks:
        raise click.BadParameter(f"{name!r} is none of {', '.join(networks)}", param_hint="--network")
    return networks[name]


def _known_tip(job: Job, height: int | None) -> Job:
    """Return the job with the source's last block as the network's tip, where no higher one was given."""
    known = [tip for tip in (job.network_tip, height) if tip is not None]
    return msgspec.structs.replace(job, network_tip=max(known, default=None))


def _pause() -> bool:
    time.sleep(_POLL_S)
    return True
