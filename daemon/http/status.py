"""`/api/v1/status`: the state of the chain and of the store."""

from __future__ import annotations

from collections.abc import Callable

import msgspec
from msgspec.structs import replace
from starlette.requests import Request
from starlette.responses import Response

from daemon import PROTOCOL, VERSION
from daemon.http.daemon_link import DaemonLink
from daemon.http.reply import answer
from handlers.answers import (
    ChainStatus,
    Status,
    StorageStatus,
    UtxoStatus,
    change_log_status,
    stream_status,
    table_rows,
    to_tip,
)
from handlers.proofs import mmr_root
from handlers.query import Query, Snapshot
from handlers.script_history import history_status
from storage.change_log import LogStore
from storage.log_place import read_log_place
from storage.windows import Windows

_encode = msgspec.json.Encoder().encode


class StatusRoute:
    """Answers from the store and the daemon's reports."""

    def __init__(
        self, query: Query, windows: Windows, daemon_link: DaemonLink, lag: Callable[[Snapshot], int | None]
    ) -> None:
        self.query, self.windows, self.daemon_link, self.lag = query, windows, daemon_link, lag

    async def status(self, request: Request) -> Response:
        """The whole status of the daemon."""
        with self.query.snapshot() as shot:
            status, tip = self._status(shot), shot.tip()
        clock = status.chain.seconds_since_last_block  # grows all the time; a client can count it itself
        timeless = replace(status, chain=replace(status.chain, seconds_since_last_block=clock and 0.0))
        return answer(request, tip, _encode(status), timeless=_encode(timeless))

    def _status(self, shot: Snapshot) -> Status:
        state, store, tip = shot.state, shot.store, shot.tip()
        family, _, network = store.chain(shot.txn).partition("/")
        floor = shot.point(self.windows.floor(state))
        return Status(
            version=VERSION,
            protocol=PROTOCOL,
            tip=None if tip is None else to_tip(tip),
            chain=ChainStatus(
                family=family,
                network=network,
                shard=store.shard,
                network_tip_height=self.daemon_link.network_height,
                lag_blocks=self.lag(shot),
                persisted_height=state.persisted,
                seconds_since_last_block=self.daemon_link.seconds_since_last_block(),
            ),
            utxo=UtxoStatus(
                enabled=True,
                store=store.kind,
                blocks_applied=state.tip,
                unspent=state.unspent,
                rollback_floor=None if floor is None else to_tip(floor),
                prune_depth=self.windows.prune_depth,
                rollback_window=self.windows.rollback_window,
                prune_backlog_blocks=self.windows.backlog(state),
                indexes=shot.boundary.indexes,
                rows=table_rows(store.disk, shot.txn),
                mmr=mmr_root(shot),
                history=history_status(shot),
            ),
            storage=StorageStatus(bytes_used=store.disk.used(), map_size=store.disk.map_size()),
            change_log=change_log_status(LogStore(store.disk), shot.txn),
            stream=stream_status(read_log_place(shot.txn, store.meta), self.daemon_link.stream_end),
        )
