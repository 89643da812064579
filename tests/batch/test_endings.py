"""What real endings are taken for: the cause, the node that is blamed, and the words about it."""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import Any, NamedTuple

import pytest

from clusterdp.batch.act.failure import after_failure
from clusterdp.batch.attempt import ThisAttempt
from clusterdp.batch.decide.decisions import End, Requeue
from clusterdp.batch.decide.end import Ended, by_nodes
from clusterdp.batch.decide.history import History
from clusterdp.operate.why.match import known
from tests.batch.test_attempt import of_rules

__all__ = ["of_rules"]


class Ending(NamedTuple):
    """said: Slurm's lines in the job's output. logs: the ends of the ranks' logs. silent: the seconds for which n2 has
    given no sign of life. took_s: the duration of the attempt."""

    said: str
    logs: tuple[str, ...]
    cause: str
    node: str
    words: str
    silent_s: float = 0
    took_s: int = 600
    note: str = ""


NO_STEP = "srun: error: Unable to create step for job 7: "
CONFIRM = "srun: error: Unable to confirm allocation for job 7: "
LATE = "Socket timed out on send/recv operation"
NOT_THE_PROGRAM = "srun could not start the ranks, which is no fault of the program: "
OOM_22 = (
    "slurmstepd: error: Detected 1 oom-kill event(s) in StepId=7.0. Some of your processes may have been killed by the "
    "cgroup out-of-memory handler."
)
OOM_23 = "slurmstepd: error: Detected 1 oom_kill event in StepId=7.0. Some of the step tasks have been OOM Killed."
OOM_26 = OOM_23.replace("slurmstepd: ", "[2026-11-24T14:02:41.113] ")
EXIT_1 = "srun: error: n2: task 1: Exited with exit code 1"
GONE = "RuntimeError: [/gloo/transport/tcp/pair.cc:553] Connection closed by peer [10.0.0.2]:42693"
TRACE = 'Traceback (most recent call last):\n  File "train.py", line 7, in <module>\n'
HANDLING = "\nDuring handling of the above exception, another exception occurred:\n\n"
FULL = "OSError: [Errno 28] No space left on device"
ENDINGS = {
    # srun fails before a task runs
    "controller late": Ending(f"{CONFIRM}{LATE}", (), "node-lost", "", NOT_THE_PROGRAM + ".*timed out"),
    "controller late, with advice": Ending(
        f"{CONFIRM}{LATE}\nsrun: Check SLURM_JOB_ID environment variable. Expired or invalid job 7",
        (),
        "node-lost",
        "",
        NOT_THE_PROGRAM + "Unable to confirm allocation",
    ),
    "controller gone": Ending(
        f"{CONFIRM}Unable to contact slurm controller (connect failure)", (), "node-lost", "", NOT_THE_PROGRAM
    ),
    "controller late for a step": Ending(f"{NO_STEP}{LATE}", (), "node-lost", "", NOT_THE_PROGRAM),
    "controller restarts": Ending(
        f"{NO_STEP}Zero Bytes were transmitted or received", (), "node-lost", "", NOT_THE_PROGRAM
    ),
    "nodes busy": Ending(f"{NO_STEP}Requested nodes are busy", (), "node-lost", "", NOT_THE_PROGRAM),
    "processors": Ending(
        f"{NO_STEP}More processors requested than permitted", (), "node-lost", "", "More processors .*Slurm could not"
    ),
    "gres": Ending(f"{NO_STEP}Invalid generic resource (gres) specification", (), "node-lost", "", NOT_THE_PROGRAM),
    "nodes": Ending(f"{NO_STEP}Requested node configuration is not available", (), "node-lost", "", NOT_THE_PROGRAM),
    "munge": Ending(f"{NO_STEP}Protocol authentication error", (), "node-lost", "", NOT_THE_PROGRAM),
    "revoked": Ending("srun: error: Job 7 has been revoked", (), "node-lost", "", NOT_THE_PROGRAM),
    "credential": Ending(
        "srun: error: Application launch failed: Invalid job credential\nsrun: Job step aborted",
        (),
        "node-lost",
        "",
        NOT_THE_PROGRAM + "Application launch failed",
    ),
    "fatal": Ending("srun: fatal: Can not execute vi", (), "node-lost", "", NOT_THE_PROGRAM + "Can not execute"),
    "after noise": Ending(
        f"srun: error: spank: private-tmp: no /tmp.conf\nWelcome\n{CONFIRM}{LATE}",
        (),
        "node-lost",
        "",
        "Unable to confirm",
    ),
    "slurmd dead": Ending(
        "srun: error: Task launch for StepId=7.0 failed on node n2: Communication connection failure\n"
        "srun: error: Application launch failed: Communication connection failure",
        (),
        "node-lost",
        "n2",
        "lost n2: a failed node, not a fault of the program",
    ),
    "slurmd late in 20.11": Ending(
        f"srun: error: Task launch for 7.0 failed on node n2: {LATE}", ("",), "node-lost", "n2", "lost n2"
    ),
    "node failed": Ending("srun: error: Node failure on n2", (GONE, ""), "node-lost", "n2", "lost n2"),
    # silent nodes
    "silent node": Ending("", ("", ""), "node-lost", "n2", "lost n2", silent_s=5),
    "silent node, lost connection": Ending(EXIT_1, (GONE, ""), "node-lost", "n2", "lost n2", silent_s=5),
    "silent node, error of a survivor": Ending(
        EXIT_1, ("json.decoder.JSONDecodeError: Expecting value: line 1", ""), "node-lost", "n2", "lost n2", silent_s=20
    ),
    "node silent just now, own error": Ending(
        EXIT_1, ("", "ValueError: x"), "crash", "n2", "ValueError: x", silent_s=5
    ),
    # full memory
    "oom of 22.05": Ending(
        f"{OOM_22}\nsrun: error: n2: task 1: Out Of Memory", ("", ""), "memory", "n2", "ran out of memory"
    ),
    "oom of 23.02": Ending(
        f"{OOM_23}\nsrun: error: n2: task 1: Out Of Memory", ("", ""), "memory", "n2", "ran out of memory"
    ),
    "oom of tasks": Ending("srun: error: n2: tasks 1-3: Out Of Memory", ("", ""), "memory", "n2", "ran out of memory"),
    "oom of a list": Ending("srun: error: n2: tasks 1,3: Out Of Memory", ("", ""), "memory", "n2", "ran out of memory"),
    "oom of 26.05": Ending(f"{OOM_26}\nsrun: error: n2: task 1: Killed", ("", ""), "memory", "n2", "ran out of memory"),
    "oom with the step": Ending(
        OOM_26.replace("] error", "] [7.0] error") + "\nsrun: error: n2: task 1: Killed", ("", ""), "memory", "n2", ""
    ),
    "oom with the node": Ending(
        OOM_23.replace("stepd:", "stepd-n2:") + "\nsrun: error: n2: task 1: Killed", ("", ""), "memory", "n2", ""
    ),
    "oom in a log": Ending("srun: error: n2: task 1: Killed", ("", OOM_26), "memory", "n2", "ran out of memory"),
    "oom in the batch step": Ending(
        OOM_23.replace("7.0", "7.batch"), ("", ""), "memory", "n[1-2]", "ran out of memory"
    ),
    "limit without cgroups": Ending(
        "slurmstepd: error: Step 7.0 exceeded memory limit (5 > 4), being killed", ("", ""), "memory", "n[1-2]", ""
    ),
    "limit of the job": Ending("slurmstepd: error: Exceeded job memory limit", ("", ""), "memory", "n[1-2]", ""),
    "survived oom": Ending(f"{OOM_23}\n{EXIT_1}", ("", "KeyError: 'x'"), "crash", "n2", "KeyError"),
    "survived oom of 26.05": Ending(f"{OOM_26}\n{EXIT_1}", ("", f"{TRACE}KeyError: 'x'"), "crash", "n2", "KeyError"),
    "survived full GPU": Ending(
        EXIT_1,
        ("", f"torch.OutOfMemoryError: CUDA out of memory.\nstep 8\n{TRACE}KeyError: 'x'"),
        "crash",
        "n2",
        "KeyError",
    ),
    "killed loader worker": Ending(
        f"{OOM_23}\n{EXIT_1}",
        ("", "RuntimeError: DataLoader worker (pid 8) is killed by signal: Killed."),
        "memory",
        "n2",
        "a worker of a DataLoader was killed",
    ),
    "killed child": Ending(
        f"{OOM_23}\n{EXIT_1}",
        ("", "subprocess.CalledProcessError: Command 'x' died with <Signals.SIGKILL: 9>."),
        "memory",
        "n2",
        "",
    ),
    "full GPU": Ending(
        EXIT_1, ("", "torch.OutOfMemoryError: CUDA out of memory."), "memory", "n2", "GPU's memory is full"
    ),
    "python": Ending(EXIT_1, ("", f"{TRACE}MemoryError"), "memory", "n2", "asked for more memory"),
    "python with a label": Ending(EXIT_1, ("", "[rank1]: MemoryError"), "memory", "n2", "ran out of memory"),
    "numpy": Ending(
        EXIT_1, ("", "numpy._core._exceptions._ArrayMemoryError: Unable to allocate 9 TiB"), "memory", "n2", ""
    ),
    "fork": Ending(EXIT_1, ("", "OSError: [Errno 12] Cannot allocate memory"), "memory", "n2", "asked for more memory"),
    "allocator": Ending(
        EXIT_1, ("", "RuntimeError: DefaultCPUAllocator: can't allocate memory: you tried"), "memory", "n2", ""
    ),
    "C++": Ending(
        "srun: error: n2: task 1: Aborted (core dumped)",
        ("", "terminate called after throwing an instance of 'std::bad_alloc'\n  what():  std::bad_alloc"),
        "memory",
        "n2",
        "",
    ),
    "memory, then another error": Ending(
        EXIT_1, ("", f"{TRACE}MemoryError{HANDLING}{TRACE}RuntimeError: cannot load"), "memory", "n2", ""
    ),
    "a program's own words": Ending(
        EXIT_1, ("", "echo: task 0: Out Of Memory\nKeyError: 'x'"), "crash", "n2", "KeyError"
    ),
    # full disks
    "disk": Ending(EXIT_1, ("", FULL), "disk", "n2", "a disk is full"),
    "quota": Ending(EXIT_1, ("", "OSError: [Errno 122] Disk quota exceeded: 'a'"), "disk", "n2", "quota is used up"),
    "disk, then another error": Ending(
        EXIT_1, ("", f"{TRACE}{FULL}{HANDLING}{TRACE}RuntimeError: unexpected pos 64 vs 0"), "disk", "n2", ""
    ),
    "survived full disk": Ending(
        EXIT_1, ("", f"{TRACE}{FULL}\nstep 9\n{TRACE}KeyError: 'x'"), "crash", "n2", "KeyError"
    ),
    "skipped save": Ending(
        EXIT_1,
        ("", "a checkpoint was not saved (1 in a row): No space left on device\nKeyError: 'x'"),
        "crash",
        "n2",
        "",
    ),
    "shared memory": Ending(
        EXIT_1,
        ("", "NCCL WARN Error: failed to extend /dev/shm/nccl-hx, error: No space left on device"),
        "crash",
        "n2",
        "",
    ),
    # collectives
    "watchdog": Ending(
        EXIT_1,
        ("[E1206 ProcessGroupNCCL.cpp:607] Watchdog caught collective operation timeout: W(", ""),
        "hung",
        "",
        "",
    ),
    "gloo": Ending(
        EXIT_1, ("RuntimeError: Timed out waiting 1800000ms for recv operation to complete",), "hung", "", ""
    ),
    # the program
    "error": Ending(EXIT_1, (GONE, f"{TRACE}ValueError: x"), "crash", "n2", "ValueError: x"),
    "error of a note": Ending(EXIT_1, (GONE, ""), "crash", "n2", "ValueError: y", note="n2\n9\nValueError: y\n1\n"),
    "kill": Ending("srun: error: n2: task 1: Killed", (GONE, "step 9"), "crash", "n2", "n2: task 1: Killed"),
    "segfault": Ending(
        "srun: error: n2: task 1: Segmentation fault (core dumped)", (GONE, ""), "crash", "n2", "native code crashed"
    ),
    "bus error": Ending("srun: error: n2: task 1: Bus error", (GONE, ""), "crash", "n2", "Bus error"),
    "silent exit": Ending(EXIT_1, ("step 9", "step 9"), "crash", "n2", "Exited with exit code 1"),
    "lost connections alone": Ending(
        f"srun: error: n1: task 0: Exited with exit code 1\n{EXIT_1}", (GONE, GONE), "crash", "n[1-2]", "task 0"
    ),
    "name of a library in a path": Ending(
        EXIT_1,
        ("", "ModuleNotFoundError: No module named 'httpx2' (/env/huggingface_hub/utils/_http.py)"),
        "start",
        "n2",
        "a Python module is not installed",
        took_s=5,
    ),
    "image": Ending(
        "srun: error: n2: task 1: Exited with exit code 255",
        ("", "FATAL:   could not open image /images/none.sif: no such file or directory"),
        "start",
        "n2",
        "the container's engine could not start the program",
        took_s=5,
    ),
    "engine": Ending(
        "srun: error: n2: task 1: Exited with exit code 255",
        ("", "FATAL:   container creation failed: mount error"),
        "start",
        "n2",
        "the container's engine could not start the program",
        took_s=5,
    ),
}


