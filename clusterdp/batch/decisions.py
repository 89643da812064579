"""The decisions of this program: start, requeue, end the run, or leave it to another attempt or to Slurm."""

from typing import Any, Dict, NamedTuple, Union


class Start(NamedTuple):
    """The attempt starts, after so many seconds of which `said` gives the reason."""

    wait_s: int = 0
    said: str = ""


class Requeue(NamedTuple):
    """The run continues with one more attempt. details: of the failure, for the ledger; None: it has not failed."""

    cause: str
    said: str = ""
    details: Union[Dict[str, Any], None] = None


class End(NamedTuple):
    """No other attempt follows. event: of the ledger. code: this program's exit code. `said` may name {run}."""

    cause: str
    event: str
    code: int
    details: Dict[str, Any] = {}
    said: str = ""

    @classmethod
    def by_user(cls, said: str = "") -> "End":
        """By `clusterdp stop` or job.stop(). Not 0: a job that waits for this run to finish must not start."""
        return cls("stopped", "failed", 75, {"reason": "user"}, said)

    @classmethod
    def gave_up(cls, why: str, said: str) -> "End":
        return cls("gave-up", "failed", 1, {"reason": why}, said)


class Leave(NamedTuple):
    """This attempt records no end, because another attempt or Slurm does."""

    code: int


Decision = Union[Start, Requeue, End, Leave]
