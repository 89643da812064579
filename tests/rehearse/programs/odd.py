"""Programs with odd habits that are all right: train.py with some lines that are other. Nothing is to be said against
them."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

from tests.rehearse.programs.faults import HANDLER, SAVES_AT_STOP, WRITE

THREAD = """\
import threading

signal.pthread_sigmask(signal.SIG_BLOCK, [signal.SIGTERM])
threading.Thread(target=lambda: on_term(signal.sigwait([signal.SIGTERM]), None), daemon=True).start()
"""
REQUEUES = """\
    if told[0] > 0:
        save()
        if rank == 0:
            subprocess.run(["scontrol", "requeue", os.environ["SLURM_JOB_ID"]])
        sys.exit(0)
"""
PRINTS = 'print(f"step {step} loss {loss.item():.4f}", flush=True)'
COUNTERS = """\
print(f"[{time.ctime()}] epoch {epoch} batch {begin // BATCH} sample step {step * BATCH}", flush=True)
    print(f"  global step {step}, of {STEPS}", flush=True)
    print("\\n".join(f"eval step {i}" for i in range(3)), flush=True)"""
NOTES = """\
        "host": os.uname().nodename,
        "saved_at": time.time(),
        "pid": os.getpid(),
"""
GOES_ON = """\
    try:
        torch.save(state, f"{path}.tmp")
        os.replace(f"{path}.tmp", path)
    except (OSError, RuntimeError) as error:
        print(f"{path}: not saved: {error}")
        os.unlink(f"{path}.tmp")
"""
SCRATCH = """\
scratch = Path("/tmp") / f"scratch-of-rehearsed-{os.getpid()}.pt"
torch.save({}, scratch)
scratch.unlink()
"""


@dataclass(frozen=True)
class Odd:
    """edits: of train.py, each once. config: besides. said: words of the verdict's sentence."""

    drill: str
    said: tuple[str, ...]
    edits: tuple[tuple[str, str], ...] = ()
    config: dict[str, Any] = field(default_factory=dict)


ODD = {
    "no-habits": Odd("killed-while-saving", ("back after 4 interruptions", "bit for bit")),
    "prints-nothing-and-hears-signals-in-a-thread": Odd(
        "preempted",
        ("back after 1 interruption, bit for bit",),
        ((PRINTS, "pass"), (HANDLER, THREAD), ("time.sleep(0.05)", "time.sleep(0.3)")),
    ),
    "saves-once-in-an-epoch": Odd(
        "preempted",
        ("back after 1 interruption", "lost, bit for bit"),
        ((HANDLER, ""), ("EVERY, BATCH, SAMPLES = 24, 4, 4", "EVERY, BATCH, SAMPLES = 24, 8, 4")),
        {"rehearse": {"may_lose": 9}},
    ),
    "seeded-by-the-time": Odd(
        "preempted",
        ("nothing lost, within the spread of ",),
        (
            ("torch.manual_seed(1)", "torch.manual_seed(time.time_ns() % 2**31)"),
            ("torch.manual_seed(100 + rank)", "torch.manual_seed(time.time_ns() % 2**31)"),
        ),
    ),
    "notes-hosts-and-times-keeps-one-and-counts-thrice": Odd(
        "preempted",
        ("nothing lost, bit for bit",),
        (
            ('        "best_loss": best,\n', f'        "best_loss": best,\n{NOTES}'),
            ('FOLDER / f"step_{step:04d}.pt"', 'FOLDER / "last.pt"'),
            (PRINTS, COUNTERS),
            ("if state := newest():", f"{SCRATCH}if state := newest():"),
        ),
    ),
    "ends-when-the-disk-is-full": Odd("disk-full", ("back after 1 interruption", "bit for bit")),
    "goes-on-when-the-disk-is-full": Odd(
        "disk-full", ("back after 1 interruption", "bit for bit"), ((WRITE, GOES_ON),)
    ),
    "warms-up": Odd(
        "preempted-in-warmup",
        ("back after 1 interruption, nothing lost, bit for bit",),
        (("lambda step: 0.9**step", "lambda step: min(1.0, (step + 1) / 12)"),),
        {"rehearse": {"args": ["--warmup-steps", "12"]}},
    ),
    "requeues-itself": Odd(
        "preempted",
        ("nothing lost, bit for bit",),
        ((SAVES_AT_STOP, REQUEUES), ("import sys\n", "import subprocess\nimport sys\n")),
    ),
    "exits-75-at-the-limit": Odd(
        "out-of-time",
        ("nothing lost, bit for bit",),
        ((SAVES_AT_STOP, SAVES_AT_STOP.replace("exit(0)", "exit(75)")),),
        {"launch": {"signal": "TERM@60"}},
    ),
}