@pytest.fixture
def attempt(of_rules: Callable[..., ThisAttempt]) -> ThisAttempt:
    found = of_rules(max_crashes=3)
    found.ending._usable = []
    return found


@pytest.mark.parametrize("name", ENDINGS)
def test_ending_has_its_cause_node_and_words(attempt: ThisAttempt, monkeypatch: pytest.MonkeyPatch, name: str) -> None:
    ending = ENDINGS[name]
    monkeypatch.setattr(
        attempt.keepers, "settled", lambda _, seconds, wordless: ["n2"] if ending.silent_s > seconds else []
    )
    if ending.note:
        attempt.record.note("error", ending.note.rstrip())
    ends = {f"rank-{rank:05d}.out": text for rank, text in enumerate(ending.logs)}
    ended = Ended(1, ending.took_s)
    lost = attempt._lost(ending.said, ends)
    decision: Any
    if lost:
        decision = by_nodes(lost, ended, History(), attempt.rules)
    else:
        decision = after_failure(attempt.ending, ended, ending.said, ends, "n[1-2]", [])
    assert isinstance(decision, Requeue)
    assert decision.cause == ending.cause
    assert " ".join(lost) or attempt.ending.once == ("" if "[" in ending.node else ending.node)
    assert not lost or lost == [ending.node]
    error = str((decision.details or {}).get("error", ""))
    cause = found.cause if (found := known(error or decision.said.partition(": ")[2])) else ""
    assert re.search(ending.words, f"{decision.said} {error} {cause}")


def test_endings_are_sixty_and_more() -> None:
    assert len(ENDINGS) >= 60


def test_refused_step_is_tried_once_more_and_a_late_controller_more_often(attempt: ThisAttempt) -> None:
    def ends(attempt: ThisAttempt, said: str) -> list[type]:
        kinds = []
        for life in range(3):
            attempt.ending.job = attempt.job._replace(life=life)
            attempt.ending.history = History(since=tuple(f"7.0.{n}" if n else "7.0" for n in range(life)))
            kinds.append(type(after_failure(attempt.ending, Ended(1, 5), said, {}, "n[1-2]", [])))
        return kinds

    assert ends(attempt, f"{CONFIRM}{LATE}") == [Requeue] * 3
    assert ends(attempt, f"{NO_STEP}More processors requested than permitted") == [Requeue, End, End]
