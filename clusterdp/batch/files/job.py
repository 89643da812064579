"""Job: this job and this attempt, from the environment of the batch script, with the attempt's files."""

import os
from typing import Dict, List, Mapping, NamedTuple


class Job(NamedTuple):
    run: str
    script: str  # the batch script, which is submitted again if the site forbids requeue
    id: str  # the job's id: `7`, or `7_3` for an element of a job array
    number: int  # SLURM_JOB_ID, which for the last element of a job array is the array's own id
    element: str
    restart: int
    life: int  # 0 for the first attempt since Slurm has started the script; each restart in place adds 1
    nodes: str
    node_count: int
    partition: str
    host: str
    chain: str  # id of the first job in a chain of resubmissions, for sites that forbid requeue
    replaces: str  # id of the previous job of the chain
    replaced_log: str  # the number in the file name of the previous job's output
    unwritten: int  # number of attempts of the chain that could not write any file
    reservation: str = ""

    @property
    def attempt(self) -> str:
        return ".".join([self.id, str(self.restart), *([str(self.life)] if self.life else [])])

    @property
    def after(self) -> "Job":
        """The next attempt in this allocation."""
        return self._replace(life=self.life + 1)

    @property
    def here(self) -> str:
        return self.folder_of(self.attempt)

    @property
    def logs(self) -> str:
        return os.path.join(self.here, "logs")

    @property
    def log_id(self) -> str:
        """The number in the name of the job's output: slurm-%j.out, or slurm-%A_%a.out for an element of a job
        array."""
        return self.id if self.element else str(self.number)

    def folder_of(self, attempt: str) -> str:
        return os.path.join(self.run, "attempts", attempt)

    def file(self, name: str) -> str:
        """Returns the path of a file of this attempt."""
        return os.path.join(self.here, name)

    def attempts(self) -> List[str]:
        """Returns the names of all attempts of this run that have a folder."""
        try:
            return os.listdir(os.path.join(self.run, "attempts"))
        except OSError:
            return []

    def has_saved(self) -> bool:
        return os.path.exists(self.file("saved"))

    def is_marked(self, marker: str) -> bool:
        """Returns whether the user has requested `marker`, which is `cancelled` or `stop`."""
        return os.path.exists(os.path.join(self.run, marker))

    def chain_variables(self) -> Dict[str, str]:
        """Returns variables of the script that it has removed from its environment, for job_of() on another node."""
        replaces = {"CLUSTERDP_REPLACES": "{}:{}".format(self.replaces, self.replaced_log)} if self.replaces else {}
        return {"CLUSTERDP_CHAIN": self.chain, "CLUSTERDP_UNWRITTEN": str(self.unwritten), **replaces}

    def output(self, log_id: str) -> str:
        """Returns the path of the output of this job, or of the job that it replaces. log_id: the number in the file
        name."""
        ours = os.path.join(self.run, "slurm-{}.out".format(log_id))
        submitits = os.path.join(self.run, "submitit", "{}_0_log.out".format(log_id))
        return ours if os.path.exists(ours) or not os.path.exists(submitits) else submitits


SETUP = ("CLUSTERDP_SETUP_FAILED", "CLUSTERDP_SETUP_CODE", "CLUSTERDP_SETUP_ERRORS")
BEGAN = "CLUSTERDP_BEGAN"  # start of an attempt under submitit, and the length of its output at this time
# Variables for this program, not for the ranks.
OWN = ("CLUSTERDP_CHAIN", "CLUSTERDP_REPLACES", "CLUSTERDP_UNWRITTEN", BEGAN, *SETUP)
LOADED = "key"  # file of an attempt: rank 0 has loaded torch (train/process/attempt.py)
COLD = "cold"  # file of an attempt: its program sets variables that torch reads when it is loaded
RESERVE = "CLUSTERDP_RESERVE"  # tells a task to wait for the next attempt (reserve.py)
EXPORTED = (  # names of variables that the ranks get from this program
    "MASTER_ADDR",
    "MASTER_PORT",
    "CLUSTERDP_JOB_END_TIME",
    "CLUSTERDP_RUN_DIR",
    "CLUSTERDP_ATTEMPT",
    "CLUSTERDP_LOGS",
    "CLUSTERDP_CHECKPOINT_URL",
    "CLUSTERDP_RESUME_STEP",
    "CLUSTERDP_NODES",  # the nodes of the ranks in their order, in a job with spare nodes
)


def job_of(run: str, script: str, environ: Mapping[str, str]) -> Job:
    """Returns this job. Raises KeyError if a variable of Slurm is missing, because the script then does not run in a
    job."""
    number, element = environ["SLURM_JOB_ID"], ""
    identity = number
    if environ.get("SLURM_ARRAY_JOB_ID"):
        element = environ["SLURM_ARRAY_TASK_ID"]
        # The last element of a job array has the array's own SLURM_JOB_ID, which would mean all elements.
        identity = environ["SLURM_ARRAY_JOB_ID"] + "_" + element
    restart = int(environ.get("SLURM_RESTART_COUNT") or 0)
    replaces, _, log = environ.get("CLUSTERDP_REPLACES", "").partition(":")
    if not log or restart:  # a requeued job replaces its own earlier attempt
        replaces, log = "", identity if element else number
    unwritten = environ.get("CLUSTERDP_UNWRITTEN", "")
    return Job(
        run=run,
        script=script,
        id=identity,
        number=int(number),
        element=element,
        restart=restart,
        life=0,
        nodes=environ["SLURM_JOB_NODELIST"],
        node_count=int(environ.get("SLURM_JOB_NUM_NODES") or 1),
        partition=environ.get("SLURM_JOB_PARTITION", ""),
        host=environ.get("SLURMD_NODENAME") or os.uname().nodename,
        chain=environ.get("CLUSTERDP_CHAIN") or identity,
        replaces=replaces,
        replaced_log=log,
        unwritten=int(unwritten) if unwritten.isdigit() else 0,
        reservation=environ.get("SLURM_JOB_RESERVATION", ""),
    )
