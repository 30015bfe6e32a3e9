"""`utxod split`: the process that divides the stream of a chain for shards."""

from __future__ import annotations

import gc
from functools import partial

import anyio
import click

from config.settings import Config
from daemon.commands.common import config_option
from daemon.sink import redirect_stderr
from feeds.progress import FeedProgress
from feeds.run import one_line_errors, until_stopped
from formats.shards import MOST
from handlers.events import ChainName


@click.command()
@config_option
@click.argument("url")
@click.option("--shards", required=True, type=click.IntRange(1, MOST), help="Number of shards.")
@click.option(
    "--after",
    type=click.IntRange(min=0),
    metavar="HEIGHT",
    help="Let streams that are created begin after this height, for shards that start from backups.",
)
@click.option("--to", type=click.IntRange(min=0), metavar="HEIGHT", help="Stop after this height.")
@click.option(
    "--stream-replicas",
    default=1,
    show_default=True,
    type=click.IntRange(1, 5),
    help="Number of servers that store each stream, if it is created.",
)
@click.option(
    "--window",
    default=64,
    show_default=True,
    type=click.IntRange(min=1),
    help="Maximum size of messages that are not stored yet, in MiB.",
)
@click.option("--wait", default=60.0, show_default=True, help="Seconds to wait for a server; 0 means no limit.")
@click.pass_context
def split(
    context: click.Context,
    url: str,
    shards: int,
    after: int | None,
    to: int | None,
    stream_replicas: int,
    window: int,
    wait: float,
) -> None:
    """Divide the stream of the configured chain on the NATS servers at URL[,URL] for shards.

    Reads the stream that feeds with --stream publish, and publishes each event once to the stream of each shard, with
    only the data that this shard needs. Daemons with cluster.shard follow these streams. May be killed at any time: it
    continues after the last event in each stream. A second process with the same number of shards stands by.
    """
    redirect_stderr(lambda lines, _: f"{lines} lines are missing here: they could not be written to standard error")
    config: Config = context.obj.config
    chain = ChainName(config.chain.family, config.chain.network)
    gc.set_threshold(100_000, 50, 100)  # blocks are trees without cycles
    progress = FeedProgress("split", lambda: 0.0, None)
    with one_line_errors(), progress:
        from feeds.stream.splitter import split as divide

        work = partial(
            divide,
            url,
            chain,
            shards,
            replicas=stream_replicas,
            after_height=after,
            to_height=to,
            window_bytes=window << 20,
            patience_s=wait or float("inf"),
            notice=progress.show,
            acknowledged=progress.count,
        )
        try:
            anyio.run(until_stopped, progress, work, backend_options={"use_uvloop": True})
        except KeyboardInterrupt:
            raise click.Abort from None
