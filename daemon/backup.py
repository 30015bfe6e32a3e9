"""Backups of the configured store: the parts that belong to it, and those that this process cannot copy."""

from __future__ import annotations

import io
import os
import signal
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from datetime import UTC, datetime
from pathlib import Path
from types import FrameType
from typing import BinaryIO, cast

from config.settings import Config
from daemon import VERSION
from daemon.store import open_disk, open_store
from storage.backup import Tar, Target, Writer, new_folder, write_backup
from storage.blobs import Files, open_blobs
from storage.disk import Disk, Txn
from storage.errors import StoreError
from storage.history.shard import chain_of
from storage.history.store import HistoryStore
from storage.manifest import VERSION as MANIFEST_VERSION
from storage.manifest import Manifest, Tip

_POSTGRESQL = "the recovery tables are in PostgreSQL (recovery.dsn): copy them with pg_dump, before the store"
_S3 = "blobs are in {}: keep deleted objects there for as long as backups are to be restored (versioning)"


class Stalled(StoreError):
    """The backup is not read any more."""

    def __init__(self, after_s: float) -> None:
        super().__init__(
            f"standard output: it was not read for {after_s:g} s (store.max_reader_age): the backup was ended, "
            "because the store grows while it is copied"
        )


class Output(io.RawIOBase):
    """Standard output that takes everything, or fails when none of it was read for a while."""

    def __init__(self, descriptor: int, patience_s: float) -> None:
        self._descriptor, self._patience_s = descriptor, patience_s

    def writable(self) -> bool:
        """Return True."""
        return True

    def write(self, data: object) -> int:
        """Write all of it.

        Raises:
            Stalled: the output is not read.
        """
        left = memoryview(data)  # type: ignore[arg-type]  # what io calls a ReadableBuffer
        size = left.nbytes
        while left:
            with self._limited():
                left = left[os.write(self._descriptor, left) :]
        return size

    @contextmanager
    def _limited(self) -> Iterator[None]:
        def give_up(_: int, __: FrameType | None) -> None:
            raise Stalled(self._patience_s)

        before = signal.signal(signal.SIGALRM, give_up)
        signal.setitimer(signal.ITIMER_REAL, self._patience_s)
        try:
            yield
        finally:
            signal.setitimer(signal.ITIMER_REAL, 0)
            signal.signal(signal.SIGALRM, before)


def backup(config: Config, target: Path | int, max_growth: int, advance: Callable[[int], object]) -> Manifest:
    """Write a backup into a new folder, or to a descriptor as a tar archive; return its manifest.

    Raises:
        StoreError: it can't be written, or the store has grown by more than `max_growth` bytes meanwhile.
    """
    with open_disk(config, readonly=True) as disk:
        store, began = open_store(disk, config), disk.used()

        def progress(count: int) -> None:
            advance(count)
            if max_growth and disk.used() - began > max_growth:
                raise StoreError(
                    f"the store has grown by more than {max_growth:,} bytes while it was copied, because freed pages "
                    "are kept for the copy: write to something faster, back up when blocks come slowly, or raise "
                    "--max-growth"
                )

        if isinstance(target, Path):
            with new_folder(target) as folder:
                return _write(config, disk, store, folder, progress, folder.folder)
        with Tar(cast(BinaryIO, Output(target, config.store.max_reader_age))) as archive:
            return _write(config, disk, store, archive, progress, None)


def _write(
    config: Config,
    disk: Disk,
    store: HistoryStore,
    target: Target,
    progress: Callable[[int], None],
    scratch: Path | None,
) -> Manifest:
    blobs, missing = _blobs(config), list[str]()
    if config.transactions.enabled and blobs is None:
        missing.append(_S3.format(config.transactions.blob_store))
    sqlite = config.recovery.store == "sqlite"
    if not sqlite:
        missing.append(_POSTGRESQL)

    def about(txn: Txn) -> Manifest:
        state = store.state(txn)
        block = store.block_at(txn, state.tip) if state.tip else None
        return Manifest(
            utxod_backup=MANIFEST_VERSION,
            version=VERSION,
            created_at=datetime.now(UTC).isoformat(timespec="seconds"),
            format=store.format(txn),
            chain=chain_of(store.chain(txn), store.shard),
            kind=store.kind,
            indexes=store.kept_indexes(txn),
            tip=None if block is None else Tip(block.height, block.slot, block.hash.hex()),
            unspent=state.unspent,
            blob_store=config.transactions.blob_store,
            recovery_store=config.recovery.store,
            not_included=missing,
            files=[],
        )

    return write_backup(
        disk, config.data_dir / "recovery.db" if sqlite else None, blobs, Writer(target, progress), about, scratch
    )


def _blobs(config: Config) -> Files | None:
    """Return the blobs that are files."""
    if not config.transactions.enabled:
        return None
    blobs = open_blobs(config.transactions.blob_store, config.data_dir, make=False)
    return blobs if isinstance(blobs, Files) else None
