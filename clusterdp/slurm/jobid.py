"""The form of a job id, whether the user types it, a record contains it, or a command prints it."""

from __future__ import annotations

import re

JOB_ID = "[0-9]{1,18}(?:_[0-9]{1,18})?"  # an array element's id ends in its number
_WHOLE = re.compile(JOB_ID)


def is_job_id(word: object) -> bool:
    """Returns whether `word` is a job id. Only a job id may be passed to scancel, because scancel also takes options
    and names."""
    return isinstance(word, str) and _WHOLE.fullmatch(word) is not None
