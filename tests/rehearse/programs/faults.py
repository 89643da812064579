"""Programs with one fault each: train.py with a line or two that are other; which drill shows it, in which words."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

RESTORES_RNG = 'torch.set_rng_state(state["rng"][rank])'
ON_TERM = "    global stopped\n    stopped = True\n"
SAVES_AT_STOP = "    if told[0] > 0:\n        save()\n        sys.exit(0)\n"
HANDLER = "signal.signal(signal.SIGTERM, on_term)\n"
WRITE = '    torch.save(state, f"{path}.tmp")\n    os.replace(f"{path}.tmp", path)\n'
SLOW_WRITE = """\
    with open(f"{path}.tmp", "wb") as file:
        torch.save(state, file)
        time.sleep(30 if stopped else 0)
    os.replace(f"{path}.tmp", path)
"""
HOLDS = """\
    torch.save(state, path)
    with open(path, "ab"):  # so that it is seen: a small file is written in a moment
        time.sleep(0.2)
"""
NEWEST = 'sorted(FOLDER.glob("*.pt"), reverse=True)'
TRIES = (
    "        try:\n            return torch.load(path)\n        except (RuntimeError, EOFError, OSError) as error:\n"
)


@dataclass(frozen=True)
class Fault:
    """edits: of train.py, each once. config: besides. drill: that shows it, and the row of the finding if that is
    another. said: words of the diagnosis."""

    drill: str
    said: tuple[str, ...]
    edits: tuple[tuple[str, str], ...] = ()
    config: dict[str, Any] = field(default_factory=dict)
    row: str = ""
    verdict: str = "failed"


FAULTS = {
    "scaler-not-saved": Fault(
        "preempted",
        ("the GradScaler (train.py:", "is in no checkpoint"),
        (
            ('        "scaler": scaler.state_dict(),\n', ""),
            ('    scaler.load_state_dict(state["scaler"])\n', ""),
        ),
    ),
    "scheduler-not-saved": Fault(
        "preempted",
        ("the scheduler (train.py:", "is in no checkpoint", "the learning rate ends as"),
        (
            ('        "scheduler": scheduler.state_dict(),\n', ""),
            ('    scheduler.load_state_dict(state["scheduler"])\n', ""),
        ),
    ),
    "rng-not-restored": Fault(
        "preempted",
        ("the model differs in ",),
        ((f"    {RESTORES_RNG}\n", ""),),
    ),
    "rng-not-saved": Fault(
        "preempted",
        ("the model differs in ",),
        (('        "rng": draws,\n', ""), (f"    {RESTORES_RNG}\n", "")),
    ),
    "rng-of-one-rank": Fault(
        "preempted",
        ("the model differs in ",),
        ((f"    {RESTORES_RNG}\n", f"    if rank == 0:\n        {RESTORES_RNG}\n"),),
    ),
    "sampler-starts-over": Fault(
        "preempted",
        ("the model differs in ",),
        (
            ('        "sampler": {"position": position},\n', ""),
            ('    position = state["sampler"]["position"]\n', ""),
        ),
    ),
    "handler-on-rank-0": Fault(
        "preempted",
        ("rank 0 alone handles SIGTERM", "rank 1 dies of it at once"),
        ((HANDLER, f'if os.environ["RANK"] == "0":\n    {HANDLER}'),),
    ),
    "collective-in-handler": Fault(
        "preempted",
        ("its handler calls a collective (train.py:",),
        (
            (ON_TERM, "    save()\n    sys.exit(0)\n"),
            ("    time.sleep(0.05)\n", "    time.sleep(0.4 if rank == 0 else 0)\n"),
        ),
    ),
    "signal-ignored": Fault(
        "preempted",
        ("the program ignores SIGTERM",),
        ((HANDLER, "signal.signal(signal.SIGTERM, signal.SIG_IGN)\n"), ("time.sleep(0.05)", "time.sleep(0.5)")),
    ),
    "exits-0-at-the-limit": Fault(
        "out-of-time",
        ("exited with 0 at step", "and was not brought back"),
        config={"launch": {"signal": "TERM@60"}},
    ),
    "not-requeued": Fault(
        "preempted", ("was not brought back: restart.requeue is false",), config={"restart": {"requeue": False}}
    ),
    "saved-in-place": Fault(
        "killed-while-saving",
        ("checkpoints are saved in place (train.py:", "half written"),
        ((WRITE, "    torch.save(state, path)\n"), (TRIES, TRIES.replace("RuntimeError, EOFError", "KeyError"))),
    ),
    "saved-in-place-on-a-full-disk": Fault(
        "disk-full",
        ("checkpoints are saved in place (train.py:", "half written"),
        ((WRITE, "    torch.save(state, path)\n"), (TRIES, TRIES.replace("RuntimeError, EOFError", "KeyError"))),
    ),
    "all-ranks-to-one-file": Fault(
        "preempted",
        ("several ranks write one file (train.py:", ": ranks 0, 1 had checkpoints/step_"),
        (
            (
                "    if rank == 0:\n        write(state",
                "    if True:\n        write(state",
            ),
            (WRITE, HOLDS),
        ),
        row="one-writer",
    ),
    "resumes-from-the-oldest": Fault(
        "preempted",
        ("attempt 2 resumed from checkpoints/step_0004.pt", "was there and newer"),
        ((NEWEST, 'sorted(FOLDER.glob("*.pt"))'),),
        verdict="lost work",
    ),
    "takes-half-written-files": Fault(
        "killed-while-saving",
        ("it resumes from a file that is half written", ".pt.tmp"),
        (
            (NEWEST, 'sorted(FOLDER.glob("*"), reverse=True)'),
            (TRIES, TRIES.replace("RuntimeError, EOFError", "KeyError")),
        ),
    ),
    "best-model-overwritten": Fault(
        "preempted",
        ("best.pt and ", " differ, and all else is the same"),
        (
            ('    step, best = state["step"], state["best_loss"]\n', '    step = state["step"]\n'),
            ("targets[batch])\n", "targets[batch]) * 1.5**step\n"),  # so that the best one is an early one
        ),
    ),
    "port-hard-coded": Fault(
        "preempted",
        ("a port is hard-coded: 47123 (train.py:",),
        (
            (
                'dist.init_process_group("gloo")',
                'os.environ["MASTER_PORT"] = "47123"\ndist.init_process_group("gloo")',
            ),
        ),
        row="beside-another",
    ),
    "absolute-path": Fault(
        "preempted",
        ("an absolute path is in the code", "/best.pt"),
        (('FOLDER.parent / "best.pt"', 'Path("ELSEWHERE/best.pt")'),),
        row="beside-another",
    ),
    "save-longer-than-the-warning": Fault(
        "preempted",
        ("the warning is shorter than the save", ".pt.tmp was not whole 5 s after SIGTERM"),
        ((WRITE, SLOW_WRITE),),
    ),
    "shell-in-between": Fault(
        "preempted",
        ("SIGTERM kills", "above the program of ranks 0, 1", "exec"),
        ((SAVES_AT_STOP, SAVES_AT_STOP.replace("save()", "time.sleep(1)\n        save()")),),
        config={"script": "bash run.sh"},
    ),
}
