"""The account in words: numbers for its tables, and its line in `clusterdp status`."""

from __future__ import annotations

from clusterdp.operate.account.run_account import RunAccount
from clusterdp.wording import duration


def goodput_line(account: RunAccount) -> str:
    """For `clusterdp status`; empty if there is nothing to tell."""
    whole = account.total.allocated
    if not whole:
        return ""
    kept = account.goodput
    words = f"{duration(whole)} allocated"
    if kept is not None:
        words = f"goodput {percent(kept)}: {duration(account.total.kept)} of {duration(whole)} became steps"
    if account.unit:
        words += f"; {hours(account.hours)} {account.unit}-hours, {hours(account.lost_hours)} lost"
    return words


def brief(seconds: float) -> str:
    """`-`, `4s`, `4m12s`, `1h02m`, `3d04h`: narrow, for a table."""
    if seconds < 0.05:
        return "-"
    if seconds < 9.95:
        return f"{seconds:.1f}s"
    left = round(seconds)
    for size, word, small, lesser in ((86400, "d", 3600, "h"), (3600, "h", 60, "m"), (60, "m", 1, "s")):
        if left >= size:
            return f"{left // size}{word}{left % size // small:02}{lesser}"
    return f"{left}s"


def percent(share: float) -> str:
    return f"{100 * share:.1f} %"


def hours(value: float) -> str:
    """`69.3`, `0.012`: three digits at most after the point."""
    return f"{value:.1f}" if value >= 10 else f"{value:.3f}".rstrip("0").rstrip(".")
