"""A program beside the ranks of a job, on one of its nodes: `srun --overlap` starts it.

    ranks RUN            prints a JSON line for each rank of the run on this node
    stacks RUN           the same, with the stacks of its threads
    exec RUN RANK WORD.. becomes the program WORD.., with the environment and in the folder of that rank

Ranks are found in /proc: the batch program hands the run's folder to each. At a signal, a rank writes its stacks to a
file in its memory (train/hang): so no other right is needed than that of the same user.
"""

import json
import os
import signal
import sys
import time
from typing import Any, Dict, List

ANSWER_S = 2.0
OURS = (b"SLURMD_NODENAME", b"SLURM_JOB_ID", b"CLUSTERDP_RUN_DIR")
# A signal that has no other use: NCCL takes USR1, Slurm's time limit USR2. On macOS SIGINFO is ignored by default.
STACKS_SIGNAL = int(signal.SIGRTMAX) - 7 if hasattr(signal, "SIGRTMAX") else int(getattr(signal, "SIGINFO", 0))
STACKS = "clusterdp-stacks"  # name of the file in memory
OF_TERMINAL = (b"TERM", b"COLORTERM", b"LANG", b"LC_ALL")


def main(words: List[str]) -> None:
    verb, run, rest = words[0], words[1], words[2:]
    found = ranks_here(run)
    if verb == "exec":
        become(found, int(rest[0]), rest[1:])
    for each in found.values():
        print(json.dumps(dict(each, stack=stack_of(each)) if verb == "stacks" else each))


def ranks_here(run: str) -> Dict[int, Dict[str, Any]]:
    """Returns the ranks of the run on this node. Of the processes of a rank, it is the one above the others."""
    environs = {pid: environ_of(pid) for pid in map(int, filter(str.isdigit, os.listdir("/proc")))}
    own = environ_of(os.getpid())
    wanted = {name: own.get(name, b"") for name in OURS[:2]}
    wanted[OURS[2]] = os.fsencode(run)
    ours = {pid: each for pid, each in environs.items() if all(each.get(name) == wanted[name] for name in OURS)}
    found = {}  # type: Dict[int, Dict[str, Any]]
    for pid, each in sorted(ours.items()):
        rank, above = each.get(b"RANK", b""), environs.get(parent_of(pid), {})
        if rank.isdigit() and above.get(b"RANK") != rank:
            found[int(rank)] = {"rank": int(rank), "node": os.fsdecode(wanted[OURS[0]]), "pid": pid}
    for pid, each in ours.items():  # in a container, the rank is not the process above the others
        rank, file = each.get(b"RANK", b""), stacks_file(pid)
        if rank.isdigit() and int(rank) in found and file and not stacks_file(parent_of(pid)):  # not a forked worker
            found[int(rank)]["watch"] = {"pid": pid, "file": file}
    return found


def become(found: Dict[int, Dict[str, Any]], rank: int, words: List[str]) -> None:
    pid = found[rank]["pid"] if rank in found else 0
    if not pid:
        sys.exit("clusterdp: rank {} has ended on {}.".format(rank, os.uname().nodename))
    environ, own = environ_of(pid), environ_of(os.getpid())
    environ.update({name: own[name] for name in OF_TERMINAL if name in own})
    try:
        os.chdir("/proc/{}/cwd".format(pid))
    except OSError as error:
        print("clusterdp: the folder of rank {}: {}".format(rank, error.strerror), file=sys.stderr)
    try:
        os.execvpe(words[0], words, environ)
    except OSError as error:
        sys.exit("clusterdp: {}: cannot be run: {}.".format(words[0], error.strerror))


def stack_of(rank: Dict[str, Any]) -> str:
    """Returns the stacks of all threads of a rank; empty if the rank has no file for them, or does not answer."""
    watch = rank.get("watch")
    if not watch:
        return ""
    try:
        with open(watch["file"], "rb") as file:
            begin = file.seek(0, 2)
            os.kill(watch["pid"], STACKS_SIGNAL)
            size, end = begin, time.monotonic() + ANSWER_S
            while time.monotonic() < end:
                time.sleep(0.05)
                before, size = size, file.seek(0, 2)
                if size == before > begin:
                    break
            file.seek(begin)
            return file.read().decode("utf-8", "replace")
    except OSError:
        return ""


def stacks_file(pid: int) -> str:
    """Returns the path of the file in memory to which a process writes its stacks; empty if it has none."""
    folder = "/proc/{}/fd".format(pid)
    try:
        for number in os.listdir(folder):
            if os.readlink(os.path.join(folder, number)).startswith("/memfd:" + STACKS):
                return os.path.join(folder, number)
    except OSError:  # it has ended, or has just closed one
        pass
    return ""


def environ_of(pid: int) -> Dict[bytes, bytes]:
    return dict(each.partition(b"=")[::2] for each in read(pid, "environ").split(b"\0") if each)


def parent_of(pid: int) -> int:
    fields = read(pid, "stat").rpartition(b")")[2].split()
    return int(fields[1]) if len(fields) > 1 else 0


def read(pid: int, name: str) -> bytes:
    try:
        with open("/proc/{}/{}".format(pid, name), "rb") as file:
            return file.read()
    except OSError:  # it has ended, or is another user's
        return b""
