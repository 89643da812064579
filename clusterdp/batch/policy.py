"""Policy: may one more attempt follow such an end, and when? Pure."""

from typing import Optional

from .causes import FAULTS
from .history import History
from .rules import Rules

LONGEST_S = 3600


def exhausted(history: History, cause: str, rules: Rules, more: int = 0) -> str:
    """The limit that forbids one more attempt after such an end; empty if none does. more: ends that the history does
    not have yet."""
    times, faults = history.times(cause) + more, history.faults + (more if cause in FAULTS else 0)
    attempts = len(history.ended) + more
    limit = rules.policy(cause).limit
    if cause in FAULTS and faults > rules.max_crashes:
        return "{} fault(s), where restart.max_crashes is {}".format(faults, rules.max_crashes)
    if limit is not None and times > limit:
        words = "{} attempt(s) that ended so ({}), where restart.{}.limit is {}"
        return words.format(times, cause, cause.replace("-", "_"), limit)
    if rules.max_attempts and attempts >= rules.max_attempts:
        return "{} attempt(s), where restart.max_attempts is {}".format(attempts, rules.max_attempts)
    if rules.max_hours and history.spent_s >= int(rules.max_hours * 3600):
        words = "{} allocated hours without a newer checkpoint, where restart.max_hours is {}"
        return words.format(history.spent_s // 3600, rules.max_hours)
    return ""


def pause_s(history: History, cause: str, rules: Rules, now: float, since: Optional[float] = None) -> int:
    """Seconds until an attempt may begin that follows such an end. since: when that was; default: as the history has
    it. The pause doubles with each such end in a row; a checkpoint ends the row."""
    least, left = rules.policy(cause).wait_s, 0
    for each in history.row:
        left = 0 if each != cause else left * 2 or least
    return max(0, min(left, LONGEST_S) + int(history.over_at if since is None else since) - int(now))
