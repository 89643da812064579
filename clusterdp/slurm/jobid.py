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
    """`cluster` is empty for a job of the cluster that Slurm's commands ask by default."""

    job: str
    cluster: str = ""


def is_job_id(word: object) -> bool:
    """Returns whether `word` is a job id. Only a job id may be passed to scancel, because scancel also takes options
    and names."""
    return isinstance(word, str) and _WHOLE.fullmatch(word) is not None


def home_of(cluster: str) -> str:
    """Returns the cluster of a job as the run's records name it: the value of SLURM_CONF, which selects the controller,
    and after a semicolon the name in sbatch's answer, if another cluster than the controller's has the job."""
    return os.environ.get("SLURM_CONF", "") + (f";{cluster}" if cluster else "")


def cluster_in(home: str) -> str:
    return home.partition(";")[2]


def set_clusters(names: str) -> None:
    """Makes all of Slurm's commands in this process ask these clusters, or the default cluster."""
    os.environ["SLURM_CLUSTERS"] = names
    if not names:
        del os.environ["SLURM_CLUSTERS"]


@contextmanager
def asking(clusters: str) -> Iterator[None]:
    """In the body of the with statement, Slurm's commands are called for these clusters, by names as in `--clusters`;
    if empty, for the default cluster. A job id has no meaning on another cluster."""
    before = os.environ.get("SLURM_CLUSTERS", "")
    try:
        set_clusters(clusters)
        yield
    finally:
        set_clusters(before)
