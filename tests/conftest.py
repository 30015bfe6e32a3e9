"""Fixtures that many files share, and the order of the files. Random tests repeat the same cases in every run."""

import os
import signal
from collections import Counter
from collections.abc import Iterator
from pathlib import Path

import pytest
from daemons import Client, Daemon, Encoding, running
from hypothesis import HealthCheck, Phase, settings
from questions import Api, running_api, short_folder
from recovering import (
    anyio_backend,
    lab,
    on_postgres,
    on_sqlite,
    own_database,
    pg_lab,
    postgres_uri,
    sqlite_lab,
    storage,
)

__all__ = [  # fixtures, for every folder of tests
    "anyio_backend",
    "lab",
    "on_postgres",
    "on_sqlite",
    "own_database",
    "pg_lab",
    "postgres_uri",
    "sqlite_lab",
    "storage",
]

# A shell starts what runs in its background with these ignored, and processes that tests start would inherit that.
for number in (signal.SIGHUP, signal.SIGQUIT):
    signal.signal(number, signal.SIG_DFL)
signal.signal(signal.SIGINT, signal.default_int_handler)

settings.register_profile(
    "repeatable", derandomize=True, deadline=None, database=None, suppress_health_check=[HealthCheck.too_slow]
)
settings.register_profile(  # for mutations: that a test fails is enough
    "unshrunk", settings.get_profile("repeatable"), phases=set(Phase) - {Phase.shrink, Phase.explain}
)
settings.load_profile("repeatable")


@pytest.fixture(params=["json", "frames"])
def encoding(request: pytest.FixtureRequest) -> Encoding:
    chosen: Encoding = request.param
    return chosen


@pytest.fixture
def folder() -> Iterator[Path]:
    with short_folder() as name:
        yield name


@pytest.fixture
def daemon(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Daemon]:
    """Yield a daemon; the mark `configured` has the tables of its configuration, `sound` lets `utxod verify` end it."""
    tables = request.node.get_closest_marker("configured")
    with running(tmp_path, **(tables.kwargs if tables else {})) as daemon:
        yield daemon
        if request.node.get_closest_marker("sound"):
            daemon.assert_sound()


@pytest.fixture
def api(request: pytest.FixtureRequest, folder: Path) -> Iterator[Api]:
    """Yield a daemon with an HTTP worker; the mark `configured` has the tables of its configuration."""
    tables = request.node.get_closest_marker("configured")
    with running_api(folder, **(tables.kwargs if tables else {})) as api:
        yield api


@pytest.fixture
def client(daemon: Daemon, encoding: Encoding) -> Iterator[Client]:
    with daemon.client(encoding) as client:
        yield client


# Files that take long with few tests. They come first, because a worker that gets one at the end works alone.
LONG = (
    *("attack/", "test_bench", "test_inconsistent_chains", "test_kill", "test_pages", "test_pruner_kill"),
    *("test_recovery_faults", "test_recovery_daemon", "test_recovery_model", "test_run_script", "test_short_reads"),
    *("test_mmr_model", "test_model", "test_transactions_model", "test_leaving", "test_waiting"),
    *("feeds/test_runs_through_store", "test_packaging", "test_systemd", "test_docs"),
)


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Sort the files: long ones first, then those with most tests, as `--loadscope-reorder` would sort all of them."""
    here = Path(__file__).parent
    if removed := [name for name in LONG if not any(here.glob(f"{name}*.py"))]:
        raise pytest.UsageError(f"LONG in tests/conftest.py names no file: {', '.join(removed)}")
    counts = Counter(item.path for item in items)
    names = {path: path.relative_to(here).as_posix() for path in counts}
    items.sort(key=lambda item: (not names[item.path].startswith(LONG), -counts[item.path], names[item.path]))


# What a container may not allow: nothing that CI could install.
MAY_BE_SKIPPED = ("no IPv6", "nothing can be mounted", "no machine can be started", "a machine needs")


def pytest_sessionfinish(session: pytest.Session) -> None:
    """Fail a run in CI that skipped a test."""
    reporter = session.config.pluginmanager.get_plugin("terminalreporter")
    if reporter is None or os.environ.get("UTXOD_REQUIRE_CHAIN_DATA") != "1":
        return
    reasons = {report.longrepr[2].removeprefix("Skipped: ") for report in reporter.stats.get("skipped", ())}
    if wrong := sorted(reason for reason in reasons if not reason.startswith(MAY_BE_SKIPPED)):
        reporter.write_line(f"skipped in CI: {'; '.join(wrong)}", red=True)
        session.exitstatus = pytest.ExitCode.TESTS_FAILED
