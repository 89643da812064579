"""The form of a job id, whether the user types it, a record contains it, or a command prints it, and of the cluster
on which the id is valid."""

from __future__ import annotations

import os
import re
from collections.abc import Iterator
from contextlib import contextmanager
from typing import NamedTuple

JOB_ID = "[0-9]{1,18}(?:_[0-9]{1,18})?"  # an array element's id ends in its number
_WHOLE = re.compile(JOB_ID)


class Submitted(NamedTuple):
    job: str
    cluster: str  # cluster: empty for the default cluster


def is_job_id(word: object) -> bool:
    """Returns whether `word` is a job id. Only a job id may be passed to scancel, because scancel also takes options
    and names."""
    return isinstance(word, str) and _WHOLE.fullmatch(word) is not None


def home_of(cluster: str) -> str:
    """Returns a job's cluster as records name it: SLURM_CONF, and after a semicolon the name in sbatch's answer."""
    return os.environ.get("SLURM_CONF", "") + (f";{cluster}" if cluster else "")


def cluster_in(home: str) -> str:
    return home.partition(";")[2]


def set_clusters(names: str) -> None:
    """Makes Slurm's commands in this process ask these clusters, by names as in `--clusters`; if empty, the default."""
    if names:
        os.environ["SLURM_CLUSTERS"] = names
    else:
        os.environ.pop("SLURM_CLUSTERS", None)


@contextmanager
def asking(clusters: str) -> Iterator[None]:
    """Calls set_clusters() for the body of the with statement, because a job id has no meaning on another cluster."""
    before = os.environ.get("SLURM_CLUSTERS", "")
    try:
        set_clusters(clusters)
        yield
    finally:
        set_clusters(before)
