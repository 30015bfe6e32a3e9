"""Random tests tell the same stories in every run: what fails here fails there."""

import signal

from hypothesis import HealthCheck, settings
from recovering import anyio_backend, lab, own_database, pg_lab, postgres_uri, sqlite_lab

__all__ = [  # fixtures, for every folder of tests
    "anyio_backend",
    "lab",
    "own_database",
    "pg_lab",
    "postgres_uri",
    "sqlite_lab",
]

# A shell starts what runs in its background with these ignored, and processes that tests start would inherit that.
for number in (signal.SIGHUP, signal.SIGQUIT):
    signal.signal(number, signal.SIG_DFL)
signal.signal(signal.SIGINT, signal.default_int_handler)

settings.register_profile(
    "repeatable", derandomize=True, deadline=None, database=None, suppress_health_check=[HealthCheck.too_slow]
)
settings.load_profile("repeatable")
