"""The process that feeds the daemon from the stream of `cluster.stream`."""

from __future__ import annotations

import os
from functools import partial

import anyio
import structlog

from config.settings import Config, socket_path
from daemon.signals import receiver, wait_for_stop
from feeds.stream.connection import shown
from feeds.stream.log import Log, opened
from feeds.stream.replica import replicate
from feeds.stream.shards import ShardLog
from formats.shards import Shard
from handlers.events import ChainName

log = structlog.get_logger("replica")


def serve(config: Config) -> None:
    """Feed the daemon until a signal stops the process.

    Raises:
        FeedError: the daemon cannot continue from this stream.
    """
    anyio.run(_serve, config, backend_options={"use_uvloop": True})


async def _serve(config: Config) -> None:
    with receiver() as signals:
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(_follow, config)
            number = await wait_for_stop(signals, lambda: None, lambda: None)
            log.info("stopping", signal=number.name)
            tasks.cancel_scope.cancel()


async def _follow(config: Config) -> None:
    url = config.cluster.stream
    assert url is not None
    shard = None if config.cluster.shard is None else Shard.parse(config.cluster.shard)
    notice = partial(_notice, shown(url))
    chain = ChainName(config.chain.family, config.chain.network)
    make = Log if shard is None else partial(ShardLog, shard=shard)
    async with opened(url, chain, notice, make) as stream:
        log.info("following_stream", stream=shown(url), name=stream.name)
        await replicate(stream, socket_path(config, os.environ), chain, shared(config), notice)


def shared(config: Config) -> dict[str, object]:
    """Return the settings that decide what a message does: they must be equal in all replicas."""
    transactions, utxo = config.transactions, config.utxo
    return {
        "transactions.enabled": transactions.enabled,
        "transactions.batch_size": transactions.batch_size,
        "transactions.block_height_retention": transactions.block_height_retention,
        "transactions.coinbase_maturity": transactions.coinbase_maturity,
        "transactions.reassign_delay": transactions.reassign_delay,
        "transactions.max_pending_bytes": transactions.max_pending_bytes,
        "transactions.max_pending_count": transactions.max_pending_count,
        "utxo.rollback_window": utxo.rollback_window,
        "utxo.prune_depth": utxo.prune_depth,
    }


def _notice(url: str, line: str) -> None:
    log.warning("stream_interrupted", stream=url, reason=line)
