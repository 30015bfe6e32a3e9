"""Metrics of the pruner and of the recovery service, from what the daemon counts."""

from __future__ import annotations

from collections.abc import Iterator, Mapping

from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, Metric

from daemon.metrics import Numbers
from handlers.pruner import PrunerNumbers
from handlers.recovery.numbers import Numbers as RecoveryNumbers

_PRUNER_COUNTS = {
    "cycles": ("cycles_total", "Cycles that ended.", "state"),
    "phase_runs": ("phase_runs_total", "Number of runs of each phase.", "phase"),
    "phase_seconds": ("phase_seconds_total", "Time taken by a phase.", "phase"),
    "processed": ("processed_total", "What cycles did; `errors` is what they could not do.", "what"),
    "skipped": ("skipped_total", "Transactions that were due and stayed.", "reason"),
    "held_back": ("held_back_total", "Times that a cycle was due and had to wait.", "reason"),
}
_PRUNER_GAUGES = {
    "active": ("active", "1 while a cycle runs."),
    "current_height": ("current_height", "Height that the latest cycle is for."),
    "done_height": ("done_height", "Height up to which everything is pruned."),
    "lag": ("lag_blocks", "Blocks between the requested height and the height that was pruned to."),
    "persister_lag": ("persister_lag_blocks", "Blocks between the tip and what is persisted."),
    "past_due": ("past_due_transactions", "Transactions that are due for deletion and were not deleted."),
    "longest_turn_s": ("longest_turn_seconds", "The longest time that a block had to wait for the pruner."),
}
_RECOVERY_GAUGES = {
    "oldest_pending_s": ("oldest_pending_seconds", "Age of the oldest pending transaction."),
    "held": ("held", "Transactions that this daemon has claimed."),
    "stuck": ("stuck", "Attempts that did not end when they were cancelled."),
    "leader": ("leader", "1 while this daemon claims what is due."),
}
_RECOVERY_COUNTS = {
    "claims": ("claims_total", "Transactions claimed."),
    "attempts": ("attempts_total", "Attempts at a transaction."),
    "timeouts": ("timeouts_total", "Attempts that timed out."),
    "lease_losses": ("lease_losses_total", "Claims lost to time."),
    "leadership_losses": ("leadership_losses_total", "Times that the leader's lock was lost."),
    "conflicts": ("conflicts_total", "Results that came too late to be written."),
    "errors": ("store_errors_total", "Times that the recovery database failed."),
    "callback_errors": ("callback_errors_total", "Exceptions of callbacks."),
}
_RECOVERY_BY = {
    "outcomes": ("outcomes_total", "Attempts by outcome.", "outcome"),
    "settled": ("settled_total", "Results written.", "status"),
}
_CIRCUITS = ("closed", "half_open", "open")


def services(numbers: Numbers | None) -> Iterator[Metric]:
    """Yield every metric of both, those without a value too."""
    yield from _pruner(None if numbers is None else numbers.pruner)
    yield from _recovery(None if numbers is None else numbers.recovery)


def _pruner(numbers: PrunerNumbers | None) -> Iterator[Metric]:
    for field, (name, text, label) in _PRUNER_COUNTS.items():
        yield _counts(f"pruner_{name}", text, label, {} if numbers is None else getattr(numbers, field))
    for field, (name, text) in _PRUNER_GAUGES.items():
        yield _gauge(f"pruner_{name}", text, None if numbers is None else getattr(numbers, field))


def _recovery(numbers: RecoveryNumbers | None) -> Iterator[Metric]:
    backlog = GaugeMetricFamily("utxod_recovery_transactions", "Submitted transactions.", labels=["status"])
    for status, count in ({} if numbers is None else numbers.backlog).items():
        backlog.add_metric([status], count)
    yield backlog
    circuits = GaugeMetricFamily(
        "utxod_recovery_circuit", "1 for what the circuit of a source is.", labels=["source", "state"]
    )
    for source, now in ({} if numbers is None else numbers.circuits).items():
        for state in _CIRCUITS:
            circuits.add_metric([source, state], state == now)
    yield circuits
    for field, (name, text) in _RECOVERY_GAUGES.items():
        yield _gauge(f"recovery_{name}", text, None if numbers is None else getattr(numbers, field))
    for field, (name, text) in _RECOVERY_COUNTS.items():
        yield _counts(f"recovery_{name}", text, "", {} if numbers is None else {"": getattr(numbers, field)})
    for field, (name, text, label) in _RECOVERY_BY.items():
        yield _counts(f"recovery_{name}", text, label, {} if numbers is None else getattr(numbers, field))


def _gauge(name: str, text: str, value: float | None) -> Metric:
    return GaugeMetricFamily(f"utxod_{name}", text, value=value)


def _counts(name: str, text: str, label: str, values: Mapping[str, float]) -> Metric:
    family = CounterMetricFamily(f"utxod_{name}", text, labels=[label] if label else [])
    for which, value in values.items():
        family.add_metric([which] if label else [], value)
    return family
