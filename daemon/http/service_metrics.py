"""Metrics of the pruner and of the recovery service, from the daemon's counters."""

from __future__ import annotations

from collections.abc import Iterator, Mapping

from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, Metric

from daemon.metrics import Numbers
from handlers.pruner import PrunerNumbers
from handlers.recovery.numbers import Numbers as RecoveryNumbers

_PRUNER_COUNTS = {
    "cycles": ("cycles_total", "Finished cycles.", "state"),
    "phase_runs": ("phase_runs_total", "Runs of each phase.", "phase"),
    "phase_seconds": ("phase_seconds_total", "Time spent in each phase.", "phase"),
    "processed": ("processed_total", "Results of cycles; `errors` counts failures.", "what"),
    "skipped": ("skipped_total", "Transactions that were due but were kept.", "reason"),
    "held_back": ("held_back_total", "Cycles that were due but had to wait.", "reason"),
}
_PRUNER_GAUGES = {
    "active": ("active", "1 while a cycle runs, otherwise 0."),
    "current_height": ("current_height", "Height of the latest cycle."),
    "done_height": ("done_height", "Height up to which everything is pruned."),
    "lag": ("lag_blocks", "Difference between the requested height and the pruned height."),
    "persister_lag": ("persister_lag_blocks", "Difference between the tip and the persisted height."),
    "past_due": ("past_due_transactions", "Transactions that were still due for deletion after the latest cycle."),
    "longest_turn_s": ("longest_turn_seconds", "The longest time that a block had to wait for the pruner."),
}
_RECOVERY_GAUGES = {
    "oldest_pending_s": ("oldest_pending_seconds", "Age of the oldest pending transaction."),
    "held": ("held", "Transactions that this daemon has claimed."),
    "stuck": ("stuck", "Attempts that have not ended although they were cancelled."),
    "leader": ("leader", "1 while this daemon claims due transactions, otherwise 0."),
}
_RECOVERY_COUNTS = {
    "claims": ("claims_total", "Claimed transactions."),
    "attempts": ("attempts_total", "Attempts to determine the status of a transaction."),
    "timeouts": ("timeouts_total", "Attempts that timed out."),
    "lease_losses": ("lease_losses_total", "Lost leases."),
    "leadership_losses": ("leadership_losses_total", "Losses of the leader's lock."),
    "conflicts": ("conflicts_total", "Results that were not written because the claim was no longer valid."),
    "errors": ("store_errors_total", "Failures of the recovery database."),
    "callback_errors": ("callback_errors_total", "Exceptions in callbacks."),
}
_RECOVERY_BY = {
    "outcomes": ("outcomes_total", "Attempts, by outcome.", "outcome"),
    "settled": ("settled_total", "Results that were written.", "status"),
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
    backlog = GaugeMetricFamily("utxod_recovery_transactions", "Rows of the recovery tables.", labels=["status"])
    for status, count in ({} if numbers is None else numbers.backlog).items():
        backlog.add_metric([status], count)
    yield backlog
    circuits = GaugeMetricFamily(
        "utxod_recovery_circuit",
        "1 for the current state of the circuit breaker of a source.",
        labels=["source", "state"],
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
