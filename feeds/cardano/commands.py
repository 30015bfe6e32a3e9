"""The command lines of the feeds that read a Cardano node's files or follow an Ogmios server."""

from __future__ import annotations

from collections.abc import AsyncIterable, Callable, Iterator, Sequence
from pathlib import Path
from threading import Event
from typing import Any

import click

from feeds import run as runner
from feeds.chain import Heights, leading
from feeds.run import Job, known_tip, options, refuse_overwrite
from handlers.events import BlockApplied, ChainName, Inbound, Point, Welcome


def _network_options(command: Callable[..., Any]) -> Callable[..., Any]:
    """Add the options that select the network."""
    for option in (
        click.option(
            "--byron-epochs",
            type=click.IntRange(min=0),
            help="Length of the Byron era, for a network that its genesis files define.",
        ),
        click.option(
            "--genesis",
            "genesis_files",
            multiple=True,
            type=click.Path(exists=True, dir_okay=False, path_type=Path),
            help="Byron or Shelley genesis file, for the outputs before the first block; may be given twice.",
        ),
        click.option(
            "--network",
            help="Network, which determines epochs and slot times: mainnet, preprod, preview, or another one that "
            "--genesis defines; by default the daemon's network.",
        ),
    ):
        command = option(command)
    return command


@click.command("cardano-chunks")
@click.argument("source", type=click.Path(exists=True, path_type=Path))
@_network_options
@click.option("--follow", is_flag=True, help="Wait for new chunks at the end.")
@click.option("--poll", default=1.0, show_default=True, type=click.FloatRange(min=0.01), help="Seconds between checks.")
@options
@click.pass_obj
def from_cardano_chunks(
    socket: Path,
    /,
    source: Path,
    network: str | None,
    genesis_files: tuple[Path, ...],
    byron_epochs: int | None,
    follow: bool,
    poll: float,
    **shared: Any,
) -> None:
    """Send the chain of SOURCE, a node's database: its folder, the immutable folder in it, or one chunk file."""
    from feeds.cardano.chunks import check_magic, last_block, read_chain
    from feeds.cardano.genesis import choose_network

    job = Job(socket, **shared)
    refuse_overwrite(job, source)
    with runner.one_line_errors():
        network = runner.network_of(job, "cardano", network)
        chosen = choose_network(network, genesis_files, byron_epochs)
        check_magic(source, chosen.network)
        last = last_block(source, chosen.network)
    genesis = chosen.outputs if genesis_files else None
    over = Event()

    def wait() -> bool:
        return not over.wait(poll)

    def blocks(points: Sequence[Point]) -> Iterator[BlockApplied]:
        born = genesis.outputs if genesis else ()
        return read_chain(
            source, chosen.network, after=points, to_height=job.to, genesis=born, wait=wait if follow else None
        )

    reader = Heights(blocks)

    def messages(welcome: Welcome) -> AsyncIterable[Inbound]:
        return leading(welcome, reader.read, genesis, over=over if follow else None)

    height = None if last is None else last.height
    total = height if job.to is None or height is None else min(job.to, height)
    chain = ChainName("cardano", network)
    runner.run(known_tip(job, height), str(source), messages, lambda: reader.height, total, chain=chain)


@click.command("ogmios")
@click.argument("url")
@_network_options
@options
@click.pass_obj
def from_ogmios(
    socket: Path,
    /,
    url: str,
    network: str | None,
    genesis_files: tuple[Path, ...],
    byron_epochs: int | None,
    **shared: Any,
) -> None:
    """Follow the chain of the Ogmios server at URL (ws://… or wss://…): blocks and rollbacks, as they happen.

    Finds the newest block that daemon and server have in common, also after a lost connection. --wait applies to both.
    """
    from feeds.cardano.genesis import choose_network
    from feeds.cardano.ogmios import OgmiosChain
    from feeds.cardano.ogmios_session import shown

    job = Job(socket, **shared)
    with runner.one_line_errors():
        network = runner.network_of(job, "cardano", network)
        chosen = choose_network(network, genesis_files, byron_epochs)
    chain = OgmiosChain(
        url,
        chosen.network,
        genesis=chosen.outputs if genesis_files else None,
        to_height=job.to,
        patience_s=job.wait or float("inf"),
        known_tip=job.network_tip,
    )
    total = (lambda: chain.tip_height) if job.to is None else job.to
    name = ChainName("cardano", network)
    runner.run(job, shown(url), chain.messages, lambda: chain.height, total, chain.notify, chain=name)
