"""Refusals of Slurm commands: texts on stderr and exit statuses, as recorded from a real Slurm."""

from __future__ import annotations


class Refusal(Exception):
    """Ends a command, which prints `text` and a newline on stderr."""

    def __init__(self, text: str, exit_code: int = 1):
        super().__init__(text)
        self.text, self.exit_code = text, exit_code


class CommandDone(Exception):
    """Ends a command that has already printed everything. `exit_code`: the command's exit status."""

    def __init__(self, exit_code: int = 0):
        super().__init__(exit_code)
        self.exit_code = exit_code


class ControllerError(Exception):
    """An error that slurmctld answers, with the text of slurm_strerror. Commands print `said` before the text.

    `numbered`: whether slurmctld found the error after it gave the job an id. No other job gets this id.
    """

    def __init__(self, text: str, said: str = "", numbered: bool = False):
        super().__init__(text)
        self.said, self.numbered = said, numbered

    def refusal(self, command: str, failed: str) -> Refusal:
        """Returns the Refusal of a command that gets this error. `failed`: the beginning of the printed line."""
        said = f"{command}: error: {self.said}\n" if self.said else ""
        return Refusal(f"{said}{failed}{self}")


INVALID_JOB_ID = "Invalid job id specified"
INVALID_PARTITION = "Invalid partition name specified"
INVALID_NODE = "Invalid node name specified"
INVALID_FEATURE = "Invalid feature specification"
INVALID_ARRAY = "Invalid job array specification"
INVALID_GRES = "Invalid generic resource (gres) specification"
NODE_CONFIG = "Requested node configuration is not available"
NODES_BUSY = "Requested nodes are busy"
TOO_MANY_CPUS = "More processors requested than permitted"
DEPENDENCY = "Job dependency problem"
PENDING = "Job is pending execution"
NOT_PENDING = "Job is no longer pending execution"
WRITING = "I/O error writing script/environment to file"
FINISHED = "Job has already finished"
ALREADY_DONE = "Job/step already completing or completed"
NOT_LEADER = "Job not heterogeneous job leader"
ONE_COMPONENT = "Operation not permitted on individual component of heterogeneous job"
DISABLED = "Requested operation is presently disabled"
