"""Random tests tell the same stories in every run: what fails here fails there."""

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

settings.register_profile(
    "repeatable", derandomize=True, deadline=None, database=None, suppress_health_check=[HealthCheck.too_slow]
)
settings.load_profile("repeatable")
