"""Job: this job and this attempt, as the environment of its batch script names them, with the attempt's files."""

import os
from typing import List, Mapping, NamedTuple


class Job(NamedTuple):
    """id: `7`, or `7_3` of an array's element, whose last one has the array's own number as SLURM_JOB_ID. chain: the
    first job of a chain of resubmissions, for sites that forbid requeue. replaces: the job before it in that chain, and
    replaced_log the number in the name of that job's output. unwritten: attempts of the chain that could write nothing.
    script: the file that is submitted again where a site forbids requeue.
    """

    run: str
    script: str
    id: str
    number: int
    element: str
    restart: int
    nodes: str
    node_count: int
    partition: str
    host: str
    chain: str
    replaces: str
    replaced_log: str
    unwritten: int

    @property
    def attempt(self) -> str:
        return "{}.{}".format(self.id, self.restart)

    @property
    def here(self) -> str:
        return self.folder_of(self.attempt)

    @property
    def logs(self) -> str:
        return os.path.join(self.here, "logs")

    @property
    def log_id(self) -> str:
        """The number in the name of its output: slurm-%j.out, of an element slurm-%A_%a.out."""
        return self.id if self.element else str(self.number)

    def folder_of(self, attempt: str) -> str:
        return os.path.join(self.run, "attempts", attempt)

    def file(self, name: str) -> str:
        """A file of this attempt."""
        return os.path.join(self.here, name)

    def attempts(self) -> List[str]:
        """The names of all attempts of this run that have a folder."""
        try:
            return os.listdir(os.path.join(self.run, "attempts"))
        except OSError:
            return []

    def has_saved(self) -> bool:
        return os.path.exists(self.file("saved"))

    def is_marked(self, marker: str) -> bool:
        """Whether the user has asked for `cancelled` or `stop`."""
        return os.path.exists(os.path.join(self.run, marker))

    def output(self, log_id: str) -> str:
        """The output of this job, or of the one that it replaces, by the number in its name."""
        ours = os.path.join(self.run, "slurm-{}.out".format(log_id))
        submitits = os.path.join(self.run, "submitit", "{}_0_log.out".format(log_id))
        return ours if os.path.exists(ours) or not os.path.exists(submitits) else submitits


SETUP = ("CLUSTERDP_SETUP_FAILED", "CLUSTERDP_SETUP_CODE", "CLUSTERDP_SETUP_ERRORS")
BEGAN = "CLUSTERDP_BEGAN"  # when an attempt under submitit began, and how long its output was then
# Variables for this program, and not for the ranks.
OWN = ("CLUSTERDP_CHAIN", "CLUSTERDP_REPLACES", "CLUSTERDP_UNWRITTEN", BEGAN, *SETUP)
EXPORTED = (  # what the ranks get from this program
    "MASTER_ADDR",
    "MASTER_PORT",
    "CLUSTERDP_JOB_END_TIME",
    "CLUSTERDP_RUN_DIR",
    "CLUSTERDP_ATTEMPT",
    "CLUSTERDP_LOGS",
    "CLUSTERDP_CHECKPOINT_URL",
    "CLUSTERDP_RESUME_STEP",
)


def job_of(run: str, script: str, environ: Mapping[str, str]) -> Job:
    """KeyError if a variable of Slurm's is not there: the script does not run in a job."""
    number, element = environ["SLURM_JOB_ID"], ""
    identity = number
    if environ.get("SLURM_ARRAY_JOB_ID"):
        element = environ["SLURM_ARRAY_TASK_ID"]
        # The last element's SLURM_JOB_ID, which is the array's own, would name all elements.
        identity = environ["SLURM_ARRAY_JOB_ID"] + "_" + element
    restart = int(environ.get("SLURM_RESTART_COUNT") or 0)
    replaces, _, log = environ.get("CLUSTERDP_REPLACES", "").partition(":")
    if not log or restart:  # a requeued job follows itself
        replaces, log = "", identity if element else number
    unwritten = environ.get("CLUSTERDP_UNWRITTEN", "")
    return Job(
        run=run,
        script=script,
        id=identity,
        number=int(number),
        element=element,
        restart=restart,
        nodes=environ["SLURM_JOB_NODELIST"],
        node_count=int(environ.get("SLURM_JOB_NUM_NODES") or 1),
        partition=environ.get("SLURM_JOB_PARTITION", ""),
        host=environ.get("SLURMD_NODENAME") or os.uname().nodename,
        chain=environ.get("CLUSTERDP_CHAIN") or identity,
        replaces=replaces,
        replaced_log=log,
        unwritten=int(unwritten) if unwritten.isdigit() else 0,
    )
