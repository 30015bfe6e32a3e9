"""A daemon without its process and its socket: the messages and questions of `daemons.Daemon`, carried out here."""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import msgspec
import pytest
from chains import LEAVES
from daemons import Encoding, Message, as_hex, encoded, write_config
from messages import Listener, ListInbox, follow
from scenarios import digest
from stores import ALL_TABLES, OnDisk
from structlog.testing import capture_logs

from config.load import load
from config.settings import Config
from daemon.store import folder, open_chain
from handlers.audit import Audited, audit
from handlers.delivery import Delivery
from handlers.events import Ack, Error
from handlers.wire import LENGTH, encode, plain
from storage.disk import Disk
from storage.history.verify import verify
from storage.pool_layout import Record


class LocalClient:
    """One that sends messages in an encoding; all messages of one call are there at the same time."""

    def __init__(self, daemon: LocalDaemon, encoding: Encoding) -> None:
        self._daemon, self.encoding = daemon, encoding
        self.network_height: int | None = None

    def __enter__(self) -> LocalClient:
        return self

    def __exit__(self, *_: object) -> None:
        pass

    def ask(self, message: Message) -> Message:
        (answer,) = self.feed([message])
        return answer

    def feed(self, messages: Iterable[Message]) -> list[Message]:
        sender, framed = Listener(self.network_height), self.encoding == "frames"
        numbered = [encoded({"seq": n} | each, self.encoding) for n, each in enumerate(messages, 1)]
        bodies = [each[LENGTH.size :] if framed else each[:-1] for each in numbered]
        self._daemon.carry_out([Delivery(body, self.encoding, sender) for body in bodies])
        return [self._plain(answer) for answer in sender.received]

    def _plain(self, answer: Ack | Error) -> Message:
        raw = encode(answer, self.encoding)
        found: Message = as_hex(msgspec.msgpack.decode(raw[4:])) if self.encoding == "frames" else json.loads(raw)
        return found


class LocalListener:
    """One that hears the facts of one type that follow, as `Subscribe` would send them."""

    def __init__(self, daemon: LocalDaemon, kind: str) -> None:
        self._daemon, self._kind, self._next = daemon, kind, len(daemon.facts)

    def __enter__(self) -> LocalListener:
        return self

    def __exit__(self, *_: object) -> None:
        pass

    def receive(self) -> Message:
        while True:
            assert self._next < len(self._daemon.facts), f"no more {self._kind} was published"
            fact, self._next = self._daemon.facts[self._next], self._next + 1
            if fact["type"] == self._kind:
                return fact


class LocalDaemon:
    """The store of a configuration, opened as a daemon does that starts."""

    def __init__(self, config: Config) -> None:
        self.config = config
        self.facts: list[Message] = []
        self._logs: list[Any] = []
        self._open()

    def _open(self) -> None:
        with capture_logs() as logs:
            self._disk = Disk(folder(self.config), ALL_TABLES, map_size=1 << 26, durable=False)
            self.chain = open_chain(self._disk, self.config)
            assert self.chain.tx_blocks is not None
            self.tx_blocks = self.chain.tx_blocks
            self.tx_blocks.start()
        self._logs += logs

    @property
    def store(self) -> OnDisk:
        return OnDisk(self.tx_blocks.transactions)

    @property
    def persisted(self) -> int | None:
        return self.chain.view.persisted_height

    def close(self) -> None:
        self._disk.close()

    def restart(self) -> None:
        self.close()
        self._open()

    def client(self, encoding: Encoding = "json") -> LocalClient:
        return LocalClient(self, encoding)

    def listener(self, kind: str = "TxStatusChanged") -> LocalListener:
        return LocalListener(self, kind)

    def carry_out(self, deliveries: Sequence[Delivery]) -> None:
        with capture_logs() as logs:
            follow(self.chain, ListInbox(list(deliveries)), pruning=True)
        self._logs += logs
        self.facts += map(plain, self.chain.changes.take())

    def logged(self, event: str) -> list[Message]:
        return [line for line in self._logs if line["event"] == event]

    def record(self, name: object) -> Record | None:
        with self._disk.read() as txn:
            return self.store.record(txn, digest("tx", name))

    def blobs(self) -> dict[str, bytes]:
        found = (self.config.data_dir / "blobs").rglob("*.tx")
        return {path.stem: path.read_bytes() for path in found}

    def assert_sound(self) -> None:
        assert verify(self._disk, quick=True, leaves=LEAVES) == []
        assert audit(self.tx_blocks.transactions) == Audited([], [])


@contextmanager
def local_daemon(folder: Path, **tables: Any) -> Iterator[LocalDaemon]:
    daemon = LocalDaemon(load(write_config(folder, tables), {}))
    try:
        yield daemon
        daemon.assert_sound()
    finally:
        daemon.close()


@pytest.fixture
def local(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[LocalDaemon]:
    """Yield a daemon; the mark `configured` has the tables of its configuration."""
    tables = request.node.get_closest_marker("configured")
    with local_daemon(tmp_path, **(tables.kwargs if tables else {})) as daemon:
        yield daemon


@pytest.fixture
def client(local: LocalDaemon) -> LocalClient:
    return local.client()


@pytest.fixture
def listener(local: LocalDaemon) -> LocalListener:
    return local.listener()
