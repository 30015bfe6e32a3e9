"""What no single value can get wrong: combinations."""

from __future__ import annotations

from pathlib import Path
from typing import NamedTuple

from config.settings import Config
from config.units import format_size, parse_endpoint

_UNIX_PATH_BYTES = 107  # sun_path of Linux, without the closing zero


class Problem(NamedTuple):
    """Knobs, by dotted name, that do not go together, and what to do about it."""

    names: tuple[str, ...]
    what: str


def problems(config: Config) -> list[Problem]:
    """Return every combination of values that cannot work, each value being right by itself."""
    found: list[Problem] = []
    storage, recovery = config.storage, config.recovery
    if storage.map_size > storage.max_map_size:
        sizes = f"{format_size(storage.map_size)} is more than max_map_size, {format_size(storage.max_map_size)}"
        found.append(Problem(("storage.map_size", "storage.max_map_size"), f"map_size {sizes}"))
    if recovery.enabled and recovery.store == "postgresql" and recovery.dsn is None:
        found.append(Problem(("recovery.store",), 'store = "postgresql" needs dsn, the database'))
    if recovery.dsn is not None and not recovery.dsn.startswith(("postgresql://", "postgres://")):
        found.append(Problem(("recovery.dsn",), "expected postgresql://user@host/database"))
    listen = parse_endpoint(config.http.listen)
    sockets = [("socket.path", config.socket.path), ("http.listen", listen if isinstance(listen, Path) else None)]
    for name, path in sockets:
        if path is not None and len(bytes(path)) > _UNIX_PATH_BYTES:
            found.append(Problem((name,), f"a Unix socket's path has at most {_UNIX_PATH_BYTES} bytes: {path}"))
    if config.http.workers and config.socket.path is not None and listen == config.socket.path:
        found.append(Problem(("http.listen", "socket.path"), f"http.listen and socket.path are both {listen}"))
    return found
