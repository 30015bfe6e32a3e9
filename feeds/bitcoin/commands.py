"""The command lines of the feeds that read a Bitcoin node's files or follow a node."""

from __future__ import annotations

import math
from pathlib import Path
from typing import Any

import click
from msgspec.structs import replace

from feeds import run as runner
from feeds.bitcoin.access import Address, Login, read_url
from feeds.bitcoin.networks import NETWORKS
from feeds.chain import Heights, leading
from feeds.run import Job, known_tip, options, refuse_overwrite
from handlers.events import ChainName

_AROUND_BYTES = 32 << 20  # what an answer may have besides a block: a large mempool is one of millions of bytes


@click.command("bitcoin-blocks")
@click.argument("source", type=click.Path(exists=True, path_type=Path))
@click.option(
    "--network",
    type=click.Choice(list(NETWORKS)),
    help="Network, which determines magic, genesis and limits; by default the daemon's network.",
)
@click.option("--skip-orphans", is_flag=True, help="Stop before a block whose parent is missing, instead of failing.")
@click.option("--keep-unspendable", is_flag=True, help="Keep unspendable outputs, and the first coinbase.")
@options
@click.pass_obj
def from_bitcoin_blocks(
    socket: Path, /, source: Path, network: str | None, skip_orphans: bool, keep_unspendable: bool, **shared: Any
) -> None:
    """Send the best chain of SOURCE: a folder of blk*.dat (with xor.dat), or raw blocks as hex, one a line."""
    from feeds.bitcoin.source import Chain, Options

    job = Job(socket, **shared)
    refuse_overwrite(job, source)
    choice = Options(skip_orphans=skip_orphans, mark_unspendable=not keep_unspendable)
    with runner.one_line_errors():
        network = runner.network_of(job, "bitcoin", network, NETWORKS)
    with runner.one_line_errors(), Chain(source, NETWORKS[network], choice) as chain:
        for note in chain.notes:
            click.echo(note, err=True)
        last = chain.tip.height if job.to is None else min(job.to, chain.tip.height)
        reader = Heights(lambda points: chain.blocks(points, job.to))
        runner.run(
            known_tip(job, chain.tip.height),
            str(source),
            lambda welcome: leading(welcome, reader.read),
            lambda: reader.height,
            last,
            chain=ChainName("bitcoin", network),
        )


@click.command("bitcoin-rpc")
@click.argument("url")
@click.option(
    "--network", type=click.Choice(list(NETWORKS)), help="Network of the node; by default the daemon's network."
)
@click.option("--poll", default=1.0, show_default=True, type=click.FloatRange(min=0.01), help="Seconds between polls.")
@click.option(
    "--requests",
    default=8,
    show_default=True,
    type=click.IntRange(1, 64),
    help="Number of blocks that are requested concurrently.",
)
@click.option("--cookie", type=click.Path(path_type=Path), help="The node's cookie file; read again when it changes.")
@click.option("--user", help="User, if it is not in the URL.")
@click.option("--password-file", type=click.Path(path_type=Path), help="File with the password, in its first line.")
@click.option("--mempool", is_flag=True, help="Submit the transactions in the node's mempool.")
@click.option(
    "--persisted-depth",
    type=click.IntRange(min=0),
    metavar="N",
    help="Report blocks that are N below the tip as persisted, because the node stores them.",
)
@click.option("--keep-unspendable", is_flag=True, help="Keep unspendable outputs, and the first coinbase.")
@options
@click.pass_obj
def from_bitcoin_rpc(
    socket: Path,
    /,
    url: str,
    network: str | None,
    poll: float,
    requests: int,
    cookie: Path | None,
    user: str | None,
    password_file: Path | None,
    mempool: bool,
    persisted_depth: int | None,
    keep_unspendable: bool,
    **shared: Any,
) -> None:
    """Follow the node whose RPC is at URL, `http://[user:password@]host[:port]`, without end or up to a height.

    The port is that of the network unless the URL has one. --wait also applies to the node's first answer; later the
    feed waits without limit.
    """
    from feeds.bitcoin.jsonrpc import Node
    from feeds.bitcoin.rpc import Follower, Options

    job = Job(socket, **shared)
    if mempool and job.stream is not None:
        raise click.UsageError("--mempool and --stream exclude each other: submissions are not part of a stream")
    with runner.one_line_errors():
        address, login = _access(url, cookie, user, password_file)
        network = runner.network_of(job, "bitcoin", network, NETWORKS)
    chosen = NETWORKS[network]
    address = replace(address, port=address.port or chosen.rpc_port)
    following = Options(
        network=chosen,
        to=job.to,
        poll_s=poll,
        width=requests,
        mark_unspendable=not keep_unspendable,
        mempool=mempool,
        persisted_depth=persisted_depth,
        known_tip=job.network_tip or 0,
        wait_s=job.wait or math.inf,
    )
    node = Node(address, login, longest=2 * chosen.max_block_bytes + _AROUND_BYTES)
    follower = Follower(node, following)
    total = (lambda: follower.tip) if job.to is None else job.to
    chain = ChainName("bitcoin", network)
    runner.run(
        job,
        node.name,
        follower.messages,
        lambda: follower.height,
        total,
        follower.notify,
        follower.refused,
        chain,
        follower.kept,
    )


def _access(url: str, cookie: Path | None, user: str | None, password_file: Path | None) -> tuple[Address, Login]:
    """Return the address of the node, with port 0 for that of its network, and the credentials; one option only."""
    try:
        address, in_url = read_url(url, 0)
    except ValueError as error:
        raise click.BadParameter(str(error), param_hint="URL") from None
    if (user is None) != (password_file is None):
        raise click.UsageError("--user and --password-file must be given together")
    if sum(way is not None for way in (in_url, cookie, user)) > 1:
        raise click.UsageError("give only one of: user and password in the URL, --cookie, --user with --password-file")
    if password_file is not None:
        lines = password_file.read_text(errors="replace").splitlines()
        in_url = f"{user}:{lines[0] if lines else ''}"
    return address, Login(in_url, cookie)
