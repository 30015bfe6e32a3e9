"""Snapshots of the store for answers to wallets: one for each, or one for all answers of a turn of the event loop."""

from __future__ import annotations

from contextlib import AbstractContextManager

from daemon.wallets.errors import BAD_REQUEST, RpcFault
from handlers.boundary import NoIndex, Torn
from handlers.query import Query, Snapshot
from storage.errors import SnapshotExpired

_FAILURES = NoIndex, Torn, SnapshotExpired


class Snapshots:
    """Snapshots, whose failures reach the client as errors of the protocol."""

    def __init__(self, query: Query) -> None:
        self._query, self._shared, self._in_turn = query, _Shared(query), False
        self._turn = _Turn(self)

    def one(self) -> AbstractContextManager[Snapshot]:
        """Read one block boundary: inside of a `turn` the same one each time."""
        return self._shared if self._in_turn else _Guarded(self._query)

    def turn(self) -> AbstractContextManager[None]:
        """Share one snapshot, which is opened for the first answer that needs it. Nothing may be awaited meanwhile."""
        return self._turn

    def begin(self) -> None:
        """Begin a turn."""
        self._in_turn = True

    def end(self) -> None:
        """End a turn."""
        self._in_turn = False
        self._shared.close()


class _Turn(AbstractContextManager[None]):
    """A turn; an object of its own for each would take longer."""

    def __init__(self, snapshots: Snapshots) -> None:
        self._snapshots = snapshots

    def __enter__(self) -> None:
        self._snapshots.begin()

    def __exit__(self, *_: object) -> None:
        self._snapshots.end()


class _Guarded(AbstractContextManager[Snapshot]):
    """A snapshot for one answer."""

    def __init__(self, query: Query) -> None:
        self._manager = query.snapshot()

    def __enter__(self) -> Snapshot:
        return self._manager.__enter__()

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: object) -> bool | None:
        try:
            handled = self._manager.__exit__(kind, error, trace)  # type: ignore[arg-type]
        except _FAILURES as failure:
            raise _fault(failure) from failure
        if isinstance(error, _FAILURES):
            raise _fault(error) from error
        return handled


class _Shared(AbstractContextManager[Snapshot]):
    """A snapshot for several answers: it stays open until `close`, or until the store fails."""

    def __init__(self, query: Query) -> None:
        self._query = query
        self._open: tuple[_Guarded, Snapshot] | None = None

    def __enter__(self) -> Snapshot:
        if self._open is None:
            guarded = _Guarded(self._query)
            self._open = guarded, guarded.__enter__()
        return self._open[1]

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: object) -> bool | None:
        if self._open is None or kind is None or isinstance(error, RpcFault):
            return None
        (guarded, _), self._open = self._open, None
        return guarded.__exit__(kind, error, trace)

    def close(self) -> None:
        """Close the snapshot."""
        if self._open is not None:
            (guarded, _), self._open = self._open, None
            guarded.__exit__(None, None, None)


def _fault(failure: BaseException) -> RpcFault:
    if isinstance(failure, NoIndex):
        return RpcFault(BAD_REQUEST, f"the index {failure} is not enabled: set utxo.index.{failure}")
    return RpcFault(BAD_REQUEST, "the store changed while the answer was read: try again")
