"""The effect of an outcome on its row. Pure, except for random jitter."""

from __future__ import annotations

from collections.abc import Callable
from typing import assert_never

from config.settings import Recovery
from handlers.recovery.outcome import Busy, Invalid, NotFound, Outcome, Permanent, Transient, Valid
from storage.recovery.rows import Claim, Settlement, Status

NEVER_ARRIVED = "it never reached the chain"
_BUSY_CAP_S = 60.0
_ATTEMPTS_IN_GRACE = 4  # attempts that the pauses of an unknown transaction allow before it is given up
_MOST_DOUBLINGS = 30

Dice = Callable[[float, float], float]


def pause(times: int, base_s: float, cap_s: float, dice: Dice) -> float:
    """Return a pause after a number of attempts: exponential up to a cap, with full jitter."""
    return dice(0.0, min(cap_s, base_s * 2.0 ** min(times, _MOST_DOUBLINGS)))


def settle(claim: Claim, outcome: Outcome, settings: Recovery, dice: Dice, *, timed_out: bool = False) -> Settlement:
    """Return what is written for an outcome."""
    kind = "timeout" if timed_out else type(outcome).__name__.lower()

    def again(
        delay_s: float, error: str, *, attempt: bool = True, failed: bool = False, not_found: bool = False
    ) -> Settlement:
        return Settlement(claim, "pending", kind, delay_s, None, error, attempt, failed, not_found)

    def final(status: Status, message: str | None, error: str | None = None) -> Settlement:
        ends = {"failed": status == "dead", "not_found": status == "orphan"}
        return Settlement(claim, status, kind, 0.0, message, error, **ends)

    match outcome:
        case Valid(message):
            return final("confirmed", message)
        case Invalid(reason):
            return final("deleted", reason)
        case Busy(reason, patience_s):
            cap_s = min(settings.retry_cap, max(_BUSY_CAP_S, settings.scan_interval))
            return again(patience_s + pause(claim.attempts, settings.scan_interval, cap_s, dice), reason)
        case NotFound(caught_up, reason, patience_s):
            if not caught_up:
                error = f"{reason}, but the source has not caught up with the chain"
                delay_s = patience_s + pause(0, settings.retry_base, settings.retry_cap, dice)
                return again(delay_s, error, attempt=False)
            if given_up(claim, settings):
                return final("orphan", NEVER_ARRIVED, reason)
            cap_s = min(settings.retry_cap, settings.not_found_grace_period / _ATTEMPTS_IN_GRACE or settings.retry_cap)
            delay_s = max(min(patience_s, cap_s), pause(claim.not_found, settings.scan_interval, cap_s, dice))
            return again(delay_s, reason, not_found=True)
        case Transient(error, counts):
            if not counts:
                return again(pause(0, settings.retry_base, settings.retry_cap, dice), error, attempt=False)
            if claim.failures + 1 >= settings.max_attempts:
                return final("dead", None, error)
            base_s = settings.attempt_timeout if timed_out else settings.retry_base
            return again(pause(claim.failures, base_s, settings.retry_cap, dice), error, failed=True)
        case Permanent(error):
            return final("dead", None, error)
        case _:
            assert_never(outcome)


def given_up(claim: Claim, settings: Recovery) -> bool:
    """Return whether one more not-found makes an orphan: old enough, unknown for as long, and seen so several times."""
    grace_s = settings.not_found_grace_period
    return (
        grace_s > 0
        and claim.age_s > grace_s
        and claim.not_found_for_s > grace_s
        and claim.not_found + 1 >= settings.not_found_attempts
    )
