"""What differs from run to run whatever the training does: times, speeds, dates, paths, names of hosts, process ids."""

from __future__ import annotations

import re

from clusterdp.rehearse.state.end_state import Leaf

# Words of a key. `time_embed.weight` is of the model, and never volatile.
_KEY = re.compile(
    r"(?:^|[._/ -])(?:time|times|timing|timings|timestamp|date|datetime|runtime|elapsed|duration|seconds|secs|sec|dt|"
    r"eta|wall|wallclock|throughput|fps|mfu|per_second|per_sec|hostname|host|hosts|node|nodes|nodelist|pid|ppid|uuid|"
    r"\w+_at|user|username|cwd|path|paths|dir|dirs|file|filename|folder|job_id|jobid|slurm_job_id|run_id|run_name|port|"
    r"created|started|finished|ended|memory|mem|resume_from\w*)(?:$|[._/ -]|(?:_(?:s|ms|sec|seconds|at|mb|gb)\b))",
    re.IGNORECASE,
)
_NUMBER = r"\d+(?:\.\d+)?"
_TEXT = re.compile(
    r"\d{4}-\d\d-\d\d(?:[T_ -]\d\d[:.-]?\d\d[:.-]?\d\d(?:[.,]\d+)?)?(?:Z|[+-]\d\d:?\d\d)?"  # 2026-11-23 10:39:46
    r"|(?:Mon|Tue|Wed|Thu|Fri|Sat|Sun)[a-z]*,? [\w ]{5,7} \d\d:\d\d:\d\d(?: \w{3,4})?(?: \d{4})?"  # as date prints it
    r"|\d{8}[-_T]\d{4,6}"
    r"|\b\d{1,2}:\d\d(?::\d\d(?:[.,]\d+)?)?\b"
    r"|[0-9a-f]{8}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{12}"
    r"|0x[0-9a-f]{6,}"
    r"|(?<![\w.:/])~?/[\w.+@%=~-]+(?:/[\w.+@%=~-]*)*"  # a path from the root
    rf"|{_NUMBER} ?(?:ns|us|µs|ms|s|secs?|seconds?|min|minutes?|s/it|ms/it|(?:it|samples|tokens|steps|img|images)/s)\b"
    r"|\b(?:host|hostname|node|pid|job|job_?id)[=: ]+[\w.-]+",
    re.IGNORECASE,
)
# A word like `time` in a key of these is no clock's.
_NEVER = ("model", "optimizer", "scheduler", "scaler", "rng", "sampler", "step")


def is_volatile(key: str, leaf: Leaf) -> bool:
    """Whether the value of this key tells nothing about the training."""
    return leaf.part not in _NEVER and _KEY.search(key) is not None


def without_volatile(text: str) -> str:
    """The text with <...> in place of what is volatile, to be compared."""
    return _TEXT.sub("<...>", text)
