"""The alerts and the dashboard, evaluated by Prometheus itself (`promtool`) on what a daemon of ours exposes."""

from __future__ import annotations

import json
import re
import shutil
import subprocess
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest
from daemons import ROOT
from patience import until
from questions import running_api, short_folder
from scenarios import chain, output, tx
from test_metrics import metrics_of

RULES = (ROOT / "docs" / "alerts.yml").read_text()
ALERTS = re.findall(r"alert: (\w+)", RULES)
LISTED = re.findall(r"^\| `(Utxod\w+)` \|", (ROOT / "docs" / "metrics.md").read_text(), re.MULTILINE)
BOARD = json.loads((ROOT / "docs" / "grafana.json").read_text())
PANELS = [target["expr"] for panel in BOARD["panels"] for target in panel.get("targets", [])]
MINUTES = 120
# What each alert is for, as series of two hours: `1x60 0x60` is an hour of 1, then an hour of 0. All else is healthy.
FIRING: dict[str, dict[str, str]] = {
    "UtxodDown": {"utxod_daemon_running": "1x60 0x60"},
    "UtxodRestarts": {"utxod_daemon_start_time_seconds": "0x70 4200x10 4800x10 5400x10 6000x20"},
    "UtxodNoBlocks": {"utxod_seconds_since_last_block": "0+60x120"},
    "UtxodBehind": {"utxod_lag_blocks": "0+1x120"},
    "UtxodNotReady": {"utxod_ready": "1x60 0x60"},
    "UtxodMissingInputs": {"utxod_missing_inputs_total": "0x115 2x5"},
    "UtxodStoreFull": {'utxod_errors_total{code="store_full"}': "0x117 1x5"},
    "UtxodOldReader": {"utxod_oldest_reader_age_seconds": "0x100 60+60x20"},
    "UtxodDeadTransactions": {'utxod_recovery_transactions{status="dead"}': "0x100 1x20"},
    "UtxodRecoveryAway": {"utxod_recovery_store_errors_total": "0x60 1+1x60"},
    "UtxodLogLinesDropped": {'utxod_log_lines_dropped_total{process="daemon"}': "0x115 5x5"},
    "UtxodSlowCommits": {
        'utxod_commit_seconds_bucket{le="10.0"}': "0+10x120",
        'utxod_commit_seconds_bucket{le="+Inf"}': "0+10x120",
    },
    "UtxodErrors": {'utxod_query_seconds_count{route="/api/v1/status",status="500"}': "0+1x120"},
}
# Series that are not there before something has happened.
APPEARING = {
    'utxod_query_seconds_count{route="/api/v1/status",status="500"}',
    'utxod_query_seconds_bucket{route="/api/v1/status",status="200",le="+Inf"}',
    'utxod_pruner_processed_total{what="transactions"}',
    'utxod_recovery_outcomes_total{outcome="valid"}',
    'utxod_recovery_settled_total{status="confirmed"}',
    'utxod_http_refused_total{reason="head"}',
}


LATER = "utxod_recovery_transactions{", "utxod_recovery_circuit{"  # recovery counts once it has begun


@pytest.fixture(scope="module")
def healthy() -> dict[str, str]:
    """Return every series of a daemon that has applied blocks and answered, with its value for two hours."""
    with short_folder() as folder, running_api(folder) as api, api.daemon.client() as client:
        client.hello(network_tip={"height": 20})
        client.feed([*chain(20), {"type": "TxSubmitted", "tx": tx("a", output("ann"))}])
        assert api.get("/api/v1/status")
        text = until(lambda: metrics_of(api.daemon), lambda text: all(each in text for each in LATER))
    found: dict[str, str] = dict(re.findall(r"^(utxod_\w+(?:\{.*\})?) (\S+)$", text, re.MULTILINE))
    found["utxod_daemon_start_time_seconds"] = "0"  # the evaluation's clock begins there
    return found | {"utxod_seconds_since_last_block": "1"}


def case(healthy: Mapping[str, str], changed: Mapping[str, str], *expected: tuple[str, Mapping[str, int]]) -> Any:
    """Return a test as promtool takes it: series, and expressions with their values by label sets."""
    series = {name: f"{value}x{MINUTES}" for name, value in healthy.items()} | dict(changed) | {"up": f"1x{MINUTES}"}
    return {
        "interval": "1m",
        "input_series": [{"series": of_job(name), "values": values} for name, values in series.items()],
        "promql_expr_test": [
            {
                "expr": expression,
                "eval_time": f"{MINUTES}m",
                "exp_samples": [{"labels": labels, "value": value} for labels, value in samples.items()],
            }
            for expression, samples in expected
        ],
    }


def of_job(series: str) -> str:
    name, _, labels = series.partition("{")
    return f'{name}{{job="utxod",instance="here"' + ("}" if not labels else f",{labels}")


def firing(*names: str) -> tuple[str, Mapping[str, int]]:
    expression = 'count by (alertname) (ALERTS{alertstate="firing"})'
    return expression, {f'{{alertname="{name}"}}': 1 for name in names}


def evaluate(folder: Path, cases: list[Any]) -> None:
    if (promtool := shutil.which("promtool")) is None:
        pytest.skip("promtool evaluates the alerts: apt-get install --no-install-recommends prometheus")
    (folder / "rules.yml").write_text(RULES)
    whole = {"rule_files": ["rules.yml"], "evaluation_interval": "1m", "tests": cases}
    (folder / "tests.yml").write_text(json.dumps(whole))  # YAML reads it
    done = subprocess.run([promtool, "test", "rules", "tests.yml"], cwd=folder, capture_output=True, text=True)
    assert done.returncode == 0, done.stdout + done.stderr


def test_no_alert_fires_while_all_is_well(healthy: dict[str, str], tmp_path: Path) -> None:
    evaluate(tmp_path, [case(healthy, {}, firing())])


def test_each_alert_fires_for_its_condition_only(healthy: dict[str, str], tmp_path: Path) -> None:
    assert list(FIRING) == ALERTS == LISTED
    for name, changed in FIRING.items():
        assert changed.keys() <= healthy.keys() | APPEARING, f"{name}: the daemon exposes no such series"
    evaluate(tmp_path, [case(healthy, changed, firing(name)) for name, changed in FIRING.items()])


def test_each_alert_has_a_summary_and_names_a_section_of_the_manual() -> None:
    sections = re.findall(r"^#+ (.+)$", (ROOT / "docs" / "operate.md").read_text(), re.MULTILINE)
    annotated = re.findall(r"alert: (\w+)\n(?:(?!      - ).+\n)*? +summary: '.+'\n +description: '(.+)'", RULES)
    assert [name for name, _ in annotated] == ALERTS
    for name, description in annotated:
        assert description.split("See docs/operate.md, ")[-1].removesuffix(".") in sections, name


def test_every_panel_of_the_dashboard_shows_something(healthy: dict[str, str], tmp_path: Path) -> None:
    assert len(PANELS) > 20
    values = {"$__rate_interval": "5m", "$job": ".*", "$instance": ".*"}
    shown = [re.sub(r"\$\w+", lambda name: values[name[0]], each) for each in PANELS]
    busy = {
        name: f"0+10x{MINUTES}"
        for name in healthy.keys() | APPEARING
        if re.search(r"_(total|count|sum|bucket)\b", name)
    }
    evaluate(tmp_path, [case(healthy, busy, *((f"count({each}) > bool 0", {"{}": 1}) for each in shown))])
