"""The command line of the feeds: `utxod feed …`."""

from __future__ import annotations

from collections.abc import AsyncIterable, Callable
from pathlib import Path
from typing import Any

import click

from feeds import run as runner
from feeds.bitcoin.commands import from_bitcoin_blocks, from_bitcoin_rpc
from feeds.cardano.commands import from_cardano_chunks, from_ogmios
from feeds.encoded import Encoded
from feeds.files import MessageFile, following
from feeds.run import Job, options, refuse_overwrite
from feeds.shard_name import ShardName
from formats.shards import Shard
from handlers.events import ChainName, Hello, Welcome


@click.group()
def feed() -> None:
    """Read a chain from a node or files, and send its blocks to the daemon."""


@feed.command("file")
@click.argument("source", type=click.Path(exists=True, dir_okay=False, allow_dash=True))
@click.option(
    "--chain", metavar="FAMILY/NETWORK", help="Chain of these events. The feed stops if the daemon has another chain."
)
@options
@click.pass_obj
def from_file(socket: Path, /, source: str, chain: str | None, **shared: Any) -> None:
    """Send the events of SOURCE: JSON Lines or frames, `-` for standard input.

    Requests the daemon's tip first and skips blocks that the daemon has. Reconnects and resumes automatically.
    """
    file = MessageFile(None if source == "-" else Path(source))
    job = Job(socket, **shared)
    if file.path is not None:
        refuse_overwrite(job, file.path)
    runner.run(
        job,
        file.name,
        lambda welcome: following(file, welcome, job.to),
        lambda: file.offset,
        file.size,
        chain=None if chain is None else _chain_name(chain),
    )


@feed.command("stream")
@click.argument("url")
@click.option("--shard", type=ShardName(), help="Follow the stream of this shard, such as 3/8.")
@options
@click.pass_obj
def from_stream(socket: Path, /, url: str, shard: Shard | None, **shared: Any) -> None:
    """Follow the stream of the daemon's chain on the NATS servers at URL[,URL], without end or up to a height.

    Feeds with --stream publish to it. After any interruption the daemon continues after the last event that it applied.
    """
    with runner.one_line_errors():
        from feeds.stream.source import following as events

    job, notices = Job(socket, **shared), list[Callable[[str], None]]()

    def notice(line: str) -> None:
        for show in notices:
            show(line)

    def messages(welcome: Welcome) -> AsyncIterable[Hello | Encoded]:
        return events(url, welcome, job.to, notice, shard)

    runner.run(job, url, messages, lambda: 0.0, None, notices.append)


def _chain_name(text: str) -> ChainName:
    family, slash, network = text.partition("/")
    if not (family and slash and network):
        raise click.BadParameter(f"{text!r}: expected FAMILY/NETWORK, such as cardano/mainnet", param_hint="--chain")
    return ChainName(family, network)


for command in (from_bitcoin_blocks, from_bitcoin_rpc, from_cardano_chunks, from_ogmios):
    feed.add_command(command)
