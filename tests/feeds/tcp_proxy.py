"""A TCP proxy whose connections can be cut, or stop to carry anything."""

from __future__ import annotations

import socket
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from threading import Event, Thread


class Proxy:
    """Stands in front of a server on another port of this machine."""

    def __init__(self, target: int) -> None:
        self._target = target
        self._open = Event()
        self._open.set()
        self._refuses = False
        self._ends = list[socket.socket]()
        self._listener = socket.create_server(("127.0.0.1", 0))
        self.url = f"nats://127.0.0.1:{self._listener.getsockname()[1]}"
        self._threads = list[Thread]()
        self._start(self._accept)

    def cut(self) -> None:
        """Close all connections, and each new one at once."""
        self._refuses = True
        for end in self._ends:
            with suppress(OSError):
                end.shutdown(socket.SHUT_RDWR)

    def hold(self) -> None:
        """Accept connections, and carry nothing."""
        self._open.clear()

    def mend(self) -> None:
        """Carry everything again, also what was held."""
        self._refuses = False
        self._open.set()

    def close(self) -> None:
        """End all threads, and close all sockets."""
        self.mend()
        self.cut()
        self._listener.shutdown(socket.SHUT_RDWR)
        for thread in self._threads:
            thread.join()
        for end in (*self._ends, self._listener):
            end.close()

    def _start(self, work: Callable[..., None], *arguments: object) -> None:
        thread = Thread(target=work, args=arguments)
        self._threads.append(thread)
        thread.start()

    def _accept(self) -> None:
        with suppress(OSError):
            while True:
                near, _ = self._listener.accept()
                try:
                    if self._refuses:
                        raise ConnectionRefusedError
                    far = socket.create_connection(("127.0.0.1", self._target))
                except OSError:
                    near.close()
                    continue
                self._ends += [near, far]
                for source, sink in ((near, far), (far, near)):
                    self._start(self._carry, source, sink)

    def _carry(self, source: socket.socket, sink: socket.socket) -> None:
        with suppress(OSError):
            while data := source.recv(1 << 16):
                self._open.wait()
                sink.sendall(data)
        for end in (source, sink):
            with suppress(OSError):
                end.shutdown(socket.SHUT_RDWR)


@contextmanager
def proxies(targets: list[int]) -> Iterator[list[Proxy]]:
    """Yield a proxy for each port."""
    made = [Proxy(target) for target in targets]
    try:
        yield made
    finally:
        for proxy in made:
            proxy.close()
