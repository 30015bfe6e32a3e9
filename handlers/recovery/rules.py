"""The effect of an outcome on its row. Pure, except for random jitter."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import assert_never

from config.settings import Recovery
from handlers.recovery.outcome import Busy, Invalid, NotFound, Outcome, Permanent, Transient, Valid
from storage.recovery.rows import Claim, Settlement

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
    is_now = partial(Settlement, claim, outcome="timeout" if timed_out else type(outcome).__name__.lower())
    match outcome:
        case Valid(message):
            return is_now("confirmed", message=message)
        case Invalid(reason):
            return is_now("deleted", message=reason)
        case Busy(reason, patience_s):
            cap_s = min(settings.retry_cap, max(_BUSY_CAP_S, settings.scan_interval))
            delay_s = patience_s + pause(claim.attempts, settings.scan_interval, cap_s, dice)
            return is_now("pending", delay_s=delay_s, error=reason)
        case NotFound(False, reason, patience_s):
            error = f"{reason}, but the source has not caught up with the chain"
            delay_s = patience_s + pause(0, settings.retry_base, settings.retry_cap, dice)
            return is_now("pending", delay_s=delay_s, error=error, attempt=False)
        case NotFound(_, reason) if given_up(claim, settings):
            return is_now("orphan", message=NEVER_ARRIVED, error=reason, not_found=True)
        case NotFound(_, reason, patience_s):
            cap_s = min(settings.retry_cap, settings.not_found_grace_period / _ATTEMPTS_IN_GRACE or settings.retry_cap)
            delay_s = max(min(patience_s, cap_s), pause(claim.not_found, settings.scan_interval, cap_s, dice))
            return is_now("pending", delay_s=delay_s, error=reason, not_found=True)
        case Transient(error, False):
            delay_s = pause(0, settings.retry_base, settings.retry_cap, dice)
            return is_now("pending", delay_s=delay_s, error=error, attempt=False)
        case Transient(error) if claim.failures + 1 < settings.max_attempts:
            base_s = settings.attempt_timeout if timed_out else settings.retry_base
            delay_s = pause(claim.failures, base_s, settings.retry_cap, dice)
            return is_now("pending", delay_s=delay_s, error=error, failed=True)
        case Transient(error) | Permanent(error):
            return is_now("dead", error=error, failed=True)
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
