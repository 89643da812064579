"""Slurm's names for the states of a job, and its forms of exit codes."""

from enum import Enum


class JobState(Enum):
    """A job's state: the value is the long word, as `squeue -o %T` and sacct print it."""

    __hash__ = object.__hash__  # Enum's own __hash__ is slow Python code

    PENDING = "PENDING"
    RUNNING = "RUNNING"
    SUSPENDED = "SUSPENDED"
    COMPLETING = "COMPLETING"
    CONFIGURING = "CONFIGURING"
    EXPEDITING = "EXPEDITING"
    RESIZING = "RESIZING"
    SIGNALING = "SIGNALING"
    STAGE_OUT = "STAGE_OUT"
    STOPPED = "STOPPED"
    REQUEUED = "REQUEUED"
    REQUEUE_FED = "REQUEUE_FED"
    REQUEUE_HOLD = "REQUEUE_HOLD"
    SPECIAL_EXIT = "SPECIAL_EXIT"
    RESV_DEL_HOLD = "RESV_DEL_HOLD"
    COMPLETED = "COMPLETED"
    CANCELLED = "CANCELLED"
    FAILED = "FAILED"
    TIMEOUT = "TIMEOUT"
    NODE_FAIL = "NODE_FAIL"
    PREEMPTED = "PREEMPTED"
    BOOT_FAIL = "BOOT_FAIL"
    DEADLINE = "DEADLINE"
    OUT_OF_MEMORY = "OUT_OF_MEMORY"
    REVOKED = "REVOKED"

    @property
    def short(self) -> str:
        """The short word, as `squeue -o %t` prints it: PD, R, CG, ..."""
        return SHORT[self]

    @property
    def final(self) -> bool:
        """True if the job is over. A job in PREEMPTED or NODE_FAIL may still be requeued: squeue then shows PENDING."""
        return self in FINAL

    @classmethod
    def parse(cls, text: str) -> "JobState":
        """Parses a long or short word, in any case, with or without sacct's ` by UID` and `+`. Raises ValueError for
        any other word."""
        words = text.split()
        word = words[0].rstrip("+").upper() if words else ""
        for state in cls:
            if word in (state.value, SHORT[state]):
                return state
        # sacct cuts long words to the width of its column: CANCELLE+, OUT_OF_ME+
        cut = [state for state in cls if len(word) >= 4 and state.value.startswith(word)]
        if len(cut) == 1:
            return cut[0]
        raise ValueError(f"{text!r}: not a Slurm job state. Expected one of {', '.join(s.value for s in cls)}.")


SHORT = {
    JobState.PENDING: "PD",
    JobState.RUNNING: "R",
    JobState.SUSPENDED: "S",
    JobState.COMPLETING: "CG",
    JobState.CONFIGURING: "CF",
    JobState.EXPEDITING: "EXPEDITING",  # exists since 25.11, and has no short word
    JobState.RESIZING: "RS",
    JobState.SIGNALING: "SI",
    JobState.STAGE_OUT: "SO",
    JobState.STOPPED: "ST",
    JobState.REQUEUED: "RQ",
    JobState.REQUEUE_FED: "RF",
    JobState.REQUEUE_HOLD: "RH",
    JobState.SPECIAL_EXIT: "SE",
    JobState.RESV_DEL_HOLD: "RD",
    JobState.COMPLETED: "CD",
    JobState.CANCELLED: "CA",
    JobState.FAILED: "F",
    JobState.TIMEOUT: "TO",
    JobState.NODE_FAIL: "NF",
    JobState.PREEMPTED: "PR",
    JobState.BOOT_FAIL: "BF",
    JobState.DEADLINE: "DL",
    JobState.OUT_OF_MEMORY: "OOM",
    JobState.REVOKED: "RV",
}

FINAL = frozenset(
    {
        JobState.COMPLETED,
        JobState.CANCELLED,
        JobState.FAILED,
        JobState.TIMEOUT,
        JobState.NODE_FAIL,
        JobState.PREEMPTED,
        JobState.BOOT_FAIL,
        JobState.DEADLINE,
        JobState.OUT_OF_MEMORY,
        JobState.REVOKED,
    }
)


def exit_word(status: int) -> str:
    """Returns the wait status that os.wait() returned as `code:signal`, the form in which scontrol writes ExitCode."""
    return f"{status >> 8 & 0xFF}:{status & 0x7F}"


def accounted_exit_word(status: int) -> str:
    """Returns a wait status as sacct writes it. sacct drops the highest bit of the code: sacct writes 9:0 for 137:0."""
    return f"{status >> 8 & 0x7F}:{status & 0x7F}"
