"""Random tests tell the same stories in every run: what fails here fails there."""

from hypothesis import HealthCheck, settings
from recovering import anyio_backend, lab, pg_lab, postgres_uri, sqlite_lab

__all__ = ["anyio_backend", "lab", "pg_lab", "postgres_uri", "sqlite_lab"]  # fixtures, for every folder of tests

settings.register_profile(
    "repeatable", derandomize=True, deadline=None, database=None, suppress_health_check=[HealthCheck.too_slow]
)
settings.load_profile("repeatable")
