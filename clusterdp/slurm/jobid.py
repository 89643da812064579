"""The form of a job id from any source: typed, in a record, or in the output of a command."""

from __future__ import annotations

import re

JOB_ID = "[0-9]{1,18}(?:_[0-9]{1,18})?"  # an element of an array has its number at the end
_WHOLE = re.compile(JOB_ID)


def is_job_id(word: object) -> bool:
    """Returns whether `word` is a job id. No other text may reach scancel, which takes options and names."""
    return isinstance(word, str) and _WHOLE.fullmatch(word) is not None
