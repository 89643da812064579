"""The decisions of this program: start, requeue, end the run, or leave it to another attempt or to Slurm."""

from typing import Any, Dict, NamedTuple, Union


class Start(NamedTuple):
    """The attempt starts after `wait_s` seconds. said: the reason for the wait, as text."""

    wait_s: int = 0
    said: str = ""


class Requeue(NamedTuple):
    """The run continues with one more attempt. details: the failure's details for the ledger; None if there was no
    failure."""

    cause: str
    said: str = ""
    details: Union[Dict[str, Any], None] = None


class End(NamedTuple):
    """The run ends: no other attempt follows."""

    cause: str
    event: str  # name of the event in the ledger
    code: int  # this program's exit code
    details: Dict[str, Any] = {}
    said: str = ""  # text for people, which may contain {run} and {logs}

    @classmethod
    def by_user(cls, said: str = "") -> "End":
        """The end by `clusterdp stop` or job.stop(). The exit code is not 0, so that a job that waits for this job's
        success does not start."""
        return cls("stopped", "failed", 75, {"reason": "user"}, said)

    @classmethod
    def gave_up(cls, why: str, said: str) -> "End":
        return cls("gave-up", "failed", 1, {"reason": why}, said)


class Leave(NamedTuple):
    """This attempt does not record its end, because another attempt or Slurm records the end."""

    code: int


Decision = Union[Start, Requeue, End, Leave]
