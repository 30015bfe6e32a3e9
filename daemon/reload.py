"""Reloading of the configuration: the settings that take effect at once, and those that need a restart."""

from __future__ import annotations

import os
from collections.abc import Callable
from operator import attrgetter
from pathlib import Path
from typing import NamedTuple

import structlog
from anyio import Lock, to_thread
from msgspec.structs import replace

from config.load import ConfigError, load
from config.settings import Config
from config.tree import SETTINGS
from daemon.logs import configure

log = structlog.get_logger("process")

RELOADED = ("log.format", "log.level", "socket.admin_uids", "batch.max_delay_ms", "http.token")


class Difference(NamedTuple):
    """The difference between two configurations: `config` has the new values that can change, by dotted name."""

    config: Config
    changed: list[str]
    needs_restart: list[str]


def difference(old: Config, new: Config) -> Difference:
    """Return what changes when `new` is read while `old` is in force."""
    differ = [name for name in SETTINGS if attrgetter(name)(old) != attrgetter(name)(new)]
    config, changed = old, [name for name in differ if name in RELOADED]
    for name in changed:
        table, key = name.split(".")
        config = replace(config, **{table: replace(getattr(config, table), **{key: attrgetter(name)(new)})})
    return Difference(config, changed, [name for name in differ if name not in RELOADED])


class Reloader:
    """Reads the configuration again when called; `apply` puts values in force, and receives the names that changed."""

    def __init__(self, config: Config, path: Path | None, apply: Callable[[Config, list[str]], None]) -> None:
        self._config = config
        self._path = path
        self._apply = apply
        self._one_at_a_time = Lock()

    async def __call__(self) -> None:
        """Reload; a configuration that is wrong changes nothing."""
        async with self._one_at_a_time:
            try:
                new = await to_thread.run_sync(load, self._path, os.environ, abandon_on_cancel=True)
            except ConfigError as error:
                log.error("config_reload_failed", error=str(error))
                return
            self._config, changed, needs_restart = difference(self._config, new)
            configure(self._config.log)
            self._apply(self._config, changed)
            log.info("config_reloaded", changed=changed, needs_restart=needs_restart)
